"""Registration actors on a whole node in virtual time: successful registrations and failures."""

from __future__ import annotations

import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from plugind.protocol.words import Step
from plugind.testing import Fails, FakeHandler, FakePlugin, SimulatedNode, Takes
from plugind.tests.actors.registration.timelines import (
    Line,
    asked,
    at,
    notified_error,
    notified_ok,
    registered_at,
    steps_at,
)

UNIMPLEMENTED = GRPCError(Status.UNIMPLEMENTED, "unknown method")


def csi(name: str = "a.example.com", **faults: object) -> FakePlugin:
    return FakePlugin("CSIPlugin", name, **faults)  # type: ignore[arg-type]


def colour(name: str = "red.example.com") -> FakePlugin:
    return FakePlugin("Colour", name)


# --- success ----------------------------------------------------------------------------------------------------------


async def test_a_handler_validates_and_registers_before_the_plugin_is_notified(autojump_clock: MockClock) -> None:
    """plugin_manager_test TestPluginRegistration: sockets at depths 0 to 2 give exactly validate, then register.

    Behaviour 26: one connection throughout.
    """
    handler = FakeHandler()
    sockets = ("a.sock", "one/b.sock", "one/two/c.sock")
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugins = [node.plug(socket, colour(socket)) for socket in sockets]
        await node.settled()
        for socket, plugin in zip(sockets, plugins, strict=True):
            assert node.timeline(socket) == registered_at(0.0)
            assert plugin.calls == [asked(0.0), notified_ok(0.0)]
            assert (plugin.accepted, plugin.connections) == (1, 0)
            assert handler.asked(socket) == ["validate", "register"]


async def test_sockets_that_exist_before_the_start_are_registered(autojump_clock: MockClock) -> None:
    """plugin_watcher_test TestPluginRegistrationAtKubeletStart: ten sockets that exist before the start are found."""
    node = SimulatedNode()
    for number in range(10):
        node.plug(f"{number}.sock", csi(f"{number}.example.com"))
    async with node:
        await node.settled()
        assert [node.timeline(f"{number}.sock") for number in range(10)] == [registered_at(0.0)] * 10


async def test_many_conversations_run_side_by_side_and_do_not_mix(autojump_clock: MockClock) -> None:
    """Executor TestOperationExecutor_RegisterPlugin_ConcurrentRegisterPlugin and
    TestOperationExecutor_UnregisterPlugin_ConcurrentUnregisterPlugin: different paths run in parallel."""
    handler = FakeHandler().always("register", Takes(3.0)).always("deregister", Takes(2.0))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        await trio.sleep(7.0)
        plugins = [node.plug(f"{number}.sock", colour(f"{number}")) for number in range(20)]
        await node.settled()
        assert node.now == 10.0
        assert handler.most_at_once == 20
        assert {status.registered_in for status in node.statuses.values()} == {3.0}
        for plugin in plugins:
            plugin.stop()
        await node.settled()
        assert node.now == 12.0
        assert node.timeline("7.sock")[-2:] == [(10.0, "leaving"), (12.0, "gone")]


async def test_a_retry_is_shown_as_dialed_and_its_dial_is_measured_once_it_has_a_slot(
    autojump_clock: MockClock,
) -> None:
    """Fault 47: another plugin has the only slot until it expires. Those that wait for one are counted."""
    simulated = SimulatedNode(handlers={"Colour": FakeHandler()})
    simulated.network.dial_slots = 1
    async with simulated as node:
        node.plug("a.sock", FakePlugin("Colour", "red", get_info_fails=1))
        await trio.sleep_until(0.5 - 0.01)
        node.plug("b.sock", FakePlugin("Colour", "blue", hang="get-info"))
        await trio.sleep_until(0.5 + 0.05)
        assert (node.state("a.sock"), (await node.supervisor.internals.counts()).queued) == ("waiting", 1)
        await trio.sleep_until(2.0)
        assert node.timeline("a.sock")[1:3] == [(0.59, "dialing"), (0.59, "asking-info")]
        retried = node.status("a.sock")
        assert retried is not None
        assert dict(retried.steps)[Step.DIAL] == 0.0
        assert (await node.supervisor.internals.counts()).queued == 0


# --- dialing ---------------------------------------------------------------------------------------------------------


