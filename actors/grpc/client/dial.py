"""Connections to unix sockets.

A unix socket connects at once or not at all, so the usual dial is a few system calls without a wait. We do not use
``trio.open_unix_socket``, which returns an unconnected stream when the backlog is full (fault 30).
"""

import errno
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio

from ....protocol.identity import Identity
from ....protocol.text import in_seconds
from ....protocol.wire.errors import DialError, DialFailure
from ....protocol.wire.learning import KnownConversations
from ....protocol.wire.limits import DEFAULT_LIMITS, WireLimits
from ...io.connecting import connect, stream_socket
from ...io.exact_connect import connect_to
from ...io.unix_socket import Credentials, peer_credentials
from .channel import Channel
from .registration_channel import RegistrationChannel
from .transport import SocketTransport
from .turns import Shared

#: Pauses between attempts, in seconds; each is twice as long as the last.
_FIRST_PAUSE: Final = 0.0005
_LONGEST_PAUSE: Final = 0.05

#: Returns why the process that listens must not be called; None if it may be called.
Judge = Callable[[Credentials], str | None]

_KINDS: Final = {
    errno.ENOENT: DialFailure.GONE,
    errno.ENOTDIR: DialFailure.GONE,
    errno.ESTALE: DialFailure.REPLACED,
    errno.ECONNREFUSED: DialFailure.REFUSED,
    errno.EACCES: DialFailure.DENIED,
    errno.EPERM: DialFailure.DENIED,
    errno.EPROTOTYPE: DialFailure.NOT_A_STREAM,
    errno.EMFILE: DialFailure.EXHAUSTED,
    errno.ENFILE: DialFailure.EXHAUSTED,
    errno.ENAMETOOLONG: DialFailure.BAD_PATH,
}


async def dial(
    path: str,
    *,
    identity: Identity | None = None,
    timeout: float,
    refused_grace: float = 1.0,
    wait_if_full: bool = True,
    roots: Sequence[str] = (),
    judge: Judge | None = None,
    follow_symlinks: bool = False,
    authority: str = "localhost",
    limits: WireLimits = DEFAULT_LIMITS,
    shared: Shared | None = None,
) -> Channel:
    """Connect to the unix stream socket at ``path``, within ``timeout`` seconds.

    A socket that refuses is tried again for ``refused_grace`` seconds, since its process may be between bind and listen
    (behaviour 12). One with a full backlog is tried until the deadline, or once unless ``wait_if_full`` (fault 30). If
    the socket accepts at once, this function does not wait, and so does not checkpoint.

    With an ``identity``, only that file is connected to (fault 41), and for a file below one of ``roots`` no directory
    on the way may be a link. A link at ``path`` is followed only with ``follow_symlinks``.

    ``judge`` decides by the credentials of the process that listens, before anything is sent (fault 40).

    Raises:
        DialError: there is no connection; its ``kind`` says why.
    """
    connection = _socket(path)
    attempt = partial(_try, connection, path, identity, roots, follow_symlinks=follow_symlinks)
    peer = await _reach(connection, path, attempt, timeout, refused_grace, judge, wait_if_full=wait_if_full)
    return Channel(SocketTransport(connection), authority=authority, limits=limits, peer=peer, shared=shared)


async def dial_registration(
    path: str,
    *,
    identity: Identity | None = None,
    timeout: float,
    refused_grace: float = 1.0,
    root: str | None = None,
    judge: Judge | None = None,
    follow_symlinks: bool = False,
    conversations: KnownConversations,
    shared: Shared | None = None,
) -> RegistrationChannel:
    """Connect for one registration; see :func:`dial`. A full backlog is an error at once.

    ``root`` is the root in which the socket was found.

    Raises:
        DialError: there is no connection; its ``kind`` says why.
    """
    connection = _socket(path)
    attempt = partial(
        _try, connection, path, identity, () if root is None else (root,), follow_symlinks=follow_symlinks
    )
    peer = await _reach(connection, path, attempt, timeout, refused_grace, judge, wait_if_full=False)
    return RegistrationChannel(SocketTransport(connection), conversations, peer=peer, shared=shared)


