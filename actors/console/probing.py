"""The checks of ``plugind probe``, in the order in which a daemon makes them.

The rules are not repeated here: :func:`~plugind.protocol.plugins.info.check_info` checks the info, and the daemon's
handler everything that depends on the type. Without ``--notify`` and ``--exercise`` a probe changes nothing: it calls
GetInfo, and opens a call that it does not complete.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...protocol.discovery.endpoints import default_directories
from ...protocol.errors import PluginError, ValidationError
from ...protocol.plugins.info import BUILT_IN_TYPES, DEVICE, InfoLimits, InstancePolicy, Plugin, PluginInfo, check_info
from ...protocol.plugins.status import Outcome
from ...protocol.proto.pluginregistration_grpc import RegistrationStub
from ...protocol.proto.pluginregistration_pb2 import InfoRequest, RegistrationStatus
from ...protocol.settings.config import Timeouts
from ...protocol.text import in_seconds
from ...protocol.wire.errors import DialError, DialFailure, WireError, WireProblem
from ...protocol.wire.limits import REGISTRATION_LIMITS
from ...protocol.world.claims import taken, taken_by_another_user
from ...protocol.world.endpoint_owners import belongs_to
from ..devices.follower import CONNECT_TIMEOUT
from ..devices.handler import DevicePluginHandler
from ..grpc.client.channel import Channel
from ..grpc.client.dial import dial
from ..grpc.endpoints import Endpoints, RealEndpointFiles
from ..handlers.csi.handler import CSIHandler
from ..handlers.dra.handler import DRAHandler
from ..handlers.handler import Handler, policy_of
from ..handlers.served import validate
from ..io.connecting import MAX_PATH
from ..io.file_identity import identity_at
from ..io.unix_socket import Credentials
from ..registration.conversation import bounded_info_type
from .beside import Other, owner_of_endpoint
from .exercise import exercise
from .findings import Clock, Fate, Findings, ProbeOptions, ProbeResult, ProbeStep, StopError, Verdict
from .kubelet_calls import CALLED_TYPES, calls_to, get_options, within
from .probe_places import as_discovered, check_place, distrust, root_at, say_whose_rules

#: The least and the most seconds for a server to refuse an unknown method. It does so upon the headers of the call,
#: before any code of the plugin runs; a server that is silent for that time knows the method.
UNKNOWN_METHOD = (0.25, 1.0)
_DAEMON = Timeouts()


async def probe(
    path: str,
    handlers: Mapping[str, Handler],
    options: ProbeOptions,
    on_step: Callable[[ProbeStep], None],
    others: Sequence[Other] | None = None,
) -> ProbeResult:
    """Probe the registration socket at ``path``; call ``on_step`` with each completed step.

    ``handlers`` are those of the daemon, by type. ``others`` are the plugins that it has registered, if it was asked.
    """
    found = Findings(on_step)
    with suppress(StopError):
        say_whose_rules(found, options)
        whole = _check_path(found, path, options)
        check_place(found, whole, options)
        deadline = trio.current_time() + options.timeout
        channel = await _connect(found, whole, options, deadline)
        try:
            info, took = await _ask(found, channel, whole, options, deadline)
            _judge_endpoint(found, info, whole, options)
            await _check_type(found, info, whole, handlers, options, others)
            called = _is_called(info, handlers, options)
            await _check_endpoint(found, info, channel, whole, options, deadline, called=called)
            if options.notify and found.fate is Fate.REGISTERED:
                await _notify(found, channel, deadline)
                if options.exercise and found.fate is Fate.REGISTERED:
                    await _exercise(found, info, whole, options)
            else:
                await _look_for_notify(found, channel, deadline, took)
        finally:
            channel.close()
    return ProbeResult(tuple(found.steps), found.fate)


# --- the path ---------------------------------------------------------------------------------------------------------


def _check_path(found: Findings, path: str, options: ProbeOptions) -> str:
    """Check the file at ``path``, and return the absolute path."""
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise found.stop("path", f"{path}: {reason}", Fate.IGNORED) from error
    if stat.S_ISLNK(mode):
        raise _link(found, path)
    if not stat.S_ISSOCK(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "no socket"
        raise found.stop("path", f"{path} is {kind}", Fate.IGNORED)
    if os.path.basename(path).startswith("."):
        found.wrong("path", f"{path} begins with a dot, so that daemons ignore it", Fate.IGNORED)
    else:
        found.note("path", Verdict.OK, f"{path} is a socket, mode {stat.S_IMODE(mode):04o}")
    if mode & 0o002:
        found.note("permissions", Verdict.WARNING, "every user may connect; make the socket with umask 0077")
    whole = as_discovered(path, options)
    _check_length(found, whole, options)
    return whole


def _link(found: Findings, path: str) -> StopError:
    """Record how a daemon treats the symbolic link at ``path`` (fault 7)."""
    try:
        leads_to_socket = stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        leads_to_socket = False
    if leads_to_socket:
        detail = f"{path} is a symbolic link, which daemons refuse: make the socket itself there"
        return found.stop("path", detail, Fate.PARKED)
    return found.stop("path", f"{path} is a symbolic link that leads to no socket", Fate.IGNORED)


def _check_length(found: Findings, path: str, options: ProbeOptions) -> None:
    length = len(os.fsencode(path))
    if length <= MAX_PATH:
        return
    if options.strict:
        found.wrong("path length", f"the path has {length} bytes, and the kubelet reaches {MAX_PATH}", Fate.FAILED)
    else:
        detail = f"the path has {length} bytes; plugind reaches it all the same, others only up to {MAX_PATH}"
        found.note("path length", Verdict.WARNING, detail)


# --- the conversation -------------------------------------------------------------------------------------------------

_HINTS = {
    DialFailure.GONE: "is the plugin running, and is this the path that it listens on?",
    DialFailure.REFUSED: "a stale socket of a process that is gone, or bind without listen; a daemon shows it as stale",
    DialFailure.DENIED: "the daemon needs write permission on the socket and search permission on its directories",
    DialFailure.NOT_A_STREAM: "the plugin must listen on a stream socket",
    DialFailure.TIMED_OUT: "the plugin does not accept connections: is its event loop blocked?",
}
_DIAL_FATES = {
    DialFailure.REFUSED: Fate.STALE,
    DialFailure.NOT_A_STREAM: Fate.PARKED,
    DialFailure.BAD_PATH: Fate.PARKED,
    DialFailure.UNTRUSTED: Fate.PARKED,
}
_PLAIN = "gRPC on a unix socket is plain HTTP/2, without TLS"


async def _connect(found: Findings, path: str, options: ProbeOptions, deadline: float) -> Channel:
    clock = Clock(deadline)
    judge = partial(distrust, path=path, options=options)
    try:
        channel = await dial(path, timeout=clock.left, judge=judge, limits=REGISTRATION_LIMITS)
    except DialError as error:
        hint = _HINTS.get(error.kind)
        detail = f"{error.message}: {hint}" if hint else error.message
        raise found.stop("connect", detail, _DIAL_FATES.get(error.kind, Fate.FAILED), clock.took) from error
    peer = channel.peer
    who = "" if peer is None else f", process {peer.pid} of user {peer.uid} listens"
    found.note("connect", Verdict.OK, f"accepted{who}", clock.took)
    return channel


async def _ask(
    found: Findings, channel: Channel, path: str, options: ProbeOptions, deadline: float
) -> tuple[PluginInfo, float]:
    """Return the plugin's info, and how many seconds it took."""
    clock, limits = Clock(deadline), InfoLimits()
    try:
        stub = channel.stub(RegistrationStub)
        stub.GetInfo.reply_type = bounded_info_type(limits)
        reply = await stub.GetInfo(InfoRequest(), timeout=clock.left)
    except GRPCError as error:
        if error.status is Status.UNIMPLEMENTED:
            await _ask_caller(found, channel, path, options, deadline, clock.took)
        fate = Fate.PARKED if error.status is Status.UNIMPLEMENTED else Fate.FAILED
        raise found.stop("GetInfo", _get_info_failed(error, channel, clock), fate, clock.took) from error
    took = clock.took
    if took > _DAEMON.get_info:
        detail = f"answered after {took:.1f} s; a daemon waits no longer than {_DAEMON.get_info:g} s once it is read"
        found.wrong("GetInfo", detail, Fate.FAILED, took)
    else:
        found.note("GetInfo", Verdict.OK, "answered", took)
    peer = channel.peer
    # One more than allowed is enough to refuse it, as in a conversation (fault 51).
    versions = tuple(islice(reply.supported_versions, limits.max_versions + 1))
    try:
        uid = None if peer is None else peer.uid
        info = check_info(reply.type, reply.name, reply.endpoint, versions, socket=path, uid=uid, limits=limits)
    except ValidationError as error:
        raise found.stop("info", str(error), Fate.FAILED) from error
    found.note("info", Verdict.OK, f"type {info.type}, name {info.name}, versions {', '.join(info.versions) or 'none'}")
    return info, took


