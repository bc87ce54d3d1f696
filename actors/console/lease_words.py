"""Leases in words for people: the owner, the devices, the start and the end."""

from __future__ import annotations

import pwd
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterable, Iterator
from shlex import quote
from typing import assert_never

from ...protocol.leases.asked_json import MAX_UID
from ...protocol.leases.values import (
    ConnectionOwner,
    ContainerOwner,
    Lease,
    LeaseState,
    NoOwner,
    ProcessOwner,
    TimeOwner,
)
from ...protocol.text import escaped
from .phrases import by_the_clock, duration, time_of_day
from .times import past


def holder_lines(leases: Iterable[Lease]) -> Iterator[str]:
    """Yield a line for each lease whose devices were asked for."""
    for lease in leases:
        what = ", ".join(device_words(lease)) or wanted_words(lease)
        yield f"{what}: {escaped(lease.id)}, {owner_and_user(lease)}, for {duration(_age(lease))}, {until(lease)}"


def device_words(lease: Lease) -> list[str]:
    """Return the devices of a lease, with the resource if there are several."""
    several = len(lease.devices) > 1
    return [
        escaped(f"{resource}={device}" if several else device)
        for resource, devices in lease.devices.items()
        for device in devices
    ]


def devices_by_resource(lease: Lease, *, counted: bool = False) -> str:
    """Return the devices of a lease, ``R=id,id;R2=id``; with ``counted`` how many they are, ``R=2;R2=1``.

    A lease without devices shows what it waits for.
    """
    if counted:
        numbers = {wanted.resource: wanted.count for wanted in lease.request.wanted}
        return ";".join(f"{escaped(resource)}={number}" for resource, number in numbers.items())
    named = [f"{escaped(resource)}={','.join(map(escaped, ids))}" for resource, ids in lease.devices.items()]
    return ";".join(named) or wanted_words(lease)


def wanted_words(lease: Lease) -> str:
    """Return the devices that a lease waits for."""
    return ",".join(f"{wanted.count} of {escaped(wanted.resource)}" for wanted in lease.request.wanted)


def since(lease: Lease) -> str:
    """Return how long ago a lease was asked for, like a clock: ``00:12:09``."""
    return by_the_clock(_age(lease))


def _age(lease: Lease) -> float:
    return max(0.0, time.time() - lease.created)


def owner_and_user(lease: Lease) -> str:
    """Return the owner of a lease, and its user; only the user if there is no owner."""
    if isinstance(lease.owner, TimeOwner | NoOwner):
        return user(lease.uid)
    return f"{owner(lease)} of {user(lease.uid)}"


def owner(lease: Lease) -> str:
    """Return the owner of a lease: ``pid 991``."""
    match lease.owner:
        case ProcessOwner():
            return f"pid {lease.owner.process.pid}"
        case ContainerOwner(init=None):
            return "container"
        case ContainerOwner():
            return f"container {lease.owner.init.pid}" if lease.owner.init else "container"
        case TimeOwner():
            return "time"
        case ConnectionOwner():
            return "connection"
        case NoOwner():
            return "nobody"
        case _:
            assert_never(lease.owner)


def until(lease: Lease) -> str:
    """Return until when a lease is held."""
    if lease.state is LeaseState.QUEUED:
        return "before this one in line"
    if lease.withheld_until is not None:
        return f"{lease.state} until {withheld_until(lease.withheld_until)}"
    if lease.state is not LeaseState.HELD:
        return f"{lease.state}"
    longest = _longest(lease)
    return f"{_until_owner_ends(lease)}{f', {longest}' if longest else ''}"


def _until_owner_ends(lease: Lease) -> str:
    match lease.owner:
        case ProcessOwner():
            return "until the process ends"
        case ContainerOwner(init=None, start_within=seconds) if seconds is not None:
            return f"until its container starts, at most {duration(seconds)}"
        case ContainerOwner(start_within=seconds) if seconds is not None:
            return "until the container ends"
        case TimeOwner():
            return f"for another {duration(_left(lease.owner))}"
        case ConnectionOwner():
            return "until it closes"
        case NoOwner() | ContainerOwner():
            return f"until it is released: plugind release {pasted(lease.id)}"
        case _:
            assert_never(lease.owner)


def withheld_until(when: float) -> str:
    """Return until when the devices of an uncertain lease are withheld: the end of its plugin may free them earlier."""
    return f"{time_of_day(when, time.time())} at the latest"


def pasted(lease: str) -> str:
    """Return the id of a lease as a shell takes it in a command that is shown."""
    return escaped(quote(lease) if not lease.startswith("-") else f"-- {quote(lease)}")


def end(lease: Lease) -> str:
    """Return what ends a lease, in a word or two."""
    if lease.withheld_until is not None:
        return time_of_day(lease.withheld_until, time.time())
    if (longest := _longest(lease)) is not None:
        return longest
    match lease.owner:
        case ContainerOwner(start_within=None):
            return "released"
        case ProcessOwner() | ContainerOwner() | ConnectionOwner():
            return "it ends"
        case TimeOwner():
            return left(lease.owner)
        case NoOwner():
            return "released"
        case _:
            assert_never(lease.owner)


def _longest(lease: Lease) -> str | None:
    """Return when the longest time of a lease is over, ``at most 7h58m``; None if it has none, or a time of its own."""
    if lease.overdue:
        return "overdue"
    if lease.longest_until is None or isinstance(lease.owner, TimeOwner):
        return None
    return f"at most {duration(_seconds_until(lease.longest_until))}"


def left(time_owner: TimeOwner) -> str:
    """Return when a lease for some time ends, ``in 7h58m``; or its length, if its time has not begun."""
    shown = duration(_left(time_owner))
    return f"{shown} long" if time_owner.expires is None else f"in {shown}"


def _left(time_owner: TimeOwner) -> float:
    if time_owner.expires is None:
        return time_owner.seconds
    return _seconds_until(time_owner.expires)


def _seconds_until(boottime: int) -> float:
    return max(0.0, (boottime - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) / 1e9)


def user(uid: int) -> str:
    """Return the name of a user, or the uid of one without a name."""
    try:
        return escaped(pwd.getpwuid(uid).pw_name)
    except (KeyError, OverflowError):
        return f"user {uid}"


def uid_of(text: str) -> int:
    """Return the uid of a user on the command line: a name or a uid."""
    if text.isascii() and text.isdigit() and int(text[:11]) <= MAX_UID:
        return int(text)
    try:
        return pwd.getpwnam(text).pw_uid
    except (KeyError, ValueError):
        raise ArgumentTypeError(f"there is no user {text!r}: give a name or a uid") from None


def add_period_arguments(parser: ArgumentParser, before: str, since: str | None = None) -> None:
    """Add ``--user``, ``--since`` and ``--until`` of the history; ``since`` is the default."""
    default = "" if since is None else f" (default: {since})"
    parser.add_argument("--user", metavar="NAME|UID", type=uid_of, help=f"{before}leases of this user")
    parser.add_argument("--since", metavar="TIME", type=past, help=f"{before}from this time on{default}")
    parser.add_argument("--until", metavar="TIME", type=past, help=f"{before}until this time (default: now)")