async def test_a_plugin_between_bind_and_listen_is_awaited_without_counting_a_failure(
    autojump_clock: MockClock,
) -> None:
    """Behaviour 12: ECONNREFUSED before listen() causes no backoff."""
    async with SimulatedNode() as node:
        plugin = node.plug("a.sock", csi(), listening=False)
        await trio.sleep(0.2)
        plugin.listen()
        await node.settled()
        *states, last = node.history("a.sock")
        assert [entry.state for entry in states] == ["dialing", "asking-info", "validating", "registering", "notifying"]
        assert last.state == "registered"
        assert last.attempt == 1
        assert 0.2 <= last.time <= 0.25
        assert len(node.network.dials) < 20


# --- GetInfo ----------------------------------------------------------------------------------------------------------


async def test_a_silent_plugin_is_retried_with_doubling_delays_up_to_the_cap(autojump_clock: MockClock) -> None:
    """Behaviours 23 and 26, fault 32, exponential backoff: 1 s deadline, then 0.5 s, doubling, cap 2 min 2 s."""
    delays = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 122.0, 122.0, 122.0)
    async with SimulatedNode() as node:
        node.plug("a.sock", csi(hang="get-info"))
        await trio.sleep_until(sum(delays) + len(delays) + 0.5)
        expected: list[Line] = []
        time = 0.0
        for delay in delays:
            asking = at(time, "dialing", "asking-info") if expected else at(0.2, "asking-info")
            expected += [*asking, (time + 1.0, "waiting")]
            time += 1.0 + delay
        expected += at(time, "dialing", "asking-info")
        assert node.timeline("a.sock") == expected
        waiting = [entry for entry in node.history("a.sock") if entry.state == "waiting"]
        assert [entry.attempt for entry in waiting] == list(range(1, 12))
        assert [(entry.next_try or 0) - entry.time for entry in waiting] == list(delays)
        assert {entry.reason for entry in waiting} == {
            "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket /plugins/a.sock, "
            "err: no answer in 1 s"
        }


async def test_a_plugin_that_fails_twice_is_registered_on_the_third_try(autojump_clock: MockClock) -> None:
    """Behaviours 23, 25 and 28: reason, attempt and next try are shown; a failed GetInfo is not notified."""
    async with SimulatedNode() as node:
        plugin = node.plug("a.sock", csi(get_info_fails=2))
        await node.settled()
        assert node.timeline("a.sock") == [
            *at(0.0, "waiting"),
            *at(0.5, "dialing", "asking-info", "waiting"),
            *steps_at(1.5),
        ]
        first = node.history("a.sock")[0]
        assert (first.attempt, first.next_try) == (1, 0.5)
        assert first.reason == (
            "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket /plugins/a.sock, "
            "err: UNAVAILABLE: this fake refuses"
        )
        assert plugin.calls == [asked(0.0), asked(0.5), asked(1.5), notified_ok(1.5)]


async def test_a_plugin_without_the_method_is_parked_for_its_generation(autojump_clock: MockClock) -> None:
    """Behaviour 28, fault 71: UNIMPLEMENTED is terminal, and GetInfo is not repeated."""
    async with SimulatedNode() as node:
        plugin = node.plug("a.sock", csi(get_info_fails=1, error=UNIMPLEMENTED))
        await trio.sleep_until(1000.0)
        assert node.timeline("a.sock") == at(0.0, "parked")
        assert node.history("a.sock")[-1].reason == (
            "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket /plugins/a.sock, "
            "err: UNIMPLEMENTED: unknown method"
        )
        assert plugin.calls == [asked(0.0)]
        plugin.restart()
        await node.settled()
        assert node.timeline("a.sock")[1:] == registered_at(1000.0)


