"""A DRA driver whose follow crashes: its connection is the sign of life, and not the task that follows it.

Each test is a timeline in virtual time of a simulated node.
"""

from __future__ import annotations

from typing import NoReturn

import pytest
import trio
from trio.testing import MockClock

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.handlers.dra.health import HealthFollower
from plugind.actors.simulation.dra_drivers import USUAL_SERVICES, FakeDRADriver
from plugind.protocol.handlers.dra_claims import DRAClaim
from plugind.protocol.plugins.health import Health
from plugind.protocol.proto.health_v1_pb2 import HealthCheckRequest, HealthCheckResponse
from plugind.testing import FakePlugin, PluggedIn, SimulatedNode
from plugind.tests.actors.registration.timelines import shown

NAME = "gpu.example.com"
DEVICES = "v1.DRAResourceHealth"
CLAIM = DRAClaim("default", "uid-1", "train")


def plug(node: SimulatedNode, socket: str = "a.sock", driver: FakeDRADriver | None = None) -> PluggedIn:
    """Plug in an instance that tells the health of its devices."""
    serves = [FakeDRADriver((*USUAL_SERVICES, DEVICES)) if driver is None else driver]
    return node.plug(socket, FakePlugin("DRAPlugin", NAME, ("v1.DRAPlugin", DEVICES), serves=serves))


def usable(node: SimulatedNode, socket: str = "a.sock") -> str:
    return dict(shown(node, socket).facts)["usable"]


async def gone_at(node: SimulatedNode, socket: str = "a.sock") -> list[float]:
    """Return when it was said that the driver is gone."""
    plugins = (await node.snapshot()).plugins
    entries = [entry for plugin in plugins if plugin.socket == node.path(socket) for entry in plugin.history]
    return [entry.time for entry in entries if (entry.reason or "").startswith("driver-gone: ")]


@pytest.fixture
def _broken_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each follow raises as soon as it has a connection: it is started again after 1 s, 2 s and so on up to 30 s."""

    async def run(self: HealthFollower, channel: Channel) -> NoReturn:
        raise ValueError("lost the thread")

    monkeypatch.setattr(HealthFollower, "run", run)


@pytest.mark.usefixtures("_broken_follow")
async def test_a_driver_whose_follow_crashes_for_ever_is_connected_and_not_gone(autojump_clock: MockClock) -> None:
    """Consumers C.2 and C.3: the connection is there all the time, and carries calls."""
    driver = FakeDRADriver((*USUAL_SERVICES, DEVICES))
    async with SimulatedNode() as node:
        plug(node, driver=driver)
        for _ in range(30):
            await trio.sleep(20)
            assert (shown(node).active, usable(node)) == (True, "yes, by 1 instance")
        assert (await gone_at(node), node.state("a.sock"), len(node.network.linked)) == ([], "registered", 1)
        assert shown(node).health is Health.UNKNOWN
        assert (shown(node).health_reason or "").startswith("its handler failed to follow it: the handler broke: ")
        await node.supervisor.dra_driver(NAME).prepare([CLAIM])
        assert driver.prepared == {"uid-1": CLAIM}


@pytest.mark.usefixtures("_broken_follow")
async def test_the_end_of_a_connection_is_noticed_while_its_follow_does_not_run(autojump_clock: MockClock) -> None:
    """Consumers C.3: 30 s count from the end of the connection, and not from the next run of the follow."""
    async with SimulatedNode() as node:
        plugged = plug(node)
        await trio.sleep_until(100.5)
        plugged.crash()
        await trio.sleep_until(101.5)
        assert usable(node) == "no since 1970-01-01T00:01:40.500Z"
        reason = "no connection to the endpoint /plugins/a.sock: the peer closed the connection"
        assert (shown(node).health, shown(node).health_reason) == (Health.DISCONNECTED, reason)
        await trio.sleep_until(200)
        assert await gone_at(node) == [130.5]


class Babbling(FakeDRADriver):
    """A driver whose health service answers with a number that means nothing."""

    def serving_status(self, _: HealthCheckRequest) -> HealthCheckResponse:
        answer = HealthCheckResponse()
        answer.MergeFromString(b"\x08\x63")
        return answer


async def test_a_health_service_that_says_nonsense_is_no_crash(autojump_clock: MockClock) -> None:
    """Proposal 3: what is not SERVING is a failed check, whatever it is. Any driver may answer so."""
    async with SimulatedNode() as node:
        plug(node, driver=Babbling((*USUAL_SERVICES, DEVICES, "grpc.health.v1.Health")))
        await trio.sleep(90)
        assert (shown(node).health, shown(node).health_reason) == (Health.UNHEALTHY, "its health service says 99")
        await trio.sleep(600)
        assert (await gone_at(node), usable(node)) == ([], "yes, by 1 instance")
