"""docs/commands.md agrees with the parsers of the commands."""

from __future__ import annotations

from plugind.tests.tools import commands_page


def test_the_page_is_made_from_the_parsers() -> None:
    assert commands_page.PAGE.read_text() == commands_page.page(), "run `python -m tests.tools.commands_page --write`"