async def _ask_caller(
    found: Findings, channel: Channel, path: str, options: ProbeOptions, deadline: float, took: float
) -> None:
    """Find out whether this is a device plugin that registers by a call, as most do, and serves no GetInfo.

    Raises:
      StopError: if it is.
    """
    clock = Clock(deadline)
    try:
        _, answer = await within(clock.left, get_options, channel)
    except PluginError:
        return
    found.note("GetInfo", Verdict.OK, "not served, which a device plugin that registers by a call need not do", took)
    said = f"{answer}: it registers by a call on kubelet.sock beside its socket"
    found.note("GetDevicePluginOptions", Verdict.OK, said, clock.took)
    found.fate = Fate.BY_CALL
    if options.exercise:
        judge = partial(distrust, path=path, options=options)
        await exercise(found, partial(dial, path, timeout=CONNECT_TIMEOUT, judge=judge))
    raise StopError


def _judge_endpoint(found: Findings, info: PluginInfo, path: str, options: ProbeOptions) -> None:
    """Check whether a daemon accepts the plugin's endpoint (fault 43); the kubelet accepts any."""
    if options.strict:
        return
    defaults = () if options.roots else default_directories([root_at(path, options).path])
    try:
        judge = Endpoints(RealEndpointFiles(), (*defaults, *options.endpoint_directories), options.asked)
        judge.judge(info.endpoint, path, identity_at(os.lstat(path), path))
    except ValidationError as error:
        raise found.stop("info", str(error), Fate.FAILED) from error
    except OSError as error:
        raise found.stop("path", f"{path}: {error.strerror}", Fate.IGNORED) from error


