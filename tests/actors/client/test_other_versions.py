"""Clients and commands with a daemon that speaks another version of the status socket: they work, or say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from plugind.actors.console.commands import main
from plugind.client import Client, ClientError, DaemonError, NoDaemonError, SyncClient
from plugind.protocol.status.json import plugin_to_json
from plugind.protocol.version import STATUS_VERSION, incompatibility
from plugind.tests.actors.console.lease_server import answer, lease_server
from plugind.tests.protocol.client.test_status_values import NOW, PLUGIN

#: A daemon that is one version newer, and one that is one version older.
NEWER, OLDER = STATUS_VERSION + 1, STATUS_VERSION - 1
IS_NEWER = "the daemon is a newer plugind: it speaks version 3 of the status socket, and this one version 2"
IS_OLDER = "the daemon is an older plugind: it speaks version 1 of the status socket, and this one version 2"
#: What the first release knew of a plugin.
FIRST_FIELDS = (
    *("socket", "root", "type", "name", "endpoint", "versions", "state", "reason", "attempt"),
    *("generation", "since", "age"),
)


def said_of_plugin(**changes: Any) -> dict[str, Any]:
    return {**plugin_to_json(PLUGIN, NOW, NOW), **changes}


def asked(kind: str, path: Path, ask: Callable[[Any], Any]) -> Any:
    """Ask with one of the two clients."""
    if kind == "sync":
        return ask(SyncClient(str(path)))

    async def main() -> Any:
        return await ask(Client(str(path)))

    return trio.run(main)


both = pytest.mark.parametrize("kind", ["sync", "trio"])


@both
def test_a_state_that_only_a_newer_daemon_knows_is_an_error_that_says_so(kind: str, tmp_path: Path) -> None:
    said = answer(200, [said_of_plugin(state="resting")], NEWER)
    with lease_server(tmp_path, said) as server, pytest.raises(DaemonError) as caught:
        asked(kind, server.path, lambda client: client.list())
    assert str(caught.value).startswith("the daemon's answer cannot be understood: ")
    assert "'resting'" in str(caught.value)
    assert str(caught.value).endswith(f"; {IS_NEWER}")


@both
@pytest.mark.parametrize("status", [400, 404, 405])
def test_a_request_that_only_a_newer_daemon_knows_is_an_error_that_says_so(
    kind: str, status: int, tmp_path: Path
) -> None:
    with lease_server(tmp_path, answer(status, {"error": "there is no /v1/devices"}, OLDER)) as server:
        with pytest.raises(DaemonError) as caught:
            asked(kind, server.path, lambda client: client.devices())
        with pytest.raises(ClientError) as released:
            asked(kind, server.path, lambda client: client.release("a"))
    assert str(caught.value) == str(released.value) == f"there is no /v1/devices; {IS_OLDER}"


@both
def test_a_refusal_for_another_reason_does_not_name_the_versions(kind: str, tmp_path: Path) -> None:
    said = answer(403, {"error": "you may not"}, OLDER)
    with lease_server(tmp_path, said) as server, pytest.raises(DaemonError, match=r"^you may not$"):
        asked(kind, server.path, lambda client: client.devices())


@both
@pytest.mark.parametrize("version", [STATUS_VERSION + 2, 40])
def test_a_daemon_that_is_further_away_is_not_understood_by_chance(kind: str, version: int, tmp_path: Path) -> None:
    said = answer(200, [said_of_plugin()], version)
    with lease_server(tmp_path, said) as server, pytest.raises(NoDaemonError) as caught:
        asked(kind, server.path, lambda client: client.list())
    assert f"it speaks version {version} of the status socket, and this one version 2;" in str(caught.value)
    assert str(caught.value).endswith("ask it with a plugind of its own version")


# --- commands ---------------------------------------------------------------------------------------------------------


def test_ls_shows_the_plugins_of_an_older_and_of_a_newer_daemon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = {key: value for key, value in said_of_plugin().items() if key in FIRST_FIELDS}
    newer = said_of_plugin(state="resting", colour="red")
    healthy = {"status": "ok", "roots": [], "actors": []}
    shown = []
    for number, (said, version) in enumerate([(older, OLDER), (newer, NEWER)]):
        (tmp_path / str(number)).mkdir()
        with lease_server(
            tmp_path / str(number), answer(200, [said], version), answer(200, healthy, version)
        ) as server:
            assert main(["ls", "--status", str(server.path)]) == 0
        shown.append(capsys.readouterr().out.splitlines()[1].split()[:2])
    assert shown == [["registered", "red.example.com"], ["resting", "red.example.com"]]


@pytest.mark.parametrize(
    "command", [["devices"], ["wait", "--resource", "a/b=1"], ["watch"], ["retry", "a"], ["reload"], ["release", "a"]]
)
def test_a_command_that_an_older_daemon_does_not_know_says_so(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with lease_server(tmp_path, answer(404, {"error": "there is no such path"}, OLDER)) as server:
        assert main([*command, "--status", str(server.path)]) != 0
    assert f"there is no such path; {IS_OLDER}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["ls"], ["watch"], ["retry", "a"], ["leases"], ["allocate", "a/b=1", "--ttl", "9"]]
)
def test_a_command_that_is_too_old_for_the_daemon_says_so(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with lease_server(tmp_path, answer(200, [], 7)) as server:
        assert main([*command, "--status", str(server.path)]) != 0
    assert "it speaks version 7 of the status socket, and this one version 2;" in capsys.readouterr().err


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["", "-1", "1.0", "²", "1" * 10, "one"])
def test_a_version_that_is_no_number_is_that_of_another_program(said: str) -> None:
    assert incompatibility(said) == (
        "the daemon is another plugind: the version that it says is no number; ask it with a plugind of its own version"
    )
