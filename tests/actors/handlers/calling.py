"""Calls of a handler as registrations make them, each in a task of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from plugind.actors.handlers.calls import CallConfig, HandlerCalls
from plugind.actors.handlers.handler import Handler
from plugind.actors.handlers.link import LinkPort
from plugind.actors.handlers.served import Served
from plugind.protocol.logs.lines import Field, Level
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import Ending, Outcome

TIMEOUT = 120.0
Method = Callable[[Plugin], Awaitable[None]]
OK = Ending(Outcome.OK)


def plugin(name: str = "x") -> Plugin:
    return Plugin("T", name, "/reg/a.sock", ("1.0.0",), "/reg/a.sock", 1)


async def nothing(plugin: Plugin) -> None:
    pass


class AcceptsAll:
    """The part of a handler that takes each plugin at once."""

    async def validate(self, plugin: Plugin) -> None:
        pass

    register = deregister = validate


class Lines:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[Level, str, dict[str, Field]]] = []

    def enabled(self, level: Level) -> bool:
        return level > Level.DEBUG

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        self.lines.append((level, message, fields))

    def with_text(self, text: str) -> list[tuple[Level, dict[str, Field]]]:
        return [(level, fields) for level, message, fields in self.lines if message == text]


@attrs.frozen
class Recording:
    """A handler that follows a script, and records when each call began and ended."""

    follow = None
    validated: Method = nothing
    registered: Method = nothing
    deregistered: Method = nothing
    calls: list[tuple[float, str]] = attrs.Factory(list)

    async def validate(self, plugin: Plugin) -> None:
        await self._note("validate", self.validated, plugin)

    async def register(self, plugin: Plugin) -> None:
        await self._note("register", self.registered, plugin)

    async def deregister(self, plugin: Plugin) -> None:
        await self._note("deregister", self.deregistered, plugin)

    async def _note(self, what: str, method: Method, plugin: Plugin) -> None:
        self.calls.append((trio.current_time(), f"{what} {plugin.name}"))
        await method(plugin)
        self.calls.append((trio.current_time(), f"{what} {plugin.name} ended"))


@attrs.define
class Caller:
    """Calls the handler for registrations, and records when and how each call ended."""

    served: Served
    nursery: trio.Nursery
    #: The names for which another plugin waits when their Register begins, and those whose Register has begun.
    wanted: set[str] = attrs.Factory(set)
    begun: list[str] = attrs.Factory(list)
    endings: list[tuple[float, str, Ending]] = attrs.Factory(list)

    async def call(self, ask: str, name: str = "x") -> Ending:
        """Make a call, and return how it ended."""
        match ask:
            case "validate":
                return await self.served.validate(plugin(name))
            case "register":
                return await self.served.register(plugin(name), None, partial(self._begin, name))
            case _:
                return await self.served.deregister(plugin(name))

    async def ask(self, ask: str, name: str = "x") -> trio.CancelScope:
        """Make a call in a task of its own, after those asked before; return the scope that cancels it."""
        scope = trio.CancelScope()
        self.nursery.start_soon(self._run, ask, name, scope)
        await wait_all_tasks_blocked()
        return scope

    def _begin(self, name: str) -> bool:
        self.begun.append(name)
        return name in self.wanted

    async def _run(self, ask: str, name: str, scope: trio.CancelScope) -> None:
        with scope:
            ending = await self.call(ask, name)
            self.endings.append((trio.current_time(), f"{ask} {name}", ending))


@asynccontextmanager
async def calling(
    handler: Handler, links: LinkPort | None = None, *, timeout: float = TIMEOUT
) -> AsyncIterator[Caller]:
    """Serve the handler until each call has ended."""
    served = Served(HandlerCalls(handler, CallConfig(timeout), "T"), links)
    async with trio.open_nursery() as nursery:
        yield Caller(served, nursery)


def sleeping(seconds: float) -> Method:
    async def method(plugin: Plugin) -> None:
        await trio.sleep(seconds)

    return method


def raising(error: BaseException) -> Method:
    async def method(plugin: Plugin) -> None:
        raise error

    return method
