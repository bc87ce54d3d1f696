"""What the commands that ask a daemon share: where it is, how it is asked, and what is said when it is not there."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs
import trio

from ...protocol.status_json import Json
from ...protocol.text import escaped
from ..io.http_client import UnreachableError, ask

Plugin = dict[str, Json]
"""One socket as the status socket tells of it."""

#: Seconds for a daemon to answer a plain question.
ANSWER = 30.0
A = TypeVar("A")


@attrs.frozen
class CommandError(Exception):
    """The command cannot do what it was asked; the text is one line that says why, or what to do."""

    line: str


def default_status_path() -> str:
    """Return where the status socket is when nobody says otherwise: as PLUGIND_STATUS says, else by who runs."""
    named = os.environ.get("PLUGIND_STATUS")
    if named:
        return named
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if os.geteuid() == 0 or not runtime:
        return "/run/plugind/status.sock"
    return os.path.join(runtime, "plugind", "status.sock")


def add_status_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--status``, which all commands that ask a daemon have."""
    parser.add_argument(
        "--status",
        metavar="PATH",
        default=None,
        help="the daemon's status socket (default: $PLUGIND_STATUS, else /run/plugind/status.sock for root and"
        " $XDG_RUNTIME_DIR/plugind/status.sock for others)",
    )


def run(command: Callable[[A], Awaitable[int]], options: A) -> int:
    """Run a command and return its exit code; whatever ends it is one line on standard error, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # What an old terminal cannot show is escaped, no reason to fail.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    try:
        code = trio.run(command, options)
        sys.stdout.flush()
    except CommandError as error:
        complain(error.line)
        return 1
    except UnreachableError as error:
        complain(unreachable(error))
        return 1
    except BrokenPipeError:
        # The reader has seen enough; that the interpreter flushes once more at its end must not be a complaint.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return code


def complain(line: str) -> None:
    """Say what is wrong, in one line."""
    print(f"plugind: {line}", file=sys.stderr, flush=True)  # noqa: T201


def unreachable(error: UnreachableError) -> str:
    """Return what to do about a daemon that does not answer."""
    path = escaped(error.path)
    if error.code in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
        return (
            f"no daemon answers at {path} ({error.reason});"
            " start one with 'plugind run', or name its socket with --status or PLUGIND_STATUS"
        )
    if error.code in (errno.EACCES, errno.EPERM):
        return f"may not talk to the daemon at {path} ({error.reason}); run this as the daemon's user or as root"
    return f"the daemon at {path} does not answer as it should: {error.reason}"


async def fetch(path: str, method: str, target: str, body: bytes = b"") -> bytes:
    """Ask the daemon and return the whole answer.

    Raises:
      UnreachableError: if nobody answers.
      CommandError: if the answer is no.
    """
    with trio.move_on_after(ANSWER):
        async with ask(path, method, target, body) as reply:
            answer = await reply.body()
            if reply.status != 200:
                raise CommandError(error_in(answer, reply.status))
            return answer
    raise CommandError(f"the daemon at {escaped(path)} does not answer within {ANSWER:g} seconds")


def error_in(answer: bytes, status: int) -> str:
    """Return the reason in an answer that is no."""
    try:
        decoded = json.loads(answer)
    except ValueError:
        decoded = None
    if isinstance(decoded, dict) and isinstance(decoded.get("error"), str):
        return escaped(decoded["error"])
    return f"the daemon answered {status}"


def plugins_in(answer: bytes) -> list[Plugin]:
    """Return the plugins of a listing.

    Raises:
      CommandError: if it is none.
    """
    try:
        decoded = json.loads(answer)
    except ValueError as error:
        raise CommandError(f"the daemon's answer is not JSON: {error}") from error
    if not isinstance(decoded, list) or not all(isinstance(item, dict) for item in decoded):
        raise CommandError("the daemon's answer is not a list of plugins")
    return decoded


def plugin_in(line: bytes) -> Plugin:
    """Return the plugin of one line of a watch.

    Raises:
      CommandError: if it is none.
    """
    try:
        decoded = json.loads(line)
    except ValueError as error:
        raise CommandError(f"the daemon's line is not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise CommandError("the daemon's line is not an object")
    if isinstance(decoded.get("error"), str):
        raise CommandError(escaped(decoded["error"]))
    return decoded
