"""The manual pages: of plugind and of each command, made from the parsers, and of the configuration file."""

from __future__ import annotations

import argparse
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from argparse_manpage.manpage import Manpage

from plugind.actors.console.commands import COMMANDS, whole_parser
from plugind.protocol.settings.table import Setting, settings
from plugind.protocol.version import __version__
from plugind.tests.tools.settings_table import about_plainly, default, needed

#: Where ``man`` finds the pages, below a prefix such as ``/usr``.
PLACE: Final = "share/man"
_MANUAL: Final = "plugind"
_TOML: Final = "plugind.toml"
_SUMMARY: Final = "register the plugins of a node"
#: What the first words of a paragraph under a help make of it; all others are notes.
_HEADINGS: Final = {"examples": "EXAMPLES", "exit codes": "EXIT STATUS"}
_NOTES: Final = "NOTES"
_ORDER: Final = ("EXIT STATUS", _NOTES, "EXAMPLES")
#: Characters that a terminal would show as others, by which a reader could not copy a command.
_ASCII: Final = str.maketrans({"'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"})
#: The macros of the pages: a line of text that begins with a dot is none of them.
_MACRO: Final = re.compile(r"\.(TH|nh|ad|SH|SS|TP|PP|B|RS|RE|nf|fi)( |$)")
#: Paths and options are not divided, and their spaces not stretched.
_WHOLE: Final = (".nh", ".ad l")
_CODE: Final = re.compile(r"`([^`]+)`")


def man_pages(day: datetime | None = None) -> Mapping[str, str]:
    """Return the text of each page by its path below ``PLACE``; ``day`` stands at the foot of the pages."""
    date = f"{day or datetime.now(UTC):%Y-%m-%d}"
    with _wide():
        parser = whole_parser()
        pages = {
            f"plugind-{name}": _page(f"plugind-{name}", command, COMMANDS[name], date)
            for name, command in commands_of(parser).items()
        }
        for action in parser._actions:
            # It lists the commands, and their own pages tell of them.
            action.choices = None if action.choices is None else {}
        pages["plugind"] = _page("plugind", parser, _SUMMARY, date)
    return {f"man1/{name}.1": text for name, text in pages.items()} | {f"man5/{_TOML}.5": _settings_page(date)}


def commands_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Return the parsers of the commands of ``parser``, by their names."""
    # argparse has no public account of what a parser takes.
    found = (action.choices for action in parser._actions if isinstance(action.choices, Mapping))
    return next(found, {})


@contextmanager
def _wide() -> Iterator[None]:
    """Have argparse break no lines: ``man`` breaks them, and they must not depend on a terminal."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100000"
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _page(name: str, parser: argparse.ArgumentParser, summary: str, date: str) -> str:
    sections = _sections(parser.epilog or "")
    parser.epilog = None
    # argparse-manpage leaves these two out.
    sections.setdefault(_NOTES, []).append(r"\fB\-h\fR and \fB\-\-help\fR print this in short.")
    page = Manpage(parser)
    page.prog, page.description, page.date = name, summary, date
    page.source, page.manual = f"plugind {__version__}", _MANUAL
    for heading in _ORDER:
        if heading in sections:
            page.add_section(heading, "=", "\n.PP\n".join(sections[heading]))
    page.add_section("SEE ALSO", "=", _others(name))
    # The form of this heading says that commands follow.
    text = str(page).replace(".SH\nPOSITIONAL ARGUMENTS\n", ".SH\nCOMMANDS\n")
    heading, *lines = text.splitlines()
    return "".join(f"{_line(line)}\n" for line in (heading, *_WHOLE, *lines))


def _sections(epilog: str) -> dict[str, list[str]]:
    """Return the paragraphs under a help, as roff, by the heading under which they are."""
    found: dict[str, list[str]] = {}
    for paragraph in re.split(r"\n\n+", epilog.strip("\n")):
        first, _, rest = paragraph.partition(":")
        heading = _HEADINGS.get(first)
        text = paragraph if heading is None else rest.removeprefix(" ").strip("\n")
        if text:
            found.setdefault(heading or _NOTES, []).append("\n".join(_blocks(text)))
    return found


def _blocks(text: str) -> Iterator[str]:
    """Yield the lines of a paragraph as roff. Those that are indented stay as they are, and others are filled."""
    for indented, lines in itertools.groupby(text.split("\n"), lambda line: line.startswith(" ")):
        escaped = list(map(_escaped, lines))
        yield from (".nf", *escaped, ".fi") if indented else escaped


def _line(line: str) -> str:
    """Return a line of a page such that roff takes only macros for macros, and shows quotes as they are."""
    if _MACRO.match(line):
        return line
    return (r"\&" if line.startswith((".", "'")) else "") + line.translate(_ASCII)


def _others(name: str) -> str:
    names = [f"plugind-{command}" for command in COMMANDS] if name == "plugind" else ["plugind"]
    pages = [*((name, 1) for name in names), (_TOML, 5)]
    return ", ".join(rf"\fB{_escaped(page)}\fR({section})" for page, section in pages)


def _escaped(text: str) -> str:
    """Return text in which roff takes no character for a part of its own."""
    return text.replace("\\", r"\e").replace("-", r"\-")


def _settings_page(date: str) -> str:
    lines = [
        f'.TH PLUGIND.TOML "5" "{date}" "plugind {__version__}" "{_MANUAL}"',
        *_WHOLE,
        ".SH NAME",
        r"plugind.toml \- configuration of the daemon plugind",
        ".SH SYNOPSIS",
        "/etc/plugind/plugind.toml",
        ".PP",
        "/etc/plugind/plugind.toml.d/*.toml",
        ".SH DESCRIPTION",
        "Each may be missing. They are read in the order of their names, and the last value of a key counts. Options of"
        r" plugind\-run(1) and environment variables count more. Each must belong to root or to the user of the daemon,"
        " and nobody else may write to it. The keys of a part may stand in a table of its name.",
        ".PP",
        r"\fBplugind config check\fR says what is wrong with the files, and \fBplugind config \-\-running\fR what is in"
        r" force in the daemon. \fBplugind reload\fR reads the files again, and says which keys need a restart.",
        ".SH SETTINGS",
        *(line for setting in settings().values() for line in _setting(setting)),
        ".SH SEE ALSO",
        r"\fBplugind\-run\fR(1), \fBplugind\-config\fR(1), \fBplugind\-reload\fR(1)",
    ]
    return "".join(f"{_line(line)}\n" for line in lines)


def _setting(setting: Setting) -> Iterator[str]:
    yield ".TP"
    yield rf"\fB{setting.key}\fR"
    yield _marked(
        f"{about_plainly(setting)} It is {setting.kind.words}; default: {default(setting)}."
        f" A change needs {needed(setting)}."
    )


def _marked(markdown: str) -> str:
    """Return one line of Markdown as roff, with code in bold letters."""
    return _CODE.sub(r"\\fB\1\\fR", _escaped(markdown.replace("\\|", "|")))
