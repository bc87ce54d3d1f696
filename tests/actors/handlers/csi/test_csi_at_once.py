"""The calls by which a CSI driver is registered, made at once: drivers answer in any order, late, wrongly or never."""

from __future__ import annotations

import itertools
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import attrs
import pytest
import trio
from google.protobuf.message import Message
from trio.testing import MockClock

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.handlers.csi.driver import DriverCalls, Said
from plugind.actors.simulation.streams import ServerEnd, memory_connection
from plugind.protocol.errors import PluginError, ValidationError
from plugind.protocol.handlers.csi import NodeInfo, NotKnown
from plugind.protocol.messages.consumers import CallEnded
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.proto import csi_v1_pb2 as api
from plugind.protocol.wire.errors import ErrorCode
from plugind.protocol.wire.frames import HEADERS, RST_STREAM, SETTINGS, frame
from plugind.protocol.wire.limits import ENDPOINT_LIMITS
from plugind.tests.wire.hostile import HELLO, answer, fields, trailers

NAME = "csi.example.com"
PLUGIN = Plugin("CSIPlugin", NAME, "/plugins/a.sock", ("1.0.0",), "/plugins/a.sock", 1)
METHODS = ("GetPluginInfo", "GetPluginCapabilities", "NodeGetCapabilities", "NodeGetInfo")
#: The numbers of the streams of these calls.
STREAMS = (1, 3, 5, 7)
ANSWERS: tuple[Message, ...] = (
    api.GetPluginInfoResponse(name=NAME, vendor_version="2.1"),
    api.GetPluginCapabilitiesResponse(capabilities=[{"service": {"type": "CONTROLLER_SERVICE"}}]),
    api.NodeGetCapabilitiesResponse(capabilities=[{"rpc": {"type": "EXPAND_VOLUME"}}]),
    api.NodeGetInfoResponse(node_id="node-7", max_volumes_per_node=16),
)
SAID = Said("2.1", ("CONTROLLER_SERVICE",), ("EXPAND_VOLUME",), NodeInfo("node-7", 16))
SILENT = NotKnown("no answer within 5 s")


def answers(*numbers: int) -> bytes:
    """Return what a driver answers to these calls, by their places."""
    return b"".join(answer(STREAMS[number], ANSWERS[number].SerializeToString()) for number in numbers)


def fails(number: int, status: int = 14, text: str = "starting") -> bytes:
    """Return the answer of a call that fails."""
    block = fields(
        (":status", "200"), ("content-type", "application/grpc"), ("grpc-status", str(status)), ("grpc-message", text)
    )
    return trailers(STREAMS[number], block)


def resets(stream: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def at_most(calls: int) -> bytes:
    """Return the SETTINGS of a server that takes so many calls at once."""
    return frame(SETTINGS, 0, 0, struct.pack(">HI", 3, calls))


@attrs.define
class Asked:
    """A driver that is asked, what it heard, and what came of it."""

    theirs: ServerEnd
    channel: Channel
    said: Said | None = None
    error: PluginError | None = None
    #: When the calls had ended, and each of them as it was counted.
    time: float | None = None
    counted: list[CallEnded] = attrs.field(factory=list)
    heard: bytearray = attrs.field(factory=bytearray)
    ended: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    @property
    def frames(self) -> list[tuple[int, int, bytes]]:
        """Kind, stream and payload of each frame that was heard."""
        heard, found = bytes(self.heard).removeprefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), []
        while heard:
            size = int.from_bytes(heard[:3], "big")
            found.append((heard[3], int.from_bytes(heard[5:9], "big"), heard[9 : 9 + size]))
            heard = heard[9 + size :]
        return found

    @property
    def reset(self) -> list[int]:
        """The streams that were reset, each with CANCEL."""
        found = [(stream, payload) for kind, stream, payload in self.frames if kind == RST_STREAM]
        assert all(payload == struct.pack(">I", ErrorCode.CANCEL) for _, payload in found)
        return [stream for stream, _ in found]

    @property
    def calls(self) -> list[tuple[str, str, float]]:
        """The calls as they were counted: method, code and seconds."""
        return [(call.method.rpartition("/")[2], call.code, round(call.seconds, 6)) for call in self.counted]

    @property
    def begun(self) -> list[int]:
        """The streams of the requests."""
        return [stream for kind, stream, _ in self.frames if kind == HEADERS]

    async def ask(self) -> None:
        began = trio.current_time()
        try:
            with self.scope:
                self.said = await DriverCalls(PLUGIN, self.counted.append).ask(self.channel)
        except PluginError as error:
            self.error = error
        finally:
            self.time = round(trio.current_time() - began, 6)
            self.ended.set()

    async def read(self) -> None:
        """Read the connection, as the task of a link does."""
        with suppress(trio.ClosedResourceError):
            await self.channel.wait_closed()

    async def hear(self) -> None:
        while data := await self.theirs.receive_some():
            self.heard += data