def _get_info_failed(error: GRPCError, channel: Channel, clock: Clock) -> str:
    if error.status is Status.DEADLINE_EXCEEDED and not clock.left:
        return f"no answer in {clock.took:.1f} s; a daemon waits no longer than {_DAEMON.get_info:g} s once it is read"
    text = f"{error.status.name}: {error.message or 'no message'}"
    if error.status is Status.UNIMPLEMENTED:
        return f"{text}; the server does not serve pluginregistration.Registration"
    cause = error.__cause__
    if isinstance(cause, WireError) and cause.problem is WireProblem.NOT_HTTP2:
        return f"{text}; {_PLAIN}"
    if isinstance(cause, WireError) and cause.problem is WireProblem.CLOSED and not channel.connection.settled:
        return f"{text}, as servers do that expect TLS; {_PLAIN}"
    return text


# --- the plugin's info ------------------------------------------------------------------------------------------------


async def _check_type(
    found: Findings,
    info: PluginInfo,
    path: str,
    handlers: Mapping[str, Handler],
    options: ProbeOptions,
    others: Sequence[Other] | None,
) -> None:
    handler = handlers.get(info.type)
    if handler is None:
        found.wrong("type", _no_handler(info.type, path, handlers), Fate.NO_HANDLER)
        return
    if options.strict and info.type not in BUILT_IN_TYPES:
        detail = f"the kubelet has no handler for {info.type}, only for {', '.join(BUILT_IN_TYPES)}"
        found.wrong("type", detail, Fate.NO_HANDLER)
    if others is not None:
        await _check_claim(found, info, path, handler, options, others)
    plugin = Plugin(
        info.type,
        info.name,
        info.endpoint,
        info.versions,
        path,
        1,
        root_at(path, options).deprecated and not options.strict,
        options.strict or options.users.is_privileged(info.uid),
    )
    outcome, error = await validate(handler, plugin, _DAEMON.of_handler(plugin.type))
    if outcome is Outcome.OK:
        # The calls of a built-in handler's register are made here, too.
        rest = "" if info.type in BUILT_IN_TYPES else "; its register was not called, and may still refuse it"
        found.note("validation", Verdict.OK, f"the handler for {info.type} accepts its name and versions{rest}")
    else:
        found.wrong("validation", error, Fate.FAILED)


