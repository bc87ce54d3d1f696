"""The oracle of health, on a link that checks its endpoint as the test says."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import attrs
import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.grpc.server.serve import serve_stream
from plugind.actors.health.endpoint_checks import Check, Note
from plugind.actors.simulation.csi_drivers import CSICall
from plugind.actors.simulation.dra_drivers import USUAL_SERVICES, DRACall
from plugind.actors.simulation.node import SimulatedNode
from plugind.actors.simulation.streams import memory_connection
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.proto.csi_v1_grpc import IdentityStub
from plugind.protocol.proto.csi_v1_pb2 import ProbeRequest
from plugind.protocol.proto.health_v1_grpc import HealthStub
from plugind.protocol.proto.health_v1_pb2 import HealthCheckRequest
from plugind.tests.fuzz.csi_acts import ScriptedCSIDriver
from plugind.tests.fuzz.dra_services import CHECKED, ScriptedDRADriver
from plugind.tests.fuzz.health_oracle import DEADLINE, AnsweredCheck, HealthOracle

if TYPE_CHECKING:
    from plugind.actors.handlers.link import Link

PLUGIN = Plugin("Colour", "red", "/plugins/a.sock", ("1.0.0",), "/plugins/a.sock", 7)
MISS, PASS = False, True


@attrs.define
class Endpoint:
    """A channel to an endpoint that answers well, or not."""

    answer: bool
    failure: None = None

    @property
    def connection(self) -> Endpoint:
        return self


@attrs.define
class Scripted:
    """A link that checks its endpoint after these pauses, each with what the endpoint answers."""

    script: list[tuple[float, bool]]

    async def check(self, check: Check, note: Note | None = None) -> None:
        for pause, answer in self.script:
            await trio.sleep(pause)
            try:
                await check(cast("Channel", Endpoint(answer)))
            except GRPCError:
                continue


async def ask(channel: Channel) -> None:
    if not cast("Endpoint", channel).answer:
        raise GRPCError(Status.INTERNAL, "no")


def shown(health: Health, failed_checks: int = 0) -> PluginStatus:
    return PluginStatus(
        PLUGIN.socket, "/plugins", 7, StateName.REGISTERED, 0.0, health=health, failed_checks=failed_checks
    )


@attrs.define
class Bench:
    """An oracle, and what it has found."""

    found: list[str] = attrs.field(factory=list)
    oracle: HealthOracle = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.oracle = HealthOracle(lambda _, text: self.found.append(text))

    async def check(self, *script: tuple[float, bool], answered: bool | None = None) -> None:
        link = self.oracle.watched(PLUGIN, cast("Link", Scripted([*script])), lambda _: answered)
        await link.check(ask)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ([(10, PASS), (30, PASS), (36, MISS), (5, MISS), (5, MISS), (24, MISS), (30, PASS), (24, PASS)], None),
        ([(31, PASS)], "a check of /plugins/a.sock generation 7 begins at 31, and is due between 0 and 30"),
        ([(1, PASS), (20, PASS)], "begins at 21, and is due between 24.5 and 37"),
        ([(1, MISS), (30, MISS)], "begins at 31, and is due between 5.5 and 6"),
        ([(1, MISS), (5, MISS), (5, MISS), (5, MISS)], "begins at 16, and is due between 34.5 and 47"),
    ],
)
async def test_each_check_is_due_at_its_time(
    script: list[tuple[float, bool]], problem: str | None, autojump_clock: MockClock
) -> None:
    bench = Bench()
    await bench.check(*script)
    assert [problem in text for text in bench.found if problem] == ([] if problem is None else [True])
    assert problem or not bench.found


async def test_an_endpoint_is_unhealthy_after_three_misses_in_a_row_and_not_before(autojump_clock: MockClock) -> None:
    bench = Bench()
    oracle = bench.oracle
    oracle.shown(shown(Health.HEALTHY), 0.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.check, (10, MISS), (5, MISS), (5, MISS), (30, PASS), (30, PASS))
        await trio.sleep(16)
        oracle.shown(shown(Health.UNHEALTHY, 2), 16.0)
        oracle.look()
        assert [text for text in bench.found if "has not missed 3 checks" in text]
        bench.found.clear()
        oracle.shown(shown(Health.HEALTHY), 16.0)
        await trio.sleep(5)
        oracle.look()
        assert bench.found == [f"{PLUGIN.socket} generation 7 has missed 3 checks since 20, and is shown as healthy"]
        bench.found.clear()
        oracle.shown(shown(Health.UNHEALTHY, 3), 20.0)
        oracle.look()
        assert not bench.found
        await trio.sleep(31)
        oracle.look()
        assert [text for text in bench.found if "has not missed 3 checks" in text], "it has passed one since"


async def test_misses_that_end_while_a_driver_may_be_starting_need_never_be_shown(autojump_clock: MockClock) -> None:
    bench = Bench()
    oracle = bench.oracle
    oracle.may_start(PLUGIN, 40.0)
    oracle.shown(shown(Health.STARTING), 0.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.check, (1, MISS), (5, MISS), (5, MISS), (25, PASS), (30, PASS))
        await trio.sleep(36.5)
        oracle.shown(shown(Health.HEALTHY), 36.5)
        await trio.sleep(13.5)
        oracle.look()
        oracle.shown(shown(Health.DISCONNECTED), 50.0)
    assert not bench.found


@pytest.mark.parametrize("last", [[(25, PASS)], []], ids=["by a check that is passed", "with the connection"])
async def test_misses_that_end_after_they_were_to_be_shown_are_found_if_they_were_not(
    last: list[tuple[float, bool]], autojump_clock: MockClock
) -> None:
    bench = Bench()
    bench.oracle.may_start(PLUGIN, 10.0)
    bench.oracle.shown(shown(Health.STARTING), 0.0)
    await bench.check((1, MISS), (5, MISS), (5, MISS), (24, MISS), *last)
    assert bench.found == [f"{PLUGIN.socket} generation 7 has missed 3 checks since 11, and is shown as starting"]


async def test_misses_that_are_shown_too_late_are_found(autojump_clock: MockClock) -> None:
    bench = Bench()
    oracle = bench.oracle
    oracle.may_start(PLUGIN, 10.0)
    oracle.shown(shown(Health.STARTING), 0.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.check, (1, MISS), (5, MISS), (5, MISS), (30, PASS))
        await trio.sleep(14)
        oracle.shown(shown(Health.UNHEALTHY, 3), 14.0)
    assert bench.found == [f"{PLUGIN.socket} is shown as unhealthy at 14, and not by 12"]


async def test_checks_that_do_not_come_and_answers_that_do_not_count_are_found(autojump_clock: MockClock) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.check, (10, PASS), (100, PASS))
        await trio.sleep(50)
        bench.oracle.look()
        nursery.cancel_scope.cancel()
    assert ["is not checked any more" in text for text in bench.found] == [True]
    bench.found.clear()
    await Bench(bench.found).check((10, PASS), answered=False)
    await Bench(bench.found).check((10, MISS), answered=True)
    named = f"a check of {PLUGIN.socket} generation 7 counts as"
    assert bench.found == [f"{named} passed, and was not answered", f"{named} missed, and was answered"]


@pytest.mark.parametrize(
    ("since", "suspended_at", "passes"),
    [
        (10.0, math.inf, True),  # It was asked at 10, and has answered at 11.
        (10.1, math.inf, False),
        (10.0, 11.5, True),
        (10.0, 11.0, None),  # It was suspended at the instant of its answer, which was sent or was not.
        (10.0, 10.5, False),
    ],
)
def test_what_an_endpoint_answers_while_it_is_suspended_is_no_check_that_has_passed(
    since: float, suspended_at: float, passes: bool | None
) -> None:
    """It was counted as sent (seed 2409303)."""
    assert AnsweredCheck(10.0, 11.0, serves=True).passes(since, suspended_at) is passes


@pytest.mark.parametrize("pauses", [(0.7, 0.1), (0.1, 0.2)], ids=["a bit less than 0.8", "a bit more than 0.3"])
async def test_an_answer_in_the_instant_of_a_suspension_may_have_been_missed_whatever_the_digits_of_its_time(
    pauses: tuple[float, float], autojump_clock: MockClock
) -> None:
    """The time of the suspension was rounded, so that the answer seemed to come before or after it (seed 7001151)."""
    async with SimulatedNode() as node:
        process = node.plug("/endpoints/a.sock", [])
        for pause in pauses:
            await trio.sleep(pause)
        at = trio.current_time()
        process.suspend()
        assert at != round(at, 3)
        assert AnsweredCheck(0.0, at, serves=True).passes(0.0, process.suspended_at) is None


def test_an_answer_that_comes_at_the_deadline_may_have_been_missed() -> None:
    check = AnsweredCheck(10.0, 10.0 + DEADLINE, serves=True)
    assert (check.passes(10.0, math.inf), check.passes(10.1, math.inf)) == (None, False)
    assert attrs.evolve(check, answered_at=9.99 + DEADLINE).passes(10.0, math.inf) is True


def test_of_two_checks_the_one_that_began_later_counts_whichever_was_answered_first() -> None:
    early, late = AnsweredCheck(1.0, 30.0, serves=True), AnsweredCheck(20.0, 21.0, serves=False)
    assert max(early, late) == max(late, early) == late


# --- the drivers of a script ------------------------------------------------------------------------------------------


@asynccontextmanager
async def connected(driver: ScriptedCSIDriver | ScriptedDRADriver) -> AsyncIterator[Channel]:
    made = memory_connection()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, [driver], made.server)
        async with Channel(made.client) as channel:
            yield channel
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("well_at_end", [True, False])
async def test_a_driver_knows_what_it_has_said_though_its_answer_was_delayed(
    *, well_at_end: bool, autojump_clock: MockClock
) -> None:
    """What it would have said when it was asked does not count (seed 4102975)."""
    dra = ScriptedDRADriver([*USUAL_SERVICES, CHECKED])
    dra.delays[DRACall.CHECK], dra.serving = 1.0, not well_at_end
    async with connected(dra) as channel, trio.open_nursery() as nursery:
        nursery.start_soon(partial(channel.stub(HealthStub).Check, HealthCheckRequest(), timeout=DEADLINE))
        await trio.sleep(0.5)
        dra.serving = well_at_end
    csi = ScriptedCSIDriver("disk.csi.example.com", itertools.count(), has_probe=True)
    csi.delays[CSICall.PROBE], csi.ready = 1.0, not well_at_end
    async with connected(csi) as channel, trio.open_nursery() as nursery:
        nursery.start_soon(partial(channel.stub(IdentityStub).Probe, ProbeRequest(), timeout=DEADLINE))
        await trio.sleep(0.5)
        csi.ready = well_at_end
    assert (dra.passes(0.0), csi.passes(1.0)) == (well_at_end, well_at_end)
