"""docs/api.md agrees with the lists of public names and with the docstrings."""

from __future__ import annotations

import re

from plugind.tests.tools import api_page


def test_the_page_is_made_from_the_docstrings() -> None:
    assert api_page.PAGE.read_text() == api_page.page(), "run `python -m tests.tools.api_page --write`"


def test_each_type_of_a_public_annotation_can_be_imported() -> None:
    assert [*api_page.unimportable()] == []


def test_what_is_not_promised_exists() -> None:
    public = {name: getattr(module, name) for module in api_page.MODULES for name in module.__all__}
    stale = [
        f"{owner}.{name}"
        for owner, _, name in (entry.partition(".") for entry in api_page.NOT_PROMISED)
        if not hasattr(public[owner], name)
    ]
    assert stale == []


def test_no_public_name_lacks_a_description() -> None:
    """Each heading is followed by text, at least after the signature, and so is each method."""
    page = api_page.PAGE.read_text()
    sections = re.split(r"^### (.*)$", page, flags=re.MULTILINE)[1:]
    for heading, body in zip(sections[::2], sections[1::2], strict=True):
        text = re.sub(r"^```python\n[^`]*```", "", body.strip())
        assert text.strip(), f"{heading} has no description"
    assert re.findall(r"^- `(?:async )?\w+\([^`]*`:? *$", page, re.MULTILINE) == []
