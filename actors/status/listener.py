"""The socket on which the daemon answers questions about its plugins.

Only its own user and root can connect, unless other users may lease devices or read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Awaitable, Callable

import trio

from ...protocol.errors import ConfigError, SocketBusyError
from ...protocol.logs.lines import SILENT, Level, Logger
from ...protocol.registration.crashes import in_one_line
from ...protocol.settings.socket_users import SocketUsers, Visitors
from ...protocol.text import escaped
from ..io import connecting, unix_socket
from ..io.file_watch import FileWatch
from ..trust.directories import access_of, who_may_replace

#: The usual mode of the socket. A stale socket is recognised by this mode or by its present one.
_MODE = 0o600
#: Seconds until a missing socket is noticed without an event, and between attempts to make it again.
_PERIOD = 10.0
#: The directory of the usual socket. A daemon makes it for root alone if no other users may connect.
_OWN_DIRECTORY = "/run/plugind"
_ELSEWHERE = "give another path with --status"

#: What happened to a socket that is made again.
_REMOVED = "was removed"
_RESTARTED = "was closed by a restart of its actor"

#: Serves a listener until it is closed.
Serve = Callable[[unix_socket.UnixListener], Awaitable[None]]


class StatusSocket:
    """The status socket, which is made again if it is removed."""

    def __init__(
        self,
        path: str,
        log: Logger = SILENT,
        *,
        again: bool = False,
        failed: Callable[[str], object] = lambda _reason: None,
        users: Visitors | None = None,
    ) -> None:
        """Listen at ``path``, also for these ``users``; see :func:`listen`.

        ``again`` means that this process has listened there before: a failure is then retried while the node goes on,
        and not raised. ``failed`` is called with the reason of each such failure.
        """
        self._path = path
        self._log = log
        self._failed = failed
        self._users = users or SocketUsers()
        self._problem: str | None = None
        #: What happened to the socket that will be made again.
        self._end = _RESTARTED
        self._serving = trio.CancelScope()
        self._listener: unix_socket.UnixListener | None = None
        if again:
            self._make_again()
        else:
            self._listener = listen(path, log, self._users)

    def close(self) -> None:
        """Remove the socket, and stop listening. Open connections are still served."""
        self._serving.cancel()
        if self._listener is not None:
            self._listener.close()

    async def serve(self, nursery: trio.Nursery, serve: Serve) -> None:
        """Run ``serve`` in the nursery for each listener; replace a listener whose file is gone."""
        with self._serving:
            while True:
                if self._listener is None:
                    await trio.sleep(_PERIOD)
                else:
                    nursery.start_soon(serve, self._listener)
                    await self._until_gone(self._listener)
                    self._listener.close()
                    self._listener, self._end = None, _REMOVED
                self._make_again()

    async def _until_gone(self, listener: unix_socket.UnixListener) -> None:
        with FileWatch(listener.path) as watch:
            while listener.is_in_place():
                with trio.move_on_after(_PERIOD):
                    await watch.wait()

    def _make_again(self) -> None:
        try:
            self._listener = listen(self._path, self._log, self._users)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with this socket must not end the node
            reason = str(error) if isinstance(error, ConfigError) else f"{in_one_line(error)}; {_ELSEWHERE}"
            self._failed(reason)
            # Each reason is logged once.
            if reason != self._problem:
                self._problem = reason
                message = f"status socket {self._end} and cannot be made again"
                self._log.event(Level.ERROR, message, reason=reason, next_try_in=_PERIOD)
            return
        if self._end == _REMOVED or self._problem is not None:
            self._log.event(Level.WARNING, f"status socket {self._end} and was made again", socket=self._path)
        self._problem = None


def listen(path: str, log: Logger = SILENT, users: Visitors | None = None) -> unix_socket.UnixListener:
    """Listen at ``path`` with mode 0600. If only its directory is missing, make it with mode 0700.

    If other ``users`` can connect, both have a wider mode. The stale socket of a dead daemon is replaced.

    Raises:
      ConfigError: if something else is there, others could replace it, the directory cannot be written, or these users
        cannot reach it.
      SocketBusyError: if another process listens there.
    """
    if path.endswith("/") or "\0" in path or not path:
        raise ConfigError(f"the status socket {escaped(path)!r} is not the path of a file; give one with --status")
    whole, users = os.path.abspath(path), users or SocketUsers()
    try:
        directory = os.path.dirname(whole)
        _judge_above(directory)
        _make_directory(directory, log, 0o700 if users.socket_mode == _MODE else 0o711)
        _judge_directory(directory, log)
        _widen(directory, log, users)
        _judge_reach(directory, users)
        foreign = _is_foreign(whole, users.socket_mode)
        listener = unix_socket.listen(whole, mode=_MODE, remove_stale=not foreign, any_length=True)
    except OSError as error:
        raise _occupied(whole, error) or _cannot_listen(path, error) from error
    try:
        _share(whole, users)
    except BaseException:
        listener.close()
        raise
    return listener


def _share(path: str, users: Visitors) -> None:
    """Let other users connect to the socket. Its directory is trusted, so the file is ours."""
    if users.socket_mode == _MODE:
        return
    try:
        if users.group is not None:
            os.chown(path, -1, users.group, follow_symlinks=False)
        os.chmod(path, users.socket_mode)
    except OSError as error:
        raise ConfigError(
            f"user {os.geteuid()} cannot give the status socket {escaped(path)} to the group {users.group}:"
            f" {error.strerror}; {_what_to_do(error)}, or name another --lease-group or --status-group"
        ) from error


def _what_to_do(error: OSError) -> str:
    if os.geteuid() == 0 and error.errno == errno.EPERM:
        return (
            "root needs CAP_CHOWN for that: let the service have it with the drop-in of 'plugind install-unit"
            " --other-users' or '--leases', put it in the group (SupplementaryGroups= and SystemCallFilter=@chown)"
        )
    return "only root and members of the group can, so run plugind as one"


def _widen(directory: str, log: Logger, users: Visitors) -> None:
    """Let others through the directory that a daemon without such users has made for itself."""
    found = os.stat(directory)
    is_own = directory == _OWN_DIRECTORY and found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o700
    if is_own and users.socket_mode != _MODE:
        os.chmod(directory, 0o711)
        log.event(Level.INFO, "directory of the status socket lets other users through now", directory=directory)


def _judge_reach(directory: str, users: Visitors) -> None:
    """Check that the users who may connect can reach the socket in the directory."""
    if users.socket_mode == _MODE:
        return
    found = os.stat(directory)
    of_group = users.group is not None and found.st_gid == users.group and not users.uids
    if found.st_mode & stat.S_IXOTH or (of_group and found.st_mode & stat.S_IXGRP):
        return
    raise ConfigError(
        f"the users of --lease-uids, --lease-group, --status-group and handler_uids cannot reach the status socket in"
        f" {escaped(directory)}: run"
        f" 'chmod o+x {escaped(directory)}', or {_ELSEWHERE}"
    )


def _make_directory(directory: str, log: Logger, mode: int) -> None:
    try:
        os.mkdir(directory, mode=mode)
    except FileExistsError:
        return
    except FileNotFoundError as error:
        parent = os.path.dirname(directory)
        raise OSError(error.errno, f"{parent} is missing, and plugind does not make it") from error
    log.event(Level.INFO, "directory of the status socket was missing and was made", directory=directory)


def _judge_above(directory: str) -> None:
    """Check that no other user can replace the directory of the socket."""
    found = who_may_replace(directory)
    if found is None:
        return
    above, problem = found
    raise ConfigError(
        f"{escaped(problem)}, and so others may replace the directory {escaped(directory)} of the status socket: take"
        f" {escaped(above)} from them, or {_ELSEWHERE}"
    )


def _judge_directory(directory: str, log: Logger) -> None:
    """Check that no other user can replace the socket.

    A directory such as /tmp passes: with the sticky bit, only its owner can remove a file.
    """
    found = os.stat(directory)
    access = access_of(found)
    # As for the directories above, an owner outside of the user namespace counts as root (see insecurity_above).
    if not (access.is_trusted or access.unmapped):
        raise ConfigError(
            f"the directory {escaped(directory)} of the status socket belongs to user {found.st_uid}, who could replace"
            f" the socket: {_ELSEWHERE}"
        )
    if found.st_mode & stat.S_ISVTX:
        return
    if found.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"everybody may write to the directory {escaped(directory)} of the status socket, and so replace the"
            f" socket: run 'chmod o-w {escaped(directory)}', or {_ELSEWHERE}"
        )
    if found.st_mode & stat.S_IWGRP:
        log.event(Level.WARNING, "a group may replace the status socket", directory=directory, group=found.st_gid)


def _is_foreign(path: str, mode: int) -> bool:
    """Whether there is a socket that no daemon of this user made. It is kept, even if nobody listens there."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    ours = found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) in (_MODE, mode)
    return stat.S_ISSOCK(found.st_mode) and not ours


