"""Scripted handlers that record their calls."""

from __future__ import annotations

import math
from collections import deque
from typing import Literal, Self, assert_never

import attrs
import trio

from ...protocol.plugins.info import InstancePolicy, Plugin
from ..handlers.link import Link

#: The three calls of a handler that must be answered, and all of its calls.
Ask = Literal["validate", "register", "deregister"]
CallName = Ask | Literal["follow"]


@attrs.frozen
class HandlerCall:
    """One call that a handler received."""

    #: Virtual seconds.
    time: float
    ask: CallName
    #: The plugin's name.
    name: str


@attrs.frozen
class Fails:
    """The call raises ``error``; a string becomes a ValueError, which is no refusal, unlike a PluginError."""

    error: str | BaseException

    @property
    def exception(self) -> BaseException:
        """The exception to raise."""
        return ValueError(self.error) if isinstance(self.error, str) else self.error


@attrs.frozen
class Hangs:
    """The call never returns; it ends when it is cancelled."""


@attrs.frozen
class Takes:
    """The call returns after so many seconds."""

    seconds: float


Behaviour = Fails | Hangs | Takes


@attrs.define
class _Scripted:
    ask: CallName
    name: str | None
    behaviour: Behaviour
    times: float


class FakeHandler:
    """A handler that accepts every plugin at once, unless its script says otherwise.

    ::

        handler = FakeHandler()
        handler.script("register", Fails("no room"), name="a.example.com", times=2)

    With ``follows`` it follows each plugin for as long as it is registered: the calls of ``follow`` hang unless the
    script says otherwise; :class:`Fails` and :class:`Takes` end them.
    """

    def __init__(self, *, follows: bool = False, instances: InstancePolicy = InstancePolicy.NEWEST) -> None:
        self.instances = instances
        self.follow = self._follow if follows else None
        #: The links of the plugins that are followed now, by socket.
        self.links: dict[str, Link] = {}
        #: The calls that it received, in order.
        self.calls: list[HandlerCall] = []
        #: The same calls with the whole plugin.
        self.plugins: list[tuple[Ask, Plugin]] = []
        #: The instances that are registered now, by socket.
        self.registered: dict[str, Plugin] = {}
        #: The most calls that were under way at once.
        self.most_at_once = 0
        self._script: deque[_Scripted] = deque()
        self._under_way = 0

    def script(self, ask: CallName, *behaviours: Behaviour, name: str | None = None, times: float = 1) -> Self:
        """Set the behaviour of the next calls of ``ask`` (of plugins called ``name``, if given), ``times`` each."""
        self._script.extend(_Scripted(ask, name, behaviour, times) for behaviour in behaviours)
        return self

    def always(self, ask: CallName, behaviour: Behaviour, *, name: str | None = None) -> Self:
        """Set the behaviour of all later calls of ``ask`` (of plugins called ``name``, if given)."""
        return self.script(ask, behaviour, name=name, times=math.inf)

    def calm(self) -> None:
        """Drop the script: all calls succeed at once from now on."""
        self._script.clear()

    def asked(self, name: str | None = None) -> list[CallName]:
        """Return the calls about the plugins called ``name``, or all, without their times."""
        return [call.ask for call in self.calls if name in (None, call.name)]

    async def validate(self, plugin: Plugin) -> None:
        """See :class:`plugind.actors.handlers.handler.Handler`."""
        await self._call("validate", plugin)

    async def register(self, plugin: Plugin) -> None:
        """See :class:`plugind.actors.handlers.handler.Handler`."""
        await self._call("register", plugin)
        self.registered[plugin.socket] = plugin

    async def deregister(self, plugin: Plugin) -> None:
        """See :class:`plugind.actors.handlers.handler.Handler`."""
        self.registered.pop(plugin.socket, None)
        await self._call("deregister", plugin)

    async def _follow(self, plugin: Plugin, link: Link) -> None:
        self.calls.append(HandlerCall(round(trio.current_time(), 6), "follow", plugin.name))
        self.links[plugin.socket] = link
        try:
            await behave(self._next("follow", plugin.name) or Hangs())
        finally:
            if self.links.get(plugin.socket) is link:
                del self.links[plugin.socket]

    async def _call(self, ask: Ask, plugin: Plugin) -> None:
        self.calls.append(HandlerCall(round(trio.current_time(), 6), ask, plugin.name))
        self.plugins.append((ask, plugin))
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            await behave(self._next(ask, plugin.name))
        finally:
            self._under_way -= 1

    def _next(self, ask: CallName, name: str) -> Behaviour | None:
        for scripted in self._script:
            if scripted.ask == ask and scripted.name in (None, name):
                scripted.times -= 1
                if scripted.times <= 0:
                    self._script.remove(scripted)
                return scripted.behaviour
        return None


async def behave(behaviour: Behaviour | None) -> None:
    """Behave as a script says; None means to succeed."""
    match behaviour:
        case None:
            await trio.lowlevel.checkpoint()
        case Fails():
            raise behaviour.exception
        case Hangs():
            await trio.sleep_forever()
        case Takes():
            await trio.sleep(behaviour.seconds)
        case _:
            assert_never(behaviour)
