"""The handler actor: one for each plugin type, between the registrations and a handler that a user may have written.

It makes one call at a time for each plugin name, in the order in which it was asked (behaviour 21). Calls for different
names run side by side. A call that raises, hangs or is slow affects only its plugin (behaviour 22, faults 81 and 82).

Every ask that is not withdrawn is answered. Each call is cancelled at its deadline, and few calls can wait before it in
the lane of its name: one Validate or Register, since one plugin of a name is admitted at a time, and one Deregister for
each instance that leaves.

A handler that has links is given one for each instance. The actor opens it before ``register``, has the handler follow
the plugin once that has succeeded, and ends the link before ``deregister``; see ``plugind.actors.links``. The lane of a
name keeps that order.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable
from functools import partial
from typing import Final

import trio

from ...protocol import messages as m
from ...protocol.config_messages import CallTimeChanged
from ...protocol.health import Reading
from ...protocol.plugins import Plugin
from ...protocol.status import Outcome
from ...protocol.values import record
from ..asks import PromptHandler
from .calls import Call, CallConfig, Calls, Ending
from .errors import MAX_ERROR
from .handler import Handler
from .link import Link, LinkPort

#: The answer to an ask whose call was under way when the actor crashed.
CRASHED = "the handler actor crashed during the call, and was started again"


@record(eq=False)
class Lane:
    """The asks for one plugin name: the one whose call is under way, and those that wait for it."""

    #: The current ask; None once it was withdrawn.
    present: m.Ask | None
    #: The call of a method of the handler for it; None before the call begins.
    call: Call | None = None
    #: A Register that was withdrawn before its call began. It is called all the same, since its Deregister follows, and
    #: cancelled at once.
    withdrawn: m.Register | None = None
    #: A Register for whose end another plugin waits; noted before its call began.
    wanted: m.Register | None = None
    #: Created when it is needed, since most lanes never have more than one ask.
    waiting: deque[m.Ask] | None = None

    def put(self, ask: m.Ask) -> None:
        """Add an ask that waits for its turn."""
        if self.waiting is None:
            self.waiting = deque((ask,))
        else:
            self.waiting.append(ask)

    def next(self) -> m.Ask | None:
        """Go on to the next ask and return it, or None if there is none."""
        self.call = None
        self.present = self.waiting.popleft() if self.waiting else None
        return self.present

    def begin(self, call: Call) -> None:
        """Note the call for the current ask, which is about to be made."""
        self.call = call
        if (asked := self.withdrawn) is not None and asked is self.present:
            self.withdrawn = None
            self.withdraw(asked)

    def withdraw(self, asked: m.Validate | m.Register) -> None:
        """Cancel the call of ``asked``, or remove the ask before its call; do nothing if the call has ended."""
        if self.present is asked and self.call is not None:
            self.present = None
            self.call.scope.cancel()
        elif isinstance(asked, m.Register):
            self.withdrawn = asked
        elif self.present is asked:
            self.present = None
        elif self.waiting is not None:
            self.waiting = deque(ask for ask in self.waiting if ask is not asked)


#: The lanes in use, by plugin name. They outlive a crash of the actor.
Lanes = dict[str, Lane]


class HandlerInbox(PromptHandler):
    """The inbox of a handler actor: a memory channel that several workers share.

    A message stays in the channel until a worker runs and takes it; workers wait in a parking lot. A worker that waited
    in the channel would be handed its message before it runs. Then two workers could handle two messages of one name,
    a Register and its Deregister for example, in either order. The protocol bounds the size of the inbox.

    A method that never waits is called in the task that asks, if nothing is before it: no message about its name that
    waits for a worker, and no other ask in the lane of that name. Messages about others wait nearly always in a storm,
    and it may overtake them, as calls for different names run side by side. While the actor does not run, after a
    crash, all asks wait.
    """

    __slots__ = ("_closed", "_names", "_receive", "_send", "_sleepers", "_taken", "_waiting", "pool")

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[m.HandlerMessage](math.inf)
        self._sleepers = trio.lowlevel.ParkingLot()
        self._waiting = 0
        #: How many messages about each name wait.
        self._names: dict[str, int] = {}
        self._taken = 0
        self._closed = False
        #: What makes the calls, while the actor runs.
        self.pool: _Pool | None = None

    def is_prompt(self, ask: type[m.Ask]) -> bool:
        """See :class:`PromptHandler`."""
        return self.pool is not None and self.pool.is_prompt(ask)

    def call(self, ask: m.Ask) -> Awaitable[m.HandlerAnswered] | None:
        """See :class:`PromptHandler`."""
        if self._closed or self.pool is None or ask.plugin.name in self._names:
            return None
        return self.pool.call(ask)

    def send_nowait(self, message: m.HandlerMessage, /) -> None:
        """Put ``message`` in.

        Raises:
          trio.ClosedResourceError: if the inbox was closed.
        """
        self._send.send_nowait(message)
        self._waiting += 1
        name = _name_in(message)
        self._names[name] = self._names.get(name, 0) + 1
        if self._sleepers:
            self._sleepers.unpark()

    def close(self) -> None:
        """End the actor once it has answered all asks."""
        self._closed = True
        self._send.close()
        self._sleepers.unpark_all()

    def receive_nowait(self) -> m.HandlerMessage | None:
        """Return the next message; None if there is none."""
        if not self._waiting:
            return None
        self._waiting -= 1
        self._taken += 1
        message = self._receive.receive_nowait()
        name = _name_in(message)
        if left := self._names[name] - 1:
            self._names[name] = left
        else:
            del self._names[name]
        return message

    def read(self) -> Reading:
        """Return how many messages wait for a worker, and how many were taken. A call that hangs keeps none waiting."""
        return Reading(self._waiting, self._taken)

    async def receive(self) -> m.HandlerMessage | None:
        """Return the next message, once there is one; None if the inbox was closed."""
        if self._waiting:
            await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._closed:
                return None
            await self._sleepers.park()
        return self.receive_nowait()


_ASKS: Final = (m.Validate, m.Register, m.Deregister)
#: The messages that are about an ask.
_ABOUT_ASKS: Final = (m.Withdraw, m.GiveWay)


def _name_in(message: object) -> str:
    """Return the name of the plugin that a message is about; one that is about no plugin has no name."""
    asked = message.ask if isinstance(message, _ABOUT_ASKS) else message
    return asked.plugin.name if isinstance(asked, _ASKS) else ""


async def run(calls: Calls, inbox: HandlerInbox, lanes: Lanes | None = None, links: LinkPort | None = None) -> None:
    """Serve asks until the inbox is closed; ``links`` is None for a handler that has no links.

    ``lanes`` is handed to a restarted actor again, because the registrations wait for their answers. It goes on with
    the asks that its predecessor had not begun. A Validate or Register that was under way has failed. A Deregister is
    called again: if it were lost, the handler would keep the plugin for ever.
    """
    try:
        async with trio.open_nursery() as nursery:
            inbox.pool = pool = _Pool(calls, inbox, nursery, {} if lanes is None else lanes, links)
            pool.resume()
            await pool.work()
    finally:
        inbox.pool = None


#: How many workers may wait for asks; any more end.
MAX_IDLE = 4
#: How many asks a worker takes before other actors have their turn.
BATCH = 16


class _Pool:
    """Workers that share one inbox. One always waits for the next ask, so that a slow call delays no other.

    Most calls end at once, and in a storm many come together. Then one worker takes them in turn, without a new task or
    a wake-up for each.
    """

    def __init__(
        self,
        calls: Calls,
        inbox: HandlerInbox,
        nursery: trio.Nursery,
        lanes: Lanes,
        links: LinkPort | None,
    ) -> None:
        self._calls = calls
        self._links = links
        self._inbox = inbox
        self._nursery = nursery
        #: The number of workers that wait for an ask, or are about to.
        self._idle = 1
        #: One lane for each name that a worker is busy with.
        self._lanes = lanes

    async def work(self) -> None:
        """Take asks until the inbox ends or enough other workers wait; the caller has counted this worker as idle."""
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
        if isinstance(ask, m.GiveWay):
            self._give_way(ask.ask)
            return
        if isinstance(ask, CallTimeChanged):
            self._calls.give(ask.seconds)
            return
        name = ask.plugin.name
        lane = self._lanes.get(name)
        if lane is not None:
            lane.put(ask)
            return
        if not self._idle:
            # The new worker is counted before it runs, so that a batch of asks does not start many workers.
            self._idle += 1
            self._nursery.start_soon(self.work)
        lane = self._lanes[name] = Lane(ask)
        await self._serve(name, lane)

    def is_prompt(self, ask: type[m.Ask]) -> bool:
        # The link of a plugin is opened and ended by the actor, in the lane of its name.
        return (self._links is None or ask is m.Validate) and self._calls.is_prompt(_METHODS[ask])

    def call(self, ask: m.Ask) -> Awaitable[m.HandlerAnswered] | None:
        return None if ask.plugin.name in self._lanes else self._call(ask)

    async def _call(self, ask: m.Ask) -> m.HandlerAnswered:
        return _answer(ask, await self._calls.make_at_once(_METHODS[type(ask)], ask.plugin))

    def _withdraw(self, ask: m.Validate | m.Register) -> None:
        lane = self._lanes.get(ask.plugin.name)
        if lane is not None:
            lane.withdraw(ask)

    def _give_way(self, ask: m.Register) -> None:
        lane = self._lanes.get(ask.plugin.name)
        if lane is None or self._links is None:
            return
        if lane.present is not ask or lane.call is None:
            lane.wanted = ask
        else:
            self._links.give_way(ask.plugin)

    def resume(self) -> None:
        """Continue with the asks that a crashed actor left, and with those that came while none ran.

        All are in their lanes before the first call begins, so that none begins that was withdrawn meanwhile. It would
        otherwise be cancelled while the next call for its socket, which may be in another lane, begins.
        """
        threads = {name: self._give_up(lane) for name, lane in self._lanes.items()}
        while (message := self._inbox.receive_nowait()) is not None:
            if isinstance(message, m.Withdraw):
                self._withdraw(message.ask)
            elif isinstance(message, m.GiveWay):
                self._give_way(message.ask)
            elif isinstance(message, CallTimeChanged):
                self._calls.give(message.seconds)
            elif (lane := self._lanes.get(message.plugin.name)) is not None:
                lane.put(message)
            else:
                self._lanes[message.plugin.name] = Lane(message)
        for name, lane in self._lanes.items():
            self._nursery.start_soon(self._serve, name, lane, threads.get(name))

    @staticmethod
    def _give_up(lane: Lane) -> Call | None:
        """Answer the ask whose call a crash has ended, unless it must be called again; return the call."""
        ask, call = lane.present, lane.call
        if call is not None and not isinstance(ask, m.Deregister):
            lane.next()
            if ask is not None:
                ask.reply.send_nowait(m.HandlerAnswered(ask.ticket, Outcome.FAILED, CRASHED))
        # This ask has not begun, or must begin again.
        lane.call = None
        return call

    async def _serve(self, name: str, lane: Lane, before: Call | None = None) -> None:
        """Make the calls of a lane, once the thread of the call ``before`` has returned."""
        if before is not None:
            await before.wait_for_thread()
        ask, link = lane.present or lane.next(), None
        while ask is not None:
            if self._links is not None:
                link = await self._open_or_end_link(self._links, ask, wanted=lane.wanted)
            call = self._calls.prepare(_METHODS[type(ask)], ask.plugin, link)
            lane.begin(call)
            ending = await self._calls.make(call)
            if lane.present is ask:
                if link is not None and ending.outcome is Outcome.OK:
                    self._follow(ask.plugin, link)
                ask.reply.send_nowait(_answer(ask, ending))
                lane.present = None
            # A thread that was given up keeps the name until it returns.
            await call.wait_for_thread()
            ask = lane.next()
        del self._lanes[name]

    async def _open_or_end_link(self, links: LinkPort, ask: m.Ask, *, wanted: m.Register | None) -> Link | None:
        """Open the link of a plugin that is to be registered, and return it; end that of one to be deregistered."""
        if isinstance(ask, m.Register):
            link = links.open(ask.plugin, ask.file)
            if ask.wanted or ask is wanted:
                links.give_way(ask.plugin)
            return link
        if isinstance(ask, m.Deregister):
            await links.end(ask.plugin)
        return None

    def _follow(self, plugin: Plugin, link: Link) -> None:
        """Have the handler follow a plugin that it has registered."""
        if self._links is not None and self._calls.follows:
            self._links.start(plugin, partial(self._calls.follow, plugin, link))


def _answer(ask: m.Ask, ending: Ending) -> m.HandlerAnswered:
    return m.HandlerAnswered(ask.ticket, ending.outcome, ending.error[:MAX_ERROR], ending.cause)


_METHODS: dict[type[m.Ask], str] = {m.Validate: "validate", m.Register: "register", m.Deregister: "deregister"}


async def validate(handler: Handler, plugin: Plugin, timeout: float) -> tuple[Outcome, str]:
    """Have ``handler`` validate ``plugin`` as its actor would; return how the call ended, and the cause."""
    calls = Calls(handler, CallConfig(timeout), plugin.type)
    ending = await calls.make(calls.prepare("validate", plugin))
    return ending.outcome, ending.cause or ending.error[:MAX_ERROR]