@pytest.mark.parametrize(
    ("plugin", "reason"),
    [
        (FakePlugin("Colour", ""), "the plugin's name is empty"),
        (
            FakePlugin("Colour", "a", endpoint="@abstract"),
            "the endpoint '@abstract' is an abstract socket; give the path of a unix socket",
        ),
        (FakePlugin("Colour", "a", [""] * 30_000), "more than 128 supported versions"),
    ],
)
async def test_a_plugin_with_unacceptable_info_is_notified_of_the_reason(
    autojump_clock: MockClock, plugin: FakePlugin, reason: str
) -> None:
    """Faults 42, 51 and 73: refused before any handler is called, notified, and retried."""
    handler = FakeHandler()
    error = f"RegisterPlugin error -- plugin validation failed with err: {reason}"
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugged = node.plug("a.sock", plugin)
        await node.settled(patience=0.0)
        assert node.timeline("a.sock") == at(0.0, "waiting")
        assert node.history("a.sock")[-1].reason == error
        assert plugged.calls == [asked(0.0), notified_error(0.0, error)]
        assert handler.calls == []


# --- refusals by a handler --------------------------------------------------------------------------------------------


async def test_a_plugin_that_fails_validation_is_notified_with_the_message_of_the_reference(
    autojump_clock: MockClock,
) -> None:
    """Behaviour 30, fault 75; generator TestNotifyPlugin: the plugin gets the failure."""
    reason = (
        "validation failed for CSI Driver a.example.com at endpoint /plugins/a.sock: kubernetes.io/csi: "
        'ValidatePlugin for CSI driver "a.example.com" failed. None of the versions specified ["2.0.0"] are supported. '
        "err=could not find a highest supported version from versions ([2.0.0]) reported: <nil>"
    )
    error = f"RegisterPlugin error -- plugin validation failed with err: {reason}"
    async with SimulatedNode() as node:
        plugin = node.plug("a.sock", FakePlugin("CSIPlugin", "a.example.com", ["2.0.0"]))
        await node.settled(patience=0.0)
        assert node.timeline("a.sock") == at(0.0, "waiting")
        assert node.history("a.sock")[-1].reason == error
        assert plugin.calls == [asked(0.0), notified_error(0.0, error)]
        assert isinstance(plugin.plugin, FakePlugin)
        plugin.plugin.versions = ["1.5.0"]
        await node.settled()
        assert node.timeline("a.sock")[1:] == steps_at(0.5)


async def test_a_failed_register_is_notified_rolled_back_and_retried(autojump_clock: MockClock) -> None:
    """Behaviours 31, 34 and 36, fault 81: Deregister is called exactly once for the failed Register.

    The steps of that try are shown until the next one. The Deregister is none of them.
    """
    handler = FakeHandler().script("register", Fails("no room"))
    error = "RegisterPlugin error -- plugin registration failed with err: the handler broke: ValueError: no room"
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", colour())
        await node.settled(patience=0)
        waiting = node.status("a.sock")
        assert waiting is not None
        assert [step for step, _ in waiting.steps] == [step for step in Step if step is not Step.CLAIM]
        await node.settled()
        assert node.timeline("a.sock") == [*at(0.0, "leaving", "waiting"), *steps_at(0.5)]
        assert plugin.calls == [asked(0.0), notified_error(0.0, error), asked(0.5), notified_ok(0.5)]
        assert [(call.time, call.ask) for call in handler.calls] == [
            (0.0, "validate"),
            (0.0, "register"),
            (0.0, "deregister"),
            (0.5, "validate"),
            (0.5, "register"),
        ]


# --- notify -----------------------------------------------------------------------------------------------------------


async def test_a_failed_notification_is_retried_alone_on_new_connections(autojump_clock: MockClock) -> None:
    """Behaviour 33, fault 36; DRA end-to-end: a failed notify is retried. The handler's register runs once."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", FakePlugin("Colour", "a", notify_fails=3))
        await node.settled()
        assert node.timeline("a.sock") == [
            *at(0.0, "dialing", "notifying", "waiting"),
            *at(0.5, "dialing", "notifying", "waiting"),
            *at(1.5, "dialing", "notifying", "registered"),
        ]
        assert plugin.calls == [asked(0.0), notified_ok(0.0), notified_ok(0.0), notified_ok(0.5), notified_ok(1.5)]
        assert handler.asked() == ["validate", "register"]
        assert plugin.accepted == 4


async def test_after_the_last_failed_notification_the_plugin_is_deregistered(autojump_clock: MockClock) -> None:
    """Behaviour 33, fault 35, generator TestNotifyPlugin: the failure has its cause, is rolled back, and is retried."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", FakePlugin("Colour", "a", reject_notify=True))
        await trio.sleep_until(5.0)
        assert node.timeline("a.sock")[:15] == [
            *at(0.0, "dialing", "notifying", "waiting"),
            *at(0.5, "dialing", "notifying", "waiting"),
            *at(1.5, "dialing", "notifying", "waiting"),
            *at(3.5, "dialing", "notifying", "leaving", "waiting"),
            *at(4.0, "dialing", "asking-info"),
        ]
        assert handler.asked()[:4] == ["validate", "register", "deregister", "validate"]
        given_up = node.history("a.sock")[12]
        assert given_up.reason == (
            "RegisterPlugin error -- failed to send registration status at socket /plugins/a.sock, "
            "err: UNAVAILABLE: this fake refuses"
        )
        assert [call.time for call in plugin.calls][:6] == [0.0, 0.0, 0.0, 0.5, 1.5, 3.5]


