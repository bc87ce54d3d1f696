"""The manual pages that are made from the parsers, as groff renders them."""

from __future__ import annotations

import argparse
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from plugind.actors.console.commands import COMMANDS, whole_parser
from plugind.actors.console.unit_files import unit
from plugind.protocol.settings.table import settings
from plugind.tests.end_to_end.packages import program

pytest.importorskip("argparse_manpage", reason="PyPI package argparse-manpage, in the extra dev")
pytest.importorskip("shtab", reason="PyPI package shtab, in the extra dev")

from plugind.deploy import manuals
from plugind.deploy.man_pages import commands_of, man_pages
from plugind.tests.end_to_end.processes import finish

pytestmark = pytest.mark.extended

DAY = datetime(2026, 1, 2, tzinfo=UTC)
NAMES = ["plugind", *(f"plugind-{name}" for name in COMMANDS)]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The pages by their paths."""
    return dict(man_pages(DAY))


def rendered(page: str, *options: str) -> str:
    """Return what groff makes of a page; it must warn of nothing."""
    command = [program("groff"), "-man", "-ww", "-K", "utf8", "-rLL=200n", *options]
    done = finish(command, stdin=page)
    assert (done.returncode, done.stderr) == (0, "")
    # Bold and underlined characters are struck twice.
    return re.sub(".\b", "", done.stdout)


def as_text(page: str) -> str:
    text = rendered(page, "-Tutf8", "-P-c", "-P-b", "-P-u")
    # A line may end at a hyphen, which is another character in a word.
    return re.sub(r"([-\u2010])\n +", r"\1", text)


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


def test_each_command_has_a_page_with_its_name_and_each_option(pages: dict[str, str]) -> None:
    assert sorted(pages) == sorted([*(f"man1/{name}.1" for name in NAMES), "man5/plugind.toml.5"])
    whole = whole_parser()
    for name in NAMES:
        text = as_text(pages[f"man1/{name}.1"])
        assert re.search(rf"^NAME\n +{name} - \w", text, re.MULTILINE), text
        shown = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))
        command = commands_of(whole)[name.removeprefix("plugind-")] if name != "plugind" else whole
        nested = commands_of(command).values() if name != "plugind" else ()
        assert set[str]().union(*map(options_of, (command, *nested))) <= shown, name


def test_the_page_of_the_configuration_has_each_setting(pages: dict[str, str]) -> None:
    text = as_text(pages["man5/plugind.toml.5"]).split("\nSETTINGS\n")[1].split("\nSEE ALSO\n")[0]
    assert re.findall(r"^ {7}([a-z_.]+)(?=\s)", text, re.MULTILINE) == [*settings()]


def test_the_unit_names_manuals_that_are_there(pages: dict[str, str]) -> None:
    (line,) = (line for line in unit("/usr/bin/plugind").splitlines() if line.startswith("Documentation="))
    named = re.findall(r"man:([a-z.]+)\((\d)\)", line)
    assert len(named) == 2
    assert {f"man{section}/{name}.{section}" for name, section in named} <= {*pages}


def test_pages_do_not_depend_on_the_terminal_or_on_the_user(
    pages: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    assert man_pages(DAY) == pages


def test_man_shows_a_page(tmp_path: Path, pages: dict[str, str]) -> None:
    path = tmp_path / "plugind-ls.1"
    path.write_text(pages["man1/plugind-ls.1"])
    command = [program("man"), "--warnings", "-E", "UTF-8", "-l", str(path)]
    environment = {**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"}
    done = finish(command, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^PLUGIND-LS\(1\) +plugind +PLUGIND-LS\(1\)$", done.stdout, re.MULTILINE), done.stdout


def test_one_command_writes_all_pages_and_completions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pages: dict[str, str]
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(int(DAY.timestamp())))
    monkeypatch.setattr("sys.argv", ["manuals", str(tmp_path)])
    manuals.main()
    written = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in manuals.manuals()]
    assert written == manuals.manuals()
    assert {name for name in written if not name.startswith("share/man/")} == {
        "share/bash-completion/completions/plugind",
        "share/zsh/site-functions/_plugind",
        "share/fish/vendor_completions.d/plugind.fish",
    }
    assert {name: text for name, text in written.items() if name.startswith("share/man/")} == {
        f"share/man/{name}": text for name, text in pages.items()
    }