async def _reach(
    connection: socket.socket,
    path: str,
    attempt: Callable[[], OSError | None],
    timeout: float,
    refused_grace: float,
    judge: Judge | None,
    *,
    wait_if_full: bool,
) -> Credentials:
    """Connect, and return the peer's credentials; close the connection if that fails."""
    try:
        problem = attempt()
        if problem is not None:
            await retry(path, problem, attempt, timeout, refused_grace, wait_if_full=wait_if_full)
        peer = _peer_of(connection, path)
        check_peer(path, peer, judge)
    except BaseException:
        connection.close()
        raise
    return peer


def _peer_of(connection: socket.socket, path: str) -> Credentials:
    try:
        return peer_credentials(connection)
    except OSError as error:
        raise _failure(error, path) from error


def check_peer(path: str, peer: Credentials, judge: Judge | None) -> None:
    """Raise DialError if ``judge`` rejects the process that listens on ``path`` (fault 40)."""
    problem = None if judge is None else judge(peer)
    if problem is not None:
        raise DialError(DialFailure.UNTRUSTED, path, f"cannot trust {path!r}: {problem}", problem)


def _socket(path: str) -> socket.socket:
    if not path or "\0" in path or path.startswith("@"):
        cause = "the path names no socket in the file system"
        raise DialError(DialFailure.BAD_PATH, path, f"{path!r} names no socket in the file system", cause)
    try:
        return stream_socket()
    except OSError as error:
        raise _failure(error, path) from error


async def retry(
    path: str,
    error: OSError,
    attempt: Callable[[], OSError | None],
    timeout: float,
    refused_grace: float,
    *,
    wait_if_full: bool = True,
) -> None:
    """Repeat ``attempt`` until it succeeds, as long as its error can pass; ``error`` is the first one.

    A simulated node, which makes its attempts in memory, uses this rule of ``dial`` too.

    Raises:
        DialError: the last error cannot pass, or the time for it is over.
    """
    began = trio.current_time()
    pause = _FIRST_PAUSE
    while True:
        if error.errno == errno.EAGAIN and not wait_if_full:
            raise DialError(DialFailure.FULL, path, f"the backlog of {path!r} is full", "its backlog is full")
        if error.errno == errno.EAGAIN:
            left = began + timeout - trio.current_time()
            over = was_full(path, timeout)
        elif error.errno == errno.ECONNREFUSED:
            left = began + min(refused_grace, timeout) - trio.current_time()
            over = DialError(DialFailure.REFUSED, path, f"nobody listens on {path!r}", "nobody listens")
        else:
            raise _failure(error, path) from error
        if left <= 0:
            raise over from error
        await trio.sleep(min(pause, left))
        pause = min(pause * 2, _LONGEST_PAUSE)
        again = attempt()
        if again is None:
            return
        error = again


def was_full(path: str, timeout: float) -> DialError:
    """Return the error of a socket whose backlog was full for ``timeout`` seconds."""
    full = f"was full for {in_seconds(timeout)}"
    return DialError(DialFailure.TIMED_OUT, path, f"the backlog of {path!r} {full}", f"its backlog {full}")


def _try(
    connection: socket.socket, path: str, identity: Identity | None, roots: Sequence[str], *, follow_symlinks: bool
) -> OSError | None:
    try:
        if identity is None:
            connect(connection, path)
        else:
            connect_to(connection, path, identity, roots=roots, follow_symlinks=follow_symlinks)
    except OSError as error:
        return error
    return None


def _failure(error: OSError, path: str) -> DialError:
    kind = _KINDS.get(error.errno or 0, DialFailure.FAILED)
    why = error.strerror or error
    return DialError(kind, path, f"cannot connect to {path!r}: {why}", f"cannot connect: {why}")
