"""``plugind lease-hook``: the command that a container engine runs before it starts a container with a lease.

The lease's CDI document names it; it is not for people. Its failure keeps the container from starting, and the engine
shows its output. Its waits have deadlines, and it imports little.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import time
from typing import Final
from urllib.parse import quote

from ...protocol.leases.values import ProcessIdentity
from ...protocol.text import cut, escaped
from ..client.reaching import error_in
from ..http.backends import BLOCKING, Entered, result_of
from ..http.client import UnreachableError, ask
from ..io.process_identity import identity_of
from .ending import EXIT_OK, EXIT_UNREACHABLE, CommandError

#: Seconds for the state of the container, and for the daemon's answer; together less than the engine waits.
DEADLINE: Final = 10.0
#: Bytes of the state of a container, which has the container's annotations.
MAX_STATE: Final = 4 * 1024 * 1024
#: Bytes of the largest answer that is read.
MAX_ANSWER: Final = 1024 * 1024
#: Characters of a daemon's answer that are shown.
_SHOWN: Final = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind lease-hook``."""
    parser.description = (
        "Bind a lease to the container whose OCI state is on standard input. Container engines run this as a"
        " createRuntime hook, because the lease's CDI file says so."
    )
    parser.epilog = "exit codes: 0 bound, 1 the container must not start, 2 usage, 69 no daemon answers"
    parser.add_argument("--status", metavar="PATH", required=True, help="the daemon's status socket")
    parser.add_argument("id", metavar="ID", help="the lease")


def run(args: argparse.Namespace) -> int:
    """Bind the lease; return the exit code."""
    init = init_of(read_state(0, DEADLINE))
    bind(args.id, init, args.status, DEADLINE)
    return EXIT_OK


def read_state(descriptor: int, seconds: float) -> bytes:
    """Return all bytes from ``descriptor``.

    Raises:
      CommandError: if that takes longer than ``seconds``, or there are too many.
    """
    deadline, whole = time.monotonic() + seconds, bytearray()
    while True:
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise _wrong_state(f"it was not there within {seconds:g} s")
        piece = os.read(descriptor, 65536)
        if not piece:
            return bytes(whole)
        whole += piece
        if len(whole) > MAX_STATE:
            raise _wrong_state(f"it is over {MAX_STATE} bytes")


def init_of(state: bytes) -> ProcessIdentity:
    """Return the first process of the container with this OCI ``state``.

    Raises:
      CommandError: if it cannot be found.
    """
    try:
        content = json.loads(state)
    except (ValueError, RecursionError) as error:
        raise _wrong_state("it is not JSON") from error
    pid = content.get("pid") if isinstance(content, dict) else None
    if type(pid) is not int or not 0 < pid < 1 << 31:
        raise _wrong_state("it does not name the process of the container as pid")
    try:
        init = identity_of(pid)
    except OSError as error:
        raise CommandError(f"the container's process {pid} cannot be read: {error.strerror}") from error
    if init is None:
        raise CommandError(f"the container's process {pid} has ended")
    return init


def _wrong_state(why: str) -> CommandError:
    return CommandError(f"the OCI state on standard input cannot be used: {why}; a container engine runs this command")


def bind(lease: str, init: ProcessIdentity, status: str, seconds: float) -> None:
    """Make the daemon bind ``lease`` to the container of ``init``.

    Raises:
      CommandError: if that fails.
    """
    body = json.dumps({"pid": init.pid, "start_ticks": init.start_ticks, "boot_id": init.boot_id})
    target = f"/v1/leases/{quote(os.fsencode(lease), safe='')}/bind"
    try:
        with Entered(ask(BLOCKING, status, "POST", target, body.encode("ascii"), total=seconds)) as reply:
            answer = result_of(reply.body(MAX_ANSWER))
    except UnreachableError as error:
        line = (
            f"lease {escaped(lease)} cannot be bound to this container: no daemon answers at {escaped(status)}"
            f" ({error.reason}); start it with 'plugind run', and then the container"
        )
        raise CommandError(line, EXIT_UNREACHABLE) from error
    if not 200 <= reply.status < 300:
        raise CommandError(f"lease {escaped(lease)} cannot be bound to this container: {_reason(reply.status, answer)}")


def _reason(code: int, answer: bytes) -> str:
    """Return the daemon's error in one line."""
    said = error_in(answer)
    return f"the daemon answers {code}" if said is None else cut(escaped(said), _SHOWN)
