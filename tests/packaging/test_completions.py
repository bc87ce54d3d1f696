"""The completions that are made from the parsers, in real shells."""

from __future__ import annotations

import argparse
import os
import pty
import select
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from plugind.actors.console.commands import COMMANDS, whole_parser
from plugind.protocol.settings.table import settings
from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import DEADLINE, finish

pytest.importorskip("shtab", reason="PyPI package shtab, in the extra dev")

from plugind.deploy.completions import completions

pytestmark = pytest.mark.extended

#: Returns what a shell offers for the last of each list of words.
Offered = Callable[[Sequence[Sequence[str]]], list[set[str]]]


@pytest.fixture(scope="module")
def scripts() -> Mapping[str, str]:
    """The scripts of the shells."""
    return completions()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a file and a directory, in which the shells run."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file.sock").touch()
    (tmp_path / "there" / "directory").mkdir()
    return tmp_path


_BASH = """
try() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMPREPLY=()
  "$function" plugind "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
  printf '%s\\n' "${COMPREPLY[@]}" --end--
}
function=$(complete -p plugind | sed 's/.* -F \\([^ ]*\\) .*/\\1/')
"""


def in_bash(script: str, place: Path, lines: Sequence[Sequence[str]]) -> list[set[str]]:
    source = "\n".join([script, _BASH, *(f"try {shlex.join(words)}" for words in lines)])
    command = [program("bash"), "--noprofile", "--norc", "-uc", source]
    done = finish(command, cwd=place)
    assert done.stderr == ""
    return [set(block.split("\n")) - {""} for block in done.stdout.split("--end--\n")[:-1]]


def in_fish(script: str, place: Path, lines: Sequence[Sequence[str]]) -> list[set[str]]:
    asked = [f"complete -C {shlex.quote(shlex.join(words[:-1]) + ' ' + words[-1])}; echo --end--" for words in lines]
    command = [program("fish"), "--no-config", "-c", "\n".join([script, *asked])]
    environment = {**os.environ, "HOME": str(place), "LC_ALL": "C.UTF-8"}
    done = finish(command, cwd=place, env=environment)
    assert done.stderr == ""
    blocks = done.stdout.split("--end--\n")[:-1]
    return [{line.partition("\t")[0] for line in block.splitlines()} for block in blocks]


_ZSH = """
PS1= PS2= RPS1= LISTMAX=10000
unset zle_bracketed_paste
autoload -Uz compinit
fpath=("$PWD/functions" $fpath)
compinit -D -u
zstyle ':completion:*' completer _complete
compadd() {
  local -a found
  # With one of these, the names go into an array of the caller's.
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\\ * ]]; then
    builtin compadd "$@"
    return
  fi
  builtin compadd -O found "$@"
  print -rl -- $found >>found
  builtin compadd "$@"
}
# Keys that come earlier are not for the line editor.
zle-line-init() { : >ready }
zle -N zle-line-init
"""


def in_zsh(script: str, place: Path, lines: Sequence[Sequence[str]]) -> list[set[str]]:
    """Press the tabulator behind each line: only zsh's line editor completes."""
    (place / "functions").mkdir()
    (place / "functions" / "_plugind").write_text(script)
    (place / "init").write_text(_ZSH)
    zsh = program("zsh")
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(place)
        os.execve(zsh, [zsh, "-f", "-i"], {"PATH": os.defpath, "TERM": "dumb", "HOME": str(place)})
    try:
        screen = bytearray()
        _type(terminal, b"source ./init\n", place / "ready", screen)
        return [_at_tabulator(terminal, place, words, screen) for words in lines]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def _at_tabulator(terminal: int, place: Path, words: Sequence[str], screen: bytearray) -> set[str]:
    found, ready = place / "found", place / "ready"
    found.write_text("")
    ready.unlink()
    line = f"{shlex.join(words[:-1])} {words[-1]}".encode()
    # What stands in the line then is deleted, and an empty line run.
    _type(terminal, line + b"\t\x15\n", ready, screen)
    return set(found.read_text().split("\n")) - {""}


