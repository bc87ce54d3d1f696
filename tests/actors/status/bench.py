"""A status actor without a socket, for the tests of what it shows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from plugind.actors.http.server import HttpRequest, HttpResponse
from plugind.actors.status import actor as status
from plugind.actors.status.api import Api, Memory, StatusConfig
from plugind.protocol.logs.lines import Field, Level
from plugind.protocol.messages.reconciler import ReconcilerMessage
from plugind.protocol.messages.status import (
    Snapshot,
    SnapshotAsked,
    StateChanged,
    StatusMessage,
    Subscribed,
    ViewMessage,
)
from plugind.protocol.plugins.info import PluginInfo
from plugind.protocol.plugins.status import StateName

ROOT = "/r"


def changed(name: str, state: StateName, time: float = 0.0, generation: int = 1) -> StateChanged:
    return StateChanged(f"/r/{name}.sock", ROOT, generation, state, time)


def info(name: str) -> PluginInfo:
    return PluginInfo("CSIPlugin", name, f"/r/{name}.sock", ("1.0.0",))


@attrs.define
class RecordingLogger:
    """A logger that records its events."""

    level: Level = Level.DEBUG
    events: list[tuple[Level, str, dict[str, Field]]] = attrs.field(factory=list)

    def enabled(self, level: Level) -> bool:
        return level >= self.level

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        if self.enabled(level):
            self.events.append((level, message, fields))


@attrs.define
class Bench:
    """A status actor with its inbox and without a socket; its routes are called directly."""

    inbox: trio.MemorySendChannel[StatusMessage]
    reconciler: trio.MemoryReceiveChannel[ReconcilerMessage]
    memory: Memory
    log: RecordingLogger
    api: Api

    async def take(self, *messages: StatusMessage) -> None:
        for message in messages:
            await self.inbox.send(message)
        await wait_all_tasks_blocked()

    async def snapshot(self) -> Snapshot:
        reply, answer = trio.open_memory_channel[Snapshot](1)
        await self.inbox.send(SnapshotAsked(reply))
        return await answer.receive()

    async def subscribe(self, size: int = 100) -> trio.MemoryReceiveChannel[ViewMessage]:
        subscriber, stream = trio.open_memory_channel[ViewMessage](size)
        await self.take(Subscribed(subscriber))
        return stream

    async def get(self, path: str, **query: str) -> HttpResponse:
        return await self.api(HttpRequest("GET", path, query, b""))

    async def json(self, path: str, **query: str) -> object:
        return json.loads(await body_of(await self.get(path, **query)))


async def body_of(response: HttpResponse) -> bytes:
    whole = bytearray(response.body)

    async def send(piece: bytes) -> None:
        whole.extend(piece)

    if response.write is not None:
        await response.write(send)
    return bytes(whole)


@asynccontextmanager
async def bench(config: StatusConfig | None = None, level: Level = Level.DEBUG) -> AsyncIterator[Bench]:
    config = config or StatusConfig(roots=(ROOT,), wall=lambda: trio.current_time() + 1000.0)
    to_status, inbox = trio.open_memory_channel[StatusMessage](1000)
    to_reconciler, asked = trio.open_memory_channel[ReconcilerMessage](2)
    memory, log = Memory(), RecordingLogger(level)
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            await status.run(config, inbox=inbox, reconciler=to_reconciler, log=log, memory=memory)

        nursery.start_soon(run)
        with to_reconciler, asked:
            yield Bench(to_status, asked, memory, log, Api(config, memory, to_reconciler))
        to_status.close()


def drained(stream: trio.MemoryReceiveChannel[ViewMessage]) -> list[ViewMessage]:
    messages: list[ViewMessage] = []
    while True:
        try:
            messages.append(stream.receive_nowait())
        except (trio.WouldBlock, trio.EndOfChannel):
            return messages
