"""``plugind drain`` and ``undrain`` as a user runs them, against a server that answers."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from plugind.actors.console import times
from plugind.actors.console.commands import main
from plugind.protocol.leases.drains import NODE, Drain, DrainTarget
from plugind.protocol.leases.leases_json import drain_to_json, lease_to_json
from plugind.protocol.leases.replies import Problem
from plugind.protocol.leases.values import LeaseState
from plugind.tests.actors.console import snapshots
from plugind.tests.actors.console.lease_server import answer
from plugind.tests.actors.console.snapshots import UNIX
from plugind.tests.actors.console.test_allocate import GPU, LEASE, OK, Run, failed

ONE = Drain(DrainTarget(GPU, "GPU-0"), 0, UNIX, "the fan is\x1b broken", UNIX + 3600)
HEARTBEATS = OK.replace(b"\r\n\r\n", b"\r\nHeartbeat: 1\r\n\r\n")


def drained(drain: Drain = ONE) -> bytes:
    return answer(200, drain_to_json(drain))


def watch(*lines: str) -> bytes:
    """Answer with the leases, a heartbeat, and then changes."""
    return HEARTBEATS + "".join(f"{line}\n" for line in lines).encode()


def lease_line(state: LeaseState = LeaseState.HELD, **changes: Any) -> str:
    return json.dumps(lease_to_json(attrs.evolve(LEASE, uid=0, state=state, **changes)))


@pytest.mark.usefixtures("in_berlin")
def test_what_drain_prints(plugind: Run) -> None:
    held, gone = lease_line(), lease_line(LeaseState.GONE)
    other = lease_line(devices={GPU: ("GPU-1",)}, id="other")
    target = f"{GPU}:GPU-0"
    cases = {
        "drain": plugind([drained()], "drain", target),
        "undrain": plugind([drained()], "undrain", target),
        "of nothing": plugind([failed(Problem.UNKNOWN, f"{target} is not drained; nothing is")], "undrain", target),
        "the node": plugind([drained(Drain(NODE, 0, UNIX))], "drain", "--node"),
        "and wait": plugind([drained(), watch(held, other, "", gone)], "drain", target, "--wait"),
        "wait in vain": plugind([drained(), watch(held, other, "")], "drain", target, "--wait", "0.2", hold=True),
    }
    printed = {
        title: [f"exit code {done.code}", *done.out.splitlines(), *done.err.splitlines()]
        for title, done in cases.items()
    }
    snapshots.check("drain", printed)


def test_what_is_asked(plugind: Run) -> None:
    done = plugind([drained()], "drain", f"{GPU}:a:b", "--reason", "x", "--until", "2033-05-18T03:33:20Z", "-o", "json")
    asked, _ = done.asked  # Then it looks whether such a device is listed.
    assert asked.line == "POST /v1/drains HTTP/1.1"
    assert asked.body == {"resource": GPU, "device": "a:b", "reason": "x", "until_unix": 2e9}
    assert json.loads(done.out) == drain_to_json(ONE)
    (asked,) = plugind([drained()], "undrain", "--node").asked
    assert (asked.line, asked.body) == ("POST /v1/drains/end HTTP/1.1", {"resource": None, "device": None})
    waited = plugind([drained(), watch("")], "drain", "--wait", "1s", "--node", "-o", "json")
    assert json.loads(waited.out) == {**drain_to_json(ONE), "empty": True, "leases": []}


@pytest.mark.parametrize(
    "words", [[], ["--node", GPU], [f"{GPU}:"], ["gpu"], [GPU, "--until", "tomorrow"], [GPU, "--until", "0"]]
)
def test_wrong_words_are_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["drain", *words])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("see 'plugind drain --help'")


@pytest.mark.usefixtures("in_berlin")
def test_until_takes_a_span_or_a_date() -> None:
    assert times.moment("90m") == UNIX + 5400
    assert times.moment("2023-11-15") == UNIX - 9.5 * 3600
    assert times.moment("2023-11-15T09:30") == times.moment("2023-11-15T08:30Z") == UNIX
