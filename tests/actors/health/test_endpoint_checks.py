"""The checks of all endpoints of a node: how many are out at once, and that none waits for those that hang.

The endpoints are functions, and the time is virtual.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import attrs
import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.health.endpoint_checks import FIRST, MOST, EndpointChecks
from plugind.protocol.errors import PluginError
from plugind.protocol.health.checks import GRID, Checked, HealthChecks
from plugind.protocol.messages.status import HealthChecked, StatusMessage
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import Outcome
from plugind.protocol.wire.errors import WireError, WireProblem

SILENT = "no answer within 3s"


@attrs.define
class Sink:
    """A transport that takes all bytes, or none, and brings none."""

    takes: bool = True
    read_bytes: int = 1

    def send(self, data: bytes | bytearray) -> int:
        return len(data) if self.takes else 0

    async def receive(self, *, unsent: bool) -> bytes | None:
        await trio.sleep_forever()

    def receive_now(self) -> bytes | None:
        return None

    def expect_nothing(self) -> None:
        pass

    def is_unread(self) -> bool:
        return not self.takes

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


@attrs.define(eq=False)
class Endpoint:
    """An endpoint that answers after some time, and records when it was asked."""

    delay: float = 0.0
    error: Exception | None = None
    transport: Sink = attrs.Factory(Sink)
    asked: list[float] = attrs.Factory(list)
    notes: list[Checked] = attrs.Factory(list)
    out: int = 0
    most: int = 0
    count: Callable[[], None] = lambda: None
    channel: Channel = attrs.field(init=False)

    @channel.default
    def _make_channel(self) -> Channel:
        return Channel(self.transport)

    async def check(self, channel: Channel) -> None:
        self.asked.append(trio.current_time())
        self.out += 1
        self.most = max(self.most, self.out)
        self.count()
        try:
            await trio.sleep(self.delay)
        finally:
            self.out -= 1
        if self.error is not None:
            raise self.error

    @property
    def health(self) -> Health:
        return self.notes[-1].health if self.notes else Health.UNKNOWN

    @property
    def pauses(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.asked)]


@attrs.define
class Bench:
    """The checks of a node with these endpoints."""

    endpoints: Sequence[Endpoint]
    rule: HealthChecks = attrs.Factory(HealthChecks)
    #: Whether the endpoints are those of plugins that have just been registered.
    new: bool = False
    most: int = 0
    results: list[HealthChecked] = attrs.Factory(list)

    async def run(self, seconds: float, then: Callable[[], None] = lambda: None, more: float = 0.0) -> None:
        """Check for some seconds, do something, and check for some more."""
        status, messages = trio.open_memory_channel[StatusMessage](10_000)
        checks = EndpointChecks(self.rule, status, random.Random(7))
        with trio.move_on_after(seconds + more):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(checks.serve)
                for endpoint in self.endpoints:
                    endpoint.count = self._counter(checks)
                    note = endpoint.notes.append
                    run = partial(checks.run, at_once=self.new)
                    nursery.start_soon(run, "DevicePlugin", endpoint.channel, endpoint.check, note)
                await trio.sleep(seconds)
                then()
        while (left := messages.statistics().current_buffer_used) > 0:
            for _ in range(left):
                message = messages.receive_nowait()
                assert isinstance(message, HealthChecked)
                self.results.append(message)

    def _counter(self, checks: EndpointChecks) -> Callable[[], None]:
        def count() -> None:
            self.most = max(self.most, checks.under_way, sum(endpoint.out for endpoint in self.endpoints))

        return count

    def outcomes(self) -> set[tuple[str, Outcome]]:
        return {(result.plugin_type, result.outcome) for result in self.results}


async def test_checks_are_spread_over_the_period_and_go_on(autojump_clock: MockClock) -> None:
    """A hundred plugins that were registered at one moment are not asked at one moment."""
    endpoints = [Endpoint() for _ in range(100)]
    bench = Bench(endpoints)
    await bench.run(600)
    first = sorted(endpoint.asked[0] for endpoint in endpoints)
    assert all(later - earlier < 3 for earlier, later in pairwise([0.0, *first, 30.0]))
    assert all(24 <= pause <= 36 for endpoint in endpoints for pause in endpoint.pauses)
    assert all(len(endpoint.asked) >= 16 for endpoint in endpoints)
    assert bench.outcomes() == {("DevicePlugin", Outcome.OK)}


async def test_a_new_plugin_is_checked_at_once_and_a_thousand_one_after_the_other(autojump_clock: MockClock) -> None:
    one = Endpoint()
    await Bench([one], new=True).run(100)
    assert one.asked[0] == 0.0
    assert all(24 <= pause <= 36 for pause in one.pauses)
    many = [Endpoint() for _ in range(1000)]
    began = trio.current_time()
    await Bench(many, new=True).run(300)
    begun = Counter(endpoint.asked[0] - began for endpoint in many)
    assert max(begun.values()) == FIRST == 25
    assert max(begun) <= 1000 / FIRST * GRID
    # They stay spread.
    assert max(Counter(time // GRID for endpoint in many for time in endpoint.asked).values()) <= 2 * FIRST


async def test_an_endpoint_that_hangs_is_asked_again_after_5_seconds_and_is_unhealthy_after_the_third_time(
    autojump_clock: MockClock,
) -> None:
    endpoint = Endpoint(delay=1e9)
    bench = Bench([endpoint])
    await bench.run(200)
    first, *later = endpoint.pauses
    assert (first, later[0]) == pytest.approx((5, 5))
    assert all(24 <= pause <= 36 for pause in later[1:])
    assert [(note.health, note.failures) for note in endpoint.notes[:4]] == [
        (Health.UNKNOWN, 1),
        (Health.UNKNOWN, 2),
        (Health.UNHEALTHY, 3),
        (Health.UNHEALTHY, 4),
    ]
    assert endpoint.notes[-1].reason == SILENT
    assert endpoint.most == 1
    assert bench.outcomes() == {("DevicePlugin", Outcome.TIMED_OUT)}
    assert [result.seconds for result in bench.results] == pytest.approx([3.0] * len(bench.results))


@pytest.mark.parametrize(
    ("error", "text"),
    [(GRPCError(Status.INTERNAL, "broken"), "INTERNAL: broken"), (PluginError("not ready"), "not ready")],
)
async def test_an_error_answer_is_a_failure_with_its_text(
    error: Exception, text: str, autojump_clock: MockClock
) -> None:
    endpoint = Endpoint(error=error)
    bench = Bench([endpoint])
    await bench.run(60)
    assert (endpoint.health, endpoint.notes[-1].reason) == (Health.UNHEALTHY, text)
    assert bench.outcomes() == {("DevicePlugin", Outcome.FAILED)}


async def test_a_process_that_takes_no_bytes_is_sent_no_more(autojump_clock: MockClock) -> None:
    """It was stopped, and its socket is full: nothing gathers that waits to be sent."""
    endpoint = Endpoint(transport=Sink(takes=False))
    before = len(endpoint.channel.connection.outgoing)
    await Bench([endpoint]).run(3600)
    assert (endpoint.health, endpoint.asked) == (Health.UNHEALTHY, [])
    assert len(endpoint.channel.connection.outgoing) == before


async def test_a_type_that_is_not_checked_is_asked_nothing_and_the_reason_is_noted_once(
    autojump_clock: MockClock,
) -> None:
    endpoint = Endpoint()
    bench = Bench([endpoint], HealthChecks(off={"DevicePlugin"}))
    await bench.run(3600)
    assert (endpoint.asked, bench.results) == ([], [])
    assert endpoint.notes == [
        Checked(reason="checks of its type are off: 'plugind run --health DevicePlugin=30' turns them on")
    ]


async def test_a_failed_connection_is_no_failure_of_a_check(autojump_clock: MockClock) -> None:
    """The link knows it: the plugin is disconnected then, and not unhealthy."""
    endpoint = Endpoint(error=GRPCError(Status.UNAVAILABLE, "the connection broke"))
    endpoint.channel.connection.fail(WireError(WireProblem.CLOSED, "it broke"))
    bench = Bench([endpoint])
    await bench.run(300)
    assert (len(endpoint.asked), endpoint.notes, bench.results) == (1, [], [])


async def test_500_endpoints_that_hang_delay_no_check_of_the_healthy_ones(autojump_clock: MockClock) -> None:
    """At most 16 checks are out at once, and each of 500 that hang takes 3 s of one: 50 would be needed."""
    hanging = [Endpoint() for _ in range(500)]
    healthy = [*(Endpoint() for _ in range(30)), *(Endpoint(2.9) for _ in range(2))]
    bench = Bench([*hanging, *healthy])

    def hang() -> None:
        for endpoint in hanging:
            endpoint.delay = 1e9

    await bench.run(100, hang, 800)
    assert {endpoint.health for endpoint in hanging} == {Health.UNHEALTHY}
    assert {endpoint.health for endpoint in healthy} == {Health.HEALTHY}
    assert {max(endpoint.pauses) <= 36.5 for endpoint in healthy[:30]} == {True}
    assert all(len(endpoint.asked) >= 900 / 36.5 - 1 for endpoint in healthy[:30])
    assert bench.most == MOST == 16
    assert {endpoint.most for endpoint in (*hanging, *healthy)} == {1}
