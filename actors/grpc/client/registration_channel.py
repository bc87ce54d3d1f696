"""The channel of one registration, whose calls are sent and answered as known bytes as long as the plugin answers so.

A ``RegistrationChannel`` follows a ``KnownConversation``. When an answer or a request is not known, a :class:`Channel`
takes over in the state that it would have; the plugin and the caller see no difference. When a call of that channel has
succeeded, its bytes are remembered with those of the calls before it.

A plugin that has bound its socket and does not serve yet is silent for seconds. A caller can cancel its wait for such a
plugin, and resume it (:meth:`RegistrationChannel.patient_unary`).
"""

from collections.abc import Callable

import trio
from google.protobuf.message import DecodeError
from grpclib.const import Cardinality
from grpclib.exceptions import GRPCError

from ....protocol.wire.conversation import KnownConversation, Request, bytes_heard, replay
from ....protocol.wire.learning import MAX_BYTES, KnownConversations
from ....protocol.wire.responses import PREFIX_BYTES
from ...io.unix_socket import Credentials
from .channel import Channel, the_answer
from .stream import CANCELLED, RecvT, SendT, undecodable
from .transport import Transport
from .turns import Shared


class RegistrationChannel:
    """One connection to a plugin, for successive calls."""

    __slots__ = (
        "_channel",
        "_conversation",
        "_conversations",
        "_kept",
        "_on_heard",
        "_shared",
        "_transport",
        "_waits",
        "closed",
        "on_used_up",
        "peer",
    )

    def __init__(
        self,
        transport: Transport,
        conversations: KnownConversations,
        *,
        peer: Credentials | None = None,
        shared: Shared | None = None,
    ) -> None:
        self._transport = transport
        self._conversations = conversations
        self._shared = shared
        self._conversation = conversations.begin()
        #: The channel that has taken over; None while the conversation is known.
        self._channel: _RecordingChannel | None = None
        #: How many bytes of the account in ``_shared`` are charged here; the channel has its own charge.
        self._kept = 0
        #: See ``Driver``.
        self.on_used_up: Callable[[], None] | None = None
        #: Called when the peer of a patient call first answers; None from then on.
        self._on_heard: Callable[[], None] | None = None
        #: Whether a call is under way whose wait was cancelled.
        self._waits = False
        #: The process that listens at the other end, if the kernel knows it.
        self.peer = peer
        self.closed = False

    @property
    def is_known(self) -> bool:
        """Whether everything said so far is known."""
        return self._channel is None

    def close(self) -> None:
        """Close the connection at once. A call that still waits raises ``trio.ClosedResourceError``."""
        self._reset_waiting()
        self.closed = True
        self._keep(0)
        if self._channel is None:
            self._transport.close()
        else:
            self._channel.close()

    async def unary(self, path: str, request: SendT, reply_type: type[RecvT]) -> RecvT:
        """See :class:`Channel`. Calls are made one after the other."""
        if not self._begin((path, request.SerializeToString())):
            return await (self._channel or self._take_over()).unary(path, request, reply_type)
        return await self._answer(path, request, reply_type)

    async def patient_unary(
        self, path: str, request: SendT, reply_type: type[RecvT], on_heard: Callable[[], None]
    ) -> RecvT:
        """Make a call, or resume it: if it is cancelled before the peer has answered anything, it stays under way.

        It is reset when the channel is closed or used otherwise. ``on_heard`` is called when a later cancellation would
        end the call, unless the call has ended by then.
        """
        if not self._waits and not self._begin((path, request.SerializeToString())):
            on_heard()
            return await (self._channel or self._take_over()).unary(path, request, reply_type)
        self._check_open()
        self._waits = False
        self._on_heard = on_heard
        try:
            return await self._answer(path, request, reply_type)
        except trio.Cancelled:
            self._waits = not self.closed and self._on_heard is not None
            raise
        finally:
            self._on_heard = None

    def is_idle(self) -> bool:
        """Whether the peer of a patient call has neither answered nor read the whole request."""
        stays = self._waits or self._on_heard is not None
        return stays and not self.closed and self._transport.is_unread()

    def _check_open(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError("this channel was closed")

    def _begin(self, request: Request) -> bool:
        """Send a call as known bytes. Return False, with nothing changed, if that is impossible."""
        self._check_open()
        self._reset_waiting()
        if self._channel is not None:
            return False
        if self._conversation.say(request):
            return True
        if self._conversation.state.steps:
            return False
        self._conversations.know_next(self._conversation, request)
        return self._conversation.say(request)

    def _reset_waiting(self) -> None:
        if self._waits:
            self._waits = False
            self._take_over().give_up()

    async def _answer(self, path: str, request: SendT, reply_type: type[RecvT]) -> RecvT:
        try:
            unknown = await self._listen(reply_type)
        except BaseException as error:
            stays = self._on_heard is not None and isinstance(error, trio.Cancelled)
            if not stays and not self.closed:
                self._take_over().give_up()
            raise
        if self._conversation.state.ended:
            return _parsed(reply_type, self._conversation.message or b"")
        self._note_heard()
        channel = self._take_over()
        channel.hear(unknown)
        return await channel.resume(path, request, reply_type)

    async def _listen(self, reply_type: type[RecvT]) -> bytes | OSError | None:
        """Go on until the call has ended and return None; otherwise return what the channel must take over with."""
        conversation, transport = self._conversation, self._transport
        try:
            while self._send():
                data = await transport.receive(unsent=False)
                if self._kept:
                    self._keep(0)
                if data is not None and not (data and conversation.hear(data)):
                    return data
                if conversation.state.ended:
                    return None
                if data is not None and self._on_heard is not None:
                    self._note_heard()
                if conversation.message is not None and not self._may_wait(conversation.message, reply_type):
                    return None
        except OSError as error:
            return error
        return None

    def _note_heard(self) -> None:
        on_heard, self._on_heard = self._on_heard, None
        if on_heard is not None:
            on_heard()

    def _may_wait(self, message: bytes, reply_type: type[RecvT]) -> bool:
        """Whether a message can be kept until its trailers come, and be parsed then (faults 65 and 72)."""
        try:
            reply_type.FromString(message)
        except DecodeError:
            return False
        return self._keep(PREFIX_BYTES + len(message))

    def _keep(self, size: int) -> bool:
        """Charge the account with ``size`` bytes. Return False, with nothing changed, if that is too much."""
        if self._shared is not None and self._shared.unparsed.change(self._kept, size) is not None:
            return False
        self._kept = size
        return True

    def _send(self) -> bool:
        """Send the unsent bytes. Return False if a part is left: then the channel must take over."""
        unsent = self._conversation.unsent
        if not unsent:
            return True
        try:
            return self._conversation.note_sent(self._transport.send(unsent))
        except OSError:
            # The channel tries again, and handles the error.
            return False

    def _take_over(self) -> "_RecordingChannel":
        self._keep(0)
        channel = _RecordingChannel(self._transport, self._conversations, self._conversation, self.peer, self._shared)
        channel.on_used_up = self.on_used_up
        self._channel = channel
        return channel


class _RecordingChannel(Channel):
    """Continues a conversation that is not known, and remembers it."""

    __slots__ = ("_conversations", "_log", "_room", "_under_way")

    def __init__(
        self,
        transport: Transport,
        conversations: KnownConversations,
        so_far: KnownConversation,
        peer: Credentials | None,
        shared: Shared | None,
    ) -> None:
        super().__init__(
            transport, authority=conversations.authority, limits=conversations.limits, peer=peer, shared=shared
        )
        self._conversations = conversations
        #: The conversation in order, until it is too long to be remembered.
        self._log = so_far.log
        #: How many more bytes of the peer can be remembered; negative if there were too many.
        self._room = MAX_BYTES - bytes_heard(so_far.log)
        self._under_way = replay(self.connection, so_far.log, conversations.authority)
        del self.connection.outgoing[: so_far.sent]

    async def unary(self, path: str, request: SendT, reply_type: type[RecvT]) -> RecvT:
        """See :class:`Channel`."""
        self._log.append((path, request.SerializeToString()))
        return self._remembered(await super().unary(path, request, reply_type))

    def hear(self, heard: bytes | OSError | None) -> None:
        """Take the bytes that were read last, or the error."""
        if isinstance(heard, OSError):
            self._lose(heard)
            heard = None
        self._take(heard)

    async def resume(self, path: str, request: SendT, reply_type: type[RecvT]) -> RecvT:
        """Return the answer to the call that was under way, as :meth:`unary` does."""
        assert self._under_way is not None, "a call that is made by its bytes can be made again"
        stream = self.request(path, Cardinality.UNARY_UNARY, type(request), reply_type)
        stream.resume(self._under_way)
        async with stream:
            return self._remembered(await the_answer(stream))

    def give_up(self) -> None:
        """Reset the call that was under way."""
        if self._under_way is not None:
            self._under_way.cancel(CANCELLED)
            self.flush()

    def _take(self, data: bytes | None) -> None:
        """See ``Driver``."""
        if data:
            self._room -= len(data)
            if self._room >= 0:
                self._log.append(data)
        super()._take(data)

    def _remembered(self, reply: RecvT) -> RecvT:
        if self._room >= 0:
            self._conversations.learn(self._log)
        return reply


def _parsed(reply_type: type[RecvT], message: bytes) -> RecvT:
    try:
        return reply_type.FromString(message)
    except DecodeError as error:
        outcome = undecodable(reply_type, error)
        raise GRPCError(outcome.status, outcome.message) from error
