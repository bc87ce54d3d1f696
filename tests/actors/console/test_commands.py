"""The command line: the help of every command, and the exit codes."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from plugind.actors.console import commands
from plugind.actors.console.commands import main
from plugind.actors.console.ending import CommandError, CutOffError, run_to_end

COMMANDS = ["run", "config", "ls", "describe", "watch", "page", "wait", "retry", "reload", "probe", "fake", "demo"]

#: A command that prints one line.
SHORT = """
import sys
from plugind.actors.console.ending import run_to_end
sys.exit(run_to_end(lambda args: print(args) or 0, "short"))
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        commands.main([command, "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "example" in out
    assert f"plugind {command}" in out


@pytest.mark.parametrize("words", [["--help"], ["help"], []])
def test_the_help_names_every_command_and_the_exit_codes(
    words: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        commands.main(words)
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert all(f"    {command} " in out for command in COMMANDS)
    assert (
        "exit codes: 0 ok, 1 failed, 2 usage, 69 no daemon answers, 75 the daemon is busy,\n78 bad configuration" in out
    )


def test_an_unknown_option_names_the_help_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        commands.main(["run", "--rooot", "p"])
    assert end.value.code == 2
    complaint = "plugind run: error: unrecognized arguments: --rooot p"
    assert capsys.readouterr().err == f"see 'plugind run --help'\n{complaint}\n"


def test_an_error_of_a_command_is_one_line_and_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    def run(args: argparse.Namespace) -> int:
        raise CommandError("it is closed", 78)

    assert run_to_end(run, argparse.Namespace()) == 78
    assert capsys.readouterr() == ("", "plugind: it is closed\n")


def test_an_interrupt_ends_a_command_as_a_shell_expects() -> None:
    def run(args: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    assert run_to_end(run, argparse.Namespace()) == 130


def test_a_program_that_asks_for_json_is_told_why_a_command_has_failed(capsys: pytest.CaptureFixture[str]) -> None:
    def run(_: argparse.Namespace) -> int:
        failed = CommandError("a: wrong", 78, more=["b: wrong"], problems=["a", "b"])
        raise BaseExceptionGroup("of a nursery", [failed])

    assert run_to_end(run, argparse.Namespace(output="json")) == 78
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"error": "a: wrong", "problems": ["a", "b"]}
    assert printed.err == "plugind: a: wrong\nplugind: b: wrong\n"
    assert run_to_end(run, argparse.Namespace(output="text")) == 78
    assert capsys.readouterr().out == ""


def test_what_is_printed_line_by_line_has_no_line_of_another_kind_at_its_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(_: argparse.Namespace) -> int:
        raise CutOffError("the daemon went away", 69)

    assert run_to_end(run, argparse.Namespace(output="json")) == 69
    assert (*capsys.readouterr(),) == ("", "plugind: the daemon went away\n")


@pytest.mark.parametrize("words", [["describe", "nope"], ["devices", "nope/x"], ["retry", "nope"], ["reload"]])
def test_each_command_without_a_daemon_says_so_in_json(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, f"--status={tmp_path}/none.sock", "-o", "json"]) == 69
    printed = capsys.readouterr()
    assert printed.err == f"plugind: {json.loads(printed.out)['error']}\n"


def test_a_reload_without_a_daemon_says_that_its_socket_may_be_another_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reload", f"--status={tmp_path}/none.sock"]) == 69
    assert capsys.readouterr().err.endswith(": if 'status' was changed since its start, the one before\n")


@pytest.mark.parametrize(
    ("output", "code", "complaint"),
    [
        ("/dev/full", 1, "plugind: standard output cannot be written: No space left on device\n"),
        (None, 0, ""),
    ],
    ids=["disk full", "reader gone"],
)
def test_an_output_that_cannot_be_written_causes_no_traceback(output: str | None, code: int, complaint: str) -> None:
    """Fault 95."""
    if output is None:
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open(output, os.O_WRONLY)
    # Standard output is buffered, so nothing is written before the end.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    try:
        command = [sys.executable, "-c", SHORT]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=buffered, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (code, complaint)