def _occupied(path: str, error: OSError) -> ConfigError | None:
    match error.errno:
        case errno.EEXIST:
            return ConfigError(f"{escaped(path)} exists and is no socket; remove it or {_ELSEWHERE}")
        case errno.EADDRINUSE:
            return _in_use(path)
        case _:
            return None


def _in_use(path: str) -> ConfigError:
    """Return the error for a socket at ``path`` that is kept, with advice."""
    problem = _problem_of(path)
    with contextlib.suppress(FileNotFoundError):
        owner = os.lstat(path).st_uid
        if isinstance(problem, ConnectionRefusedError):
            return ConfigError(
                f"{escaped(path)} is a socket of user {owner} on which nobody listens, and which no daemon of this user"
                f" has left: run 'rm {escaped(path)}' if no program needs it, or {_ELSEWHERE}"
            )
        if isinstance(problem, PermissionError):
            return ConfigError(
                f"{escaped(path)} is a socket of user {owner}, and user {os.geteuid()} may not connect to it to find"
                f" out whether anybody listens: have user {owner} remove it if that user's daemon does not run any"
                f" more, or {_ELSEWHERE}"
            )
    return SocketBusyError(
        f"another process answers at {escaped(path)}; stop it, or give this one another path with --status"
    )


def _problem_of(path: str) -> OSError | None:
    """Return why no connection to the socket at ``path`` can be made; None if one can."""
    try:
        with connecting.stream_socket() as probe:
            connecting.connect(probe, path)
    except OSError as error:
        return error
    return None


def _cannot_listen(path: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot make the status socket {escaped(path)}: {error.strerror or error};"
        " give another path with --status or PLUGIND_STATUS"
    )
