"""The JSON Schema of handlers in other processes is up to date, and what is said follows it."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.client.asks_forms import MOST_AT_ONCE
from plugind.protocol.client.asks_json import (
    HealthPosted,
    answer_to_json,
    answers_from_json,
    event_to_json,
    health_from_json,
    health_to_json,
    held_from_json,
    held_to_json,
)
from plugind.protocol.handlers.remote import Ask, AskKind, AskResult, Instance, RoleTold, Synced, Withdrawn
from plugind.protocol.leases.asked_json import RequestError
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.info import Plugin
from plugind.tests.protocol.hypothesis_settings import examples
from plugind.tests.tools import schemas
from plugind.tests.tools.schemas import check

PAGE = (Path(__file__).parents[3] / "docs" / "remote-handlers.md").read_text()
#: What an example of the page is, by its first key.
PART_OF = {"session": None, "id": "AnswerForm", "held": "held", "answers": "answers", "plugins": "health"}
OLDER = Instance("older-3", "a\udcff", "/plugins/\udcff.sock")
PLUGIN = Plugin("Sensor", "a", "/plugins/a.sock", ("1.0.0",), "/plugins/a.sock", 3, pid=7, uid=0, file=(65024, 1018))


@pytest.mark.parametrize("of", [schemas.HANDLERS, schemas.INVENTORY])
def test_the_schema_in_the_package_is_up_to_date(of: schemas.Described) -> None:
    """Otherwise: python -m tests.tools.schemas --write."""
    assert of.path.read_text() == schemas.text(of)
    jsonschema.Draft202012Validator.check_schema(json.loads(schemas.text(of)))


def test_each_example_of_the_page_is_valid() -> None:
    found = [
        json.loads(text)
        for text in re.findall(r"^(\{.+\})$|(?<=`)(\{[^`]+\})(?=`)", PAGE, re.MULTILINE)
        for text in text
        if text
    ]
    parts = []
    for example in found:
        of = example.keys() & PART_OF.keys() - {"session"} if "ask" not in example else set[str]()
        parts.append(PART_OF[of.pop()] if of else "line")
        check(parts[-1] or "", example)
    assert {*parts} == {"line", "held", "answers", "health", "AnswerForm"}


@pytest.mark.parametrize(
    "event",
    [
        Ask(7, AskKind.VALIDATE, Instance("e-3", "a", "/plugins/a.sock", PLUGIN), 10.0, lambda _: None),
        Ask(7, AskKind.DEREGISTER, OLDER, math.inf, lambda _: None),
        Ask(7, AskKind.PING, None, math.inf, lambda _: None),
        Withdrawn(7),
        RoleTold("e-3", active=True),
        Synced(),
    ],
)
def test_each_line_is_valid_for_this_version_and_with_what_a_newer_one_says_beside(event: Any) -> None:
    line = json.loads(json.dumps(event_to_json(event, 2.0)))
    check("line", line)
    check("line", {**line, "colour": "red"}, of_newer=True)
    with pytest.raises(jsonschema.ValidationError):
        check("line", {**line, "colour": "red"})


@pytest.mark.parametrize("count", [0, 1, MOST_AT_ONCE, MOST_AT_ONCE + 1])
@pytest.mark.parametrize("directory", ["/plugins", "/plugins/" + 3000 * "d"])
def test_what_a_handler_has_is_said_in_as_many_bodies_as_it_takes(count: int, directory: str) -> None:
    """However long the paths are: one instance that cannot be said would keep the handler from serving."""
    held = [Instance(f"e-{number}", "a", f"{directory}/{number}.sock") for number in range(count)]
    read = list[Instance]()
    more = True
    for posted in held_to_json("S", held):
        assert more
        check("held", posted)
        body = json.dumps(posted).encode()
        assert len(body) <= 64 * 1024
        session, few, more = held_from_json(body)
        assert session == "S"
        read += few
    assert (read, more) == (held, False)


def test_what_a_client_posts_is_valid() -> None:
    check("answers", answer_to_json("S", 7, AskResult()))
    check("answers", answer_to_json("S", 7, AskResult("too old " * 1000, "old")))
    check("health", health_to_json("S", HealthPosted("e-3")))
    check("health", health_to_json("S", HealthPosted("e-3", Health.HEALTHY, "r", {"a": "b"}, ("w",), True, "gone")))


READERS = {"held": held_from_json, "answers": answers_from_json, "health": health_from_json}
LEAVES = st.sampled_from([None, True, 7, "", "e-3", "healthy", [], ["w"], {}, {"a": "b"}, "x" * 1025])
KEYS = ("instance", "name", "socket", "id", "error", "cause", "health", "facts", "warnings", "usable", "gone", "new")
OBJECTS = st.dictionaries(st.sampled_from(KEYS), LEAVES, max_size=4)
LISTS = st.lists(OBJECTS, max_size=2) | LEAVES


@given(
    st.sampled_from(["held", "answers", "health"]),
    st.dictionaries(st.sampled_from(["session", "held", "answers", "plugins", "more"]), LISTS),
)
@examples(300)
def test_the_daemon_takes_exactly_the_bodies_that_are_valid(part: str, changes: dict[str, object]) -> None:
    lists = {"held": "held", "answers": "answers", "health": "plugins"}
    body = {"session": "S", lists[part]: []} | changes
    try:
        check(part, body)
    except jsonschema.ValidationError:
        with pytest.raises(RequestError):
            READERS[part](json.dumps(body).encode())
    else:
        READERS[part](json.dumps(body).encode())
