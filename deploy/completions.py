"""The completions of bash, zsh and fish, made from the parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import shtab

from plugind.actors.console.commands import whole_parser
from plugind.actors.node.handlers import built_in_handlers
from plugind.protocol.settings.table import settings

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


#: A value follows a word that ends with "=", and no space. zsh is told so where the word is offered; fish knows it.
_WITHOUT_SPACE: Final = """

_plugind() {
  _shtab_plugind "$@"
  if [[ ${#COMPREPLY[@]} = 1 && ${COMPREPLY[0]} == *= ]]; then
    compopt -o nospace 2>/dev/null || :
  fi
}

complete -o bashdefault -F _plugind plugind
"""


def completions() -> Mapping[str, str]:
    """Return the script for each shell, by its name."""
    parser, of_options = whole_parser(), _of_options()
    for action in actions_of(parser):
        meant = next((of_options[option] for option in action.option_strings if option in of_options), None)
        if meant is None and isinstance(action.metavar, str):
            meant = _MEANINGS.get(action.metavar)
        if meant is not None:
            action.complete = meant  # type: ignore[attr-defined]  # where shtab looks for it
    scripts = {shell: shtab.complete(parser, shell=shell) for shell in PLACES}
    return {**scripts, "bash": scripts["bash"] + _WITHOUT_SPACE}


def _of_options() -> Mapping[str, Mapping[str, str | dict[str, str]]]:
    """Return what is offered for the values of options, where that is none of a few words."""
    types = sorted(built_in_handlers())
    times = [f"{name}=" for name in types]
    return {
        "--type": _words("types", types),
        "--handler-timeout": _words("handler_times", times),
        "--health": _words("health_checks", ["off", *times]),
        "--set": _words("keys", [f"{key}=" for key in settings()]),
    }


def _words(name: str, words: Sequence[str]) -> Mapping[str, str | dict[str, str]]:
    """Return what offers ``words``, of which none has a character that a shell expands. shtab has no such type."""
    function, listed = f"_plugind_{name}", " ".join(words)
    with_value, others = ([word for word in words if word.endswith("=") is has] for has in (True, False))
    in_zsh = [f"  compadd {how}-- {' '.join(some)}\n" for how, some in (("-S '' ", with_value), ("", others)) if some]
    return {
        "bash": function,
        "zsh": function,
        "fish": listed,
        "preamble": {
            "bash": f"{function}() {{\n  compgen -W '{listed}' -- \"$1\"\n}}",
            "zsh": f"{function}() {{\n{''.join(in_zsh)}}}",
        },
    }


def actions_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield what a parser and those of its commands take."""
    # argparse has no public account of it.
    for action in parser._actions:
        yield action
        if isinstance(action.choices, Mapping):
            for command in action.choices.values():
                yield from actions_of(command)
