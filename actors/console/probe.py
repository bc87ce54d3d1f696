"""``plugind probe``: whether a daemon would register a plugin's socket, step by step, without a daemon.

The plugin author's first tool. It looks at the path, dials, asks GetInfo, holds the answer against every rule, and
dials the endpoint; it notifies only when told to, since a registrar may act on that.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import enum
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...protocol.config import Timeouts
from ...protocol.errors import ValidationError
from ...protocol.plugins import (
    BUILT_IN_TYPES,
    CSI,
    DEVICE,
    DRA,
    InfoLimits,
    PluginInfo,
    check_csi_versions,
    check_extended_resource,
    check_info,
    choose_dra_service,
)
from ...protocol.proto.pluginregistration_grpc import RegistrationStub
from ...protocol.proto.pluginregistration_pb2 import InfoRequest, RegistrationStatus
from ...protocol.status_json import Json
from ...protocol.text import cut, encodable, escaped
from ...protocol.wire.errors import DialError, DialFailure
from ..io.grpc_client.channel import Channel
from ..io.grpc_client.dial import dial
from ..io.unix_socket import MAX_PATH
from .arguments import seconds
from .ending import EXIT_FAILED, EXIT_OK

#: Seconds for the whole probe where ``--timeout`` is not given.
TIMEOUT = 10.0
#: Characters of a detail (fault 94).
MAX_DETAIL = 2048
_DAEMON = Timeouts()


class Verdict(enum.StrEnum):
    """The result of a step."""

    OK = "ok"
    #: A daemon would go on, but the author should know.
    WARNING = "warning"
    WRONG = "wrong"


@attrs.frozen
class ProbeStep:
    """One thing that was checked."""

    step: str
    verdict: Verdict
    detail: str
    #: Seconds that it took; None where nothing was waited for.
    seconds: float | None = None


class _StopError(Exception):
    """The steps after this one make no sense."""


_HINTS = {
    DialFailure.GONE: "is the plugin running, and is this the path that it listens on?",
    DialFailure.REFUSED: "a stale socket of a process that is gone, or bind without listen; a daemon shows it as stale",
    DialFailure.DENIED: "the daemon needs write permission on the socket and search permission on its directories",
    DialFailure.NOT_A_STREAM: "the plugin must listen on a stream socket",
    DialFailure.TIMED_OUT: "the plugin does not accept connections: is its event loop blocked?",
}


@attrs.define
class _Probe:
    """The steps so far; each is printed as it is done, unless JSON is asked for."""

    _quiet: bool
    steps: list[ProbeStep] = attrs.field(factory=list)

    def note(self, step: str, verdict: Verdict, detail: str, seconds: float | None = None) -> None:
        done = ProbeStep(step, verdict, cut(detail, MAX_DETAIL), seconds)
        self.steps.append(done)
        if not self._quiet:
            sys.stdout.write(_line(done))
            sys.stdout.flush()

    def stop(self, step: str, detail: str, seconds: float | None = None) -> _StopError:
        """Note what is wrong; the result is to be raised."""
        self.note(step, Verdict.WRONG, detail, seconds)
        return _StopError(detail)

    @contextmanager
    def rule(self, step: str) -> Iterator[None]:
        """Note the error of a rule that is broken; the steps go on."""
        try:
            yield
        except ValidationError as error:
            self.note(step, Verdict.WRONG, str(error))

    @property
    def well(self) -> bool:
        return all(step.verdict is not Verdict.WRONG for step in self.steps)


def _line(step: ProbeStep) -> str:
    sign = {Verdict.OK: "✓", Verdict.WARNING: "!", Verdict.WRONG: "✗"}[step.verdict]
    took = "" if step.seconds is None else f" ({step.seconds * 1000:.1f} ms)"
    return f"{sign} {step.step}: {escaped(step.detail)}{took}\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind probe``."""
    parser.description = (
        "Say step by step what a daemon would make of a plugin's registration socket. No daemon is needed, and the"
        " plugin is not notified unless --notify is given. Exit 0 if all is right, else 1."
    )
    parser.epilog = "examples:\n  plugind probe ./my-plugin-reg.sock\n  plugind probe /run/a.sock --json --timeout 3"
    parser.add_argument("socket", metavar="SOCKET", help="the path of the registration socket")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=seconds(0.01, 86_400.0),
        default=TIMEOUT,
        help="for the whole probe, in seconds (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object: the steps and the result")
    parser.add_argument(
        "--notify", action="store_true", help="also tell the plugin that it is registered, as a daemon would"
    )


def run(args: argparse.Namespace) -> int:
    """Probe a plugin; return the exit code."""
    steps = trio.run(partial(probe, args.socket, timeout=args.timeout, notify=args.notify, quiet=args.json))
    well = all(step.verdict is not Verdict.WRONG for step in steps)
    if args.json:
        result = {"socket": encodable(args.socket), "ok": well, "steps": [_to_json(step) for step in steps]}
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        remark = "" if args.notify else "; the plugin was not notified"
        sys.stdout.write(f"a daemon would register this plugin{remark}\n" if well else "not acceptable: see ✗ above\n")
    return EXIT_OK if well else EXIT_FAILED


def _to_json(step: ProbeStep) -> dict[str, Json]:
    return {
        "step": step.step,
        "verdict": step.verdict.value,
        "detail": encodable(step.detail),
        "seconds": None if step.seconds is None else round(step.seconds, 6),
    }


