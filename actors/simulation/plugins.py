"""Plugins of a simulated node: their answers, their faults and their processes."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal, assert_never

import attrs
import trio
from google.protobuf.message import Message
from grpclib.const import Handler as Method
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...protocol.plugins.info import CSI, DEVICE, DRA
from ...protocol.proto.pluginregistration_grpc import RegistrationBase
from ...protocol.proto.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from ..grpc.server.serve import ConnectionEnded, HandlerFailed, Peer, Service, log_report, serve_stream
from ..handlers.errors import is_of_asyncio
from ..io.unix_socket import Credentials
from .csi_drivers import FakeCSIDriver
from .device_plugins import FakeDevices
from .directory import MemoryDirectory
from .dra_drivers import FakeDRADriver
from .network import Accepting, Listener, MemoryNetwork, Process, Serve
from .reactions import Reaction
from .streams import ServerEnd

if TYPE_CHECKING:
    from grpclib.server import Stream

#: A call of the registration service.
Step = Literal["get-info", "notify"]


@attrs.frozen
class Call:
    """One call that a plugin received; the answer, if any, comes later."""

    #: Seconds of Trio's clock, which is virtual in a simulated node.
    time: float
    #: The method's name without its service: ``GetInfo``.
    method: str
    #: The verdict of a NotifyRegistrationStatus.
    registered: bool | None = None
    error: str = ""
    #: The devices in a call to a device plugin.
    devices: tuple[str, ...] = ()
    #: The reaction of a :class:`FakePlugin`; not compared.
    reaction: Reaction | None = attrs.field(default=None, eq=False, repr=False)
    #: The process that called, if known; not compared.
    peer_pid: int | None = attrs.field(default=None, eq=False, repr=False)


@attrs.define(eq=False)
class FakePlugin:
    """The info of a plugin, and its faults. All attributes can be changed while the plugin runs.

    ``hang`` names a call that is never answered, and ``die`` one upon which the connection breaks. If several faults of
    one call are set, the plugin dies rather than hangs, and hangs rather than fails.
    """

    type: str
    name: str
    versions: Collection[str] = ("1.0.0",)
    #: Empty means the registration socket itself.
    endpoint: str = ""
    #: How many more GetInfo calls end with ``error``.
    get_info_fails: float = attrs.field(default=0, kw_only=True)
    #: How many more NotifyRegistrationStatus calls end with ``error``.
    notify_fails: float = attrs.field(default=0, kw_only=True)
    #: Whether every NotifyRegistrationStatus ends with ``error``.
    reject_notify: bool = attrs.field(default=False, kw_only=True)
    error: GRPCError = attrs.field(
        factory=lambda: GRPCError(Status.UNAVAILABLE, "this fake refuses"), kw_only=True, repr=False
    )
    hang: Step | None = attrs.field(default=None, kw_only=True)
    die: Step | None = attrs.field(default=None, kw_only=True)
    #: Seconds before each answer.
    delay: float = attrs.field(default=0.0, kw_only=True)
    #: Its services at its socket besides the registration: for a device plugin its devices, and for a driver what the
    #: node asks it. Another endpoint is another socket, which must be served, too.
    serves: Collection[Service] = attrs.field(kw_only=True, repr=False)

    @serves.default
    def _serve_its_type(self) -> Collection[Service]:
        if self.type == DEVICE:
            return [FakeDevices()]
        if self.type == CSI:
            return [FakeCSIDriver(self.name)]
        return [FakeDRADriver()] if self.type == DRA else ()

    @property
    def info(self) -> PluginInfo:
        """The answer to GetInfo."""
        return PluginInfo(
            type=self.type, name=self.name, endpoint=self.endpoint, supported_versions=list(self.versions)
        )

    def decide(self, step: Step) -> Reaction:
        """Return the reaction to the next call of ``step``, and count a failure."""
        if self.die == step:
            return Reaction.DIED
        if self.hang == step:
            return Reaction.HUNG
        return Reaction.REFUSED if self._fails(step) else Reaction.ANSWERED

    def _fails(self, step: Step) -> bool:
        match step:
            case "get-info":
                failed, self.get_info_fails = self.get_info_fails > 0, max(0, self.get_info_fails - 1)
                return failed
            case "notify":
                failed, self.notify_fails = self.notify_fails > 0, max(0, self.notify_fails - 1)
                return failed or self.reject_notify
        assert_never(step)


class FakeRegistration(RegistrationBase):
    """The registration service of a :class:`FakePlugin`, on connections in memory or on a real socket.

    ``record`` gets each call before the answer. ``break_connections`` ends the connections.
    """

    def __init__(
        self, plugin: FakePlugin, record: Callable[[Call], None], break_connections: Callable[[], None]
    ) -> None:
        self._plugin = plugin
        self._record = record
        self._break_connections = break_connections

    async def GetInfo(self, stream: Stream[InfoRequest, PluginInfo]) -> None:  # noqa: N802 - the name in the .proto
        """Answer with the plugin's info, or misbehave."""
        await stream.recv_message()
        reaction = self._plugin.decide("get-info")
        self._record(Call(now(), "GetInfo", reaction=reaction, peer_pid=pid_of(stream.peer)))
        await self._perform(reaction)
        await stream.send_message(self._plugin.info)

    async def NotifyRegistrationStatus(  # noqa: N802 - the name in the .proto
        self, stream: Stream[RegistrationStatus, RegistrationStatusResponse]
    ) -> None:
        """Record the verdict and acknowledge it, or misbehave."""
        verdict = await stream.recv_message() or RegistrationStatus()
        reaction = self._plugin.decide("notify")
        self._record(
            Call(
                now(),
                "NotifyRegistrationStatus",
                verdict.plugin_registered,
                verdict.error,
                reaction=reaction,
                peer_pid=pid_of(stream.peer),
            )
        )
        await self._perform(reaction)
        await stream.send_message(RegistrationStatusResponse())

    async def _perform(self, reaction: Reaction) -> None:
        match reaction:
            case Reaction.DIED:
                self._break_connections()
                await trio.sleep_forever()
            case Reaction.HUNG:
                # The client's deadline, or the end of the connection, ends the call's scope.
                await trio.sleep_forever()
            case Reaction.REFUSED:
                await self._dawdle()
                raise self._plugin.error
            case Reaction.ANSWERED:
                await self._dawdle()
            case _:
                assert_never(reaction)

    async def _dawdle(self) -> None:
        if self._plugin.delay:
            await trio.sleep(self._plugin.delay)


