"""A channel whose calls are made by their bytes is, for the plugin and for the caller, the same as any other."""

import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import pytest
import trio
import trio.testing
from google.protobuf.message import Message
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.grpc.client.registration_channel import RegistrationChannel
from plugind.actors.grpc.client.transport import Transport
from plugind.actors.grpc.client.turns import Shared
from plugind.actors.simulation.streams import ClientEnd, memory_connection
from plugind.protocol.proto.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from plugind.protocol.wire.errors import WireError, WireProblem
from plugind.protocol.wire.frames import RST_STREAM, SETTINGS_ACK, frame
from plugind.protocol.wire.learning import KnownConversations
from plugind.protocol.wire.limits import REGISTRATION_LIMITS
from plugind.tests.tools.fuzz_wire import mutate
from plugind.tests.tools.known_streams import GET_INFO, NOTIFY, answers, cut
from plugind.tests.wire.hostile import HELLO, INFO, answer, data, headers, message, trailers, warm

Make = Callable[[Transport], Channel | RegistrationChannel]
CALLS: tuple[tuple[str, Message, type[Message]], ...] = (
    (GET_INFO[0], InfoRequest(), PluginInfo),
    (NOTIFY[0], RegistrationStatus(plugin_registered=True), RegistrationStatusResponse),
)
RESET = frame(RST_STREAM, 0, 1, b"\0\0\0\x08")


def by_machine(transport: Transport, shared: Shared | None = None) -> Channel:
    return Channel(transport, limits=REGISTRATION_LIMITS, shared=shared)


def by_bytes(
    transport: Transport, conversations: KnownConversations, shared: Shared | None = None
) -> RegistrationChannel:
    return RegistrationChannel(transport, conversations, shared=shared)


class Talk:
    """A conversation over a connection in memory; what the plugin hears is in ``heard``."""

    def __init__(self, make: Make, nursery: trio.Nursery) -> None:
        made = memory_connection()
        self.server = made.server
        self.channel = make(made.client)
        self.heard = bytearray()
        self.results: list[object] = []
        nursery.start_soon(self._hear)

    async def _hear(self) -> None:
        while part := await self.server.receive_some():
            self.heard += part

    async def call(self, path: str, request: Message, reply_type: type[Message]) -> None:
        try:
            self.results.append(await self.channel.unary(path, request, reply_type))
        except GRPCError as error:
            cause = error.__cause__
            self.results.append((error.args[:2], cause.problem if isinstance(cause, WireError) else None))
        except trio.ClosedResourceError as error:
            self.results.append(type(error))

    async def lead(self, parts: Iterable[Iterable[bytes]]) -> None:
        """Make the calls, each of which gets its answer in pieces, and cancel a call that has not ended then."""
        for call, pieces in zip(CALLS, parts, strict=False):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.call, *call)
                for piece in pieces:
                    await trio.testing.wait_all_tasks_blocked()
                    await self.server.send_all(piece)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            if len(self.results) < CALLS.index(call) + 1:
                self.results.append("cancelled")
            await trio.testing.wait_all_tasks_blocked()
            self.results.append(bytes(self.heard))


async def led(make: Make, *parts: Sequence[bytes]) -> tuple[list[object], Channel | RegistrationChannel]:
    """Lead a conversation, and return how each call ended and what the plugin had heard by then."""
    async with trio.open_nursery() as nursery:
        talk = Talk(make, nursery)
        await talk.lead(parts)
        talk.channel.close()
        nursery.cancel_scope.cancel()
    return talk.results, talk.channel


@pytest.mark.parametrize("seed", range(40))
async def test_both_channels_do_the_same(seed: int) -> None:
    """Faults 52 to 70, whatever the plugin says, and in whichever pieces."""
    chance, conversations = random.Random(seed), warm()
    for _ in range(6):
        parts = [list(cut(frames, chance)) for frames in answers(chance)]
        if chance.random() < 0.3:
            number = chance.randrange(2)
            parts[number] = list(cut([mutate(b"".join(parts[number]), chance)], chance))
        assert (await led(partial(by_bytes, conversations=conversations), *parts))[0] == (
            await led(by_machine, *parts)
        )[0]


