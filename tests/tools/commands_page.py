"""Generates ``docs/commands.md``, the reference of the commands, from their parsers.

python -m tests.tools.commands_page           print the page
python -m tests.tools.commands_page --write   write it
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence

from plugind.actors.console.commands import COMMANDS, command
from plugind.tests.tools.table_page import DOCS

PAGE = DOCS / "commands.md"
_HEAD = """# Commands

*This page is made from the parsers of the commands by `python -m tests.tools.commands_page --write`; a test compares
them.*

`plugind COMMAND --help` says the same on a terminal. `plugind --version` prints the version.

| command | what it does |
|---|---|
"""
_TAIL = """
Commands that ask a daemon find it by its status socket: `--status PATH`, else `$PLUGIND_STATUS`, else
`/run/plugind/status.sock` for root and `$XDG_RUNTIME_DIR/plugind/status.sock` for others.

With `-o json` a command prints JSON for programs, on standard output, also if what was asked for has failed; the exit
code says whether it has. If nothing of what was asked for could be done, that is an object whose `error` is the
reason; a configuration that cannot be used has all `problems`, and a lease that is not available has its `holders` and
the `limit` that was met. Lines on standard error say the same. A stream, such as that of `plugind watch`, only ends.
Wrong usage prints nothing on standard output. New keys may be added.

Exit codes of all commands, unless a command says otherwise: 0 ok, 1 failed, 2 usage, 69 no daemon answers, 75 the
daemon is busy, 78 bad configuration, 130 interrupted.
"""


#: Commands that take the options of another one.
_LIKE = {"config": "run"}
#: The titles that argparse gives to groups.
_USUAL = ("positional arguments", "options")


def page() -> str:
    """Return the page."""
    listed = "".join(f"| [`plugind {name}`](#plugind-{name}) | {about} |\n" for name, about in COMMANDS.items())
    return _HEAD + listed + _TAIL + "".join(section for name in COMMANDS for section in _sections(name))


def _sections(name: str) -> Iterator[str]:
    parser = _parser(name)
    # The options of these are those of another command, and its epilog says so.
    others = _spellings(_parser(_LIKE[name])) if name in _LIKE else set()
    yield _section(parser, 2, others)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from (_section(inner, 3, set()) for inner in action.choices.values())


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"plugind {name}")
    command(name).add_arguments(parser)
    return parser


def _spellings(parser: argparse.ArgumentParser) -> set[str]:
    return {word for action in parser._actions for word in action.option_strings}


def _section(parser: argparse.ArgumentParser, level: int, others: set[str]) -> str:
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS and action.dest != "help"]
    actions = [action for action in shown if others.isdisjoint(action.option_strings)]
    parts = [f"{'#' * level} {_name(parser)}", prose(parser.description or ""), _fenced(_usage(parser, shown))]
    for group in parser._action_groups:
        listed = [action for action in group._group_actions if action in actions and action.help is not None]
        if listed:
            title = [f"*{prose(group.title)}:*"] if group.title and group.title not in _USUAL else []
            parts += [*title, _table(listed)]
    parts += [_fenced(parser.epilog)] if parser.epilog else []
    return "\n" + "\n\n".join(part for part in parts if part) + "\n"


def _name(parser: argparse.ArgumentParser) -> str:
    """Return the name of a command; argparse puts the usage of the outer one before that of an inner one."""
    words = re.findall(r"[a-z][a-z-]*", re.sub(r"\[.*?\]|(?<!\S)--?\S+", "", parser.prog))
    return " ".join(words)


def _usage(parser: argparse.ArgumentParser, actions: Sequence[argparse.Action]) -> str:
    if parser.usage is not None:
        return parser.usage.replace("%(prog)s", parser.prog)
    words = [_name(parser), *["[options]" for action in actions if action.option_strings][:1]]
    return " ".join([*words, *(_positional(action) for action in actions if not action.option_strings)])


def _positional(action: argparse.Action) -> str:
    word = _word(action)
    match action.nargs:
        case "?":
            return f"[{word}]"
        case "*":
            return f"[{word} ...]"
        case "+":
            return f"{word} [{word} ...]"
        case _:
            return word


def _word(action: argparse.Action) -> str:
    """Return the placeholder of a value."""
    if isinstance(action.metavar, str):
        return action.metavar
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    return "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()


def _table(actions: Sequence[argparse.Action]) -> str:
    kind = "option" if actions[0].option_strings else "argument"
    rows = [f"| {_cell(_spelled(action))} | {prose(_help(action))} |" for action in actions]
    return "\n".join([f"| {kind} | meaning |", "|---|---|", *rows])


def _cell(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _spelled(action: argparse.Action) -> str:
    if not action.option_strings:
        return _positional(action)
    spelled = ", ".join(action.option_strings)
    if action.nargs == 0:
        return spelled
    word = _word(action)
    return f"{spelled} [{word}]" if action.nargs == "?" else f"{spelled} {word}"


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {**vars(action), "prog": "plugind"}


#: What is code in a text: a command in quotes, an option, a variable, a path.
_CODE = re.compile(
    r"'(?P<quoted>plugind [^']+)'|(?<![\w'-])(?P<bare>--[a-z][a-z-]+|(?:\$[A-Z_]+|~?/[\w.-]+)(?:/[\w.-]+)+|\$[A-Z_]+)"
)


def prose(text: str) -> str:
    """Return a text of a parser for a page: what Markdown would read as marks is escaped, and names are code."""
    parts, end = [], 0
    words = " ".join(text.split())
    for found in _CODE.finditer(words):
        parts += [_escaped(words[end : found.start()]), f"`{found['quoted'] or found['bare']}`"]
        end = found.end()
    return "".join([*parts, _escaped(words[end:])])


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", text)


def _fenced(text: str) -> str:
    return f"```text\n{text.strip(chr(10))}\n```"


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="write docs/commands.md")
    if arguments.parse_args().write:
        PAGE.write_text(page())
    else:
        print(page())
