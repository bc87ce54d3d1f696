"""The handler actor: one per plugin type, between registrations and a handler that a user may have written.

Per plugin name it makes one call at a time, in the order asked (behaviour 21); different names run side by side. A
call that raises, hangs or is slow is that plugin's failure alone (behaviour 22, faults 81 and 82): every ask is
answered, at the deadline at the latest.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol, assert_never

import trio

from plugind.protocol import messages as m
from plugind.protocol.errors import PluginError
from plugind.protocol.plugins import InstancePolicy, Plugin
from plugind.protocol.status import Outcome

#: Characters of a handler's error that are kept (fault 94).
MAX_ERROR = 1024


class Handler(Protocol):
    """The consumer of one plugin type. Write a class with these three methods; that is all that is needed.

    For each instance (``plugin.socket``, ``plugin.generation``) the calls come in the order validate, register,
    deregister; deregister comes exactly once for each register that was called, even one that raised. Per name one
    call runs at a time. Each has a deadline (``Timeouts.handler``), at which it is cancelled.

    A class may also have an attribute ``instances``, an :class:`~plugind.protocol.plugins.InstancePolicy`: what holds
    when several sockets bring one name. Without it, all are registered and the newest is active.
    """

    async def validate(self, plugin: Plugin) -> None:
        """Raise if the plugin is not acceptable; the text of the error is told to the plugin."""

    async def register(self, plugin: Plugin) -> None:
        """Take the plugin into service; an error is told to the plugin, and deregister follows."""

    async def deregister(self, plugin: Plugin) -> None:
        """Let the plugin go; its socket is gone, or a newer one is in its place."""


def policy_of(handler: Handler) -> InstancePolicy:
    """Return the policy that ``handler`` names, or the default."""
    policy = getattr(handler, "instances", InstancePolicy.NEWEST)
    if not isinstance(policy, InstancePolicy):
        raise TypeError(f"{type(handler).__name__}.instances is {policy!r}; make it an InstancePolicy")
    return policy


#: What was asked and has not begun, for each name that a call is under way for; it outlives a crash of the actor.
Lanes = dict[str, deque[m.HandlerMessage]]


async def run(
    handler: Handler, inbox: trio.MemoryReceiveChannel[m.HandlerMessage], timeout: float, lanes: Lanes | None = None
) -> None:
    """Serve asks until the inbox is closed; ``timeout`` is the deadline of each call, in seconds.

    ``lanes`` is handed to a restarted actor again: it takes up what its predecessor was asked and had not begun, since
    a deregistration that is lost would leave the plugin with its handler for ever.
    """
    async with trio.open_nursery() as nursery:
        pool = _Pool(handler, inbox, timeout, nursery, {} if lanes is None else lanes)
        pool.resume()
        await pool.work()


#: Workers that may wait for asks; one more than that goes home.
MAX_IDLE = 4
#: Asks that a worker takes before other actors have their turn.
BATCH = 16


class _Pool:
    """Workers that share one inbox. One always waits for the next ask, so that a call that waits holds up nobody.

    Most calls end at once, and those of a storm come many at a time: then one worker takes them one after the other,
    without a new task or a wake for each.
    """

    def __init__(
        self,
        handler: Handler,
        inbox: trio.MemoryReceiveChannel[m.HandlerMessage],
        timeout: float,
        nursery: trio.Nursery,
        lanes: Lanes,
    ) -> None:
        self._handler = handler
        self._inbox = inbox
        self._timeout = timeout
        self._nursery = nursery
        #: Workers that wait for an ask, or are about to.
        self._idle = 1
        #: What is still to be done for each name that a worker is busy with, the present call not counted.
        self._lanes = lanes

    async def work(self) -> None:
        """Take asks until the inbox ends, or until enough others wait for them; whoever starts it counts it as idle."""
        while True:
            try:
                ask = await self._inbox.receive()
            except trio.EndOfChannel:
                return
            self._idle -= 1
            await self._take(ask)
            await self._take_waiting()
            if self._idle >= MAX_IDLE:
                return
            self._idle += 1

    async def _take_waiting(self) -> None:
        for _ in range(BATCH):
            try:
                ask = self._inbox.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                return
            await self._take(ask)

    async def _take(self, ask: m.HandlerMessage) -> None:
        name = ask.plugin.name
        lane = self._lanes.get(name)
        if lane is not None:
            lane.append(ask)
            return
        if not self._idle:
            # Counted before it runs, so that a batch of asks starts one and not many.
            self._idle += 1
            self._nursery.start_soon(self.work)
        self._lanes[name] = deque((ask,))
        await self._serve(name)

    def resume(self) -> None:
        """Begin with what a crashed actor left."""
        for name in self._lanes:
            self._nursery.start_soon(self._serve, name)

    async def _serve(self, name: str) -> None:
        lane = self._lanes[name]
        while lane:
            ask = lane.popleft()
            outcome, error = await _contain(self._handler, ask, self._timeout)
            ask.reply.send_nowait(m.HandlerAnswered(ask.ticket, outcome, error[:MAX_ERROR]))
        del self._lanes[name]


async def _call(handler: Handler, ask: m.HandlerMessage) -> None:
    match ask:
        case m.Validate():
            await handler.validate(ask.plugin)
        case m.Register():
            await handler.register(ask.plugin)
        case m.Deregister():
            await handler.deregister(ask.plugin)
        case _:
            assert_never(ask)


async def _contain(handler: Handler, ask: m.HandlerMessage, timeout: float) -> tuple[Outcome, str]:
    """The one place where code that we did not write may fail as it likes."""
    try:
        # Inside: a handler with a nursery may end in a group of errors and of the Cancelled of this deadline.
        with trio.move_on_after(timeout) as scope:
            await _call(handler, ask)
    except PluginError as error:
        return Outcome.REFUSED, _words(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a handler's error is its plugin's failure alone
        return Outcome.FAILED, f"{type(error).__name__}: {_words(error)}"
    except BaseExceptionGroup as group:
        if group.subgroup((trio.Cancelled, KeyboardInterrupt)) is not None:
            raise
        return Outcome.FAILED, f"{type(group).__name__}: {_words(group)}"
    if scope.cancelled_caught:
        return Outcome.TIMED_OUT, f"the handler did not finish in {timeout:g} s"
    return Outcome.OK, ""


def _words(error: BaseException) -> str:
    """Return the text of an error whose class we did not write, and which may fail to give it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - see above
        return "no words"