async def _check_claim(
    found: Findings,
    info: PluginInfo,
    path: str,
    handler: Handler,
    options: ProbeOptions,
    others: Sequence[Other],
) -> None:
    """Check the plugin's name and endpoint against the others, with which some handlers compare it."""
    if isinstance(handler, CSIHandler | DRAHandler):
        for other in others:
            if other.plugin.type == info.type:
                handler.drivers.add(attrs.evolve(other.plugin, privileged=_counts_always(other.uid, options)))
    # The kubelet does not check which user has a name.
    same = {
        other.plugin.socket: info.uid if options.strict else other.uid
        for other in others
        if (other.plugin.type, other.plugin.name) == (info.type, info.name)
    }
    succeeds = options.users.is_privileged(info.uid)
    holders = [socket for socket, uid in same.items() if not succeeds or _counts_always(uid, options)]
    problem = taken_by_another_user(info, same.items(), options.users)
    if problem is not None:
        found.wrong("claim", problem, Fate.FAILED)
    elif holders and policy_of(handler) is InstancePolicy.REJECT:
        found.wrong("claim", taken(info, holders[0]), Fate.FAILED)
    elif not options.strict and (owner := owner_of_endpoint(info, path, others, options.users)) is not None:
        found.wrong("claim", belongs_to(info.endpoint, owner), Fate.FAILED)
    elif same:
        found.note("claim", Verdict.OK, f"the name is shared with {', '.join(same)}")
    else:
        found.note("claim", Verdict.OK, "no other plugin of the daemon has the name")


def _counts_always(uid: int | None, options: ProbeOptions) -> bool:
    """Whether a plugin of this user counts against privileged ones too, like one of an unknown user."""
    return options.strict or uid is None or options.users.is_privileged(uid)


def _no_handler(plugin_type: str, path: str, handlers: Mapping[str, Handler]) -> str:
    meant = _meant(plugin_type, handlers)
    advice = f"did you mean {meant}?" if meant else f"there are {', '.join(sorted(handlers))}"
    return f"no handler registered for plugin type: {plugin_type} at socket {path}: {advice}"


def _meant(plugin_type: str, types: Iterable[str]) -> str | None:
    """Return the one of ``types`` that is most similar to ``plugin_type``; None if none is similar."""
    stems = {_stem(name): name for name in types}
    close = difflib.get_close_matches(_stem(plugin_type), stems, n=1, cutoff=0.7)
    return stems[close[0]] if close else None


def _stem(plugin_type: str) -> str:
    """Return the distinctive part of a type: "csi" for "CSI-Driver", for "CSIPlugin" and for "CSIPlugn"."""
    return re.sub("pl?u?gi?ns?|drivers?|[^a-z]", "", plugin_type.lower())


def _is_called(info: PluginInfo, handlers: Mapping[str, Handler], options: ProbeOptions) -> bool:
    """Whether the endpoint is called at Register: by the kubelet if ``strict``, else by a daemon."""
    handler = handlers.get(info.type)
    return info.type in CALLED_TYPES and (options.strict or isinstance(handler, CSIHandler | DevicePluginHandler))


async def _check_endpoint(
    found: Findings,
    info: PluginInfo,
    channel: Channel,
    path: str,
    options: ProbeOptions,
    deadline: float,
    *,
    called: bool,
) -> None:
    """Connect to the endpoint; if it is ``called`` at Register, make that call."""
    if info.endpoint == path:
        found.note("endpoint", Verdict.OK, "the registration socket itself")
        if called:
            await _check_consumer(found, info, channel, path, options, deadline)
        return
    _check_length(found, info.endpoint, options)
    clock = Clock(deadline)
    try:
        own = await dial(info.endpoint, timeout=clock.left)
    except DialError as error:
        found.wrong("endpoint", error.message, Fate.FAILED if called else Fate.UNUSABLE, clock.took)
        return
    try:
        problem = None
        if own.peer is not None and not options.strict:
            problem = options.trust.refusal(own.peer.uid, own.peer.pid, options.users)
        if problem is not None:
            fate = Fate.FAILED if called else Fate.UNUSABLE
            found.wrong("endpoint", f"{info.endpoint} is not used: {problem}", fate, clock.took)
            return
        found.note("endpoint", Verdict.OK, f"{info.endpoint} accepts connections", clock.took)
        if called:
            await _check_consumer(found, info, own, path, options, deadline)
    finally:
        own.close()


