"""The handler actor: one per plugin type, between registrations and a handler that a user may have written.

Per plugin name it makes one call at a time, in the order asked (behaviour 21); different names run side by side. A
call that raises, hangs or is slow is that plugin's failure alone (behaviour 22, faults 81 and 82).

Every ask that is not withdrawn is answered. The call has the deadline, at which it is cancelled, and what waits before
it in the lane of its name is bounded too: one Validate or Register, since one plugin of a name is admitted at a time,
and one Deregister for each instance that leaves.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol, assert_never

import attrs
import trio

from ...protocol import messages as m
from ...protocol.errors import PluginError
from ...protocol.plugins import InstancePolicy, Plugin
from ...protocol.status import Outcome

#: Characters of a handler's error that are kept (fault 94).
MAX_ERROR = 1024
#: What is answered to who asked for a call that was under way when the actor crashed.
CRASHED = "the handler actor crashed during the call, and was started again"


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


@attrs.define(eq=False)
class Lane:
    """What is asked of one name: the call under way, and what waits for its turn."""

    #: None once it was withdrawn.
    present: m.Ask | None
    #: The scope of its call; None before that begins.
    scope: trio.CancelScope | None = None
    #: Made when there is something to keep: most lanes never hold more than the one ask.
    waiting: deque[m.Ask] | None = None

    def put(self, ask: m.Ask) -> None:
        """Let an ask wait for its turn."""
        if self.waiting is None:
            self.waiting = deque((ask,))
        else:
            self.waiting.append(ask)

    def next(self) -> m.Ask | None:
        """Go on to what waits, and return it; None if nothing does."""
        self.scope = None
        self.present = self.waiting.popleft() if self.waiting else None
        return self.present

    def withdraw(self, asked: m.Validate) -> None:
        """Cut off the call of ``asked``, or let it never begin; nothing if it has ended."""
        if self.present is asked:
            self.present = None
            if self.scope is not None:
                self.scope.cancel()
        elif self.waiting is not None:
            self.waiting = deque(ask for ask in self.waiting if ask is not asked)


#: By plugin name: a lane for each that something is asked of. They outlive a crash of the actor.
Lanes = dict[str, Lane]


class HandlerInbox:
    """The inbox of a handler actor: a memory channel that several workers share, with a bell that wakes them.

    A message stays in the channel until a worker runs and takes it. A worker that waited in the channel itself would be
    given it to find when it runs, later, so that two messages of one name, say a Register and its Deregister, could be
    taken in by two workers in either order. Its size is bounded by the protocol.
    """

    __slots__ = ("_bell", "_closed", "_receive", "_send", "_waiting")

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[m.HandlerMessage](math.inf)
        self._bell = trio.lowlevel.ParkingLot()
        self._waiting = 0
        self._closed = False

    def send_nowait(self, message: m.HandlerMessage, /) -> None:
        """Put ``message`` in.

        Raises:
          trio.ClosedResourceError: if the inbox was closed.
        """
        self._send.send_nowait(message)
        self._waiting += 1
        if self._bell:
            self._bell.unpark()

    def close(self) -> None:
        """Let the actor end when it has done all that it was asked."""
        self._closed = True
        self._send.close()
        self._bell.unpark_all()

    def receive_nowait(self) -> m.HandlerMessage | None:
        """Return the next message; None if there is none."""
        if not self._waiting:
            return None
        self._waiting -= 1
        return self._receive.receive_nowait()

    async def receive(self) -> m.HandlerMessage | None:
        """Return the next message, once there is one; None if the inbox was closed."""
        if self._waiting:
            await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._closed:
                return None
            await self._bell.park()
        return self.receive_nowait()


async def run(handler: Handler, inbox: HandlerInbox, timeout: float, lanes: Lanes | None = None) -> None:
    """Serve asks until the inbox is closed; ``timeout`` is the deadline of each call, in seconds.

    ``lanes`` is handed to a restarted actor again, since everybody who asked waits for an answer. It takes up what its
    predecessor had not begun. A Validate or Register that was under way has failed; a Deregister is asked again, since
    one that is lost would leave the plugin with its handler for ever.
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
        inbox: HandlerInbox,
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
        #: One for each name that a worker is busy with.
        self._lanes = lanes

    async def work(self) -> None:
        """Take asks until the inbox ends, or until enough others wait for them; whoever starts it counts it as idle."""
        while (ask := await self._inbox.receive()) is not None:
            self._idle -= 1
            await self._take(ask)
            await self._take_waiting()
            if self._idle >= MAX_IDLE:
                return
            self._idle += 1

    async def _take_waiting(self) -> None:
        for _ in range(BATCH):
            ask = self._inbox.receive_nowait()
            if ask is None:
                return
            await self._take(ask)

    async def _take(self, ask: m.HandlerMessage) -> None:
        if isinstance(ask, m.Withdraw):
            self._withdraw(ask.ask)
            return
        name = ask.plugin.name
        lane = self._lanes.get(name)
        if lane is not None:
            lane.put(ask)
            return
        if not self._idle:
            # Counted before it runs, so that a batch of asks starts one and not many.
            self._idle += 1
            self._nursery.start_soon(self.work)
        lane = self._lanes[name] = Lane(ask)
        await self._serve(name, lane)

    def _withdraw(self, ask: m.Validate) -> None:
        lane = self._lanes.get(ask.plugin.name)
        if lane is not None:
            lane.withdraw(ask)

    def resume(self) -> None:
        """Begin with what a crashed actor left."""
        for name, lane in self._lanes.items():
            ask = lane.present
            if lane.scope is not None and not isinstance(ask, m.Deregister):
                lane.next()
                if ask is not None:
                    ask.reply.send_nowait(m.HandlerAnswered(ask.ticket, Outcome.FAILED, CRASHED))
            # Not begun, or to be begun again.
            lane.scope = None
            self._nursery.start_soon(self._serve, name, lane)

    async def _serve(self, name: str, lane: Lane) -> None:
        ask = lane.present or lane.next()
        while ask is not None:
            outcome, error = await _contain(self._handler, ask, self._timeout, lane)
            if lane.present is ask:
                ask.reply.send_nowait(m.HandlerAnswered(ask.ticket, outcome, error[:MAX_ERROR]))
            ask = lane.next()
        del self._lanes[name]


async def _call(handler: Handler, ask: m.Ask) -> None:
    match ask:
        case m.Validate():
            await handler.validate(ask.plugin)
        case m.Register():
            await handler.register(ask.plugin)
        case m.Deregister():
            await handler.deregister(ask.plugin)
        case _:
            assert_never(ask)


async def _contain(handler: Handler, ask: m.Ask, timeout: float, lane: Lane) -> tuple[Outcome, str]:
    """The one place where code that we did not write may fail as it likes."""
    try:
        # Inside: a handler with a nursery may end in a group of errors and of the Cancelled of this deadline.
        with trio.move_on_after(timeout) as scope:
            lane.scope = scope
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