async def test_a_call_that_is_cancelled_is_reset() -> None:
    """Fault 32: the plugin need not go on with it."""
    for said in ([], [HELLO], [HELLO + headers(1)], [HELLO + headers(1) + data(1, message(b""))]):
        results, _ = await led(partial(by_bytes, conversations=warm()), said)
        expected = SETTINGS_ACK * bool(said) + RESET
        assert results[0] == "cancelled"
        assert isinstance(results[1], bytes)
        assert results[1].endswith(expected)


@pytest.mark.parametrize("end", [trailers(1), b""], ids=["at once", "before its trailers"])
async def test_an_answer_that_cannot_be_read_ends_the_call_at_once(end: bytes) -> None:
    """Fault 72: also while its trailers are not there."""
    said = HELLO + headers(1) + data(1, message(b"\xff\xff")) + end
    (result, heard), _ = await led(partial(by_bytes, conversations=warm()), [said])
    assert isinstance(result, tuple)
    assert result[0][0] is Status.INTERNAL
    assert result[0][1].startswith("the response is no valid PluginInfo: ")
    assert [result, heard] == (await led(by_machine, [said]))[0]


async def test_a_message_that_waits_for_its_trailers_is_on_the_account_of_the_node() -> None:
    """Fault 65."""
    said = HELLO + headers(1) + data(1, message(INFO.SerializeToString()))
    size = len(message(INFO.SerializeToString()))
    for make in (by_machine, partial(by_bytes, conversations=warm())):
        shared = Shared(size)
        async with trio.open_nursery() as nursery:
            talk = Talk(partial(make, shared=shared), nursery)
            nursery.start_soon(talk.call, *CALLS[0])
            await talk.server.send_all(said)
            await trio.testing.wait_all_tasks_blocked()
            assert shared.unparsed.kept == size
            await talk.server.send_all(trailers(1))
            await trio.testing.wait_all_tasks_blocked()
            assert (shared.unparsed.kept, talk.results) == (0, [INFO])
            nursery.cancel_scope.cancel()
        (result, _), _ = await led(partial(make, shared=Shared(size - 1)), [said])
        assert isinstance(result, tuple)
        assert result[1] is WireProblem.UNPARSED_BYTES


async def test_a_message_that_waits_when_the_channel_is_closed_is_off_the_account() -> None:
    """Fault 65."""
    shared = Shared(1000)
    async with trio.open_nursery() as nursery:
        talk = Talk(partial(by_bytes, conversations=warm(), shared=shared), nursery)
        nursery.start_soon(talk.call, *CALLS[0])
        await talk.server.send_all(HELLO + headers(1) + data(1, message(INFO.SerializeToString())))
        await trio.testing.wait_all_tasks_blocked()
        assert shared.unparsed.kept
        talk.channel.close()
        assert not shared.unparsed.kept
        await trio.testing.wait_all_tasks_blocked()
        assert talk.results == [trio.ClosedResourceError]
        await talk.call(*CALLS[0])
        assert talk.results == [trio.ClosedResourceError] * 2
        nursery.cancel_scope.cancel()


class Narrow:
    """A transport that takes a few bytes at a time."""

    def __init__(self, end: ClientEnd, most: int) -> None:
        self._end = end
        self._most = most
        self.read_bytes = end.read_bytes

    def send(self, data: bytes | bytearray) -> int:
        return self._end.send(data[: self._most])

    async def receive(self, *, unsent: bool) -> bytes | None:
        if unsent:
            await trio.lowlevel.checkpoint()
            return None
        return await self._end.receive(unsent=unsent)

    def receive_now(self) -> bytes | None:
        return self._end.receive_now()

    def expect_nothing(self) -> None:
        self._end.expect_nothing()

    def is_unread(self) -> bool:
        return self._end.is_unread()

    def wake(self) -> None:
        self._end.wake()

    def close(self) -> None:
        self._end.close()


@pytest.mark.parametrize("most", [1, 40, 150])
async def test_a_request_is_sent_in_as_many_pieces_as_the_socket_takes(most: int) -> None:
    """Fault 62: a plugin that does not read."""

    def narrow(make: Make) -> Make:
        def made(transport: Transport) -> Channel | RegistrationChannel:
            assert isinstance(transport, ClientEnd)
            return make(Narrow(transport, most))

        return made

    parts = [HELLO + answer(1)], [answer(3)]
    assert (await led(narrow(partial(by_bytes, conversations=warm())), *parts))[0] == (
        await led(narrow(by_machine), *parts)
    )[0]


