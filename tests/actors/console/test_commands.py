"""The command line: help everywhere, and the exit codes of the contract."""

from __future__ import annotations

import pytest

from plugind.actors.console import commands
from plugind.actors.handlers import registry
from plugind.protocol.errors import ConfigError
from plugind.protocol.plugins import Plugin

COMMANDS = ["run", "ls", "describe", "watch", "wait", "retry", "probe", "fake", "demo"]


class ColourHandler:
    async def validate(self, plugin: Plugin) -> None: ...

    async def register(self, plugin: Plugin) -> None: ...

    async def deregister(self, plugin: Plugin) -> None: ...


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        commands.main([command, "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "example" in out
    assert f"plugind {command}" in out


def test_the_help_names_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        commands.main(["--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert [command for command in COMMANDS if f"    {command} " in out] == COMMANDS
    assert "exit codes: 0 ok, 1 failed, 2 usage, 78 bad configuration" in out


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["run", "--rescan", "0"], ["wait"], ["fake", "--socket", "/x"], ["describe"]]
)
def test_wrong_usage_ends_with_two_and_says_what_is_wrong(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        commands.main(arguments)
    assert end.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_roots_in_each_other_are_bad_configuration(tmp_path_factory: pytest.TempPathFactory) -> None:
    inner = tmp_path_factory.mktemp("outer") / "inner"
    inner.mkdir()
    assert commands.main(["run", "--root", str(inner.parent), "--root", str(inner)]) == 78


def test_handlers_are_found_by_the_entry_points_of_their_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: {"plugind.handlers": [Loaded("Colour")]}[group])
    (name, handler), *_ = registry.installed_handlers().items()
    assert name == "Colour"
    assert isinstance(handler, ColourHandler)


def test_a_handler_that_cannot_be_loaded_is_bad_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: [Broken("Colour")])
    with pytest.raises(ConfigError, match=r"the handler for Colour .* cannot be loaded"):
        registry.installed_handlers()


class Loaded:
    def __init__(self, name: str) -> None:
        self.name = name
        self.value = "colours:ColourHandler"

    def load(self) -> type[ColourHandler]:
        return ColourHandler


class Broken(Loaded):
    def load(self) -> type[ColourHandler]:
        raise ImportError("no module named colours")
