"""docs/api.md agrees with the lists of public names and with the docstrings."""

from __future__ import annotations

import re

import plugind
import plugind.client
import plugind.testing
from plugind.tests.tools import api_page

HEADING = re.compile(r"^### `(plugind(?:\.client|\.testing)?)\.(\w+)`$", re.MULTILINE)


def test_the_page_is_made_from_the_docstrings() -> None:
    assert api_page.PAGE.read_text() == api_page.page(), "run `python -m tests.tools.api_page --write`"


def test_the_page_lists_every_public_name_once() -> None:
    listed = HEADING.findall(api_page.PAGE.read_text())
    others = [(module, name) for module in (plugind.client, plugind.testing) for name in module.__all__]
    assert listed == [("plugind", name) for name in plugind.__all__] + [
        (module.__name__, name) for module, name in others if name not in plugind.__all__
    ]


def test_each_link_of_the_contents_leads_to_a_heading() -> None:
    page = api_page.PAGE.read_text()
    headings = [api_page.anchor(heading) for heading in re.findall(r"^#{2,3} (.*)$", page, re.MULTILINE)]
    links = re.findall(r"\]\(#([^)]+)\)", page.partition("\n## plugind\n")[0])
    assert len(headings) == len(set(headings))
    assert set(links) == {api_page.anchor("".join(name)) for name in HEADING.findall(page)} | {
        "plugind",
        "plugindclient",
        "plugindtesting",
    }
    assert set(links) <= set(headings)


def test_no_public_name_lacks_a_description() -> None:
    """Each heading is followed by text, at least after the signature, and so is each method."""
    page = api_page.PAGE.read_text()
    sections = re.split(r"^### (.*)$", page, flags=re.MULTILINE)[1:]
    for heading, body in zip(sections[::2], sections[1::2], strict=True):
        text = re.sub(r"^```python\n[^`]*```", "", body.strip())
        assert text.strip(), f"{heading} has no description"
    assert re.findall(r"^- `(?:async )?\w+\([^`]*`:? *$", page, re.MULTILINE) == []


def test_the_page_has_nothing_that_attrs_or_exceptions_bring_along() -> None:
    inherited = {"with_traceback", "add_note", "args", "__init__", "__attrs_attrs__"}
    assert inherited.isdisjoint(re.findall(r"^- `(?:async )?(\w+)", api_page.PAGE.read_text(), re.MULTILINE))


def test_roles_literals_code_and_raises_become_markdown() -> None:
    text = """Open ``it``, see :meth:`~plugind.Supervisor.changes`.

    ::

        async with it: ...

    Raises:
      LaggedError: if slow.
    """
    text = "\n".join(line.removeprefix("    ") for line in text.splitlines())
    assert api_page.markdown(text) == (
        "Open `it`, see `changes`.\n\n```python\nasync with it: ...\n```\n\nRaises:\n\n- `LaggedError`: if slow."
    )
