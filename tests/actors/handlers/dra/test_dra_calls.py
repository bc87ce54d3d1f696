"""Claims that DRA drivers prepare for a program that embeds a node; the texts of errors are the kubelet's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from plugind.actors.handlers.dra.calls import MAX_PER_CLAIM, DRADriver
from plugind.actors.simulation.dra_drivers import DRACall, FakeDRADriver
from plugind.protocol.handlers.dra_claims import (
    DRAAnswerError,
    DRACallError,
    DRAClaim,
    DRAClaimError,
    DRADriverUnknownError,
    DRAError,
    PreparedDevice,
)
from plugind.testing import FakePlugin, PluggedIn, SimulatedNode
from plugind.tests.actors.registration.timelines import shown

NAME = "gpu.example.com"
ONE, TWO = DRAClaim("default", "uid-1", "train"), DRAClaim("default", "uid-2", "infer")


@asynccontextmanager
async def running(
    service: str = "v1.DRAPlugin", driver: FakeDRADriver | None = None
) -> AsyncIterator[tuple[SimulatedNode, FakeDRADriver, DRADriver, PluggedIn]]:
    """Run a node with one driver, which announces ``service``."""
    fake = FakeDRADriver([service]) if driver is None else driver
    async with SimulatedNode() as node:
        plugged = node.plug("a.sock", FakePlugin("DRAPlugin", NAME, (service,), serves=[fake]))
        await node.settled()
        yield node, fake, node.supervisor.dra_driver(NAME), plugged


@pytest.mark.parametrize("service", ["v1.DRAPlugin", "v1beta1.DRAPlugin"])
async def test_the_devices_of_claims_are_prepared_and_let_go(autojump_clock: MockClock, service: str) -> None:
    """TestGRPCMethods, manager TestPrepareResources and TestUnprepareResources; both calls may be repeated."""
    async with running(service) as (_, fake, driver, _):
        prepared = await driver.prepare([ONE, TWO])
        assert await driver.prepare([ONE, TWO]) == prepared
        assert fake.prepared == {"uid-1": ONE, "uid-2": TWO}
        assert prepared["uid-1"] == (PreparedDevice(("gpu",), "pool-0", "gpu-0", ("example.com/gpu=train",)),)
        assert list(prepared) == ["uid-1", "uid-2"]
        for _ in range(2):
            await driver.unprepare([ONE])
            assert fake.prepared == {"uid-2": TWO}
        assert set(fake.services_called) == {service}


async def test_an_answer_of_very_many_devices_is_refused_unparsed(autojump_clock: MockClock) -> None:
    class Generous(FakeDRADriver):
        def devices_of(self, claim: DRAClaim) -> list[PreparedDevice]:
            return [PreparedDevice((), "", "", (), claim.uid)] * (40_000 if claim == TWO else 32)

    async with running(driver=Generous()) as (_, _, driver, _):
        devices = (await driver.prepare([ONE]))["uid-1"]
        assert [device.share_id for device in devices] == ["uid-1"] * 32
        with pytest.raises(DRACallError, match=f"is no valid .*at most {MAX_PER_CLAIM} are taken"):
            await driver.prepare([TWO])


@pytest.mark.parametrize(
    ("break_it", "kind", "text"),
    [
        (
            lambda fake: fake.errors.update({DRACall.PREPARE: GRPCError(Status.INTERNAL, "out of gpus")}),
            DRACallError,
            "NodePrepareResources: INTERNAL: out of gpus",
        ),
        (
            lambda fake: fake.hangs.add(DRACall.PREPARE),
            DRACallError,
            "NodePrepareResources: DEADLINE_EXCEEDED: no answer within 45 s",
        ),
        (
            lambda fake: fake.adds.add("uid-9"),
            DRAAnswerError,
            "NodePrepareResources returned result for unknown claim UID uid-9",
        ),
        (
            lambda fake: fake.claim_errors.update({"uid-2": "no such claim"}),
            DRAClaimError,
            "NodePrepareResources failed for ResourceClaim infer: no such claim",
        ),
        (
            lambda fake: fake.skips.update({"uid-1", "uid-2"}),
            DRAAnswerError,
            "NodePrepareResources skipped 2 ResourceClaims",
        ),
    ],
    ids=["refused", "timeout", "wrong claim UID", "an error of a claim", "empty result"],
)
async def test_what_goes_wrong_is_an_error_with_the_words_of_the_kubelet(
    autojump_clock: MockClock, break_it: Callable[[FakeDRADriver], object], kind: type[DRAError], text: str
) -> None:
    """TestGRPCMethods, TestGRPCWithTimeoutEnforced, manager TestPrepareResources (consumers C.4)."""
    async with running() as (_, fake, driver, _):
        break_it(fake)
        began = trio.current_time()
        with pytest.raises(kind) as caught:
            await driver.prepare([ONE, TWO])
        assert str(caught.value).startswith(text)
        assert trio.current_time() - began == (45.0 if "45 s" in text else 0.0)


async def test_a_name_without_a_driver_has_the_text_of_the_kubelet(autojump_clock: MockClock) -> None:
    """TestGetDRAPlugin; a driver may leave between two calls."""
    async with running() as (node, _, driver, plugged):
        for name, text in (("", "DRA driver name is empty"), ("x.io", "DRA driver x.io is not registered")):
            with pytest.raises(DRADriverUnknownError) as caught:
                node.supervisor.dra_driver(name)
            assert str(caught.value) == text
        plugged.stop()
        await node.settled()
        with pytest.raises(DRADriverUnknownError, match=f"DRA driver {NAME} is not registered"):
            await driver.prepare([ONE])


async def test_one_connection_serves_all_calls_and_is_usable_after_it_was_idle(autojump_clock: MockClock) -> None:
    """TestGRPCConnIsReused, TestGRPCConnUsableAfterIdle: 30 minutes (kubernetes issues 133920 and 133926)."""
    async with running() as (node, fake, driver, _):
        await driver.prepare([ONE])
        await trio.sleep(1801)
        await driver.prepare([TWO])
        assert (len(fake.prepared), len(node.network.linked)) == (2, 1)


async def test_a_call_connects_at_once_to_a_driver_that_is_back(autojump_clock: MockClock) -> None:
    """The e2e line "works after the service reconnects": the pause between tries is up to 30 s."""
    async with running() as (node, fake, driver, plugged):
        plugged.crash()
        await trio.sleep(70)
        why = "NodePrepareResources: no connection to the endpoint /plugins/a.sock: Connection refused"
        with pytest.raises(DRACallError) as caught:
            await driver.prepare([ONE])
        assert str(caught.value) == why
        plugged.listen()
        began = trio.current_time()
        await driver.prepare([ONE])
        assert (trio.current_time(), fake.prepared) == (began, {"uid-1": ONE})
        await trio.sleep(2)
        status = shown(node)
        # What follows the driver has taken the same connection.
        assert (dict(status.facts)["usable"], len(node.network.linked)) == ("yes, by 1 instance", 1)


async def test_calls_go_to_the_newest_connected_instance(autojump_clock: MockClock) -> None:
    """TestConnectionHandling; consumers C.2."""
    async with running() as (node, older, driver, _):
        newer = FakeDRADriver(["v1beta1.DRAPlugin"])
        await trio.sleep(1)
        plugged = node.plug("b.sock", FakePlugin("DRAPlugin", NAME, ("v1beta1.DRAPlugin",), serves=[newer]))
        await node.settled()
        await driver.prepare([ONE])
        plugged.crash()
        await trio.sleep(1)
        await driver.prepare([TWO])
        assert (older.prepared, newer.prepared) == ({"uid-2": TWO}, {"uid-1": ONE})


async def test_calls_side_by_side_do_not_disturb_each_other(autojump_clock: MockClock) -> None:
    """TestParallelPrepareUnprepareResources."""
    async with running() as (_, fake, driver, _):
        fake.delays = {DRACall.PREPARE: 1.0, DRACall.UNPREPARE: 0.5}
        done: list[str] = []

        async def prepare_and_let_go(number: int) -> None:
            claim = DRAClaim("default", f"uid-{number}", f"claim-{number}")
            prepared = await driver.prepare([claim])
            assert prepared[claim.uid][0].cdi_devices == (f"example.com/gpu=claim-{number}",)
            await driver.unprepare([claim])
            done.append(claim.uid)

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(prepare_and_let_go, number)
        assert (len(done), fake.prepared, trio.current_time() - began) == (50, {}, 1.5)
