"""One conversation with a plugin: dial, GetInfo, NotifyRegistrationStatus, hang up.

The caller sets the deadlines, except that of the dialer. Failures are worded as in the reference (behaviours 27, 28 and
33).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Protocol, cast

import attrs
import trio
from google.protobuf.message import DecodeError
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...protocol.discovery.endpoints import FoundFile
from ...protocol.errors import ValidationError
from ...protocol.identity import Identity
from ...protocol.plugins.info import InfoLimits, check_info, info_to_show
from ...protocol.plugins.info import PluginInfo as Info
from ...protocol.plugins.status import Outcome
from ...protocol.registration.bounded_info import first_versions
from ...protocol.registration.failures import REPLACED, PluginRefusedError, Refusal, Retry, StepFailedError
from ...protocol.registration.info_deadline import NEEDED, NOT_READ, InfoDeadline
from ...protocol.registration.settings import RegistrationSettings
from ...protocol.trust.directories import misplaced
from ...protocol.trust.users import another_user
from ...protocol.values import value
from ...protocol.wire.errors import DialError, DialFailure, WireError, WireProblem
from ...protocol.wire.outcomes import status_text
from ...protocol.wire.protobuf_fields import TooManyFieldsError
from ..grpc.client.dial import Judge, was_full
from ..grpc.client.registration_channel import RegistrationChannel
from ..grpc.endpoints import Endpoints
from ..io.unix_socket import Credentials
from .dial_slots import DialSlot, DialSlots, PausedError

if TYPE_CHECKING:
    from ...protocol.proto.pluginregistration_pb2 import PluginInfo

#: Characters of an error that a plugin is sent or a user is shown (fault 94).
MAX_ERROR = 2048

#: Seconds between the first two dials of a socket whose backlog is full. Each pause is twice as long as the one before,
#: up to the longest, so that 3,000 such sockets cost some hundred tries a second and not 60,000.
FULL_PAUSE = 0.01
LONGEST_FULL_PAUSE = 2.0

#: Whether and how each failed dial is retried.
_RETRIES = {
    DialFailure.REFUSED: Retry.STALE,
    DialFailure.NOT_A_STREAM: Retry.NEVER,
    DialFailure.BAD_PATH: Retry.NEVER,
    DialFailure.UNTRUSTED: Retry.NEVER,
}


@value
class _PluginCall:
    """A call to the plugin, and the reference's words for its failure (behaviours 28 and 33)."""

    method: str
    failure: str
    path: str = attrs.field(init=False)

    @path.default
    def _make_path(self) -> str:
        return f"/{SERVICE}/{self.method}"


#: How a connection ends before the plugin has answered, or for a reason that concerns no answer of it.
_NO_ANSWER = (WireProblem.CLOSED, WireProblem.GOING_AWAY, WireProblem.UNPARSED_BYTES)

SERVICE = "pluginregistration.Registration"
_GET_INFO = _PluginCall("GetInfo", "failed to get plugin info using RPC GetInfo")
_NOTIFY = _PluginCall("NotifyRegistrationStatus", "failed to send registration status")


class _BoundedInfo:
    """Stands for ``PluginInfo`` where an answer is parsed: it has no more versions made than can be refused."""

    __name__ = "PluginInfo"

    def __init__(self, most_versions: int) -> None:
        self._most_versions = most_versions

    def FromString(self, message: bytes) -> PluginInfo:  # noqa: N802 - protobuf's name
        from ...protocol.proto.pluginregistration_pb2 import PluginInfo

        try:
            return PluginInfo.FromString(first_versions(message, self._most_versions))
        except TooManyFieldsError as error:
            raise DecodeError(str(error)) from error


def bounded_info_type(limits: InfoLimits) -> type[PluginInfo]:
    """Return what parses the answer to GetInfo within ``limits`` (fault 51)."""
    # A call uses nothing of the type of its answer but what _BoundedInfo has.
    return cast("type[PluginInfo]", _BoundedInfo(limits.max_versions))


class Dialer(Protocol):
    """The port to the plugins; the real one is ``plugind.actors.grpc.client.dial``, tests use a simulated one."""

    async def __call__(
        self, path: str, *, identity: Identity, root: str, timeout: float, refused_grace: float, judge: Judge
    ) -> RegistrationChannel:
        """Connect to the socket with this ``identity`` at ``path``, and to no other, within ``timeout`` seconds.

        Below ``root``, in which it was found, no directory on the way to it may be a link.
        A full backlog is an error at once, since whoever waits for room in it must not keep a slot.

        ``judge`` decides by the process that listens whether it may be called, before anything is sent.

        Raises:
          DialError: if there is no connection.
        """


