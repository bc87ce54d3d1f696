"""The oracles of lives, generations, listeners and lines: what they take for a violation, and what not."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.simulation.node import SimulatedNode
from plugind.actors.simulation.plugins import Call
from plugind.protocol.backoff import Backoff
from plugind.protocol.health.liveness import SocketOwners
from plugind.protocol.identity import Identity
from plugind.protocol.leases.values import Lease, LeaseState, NoOwner, Request, Wanted
from plugind.protocol.messages.status import PluginChanged
from plugind.protocol.plugins.devices import HEALTHY, Device, DeviceList, ResourceState, ResourceStatus
from plugind.protocol.plugins.info import InstancePolicy, Plugin
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.registration.lives import reason
from plugind.testing import FakeHandler, FakePlugin
from plugind.tests.fuzz.device_oracle import DeviceOracle, Instance
from plugind.tests.fuzz.endpoint_oracle import EndpointOracle
from plugind.tests.fuzz.generation_oracle import GenerationOracle
from plugind.tests.fuzz.handler_oracle import HandlerOracle
from plugind.tests.fuzz.lease_holders import LABEL, Asking
from plugind.tests.fuzz.life_oracle import LifeOracle
from plugind.tests.fuzz.line_oracle import LATE, LineOracle
from plugind.tests.fuzz.serving_oracle import KILLED_BOUND, ServingOracle
from plugind.tests.fuzz.trace import Trace

STATUS = PluginStatus("/plugins/a.sock", "/plugins", 7, StateName.WAITING, 0.0)
GPU = "lab.com/gpu"


@attrs.define
class Found:
    """What an oracle has found."""

    rules: list[str] = attrs.field(factory=list)

    def violated(self, rule: str, _text: str) -> None:
        self.rules.append(rule)


@pytest.mark.parametrize(("seconds", "is_right"), [(120.0, True), (131.9, True), (132.1, False)])
async def test_a_socket_waits_after_short_lives_for_the_longest_delay_and_its_jitter(
    seconds: float, is_right: bool
) -> None:
    """Seed 2702706, fault 49."""
    found = Found()
    oracle = LifeOracle(found.violated, Backoff(cap=120.0, jitter=0.1), 10.0)
    oracle.shown(attrs.evolve(STATUS, next_try=seconds, reason=reason(9)))
    assert found.rules == ([] if is_right else ["lives"])


@pytest.mark.parametrize(("files", "rules"), [((1, 2, 3), ["lives"]), ((1, 1, 1), [])])
async def test_another_file_that_is_dialed_too_soon_after_a_short_life_is_a_violation(
    autojump_clock: MockClock, files: tuple[int, ...], rules: list[str]
) -> None:
    """Fault 49: the first dial of a file begins a life, also while nothing is shown of it."""
    assert await rules_of_lives(files, (0.0, 2.0, 3.0)) == rules  # After one short life, and too soon after two.


async def test_a_life_of_less_than_the_first_look_counts_for_the_socket_after_the_next(
    autojump_clock: MockClock,
) -> None:
    """Seeds 4720246 and 4720288, fault 49."""
    assert await rules_of_lives((1, 2, 3), (0.0, 0.1, 4.1)) == []
    assert await rules_of_lives((1, 2, 3), (0.0, 0.1, 4.0)) == ["lives"]


async def test_a_dial_without_descriptors_tells_when_the_life_before_was_over(autojump_clock: MockClock) -> None:
    """Seed 7350132: the life of the first file was shorter than the first look when the second was dialed in vain."""
    assert await rules_of_lives((1, 2, 2), (0.0, 0.05, 0.25), connected=(True, False, True)) == []
    assert await rules_of_lives((1, 2), (0.0, 0.25)) == ["lives"]


async def test_files_that_nothing_but_an_unseen_removal_tells_apart_are_one_life_for_the_daemon(
    autojump_clock: MockClock,
) -> None:
    """Seeds 4720127 and 4720190."""
    one = Identity(1, 4, changed_ns=0)
    assert await rules_of_lives((1, 2), (0.0, 0.2), one) == []
    assert await rules_of_lives((1, 2), (0.0, 0.2)) == ["lives"]


async def rules_of_lives(
    files: Sequence[int],
    times: Sequence[float],
    identity: Identity | None = None,
    *,
    connected: Sequence[bool] | None = None,
) -> list[str]:
    """Return the rules that are violated where these files are dialed at these times after now."""
    found, began = Found(), trio.current_time()
    oracle = LifeOracle(found.violated, Backoff(initial=2.0, jitter=0.0), 10.0)
    for file, time, reaches in zip(files, times, connected or [True] * len(files), strict=True):
        await trio.sleep_until(began + time)
        oracle.dialed(STATUS.socket, file, identity, began + time, connected=reaches)
    return found.rules


def red(generation: int) -> Plugin:
    return Plugin("Colour", "red", STATUS.socket, ("1.0.0",), STATUS.socket, generation)


@pytest.mark.parametrize(
    ("asked", "shown", "is_late"),
    [
        (5.0, None, True),
        # Its try has ended before the next socket was dialed.
        (5.0, 6.0, False),
        (None, None, False),
    ],
)
async def test_a_handler_may_take_what_it_was_asked_before_in_the_instant_in_which_the_next_socket_is_dialed(
    autojump_clock: MockClock, asked: float | None, shown: float | None, is_late: bool
) -> None:
    """Seeds 2703241 and 4100418: the ask waited behind a call that was cancelled then."""
    found = Found()
    oracle = GenerationOracle(found.violated)
    await trio.sleep_until(0.5)
    oracle.connected(STATUS.socket, 1)
    oracle.validating(red(7))
    if asked is not None:
        await trio.sleep_until(asked)
        oracle.connected(STATUS.socket, 1)
        oracle.asked(STATUS.socket)
    if shown is not None:
        oracle.shown(attrs.evolve(STATUS, since=shown))
    await trio.sleep_until(9.0)
    oracle.connected(STATUS.socket, 2)
    oracle.asked(STATUS.socket)
    oracle.validating(red(7))
    await trio.sleep_until(69.0)
    oracle.validating(red(8))
    assert found.rules == ([] if is_late else ["generation", "generation"])


async def test_a_plugin_is_validated_only_once_it_was_asked(autojump_clock: MockClock) -> None:
    """What the handler takes before was asked of the socket before it."""
    found = Found()
    oracle = GenerationOracle(found.violated)
    for socket, generation in ((1, 7), (2, 8)):
        oracle.connected(STATUS.socket, socket)
        oracle.asked(STATUS.socket)
        oracle.validating(red(generation))
        await trio.sleep(1.0)
    oracle.connected(STATUS.socket, 3)
    oracle.validating(red(8))
    assert found.rules == []
    oracle.asked(STATUS.socket)
    oracle.validating(red(8))
    assert found.rules == ["generation"]


async def test_a_newer_generation_that_speaks_with_the_same_socket_is_found(autojump_clock: MockClock) -> None:
    """However late it asks; but for the instant in which the socket is dialed anew."""
    found = Found()
    oracle = GenerationOracle(found.violated)
    oracle.connected(STATUS.socket, 1)
    await trio.sleep_until(9.0)
    oracle.validating(red(7))
    oracle.connected(STATUS.socket, 1)
    await trio.sleep_until(10.0)
    oracle.validating(red(8))
    assert found.rules == ["generation"]


@pytest.mark.parametrize(("delay", "is_late"), [(0.0, False), (1e-3, True)])
async def test_a_notification_may_be_read_only_in_the_instant_in_which_its_plugin_is_deregistered(
    autojump_clock: MockClock, delay: float, is_late: bool
) -> None:
    """Seed 2730006: the time of the clock is a little less than the same time in whole microseconds."""
    trace, plugin = Trace(), Plugin("Colour", "red", STATUS.socket, ("1.0.0",), STATUS.socket, 7)
    oracle = HandlerOracle(trace, InstancePolicy.ALL, lambda _name: None)
    handler = oracle.new_handler()
    async with SimulatedNode() as node:
        plugged = node.plug("a.sock", FakePlugin("Colour", "red"))
        await trio.sleep_until(2.1109999999999998)
        assert trio.current_time() < 2.111
        await handler.validate(plugin)
        await handler.register(plugin)
        await handler.deregister(plugin)
        await trio.sleep(delay)
        oracle.received(plugin.socket, plugged, Call(2.111, "NotifyRegistrationStatus", registered=True), well=True)
    assert [violation.oracle for violation in trace.violations] == (["order"] if is_late else [])


@pytest.mark.parametrize("is_met", [True, False])
async def test_the_end_of_a_process_that_the_daemon_has_not_met_may_be_found_by_the_next_look(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, is_met: bool
) -> None:
    """Seed 2701569: it listens anew on the socket of another one, to which the first had handed its listener."""
    monkeypatch.setattr(SocketOwners, "end", lambda *_: ())
    found = Found()
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", FakePlugin("Colour", "red"))
        await trio.sleep(2.0)
        oracle = ServingOracle(node, found.violated)
        if not is_met:
            plugin.hand_over()
            plugin.crash()
            plugin.listen()
            await trio.sleep(1.0)
        oracle.look(disturbed=False)
        oracle.killed(plugin.path)
        plugin.crash()
        oracle.look(disturbed=False)
        await trio.sleep(KILLED_BOUND + 1.0)
        oracle.look(disturbed=False)
    assert found.rules == (["serving"] if is_met else [])


@pytest.mark.parametrize(("found_at", "is_right"), [(5.0, True), (7.0, False)])
async def test_that_nobody_listens_may_be_shown_late_but_not_found_while_somebody_listens(
    autojump_clock: MockClock, found_at: float, is_right: bool
) -> None:
    """Seed 4101950: the status actor had crashed, and somebody listened again before it showed what it had missed."""
    found = Found()
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        plugin = node.plug("a.sock", FakePlugin("Colour", "red"))
        await trio.sleep_until(4.0)
        oracle = ServingOracle(node, found.violated)
        plugin.crash()
        oracle.look(disturbed=False)
        await trio.sleep_until(6.0)
        plugin.listen()
        oracle.look(disturbed=False)
        await trio.sleep_until(8.0)
        status = attrs.evolve(node.statuses[plugin.path], serving=True)
        node.record(PluginChanged(8.0, status))
        oracle.shown(attrs.evolve(status, serving=False, not_serving_since=found_at))
    assert found.rules == ([] if is_right else ["serving"])


@pytest.mark.parametrize(("asked", "is_right"), [(1.0, True), (3.0, False)])
async def test_a_plugin_may_be_admitted_to_an_endpoint_before_its_owner(
    autojump_clock: MockClock, asked: float, is_right: bool
) -> None:
    """It may be admitted as soon as it was asked for its info, and wait long for its handler."""
    trace, owner = Trace(), Plugin("Colour", "red", STATUS.socket, ("1.0.0",), STATUS.socket, 7)
    other = Plugin("Colour", "blue", STATUS.socket, ("1.0.0",), "/plugins/b.sock", 8)
    endpoints = EndpointOracle(trace.violated, ("/plugins/",))
    oracle = HandlerOracle(trace, InstancePolicy.ALL, lambda _name: None, endpoints=endpoints)
    handler = oracle.new_handler()

    async def ask() -> None:
        await trio.sleep_until(asked)
        oracle.received(other.socket, plugged, Call(asked, "GetInfo"), well=True)

    async with SimulatedNode() as node, trio.open_nursery() as nursery:
        plugged = node.plug("b.sock", FakePlugin("Colour", "blue"))
        nursery.start_soon(ask)
        await trio.sleep_until(2.0)
        await handler.validate(owner)
        await handler.register(owner)
        await trio.sleep_until(4.0)
        await handler.validate(other)
    assert [violation.oracle for violation in trace.violations] == ([] if is_right else ["endpoint"])


@pytest.mark.parametrize(("since", "rules"), [(1.0, []), (3.0, []), (2.0, ["devices"])])
def test_an_actor_that_skipped_a_list_shows_a_device_since_a_list_before_it(since: float, rules: list[str]) -> None:
    """Seed 4741117: the actor may have crashed after the first list, or with that list in its mailbox."""
    found = Found()
    oracle = DeviceOracle(found.violated)
    instance = Instance(GPU, STATUS.socket, 7)
    oracle.added(instance, 0.0)
    oracle.listed(instance, {"d0": HEALTHY}, 1.0)
    oracle.crashed(1.0, 1.0)
    oracle.listed(instance, {}, 2.0)
    oracle.listed(instance, {"d0": HEALTHY}, 3.0)
    listed = DeviceList([Device("d0", HEALTHY)])
    oracle.shown(ResourceStatus(GPU, ResourceState.LISTED, 1.0, listed=listed, changed={"d0": since}), 3.0)
    oracle.up_to_date(9.0)
    assert found.rules == rules


@pytest.mark.parametrize(
    ("left", "gone", "rules"),
    [
        (299.0, 1300.0, []),
        (301.0, 1300.0, []),
        (299.0, 1299.0, ["grace"]),
        (299.0, None, ["grace"]),
        (301.0, None, ["grace"]),
        # It is still gone, so it cannot go again.
        (None, 1300.0, ["grace"]),
    ],
)
def test_a_resource_that_is_gone_begins_anew_with_a_plugin_if_it_has_no_other(
    left: float | None, gone: float | None, rules: list[str]
) -> None:
    """Seed 7001810: a plugin registers for a resource that is gone, and is lost without having listed anything."""
    found, gone_first = Found(), ResourceStatus(GPU, ResourceState.GONE, 300.0)
    oracle = DeviceOracle(found.violated)
    before, after = Instance(GPU, STATUS.socket, 7), Instance(GPU, STATUS.socket, 8)
    oracle.added(before, 0.0)
    oracle.lost(before, 0.0)
    if left is not None and left < 300.0:
        oracle.removed(before, left)
    oracle.shown(gone_first, 300.0)
    if left is not None and left > 300.0:
        oracle.removed(before, left)
    oracle.added(after, 900.0)
    oracle.lost(after, 1000.0)
    if gone is not None:
        oracle.shown(attrs.evolve(gone_first, since=gone), gone)
    oracle.up_to_date(1301.0)
    assert found.rules == rules


@pytest.mark.parametrize("is_shown", [True, False])
async def test_nobody_waits_for_devices_that_only_an_earlier_daemon_has_shown(
    autojump_clock: MockClock, is_shown: bool
) -> None:
    """Seed 2700660: that daemon was killed before it kept the resource."""
    found, status = Found(), ResourceStatus(GPU, ResourceState.LISTED, 0.0, listed=DeviceList([Device("d0", HEALTHY)]))
    status = attrs.evolve(status, changed={"d0": 0.0})
    oracle = LineOracle(found.violated, ())
    oracle.look_at_devices(status)
    await trio.sleep(1.0)
    oracle.forget()
    oracle.look_at_all_devices([status] if is_shown else [])
    request = Request((Wanted(GPU, 1),), labels=((LABEL, "1"),))
    oracle.asks(Asking(1, request, NoOwner(), 0, trio.current_time(), None, None, lambda *_: None))
    oracle.look(Lease("job", 0, request, NoOwner(), LeaseState.QUEUED, trio.current_time()))
    for _ in range(2):
        await trio.sleep(LATE + 1.0)
        oracle.check()
    assert set(found.rules) == ({"line"} if is_shown else set())


@pytest.mark.parametrize("is_released", [True, False])
async def test_who_waits_is_not_overtaken_if_it_is_released_and_its_id_is_used_again(
    autojump_clock: MockClock, is_released: bool
) -> None:
    """Seed 4104341: all of that in one instant."""
    found, devices = Found(), DeviceList([Device("d0", HEALTHY), Device("d1", HEALTHY)])
    oracle = LineOracle(found.violated, ())
    status = ResourceStatus(GPU, ResourceState.LISTED, 0.0, listed=devices)
    oracle.look_at_devices(attrs.evolve(status, changed={"d0": 0.0, "d1": 0.0}))

    def asked(number: int, lease: str, count: int) -> Lease:
        request = Request((Wanted(GPU, count),), labels=((LABEL, str(number)),))
        oracle.asks(Asking(number, request, NoOwner(), 0, trio.current_time(), lease, None, lambda *_: None))
        return Lease(lease, 0, request, NoOwner(), LeaseState.QUEUED, trio.current_time())

    oracle.look(asked(1, "first", 2))
    await trio.sleep(1.0)
    later = asked(2, "later", 1)
    oracle.look(later)
    await trio.sleep(1.0)
    if is_released:
        oracle.look(asked(3, "first", 2))
    oracle.look(attrs.evolve(later, state=LeaseState.HELD, devices={GPU: ("d0",)}))
    await trio.sleep(1.0)
    oracle.pass_time()
    assert found.rules == ([] if is_released else ["line"])
