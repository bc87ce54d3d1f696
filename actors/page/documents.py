"""The documents that a browser gets: each is one file of HTML that loads nothing.

Their style and their program are files of their own here, and are put into the document when it is made. The policy
that goes with it (Content-Security-Policy) admits these two by their hashes, and no other.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from ...protocol.values import value

CONTENT_TYPE = "text/html; charset=utf-8"
#: For every answer: no browser takes it for something else, and no page of another origin may include it.
SAFE_HEADERS = (("X-Content-Type-Options", "nosniff"), ("Cross-Origin-Resource-Policy", "same-origin"))
_OF_DOCUMENTS = (
    *SAFE_HEADERS,
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Frame-Options", "DENY"),
    ("Cache-Control", "no-store"),
)


@value
class Document:
    """A document, and the headers of the answer that has it."""

    body: bytes
    headers: tuple[tuple[str, str], ...]


def page() -> Document:
    """Return the page of ``plugind page``. It holds nothing about the node, which its program asks for."""
    style, program = _file("page.css"), _file("page.js")
    text = _file("page.html").replace("/* page.css */", style).replace("/* page.js */", program)
    may = f"script-src {_hash(program)}; connect-src 'self'; require-trusted-types-for 'script'; trusted-types 'none'"
    return Document(text.encode(), _headers(style, may))


def _file(name: str) -> str:
    return (files(__package__) / name).read_text("utf-8")


def _headers(style: str, may: str) -> tuple[tuple[str, str], ...]:
    """Return the headers of a document with this style; ``may`` is what else it may do."""
    closed = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; img-src data:"
    return (("Content-Security-Policy", f"{closed}; style-src {_hash(style)}; {may}"), *_OF_DOCUMENTS)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
