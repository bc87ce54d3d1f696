"""docs/commands.md agrees with the parsers of the commands."""

from __future__ import annotations

import re

import pytest

from plugind.actors.console.commands import COMMANDS
from plugind.tests.tools import commands_page


def test_the_page_is_made_from_the_parsers() -> None:
    assert commands_page.PAGE.read_text() == commands_page.page(), "run `python -m tests.tools.commands_page --write`"


def test_each_command_has_a_section_with_its_usage_and_its_examples() -> None:
    sections = re.split(r"^## plugind (\S+)$", commands_page.PAGE.read_text(), flags=re.MULTILINE)[1:]
    assert sections[::2] == list(COMMANDS)
    for name, section in zip(sections[::2], sections[1::2], strict=True):
        assert f"```text\nplugind {name}" in section
        assert "examples:" in section


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as 'plugind run' does", "as `plugind run` does"),
        ("with --set a_b=1 | 2", "with `--set` a\\_b=1 \\| 2"),
        ("else $HOME/.config/x, or /etc/x", "else `$HOME/.config/x`, or `/etc/x`"),
        ("TYPE=<name> [*]", "TYPE=\\<name\\> \\[\\*\\]"),
        ("non--option", "non--option"),
    ],
)
def test_texts_of_parsers_become_markdown(text: str, shown: str) -> None:
    assert commands_page.prose(text) == shown
