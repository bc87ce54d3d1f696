"""``-o json`` of the commands: where it is, and what it prints for those that ask a daemon to do something."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from plugind.actors.console.commands import COMMANDS, command, main
from plugind.protocol.leases.leases_json import failure_to_json, released_to_json
from plugind.protocol.leases.replies import Failure, Problem, Released
from plugind.protocol.status.json import plugin_to_json
from plugind.tests.actors.console.lease_server import answer, lease_server
from plugind.tests.protocol.client.test_status_values import NOW, PLUGIN

#: The commands whose output is not for programs.
WITHOUT = {
    "run": "it prints nothing but a log, for which there is --log-format json",
    "demo": "it explains to people what they see",
    "fake": "each call is a line of JSON in any case",
    "probe-handler": "each check is a line, and its exit code says whether all is well",
    "inventory": "it prints a document of JSON in any case",
    "page": "it serves a page, and prints its address",
    "install-unit": "it writes files, or prints them as they are",
    "slurm-config": "it prints lines for files",
}
#: Their usual form is no text for people.
OTHER_FORMS = {"config": "toml", **dict.fromkeys(("ls", "devices", "who", "leases", "usage", "allocate"))}


def parser(name: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    command(name).add_arguments(made)
    return made


def words(name: str, *options: str) -> list[str]:
    """Return a command line that the parser of the command accepts."""
    needed = {
        "allocate": ["a/b=1"],
        "describe": ["a"],
        "drain": ["a.b/c"],
        "probe": ["a"],
        "release": ["a"],
        "renew": ["a"],
        "retry": ["a"],
        "undrain": ["a.b/c"],
    }
    return [*needed.get(name, []), *options]


def test_every_command_of_which_a_program_may_read_has_the_same_option() -> None:
    with_option = [name for name in COMMANDS if name not in WITHOUT]
    assert WITHOUT.keys() < COMMANDS.keys()
    for name in with_option:
        for option in (["-o", "json"], ["--output", "json"]):
            assert parser(name).parse_args(words(name, *option)).output == "json", name
        assert parser(name).parse_args(words(name)).output == OTHER_FORMS.get(name, "text"), name
    for name in WITHOUT:
        assert "-o" not in parser(name).format_help().split()


@attrs.frozen
class Done:
    code: int
    #: What standard output has, read as JSON.
    said: Any
    err: str


@pytest.fixture
def asking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def asked(answers: list[bytes], *line: str) -> Done:
        with lease_server(tmp_path, *answers) as server:
            code = main([*line, "-o", "json", "--status", str(server.path)])
        shown = capsys.readouterr()
        return Done(code, json.loads(shown.out), shown.err)

    return asked


def watched(*lines: Any) -> bytes:
    """Return a stream with heartbeats that names all that there is, and ends."""
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines) + b"\n"
    return b"HTTP/1.1 200 OK\r\nPlugind-Status-Version: 2\r\nHeartbeat: 1\r\n\r\n" + text


def test_a_wait_names_the_plugin_that_is_there(asking: Any) -> None:
    plugin = plugin_to_json(PLUGIN, NOW, NOW)
    done = asking([watched(plugin)], "wait", "red.example.com")
    assert done.code == 0
    assert done.said == {
        "done": True,
        "plugins": [{"name": "red.example.com", "done": True, "plugin": plugin, "why_not": None}],
    }
    assert done.err == ""


def test_a_wait_in_vain_says_of_each_plugin_why(asking: Any) -> None:
    plugin = plugin_to_json(PLUGIN, NOW, NOW)
    done = asking([answer(200, [plugin])], "wait", "red.example.com", "blue.example.com", "--timeout", "0")
    assert done.code == 1
    assert done.said["done"] is False
    assert [(row["name"], row["done"]) for row in done.said["plugins"]] == [
        ("red.example.com", True),
        ("blue.example.com", False),
    ]
    assert done.said["plugins"][1]["why_not"].startswith("blue.example.com is not registered: no plugin has that name")


def test_a_wait_for_devices_says_how_many_there_are(asking: Any) -> None:
    found = {"resource": "vendor.com/gpu", "state": "listed", "allocatable": 2, "capacity": 2}
    done = asking([watched(found)], "wait", "--resource", "vendor.com/gpu=2")
    row = {"resource": "vendor.com/gpu", "done": True, "wanted": 2, "healthy": 2, "why_not": None}
    assert (done.code, done.said) == (0, {"done": True, "resources": [row]})


def test_a_release_says_of_each_lease_whether_it_has_ended(asking: Any) -> None:
    unknown = answer(404, failure_to_json(Failure(Problem.UNKNOWN, "there is no lease b", ())))
    done = asking([answer(200, released_to_json(Released(("a",)))), unknown], "release", "a", "b")
    assert done.code == 1
    assert done.said == {
        "leases": [
            {"id": "a", "released": True, "error": None, "unwritten": None},
            {"id": "b", "released": False, "error": "there is no lease b", "unwritten": None},
        ]
    }
    assert done.err == "plugind: there is no lease b\n"


def test_a_release_that_is_not_on_disk_yet_says_so(asking: Any) -> None:
    """It has freed the devices, so it has not failed."""
    done = asking([answer(200, released_to_json(Released(("a",), unwritten="the disk is full")))], "release", "a")
    assert done.code == 0
    assert done.said == {"leases": [{"id": "a", "released": True, "error": None, "unwritten": "the disk is full"}]}
    assert done.err == (
        "plugind: warning: a is released, which is not on disk yet; it comes back if plugind is killed before that:"
        " the disk is full\n"
    )


# --- config check -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [["check", "FILE", "-o", "json"], ["-o", "json", "check", "FILE"]])
def test_a_check_says_where_each_problem_is(
    line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plugind.toml"
    words = ["config", *(str(file) if word == "FILE" else word for word in line)]
    file.write_text("rescan = 5.0\n")
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == {"usable": True, "problems": [], "warnings": [], "not_compared": None}
    file.write_text("rescan = 5.0\nrescam = 5.0\n[timeouts]\ndial = 'soon'\n")
    assert main(words) == 78
    found = json.loads(capsys.readouterr().out)
    assert found["usable"] is False
    places = [
        (problem["source"]["kind"], problem["source"]["name"], problem["source"]["line"])
        for problem in found["problems"]
    ]
    assert places == [("file", str(file), 2), ("file", str(file), 4)]
    assert "rescam" in found["problems"][0]["text"]
