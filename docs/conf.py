"""Settings of Sphinx for the site that is built from the pages of this directory; ``contributing.md`` has the command.

A name of a page in a text, such as ```docs/leases.md```, becomes a link to it. The build fails if there is no such
page, or if the external addresses of all pages are not those that ``external-links.txt`` lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

DOCS = Path(__file__).parent
#: Pages of the site by the files of the repository that they are made of.
ELSEWHERE = {"CHANGELOG.md": "changelog", "SECURITY.md": "security"}
LISTED = DOCS / "external-links.txt"

project = "plugind"
release = version = re.findall(r'__version__ = "(.+)"', (DOCS.parent / "protocol" / "version.py").read_text())[0]
extensions = ["myst_parser"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
highlight_language = "text"
html_theme = "furo"
html_title = f"plugind {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False

_log = logging.getLogger(__name__)


def _page_of(text: str) -> str | None:
    """Return the page that the name of a file means; None if it is no page."""
    if text in ELSEWHERE:
        return ELSEWHERE[text]
    name = re.fullmatch(r"docs/([\w-]+)\.md", text)
    return name and name[1]


def link_pages(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Make a link of each name of another page."""
    for literal in list(tree.findall(nodes.literal)):
        target = _page_of(literal.astext())
        if target is None or target == page or isinstance(literal.parent, nodes.reference):
            continue
        if target not in app.env.all_docs:
            _log.warning("there is no page %s", literal.astext(), location=literal)
            continue
        link = nodes.reference("", "", internal=True, refuri=app.builder.get_relative_uri(page, target))
        literal.replace_self(link)
        link += literal


def _external(env: BuildEnvironment) -> Iterator[str]:
    for page in env.all_docs:
        for link in env.get_doctree(page).findall(nodes.reference):
            address = str(link.get("refuri", ""))
            if re.match(r"\w+:", address):
                yield address


def check_external_links(_: Sphinx, env: BuildEnvironment) -> None:
    """Compare the external addresses with the list."""
    found, listed = set(_external(env)), set(LISTED.read_text().split())
    for address in sorted(found - listed):
        _log.warning("%s does not list %s", LISTED.name, address)
    for address in sorted(listed - found):
        _log.warning("%s lists %s, to which no page links", LISTED.name, address)


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    app.connect("doctree-resolved", link_pages)
    app.connect("env-check-consistency", check_external_links)
