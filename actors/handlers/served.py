"""A handler as registrations call it, with its turns, deadlines and links.

A call runs in the task of the registration that makes it. It never raises the handler's errors, and is cancelled at its
deadline. A handler that does not let itself be cancelled blocks its registration and the name, and nothing else:
:meth:`Served.read` names it, so that health and the log show it (fault 82).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio
import trio.lowlevel

from ...protocol.health.progress import Reading
from ...protocol.identity import Identity
from ...protocol.plugins.info import Plugin
from ...protocol.plugins.status import Ending, Outcome
from .calls import CallConfig, HandlerCalls, MethodCall
from .errors import MAX_ERROR
from .handler import Handler
from .link import Link, LinkPort


class NameTurns:
    """The turns of all names, each kept only while it is taken.

    A turn belongs to a call, not to a task: a thread that was given up keeps the turn until it returns. So it is no
    ``trio.Lock``, which can be released only by the task that acquired it.
    """

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        #: The names whose turn is taken, with the tasks that wait for it; None if no task waits, as nearly always.
        self._taken: dict[str, trio.lowlevel.ParkingLot | None] = {}

    def take_nowait(self, name: str) -> bool:
        """Take the turn if it is free; return whether it was."""
        if name in self._taken:
            return False
        self._taken[name] = None
        return True

    async def take(self, name: str) -> None:
        """Wait for the turn, in the order of the requests, and take it."""
        if self.take_nowait(name):
            return
        lot = self._taken[name]
        if lot is None:
            lot = self._taken[name] = trio.lowlevel.ParkingLot()
        await lot.park()

    def pass_on(self, name: str) -> None:
        """Pass the turn on to the next task, or free it."""
        lot = self._taken[name]
        if lot:
            lot.unpark()  # The turn stays taken: it passes to the task that goes on.
        else:
            del self._taken[name]


#: How many deadlines a Validate or a Register can take, including earlier calls of its name.
_DEADLINES = 2


class Served:
    """The handler of one plugin type, as registrations see it: ``HandlerPort`` in ``plugind.protocol.messages``."""

    def __init__(
        self, calls: HandlerCalls, links: LinkPort | None = None, wrong: Callable[[], str | None] = lambda: None
    ) -> None:
        self.calls = calls
        self._links = links
        self._wrong = wrong
        self._turns = NameTurns()
        self._made = 0
        #: Set once the handler was removed and its last plugin is deregistered.
        self.retired = trio.Event()

    async def validate(self, plugin: Plugin) -> Ending:
        """Ask the handler whether it accepts the plugin."""
        if (late := await self._take_turn(plugin.name)) is not None:
            return late
        call: MethodCall | None = None
        try:
            call = self._prepare("validate", plugin)
            return _bounded(await self.calls.make(call))
        finally:
            self._pass_on(plugin.name, call)

    async def register(self, plugin: Plugin, file: Identity | None, begins: Callable[[], bool]) -> Ending:
        """Have the handler register the plugin, and start to follow it."""
        if (late := await self._take_turn(plugin.name)) is not None:
            return late
        call: MethodCall | None = None
        try:
            wanted = begins()
            link = None if self._links is None else self._links.open(plugin, file)
            if wanted:
                self.give_way(plugin)
            call = self._prepare("register", plugin, link)
            ending = await self.calls.make(call)
            if self._links is not None and link is not None and ending.outcome is Outcome.OK and self.calls.follows:
                self._links.start(plugin, partial(self.calls.follow, plugin, link))
            return _bounded(ending)
        finally:
            self._pass_on(plugin.name, call)

    async def deregister(self, plugin: Plugin) -> Ending:
        """Have the handler deregister the plugin. The wait for earlier calls of its name has no deadline."""
        await self._turns.take(plugin.name)
        call: MethodCall | None = None
        try:
            if self._links is not None:
                await self._links.end(plugin)
            call = self._prepare("deregister", plugin)
            return _bounded(await self.calls.make(call))
        finally:
            self._pass_on(plugin.name, call)

    def give_way(self, plugin: Plugin) -> None:
        """See :class:`~plugind.protocol.messages.reconciler.HandlerPort`."""
        if self._links is not None:
            self._links.give_way(plugin)

    async def _take_turn(self, name: str) -> Ending | None:
        """Take the turn of a name; return the ending of the call if the turn does not come in time.

        If the registration has ended, this is where its task is cancelled, and not in the handler's code.
        """
        if not self._turns.take_nowait(name):
            seconds = _DEADLINES * self.calls.config.timeout
            with trio.move_on_after(seconds) as scope:
                await self._turns.take(name)
            if scope.cancelled_caught:
                return Ending(Outcome.TIMED_OUT, f"no answer in {seconds:g} s")
        try:
            # Checked after a wait, too: the registration can end when its turn comes.
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            self._turns.pass_on(name)
            raise
        return None

    def _prepare(self, ask: str, plugin: Plugin, link: Link | None = None) -> MethodCall:
        self._made += 1
        return self.calls.prepare(ask, plugin, link)

    def _pass_on(self, name: str, call: MethodCall | None) -> None:
        """Pass on the turn of a name after its ``call``. A thread that was given up passes it on when it returns."""
        if call is None:
            self._turns.pass_on(name)
        else:
            call.when_over(partial(self._turns.pass_on, name))

    # --- to inspect ---

    def read(self) -> Reading:
        """Return how many calls were made, and what is wrong with those under way."""
        return Reading(0, self._made, wrong=self.calls.wrong or self._wrong())


def _bounded(ending: Ending) -> Ending:
    if ending.outcome is Outcome.OK:
        return ending
    return Ending(ending.outcome, ending.error[:MAX_ERROR], ending.cause, ending.away)


async def validate(handler: Handler, plugin: Plugin, timeout: float) -> tuple[Outcome, str]:
    """Have ``handler`` validate ``plugin`` as a registration would; return the outcome, and the cause."""
    ending = await Served(HandlerCalls(handler, CallConfig(timeout), plugin.type)).validate(plugin)
    return ending.outcome, ending.cause or ending.error