def _type(terminal: int, keys: bytes, until: Path, screen: bytearray) -> None:
    os.write(terminal, keys)
    deadline = time.monotonic() + DEADLINE
    while not until.exists():
        assert time.monotonic() < deadline, screen.decode(errors="replace")
        if select.select([terminal], [], [], 0.01)[0]:
            screen += os.read(terminal, 4096)


SHELLS = {"bash": in_bash, "zsh": in_zsh, "fish": in_fish}


@pytest.fixture(params=SHELLS)
def offered(request: pytest.FixtureRequest, scripts: Mapping[str, str], place: Path) -> Offered:
    """What one shell offers."""
    shell = request.param
    program(shell)
    return lambda lines: SHELLS[shell](scripts[shell], place, lines)


def parsers() -> Iterator[tuple[list[str], argparse.ArgumentParser]]:
    """Yield each parser with the words that lead to it."""
    waiting = [(["plugind"], whole_parser())]
    while waiting:
        words, parser = waiting.pop()
        yield words, parser
        for action in parser._actions:
            if isinstance(action.choices, Mapping):
                waiting += [([*words, name], inner) for name, inner in action.choices.items()]


def test_each_option_of_each_command_is_offered_and_no_other(offered: Offered) -> None:
    expected = {
        " ".join(words): {option for action in parser._actions for option in action.option_strings}
        for words, parser in parsers()
    }
    assert len(expected) == len(COMMANDS) + 2
    lines = [[*words.split(), dashes] for words in expected for dashes in ("-", "--")]
    found: dict[str, set[str]] = {}
    for words, names in zip(lines, offered(lines), strict=True):
        found.setdefault(" ".join(words[:-1]), set()).update(names)
    assert found == expected


def test_each_command_is_offered_and_none_that_is_hidden(offered: Offered) -> None:
    all_commands, begun, nested = offered([["plugind", ""], ["plugind", "re"], ["plugind", "config", "ch"]])
    assert all_commands == {*COMMANDS}
    assert begun == {"release", "renew", "retry", "reload"}
    assert nested == {"check"}


def test_values_are_offered_where_there_are_few_and_where_they_are_paths(offered: Offered) -> None:
    lines = [
        ["plugind", "run", "--log-format", ""],
        ["plugind", "run", "--rescan", "2", "--log-level", "w"],
        ["plugind", "run", "--root", "there/"],
        ["plugind", "probe", "there/"],
    ]
    formats, levels, directories, files = offered(lines)
    assert formats == {"text", "json"}
    assert levels == {"warning"}
    assert {path.rstrip("/").rpartition("/")[2] for path in directories} == {"directory"}
    assert {path.rstrip("/").rpartition("/")[2] for path in files} == {"directory", "file.sock"}


def test_keys_of_the_configuration_and_types_of_plugins_are_offered(offered: Offered) -> None:
    lines = [
        ["plugind", "run", "--set", ""],
        ["plugind", "config", "--set", "timeouts.h"],
        ["plugind", "ls", "--type", ""],
        ["plugind", "wait", "a", "--type", "D"],
        ["plugind", "run", "--health", ""],
        ["plugind", "run", "--handler-timeout", "C"],
    ]
    keys, some_keys, types, some_types, checks, times = offered(lines)
    assert keys == {f"{key}=" for key in settings()}
    assert some_keys == {"timeouts.handler=", "timeouts.handlers="}
    assert types == {"CSIPlugin", "DRAPlugin", "DevicePlugin"}
    assert some_types == {"DRAPlugin", "DevicePlugin"}
    assert checks == {"CSIPlugin=", "DRAPlugin=", "DevicePlugin=", "off"}
    assert times == {"CSIPlugin="}


def test_no_space_follows_a_key_in_bash(scripts: Mapping[str, str], place: Path) -> None:
    """bash reads the option of the completion that is under way; here a function stands in its place."""
    said = """compopt() { printf '%s ' "$@"; }"""
    lines = [["plugind", "run", "--set", "resc"], ["plugind", "run", "--set", "timeouts.h"], ["plugind", "rel"]]
    rescan, two, command = in_bash(f"{scripts['bash']}\n{said}", place, lines)
    assert rescan == {"-o nospace rescan="}
    assert two == {"timeouts.handler=", "timeouts.handlers="}
    assert command == {"release", "reload"}