@asynccontextmanager
async def asked(*, is_read: bool = False) -> AsyncIterator[Asked]:
    """Ask a driver in the background."""
    made = memory_connection()
    conversation = Asked(made.server, Channel(made.client, limits=ENDPOINT_LIMITS))
    async with trio.open_nursery() as nursery:
        if is_read:
            nursery.start_soon(conversation.read)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(conversation.ask)
        nursery.start_soon(conversation.hear)
        yield conversation
        nursery.cancel_scope.cancel()


async def play(*script: tuple[float, bytes], is_read: bool = False) -> Asked:
    """Ask a driver that sends each of these at its time, and hangs up when ``b""`` is due."""
    async with asked(is_read=is_read) as conversation:
        for time, data in script:
            await trio.sleep_until(time)
            if data:
                await conversation.theirs.send_all(data)
            else:
                conversation.theirs.half_close()
        await conversation.ended.wait()
        await trio.sleep(0.01)
    return conversation


reading = pytest.mark.parametrize("is_read", [False, True], ids=["alone", "read by another task"])


@reading
async def test_a_driver_may_answer_one_call_at_a_time_in_any_order(is_read: bool, autojump_clock: MockClock) -> None:
    """Each answer takes nearly as long as it may. It counts how long each call was under way."""
    for order in itertools.permutations(range(4)):
        began = trio.current_time()
        script = [(began + 4.9 * place, answers(number)) for place, number in enumerate(order, 1)]
        conversation = await play((began, HELLO), *script, is_read=is_read)
        assert (conversation.said, conversation.error, conversation.time) == (SAID, None, 19.6), order
        assert conversation.calls == [(METHODS[n], "OK", round(4.9 * (order.index(n) + 1), 6)) for n in range(4)], order


#: Which calls are never answered, when that has an end, and what comes of it.
HANGING: list[tuple[tuple[int, ...], float, Said | str]] = [
    ((0,), 5.0, f'failed to get GetPluginInfo from driver "{NAME}": no answer within 5 s'),
    ((1,), 5.0, attrs.evolve(SAID, of_driver=SILENT)),
    ((2,), 5.0, attrs.evolve(SAID, of_node=SILENT)),
    ((1, 2), 10.0, attrs.evolve(SAID, of_driver=SILENT, of_node=SILENT)),
    ((3,), 120.0, f'failed to get NodeGetInfo from driver "{NAME}": no answer within 120 s'),
    ((1, 3), 125.0, f'failed to get NodeGetInfo from driver "{NAME}": no answer within 120 s'),
    ((0, 1, 2, 3), 5.0, f'failed to get GetPluginInfo from driver "{NAME}": no answer within 5 s'),
]


@reading
@pytest.mark.parametrize(("hanging", "time", "result"), HANGING, ids=[str(row[0]) for row in HANGING])
async def test_a_call_that_is_never_answered_ends_as_if_it_were_made_alone(
    hanging: Sequence[int], time: float, result: Said | str, is_read: bool, autojump_clock: MockClock
) -> None:
    others = [number for number in range(4) if number not in hanging]
    conversation = await play((0.0, HELLO + answers(*others)), is_read=is_read)
    assert (conversation.said or str(conversation.error)) == result
    assert conversation.time == time
    assert sorted(conversation.reset) == [STREAMS[number] for number in hanging]
    first = hanging[0]
    codes = {code for method, code, _ in conversation.calls if method == METHODS[first]}
    assert codes == {"DEADLINE_EXCEEDED"}
    assert [(method, code) for method, code, _ in conversation.calls if code == "OK"] == [
        (METHODS[number], "OK") for number in others
    ]