@value
class ConversationConfig:
    """The configuration of all conversations of a node."""

    dial: Dialer
    dial_slots: DialSlots
    endpoints: Endpoints
    #: Returns the trusted user who owns a directory on the way to a socket; None if only root and this user do.
    owner_above: Callable[[str], int | None] = lambda _: None


class Conversation:
    """The connection to the plugin at one path, which may be dialed again; there is one at a time."""

    __slots__ = (
        "_began",
        "_channel",
        "_closed_for",
        "_config",
        "_deadline",
        "_identity",
        "_path",
        "_slot",
        "_was_idle",
        "dialed_at",
        "endpoint",
        "peer",
        "reached_at",
        "settings",
    )

    def __init__(self, config: ConversationConfig, path: str, settings: RegistrationSettings) -> None:
        self._config = config
        self._path = path
        self._channel: RegistrationChannel | None = None
        self._slot: DialSlot | None = None
        #: ``trio.current_time()`` of the first attempt of the last dial, not counting the wait for a slot.
        self._began = 0.0
        #: The deadline of the GetInfo under way; None until the first look at it.
        self._deadline: InfoDeadline | None = None
        #: Whether a look has found that the plugin had read nothing.
        self._was_idle = False
        #: Why the connection was closed while GetInfo was under way; None if it was not.
        self._closed_for: str | None = None
        #: The file that was dialed last.
        self._identity: Identity | None = None
        #: What was at the plugin's endpoint when it was named; None if that is the socket.
        self.endpoint: FoundFile | None = None
        #: The process that listened when the socket was last dialed.
        self.peer: Credentials | None = None
        #: ``trio.current_time()`` of that.
        self.dialed_at = 0.0
        #: When a dial of the present generation first reached a process that listens; None if none has.
        self.reached_at: float | None = None
        #: What the step under way goes by. Others may be set before the next one begins.
        self.settings = settings

    async def dial(
        self,
        identity: Identity,
        root: str,
        begins: Callable[[float], None],
        *,
        patient: bool,
        held_up: bool = False,
        uid: int | None = None,
    ) -> bool:
        """Connect, as soon as there is a slot; ``patient`` allows for a plugin between bind and listen (behaviour 12).

        A dial that is not ``patient`` is a retry, and those wait for the slots that first attempts leave.

        No other socket is reached than that with this ``identity`` (fault 41), in this ``root``, and the process that
        listens there must be trusted, and be of this ``uid`` if that is given (fault 40). ``begins`` is called once
        there is a slot, with the time of that.

        Return False at once while dials pause because this process has no descriptors left, unless ``held_up`` says
        that this is known: then wait. It is no failure of the plugin (fault 46).

        Raises:
          StepFailedError: if there is no connection.
        """
        self._identity, self._deadline, self._closed_for, self._was_idle = identity, None, None, False
        if self._config.endpoints.is_status_socket(identity):
            raise StepFailedError("it is plugind's own status socket, which is never dialed", Retry.NEVER)
        timeouts = self.settings.timeouts
        try:
            self._slot = await self._config.dial_slots.acquire(retry=not patient, through_pause=held_up)
            # The first try comes at once, and whatever replaces the socket later interrupts this call.
            self._began = self._slot.acquired_at
            begins(self._began)
            # Only now: in a storm thousands wait for a slot, and the garbage collector goes through all that they hold.
            dial = partial(
                self._config.dial,
                self._path,
                identity=identity,
                root=root,
                timeout=timeouts.dial,
                refused_grace=timeouts.refused_grace if patient else 0.0,
                judge=partial(self._judge, uid),
            )
            self._channel = await self._while_full(dial, through_pause=held_up)
        except PausedError:
            return False
        except DialError as error:
            if error.kind is DialFailure.EXHAUSTED:
                self._pause()
                return False
            raise self._not_dialed(error) from error
        assert self._slot is not None, "a connection has a slot"
        # A flooder takes its turns last, so it must not keep a slot from others meanwhile.
        self._channel.on_used_up = self._slot.expire
        return True

    def _not_dialed(self, error: DialError) -> StepFailedError:
        if error.kind is DialFailure.REPLACED:
            return StepFailedError(REPLACED, Retry.REPLACED, Outcome.SUPERSEDED)
        reason = f"RegisterPlugin error -- dial failed at socket {self._path}, err: {error.message}"
        outcome = Outcome.TIMED_OUT if error.kind is DialFailure.TIMED_OUT else Outcome.FAILED
        return StepFailedError(reason, _RETRIES.get(error.kind, Retry.BACKOFF), outcome, error.cause)

    async def _while_full(
        self, dial: Callable[[], Awaitable[RegistrationChannel]], *, through_pause: bool
    ) -> RegistrationChannel:
        """Dial, and dial again while the backlog is full, with growing pauses in which this conversation has no slot.

        Thousands of such sockets would otherwise hold all slots (fault 30).

        Raises:
          DialError: for any other reason, or if the time for it is over.
          PausedError: as :meth:`DialSlots.acquire` does.
        """
        timeout, pause = self.settings.timeouts.dial, FULL_PAUSE
        assert self._slot is not None, "a dial has a slot"
        until = self._began + timeout
        while True:
            try:
                return await dial()
            except DialError as error:
                retry = self._slot.retry
                if error.kind is DialFailure.EXHAUSTED and self._config.dial_slots.close_idle(retry=retry):
                    continue
                if error.kind is not DialFailure.FULL:
                    raise
            self._reached()
            left = until - trio.current_time()
            if left <= 0:
                raise was_full(self._path, timeout)
            self._release_slot()
            await trio.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_FULL_PAUSE)
            self._slot = await self._config.dial_slots.acquire(retry=True, through_pause=through_pause)

    def _reached(self) -> None:
        """Note that a process listens on the socket."""
        self.dialed_at = trio.current_time()
        if self.reached_at is None:
            self.reached_at = self.dialed_at

    def _judge(self, uid: int | None, peer: Credentials) -> str | None:
        """Return why the process that listens is not trusted, after taking note of it; None if it is (fault 40)."""
        self.peer = peer
        self._reached()
        if uid is not None and peer.uid != uid:
            return another_user(peer.uid, peer.pid, uid)
        distrust = self.settings.trust.refusal(peer.uid, peer.pid, self.settings.users)
        return self._judge_directory(peer) if distrust is None else distrust

    def _judge_directory(self, peer: Credentials) -> str | None:
        """Return why a plugin of this user must not be in its directory; None if it may."""
        if self.settings.users.is_privileged(peer.uid):
            return None
        try:
            owner = self._config.owner_above(self._path)
        except OSError as error:
            return f"cannot find out whose directory it is in: {error.strerror}"
        return misplaced(owner, peer.uid, peer.pid)

    def is_privileged(self, uid: int | None) -> bool:
        """Whether a plugin of this user may succeed any of another user (fault 80)."""
        return self.settings.users.is_privileged(uid)

    def _pause(self) -> None:
        """Give the slot back, and let all dials pause until there are descriptors again."""
        assert self._slot is not None, "a dial has a slot"
        self._slot.pause()
        self._slot = None

    async def get_info(self, on_heard: Callable[[], None]) -> Info:
        """Ask the plugin for its info, and check it; ``on_heard`` is called once the plugin says something.

        Raises:
          StepFailedError: if there is no answer.
          PluginRefusedError: if the answer is not acceptable (faults 51, 72 and 73).
        """
        assert self._channel is not None, "GetInfo follows a dial"
        # A node loads this with its first plugin, since it takes a twentieth of the start.
        from ...protocol.proto.pluginregistration_pb2 import InfoRequest

        info_type = bounded_info_type(self.settings.limits)
        self._deadline = None
        try:
            reply = await self._channel.patient_unary(_GET_INFO.path, InfoRequest(), info_type, on_heard)
        except GRPCError as error:
            raise self._call_failed(_GET_INFO, error) from error
        except trio.ClosedResourceError:
            if self._closed_for is None:
                raise
            raise self._failed(_GET_INFO, self._closed_for, Outcome.FAILED) from None
        return self._check(reply)

    def _check(self, reply: PluginInfo) -> Info:
        """Return the info in an answer to GetInfo.

        Raises:
          PluginRefusedError: if it is not acceptable.
        """
        assert self._identity is not None, "GetInfo follows a dial"
        limits = self.settings.limits
        if self._slot is not None and not self._was_idle:
            # A plugin that has served late says nothing of how busy this process is.
            self._slot.answered()
        # One more than is allowed is enough to refuse it (fault 51).
        versions = tuple(islice(reply.supported_versions, limits.max_versions + 1))
        try:
            info = check_info(
                reply.type,
                reply.name,
                reply.endpoint,
                versions,
                socket=self._path,
                uid=None if self.peer is None else self.peer.uid,
                limits=limits,
            )
            self.endpoint = self._endpoints.judge(info.endpoint, self._path, self._identity)
        except ValidationError as error:
            shown = info_to_show(reply.type, reply.name, limits=limits)
            raise PluginRefusedError(str(error)[:MAX_ERROR], info=shown) from error
        return info

    @property
    def _endpoints(self) -> Endpoints:
        directories = self.settings.endpoint_directories
        return self._config.endpoints if directories is None else self._config.endpoints.within(directories)

    async def notify(self, refusal: Refusal | None = None) -> None:
        """Notify the plugin that it is registered, or of the ``refusal`` because of which it is not.

        Raises:
          StepFailedError: if it does not answer.
        """
        assert self._channel is not None, "a notify follows a dial"
        from ...protocol.proto.pluginregistration_pb2 import RegistrationStatus, RegistrationStatusResponse

        error = "" if refusal is None else refusal.error
        verdict = RegistrationStatus(plugin_registered=refusal is None, error=_sendable(error))
        try:
            await self._channel.unary(_NOTIFY.path, verdict, RegistrationStatusResponse)
        except GRPCError as failure:
            raise self._call_failed(_NOTIFY, failure) from failure

    def hang_up(self) -> None:
        """Close the connection, if there is one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        self._release_slot()

    def _release_slot(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.release()

    def look(self, asked: float) -> float | None:
        """Look at a GetInfo that was ``asked`` then. Return when to look again, or its deadline; None if that is over.

        The plugin has said nothing yet.
        """
        assert self._channel is not None, "GetInfo follows a dial"
        deadline, idle = self._deadline_of(asked), self.idle
        until = deadline.look(trio.current_time(), idle=idle)
        if self._slot is not None:
            if idle and until is not None:
                self._was_idle = True
                self._slot.expire()
                self._slot.note_idle(self)
            else:
                self._slot.forget_idle()
        return until

    def hear(self, asked: float) -> float:
        """Return the deadline of a GetInfo that was ``asked`` then: the plugin has just said something."""
        if self._slot is not None:
            self._slot.forget_idle()
        return self._deadline_of(asked).hear(trio.current_time())

    def _deadline_of(self, asked: float) -> InfoDeadline:
        if self._deadline is None:
            self._deadline = InfoDeadline(self._began, asked, self.settings.timeouts)
        return self._deadline

    def why_idle(self) -> str | None:
        """Return why GetInfo takes longer than its second, to be shown; None if that has begun, or would not be over.

        It is for a call at which :meth:`look` has looked.
        """
        assert self._deadline is not None, "it was looked at"
        late = not self._deadline.has_begun and self._deadline.is_late(trio.current_time())
        return NOT_READ if late else None

    @property
    def idle(self) -> bool:
        """Whether the plugin has neither said anything nor read all that it was sent."""
        return self._channel is not None and self._channel.is_idle()

    def close_idle(self) -> None:
        """Close the connection to a plugin that has read nothing: another one needs its descriptor."""
        assert self._channel is not None, "an idle conversation has a connection"
        self._closed_for = NEEDED
        self._channel.close()

    def info_timed_out(self) -> StepFailedError:
        """Return the failure of a GetInfo for which :meth:`look` says that its time is over."""
        assert self._deadline is not None, "it was looked at"
        return self._failed(_GET_INFO, self._deadline.why_over(), Outcome.TIMED_OUT)

    def notify_timed_out(self) -> StepFailedError:
        """Return the failure of a notification that was not answered before its deadline."""
        return self._failed(_NOTIFY, f"no answer in {self.settings.timeouts.notify:g} s", Outcome.TIMED_OUT)

    def _failed(self, call: _PluginCall, reason: str, outcome: Outcome) -> StepFailedError:
        return StepFailedError(self._words(call, reason), outcome=outcome, cause=f"{call.method} failed: {reason}")

    def _call_failed(self, call: _PluginCall, error: GRPCError) -> StepFailedError:
        text = _text(error)
        return StepFailedError(
            self._words(call, text),
            _retry_after(error),
            cause=f"{call.method} failed: {text}",
            answered=_is_answer(error),
        )

    def _words(self, call: _PluginCall, reason: str) -> str:
        return f"RegisterPlugin error -- {call.failure} at socket {self._path}, err: {reason}"


def _retry_after(error: GRPCError) -> Retry:
    """Return NEVER if the method is not implemented, since a retry cannot help (behaviour 28, fault 71)."""
    return Retry.NEVER if error.status is Status.UNIMPLEMENTED else Retry.BACKOFF


def _is_answer(error: GRPCError) -> bool:
    """Whether the plugin answered, with a status or with what is no valid answer; otherwise the connection ended."""
    cause = error.__cause__
    return not isinstance(cause, WireError) or cause.problem not in _NO_ANSWER


def _text(error: GRPCError) -> str:
    return status_text(error)[:MAX_ERROR]


def _sendable(text: str) -> str:
    """Replace bytes that are not UTF-8: a path may contain them, but a protobuf string may not (fault 21)."""
    return text[:MAX_ERROR].encode("utf-8", "backslashreplace").decode()
