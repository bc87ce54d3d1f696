"""``plugind drain``: devices out of service."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches

import attrs

from ...protocol.leases.drains import NODE, DrainTarget
from ...protocol.leases.leases_json import LeaseJsonError, drain_to_json, lease_from_json
from ...protocol.leases.values import Lease, LeaseState
from ...protocol.text import escaped
from ..client.errors import ClientError
from ..client.lease_calls import draining
from ..client.reaching import WRITING
from ..client.transport import asked
from .answers import Daemon, Plugin, resources_in, resources_target
from .arguments import plugin_name, resource_name
from .client import fetch
from .devices import devices_in
from .ending import EXIT_OK, EXIT_UNREACHABLE, CommandError, complain, say
from .following import follow_until_over
from .lease_failures import EXIT_TIMED_OUT, fail
from .lease_words import holder_lines
from .output import add_output_argument
from .status_socket import add_status_argument, status_path
from .times import moment, span

_WATCH = "/v1/leases/watch"
_EPILOG = """examples:
  plugind drain vendor.com/gpu:gpu-0 --reason 'the fan is broken'
  plugind drain vendor.com/gpu --until 4h --wait 1h
  plugind drain --node --until 2027-01-31T18:00 --reason 'the rack moves' --wait

A TIME is 90, 90s, 15m, 2h or 1d; --until also takes a date, in local time unless it has an offset. At that time the
drain ends by itself. A drain outlives restarts of plugind and of the machine. Only root and the user of plugind may
drain. 'plugind devices' lists what is drained, and 'plugind undrain' ends it.

exit codes: 0 ok, 1 it is not allowed, or cannot be written, 2 usage, 69 no daemon answers, 124 with --wait: some
devices are still leased, 130 interrupted"""


def _drain_target(text: str) -> DrainTarget:
    """Return the target of ``RESOURCE`` or ``RESOURCE:ID``."""
    resource, given, device = text.partition(":")
    if given and not device:
        raise argparse.ArgumentTypeError(f"{text!r} names a device without an id")
    return DrainTarget(resource_name(resource), plugin_name(device) if given else None)


def add_drain_target(parser: argparse.ArgumentParser) -> None:
    """Add ``RESOURCE[:ID]`` and ``--node``, of which a command takes one."""
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "target",
        metavar="RESOURCE[:ID]",
        nargs="?",
        type=_drain_target,
        help="all devices of a resource, also later ones; or the one with this id, and its shares, ID::0 and so on",
    )
    target.add_argument("--node", action="store_true", help="all devices of the node, also later ones")


def drain_target_of(args: argparse.Namespace) -> DrainTarget:
    """Return what the arguments of :func:`add_drain_target` name."""
    target: DrainTarget = NODE if args.node else args.target
    return target


def _warn_of_unlisted(daemon: Daemon, target: DrainTarget) -> None:
    """Warn of a target of which nothing is listed, since it may be misspelt."""
    if target.resource is None:
        return
    with suppress(CommandError):  # What was asked for is done.
        resources = resources_in(fetch(daemon, resources_target(None)))
        ids = {str(one.get("resource")): [str(device.get("id")) for device in devices_in(one)] for one in resources}
        there = ids.get(target.resource)
        if there is not None and (target.device is None or any(target.covers(target.resource, each) for each in there)):
            return
        what, known = (target.resource, [*ids]) if there is None else (target.device or "", there)
        close = get_close_matches(what, known, 1)
        meant = f"; did you mean {escaped(close[0])}?" if close else ""
        complain(
            f"warning: nothing of {escaped(target.words)} is listed, so that is for devices that come later{meant}"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind drain``."""
    parser.description = (
        "Take a device, a resource or the node out of service: nothing of it is leased any more, and leases of it stay"
        " until they end. Repeat it to give another reason and another end."
    )
    parser.epilog = _EPILOG
    add_drain_target(parser)
    parser.add_argument("--reason", metavar="TEXT", default="", help="why; whoever gets no device is told")
    parser.add_argument("--until", metavar="TIME", type=moment, help="until then, or for so long (default: undrain)")
    parser.add_argument(
        "--wait",
        metavar="TIME",
        nargs="?",
        type=span,
        const=math.inf,
        help="wait until no lease has any of these devices, for so long at most (default: for ever)",
    )
    add_output_argument(parser, "the drain, and with --wait whether no lease has any of it, and the leases that have")
    add_status_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Take devices out of service, and wait until nobody has them; return the exit code."""
    path, target = status_path(args), drain_target_of(args)
    try:
        drain = asked(path, draining(target, args.reason, args.until), timeout=WRITING)
    except ClientError as error:
        return fail(error, args.output)
    if args.output == "text":
        say(f"drained: {escaped(drain.words)}\n", now=True)
    _warn_of_unlisted(Daemon(path), target)
    if args.wait is None:
        if args.output == "json":
            say(json.dumps(drain_to_json(drain)) + "\n")
        return EXIT_OK
    emptying = Emptying(target)
    follow_until_over(Daemon(path), emptying, args.wait, _WATCH)
    if args.output == "json":
        said = {**drain_to_json(drain), "empty": emptying.over, "leases": [*emptying.holders]}
        say(json.dumps(said) + "\n")
    if emptying.over:
        if args.output == "text":
            say(f"no lease has anything of {escaped(target.words)}\n")
        return EXIT_OK
    if emptying.failure is not None:
        complain(emptying.failure.line)
        return EXIT_UNREACHABLE
    complain(f"some of {escaped(target.words)} is still leased after {args.wait:g} s")
    with suppress(OSError):
        sys.stderr.write("".join(f"  {line}\n" for line in holder_lines(emptying.holders.values())))
    return EXIT_TIMED_OUT


@attrs.define
class Emptying:
    """The leases that have devices of a target, as the daemon reports them."""

    target: DrainTarget
    failure: CommandError | None = None
    has_list: bool = False
    holders: dict[str, Lease] = attrs.field(factory=dict)

    @property
    def over(self) -> bool:
        """Whether no lease has any."""
        return self.has_list and not self.holders

    def clear(self) -> None:
        """Drop the leases that an earlier watch has reported."""
        self.holders.clear()

    def note(self, line: Plugin) -> None:
        """Record how a lease is now."""
        try:
            lease = lease_from_json(line)
        except LeaseJsonError as error:
            raise CommandError(f"the daemon's answer about leases cannot be understood: {error}") from error
        if lease.state is not LeaseState.GONE and any(self._own(lease)):
            self.holders[lease.id] = lease
        else:
            self.holders.pop(lease.id, None)

    def _own(self, lease: Lease) -> Iterator[bool]:
        return (self.target.covers(name, device) for name, devices in lease.devices.items() for device in devices)
