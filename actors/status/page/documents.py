"""The documents for browsers: each is one HTML file that loads nothing.

Their style and program are separate files here, and are inserted when a document is made. The Content-Security-Policy
of the document allows only these two, by their hashes.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from pathlib import Path

from ....protocol.values import value
from ....protocol.words import STATE_IN, StateName

CONTENT_TYPE = "text/html; charset=utf-8"
#: For every answer: browsers must not guess another type, and pages of other origins must not include it.
SAFE_HEADERS = (("X-Content-Type-Options", "nosniff"), ("Cross-Origin-Resource-Policy", "same-origin"))
_OF_DOCUMENTS = (
    *SAFE_HEADERS,
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Frame-Options", "DENY"),
    ("Cache-Control", "no-store"),
)
#: Shown instead of a zero.
_NONE = "\N{EN DASH}"
#: The states that last, and those of a try. Columns have this order, as on the page of ``plugind page``.
_LASTING = (StateName.REGISTERED, StateName.OBSERVED, StateName.WAITING, StateName.PARKED, StateName.STALE)
_TRYING = tuple(dict.fromkeys(STATE_IN.values()))


@value
class Document:
    """A document, and the headers of its answer."""

    body: bytes
    headers: tuple[tuple[str, str], ...]


def page() -> Document:
    """Return the page of ``plugind page``. It has no data of the node; its program asks for them."""
    style, program = _file("page.css"), _file("page.js")
    text = _file("page.html").replace("/* page.css */", style).replace("/* page.js */", program)
    may = f"script-src {_hash(program)}; connect-src 'self'; require-trusted-types-for 'script'; trusted-types 'none'"
    return Document(text.encode(), _headers(style, may))


@value
class CountsPage:
    """The page of the metrics port. It has only the numbers of sockets, since everybody can see it."""

    _before: str
    _after: str
    headers: tuple[tuple[str, str], ...]

    def filled(self, counts: Mapping[tuple[StateName, str], int], version: int = 1) -> bytes:
        """Return the page with these numbers of sockets by state and type, for a ``version`` of the status socket.

        Each state has a column, so that columns do not move. A type without sockets has no line.
        """
        columns = _columns(version)
        lines = [_line("th", ("type", "all", *columns))]
        for label in sorted({label for (_, label), number in counts.items() if number}):
            numbers = [sum(counts.get((state, label), 0) for state in states) for states in columns.values()]
            lines.append(_line("td", (label, *map(_number, (sum(numbers), *numbers)))))
        if len(lines) == 1:
            lines.append(_line("td", ("no sockets", *(_NONE for _ in range(len(columns) + 1)))))
        return f"{self._before}{''.join(lines)}{self._after}".encode()


def counts_page() -> CountsPage:
    """Return the page of the metrics port, without its numbers."""
    style = _file("page.css")
    before, _, after = _file("counts.html").replace("/* page.css */", style).partition("<!-- counts -->")
    return CountsPage(before, after, _headers(style))


def _columns(version: int) -> dict[StateName, tuple[StateName, ...]]:
    """Return the columns, and the states that each counts: in version 2, all steps of a try are one state."""
    own = {state: (state,) for state in (*_LASTING, *(_TRYING if version < 2 else ()))}
    trying = {} if version < 2 else {StateName.REGISTERING: _TRYING}
    return {**own, **trying, StateName.LEAVING: (StateName.LEAVING,)}


def _number(number: int) -> str:
    return str(number) if number else _NONE


def _line(tag: str, cells: tuple[str, ...]) -> str:
    first, *others = map(html.escape, cells)
    return f"<tr><th>{first}</th>{''.join(f'<{tag}>{text}</{tag}>' for text in others)}</tr>\n"


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def _headers(style: str, *may: str) -> tuple[tuple[str, str], ...]:
    """Return the headers of a document with this style; ``may`` has further permissions."""
    closed = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; img-src data:"
    return (("Content-Security-Policy", "; ".join((closed, f"style-src {_hash(style)}", *may))), *_OF_DOCUMENTS)


def _hash(text: str) -> str:
    import hashlib  # It brings OpenSSL, which nothing else of a daemon needs.

    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
