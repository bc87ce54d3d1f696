"""Which changes ``plugind watch`` prints: those of which a reader sees something new."""

from __future__ import annotations

import attrs
import pytest

from plugind.actors.console.answers import Plugin
from plugind.actors.console.watch import News
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.status.json import plugin_to_json

GOOD = PluginStatus(
    "/r/b.sock", "/r", 2, StateName.REGISTERED, 1.0, type="CSIPlugin", name="b", active=True, serving=True
)
SLOW = attrs.evolve(GOOD, health=Health.UNHEALTHY, health_reason="no answer within 3s")
CLOSED = attrs.evolve(GOOD, health=Health.DISCONNECTED, health_reason="the peer closed the connection")
REFUSED = attrs.evolve(CLOSED, health_reason="Connection refused")
GONE = attrs.evolve(GOOD, state=StateName.GONE)


def line(status: PluginStatus, event: str | None = None) -> Plugin:
    return {**plugin_to_json(status, 10.0, 1000.0), "time": 1000.0, **({} if event is None else {"event": event})}


@pytest.mark.parametrize(
    "later",
    [
        attrs.evolve(GOOD, since=5.0),
        attrs.evolve(GOOD, health=Health.HEALTHY),
        attrs.evolve(GOOD, pid=7, owner=0, registered_in=0.1),
    ],
)
def test_a_line_that_would_say_the_same_again_is_not_printed(later: PluginStatus) -> None:
    news = News()
    assert news.take(line(GOOD))
    assert not news.take(line(later))


@pytest.mark.parametrize(
    "later",
    [
        SLOW,
        CLOSED,
        GONE,
        attrs.evolve(GOOD, active=False),
        attrs.evolve(GOOD, serving=False),
        attrs.evolve(GOOD, warnings=("old",)),
        attrs.evolve(GOOD, state=StateName.WAITING),
        attrs.evolve(GOOD, socket="/r/c.sock"),
    ],
)
def test_whatever_a_reader_would_act_on_is_printed_and_its_end_too(later: PluginStatus) -> None:
    news = News()
    assert [news.take(line(plugin)) for plugin in (GOOD, later)] == [True, True]
    if later.socket == GOOD.socket:
        assert news.take(line(GOOD))


def test_a_plugin_is_disconnected_once_until_it_is_connected_again() -> None:
    """How the connection ended, and a second later why there is no other one, are one outage."""
    news = News()
    assert [news.take(line(plugin)) for plugin in (GOOD, CLOSED, REFUSED, CLOSED, GOOD, REFUSED)] == [
        True,
        True,
        False,
        False,
        True,
        True,
    ]


def test_a_reason_for_being_unhealthy_is_printed_anew() -> None:
    news = News()
    other = attrs.evolve(SLOW, health_reason="the disk is full")
    assert [news.take(line(plugin)) for plugin in (GOOD, SLOW, other, SLOW)] == [True, True, True, True]


def test_an_event_is_always_printed_and_the_line_after_it_only_if_it_says_more() -> None:
    news, event = News(), "facts: max-volumes is 8, was 16"
    said = [line(GOOD), line(GOOD, event), line(GOOD, event), line(GOOD), line(GONE), line(GONE, "driver-gone: b")]
    assert [news.take(text) for text in said] == [True, True, True, False, True, True]