async def test_a_flooder_says_so_though_the_first_of_what_it_said_was_known() -> None:
    """Fault 56: whoever registers it gives its slot back then."""
    async with trio.open_nursery() as nursery:
        talk = Talk(partial(by_bytes, conversations=warm()), nursery)
        used_up = list[None]()
        talk.channel.on_used_up = lambda: used_up.append(None)
        nursery.start_soon(talk.call, *CALLS[0])
        await talk.server.send_all(HELLO + headers(1))
        await trio.testing.wait_all_tasks_blocked()
        await talk.server.send_all(data(1, b"\0\0\0\xff\xff") + data(1, b"x") * 200)
        await trio.testing.wait_all_tasks_blocked()
        assert used_up
        nursery.cancel_scope.cancel()


def nothing() -> None:
    """What a patient call is given that does not care."""


@pytest.mark.parametrize("was_learnt", [True, False])
async def test_a_patient_call_goes_on_after_its_wait_was_cancelled(was_learnt: bool) -> None:
    """Fault 32: nothing is sent twice, and the answer is that to the first request."""
    conversations = warm() if was_learnt else KnownConversations()
    made, heard = memory_connection(), list[str]()
    channel = by_bytes(made.client, conversations)
    for _ in range(3):
        with trio.move_on_after(0):
            await channel.patient_unary(*CALLS[0], lambda: heard.append("heard"))
        assert channel.is_idle()
    said = await made.server.receive_some()
    assert not channel.is_idle()
    await made.server.send_all(HELLO + answer(1))
    assert await channel.patient_unary(*CALLS[0], lambda: heard.append("heard")) == INFO
    # What has ended by then needs no other deadline; what is not known may go on.
    assert heard == ([] if was_learnt else ["heard"])
    assert said.count(b"PRI * HTTP/2.0") == 1
    assert RESET not in said
    assert len(conversations) > 0


async def test_a_patient_call_is_told_of_the_first_byte_once(autojump_clock: trio.testing.MockClock) -> None:
    made, heard = memory_connection(), list[float]()
    channel = by_bytes(made.client, warm())

    async def answer_late() -> None:
        await made.server.receive_some()
        for part in (HELLO, answer(1)[:9], answer(1)[9:]):
            await trio.sleep(1.0)
            await made.server.send_all(part)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_late)
        with trio.move_on_after(0.5):
            await channel.patient_unary(*CALLS[0], lambda: heard.append(trio.current_time()))
        assert await channel.patient_unary(*CALLS[0], lambda: heard.append(trio.current_time())) == INFO
    assert heard == [1.0]


@pytest.mark.parametrize("first", [HELLO, HELLO[:5]])
async def test_a_patient_call_whose_peer_has_spoken_is_reset_when_it_is_cancelled(first: bytes) -> None:
    async with trio.open_nursery() as nursery:
        talk = Talk(partial(by_bytes, conversations=warm()), nursery)
        assert isinstance(talk.channel, RegistrationChannel)
        await talk.server.send_all(first)
        async with trio.open_nursery() as calling:
            calling.start_soon(talk.channel.patient_unary, *CALLS[0], nothing)
            await trio.testing.wait_all_tasks_blocked()
            calling.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert RESET in talk.heard
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("then", ["close", "call"])
async def test_a_patient_call_that_is_given_up_is_reset(then: str) -> None:
    async with trio.open_nursery() as nursery:
        talk = Talk(partial(by_bytes, conversations=warm()), nursery)
        assert isinstance(talk.channel, RegistrationChannel)
        with trio.move_on_after(0):
            await talk.channel.patient_unary(*CALLS[0], nothing)
        await trio.testing.wait_all_tasks_blocked()
        assert RESET not in talk.heard
        if then == "close":
            talk.channel.close()
        else:
            nursery.start_soon(talk.call, *CALLS[1])
        await trio.testing.wait_all_tasks_blocked()
        assert RESET in talk.heard
        nursery.cancel_scope.cancel()


async def test_a_patient_call_that_is_closed_while_nothing_is_read_raises() -> None:
    made = memory_connection()
    channel = by_bytes(made.client, warm())
    async with trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await channel.patient_unary(*CALLS[0], nothing)

        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        assert channel.is_idle()
        channel.close()
        assert not channel.is_idle()
    with pytest.raises(trio.ClosedResourceError):
        await channel.patient_unary(*CALLS[0], nothing)
