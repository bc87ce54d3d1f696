"""Follows the watches of a daemon, and keeps the board up to date, including whether there is a daemon."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from ....protocol.leases.leases_json import LeaseJsonError, lease_from_json
from ....protocol.status.json import Json
from ....protocol.text import encodable
from ...http.client import Reply, UnreachableError
from ...http.on_trio import ask
from ...io.process_identity import purpose_of
from .board import LEASES, PLUGINS, RESOURCES, Board


@attrs.define
class UserNames:
    """The names of local users, from a file like ``/etc/passwd``, which is read again when it has changed.

    The name service is not used, since it may ask a directory in the network and delay the page.
    """

    _path: Path = attrs.field(default=Path("/etc/passwd"))
    #: Identifies the contents that were read: inode, time and size.
    _read: tuple[int, int, int] | None = attrs.field(init=False, default=None)
    _names: dict[int, str] = attrs.field(init=False, factory=dict)

    def name_of(self, uid: object) -> str | None:
        """Return the name of the user with this uid; None if the file has none, or cannot be read."""
        if not isinstance(uid, int):
            return None
        try:
            found = self._path.stat()
            if self._read != (now := (found.st_ino, found.st_mtime_ns, found.st_size)):
                self._names = _names_in(self._path.read_text("utf-8", "surrogateescape"))
                self._read = now
        except OSError:
            return None
        return self._names.get(uid)


def _names_in(text: str) -> dict[int, str]:
    """Return the names by uid; of several users with one uid the first counts, as in the name service."""
    names: dict[int, str] = {}
    for line in text.splitlines():
        match line.split(":"):
            case [name, _, uid, *_] if uid.isascii() and uid.isdigit() and len(uid) <= 10 and name:
                names.setdefault(int(uid), encodable(name))
    return names


#: Seconds before a daemon that has gone is asked again.
AGAIN: Final = 1.0
#: Seconds before a watch with dropped changes is read again from the start.
AGAIN_IF_LAGGED: Final = 0.5
#: Seconds before a daemon is asked again for something it does not have, such as device plugins.
AGAIN_IF_MISSING: Final = 10.0
#: Seconds between two health requests.
HEALTH_EVERY: Final = 5.0
#: How many unhealthy parts are listed.
MOST_REASONS: Final = 16
#: Heartbeats of a watch in the time for which a daemon can be silent.
_HEARTBEATS: Final = 4
_GONE: Final = "gone"


@attrs.frozen
class WatchedTable:
    """A stream of changes of the daemon, and its table."""

    path: str
    table: str
    #: The field that identifies an entry.
    key: str
    #: The fields of an entry in the table of the page. A browser asks for more about the entry that it shows.
    fields: tuple[str, ...]


_PLUGIN: Final = (
    *("name", "type", "state", "step", "reason", "cause", "attempt", "next_try_at", "since", "active", "serving"),
    *("not_serving", "health", "health_reason", "last_known", "warnings"),
)
_RESOURCE: Final = ("state", "reason", "since", "capacity", "allocatable", "last_capacity", "plugin")
_LEASE: Final = ("state", "reason", "uid", "owner", "created_unix", "time", "devices", "request", "warnings")
WATCHES: Final = (
    WatchedTable("/watch", PLUGINS, "socket", _PLUGIN),
    WatchedTable("/v1/devices/watch", RESOURCES, "resource", _RESOURCE),
    WatchedTable("/v1/leases/watch", LEASES, "id", _LEASE),
)


class WatchEndedError(Exception):
    """The daemon has ended a watch, or does not begin it."""

    def __init__(self, reason: str, state: str = "away") -> None:
        super().__init__(reason)
        self.reason = reason
        #: ``missing`` if the daemon does not have this watch, ``forbidden`` if it tells this user of leases and devices
        #: alone, and else ``away``.
        self.state = state


class WatchLaggedError(Exception):
    """The daemon has dropped changes, so the watch must be read again from the start."""


async def follow(
    path: str, timeout: float, board: Board, wall: Callable[[], float] = time.time, names: UserNames | None = None
) -> None:
    """Follow the daemon whose status socket is at ``path``, and its successors there, forever.

    A daemon that is silent for ``timeout`` seconds counts as gone. ``names`` has the names of users.
    """
    names = names or UserNames()
    # One place is enough: a message that comes during a request causes another request after it.
    came, wake = trio.open_memory_channel[None](1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_follow_health, path, timeout, board, wake)
        for watch in WATCHES:
            nursery.start_soon(_WatchFollower(watch, path, timeout, board, wall, names, came).run)


async def _follow_health(path: str, timeout: float, board: Board, wake: trio.MemoryReceiveChannel[None]) -> None:
    """Ask the daemon for its health and version, regularly, and at once when it has come.

    If it does not answer, nothing is shown here: the watches show that it is away.
    """
    while True:
        for topic, target, words in (("health", "/healthz", _health), ("version", "/", _version)):
            board.tell(topic, await _asked(path, target, timeout, words))
        with trio.move_on_after(HEALTH_EVERY):
            await wake.receive()


async def _asked(path: str, target: str, timeout: float, words: Callable[[Mapping[str, Any]], Json]) -> Json:
    """Apply ``words`` to the answer; return None if there is no answer that the page understands."""
    with contextlib.suppress(UnreachableError, WatchEndedError):
        async with ask(path, "GET", target, timeout=timeout) as reply:
            return words(_object_in(await reply.body())) if reply.status != 403 else None
    return None


def _version(answer: Mapping[str, Any]) -> Json:
    """Return the version of a daemon; older ones do not have the field."""
    version = answer.get("version")
    return version if isinstance(version, str) else None


def _health(answer: Mapping[str, Any]) -> Json:
    """Return the overall status, a line for each part that is not ok, and how many sockets are queued."""
    parts = [(root.get("root"), root) for root in _objects(answer.get("roots"))]
    parts += [(actor.get("name"), actor) for actor in _objects(answer.get("actors"))]
    reasons = [
        f"{name} is {part.get('status')}: {part.get('reason')}" for name, part in parts if part.get("status") != "ok"
    ]
    queued = answer.get("queued")
    count = queued if isinstance(queued, int) else 0
    return {"status": str(answer.get("status")), "reasons": reasons[:MOST_REASONS], "queued": count}


def _objects(found: object) -> list[Mapping[str, Any]]:
    return [element for element in found if isinstance(element, dict)] if isinstance(found, list) else []


@attrs.define
class _WatchFollower:
    _watch: WatchedTable
    _path: str
    _timeout: float
    _board: Board
    _wall: Callable[[], float]
    _names: UserNames
    #: Is notified when a daemon has come.
    _came: trio.MemorySendChannel[None]
    #: The wall clock time of the daemon's last message; None if there was none.
    _heard: float | None = attrs.field(init=False, default=None)
    #: The wall clock time since which the watch is gone; None while it is there.
    _away_since: float | None = attrs.field(init=False, default=None)

    async def run(self) -> None:
        """Follow the watch forever."""
        while True:
            try:
                await self._read()
            except WatchLaggedError:
                await trio.sleep(AGAIN_IF_LAGGED)
            except WatchEndedError as error:
                if error.state != "away":
                    self._board.keep_only(self._watch.table, set())
                if self._away_since is None:
                    # The shown state is from that time. It is earlier than now if the daemon was silent.
                    self._away_since = self._wall() if self._heard is None else self._heard
                self._tell(error.state, error.reason)
                await trio.sleep(AGAIN if error.state == "away" else AGAIN_IF_MISSING)

    def _tell(self, state: str, reason: str | None = None) -> None:
        words: Json = {"state": state, "since": self._away_since, "reason": reason}
        self._board.tell(self._watch.table, words)

    async def _read(self) -> None:
        """Read the watch until it ends.

        Raises:
          WatchLaggedError: if it must be read again from the start.
          WatchEndedError: otherwise, with the reason.
        """
        pause = min(max(self._timeout / _HEARTBEATS, 0.02), 3600.0)
        try:
            target = f"{self._watch.path}?heartbeat={pause:g}"
            async with ask(self._path, "GET", target, timeout=self._timeout) as reply:
                if reply.status != 200:
                    raise await _refusal(reply)
                if "heartbeat" not in reply.headers:
                    raise WatchEndedError("this daemon is too old for the page", "missing")
                await self._take(reply)
        except UnreachableError as error:
            raise WatchEndedError(error.reason) from error
        raise WatchEndedError("the daemon has stopped")

    async def _take(self, reply: Reply) -> None:
        """Take the first list, which replaces the old entries, and then each change."""
        listed: set[str] | None = set()
        async for line in reply:
            self._heard = self._wall()
            if line:
                entry = _object_in(line)
                if isinstance(entry.get("error"), str):
                    # An error before the end of the list does not mean that the backlog became too long.
                    raise WatchLaggedError if listed is None else WatchEndedError(entry["error"])
                key = self._take_entry(entry)
                if listed is not None:
                    listed.add(key)
            elif listed is not None:
                # The first heartbeat ends the list.
                self._board.keep_only(self._watch.table, listed)
                self._away_since = None
                self._tell("there")
                with contextlib.suppress(trio.WouldBlock):  # One notification waits already.
                    self._came.send_nowait(None)
                listed = None

    def _take_entry(self, entry: Mapping[str, Any]) -> str:
        key = entry.get(self._watch.key)
        if not isinstance(key, str):
            raise WatchEndedError("the daemon says something else than this page understands")
        if entry.get("state") == _GONE:
            self._board.remove(self._watch.table, key)
        else:
            shown = {name: entry.get(name) for name in self._watch.fields}
            if self._watch.table == LEASES:
                shown["user"] = self._names.name_of(shown["uid"])
                with contextlib.suppress(LeaseJsonError):  # It is shown without what another version does not say.
                    lease = lease_from_json(entry)
                    shown["whose"] = self._names.name_of(lease.for_uid) or f"user {lease.for_uid}"
                    shown["for"] = encodable(purpose_of(lease))
            self._board.put(self._watch.table, key, shown)
        return key


async def _refusal(reply: Reply) -> WatchEndedError:
    body = await reply.body()
    try:
        reason = str(_object_in(body).get("error"))
    except WatchEndedError:
        reason = f"the daemon answers {reply.status}"
    return WatchEndedError(reason, {404: "missing", 403: "forbidden"}.get(reply.status, "away"))


def _object_in(text: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise WatchEndedError("the daemon says something else than this page understands")
    return found
