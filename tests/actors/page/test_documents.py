"""The page as a document: whole in itself, and under a policy that admits nothing but its own two parts."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

from plugind.actors.page.documents import counts_page, page
from plugind.protocol.status import StateName

FILES = Path(__file__).parents[3] / "actors" / "page"


def policy() -> dict[str, str]:
    header = dict(page().headers)["Content-Security-Policy"]
    return {name: value for name, _, value in (part.strip().partition(" ") for part in header.split(";"))}


def part(tag: str) -> str:
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", page().body.decode(), re.DOTALL)
    assert len(found) == 1
    return str(found[0])


@pytest.mark.parametrize(
    ("tag", "directive", "file"), [("script", "script-src", "page.js"), ("style", "style-src", "page.css")]
)
def test_the_policy_admits_the_file_that_is_in_the_page_and_no_other(tag: str, directive: str, file: str) -> None:
    text = part(tag)
    assert text == (FILES / file).read_text()
    assert policy()[directive] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_everything_else_is_forbidden_to_the_page() -> None:
    assert {name: what for name, what in policy().items() if name not in ("script-src", "style-src")} == {
        "default-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "img-src": "data:",
        "connect-src": "'self'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }


def test_no_referrer_leaves_the_page_and_nobody_may_keep_or_frame_it() -> None:
    headers = dict(page().headers)
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert not [name for name in headers if name.startswith("Access-Control")]


def test_the_page_of_the_metrics_port_runs_nothing_and_escapes_what_is_in_it() -> None:
    made = counts_page()
    counts = {(StateName.WAITING, "<b>&"): 2, (StateName.REGISTERED, "<b>&"): 0, (StateName.REGISTERED, "CSIPlugin"): 1}
    text = made.filled(counts).decode()
    assert "<tr><th>type</th><th>waiting</th><th>registered</th><th>all</th></tr>\n" in text
    assert "<tr><th>&lt;b&gt;&amp;</th><td>2</td><td>0</td><td>2</td></tr>\n" in text
    assert "<script" not in text
    allowed = dict(made.headers)["Content-Security-Policy"]
    assert allowed.startswith("default-src 'none'; ")
    assert "script-src" not in allowed
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)[0]
    assert f"style-src 'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'" in allowed


@pytest.mark.parametrize("body", [page().body, counts_page().filled({})], ids=["page", "counts"])
def test_the_page_loads_nothing(body: bytes) -> None:
    text = body.decode()
    # The icon is in the address itself, which names the format of a drawing.
    text = text.replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"https?:|//[a-z]+\.|@import|url\(|<img|<iframe|<link(?! rel=\"icon\" href=\"data:)", text) == []
    assert len(re.findall(r"\bsrc=", text)) == 0


@pytest.mark.parametrize(
    "way", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval", "new Function", "srcdoc", ".href"]
)
def test_the_program_of_the_page_makes_no_markup_of_text(way: str) -> None:
    assert way not in (FILES / "page.js").read_text()
