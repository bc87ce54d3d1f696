"""Stands for a daemon whose plugins, devices and leases a test sets: any text in any field, and as many as it likes.

Its answers are made by the functions that make those of a daemon.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import unquote

import attrs
import trio

from plugind.actors.http.limits import HttpLimits
from plugind.actors.http.places import Place
from plugind.actors.http.server import HttpRequest, HttpResponse, Send, json_response, problem, serve
from plugind.actors.io.unix_socket import listen
from plugind.protocol.devices.json import device_to_json, resource_to_json
from plugind.protocol.leases.leases_json import lease_to_json
from plugind.protocol.leases.values import Lease
from plugind.protocol.logs.lines import timestamp
from plugind.protocol.plugins.devices import Device, DeviceList, ResourceState, ResourceStatus
from plugind.protocol.plugins.status import HistoryEntry, PluginStatus, StateName
from plugind.protocol.status.json import Json, described_to_json, plugin_to_json

GPU = "vendor.com/gpu"
#: The tables, by the paths of their watches, and the field that has the key of each.
KEYS = {"/watch": "socket", "/v1/devices/watch": "resource", "/v1/leases/watch": "id"}


def plugin(name: str, state: StateName = StateName.REGISTERED, /, **fields: object) -> PluginStatus:
    """Return a plugin as most tests need it."""
    registered = state is StateName.REGISTERED
    made = PluginStatus(f"/r/{name}.sock", "/r", 1, state, trio.current_time(), attempt=1, type="CSIPlugin", name=name)
    made = attrs.evolve(made, active=True if registered else None, serving=True if registered else None)
    return attrs.evolve(made, **fields)  # type: ignore[arg-type]  # the fields are those of the class


def resource(name: str = GPU, **healths: str) -> ResourceStatus:
    """Return a resource with devices of these ids and healths."""
    listed = DeviceList(Device(device, health, (0,)) for device, health in healths.items())
    now = trio.current_time()
    changed = dict.fromkeys(healths, now)
    return ResourceStatus(name, ResourceState.LISTED, now, socket="/r/gpu.sock", listed=listed, changed=changed)


@attrs.define
class StandIn:
    """The answers of a daemon."""

    path: str
    #: The entries of each table, by the path of its watch.
    tables: dict[str, dict[str, dict[str, Json]]] = attrs.field(factory=lambda: {path: {} for path in KEYS})
    #: What is added to the description of a socket.
    described: dict[str, dict[str, Json]] = attrs.field(factory=dict)
    #: The whole of each resource.
    devices: dict[str, dict[str, Json]] = attrs.field(factory=dict)
    health: dict[str, Json] = attrs.field(factory=lambda: {"status": "ok", "roots": [], "actors": []})
    #: What it says of its version; None for one that does not.
    version: str | None = None
    #: What is answered in the place of anything else, by the path of the request.
    instead: dict[str, HttpResponse] = attrs.field(factory=dict)
    #: The requests so far, by path.
    asked: list[str] = attrs.field(factory=list)
    #: Whether its watches send nothing more.
    silent: bool = False
    _watchers: list[tuple[str, trio.MemorySendChannel[bytes]]] = attrs.field(factory=list)

    def put_plugin(self, status: PluginStatus) -> None:
        """Set a plugin; its description has the history of ``status``."""
        self.put("/watch", plugin_to_json(status, trio.current_time(), time.time()))
        self.described[status.socket] = described_to_json(status, trio.current_time(), time.time())

    def put_resource(self, status: ResourceStatus) -> None:
        """Set a resource."""
        now, unix = trio.current_time(), time.time()
        entry = resource_to_json(status, now, unix)
        self.put("/v1/devices/watch", entry)
        self.devices[status.name] = {
            **entry,
            "devices": [device_to_json(device, now, unix) for device in status.devices()],
        }

    def put_lease(self, lease: Lease) -> None:
        """Set a lease."""
        self.put("/v1/leases/watch", {"time": timestamp(time.time()), **lease_to_json(lease, 0)})

    def put(self, path: str, entry: Mapping[str, Json]) -> None:
        """Set an entry of the watch at ``path``, and tell who watches; one in the state ``gone`` is removed."""
        key, table = str(entry[KEYS[path]]), self.tables[path]
        if entry["state"] == StateName.GONE:
            table.pop(key, None)
        else:
            table[key] = dict(entry)
        for watched, channel in self._watchers:
            if watched == path:
                channel.send_nowait(json.dumps(entry).encode() + b"\n")

    def remove(self, path: str, key: str) -> None:
        """Remove an entry."""
        self.put(path, {KEYS[path]: key, "state": "gone"})

    def say(self, path: str, line: bytes) -> None:
        """Send any line to who watches at ``path``."""
        for watched, channel in self._watchers:
            if watched == path:
                channel.send_nowait(line)

    def end_watches(self) -> None:
        """End all watches, as a daemon that stops."""
        for _, channel in self._watchers:
            channel.close()
        self._watchers.clear()

    async def __call__(self, request: HttpRequest, /) -> HttpResponse:
        """Answer a request."""
        self.asked.append(request.path)
        if request.path in self.instead:
            return self.instead[request.path]
        if request.path in KEYS:
            pause = float(request.query["heartbeat"])
            headers = (("Heartbeat", f"{pause:g}"),)
            write = partial(self._write, request.path, pause)
            return HttpResponse(200, "application/jsonl", write=write, endless=True, headers=headers)
        if request.path.startswith("/plugins/"):
            found = self.described.get(unquote(request.path.removeprefix("/plugins/")))
            return problem(404, "no such plugin") if found is None else json_response(200, [found])
        if request.path == "/v1/devices":
            if "resource" not in request.query:
                return json_response(200, {"resources": [*self.devices.values()]})
            found = self.devices.get(request.query["resource"])
            return problem(404, "no such resource") if found is None else json_response(200, {"resources": [found]})
        return json_response(200, self.health if request.path == "/healthz" else {"version": self.version})

    async def _write(self, path: str, pause: float, send: Send) -> None:
        writer, reader = trio.open_memory_channel[bytes](1_000_000)
        self._watchers.append((path, writer))
        try:
            await send(b"".join(json.dumps(row).encode() + b"\n" for row in self.tables[path].values()) + b"\n")
            while True:
                pieces = [b"\n"]
                with trio.move_on_after(pause):
                    pieces = [await reader.receive()]
                    while len(pieces) < 500 and reader.statistics().current_buffer_used:
                        pieces.append(reader.receive_nowait())
                if not self.silent:
                    await send(b"".join(pieces))
        except trio.EndOfChannel:
            pass
        finally:
            reader.close()
            self._watchers = [watcher for watcher in self._watchers if watcher[1] is not writer]


@asynccontextmanager
async def standing_in(path: str) -> AsyncIterator[StandIn]:
    """Listen at ``path`` for the duration of the block."""
    stand_in = StandIn(path)
    async with trio.open_nursery() as nursery:
        with listen(path, remove_stale=True) as listener:
            run = partial(serve, listener, stand_in, HttpLimits(), allowed=None, place=_place)
            nursery.start_soon(run)
            yield stand_in
            nursery.cancel_scope.cancel()


def _place(request: HttpRequest) -> Place:
    return Place.STREAM if request.path in KEYS else Place.QUERY


def history(*entries: tuple[float, StateName, str | None]) -> tuple[HistoryEntry, ...]:
    """Return a history: how many seconds ago each change was, the state, and why."""
    now = trio.current_time()
    return tuple(HistoryEntry(now - ago, state, why, 1, why) for ago, state, why in entries)
