"""One conversation with a plugin: dial, GetInfo, NotifyRegistrationStatus, hang up.

The caller sets all deadlines except that of the dialer. Errors use the words of the reference (behaviours 27, 28 and
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

#: The most characters of an error that a plugin is sent or a user is shown (fault 94).
MAX_ERROR = 2048

#: Pauses between dials of a socket whose backlog is full. Each is twice the one before, up to the longest, so that
#: 3,000 such sockets cost some hundred tries a second and not 60,000.
FULL_PAUSE = 0.01
LONGEST_FULL_PAUSE = 2.0

#: How a failed dial is retried, if not by backoff.
_RETRIES = {
    DialFailure.REFUSED: Retry.STALE,
    DialFailure.NOT_A_STREAM: Retry.NEVER,
    DialFailure.BAD_PATH: Retry.NEVER,
    DialFailure.UNTRUSTED: Retry.NEVER,
}


@value
class _PluginCall:
    """A call to the plugin, and the words of the reference for its failure (behaviours 28 and 33)."""

    method: str
    failure: str
    path: str = attrs.field(init=False)

    @path.default
    def _make_path(self) -> str:
        return f"/{SERVICE}/{self.method}"


#: Ends of a connection that are no answer of the plugin.
_NO_ANSWER = (WireProblem.CLOSED, WireProblem.GOING_AWAY, WireProblem.UNPARSED_BYTES)

SERVICE = "pluginregistration.Registration"
_GET_INFO = _PluginCall("GetInfo", "failed to get plugin info using RPC GetInfo")
_NOTIFY = _PluginCall("NotifyRegistrationStatus", "failed to send registration status")


class _BoundedInfo:
    """Parses ``PluginInfo`` without creating more versions than are needed to refuse it."""

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
    """Return a type that parses the answer to GetInfo within ``limits`` (fault 51)."""
    # A call uses only FromString and __name__ of the type of its answer.
    return cast("type[PluginInfo]", _BoundedInfo(limits.max_versions))


class Dialer(Protocol):
    """Connects to plugins: ``plugind.actors.grpc.client.dial``, or a simulation in tests."""

    async def __call__(
        self, path: str, *, identity: Identity, root: str, timeout: float, refused_grace: float, judge: Judge
    ) -> RegistrationChannel:
        """Connect to the socket with this ``identity`` at ``path``, and to no other, within ``timeout`` seconds.

        No directory between ``root`` and the socket may be a link. A full backlog is an error at once, since a
        conversation that waits for room must not keep a slot.

        ``judge`` decides from the listening process whether it may be called, before anything is sent.

        Raises:
          DialError: if there is no connection.
        """


@value
class ConversationConfig:
    """The configuration of all conversations of a node."""

    dial: Dialer
    dial_slots: DialSlots
    endpoints: Endpoints
    #: Returns the trusted user who owns a directory between the root and a socket; None if only root and this user do.
    owner_above: Callable[[str], int | None] = lambda _: None


class Conversation:
    """The connection to the plugin at one path. It can be dialed again; one connection exists at a time."""

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
        #: ``trio.current_time()`` of the first attempt of the last dial, without the wait for a slot.
        self._began = 0.0
        #: The deadline of the GetInfo under way; None before the first look.
        self._deadline: InfoDeadline | None = None
        #: Whether the plugin had read nothing when it was looked at.
        self._was_idle = False
        #: Why the connection was closed during GetInfo; None if it was not.
        self._closed_for: str | None = None
        self._identity: Identity | None = None
        #: What was at the plugin's endpoint when its info came; None if the endpoint is the socket itself.
        self.endpoint: FoundFile | None = None
        #: The process that listened when the socket was last dialed.
        self.peer: Credentials | None = None
        #: ``trio.current_time()`` of the last dial that reached a process.
        self.dialed_at = 0.0
        #: When a dial of the present generation first reached a process that listens; None if none has.
        self.reached_at: float | None = None
        #: The settings of the step under way. The actor may replace them before the next step.
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
        """Connect as soon as there is a slot; ``patient`` waits for a plugin between bind and listen (behaviour 12).

        A dial that is not ``patient`` is a retry, and gets only slots that first attempts leave.

        Only the socket with this ``identity`` is reached (fault 41), in this ``root``. The listening process must be
        trusted, and belong to ``uid`` if that is given (fault 40). ``begins`` is called with the time at which there is
        a slot.

        Return False if dials pause because this process has no descriptors left, which is no failure of the plugin
        (fault 46). With ``held_up`` wait until the pause is over instead.

        Raises:
          StepFailedError: if there is no connection.
        """
        self._identity, self._deadline, self._closed_for, self._was_idle = identity, None, None, False
        if self._config.endpoints.is_status_socket(identity):
            raise StepFailedError("it is plugind's own status socket, which is never dialed", Retry.NEVER)
        timeouts = self.settings.timeouts
        try:
            self._slot = await self._config.dial_slots.acquire(retry=not patient, through_pause=held_up)
            # The first dial begins at once. A message about a replaced socket interrupts this call.
            self._began = self._slot.acquired_at
            begins(self._began)
            # Not before: in a storm thousands wait for a slot, and the garbage collector visits all that they hold.
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
        # A flooder is read last, so it must not keep a slot from others.
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

        Otherwise thousands of such sockets would hold all slots (fault 30).

        Raises:
          DialError: for any other reason, or at the deadline.
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
        """Note the listening process; return why it is not trusted, or None if it is (fault 40)."""
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
        """Whether a plugin of this user may take over the name of any other user's plugin (fault 80)."""
        return self.settings.users.is_privileged(uid)

    def _pause(self) -> None:
        """Give the slot back, and pause all dials until there are descriptors again."""
        assert self._slot is not None, "a dial has a slot"
        self._slot.pause()
        self._slot = None

    async def get_info(self, on_heard: Callable[[], None]) -> Info:
        """Ask the plugin for its info, and check it; ``on_heard`` is called once the plugin sends something.

        Raises:
          StepFailedError: if there is no answer.
          PluginRefusedError: if the answer is not acceptable (faults 51, 72 and 73).
        """
        assert self._channel is not None, "GetInfo follows a dial"
        # A node loads this with its first plugin: it takes a twentieth of the time to start.
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
        """Return the info from an answer to GetInfo.

        Raises:
          PluginRefusedError: if it is not acceptable.
        """
        assert self._identity is not None, "GetInfo follows a dial"
        limits = self.settings.limits
        if self._slot is not None and not self._was_idle:
            # A plugin that was slow itself says nothing about how busy this process is.
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
        """Notify the plugin that it is registered, or of its ``refusal``.

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
        """Return when to look again at a GetInfo ``asked`` at that time, or its deadline; None if that has passed.

        For a plugin that has not sent anything yet.
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
        """Return the deadline of a GetInfo ``asked`` at that time, now that the plugin has sent something."""
        if self._slot is not None:
            self._slot.forget_idle()
        return self._deadline_of(asked).hear(trio.current_time())

    def _deadline_of(self, asked: float) -> InfoDeadline:
        if self._deadline is None:
            self._deadline = InfoDeadline(self._began, asked, self.settings.timeouts)
        return self._deadline

    def why_idle(self) -> str | None:
        """Return why GetInfo takes longer than its second, to be shown; None if that has begun or would not be over.

        Call :meth:`look` before.
        """
        assert self._deadline is not None, "it was looked at"
        late = not self._deadline.has_begun and self._deadline.is_late(trio.current_time())
        return NOT_READ if late else None

    @property
    def idle(self) -> bool:
        """Whether the plugin has sent nothing, and has not read all that it was sent."""
        return self._channel is not None and self._channel.is_idle()

    def close_idle(self) -> None:
        """Close the connection to a plugin that has read nothing, because another dial needs its descriptor."""
        assert self._channel is not None, "an idle conversation has a connection"
        self._closed_for = NEEDED
        self._channel.close()

    def info_timed_out(self) -> StepFailedError:
        """Return the failure of a GetInfo that :meth:`look` found to be over its deadline."""
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
    """Return NEVER if the plugin does not implement the method (behaviour 28, fault 71)."""
    return Retry.NEVER if error.status is Status.UNIMPLEMENTED else Retry.BACKOFF


def _is_answer(error: GRPCError) -> bool:
    """Whether the plugin answered, validly or not, before the connection ended."""
    cause = error.__cause__
    return not isinstance(cause, WireError) or cause.problem not in _NO_ANSWER


def _text(error: GRPCError) -> str:
    return status_text(error)[:MAX_ERROR]


def _sendable(text: str) -> str:
    """Escape what is not UTF-8: a path may contain such bytes, but a protobuf string may not (fault 21)."""
    return text[:MAX_ERROR].encode("utf-8", "backslashreplace").decode()
