"""The oracle of GetInfo's second itself: what it takes for a plugin that is given up too soon or too late."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.streams import memory_connection
from plugind.protocol.identity import Identity
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.registration.info_deadline import NEEDED
from plugind.protocol.settings.config import Timeouts
from plugind.testing import FakePlugin, SimulatedNode
from plugind.tests.fuzz.patience_oracle import PatienceOracle

SILENT = "no answer in 1 s"
UNREAD = "its process listens, and has not read anything in 10 s"
CLOSED = NEEDED


async def registered() -> PluginStatus:
    """Return what is shown of a registered plugin."""
    async with SimulatedNode() as node:
        node.plug("a.sock", FakePlugin("T", "a"))
        await trio.sleep(0.001)
        status = node.status("a.sock")
        assert status is not None
        return status


def given_up(status: PluginStatus, error: str) -> PluginStatus:
    """Return what is shown of it now if its answer to GetInfo is given up."""
    reason = (
        f"RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {status.socket}, err: {error}"
    )
    return attrs.evolve(status, state=StateName.WAITING, reason=reason, since=trio.current_time())


async def violations(error: str, fails: float, *, read: float | None = None, heard: float | None = None) -> list[str]:
    """Return what is wrong if a plugin that reads and says something then is given up, for this reason."""
    status = await registered()
    found = list[str]()
    oracle, connection = PatienceOracle(lambda rule, text: found.append(rule), Timeouts()), memory_connection()
    began = trio.current_time()
    oracle.connected("/plugins/a.sock", None, began, connection.client)
    connection.client.send(b"a request")
    for time, act in sorted((time, act) for time, act in ((read, "read"), (heard, "say")) if time is not None):
        await trio.sleep_until(began + time)
        if act == "read":
            await connection.server.receive_some()
        else:
            await connection.server.send_all(b"a byte")
    await trio.sleep_until(began + fails)
    for _ in range(2):
        oracle.shown(given_up(status, error))
    return found


@pytest.mark.parametrize(
    ("error", "fails", "read", "heard", "wrong"),
    [
        (SILENT, 1.0, 0.0, None, False),
        (SILENT, 1.0, 0.05, None, False),
        (SILENT, 1.1, 0.05, None, True),
        (SILENT, 1.0, None, None, True),
        (SILENT, 1.0, 0.5, None, True),
        (SILENT, 2.0, 0.5, None, False),
        (SILENT, 2.5, 0.5, None, True),
        (SILENT, 5.0, 2.5, None, False),
        (SILENT, 3.4, 2.5, None, True),
        (SILENT, 4.0, 2.5, 3.0, False),
        (SILENT, 5.0, 2.5, 3.0, True),
        (SILENT, 5.3, None, 4.3, False),
        (SILENT, 5.2, None, 4.3, True),
        (SILENT, 11.0, 9.5, None, False),
        (UNREAD, 10.0, None, None, False),
        (UNREAD, 9.0, None, None, True),
        (UNREAD, 10.0, 3.0, None, True),
        (UNREAD, 10.0, None, 3.0, True),
        (CLOSED, 2.0, None, None, False),
        (CLOSED, 2.0, 1.5, None, True),
        ("UNAVAILABLE: the connection was closed", 0.3, None, None, False),
    ],
)
async def test_a_plugin_that_is_given_up_at_the_wrong_time_is_a_violation(
    error: str, fails: float, read: float | None, heard: float | None, wrong: bool, autojump_clock: MockClock
) -> None:
    """Fault 32. What is shown twice is a violation once."""
    assert await violations(error, fails, read=read, heard=heard) == ["patience"] * wrong


@pytest.mark.parametrize(
    ("full", "dialed", "fails", "wrong"),
    [
        ([(1, 0.0), (1, 4.0)], 8.0, 10.0, False),
        ([(1, 0.0), (1, 4.0)], 8.0, 18.0, True),
        ([(2, 0.0), (2, 4.0)], 8.0, 18.0, False),
        ([(2, 0.0), (1, 4.0)], 8.0, 14.0, False),
        ([(1, 0.0), (1, 9.0), (1, 10.0)], 10.0, 20.0, False),
        ([(1, 0.0), (1, 9.0), (1, 10.0)], 11.0, 12.0, True),
    ],
)
async def test_a_dial_goes_on_through_full_backlogs_of_the_same_socket_for_its_time(
    full: list[tuple[int, float]], dialed: float, fails: float, wrong: bool, autojump_clock: MockClock
) -> None:
    """Fault 30. Neither another socket's dial nor one whose time is over is continued (seed 2300050)."""
    status = await registered()
    found = list[str]()
    oracle, connection = PatienceOracle(lambda rule, text: found.append(rule), Timeouts()), memory_connection()
    start = trio.current_time()
    for inode, began in full:
        oracle.found_full("/plugins/a.sock", Identity(1, inode, 0), start + began)
    await trio.sleep_until(start + dialed)
    oracle.connected("/plugins/a.sock", Identity(1, 1, 0), start + dialed, connection.client)
    await trio.sleep_until(start + fails)
    oracle.shown(given_up(status, UNREAD))
    assert found == ["patience"] * wrong
