"""The pages of docs make a whole: each is in the index, and names only pages that there are. CI builds the site."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {path.stem: path.read_text() for path in DOCS.glob("*.md")}


def test_each_page_is_in_one_table_of_contents() -> None:
    tables = re.findall(r"^```\{toctree\}\n((?:.*\n)*?)```$", PAGES["index"], re.MULTILINE)
    listed = [line for table in tables for line in table.splitlines() if line and not line.startswith(":")]
    assert sorted(listed) == sorted(PAGES.keys() - {"index"}), "add it to a toctree of docs/index.md"


def test_each_page_that_is_named_exists() -> None:
    named = {(page, name) for page, text in PAGES.items() for name in re.findall(r"\bdocs/([\w-]+)\.md\b", text)}
    linked = {(page, name) for page, text in PAGES.items() for name in re.findall(r"\]\(([\w-]+)\.md[)#]", text)}
    assert len(named) > 30
    assert [(page, name) for page, name in sorted(named | linked) if name not in PAGES] == []


def test_no_page_names_an_address_that_is_not_listed() -> None:
    """What examples ask is this machine, or one that a variable names, and what a page links to is in the list."""
    listed = (DOCS / "external-links.txt").read_text().split()
    addresses = {
        (page, address) for page, text in PAGES.items() for address in re.findall(r"https?://[^\s)'\"`>]+", text)
    }
    local = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\]|[A-Z]+|\$host)\b")
    assert [
        (page, address) for page, address in sorted(addresses) if address not in listed and not local.match(address)
    ] == []