def pid_of(peer: object) -> int | None:
    """Return the process at the other end of a call, if known."""
    return peer.credentials.pid if isinstance(peer, Peer) and peer.credentials is not None else None


def now() -> float:
    """Return the time of Trio's clock, rounded to the microsecond to hide rounding errors."""
    return round(trio.current_time(), 6)


class PluggedIn:
    """A plugin's process and its registration socket, which a script controls. No method waits."""

    def __init__(
        self,
        path: str,
        plugin: FakePlugin | Collection[Service],
        directory: MemoryDirectory,
        network: MemoryNetwork,
        start: Callable[[Callable[[], Awaitable[None]]], None],
        credentials: Credentials,
    ) -> None:
        #: The absolute path of its socket.
        self.path = path
        self.plugin = plugin
        #: The calls that it received, in order, over all its processes.
        self.calls: list[Call] = []
        self._directory = directory
        self._network = network
        self._start = start
        self._credentials = credentials
        self._process: Process | None = None
        self._listener: Listener | None = None
        self._accepting = Accepting.SERVES
        self._seconds_per_byte = 0.0
        self._suspended_at = math.inf
        #: The period in which connections waited until the process accepted them.
        self._waited = (math.inf, math.inf)

    # --- the process --------------------------------------------------------------------------------------------------

    def bind(self) -> None:
        """Make the socket file, without a listener (behaviour 12). Raises OSError if something is there."""
        self._directory.bind(self.path)
        self._directory.inode(self.path).owner = self.uid

    def listen(self) -> None:
        """Listen on the socket file, which must exist, in a new process if none runs."""
        self.close_listener()
        if self._process is None:
            self._process = self._network.start(self._credentials)
        listener = self._listener = Listener(self._admit, self._process, self._accepting, self._seconds_per_byte)
        self._network.listen(self.path, listener)
        self._start(listener.run)

    def close_listener(self) -> None:
        """Close the listener while the process lives on: its connections end, and connecting is refused (fault 39)."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._network.end(listener)

    def hand_over(self) -> None:
        """End the process while another one has its listener: connections go on, and connecting succeeds."""
        if self._process is not None:
            self._process.end()
            self._process = self._network.start(self._credentials)

    def suspend(self) -> None:
        """Stop the process as SIGSTOP does: connections stay, new ones are accepted, and nothing is answered."""
        if self._process is not None and self._process.gate.open:
            self._process.gate.shut()
            self._suspended_at = trio.current_time()  # Not rounded: oracles compare it with times of the clock.

    def resume(self) -> None:
        """Continue a suspended process as SIGCONT does: it reads what has come meanwhile."""
        if self._process is not None:
            self._process.gate.reopen()

    @property
    def suspended(self) -> bool:
        """Whether the process is suspended."""
        return self._process is not None and not self._process.gate.open

    @property
    def suspended_at(self) -> float:
        """The virtual time at which the process was suspended; infinity while it runs."""
        return self._suspended_at if self.suspended else math.inf

    def become(self, uid: int) -> None:
        """Make the process run as user ``uid``, and listen again on the same socket file (fault 40)."""
        self._credentials = Credentials(self._credentials.pid, uid, uid)
        if self._process is not None:
            self._process.credentials = self._credentials
        self.listen()

    def crash(self) -> None:
        """End the process: its connections end, its socket file stays, and connecting is refused (fault 39)."""
        self._end_process()

    def unlink(self) -> None:
        """Remove the socket file; the process keeps running, unreachable (fault 38)."""
        self._directory.unlink(self.path)

    def stop(self) -> None:
        """Stop the process in order: it removes its socket, if that exists, and ends."""
        self._remove()
        self._end_process()

    def restart(self, *, uid: int | None = None) -> None:
        """End the process, and start another one, of user ``uid`` if given, which unlinks the socket, binds and
        listens.
        """
        self._end_process()
        if uid is not None:
            self._credentials = Credentials(self._credentials.pid, uid, uid)
        self._remove()
        self.bind()
        self.listen()

    @property
    def uid(self) -> int:
        """The user of the process."""
        return self._credentials.uid

    @property
    def process(self) -> Process | None:
        """The running process, if any."""
        return self._process

    @property
    def pid(self) -> int:
        """The pid of the process, which its successors also get."""
        return self._credentials.pid

    @property
    def alive(self) -> bool:
        """Whether its process runs and listens."""
        return self._listener is not None

    @property
    def serves_itself(self) -> bool:
        """Whether the process that called listen() still runs."""
        return self._listener is not None and not self._listener.process.ended

    def _end_process(self) -> None:
        self.close_listener()
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _remove(self) -> None:
        if self._directory.exists(self.path):
            self._directory.unlink(self.path)

    # --- the connections ----------------------------------------------------------------------------------------------

    @property
    def accepting(self) -> Accepting:
        """What happens to new connections; assign to change it."""
        return self._accepting

    @accepting.setter
    def accepting(self, accepting: Accepting) -> None:
        self._accepting = accepting
        if self._listener is not None:
            self._listener.accepting = accepting

    def accept_after(self, seconds: float, accepting: Accepting = Accepting.SERVES) -> None:
        """Serve no connection for this time: the process listens, and is not ready (fault 32).

        Then new and waiting connections are treated as ``accepting``, unless ``accepting`` was assigned meanwhile.
        """
        self.accepting, since = Accepting.LATE, trio.current_time()

        async def begin() -> None:
            await trio.sleep(seconds)
            if self._accepting is Accepting.LATE:
                self.accepting, self._waited = accepting, (since, trio.current_time())

        self._start(begin)

    @property
    def reads_since(self) -> float:
        """The earliest time at which data that the process reads now was sent, since it may have begun to accept just
        now.
        """
        since, until = self._waited
        time = trio.current_time()  # Not rounded: oracles compare it with times of the clock.
        return since if until == time else time

    @property
    def seconds_per_byte(self) -> float:
        """The seconds to send a byte on new connections (fault 63); assign to change it."""
        return self._seconds_per_byte

    @seconds_per_byte.setter
    def seconds_per_byte(self, seconds: float) -> None:
        self._seconds_per_byte = seconds
        if self._listener is not None:
            self._listener.seconds_per_byte = seconds

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return 0 if self._listener is None else len(self._listener.connections)

    @property
    def accepted(self) -> int:
        """How many connections its present process has seen."""
        return 0 if self._listener is None else self._listener.accepted

    def reset(self) -> None:
        """Break every open connection, as a reset does; new ones are served."""
        if self._listener is not None:
            self._listener.reset()

    def half_close(self) -> None:
        """Stop sending on every open connection, and continue reading (fault 37)."""
        if self._listener is not None:
            for connection in self._listener.connections:
                connection.server.half_close()

    # --- what it serves -----------------------------------------------------------------------------------------------

    def _admit(self) -> Serve:
        # Calls are recorded as of the time of the connection, although it can be served later.
        return partial(self._serve, self.calls.append)

    async def _serve(self, report: Callable[[Call], None], stream: ServerEnd) -> None:
        services: Collection[Service]
        if isinstance(self.plugin, FakePlugin):
            services = [FakeRegistration(self.plugin, report, self.reset), *self.plugin.serves]
        else:
            services = [_ReportedService(service, report) for service in self.plugin]
        failures: list[HandlerFailed] = []
        await serve_stream(services, stream, report=partial(_report, failures))
        for failure in failures:
            if is_of_asyncio(failure.error):
                # In a task of the node itself, so that the block raises it without the groups of nurseries.
                self._start(partial(_refuse, failure))


class AsyncioServiceError(Exception):
    """A service under test uses asyncio, which does not run in a simulated node."""

    def __init__(self, method: str) -> None:
        super().__init__(
            f"{method} uses asyncio, which does not run in a simulated node: use trio or anyio in it, or test"
            " the plugin as a process, against a daemon"
        )


async def _refuse(failure: HandlerFailed) -> None:
    raise AsyncioServiceError(failure.method) from failure.error


def _report(failures: list[HandlerFailed], what: HandlerFailed | ConnectionEnded) -> None:
    """Log an error in a service under test. That connections end is what scripts are about."""
    if isinstance(what, HandlerFailed):
        failures.append(what)
        log_report(what)


class _ReportedService:
    """A service whose calls are recorded before they are made."""

    def __init__(self, service: Service, report: Callable[[Call], None]) -> None:
        self._service = service
        self._report = report

    def __mapping__(self) -> Mapping[str, Method]:
        return {path: self._record(path, method) for path, method in self._service.__mapping__().items()}

    def _record(self, path: str, method: Method) -> Method:
        async def call(stream: Stream[Message, Message]) -> None:
            self._report(Call(now(), path.rpartition("/")[2]))
            await method.func(stream)

        return method._replace(func=call)
