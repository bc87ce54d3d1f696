"""``plugind allocate``: devices for a command, a process, a container, or for some time.

The user's command is exec'ed, so that no process stays between it and the shell. This command must start quickly, so it
imports little; a test has the list.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from ...protocol.leases.asked_json import LeaseBody, ProcessWish
from ...protocol.leases.forms import FORMS, NO_LEASE, FormError, environment, useless
from ...protocol.leases.leases_json import lease_to_json
from ...protocol.leases.replies import InLine
from ...protocol.leases.values import START_WITHIN, ContainerOwner, Lease, Node, NoOwner, TimeOwner, request_of
from ...protocol.text import escaped
from ..client.errors import ClientError, DaemonError, LeaseFailedError, NoDaemonError
from ..client.lease_calls import allocation, deadline_of, new_id, own_process, release
from ..client.reaching import WRITING
from ..client.transport import Limits, asked
from ..io.silence import PATIENCE
from .ending import EXIT_OK, CommandError, OutputError, complain, say
from .lease_failures import EXIT_CANNOT_RUN, EXIT_NOT_FOUND, EXIT_NOT_RUN, fail, say_place, why_none
from .status_socket import add_status_argument, status_path
from .times import some_span, span

#: The signals that Python ignores, although programs expect the default.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def find(name: str) -> str | None:
    """Return where a command is, before its user waits for devices; None if it does not exist."""
    return next(filter(os.path.exists, _places(name)), None)


def _places(name: str) -> list[str]:
    """Return the paths at which a command can be, by our own PATH, since a plugin can set another one."""
    return [name] if "/" in name else [os.path.join(directory, name) for directory in os.get_exec_path()]


def _become(command: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Execute the first file that can be run, like ``os.execvpe``, with the environment ``variables``."""
    missing: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    failed: OSError | None = None
    for place in _places(command[0]):
        try:
            os.execve(place, [*command], variables)
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = error
        except OSError as error:
            failed = failed or error
    raise failed or missing


def execute(command: Sequence[str], lease: Lease, bwrap: str | None = None) -> int:
    """Execute the command with the lease in its environment; return the exit code if that fails.

    The lease ends with this process, which becomes the command. With ``bwrap``, the path of bubblewrap, the command has
    a ``/dev`` of its own.
    """
    try:
        variables = {**os.environ, **environment(lease)}
        if bwrap is not None and (why := _confine(bwrap, lease)) is not None:
            complain(f"{escaped(command[0])} is not run, since it cannot be confined: {escaped(why)}")
            return EXIT_NOT_RUN
        sys.stderr.flush()
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        _become(command, variables)
    except (FormError, ValueError) as error:
        complain(str(error))
        return EXIT_NOT_RUN
    except OSError as error:
        complain(f"{escaped(command[0])} cannot be run: {error.strerror}")
        return EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_CANNOT_RUN


def _confine(bwrap: str, lease: Lease) -> str | None:
    # Few commands are confined.
    from .confine import ConfineError, confine

    try:
        confine(bwrap, [node.host_path for node in (lease.answer.nodes if lease.answer is not None else ())])
    except ConfineError as error:
        return str(error)
    return None


def warn_of_nodes(lease: Lease) -> None:
    """Print a warning for each device node of the lease that this user cannot open.

    The nodes are not opened, because that could change the device.
    """
    for node in lease.answer.nodes if lease.answer is not None else ():
        why = _why_closed(node)
        if why is not None:
            complain(f"warning: you cannot open {escaped(node.host_path)} ({node.permissions}): {why}")


def _why_closed(node: Node) -> str | None:
    wanted = (os.R_OK if "r" in node.permissions else 0) | (os.W_OK if "w" in node.permissions else 0)
    try:
        found = os.stat(node.host_path)
    except OSError as error:
        return error.strerror
    if os.access(node.host_path, wanted, effective_ids=True):
        return None
    mode = f"{found.st_mode & 0o7777:04o}"
    return f"it belongs to the user {found.st_uid} and the group {found.st_gid}, and its mode is {mode}"


