"""The lines of the log about the health and the facts of plugins, as ``docs/log.md`` has them, in JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import attrs
import pytest
from trio.testing import MockClock

from plugind.protocol.logs.lines import json_line
from plugind.protocol.messages.consumers import EventNoted, PluginEvent
from plugind.protocol.messages.status import FollowEnded, HealthReported, StatusMessage
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import StateName
from plugind.tests.actors.status.bench import bench, changed, info

PAGE = Path(__file__).parents[3] / "docs" / "log.md"
REGISTERED = attrs.evolve(changed("a", StateName.REGISTERED), info=info("a"))
PLUGIN = Plugin("CSIPlugin", "a", "/r/a.sock", ("1.0.0",), "/r/a.sock", 1)
#: The fields that each line about a plugin has, with the types of their values in JSON.
ABOUT: dict[str, type[object]] = {
    **dict.fromkeys(("time", "level", "msg", "socket", "type", "name"), str),
    "generation": int,
}
CAUSE: dict[str, type[object]] = {"cause": str}
AGAIN: dict[str, type[object]] = {"cause": str, "count": int, "pause": float}


def reported(health: Health, reason: str = "", *warnings: str) -> HealthReported:
    return HealthReported("/r/a.sock", 1, health, reason, (), 1.0, warnings)


def noted(event: PluginEvent) -> EventNoted:
    return EventNoted(PLUGIN, event, "what exactly", 2.0)


#: What happens, the line of the log with its level, and the fields that it has besides.
EVENTS: list[tuple[StatusMessage, str, str, dict[str, type[object]]]] = [
    (reported(Health.HEALTHY), "plugin is healthy", "info", {}),
    (reported(Health.STARTING, "not ready"), "plugin is starting", "info", CAUSE),
    (reported(Health.UNHEALTHY, "no answer within 3s"), "plugin is unhealthy", "warning", CAUSE),
    (reported(Health.DISCONNECTED, "it was closed"), "plugin is disconnected", "warning", CAUSE),
    (reported(Health.UNKNOWN, "", "odd"), "warning about a plugin", "warning", CAUSE),
    (noted(PluginEvent.FACTS), "facts of a plugin have changed", "info", CAUSE),
    (noted(PluginEvent.DRIVER_GONE), "DRA driver is gone", "warning", CAUSE),
    (FollowEnded(PLUGIN, "Oops: no", 1, 2.0), "follow is started again", "warning", AGAIN),
    (FollowEnded(PLUGIN, None, 7, 1.23456), "follow is started again", "warning", AGAIN),
]


@pytest.mark.parametrize(("event", "said", "level", "more"), EVENTS)
async def test_a_line_has_the_same_fields_of_the_same_types_each_time(
    event: StatusMessage, said: str, level: str, more: dict[str, type[object]], autojump_clock: MockClock
) -> None:
    async with bench() as node:
        await node.take(REGISTERED)
        before = len(node.log.events)
        await node.take(event)
        ((of, message, fields),) = node.log.events[before:]
    line = json.loads(json_line(0.0, of, message, fields))
    assert (line["msg"], line["level"], line["name"]) == (said, level, "a")
    assert {key: type(value) for key, value in line.items()} == ABOUT | more


def test_each_of_these_lines_is_described() -> None:
    rows = re.findall(r"^\| (`.+) \| .* \|$", PAGE.read_text(), re.MULTILINE)
    described = {line for row in rows for line in re.findall(r"`([^`]+)`", row)}
    assert {said for _, said, *_ in EVENTS} | {"follow does not end"} <= described
