"""A TCP port that listens: how fast it takes connections, and that its address can be used again."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

from plugind.actors.io.tcp_socket import BURST, RATE, RateLimit, listen
from plugind.protocol.status.metrics_config import TcpAddress
from plugind.tests.actors.io.exhaustion import leaving_no_descriptor

LOOPBACK = TcpAddress("127.0.0.1", 0)


async def test_after_a_burst_connections_are_accepted_at_a_steady_rate(autojump_clock: MockClock) -> None:
    """Whoever can connect would otherwise occupy the loop of the node with connections alone."""
    listener, times = listen(LOOPBACK), list[float]()
    async with AsyncExitStack() as stack:
        stack.callback(listener.close)
        for _ in range(BURST + 50):
            await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", listener.address.port))
        began = trio.current_time()
        for _ in range(BURST + 50):
            stack.callback((await listener.accept()).close)
            times.append(trio.current_time() - began)
    # The turns of the burst are added up, so that the last one may come by a rounding error later.
    wanted = [0.0] * BURST + [number / RATE for number in range(1, 51)]
    assert times == pytest.approx(wanted, abs=1e-9)


async def test_a_pause_gives_no_more_turns_than_the_burst(autojump_clock: MockClock) -> None:
    pace, times = RateLimit(10.0, 3), list[float]()
    for pause in (0.0, 100.0, 0.1):
        await trio.sleep(pause)
        began = trio.current_time()
        for _ in range(5):
            await pace.turn()
            times.append(round(trio.current_time() - began, 6))
    assert times == [0, 0, 0, 0.1, 0.2, 0, 0, 0, 0.1, 0.2, 0, 0.1, 0.2, 0.3, 0.4]


async def test_a_listener_leaves_nothing_and_its_port_is_free_at_once() -> None:
    with leaving_no_descriptor(lambda: listen(LOOPBACK)) as listener:
        # The side that closes first keeps the port for a minute.
        async with await trio.open_tcp_stream("127.0.0.1", listener.address.port) as client:
            (await listener.accept()).close()
            assert await client.receive_some() == b""
    again = listen(listener.address)
    assert again.address == listener.address
    again.close()
    again.close()
