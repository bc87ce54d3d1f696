"""The services for an agent of Nomad, as far as they have times. In virtual time."""

from __future__ import annotations

from typing import Any, cast

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.console.nomad_pool import NomadPool
from plugind.actors.console.nomad_services import Devices
from plugind.client import Client
from plugind.protocol.leases.values import Pool
from plugind.protocol.proto import nomad_device_pb2 as pb


@attrs.define
class Stream:
    """A call, and the times of the answers."""

    request: pb.StatsRequest
    sent: list[float] = attrs.field(factory=list)

    async def recv_message(self) -> pb.StatsRequest:
        await trio.lowlevel.checkpoint()
        return self.request

    async def send_message(self, _: pb.StatsResponse) -> None:
        self.sent.append(trio.current_time())
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    ("interval", "times"),
    [
        (pb.Duration(seconds=2, nanos=500_000_000), [0.0, 2.5]),
        # An agent that asks for no pause gets one.
        (pb.Duration(), [0.0, 1.0, 2.0, 3.0, 4.0]),
        (None, [0.0, 1.0, 2.0, 3.0, 4.0]),
        (pb.Duration(nanos=1), [0.0, 1.0, 2.0, 3.0, 4.0]),
        (pb.Duration(seconds=-5), [0.0, 1.0, 2.0, 3.0, 4.0]),
        (pb.Duration(seconds=2**63 - 1), [0.0]),
    ],
)
async def test_statistics_come_at_the_interval_that_is_asked_for_and_not_more_often_than_each_second(
    interval: pb.Duration | None, times: list[float], autojump_clock: MockClock
) -> None:
    stream = Stream(pb.StatsRequest(collection_interval=interval))
    began = trio.current_time()
    with trio.move_on_after(4.5):
        await Devices(NomadPool(Client("/absent"), [Pool("nomad", "example.com/gpu")])).Stats(cast(Any, stream))
    assert [when - began for when in stream.sent] == times