async def test_a_plugin_that_dies_between_register_and_notify_is_rolled_back(autojump_clock: MockClock) -> None:
    """Fault 35: its socket refuses; after five tries the register is rolled back, and the socket is stale."""
    handler = FakeHandler().script("register", Takes(1.0))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", colour())
        await trio.sleep(0.5)
        plugin.crash()
        await trio.sleep_until(7.0)
        assert node.timeline("a.sock") == [
            *at(0.2, "registering"),
            *at(1.0, "notifying", "dialing", "waiting"),
            *at(1.5, "dialing", "waiting"),
            *at(2.5, "dialing", "waiting"),
            *at(4.5, "dialing", "leaving", "waiting"),
            (5.0, "dialing"),
            (5.0, "stale"),
            (6.0, "dialing"),
            (6.0, "stale"),
        ]
        assert handler.asked() == ["validate", "register", "deregister"]


async def test_a_connection_lost_during_a_slow_register_is_dialed_again_to_notify(autojump_clock: MockClock) -> None:
    """Fault 36: the plugin is dialed again at once, and no other call is made twice."""
    handler = FakeHandler().script("register", Takes(2.0))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", colour())
        await trio.sleep(1.0)
        plugin.reset()
        await node.settled()
        assert node.timeline("a.sock") == [
            *at(0.2, "registering"),
            *at(2.0, "notifying", "dialing", "notifying", "registered"),
        ]
        assert plugin.calls == [asked(0.0), notified_ok(2.0)]
        assert handler.asked() == ["validate", "register"]


async def test_a_notification_after_a_slow_handler_has_a_deadline(autojump_clock: MockClock) -> None:
    """The timers have looked at this try before, in an earlier phase. The plugin is notified again."""
    handler = FakeHandler().always("validate", Takes(3.0))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", FakePlugin("Colour", "a", hang="notify"))
        await trio.sleep(8.1)
        assert node.timeline("a.sock")[:4] == [
            *((0.2, "validating"), (3.0, "registering"), (3.0, "notifying"), (8.0, "dialing"))
        ]


async def test_each_unanswered_notification_ends_after_five_seconds(autojump_clock: MockClock) -> None:
    """Behaviour 26: notify 5 s."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", FakePlugin("Colour", "a", hang="notify"))
        await trio.sleep(7.0)
        plugin.unlink()
        await node.settled()
        assert node.timeline("a.sock") == [
            *at(0.2, "notifying"),
            *at(5.0, "dialing", "notifying"),
            *at(7.0, "leaving", "gone"),
        ]


# --- jitter -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plugin", "shown"),
    [
        (FakePlugin("Colour", "red", endpoint="relative"), ("Colour", "red", None)),
        (FakePlugin("Colour", "r\ned"), (None, None, None)),
        (FakePlugin("", "red"), (None, None, None)),
    ],
    ids=["bad endpoint", "bad name", "no type"],
)
async def test_a_plugin_that_is_refused_for_its_info_is_shown_by_its_name(
    plugin: FakePlugin, shown: tuple[str | None, ...], autojump_clock: MockClock
) -> None:
    """Faults 42, 44 and 73: people look for it by its name, if that is one."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        node.plug("a.sock", plugin)
        await trio.sleep(0.1)
        (status,) = (await node.snapshot()).plugins
        assert status.state == "waiting"
        assert (status.type, status.name, status.endpoint) == shown
        assert len(await node.supervisor.retry("red")) == (shown[1] == "red")
