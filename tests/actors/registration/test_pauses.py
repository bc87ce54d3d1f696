"""The pauses between two tries, each as a timeline: when it ends by itself, and what brings its end forward.

Every pair of a pause and a trigger is a cell of the table in ``tests/protocol/registration/test_following.py``.
"""

from __future__ import annotations

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from plugind.testing import DEFAULT_CONFIG, FakeHandler, SimulatedNode
from plugind.tests.actors.registration.timelines import asked, asks, notified, notified_error, red

CONFIG = attrs.evolve(DEFAULT_CONFIG, hung_after=None)


def pauses(node: SimulatedNode) -> list[tuple[float, str, int, float | None]]:
    """Return when each pause began, how it is shown, the number of the try before it, and when it is to end."""
    return [
        (entry.time, entry.state.value, entry.attempt, entry.next_try)
        for entry in node.history("a.sock")
        if entry.state.value in ("waiting", "stale", "parked")
    ]


async def test_a_backoff_ends_sooner_once_by_a_touch_and_starts_afresh_after_a_retry(autojump_clock: MockClock) -> None:
    """Fault 49: the pause after a try that a touch brought forward ends by itself alone."""
    async with SimulatedNode(CONFIG, handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", red(get_info_fails=6))
        for touched in (0.6, 0.7, 2.0):
            await trio.sleep_until(touched)
            node.directory.chmod(plugin.path)
        await trio.sleep_until(5.0)
        await node.supervisor.retry(plugin.path)
        await trio.sleep_until(7.0)
        assert pauses(node) == [
            (0.0, "waiting", 1, 0.5),
            (0.5, "waiting", 2, 1.5),
            (0.6, "waiting", 3, 2.6),
            (2.6, "waiting", 4, 6.6),
            (5.0, "waiting", 1, 5.5),
            (5.5, "waiting", 2, 6.5),
        ]
        assert notified(plugin) == [(6.5, True)]


async def test_the_pause_between_two_notifications_ends_sooner_by_a_touch_and_by_a_retry(
    autojump_clock: MockClock,
) -> None:
    """Behaviour 33: five tries in all, of which a retry begins five others; then the registration is undone."""
    handler = FakeHandler()
    async with SimulatedNode(CONFIG, handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red(notify_fails=9))
        for touched in (0.8, 1.0):
            await trio.sleep_until(touched)
            node.directory.chmod(plugin.path)
        await trio.sleep_until(2.0)
        await node.supervisor.retry(plugin.path)
        await trio.sleep_until(10.0)
        assert [time for time, _ in notified(plugin)] == [0.0, 0.0, 0.5, 0.8, 2.0, 2.0, 2.5, 3.5, 5.5, 6.0]
        registered = ["validate", "register"]
        assert asks(handler) == [
            *((0.0, ask) for ask in registered),
            (5.5, "deregister"),
            *((6.0, ask) for ask in registered),
        ]


async def test_a_stale_socket_is_tried_when_it_is_found_to_listen_and_at_a_retry(autojump_clock: MockClock) -> None:
    """Behaviour 15, fault 28: a socket without a listener is looked at every ten seconds."""
    async with SimulatedNode(CONFIG, handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", red(), listening=False)
        await trio.sleep_until(9.0)
        await node.supervisor.retry(plugin.path)
        await trio.sleep_until(18.0)
        plugin.listen()
        await trio.sleep_until(30.0)
        assert pauses(node) == [
            *((1.0, "stale", 1, 1.5), (1.5, "stale", 2, 2.5), (2.5, "stale", 3, 4.5)),
            *((4.5, "stale", 4, 8.5), (8.5, "stale", 5, 16.5)),
            # The first try after a retry waits for a second, as that of a new socket.
            *((10.0, "stale", 1, 10.5), (10.5, "stale", 2, 11.5), (11.5, "stale", 3, 13.5)),
            *((13.5, "stale", 4, 17.5), (17.5, "stale", 5, 25.5)),
        ]
        assert notified(plugin) == [(21.1, True)]


async def test_a_parked_socket_is_tried_at_a_touch_after_a_backoff_at_the_next_and_at_a_retry(
    autojump_clock: MockClock,
) -> None:
    """Faults 49 and 71."""
    unimplemented = GRPCError(Status.UNIMPLEMENTED, "no such method")
    async with SimulatedNode(CONFIG, handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", red(get_info_fails=9, error=unimplemented))
        for touched in (100.0, 100.1):
            await trio.sleep_until(touched)
            node.directory.chmod(plugin.path)
        await trio.sleep_until(200.0)
        await node.supervisor.retry(plugin.path)
        await trio.sleep_until(300.0)
        assert pauses(node) == [
            (0.0, "parked", 1, None),
            (100.0, "parked", 2, None),
            (100.1, "waiting", 2, 101.1),
            (101.1, "parked", 3, None),
            (200.0, "parked", 1, None),
        ]


async def test_a_plugin_without_a_handler_is_tried_once_there_is_one_for_its_type_and_at_a_retry(
    autojump_clock: MockClock,
) -> None:
    """Behaviour 29, fault 74: neither a touch nor a handler for another type makes it try."""
    error = "RegisterPlugin error -- no handler registered for plugin type: Colour at socket /plugins/a.sock"
    async with SimulatedNode(CONFIG) as node:
        plugin = node.plug("a.sock", red())
        await trio.sleep_until(10.0)
        node.directory.chmod(plugin.path)
        await trio.sleep_until(20.0)
        await node.supervisor.add_handler("Shape", FakeHandler())
        await trio.sleep_until(30.0)
        await node.supervisor.retry(plugin.path)
        await trio.sleep_until(40.0)
        await node.supervisor.add_handler("Colour", FakeHandler())
        await trio.sleep_until(50.0)
        assert pauses(node) == [(0.0, "parked", 1, None), (30.0, "parked", 1, None)]
        assert plugin.calls[:2] == [asked(0.0), notified_error(0.0, error)]
        assert notified(plugin) == [(0.0, False), (30.0, False), (40.0, True)]
