"""Plugins that share a process answer one after the other, so a burst of dials must not exceed what it can answer."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import trio
from trio.testing import MockClock

from plugind.protocol.proto import pluginregistration_pb2 as api
from plugind.protocol.proto.pluginregistration_grpc import RegistrationBase
from plugind.testing import SimulatedNode

if TYPE_CHECKING:
    from grpclib.server import Stream

#: How many plugins there are, and how many of them their process can answer in a second.
PLUGINS, RATE = 300, 40


class SlowPlugin(RegistrationBase):
    """A plugin whose process answers one GetInfo at a time."""

    def __init__(self, name: str, process: trio.StrictFIFOLock, answered: Counter[str]) -> None:
        self._name = name
        self._process = process
        self._answered = answered

    async def GetInfo(  # noqa: N802 - the name in the .proto
        self, stream: Stream[api.InfoRequest, api.PluginInfo]
    ) -> None:
        await stream.recv_message()
        async with self._process:
            await trio.sleep(1 / RATE)
        self._answered[self._name] += 1
        await stream.send_message(
            api.PluginInfo(type="DRAPlugin", name=self._name, supported_versions=["v1.DRAPlugin"])
        )

    async def NotifyRegistrationStatus(  # noqa: N802
        self, stream: Stream[api.RegistrationStatus, api.RegistrationStatusResponse]
    ) -> None:
        await stream.recv_message()
        await stream.send_message(api.RegistrationStatusResponse())


async def test_a_burst_of_plugins_in_one_slow_process_is_registered_nearly_as_fast_as_it_answers(
    autojump_clock: MockClock,
) -> None:
    """All were dialed within half a second, most were late for their deadline of a second, and their retries were such
    bursts, too, with ever longer pauses: after 10 s 228 were registered, and all of them only after 22.8 s."""
    process, answered = trio.StrictFIFOLock(), Counter[str]()
    async with SimulatedNode() as node:
        for number in range(PLUGINS):
            node.plug(f"{number}.sock", [SlowPlugin(f"{number}.example.com", process, answered)])
        registered = []
        # Answers come at multiples of 25 ms: what is counted then must not depend on the order within an instant. From
        # 7.1 to 7.8 s it depends on the seed by which Trio orders tasks, since the last plugins are tried then.
        for time in (1.01, 7.01, 10.01):
            await trio.sleep_until(time)
            registered.append(sum(status.state == "registered" for status in node.statuses.values()))
    assert registered == [39, 260, 300]
    # Few were dialed in vain once the first late answers had come.
    assert answered.total() == 314
