"""Daemons that end by SIGKILL at one step of a lease, and those that have other times or another boot.

Run as a program, it starts a daemon for each line of JSON that it reads::

    {"arguments": ["run", …], "log": "d/log", "cdi": "d/cdi", "markers": "d/m", "point": "the file is written"}

and answers with a line such as ``{"pid": 991}``. The daemon is a fork of this process, which has imported plugind
already. The points are in ``POINTS``; the shipped daemon has none. With ``boot`` it finds another boot id, and with
``withheld`` it has so many seconds in the place of a minute, and of the grace of containers, and with ``missing`` in
the place of 10 s without a device in the lists of its plugin; its ``state`` is on a disk
that is ``tiny`` or ``read-only`` by ``mount``. When that daemon has
ended, the line ``{"wait": 991}`` is answered with ``{"signal": 9}`` or ``{"code": 0}``.
"""

from __future__ import annotations

import codecs
import ctypes
import importlib.metadata  # noqa: F401 - a fork of another user may not be able to read it
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, Final
from unittest.mock import patch

import plugind.actors.http.server
import plugind.actors.io.history_file
import plugind.actors.io.notice_file
import plugind.actors.io.state_database
import plugind.actors.leases.history
import plugind.actors.status.exposition  # noqa: F401 - so that forks have all of these, which users may not read
from plugind.actors.console import run
from plugind.actors.console.commands import main
from plugind.actors.io import process_identity
from plugind.actors.io.state_file import StateFile
from plugind.actors.leases.cdi_files import CdiFiles
from plugind.actors.leases.inbox import LeasesInbox
from plugind.actors.leases.owners import Owners
from plugind.protocol.leases import book, stock
from plugind.protocol.leases.effects import Change, DeleteLease, SaveLease
from plugind.protocol.leases.messages import Allocated, OwnerEnded, ReleaseAsked
from plugind.protocol.leases.values import LeaseState

for _name in run.LOADED_WHEN_READY:
    import_module(_name, run.__package__)

_CLONE_NEWNS: Final = 0x20000


def _put(of: object, name: str, what: object) -> None:
    """Put something into this process, for as long as it lives."""
    patch.object(of, name, what).start()


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _saves(state: LeaseState) -> Callable[[Change], bool]:
    return lambda change: isinstance(change, SaveLease) and change.lease.state is state


def _deletes(change: Change) -> bool:
    return isinstance(change, DeleteLease)


def _on_write(ends: Callable[[Change], bool], *, before: bool = False) -> Callable[[], None]:
    """End before or after a transaction with such a change."""

    def install() -> None:
        write_leases = StateFile.write_leases

        async def write(self: StateFile, groups: Sequence[Sequence[Change]]) -> Sequence[str | None]:
            hit = any(ends(change) for group in groups for change in group)
            if hit and before:
                _end()
            written = await write_leases(self, groups)
            if hit:
                _end()
            return written

        _put(StateFile, "write_leases", write)

    return install


def _on_message(kind: type[object]) -> Callable[[], None]:
    """End when such a message waits for the lease actor."""

    def install() -> None:
        send_nowait = LeasesInbox.send_nowait

        def send(self: LeasesInbox, message: Any, /) -> None:
            if isinstance(message, kind):
                _end()
            send_nowait(self, message)

        _put(LeasesInbox, "send_nowait", send)

    return install


def _after(of: type[object], name: str) -> Callable[[], None]:
    """End after a call of this method, which waits."""

    def install() -> None:
        call = getattr(of, name)

        async def then_end(self: Any, *arguments: Any) -> None:
            await call(self, *arguments)
            _end()

        _put(of, name, then_end)

    return install


def _when_watched() -> None:
    """End when the owner of a lease is watched."""
    watch = Owners.watch

    def then_end(self: Owners, *arguments: Any) -> None:
        watch(self, *arguments)
        _end()

    _put(Owners, "watch", then_end)


POINTS: Final[dict[str, Callable[[], None]]] = {
    "before pending is written": _on_write(_saves(LeaseState.PENDING), before=True),
    "pending is written": _on_write(_saves(LeaseState.PENDING)),
    "Allocate is answered": _on_message(Allocated),
    "the file is written": _after(CdiFiles, "write"),
    "before held is written": _on_write(_saves(LeaseState.HELD), before=True),
    "held is written": _on_write(_saves(LeaseState.HELD)),
    "a release is asked for": _on_message(ReleaseAsked),
    "the owner's end is seen": _on_message(OwnerEnded),
    "the file is removed": _after(CdiFiles, "remove"),
    "before the row is deleted": _on_write(_deletes, before=True),
    "the row is deleted": _on_write(_deletes),
    "the store is read": _after(StateFile, "read_leases"),
    "the owner is watched": _when_watched,
}


#: What may be mounted, mostly on the directory of the state, by the arguments of ``mount``.
_MOUNTS: Final[dict[str, Callable[[str], list[list[str]]]]] = {
    "tiny": lambda directory: [["-t", "tmpfs", "-o", "size=512k,mode=700", "none", directory]],
    "hidepid": lambda _: [["-t", "proc", "-o", "hidepid=2", "none", "/proc"]],
    "read-only": lambda directory: [["--bind", directory, directory], ["-o", "remount,ro,bind", directory]],
}


def _mount(commands: list[list[str]]) -> None:
    """Mount something for this process alone."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "a mount namespace cannot be made")
    for command in [["--make-rprivate", "/"], *commands]:
        subprocess.run(["mount", *command], check=True)


def _prepare(how: dict[str, Any]) -> None:
    """Change this process as the line says."""
    os.environ |= {"PLUGIND_MARKERS": how["markers"], "PLUGIND_LEASES_CDI_DIRECTORY": how["cdi"]}
    if (kind := how.get("mount")) is not None:
        _mount(_MOUNTS[kind](how["state"]))
    if (uid := how.get("uid")) is not None:
        codecs.lookup("ascii")  # This user may not be able to read the standard library, so it is loaded before.
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    if (point := how.get("point")) is not None:
        POINTS[point]()
    if (seconds := how.get("withheld")) is not None:
        _put(book, "WITHHELD", seconds)
        _put(book, "GRACE", seconds)
    if (seconds := how.get("missing")) is not None:
        _put(stock, "MISSING", seconds)
    if (boot := how.get("boot")) is not None:
        _put(process_identity, "boot_id", lambda: boot)


def _run(how: dict[str, Any]) -> int:
    log = os.open(how["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, sys.stderr.fileno())
    os.dup2(os.open(os.devnull, os.O_RDWR), sys.stdin.fileno())
    os.dup2(sys.stdin.fileno(), sys.stdout.fileno())
    _prepare(how)
    return main(how["arguments"])


def _answer(how: dict[str, Any]) -> dict[str, int]:
    if "wait" in how:
        _, status = os.waitpid(how["wait"], 0)
        return {"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else {"code": os.WEXITSTATUS(status)}
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = _run(how)
        except BaseException:  # noqa: BLE001 - it is the last to see it
            traceback.print_exc()
        finally:
            os._exit(code)
    return {"pid": pid}


def serve(lines: Iterable[str]) -> None:
    """Answer each line."""
    for line in lines:
        sys.stdout.write(json.dumps(_answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(sys.stdin)