_EPILOG = """examples:
  plugind allocate vendor.com/gpu=1 -- ./train.py
  plugind allocate vendor.com/gpu=2 vendor.com/nic=1 --wait 10m -- mpirun ./solve
  podman run $(plugind allocate vendor.com/gpu=1 -o podman) IMAGE
  plugind allocate vendor.com/serial=1 --ttl 8h --id bench-3
  plugind allocate vendor.com/gpu=1 --owner $$ -o env

Exactly one way says who has the devices, and until when:
  -- CMD            the command, until it ends; it replaces this process
  --owner PID       that process, until it ends
  -o cdi, -o podman the container that gets them, until it ends; it must start within a minute, or --start-within
  --ttl TIME        nobody; for that time, which 'plugind renew' begins again
  --until-release   nobody; until 'plugind release', or a reboot. With -o cdi or podman, the container that gets them,
                    which may be stopped and started again until then

CMD finds in its environment PLUGIND_LEASE, PLUGIND_DEVICES (R=ID,ID;R2=ID), PLUGIND_NODES (the paths of device nodes,
with a comma between two), and what the plugin has set. A TIME is 90, 90s, 15m, 2h or 1d.

exit codes: 0 ok, 1 not available, 2 usage, 4 the plugin has refused, 69 no daemon answers, 124 waited too long,
130 interrupted; with -- CMD: 125 there is no lease, or usage, 126 CMD cannot be run, 127 CMD is not there, else that
of CMD"""
_WAYS = "-- CMD, --owner PID, -o cdi or podman, --ttl TIME, or --until-release"
#: Seconds between two tries to reach a daemon.
_PAUSE = 0.2
#: The status of a daemon that is busy, or about to stop, before and after a place in line; the errors if none runs.
_BUSY = (503, 409)
_NOT_THERE = (errno.ENOENT, errno.ECONNREFUSED)
#: The forms for containers.
_CONTAINERS = ("cdi", "podman")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind allocate``."""
    parser.usage = "plugind allocate R=N [R2=M ...] [options] [-- CMD ...]"
    parser.description = "Lease devices that device plugins offer: all that are asked for, or none."
    parser.epilog = _EPILOG
    parser.add_argument(
        "resources",
        metavar="R=N",
        nargs="+",
        type=_resource,
        help="N devices of the resource R, such as vendor.com/gpu=1",
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--ids", metavar="ID,ID", type=_words, default=(), help="exactly these devices")
    choice.add_argument("--include", metavar="ID,ID", type=_words, default=(), help="these devices and others")
    parser.add_argument("--pool", metavar="POOL", help="take devices of this pool, and no others")
    parser.add_argument(
        "--id", metavar="ID", help="the name of the lease; asked for again in the same words, the same lease is given"
    )
    parser.add_argument(
        "--label", metavar="KEY=TEXT", action="append", default=[], type=_label, help="words of yours; may be repeated"
    )
    parser.add_argument(
        "--wait",
        metavar="TIME",
        type=span,
        help="wait in line for devices, so long at most, also for a daemon that starts again (default: do not wait)",
    )
    parser.add_argument(
        "--ignore-missing", action="store_true", help="devices that are leased and no longer listed were taken out"
    )
    parser.add_argument(
        "--stop-on-unhealthy", action="store_true", help="send SIGTERM to CMD if a device of it turns unhealthy"
    )
    parser.add_argument(
        "--confine",
        action="store_true",
        help="give CMD a /dev with the standard and the leased nodes alone, by bubblewrap",
    )
    owner = parser.add_argument_group("who has the devices (exactly one, or -- CMD, or -o cdi or podman)")
    owner.add_argument("--owner", metavar="PID", type=_pid, help="this process, until it ends")
    owner.add_argument("--ttl", metavar="TIME", type=some_span, help="nobody, for that time")
    owner.add_argument(
        "--for-user",
        metavar="NAME|UID",
        type=_user,
        help="the user to whom the lease belongs; only root may name another",
    )
    owner.add_argument(
        "--until-release",
        action="store_true",
        help="nobody, or with -o cdi or podman the container, until they are released",
    )
    owner.add_argument(
        "--start-within",
        metavar="TIME",
        type=some_span,
        help="with -o cdi or podman: for how long the devices wait for the start of the container (1m)",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=(*FORMS, "json"),
        help="text for people (default); json; env: lines for a shell and systemd's EnvironmentFile=; cdi: the names of"
        " CDI devices; podman, docker: options of 'run'",
    )
    add_status_argument(parser)


def _resource(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name or not (number.isascii() and number.isdigit() and len(number) < 8 and int(number)):
        raise argparse.ArgumentTypeError(f"{text!r} is not RESOURCE=NUMBER, such as vendor.com/gpu=1")
    return name, int(number)


def _words(text: str) -> tuple[str, ...]:
    words = tuple(text.split(","))
    if not all(words):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of ids, such as GPU-0,GPU-1")
    return words


def _label(text: str) -> tuple[str, str]:
    key, equals, word = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=TEXT, such as job=7")
    return key, word


def _pid(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:11]) < 2**31):
        raise argparse.ArgumentTypeError(f"{text!r} is not the pid of a process")
    return int(text)


def _user(text: str) -> int:
    from .lease_words import uid_of  # Most leases are the asker's own.

    return uid_of(text)


def refuse(words: Sequence[str], end: SystemExit, command: Sequence[str] | None) -> None:
    """Print that there is no lease, in the form that a wrong command line asks for; set the code of the ``end``."""
    _say_none(_form_in(words))
    if command is not None:
        end.code = EXIT_NOT_RUN


def _form_in(words: Sequence[str]) -> str | None:
    """Return the last form in the words."""
    found = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, text = word.partition("=")
        if "--output".startswith(name) and name.startswith("--ou"):  # argparse accepts prefixes of options.
            found = text if equals else following
        elif word.startswith("-o"):
            found = word.removeprefix("-o") or following
    return found


def run(args: argparse.Namespace) -> int:
    """Lease devices; return the exit code."""
    try:
        return _run(args)
    except (CommandError, KeyboardInterrupt, SystemExit) as error:
        _say_none(args.output)
        if args.command is not None and not isinstance(error, KeyboardInterrupt):
            error.code = EXIT_NOT_RUN
        raise


def _run(args: argparse.Namespace) -> int:
    body, path = _asked(args), status_path(args)
    command: Sequence[str] | None = args.command
    if command is not None and find(command[0]) is None:
        complain(f"{escaped(command[0])}: there is no such command")
        return EXIT_NOT_FOUND
    bwrap = find("bwrap") if args.confine else None
    if args.confine and bwrap is None:
        complain("--confine needs bwrap, which is not there: apt install bubblewrap")
        return EXIT_NOT_RUN
    try:
        lease = _wait(path, body)
    except ClientError as error:
        more = why_none(path, body.request, error.failure) if isinstance(error, LeaseFailedError) else ()
        code = fail(error, args.output, more)
        _say_none(args.output)
        return code if command is None else EXIT_NOT_RUN
    for warning in lease.warnings:
        complain(f"warning: {escaped(warning)}")
    if command is not None:
        warn_of_nodes(lease)
        return execute(command, lease, bwrap)
    return _print(args.output or "text", lease, path, keep=args.id is not None)


def _wait(path: str, body: LeaseBody) -> Lease:
    """Return the lease; one that has to wait says its place in line on standard error, and each change of that.

    A request that waits is asked again of a daemon that starts meanwhile.

    Raises:
      ClientError: if there is none.
    """
    if body.wait is None:
        return _ask(path, body)
    deadline, is_told = time.monotonic() + body.wait, False
    while True:
        places = _Places(path, body)
        try:
            return _ask(path, body, places)
        except ClientError as error:
            left = deadline - time.monotonic()
            if left <= 0 or not _may_ask_again(error, body, places):
                raise
            if not is_told:
                why = error.reason if isinstance(error, NoDaemonError) else str(error)
                complain(f"waiting for the daemon at {escaped(path)}: {escaped(why)}")
            is_told = True
        time.sleep(min(_PAUSE, left))  # There is no event for the start of a daemon.
        body = LeaseBody(body.request, body.owner, body.id, max(0.0, deadline - time.monotonic()))


class _Places:
    """Tells the places in line of a request."""

    def __init__(self, path: str, body: LeaseBody) -> None:
        self._path = path
        self._request = body.request
        #: Whether the daemon has told a place.
        self.any_told = False

    def __call__(self, place: InLine) -> None:
        self.any_told = True
        say_place(self._path, self._request, place)


def _ask(path: str, body: LeaseBody, places: _Places | None = None) -> Lease:
    limits = Limits(timeout=deadline_of(body), patience=PATIENCE)
    if places is None:
        return asked(path, allocation(body), **limits)
    try:
        return asked(path, allocation(body, places), **limits)
    except DaemonError as error:
        if error.status != 400:
            raise
        return asked(path, allocation(body), **limits)  # An older daemon, which tells no places.


def _may_ask_again(error: ClientError, body: LeaseBody, places: _Places) -> bool:
    """Whether another daemon can be asked for the same, and the first one has not given a second lease of that.

    Of a daemon that was killed, it is not known whether it has given a lease; one with a name is given once.
    """
    if isinstance(error, DaemonError):
        return error.status in _BUSY
    if not isinstance(error, NoDaemonError):
        return False
    return body.id is not None if places.any_told else error.code in _NOT_THERE


def _asked(args: argparse.Namespace) -> LeaseBody:
    """Return the requested lease; exit if the usage is wrong."""
    names = [name for name, _ in args.resources]
    if len(names) > len(set(names)):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        args.parser.error(f"{twice} is named twice: add up the numbers")
    is_contained = args.output in _CONTAINERS
    keeps = is_contained or args.until_release
    ways = (args.command is not None, args.owner is not None, args.ttl is not None, keeps)
    if sum(ways) != 1:
        begin = "say who has the devices" if not any(ways) else "more than one way says who has the devices"
        args.parser.error(f"{begin}: give exactly one of {_WAYS}")
    if args.command is not None and args.output is not None:
        args.parser.error("-- CMD gets the devices in its environment: leave out -o")
    if args.command == []:
        args.parser.error("there is no command after --")
    if args.start_within is not None and (args.until_release or not is_contained):
        args.parser.error("--start-within is for a lease that ends with its container: give -o cdi or podman alone")
    if args.confine and args.command is None:
        args.parser.error("--confine keeps other devices from a command: give -- CMD")
    if args.stop_on_unhealthy and args.command is None and args.owner is None:
        args.parser.error("--stop-on-unhealthy stops a process: give -- CMD or --owner PID")
    request = request_of(
        dict(args.resources),
        ids=args.ids,
        include=args.include,
        labels=dict(args.label),
        pool=args.pool,
        ignore_missing=args.ignore_missing,
        stop_on_unhealthy=args.stop_on_unhealthy,
        container=is_contained,
        for_uid=args.for_user,
    )
    # With a name, a daemon that starts meanwhile can be asked again. The lease ends with this process in any case.
    name = new_id() if args.id is None and args.command is not None and args.wait is not None else args.id
    return LeaseBody(request, _owner(args), name, args.wait)


def _owner(args: argparse.Namespace) -> ProcessWish | TimeOwner | NoOwner | ContainerOwner:
    if args.command is not None:
        return own_process()
    if args.owner is not None:
        return ProcessWish(args.owner, os.getpid())
    if args.ttl is not None:
        return TimeOwner(args.ttl)
    if args.output not in _CONTAINERS:
        return NoOwner()
    return ContainerOwner(start_within=None if args.until_release else args.start_within or START_WITHIN)


def _print(form: str, lease: Lease, path: str, *, keep: bool) -> int:
    """Print the lease. If that fails, release the lease, unless it has a name from the user."""
    try:
        say(_text(form, lease), now=True)
    except (FormError, OutputError, KeyboardInterrupt) as error:
        if not keep:
            with suppress(ClientError):  # It may have ended meanwhile.
                asked(path, release(lease.id), timeout=WRITING)
        if isinstance(error, KeyboardInterrupt):
            raise
        why = f"standard output cannot be written: {error.cause.strerror}" if isinstance(error, OutputError) else error
        raise CommandError(useless(lease, why, kept=keep)) from error
    if form not in (*_CONTAINERS, "docker"):
        warn_of_nodes(lease)
    return EXIT_OK


def _say_none(form: str | None) -> None:
    """Print that there is no lease, in a form that keeps a container from starting without it."""
    if form is not None and form in NO_LEASE:
        with suppress(OutputError):  # The reason is on standard error.
            say(NO_LEASE[form], now=True)


def _text(form: str, lease: Lease) -> str:
    if form == "json":
        return json.dumps(lease_to_json(lease, time.clock_gettime_ns(time.CLOCK_BOOTTIME))) + "\n"
    return FORMS[form](lease)
