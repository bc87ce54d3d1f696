"""The completions of bash, zsh and fish, made from the parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Final

import shtab

from plugind.actors.console.commands import whole_parser

#: Where each shell finds its completions, below a prefix such as ``/usr``.
PLACES: Final[Mapping[str, str]] = {
    "bash": "share/bash-completion/completions/plugind",
    "zsh": "share/zsh/site-functions/_plugind",
    "fish": "share/fish/vendor_completions.d/plugind.fish",
}
#: What the words for a value in the help mean. Names of plugins are not asked of the daemon: plugins choose them, and
#: shells expand what they complete.
_MEANINGS: Final = {
    **dict.fromkeys(("FILE", "PATH", "PIPE", "SOCKET"), shtab.FILE),
    **dict.fromkeys(("DIR",), shtab.DIRECTORY),
}


def completions() -> Mapping[str, str]:
    """Return the script for each shell, by its name."""
    parser = whole_parser()
    for action in actions_of(parser):
        if isinstance(action.metavar, str) and action.metavar in _MEANINGS:
            action.complete = _MEANINGS[action.metavar]  # type: ignore[attr-defined]  # where shtab looks for it
    return {shell: shtab.complete(parser, shell=shell) for shell in PLACES}


def actions_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield what a parser and those of its commands take."""
    # argparse has no public account of it.
    for action in parser._actions:
        yield action
        if isinstance(action.choices, Mapping):
            for command in action.choices.values():
                yield from actions_of(command)
