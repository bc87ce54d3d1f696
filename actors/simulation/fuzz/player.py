"""Plays a script on a watched node: what each event does.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final, assert_never

import attrs
import trio

from ....supervisor import NodeEndedError
from ..faults import ACTORS
from ..handlers import Ask, Behaviour, Fails, Hangs, Takes
from .acts import change_files, change_plugin, disturb, disturb_events, fail_scans, mend
from .script import Act, Event
from .stage import NAMES, SOCKETS, TYPE, Stage

ASKS: Final[tuple[Ask, ...]] = ("validate", "register", "deregister")
#: Seconds for a retry to be answered, and for a handler to be removed: every plugin that it has may take its deadline
#: to be registered, and again to be deregistered, one after the other; and the answers to its asks may be lost.
RETRY_BOUND: Final = 60.0
REMOVAL_BOUND: Final = 2000.0
#: Seconds for a daemon to stop: the grace, and what ends after it.
STOP_BOUND: Final = 15.0


@attrs.define(eq=False)
class Player:
    """Plays one script on a stage; what it leaves running is what people on the node do."""

    stage: Stage

    _background: trio.Nursery = attrs.field(init=False)
    _scopes: dict[trio.CancelScope, None] = attrs.field(init=False, factory=dict)
    #: Set when the daemon that runs is told to stop; each daemon has its own.
    _stopping: trio.Event = attrs.field(init=False, factory=trio.Event)
    _removal: trio.Event | None = attrs.field(init=False, default=None)

    # --- the script ---------------------------------------------------------------------------------------------------

    async def play(self, events: Collection[Event]) -> None:
        """Play ``events`` on the node, which runs."""
        self.stage.node.watch_crashes()
        async with trio.open_nursery() as self._background:
            for event in events:
                self.stage.trace.line("event", event)
                await self._perform(event.act, random.Random(event.seed))
                self.stage.sentinels.look(self.stage.disturbed())
                if event.pause:
                    await trio.sleep(event.pause)
                    self.stage.sentinels.look(self.stage.disturbed())
            await self._calm_down()

    async def _perform(self, act: Act, chance: random.Random) -> None:
        match act:
            case Act.PLUG | Act.STOP | Act.RESTART | Act.LISTEN | Act.DIE | Act.RENAME | Act.UNLINK | Act.TOUCH:
                change_plugin(self.stage, act, chance)
            case Act.RESET | Act.HALF_CLOSE | Act.ACCEPT | Act.TRICKLE | Act.EXHAUST:
                disturb(self.stage, act, chance)
            case Act.CLUTTER | Act.REMOVE_DIRECTORY | Act.REMOVE_ROOT:
                change_files(self.stage, act, chance)
            case Act.DROP_EVENTS | Act.DELAY_EVENTS | Act.OVERFLOW | Act.LOSE_WATCH | Act.WATCHES_OUT:
                disturb_events(self.stage, act, chance)
            case Act.SCAN_ERROR | Act.LOOK_ERROR:
                fail_scans(self.stage, act, chance)
            case Act.SENTINEL:
                self.stage.sentinels.change()
            case Act.RETRY:
                self._retry(chance)
            case Act.BEHAVE:
                self._script_handler(chance)
            case Act.TOGGLE_HANDLER:
                await self._toggle_handler()
            case Act.CRASH:
                self._crash(chance)
            case Act.RESTART_DAEMON:
                await self._restart_daemon(kill=chance.random() < 0.5)
            case _:
                assert_never(act)

    # --- people, handlers, the daemon ---------------------------------------------------------------------------------

    def _retry(self, chance: random.Random) -> None:
        target = chance.choice((*NAMES, *map(self.stage.node.path, SOCKETS)))

        async def retry() -> None:
            with trio.move_on_after(RETRY_BOUND) as scope:
                await self.stage.node.supervisor.retry(target)
            if scope.cancelled_caught:
                self.stage.trace.violated("answers", f"the retry of {target} was not answered in {RETRY_BOUND:g} s")

        # Who bears a name is known when it is asked, which is later.
        self.stage.backoff.retriggered(path=target if target.startswith("/") else None)
        self._start(retry)

    def _start(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run something that ends with the daemon at the latest."""

        async def within() -> None:
            with trio.CancelScope() as scope:
                self._scopes[scope] = None
                try:
                    with suppress(NodeEndedError):
                        await run()
                finally:
                    del self._scopes[scope]

        self._background.start_soon(within)

    def _script_handler(self, chance: random.Random) -> None:
        ask, name = chance.choice(ASKS), chance.choice(NAMES)
        behaviours: tuple[Behaviour, ...] = (
            Fails("no"),
            Fails(SystemExit(3)),
            Fails(BaseExceptionGroup("many", [ValueError("no")])),
            Hangs(),
            Takes(0.1),
            Takes(3.0),
            Takes(50.0),
        )
        if self.stage.handler is not None:
            planned = self.stage.handler.script.setdefault((ask, name), deque())
            planned.extend([chance.choice(behaviours)] * chance.choice((1, 1, 2)))

    async def _toggle_handler(self) -> None:
        if self.stage.handler is None:
            if self._removal is None:
                await self._add_handler()
            return
        self.stage.handler, self._removal = None, trio.Event()

        async def remove() -> None:
            with trio.move_on_after(REMOVAL_BOUND) as scope:
                stopping = self._stopping
                await self.stage.node.supervisor.remove_handler(TYPE)
                if stopping.is_set():
                    return  # A stop deregisters nothing (behaviour 42).
            if scope.cancelled_caught:
                self.stage.trace.violated("answers", f"a handler was not removed in {REMOVAL_BOUND:g} s")
            elif left := [
                path for path, owing in self.stage.handlers.owing.items() if owing.taken and not owing.orphan
            ]:
                self.stage.trace.violated("view", f"a handler was removed with {left}")
            if self._removal is not None:
                self._removal.set()
                self._removal = None

        self.stage.sentinels.grant_grace(1.0)
        self.stage.backoff.retriggered()
        self._start(remove)

    async def _add_handler(self) -> None:
        self.stage.backoff.retriggered()
        self.stage.sentinels.grant_grace(1.0)
        await self.stage.node.supervisor.add_handler(TYPE, self.stage.new_handler())

    def _crash(self, chance: random.Random) -> None:
        actor = chance.choice(ACTORS)
        path = self.stage.node.path(chance.choice(SOCKETS))
        if actor == "registration" and chance.random() < 0.3:
            self.stage.node.network.crashes += 1
            return
        if not self.stage.node.crash(actor, TYPE if actor == "handler" else path):
            return
        match actor:
            case "reconciler":
                self.stage.sentinels.grant_grace(13.0)
                self.stage.handlers.orphan()
            case _:
                self.stage.sentinels.grant_grace(1.0)

    async def _restart_daemon(self, *, kill: bool) -> None:
        began = trio.current_time()
        if kill:
            await self.stage.node.kill()
        else:
            self._stopping.set()
            await self.stage.node.stop()
        self._stopping = trio.Event()
        if trio.current_time() - began > STOP_BOUND:
            self.stage.trace.violated("answers", f"the daemon took {trio.current_time() - began:g} s to end")
        for scope in tuple(self._scopes):
            scope.cancel()
        self._removal = None
        if self.stage.handlers.under_way:
            self.stage.trace.violated("leak", f"the daemon ended during {self.stage.handlers.under_way}")
        self.stage.handlers.forget()
        self.stage.backoff.forget()
        self.stage.sentinels.give_up()
        self.stage.sentinels.grant_grace(1.0)
        await self.stage.node.start(handlers={TYPE: self.stage.new_handler()})
        self.stage.node.watch_crashes()

    # --- the end ------------------------------------------------------------------------------------------------------

    async def _calm_down(self) -> None:
        """The faults stop, and every plugin is well."""
        self.stage.trace.line("calm")
        directory, network = self.stage.node.directory, self.stage.node.network
        directory.resume_events()
        directory.inotify.watches_left, directory.crashes = None, 0
        directory.scan_errors.clear()
        directory.look_errors.clear()
        directory.release_events()
        self.stage.backoff.touched()
        network.crashes = network.exhausted = 0
        if self.stage.handler is not None:
            self.stage.handler.script.clear()
        if self._removal is not None:
            await self._removal.wait()
        if self.stage.handler is None:
            await self._add_handler()
        for path, plugin in self.stage.plugs.items():
            mend(self.stage, path, plugin)