@reading
async def test_each_call_that_fails_ends_as_if_it_were_made_alone(is_read: bool, autojump_clock: MockClock) -> None:
    unknown = NotKnown("UNAVAILABLE: starting")
    results: list[Said | str] = [
        f'failed to get GetPluginInfo from driver "{NAME}": UNAVAILABLE: starting',
        attrs.evolve(SAID, of_driver=unknown),
        attrs.evolve(SAID, of_node=unknown),
        f'failed to get NodeGetInfo from driver "{NAME}": UNAVAILABLE: starting',
    ]
    for number, result in enumerate(results):
        others = [other for other in range(4) if other != number]
        began = trio.current_time()
        conversation = await play((began, HELLO + fails(number)), (began + 1.0, answers(*others)), is_read=is_read)
        assert (conversation.said or str(conversation.error)) == result
        assert {method: code for method, code, _ in conversation.calls}[METHODS[number]] == "UNAVAILABLE"


async def test_the_first_answer_decides_before_all_others(autojump_clock: MockClock) -> None:
    """A driver with another name is refused for that, whatever else it says, and what it has not said is given up."""
    other = answer(1, api.GetPluginInfoResponse(name="other").SerializeToString())
    conversation = await play((0.0, HELLO + fails(3) + answers(1)), (3.0, other))
    assert isinstance(conversation.error, ValidationError)
    assert str(conversation.error) == f'the driver at /plugins/a.sock calls itself "other", its registrar "{NAME}"'
    assert (conversation.time, conversation.reset) == (3.0, [5])
    assert conversation.calls == [
        ("GetPluginInfo", "OK", 3.0),
        ("GetPluginCapabilities", "OK", 0.0),
        ("NodeGetCapabilities", "CANCELLED", 3.0),
        ("NodeGetInfo", "UNAVAILABLE", 0.0),
    ]


@reading
@pytest.mark.parametrize("answered", range(4))
async def test_a_connection_that_ends_in_between_ends_all_calls_that_are_left(
    answered: int, is_read: bool, autojump_clock: MockClock
) -> None:
    conversation = await play((0.0, HELLO + answers(*range(answered))), (1.0, b""), is_read=is_read)
    failed = METHODS[0] if answered == 0 else METHODS[3]
    assert str(conversation.error) == (
        f'failed to get {failed} from driver "{NAME}": UNAVAILABLE: the peer closed the connection'
    )
    assert conversation.time == 1.0
    assert conversation.calls == [
        (method, "OK", 0.0) if number < answered else (method, "UNAVAILABLE", 1.0)
        for number, method in enumerate(METHODS)
    ]


@reading
@pytest.mark.parametrize("answered", range(4))
async def test_calls_that_are_cancelled_in_between_are_reset_and_counted(
    answered: int, is_read: bool, autojump_clock: MockClock
) -> None:
    """A Register whose socket went: the driver is to stop its work."""
    async with asked(is_read=is_read) as conversation:
        await conversation.theirs.send_all(HELLO + answers(*range(answered)))
        await trio.sleep(2)
        conversation.scope.cancel()
        await trio.sleep(0.01)
    assert (conversation.said, conversation.error, conversation.reset) == (None, None, list(STREAMS[answered:]))
    assert conversation.calls == [
        (method, "OK", 0.0) if number < answered else (method, "CANCELLED", 2.0)
        for number, method in enumerate(METHODS)
    ]


@reading
@pytest.mark.parametrize("code", [ErrorCode.REFUSED_STREAM, ErrorCode.PROTOCOL_ERROR], ids=lambda code: code.name)
async def test_a_driver_that_takes_one_call_at_a_time_is_asked_the_others_in_turn(
    code: ErrorCode, is_read: bool, autojump_clock: MockClock
) -> None:
    """It says its limit after the requests came, and refuses those that are too many (RFC 9113 section 5.1.2)."""
    async with asked(is_read=is_read) as conversation:
        await conversation.theirs.send_all(at_most(1) + b"".join(resets(stream, code) for stream in STREAMS[1:]))
        for number, stream in enumerate((1, 9, 11, 13)):
            await trio.sleep(4)
            assert conversation.begun == [*STREAMS, 9, 11, 13][: 4 + number]
            await conversation.theirs.send_all(answer(stream, ANSWERS[number].SerializeToString()))
        await trio.sleep(0.01)
    assert (conversation.said, conversation.error, conversation.reset, conversation.time) == (SAID, None, [], 16.0)
    assert conversation.calls == [(method, "OK", 4.0) for method in METHODS]