async def _check_consumer(
    found: Findings, info: PluginInfo, channel: Channel, path: str, options: ProbeOptions, deadline: float
) -> None:
    """Make the calls of a registration, up to the first one that fails."""
    plugin = Plugin(info.type, info.name, info.endpoint, info.versions, path, 1)
    for method, call in calls_to(plugin, strict=options.strict).items():
        clock = Clock(deadline)
        try:
            verdict, said = await within(clock.left, call, channel)
        except PluginError as error:
            found.wrong(method, str(error), Fate.FAILED, clock.took)
            return
        found.note(method, verdict, said, clock.took)


# --- the notification -------------------------------------------------------------------------------------------------

_NOTIFY = "NotifyRegistrationStatus"
_NOT_SERVED = "the plugin cannot be told that it is registered; serve this method too"


async def _look_for_notify(found: Findings, channel: Channel, deadline: float, get_info_took: float) -> None:
    """Find out whether the server implements the method, without calling it: the call is reset before its message.

    No code of the plugin runs, so a registered plugin is not disturbed, and an unregistered one gets no wrong
    notification. A server that was slow to answer ``GetInfo`` has more time.
    """
    clock = Clock(deadline)
    least, most = UNKNOWN_METHOD
    patience = min(max(least, 4 * get_info_took), most, clock.left)
    try:
        async with channel.stub(RegistrationStub).NotifyRegistrationStatus.open(timeout=patience) as stream:
            await stream.send_request()
            await stream.recv_initial_metadata()
            await stream.cancel()
    except GRPCError as error:
        if error.status is Status.UNIMPLEMENTED:
            _not_served(found, error, clock)
            return
        if isinstance(error.__cause__, WireError):
            detail = f"{error.status.name}: {error.message}"
            found.note(_NOTIFY, Verdict.WARNING, f"the call could not be opened: {detail}", clock.took)
            return
    found.note(_NOTIFY, Verdict.OK, "the server has this method; it was not called (--notify calls it)")


def _not_served(found: Findings, error: GRPCError, clock: Clock) -> None:
    said = f"UNIMPLEMENTED ({error.message or 'no message'})"
    found.wrong(_NOTIFY, f"{said}: {_NOT_SERVED}", Fate.DEREGISTERED, clock.took)


async def _notify(found: Findings, channel: Channel, deadline: float) -> None:
    clock = Clock(deadline)
    stub = channel.stub(RegistrationStub)
    timeout = min(clock.left, _DAEMON.notify)
    try:
        await stub.NotifyRegistrationStatus(RegistrationStatus(plugin_registered=True), timeout=timeout)
    except GRPCError as error:
        if error.status is Status.UNIMPLEMENTED:
            _not_served(found, error, clock)
        else:
            found.wrong(_NOTIFY, _notify_failed(error, clock, timeout), Fate.DEREGISTERED, clock.took)
        return
    found.note(_NOTIFY, Verdict.OK, "taken", clock.took)


async def _exercise(found: Findings, info: PluginInfo, path: str, options: ProbeOptions) -> None:
    """Exercise a device plugin on its endpoint. The process that listens there is judged again."""
    if info.type != DEVICE:
        found.note("exercise", Verdict.WARNING, f"only device plugins are exercised, and the type is {info.type}")
        return

    def judge(peer: Credentials) -> str | None:
        if info.endpoint == path:
            return distrust(peer, path, options)
        return None if options.strict else options.trust.refusal(peer.uid, peer.pid, options.users)

    await exercise(found, partial(dial, info.endpoint, timeout=CONNECT_TIMEOUT, judge=judge))


def _notify_failed(error: GRPCError, clock: Clock, timeout: float) -> str:
    if error.status is Status.DEADLINE_EXCEEDED and clock.took >= timeout:
        shorter = f"; a daemon waits no longer than {_DAEMON.notify:g} s" if timeout < _DAEMON.notify else ""
        return f"no answer in {in_seconds(timeout)}{shorter}"
    return f"{error.status.name}: {error.message or 'no message'}"
