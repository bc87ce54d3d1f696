from __future__ import annotations

import json

import attrs

from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import HistoryEntry, Operation, Outcome, PluginStatus, StateName
from plugind.protocol.status.json import described_to_json, history_to_json, plugin_to_json
from plugind.protocol.words import STATE_IN, Step


def test_a_registered_plugin_has_every_key_and_ages_in_seconds() -> None:
    status = PluginStatus(
        "/r/a.sock", "/r", 4, StateName.REGISTERED, 100.0, None, 1, None, "CSIPlugin", "csi", "/e", ("1.0.0", "1.1.0"),
        0.0123456789, True, ("old",), 0, 42, serving=False, not_serving="nobody listens", not_serving_since=101.5,
        health=Health.UNHEALTHY, health_reason="no disk", health_since=100.5, facts=(("node-id", "n-7"),),
    )  # fmt: skip
    assert plugin_to_json(status, 102.5, 1_700_000_000.0) == {
        "socket": "/r/a.sock",
        "root": "/r",
        "type": "CSIPlugin",
        "source": "socket /r/a.sock",
        "name": "csi",
        "endpoint": "/e",
        "versions": ["1.0.0", "1.1.0"],
        "state": "registered",
        "step": None,
        "reason": None,
        "cause": None,
        "attempt": 1,
        "next_try_in": None,
        "next_try_at": None,
        "generation": 4,
        "age": 2.5,
        "since": "2023-11-14T22:13:17.500Z",
        "registered_in": 0.012346,
        "active": True,
        "serving": False,
        "not_serving": "nobody listens",
        "not_serving_since": "2023-11-14T22:13:19.000Z",
        "warnings": ["old"],
        "uid": 0,
        "pid": 42,
        "owner": None,
        "health": "unhealthy",
        "health_reason": "no disk",
        "health_since": "2023-11-14T22:13:18.000Z",
        "failed_checks": 0,
        "last_known": False,
        "steps": {},
    }


def test_times_of_day_follow_the_clock_as_it_is_set_now() -> None:
    """Whatever the clock showed when the plugin was registered, that was 100 s ago."""
    status = PluginStatus("/r/a.sock", "/r", 1, StateName.REGISTERED, 0.0)
    since = [plugin_to_json(status, 100.0, unix)["since"] for unix in (1_700_000_000.0, 1_600_000_000.0, 0.0)]
    assert since == ["2023-11-14T22:11:40.000Z", "2020-09-13T12:25:00.000Z", "1969-12-31T23:58:20.000Z"]


def test_a_name_that_is_not_utf_8_is_valid_json_in_ascii() -> None:
    """Fault 21."""
    status = PluginStatus("/r/\udcff\n.sock", "/r", 1, StateName.STALE, 0.0)
    text = json.dumps(plugin_to_json(status, 0.0, 0.0))
    assert text.isascii()
    assert json.loads(text)["socket"] == "/r/\\xff\n.sock"


def test_history_entries_say_how_long_ago_they_were() -> None:
    history = (HistoryEntry(1.0, StateName.DIALING, None, 1), HistoryEntry(2.5, StateName.WAITING, "refused", 1))
    status = PluginStatus("/r/a.sock", "/r", 1, StateName.WAITING, 2.5, history=history)
    assert described_to_json(status, 3.0, 1_700_000_000.0, 1)["history"] == [
        {"ago": 2.0, "at": "2023-11-14T22:13:18.000Z", "state": "dialing", "reason": None, "cause": None, "attempt": 1},
        {
            "ago": 0.5,
            "at": "2023-11-14T22:13:19.500Z",
            "state": "waiting",
            "reason": "refused",
            "cause": None,
            "attempt": 1,
        },
    ]


def test_a_try_has_a_step_where_clients_of_version_1_see_a_state() -> None:
    history = tuple(
        HistoryEntry(1.0, STATE_IN[step], None, 1, None, step) for step in (Step.INFO, Step.CLAIM, Step.VALIDATE)
    )
    status = PluginStatus(
        "/r/a.sock", "/r", 1, StateName.VALIDATING, 1.0, history=history, step=Step.CLAIM, steps=((Step.DIAL, 0.00025),)
    )
    shown = [described_to_json(status, 2.0, 2.0, version) for version in (1, 2)]
    assert [(plugin["state"], plugin.get("step", "-"), plugin["steps"]) for plugin in shown] == [
        ("validating", "-", {"dial": 0.00025}),
        ("registering", "claim", {"dial": 0.00025}),
    ]
    states = [[(entry["state"], entry.get("step", "-")) for entry in plugin["history"]] for plugin in shown]  # type: ignore[index,union-attr,call-overload]
    assert states == [
        [("asking-info", "-"), ("validating", "-")],
        [("registering", "info"), ("registering", "claim"), ("registering", "validate")],
    ]
    claiming = attrs.evolve(status, history=history[:2])
    assert history_to_json(claiming, 2.0, 2.0, 1)[-1]["state"] == "validating"  # type: ignore[index,call-overload]  # JSON objects


def test_the_published_state_names_are_stable() -> None:
    """Behaviours 38 and 39: alerts and scripts are written against them."""
    assert " ".join(StateName) == (
        "waiting dialing asking-info validating registering notifying registered observed parked stale leaving gone"
    )
    assert " ".join(Operation) == "dial get-info validate register notify deregister"
    assert " ".join(Outcome) == "ok refused failed broken timed-out superseded"