async def probe(path: str, *, timeout: float, notify: bool = False, quiet: bool = True) -> list[ProbeStep]:
    """Probe the registration socket at ``path`` within ``timeout`` seconds, and return what was found."""
    found = _Probe(quiet)
    try:
        whole = _check_path(found, path)
        deadline = trio.current_time() + timeout
        channel = await _dial(found, path, deadline)
        try:
            info = await _ask(found, channel, whole, deadline)
            _check_rules(found, info)
            await _check_endpoint(found, info, whole, deadline)
            if notify and found.well:
                await _notify(found, channel, deadline)
        finally:
            channel.close()
    except _StopError:
        pass
    return found.steps


def _check_path(found: _Probe, path: str) -> str:
    """Check what is at ``path``, and return the absolute path."""
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise found.stop("path", f"{path}: {reason}") from error
    if stat.S_ISLNK(mode):
        raise found.stop("path", f"{path} is a symbolic link, which daemons refuse: make the socket itself there")
    if not stat.S_ISSOCK(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "no socket"
        raise found.stop("path", f"{path} is {kind}")
    if os.path.basename(path).startswith("."):
        found.note("path", Verdict.WRONG, f"{path} begins with a dot, so that daemons ignore it")
    else:
        found.note("path", Verdict.OK, f"{path} is a socket, mode {stat.S_IMODE(mode):04o}")
    if mode & 0o002:
        found.note("permissions", Verdict.WARNING, "every user may connect; make the socket with umask 0077")
    whole = os.path.abspath(path)
    length = len(os.fsencode(whole))
    if length > MAX_PATH:
        found.note(
            "path length",
            Verdict.WARNING,
            f"the path has {length} bytes; plugind reaches it all the same, others only up to {MAX_PATH}",
        )
    return whole


async def _dial(found: _Probe, path: str, deadline: float) -> Channel:
    began = trio.current_time()
    try:
        channel = await dial(path, timeout=max(0.0, deadline - began))
    except DialError as error:
        hint = _HINTS.get(error.kind)
        detail = f"{error.message}: {hint}" if hint else error.message
        raise found.stop("connect", detail, trio.current_time() - began) from error
    peer = channel.peer
    who = "" if peer is None else f", process {peer.pid} of user {peer.uid} listens"
    found.note("connect", Verdict.OK, f"accepted{who}", trio.current_time() - began)
    return channel


async def _ask(found: _Probe, channel: Channel, path: str, deadline: float) -> PluginInfo:
    began = trio.current_time()
    try:
        reply = await channel.stub(RegistrationStub).GetInfo(InfoRequest(), timeout=max(0.0, deadline - began))
    except GRPCError as error:
        hint = (
            ": the server does not serve pluginregistration.Registration"
            if error.status is Status.UNIMPLEMENTED
            else ""
        )
        took = trio.current_time() - began
        raise found.stop("GetInfo", f"{error.status.name}: {error.message or 'no message'}{hint}", took) from error
    took = trio.current_time() - began
    verdict = Verdict.WRONG if took > _DAEMON.get_info else Verdict.OK
    late = f"; a daemon waits no longer than {_DAEMON.get_info:g} s" if took > _DAEMON.get_info else ""
    found.note("GetInfo", verdict, f"answered{late}", took)
    try:
        versions = tuple(reply.supported_versions)
        info = check_info(reply.type, reply.name, reply.endpoint, versions, socket=path, limits=InfoLimits())
    except ValidationError as error:
        raise found.stop("info", str(error)) from error
    found.note("info", Verdict.OK, f"type {info.type}, name {info.name}, versions {', '.join(info.versions) or 'none'}")
    return info


def _check_rules(found: _Probe, info: PluginInfo) -> None:
    with found.rule("type rules"):
        if info.type == CSI:
            highest = check_csi_versions(info.versions)
            found.note("type rules", Verdict.OK, f"CSI version {'.'.join(map(str, highest.numbers))} is supported")
        elif info.type == DEVICE:
            check_extended_resource(info.name)
            found.note("type rules", Verdict.OK, f"{info.name} is an extended resource")
        elif info.type == DRA:
            service = choose_dra_service(info.versions)
            found.note("type rules", Verdict.OK, f"the DRA service {service} would be called")
        else:
            found.note(
                "type rules",
                Verdict.WARNING,
                f"{info.type} is none of the built-in types {', '.join(BUILT_IN_TYPES)}: a daemon without a handler for"
                " it tells the plugin no, and parks it",
            )


async def _check_endpoint(found: _Probe, info: PluginInfo, path: str, deadline: float) -> None:
    if info.endpoint == path:
        found.note("endpoint", Verdict.OK, "the registration socket itself")
        return
    began = trio.current_time()
    try:
        channel = await dial(info.endpoint, timeout=max(0.0, deadline - began))
    except DialError as error:
        found.note("endpoint", Verdict.WRONG, error.message, trio.current_time() - began)
        return
    channel.close()
    found.note("endpoint", Verdict.OK, f"{info.endpoint} accepts connections", trio.current_time() - began)


async def _notify(found: _Probe, channel: Channel, deadline: float) -> None:
    began = trio.current_time()
    stub = channel.stub(RegistrationStub)
    try:
        timeout = max(0.0, deadline - began)
        await stub.NotifyRegistrationStatus(RegistrationStatus(plugin_registered=True), timeout=timeout)
    except GRPCError as error:
        detail = f"{error.status.name}: {error.message or 'no message'}"
        found.note("NotifyRegistrationStatus", Verdict.WRONG, detail, trio.current_time() - began)
        return
    found.note("NotifyRegistrationStatus", Verdict.OK, "taken", trio.current_time() - began)
