"""What a test of a plugin or a handler says when it fails: it ends, and it says why."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock

from plugind import PluginError
from plugind.actors.simulation.plugins import AsyncioServiceError
from plugind.protocol.proto.pluginregistration_grpc import RegistrationBase
from plugind.testing import Fails, FakeHandler, FakePlugin, SimulatedNode, WaitFailedError

if TYPE_CHECKING:
    from grpclib.server import Stream

    from plugind.protocol.proto.pluginregistration_pb2 import (
        InfoRequest,
        PluginInfo,
        RegistrationStatus,
        RegistrationStatusResponse,
    )


async def test_a_wait_for_a_plugin_that_is_refused_ends_and_says_what_it_was_told(autojump_clock: MockClock) -> None:
    handler = FakeHandler().always("validate", Fails(PluginError("not today")))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red"))
        with pytest.raises(WaitFailedError) as raised:
            await node.wait_for("red", timeout=0.2)
    refused = "RegisterPlugin error -- plugin validation failed with err: not today"
    assert str(raised.value).splitlines() == [
        "red is not registered after 0.2 s",
        f"  /plugins/a.sock is waiting (attempt 1): {refused}; it is tried again at 0.5 s",
        "    at 0 s it was called: GetInfo: answered",
        f"    at 0 s it was called: NotifyRegistrationStatus(registered=False, error={refused!r}): answered",
    ]


async def test_a_wait_for_what_is_not_there_names_what_is(autojump_clock: MockClock) -> None:
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red"))
        with pytest.raises(
            WaitFailedError,
            match=r"blue is not registered after 600 s\n  /plugins/a.sock is registered \(attempt 1\)\n",
        ):
            await node.wait_for("blue")
        with pytest.raises(WaitFailedError, match=r"/plugins/b.sock is not registered after 5 s\n  /plugins/a.sock"):
            await node.registered("b.sock", timeout=5.0)
        assert trio.current_time() == 605.0


class Breaks(FakeHandler):
    """Breaks in Register, each time with other words."""

    tries = 0

    async def register(self, plugin: object) -> None:
        self.tries += 1
        raise KeyError(f"try {self.tries}")


@pytest.mark.parametrize("wait", ["wait_for", "registered"])
@pytest.mark.parametrize("level", [logging.NOTSET, logging.CRITICAL + 1], ids=["logged", "not-logged"])
async def test_a_wait_that_fails_has_the_last_traceback_of_the_handler_of_that_plugin(
    wait: str, level: int, autojump_clock: MockClock
) -> None:
    log = logging.Logger("ours", level)
    async with SimulatedNode(handlers={"Colour": Breaks(), "Other": Breaks()}, log=log) as node:
        node.plug("a.sock", FakePlugin("Colour", "red"))
        await trio.sleep(0.1)
        node.plug("b.sock", FakePlugin("Other", "blue"))
        with pytest.raises(WaitFailedError) as raised:
            await (node.wait_for("red", timeout=0.6) if wait == "wait_for" else node.registered("a.sock", timeout=0.6))
    text = str(raised.value)
    assert "  at 0.5 s the handler broke in register of /plugins/a.sock:\nTraceback" in text
    assert text.count("Traceback (most recent call last)") == 1
    assert "in register\n" in text
    assert text.endswith("KeyError: 'try 2'\n")


async def test_a_node_that_does_not_settle_says_why_with_the_traceback(autojump_clock: MockClock) -> None:
    async with SimulatedNode(handlers={"Colour": Breaks()}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red"))
        with pytest.raises(WaitFailedError) as raised:
            await node.settled(timeout=0.6)
    first, status, *calls = str(raised.value).splitlines()
    assert first == "after 0.6 s: /plugins/a.sock is waiting"
    assert status.startswith("  /plugins/a.sock is waiting (attempt 2): ")
    assert calls[0] == "    at 0 s it was called: GetInfo: answered"
    assert calls[-1] == "KeyError: 'try 2'"


async def test_a_wait_of_the_supervisor_ends_with_its_timeout(autojump_clock: MockClock) -> None:
    handler = FakeHandler().always("validate", Fails(PluginError("not today")))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red"))
        with pytest.raises(
            trio.TooSlowError, match=r"'red' is not registered after 7 s: /plugins/a.sock is \w+: .*today"
        ):
            await node.supervisor.wait_for("red", timeout=7)
        assert trio.current_time() == 7.0
        with pytest.raises(trio.TooSlowError, match="'blue' is not registered after 1 s: no plugin of that name is"):
            await node.supervisor.wait_for("blue", timeout=1)


@pytest.mark.parametrize("end", [SimulatedNode.stop, SimulatedNode.kill])
async def test_a_node_whose_block_was_not_entered_cannot_be_ended(
    end: Callable[[SimulatedNode], Awaitable[None]], autojump_clock: MockClock
) -> None:
    with trio.fail_after(1), pytest.raises(RuntimeError, match="the daemon does not run: the block of the node was"):
        await end(SimulatedNode())


@pytest.mark.parametrize(
    ("make_node", "logger"),
    [(SimulatedNode, "plugind"), (partial(SimulatedNode, log=logging.getLogger("ours")), "ours")],
    ids=["default", "ours"],
)
async def test_the_traceback_of_a_handler_is_in_the_standard_log(
    make_node: Callable[..., SimulatedNode], logger: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """pytest shows the log of a test that fails."""

    class Broken(FakeHandler):
        async def register(self, plugin: object) -> None:
            raise KeyError("missing")

    async with make_node(handlers={"Colour": Broken()}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red"))
        await node.settled()
    (record,) = [record for record in caplog.records if "Traceback" in record.getMessage()][:1]
    assert (record.name, record.levelno) == (logger, logging.ERROR)
    assert "in register\n" in record.getMessage()
    assert record.getMessage().endswith("KeyError: 'missing'\n")


async def sleeps() -> None:
    await asyncio.sleep(1)


async def waits_for_a_future() -> None:
    loop = asyncio.new_event_loop()
    try:
        await loop.create_future()
    finally:
        loop.close()


async def waits_for_a_queue() -> None:
    await asyncio.Queue[int]().get()


async def sleeps_in_a_nursery() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeps)


WAITS = [sleeps, waits_for_a_future, waits_for_a_queue, sleeps_in_a_nursery]


@pytest.mark.parametrize("waits", WAITS)
async def test_a_handler_that_uses_asyncio_is_told_what_to_do_and_has_one_traceback(
    waits: Callable[[], Awaitable[None]], autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The handler breaks at each retry, and its deregister after that: two calls, and two tracebacks in an hour."""

    class OfAsyncio(FakeHandler):
        async def register(self, plugin: object) -> None:
            await waits()

        async def deregister(self, plugin: object) -> None:
            raise KeyError("missing")

    async with SimulatedNode(handlers={"Colour": OfAsyncio()}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red"))
        with pytest.raises(WaitFailedError) as raised:
            await node.wait_for("red")
    text = str(raised.value)
    assert "a handler runs on Trio: use trio or anyio in the place of asyncio" in text
    assert text.endswith("KeyError: 'missing'\n")
    broke = [record.getMessage() for record in caplog.records if record.getMessage().startswith("handler broke")]
    assert len(broke) == 24
    assert len([message for message in broke if "\n" in message]) == 2


@pytest.mark.parametrize("answers", WAITS)
async def test_a_service_that_uses_asyncio_fails_the_test_and_says_what_to_do(
    answers: Callable[[], Awaitable[None]], autojump_clock: MockClock
) -> None:
    class OfAsyncio(RegistrationBase):
        async def GetInfo(self, stream: Stream[InfoRequest, PluginInfo]) -> None:  # noqa: N802 - the name in the .proto
            await answers()

        async def NotifyRegistrationStatus(  # noqa: N802 - the name in the .proto
            self, stream: Stream[RegistrationStatus, RegistrationStatusResponse]
        ) -> None:
            raise NotImplementedError

    async def play() -> None:
        async with SimulatedNode() as node:
            node.plug("a.sock", OfAsyncio())
            await node.registered("a.sock")

    with pytest.raises(AsyncioServiceError, match="GetInfo uses asyncio, which does not run in a simulated node"):
        await play()
