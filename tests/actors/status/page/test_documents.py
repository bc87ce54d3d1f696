"""The page as a document: whole in itself, and under a policy that admits nothing but its own two parts."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

from plugind.actors.status.page.documents import counts_page, page
from plugind.protocol.leases.values import LeaseState
from plugind.protocol.plugins.devices import ResourceState
from plugind.protocol.plugins.status import StateName
from plugind.protocol.words import STATE_IN, Step

FILES = Path(__file__).parents[4] / "actors" / "status" / "page"
STATES_PAGE = (FILES.parents[2] / "docs" / "states.md").read_text()
#: What stands in the place of a zero.
NONE = "\N{EN DASH}"
#: The columns of the page of the metrics port.
COLUMNS = ["registered", "observed", "waiting", "parked", "stale", "dialing", "asking-info", "validating"]
COLUMNS += ["registering", "notifying", "leaving"]


def lines(text: str) -> list[list[str]]:
    """Return the cells of each line of the table of counts."""
    return [re.findall(r"<t[hd]>(.*?)</t[hd]>", line) for line in re.findall(r"<tr>(.*?)</tr>", text)]


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
    assert lines(text) == [
        ["type", "all", *COLUMNS],
        ["&lt;b&gt;&amp;", "2", NONE, NONE, "2", *[NONE] * 8],
        ["CSIPlugin", "1", "1", *[NONE] * 10],
    ]
    assert "<script" not in text
    allowed = dict(made.headers)["Content-Security-Policy"]
    assert allowed.startswith("default-src 'none'; ")
    assert "script-src" not in allowed
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)[0]
    assert f"style-src 'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'" in allowed


def test_the_page_says_what_a_state_means_in_the_words_of_the_documentation() -> None:
    table = dict(re.findall(r"^\| `([^`]+)` \| (?:registered plugins \| )?([^|]+) \|", STATES_PAGE, re.MULTILINE))
    table |= dict(re.findall(r"^\| `([^`]+)` \| `[a-z-]+` \| ([^|]+) \|", STATES_PAGE, re.MULTILINE))
    program = (FILES / "page.js").read_text()
    meanings = program.partition("const MEANINGS = {")[2].partition("const meaningOf")[0]
    said = re.findall(r"^ {4,6}\"?([a-z-]+)\"?:\s+\"([^\"]+)\"", meanings, re.MULTILINE)
    words = [*{*StateName} - {*STATE_IN.values()}, "registering", "standby", *ResourceState, *LeaseState, *Step]
    assert sorted(word for word, _ in said) == sorted(words)
    for word, meaning in said:
        if word == "gone":  # A word of three tables.
            continue
        assert table[word].replace("`", "") == meaning


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
