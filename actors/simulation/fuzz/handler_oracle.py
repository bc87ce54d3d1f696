"""The rules that a node keeps whatever happens, checked while a script is played.

:class:`HandlerOracle` sees the calls that a handler gets and the verdicts that plugins are told; :class:`BackoffOracle`
sees the states that are shown and every dial. Both write what they see into the trace. What must hold at rest is in
``plugind.actors.simulation.fuzz.final_checks``.
"""

from __future__ import annotations

from collections import Counter

import attrs
import trio

from ....protocol.backoff import Backoff
from ....protocol.plugins import InstancePolicy, Plugin
from ....protocol.status import PluginStatus, StateName
from ..handlers import Ask
from .trace import Trace

#: Virtual times are sums of floats.
EPSILON = 1e-6


@attrs.define(eq=False)
class Owing:
    """A Register that was asked, and whose Deregister has not ended."""

    handler: int
    plugin: Plugin
    #: Register returned without an error.
    taken: bool = False
    #: When Deregister began.
    leaving_since: float | None = None
    #: How often who is at the path was told that it is registered: a newer plugin may get the older one's word.
    told: Counter[object] = attrs.field(init=False, factory=Counter)
    #: An actor crashed that knew of it: it may be let go later than else, or twice.
    orphan: bool = False


@attrs.frozen(eq=False)
class UnderWay:
    """A call of a handler that has not returned."""

    handler: int
    ask: Ask
    plugin: Plugin


class HandlerOracle:
    """Per generation Validate, Register, Notify, Deregister in order; one at a time per path and per name.

    A Validate that was superseded is withdrawn: it neither begins late nor is under way when the next attempt begins.
    """

    def __init__(self, trace: Trace, policy: InstancePolicy, *, sees_all: bool = False) -> None:
        self._trace = trace
        self._policy = policy
        #: No event is lost, no scan fails and no actor crashes, so that a chmod is no reason to register anew.
        self.sees_all = sees_all
        #: In which generation a plugin was first told that it is registered, by path and plugin.
        self._generations: dict[tuple[str, object], int] = {}
        self.owing: dict[str, Owing] = {}
        self.under_way: list[UnderWay] = []
        #: The generations whose last Validate succeeded, and with which handler, by path.
        self._validated: dict[str, tuple[int, int]] = {}
        #: Paths that are shown as leaving though nothing else is under way for their name, and since when.
        self._leaving: dict[str, float] = {}
        #: Registers whose Deregister was asked of nobody who answered, because an actor crashed.
        self._orphans: list[Owing] = []
        #: When the last Deregister of a path ended; and paths whose registration crashed, perhaps before a Register.
        self._let_go: dict[str, float] = {}
        self._crashed: set[str] = set()

    def orphan(self, path: str | None = None) -> None:
        """An actor crashed that was to see to ``path``, or to all: what it asked of a handler may come late, or twice.

        Until the reconciler's grace is over, and longer, a handler that hangs keeps the asks of a crashed one waiting.
        """
        if path is not None:
            self._crashed.add(path)
        for other, owing in self.owing.items():
            if path in (None, other):
                owing.orphan = True

    def forget(self) -> None:
        """The daemon ended: what its handlers had went with it, but for words that are on their way."""
        now = trio.current_time()
        self._let_go = {path: now for path, owing in self.owing.items() if owing.taken}
        self.owing.clear()
        self.under_way.clear()
        self._validated.clear()
        self._leaving.clear()
        self._orphans.clear()
        self._crashed.clear()
        self._generations.clear()

    def registered(self) -> dict[str, Plugin]:
        """What handlers hold now, by path."""
        return {path: owing.plugin for path, owing in self.owing.items() if owing.taken and owing.leaving_since is None}

    # --- the calls ----------------------------------------------------------------------------------------------------

    def began(self, handler: int, ask: Ask, plugin: Plugin) -> UnderWay:
        """A call began."""
        self._trace.line("handler", handler, ask, plugin.name, plugin.socket, plugin.generation)
        self._check_alone(handler, ask, plugin)
        match ask:
            case "validate":
                self._check_owes_nothing(ask, plugin)
                self._validated.pop(plugin.socket, None)
            case "register":
                self._register_began(handler, plugin)
            case "deregister":
                self._deregister_began(handler, plugin)
        call = UnderWay(handler, ask, plugin)
        self.under_way.append(call)
        return call

    def ended(self, call: UnderWay, *, ok: bool, cut_off: bool = False) -> None:
        """A call returned, or raised; ``cut_off`` says that it was cancelled before its deadline."""
        if call not in self.under_way:
            return  # The daemon was killed meanwhile.
        self.under_way.remove(call)
        plugin, path = call.plugin, call.plugin.socket
        self._trace.line("handler", call.handler, call.ask, plugin.name, path, "ok" if ok else "failed")
        owing = self.owing.get(path)
        match call.ask:
            case "validate":
                if ok:
                    self._validated[path] = (plugin.generation, call.handler)
            case "register":
                if owing is not None and owing.plugin == plugin:
                    owing.taken = ok
            case "deregister":
                if owing is not None and owing.plugin == plugin and cut_off:
                    owing.leaving_since = None  # The handler actor crashed, and asks again.
                elif owing is not None and owing.plugin == plugin:
                    del self.owing[path]
                    self._let_go[path] = trio.current_time()
                    if owing.orphan:
                        self._orphans.append(owing)

    def _check_alone(self, handler: int, ask: Ask, plugin: Plugin) -> None:
        for call in self.under_way:
            if call.handler == handler and call.plugin.name == plugin.name:
                self._trace.violated(
                    "one-per-name", f"{ask} of {plugin.socket} begins during {call.ask} of {call.plugin.socket}"
                )
            elif call.plugin.socket == plugin.socket and not self._is_orphan(call):
                self._trace.violated("one-per-path", f"{ask} of {plugin.socket} begins during its {call.ask}")

    def _is_orphan(self, call: UnderWay) -> bool:
        owing = self.owing.get(call.plugin.socket)
        known = self._orphans if owing is None else (*self._orphans, owing)
        return any(orphan.orphan and orphan.plugin == call.plugin for orphan in known)

    def _check_owes_nothing(self, ask: Ask, plugin: Plugin) -> None:
        owing = self.owing.get(plugin.socket)
        if owing is None or owing.orphan:
            return
        self._trace.violated(
            "order",
            f"{ask} of {plugin.socket} generation {plugin.generation}, and generation "
            f"{owing.plugin.generation} was not deregistered",
        )

    def _register_began(self, handler: int, plugin: Plugin) -> None:
        path = plugin.socket
        self._check_owes_nothing("register", plugin)
        if self._validated.pop(path, None) != (plugin.generation, handler):
            self._trace.violated("order", f"register of {path} generation {plugin.generation} was not validated")
        for other, owing in self.owing.items():
            if other == path or owing.plugin.name != plugin.name:
                continue
            now = trio.current_time()
            if owing.orphan:
                continue
            if self._leaving.get(other, now) < now:
                self._trace.violated("unregister-first", f"register of {path} before the deregister of {other}")
            elif self._policy is InstancePolicy.REJECT and owing.leaving_since is None:
                self._trace.violated("unregister-first", f"register of {path} besides {other}, which has its name")
        if path in self.owing:
            # Taken out first: those that are held are in the order of their registration.
            self._orphans.append(self.owing.pop(path))
        self.owing[path] = Owing(handler, plugin)

    def _deregister_began(self, handler: int, plugin: Plugin) -> None:
        owing = self.owing.get(plugin.socket)
        self._leaving.pop(plugin.socket, None)
        if owing is None and plugin.socket in self._crashed:
            self._crashed.discard(plugin.socket)
            return  # Its successor cannot know whether it had asked to register.
        if any(orphan.plugin == plugin for orphan in self._orphans) or (owing is not None and owing.orphan):
            if owing is not None and owing.plugin == plugin:
                owing.leaving_since = trio.current_time()
            return
        if owing is None or owing.plugin != plugin or owing.handler != handler or owing.leaving_since is not None:
            self._trace.violated(
                "order", f"deregister of {plugin.socket} generation {plugin.generation}, which is not owed"
            )
        else:
            owing.leaving_since = trio.current_time()

    # --- what else is seen --------------------------------------------------------------------------------------------

    def shown(self, status: PluginStatus) -> None:
        """A state was shown: one that leaves must be deregistered at once, where nothing else is under way."""
        owing = self.owing.get(status.socket)
        if status.state is not StateName.LEAVING or owing is None or owing.leaving_since is not None:
            self._leaving.pop(status.socket, None)
        elif all(call.plugin.name != owing.plugin.name for call in self.under_way):
            self._leaving.setdefault(status.socket, trio.current_time())

    def told(self, path: str, plugin: object, *, registered: bool, well: bool) -> None:
        """A plugin was told a verdict; ``well`` says that it answers, and nothing broke its connections."""
        self._trace.line("told", path, "registered" if registered else "refused")
        if not registered:
            return
        owing, now = self.owing.get(path), trio.current_time()
        if owing is None and self._let_go.get(path) == now:
            return  # The word was on its way.
        if owing is None or not owing.taken or (owing.leaving_since is not None and owing.leaving_since < now):
            self._trace.violated("order", f"{path} was told that it is registered, and it is not")
        else:
            owing.told[plugin] += 1
            if owing.told[plugin] > 1 and well:
                self._trace.violated("order", f"{path} was told {owing.told[plugin]} times that it is registered")
            generation = self._generations.setdefault((path, plugin), owing.plugin.generation)
            if self.sees_all and well and generation != owing.plugin.generation:
                self._trace.violated("order", f"{path} is well, and was registered anew for nothing")


@attrs.define(eq=False)
class _Tries:
    """What is known of the tries of one path in one generation."""

    generation: int
    #: Dials since the count began; waits for another try to notify.
    dials: int = 0
    notify_waits: int = 0
    #: A wait is under way until then.
    until: float | None = None
    last: PluginStatus | None = None
    #: Something happened since the wait began, upon which a try may come at once.
    nudged: bool = False
    #: Something happened upon which the count may begin anew, with the next wait, or, if that came too late for the
    #: present try, with the one after: of so many waits the attempt that is shown is believed.
    resets: int = 0
    #: From here on it may try whenever it likes: a change of the file's attributes may be seen late.
    touched: bool = False
    #: By how many seconds a try that was not expected came too soon.
    early: float | None = None


class BackoffOracle:
    """No try comes sooner after a failure than the backoff says, unless something happened that allows it."""

    def __init__(self, trace: Trace, backoff: Backoff) -> None:
        self._trace = trace
        self._backoff = backoff
        self._tries: dict[str, _Tries] = {}
        self._last_nudge: dict[str | None, float] = {}
        #: Sockets that were touched before the daemon could look at them.
        self._unseen: set[str] = set()

    def forget(self) -> None:
        """The daemon ended."""
        self._tries.clear()

    def nudged(self, path: str | None = None) -> None:
        """``path``, or any, was told to try at once; its count may begin anew."""
        self._last_nudge[path] = trio.current_time()
        for other, tries in self._tries.items():
            if path in (None, other):
                tries.nudged, tries.resets = True, 2

    def _nudged_just_now(self, path: str) -> bool:
        return trio.current_time() in (self._last_nudge.get(None), self._last_nudge.get(path))

    def freed(self, name: str) -> None:
        """An instance of ``name`` is gone: who was refused because of it may try at once."""
        for tries in self._tries.values():
            if tries.last is not None and tries.last.name == name:
                tries.nudged = True

    def touched(self, path: str | None = None) -> None:
        """The attributes of the socket at ``path``, or of any, changed; that may be seen at any time from now on."""
        if path is not None and path not in self._tries:
            self._unseen.add(path)
        for other, tries in self._tries.items():
            if path in (None, other):
                tries.touched, tries.resets = True, 2

    def dialed(self, path: str) -> None:
        """Somebody tries to connect."""
        tries, now = self._tries.get(path), trio.current_time()
        if tries is None or tries.until is None or tries.nudged or tries.touched or self._nudged_just_now(path):
            return
        if now < tries.until - EPSILON:
            # Whether another generation does so is known as soon as it is shown.
            tries.early = tries.until - now

    def shown(self, status: PluginStatus, *, owing: bool) -> None:
        """A state is shown; ``owing`` says that the plugin was registered, and is to be notified."""
        tries = self._tries.get(status.socket)
        if tries is None or tries.generation != status.generation:
            before = tries
            self._left(before)
            tries = self._tries[status.socket] = _Tries(status.generation)
            if before is not None:
                # What was told while the older one was there may reach this one.
                tries.nudged, tries.resets, tries.touched = before.nudged, before.resets, before.touched
            elif status.socket in self._unseen:
                tries.touched, tries.resets = True, 2
            self._unseen.discard(status.socket)
            if self._nudged_just_now(status.socket):
                tries.nudged, tries.resets = True, 2
        elif status.state is StateName.GONE:
            self._left(tries)
        last, tries.last = tries.last, status
        if last is not None and (last.state, last.attempt, last.since, last.next_try) == (
            status.state,
            status.attempt,
            status.since,
            status.next_try,
        ):
            return
        match status.state:
            case StateName.DIALING:
                if not owing:
                    tries.dials += 1
                if tries.early is not None and not tries.nudged:
                    self._trace.violated(
                        "backoff", f"{status.socket} is dialed {tries.early:.6f} s before its next try"
                    )
                tries.early = None
                # What was told in this instant may have come after this dial began, and is obeyed when that has failed.
                tries.until, tries.nudged = None, self._nudged_just_now(status.socket)
            case StateName.WAITING | StateName.STALE:
                self._waits(tries, status, owing=owing)
            case StateName.REGISTERED | StateName.LEAVING | StateName.PARKED:
                # What follows may go on from what was before, or begin anew.
                tries.notify_waits = 0
                tries.until = None
                tries.resets = max(1, tries.resets)
            case _:
                tries.until = None

    def _left(self, tries: _Tries | None) -> None:
        """Another generation is at the path, or none: if the one before had its name, others may have it now."""
        last = None if tries is None else tries.last
        if last is not None and last.state is StateName.VALIDATING and last.name is not None:
            self.freed(last.name)

    def _waits(self, tries: _Tries, status: PluginStatus, *, owing: bool) -> None:
        if owing:
            tries.notify_waits = 1 if tries.resets else tries.notify_waits + 1
            failures = tries.notify_waits
        else:
            if tries.resets:
                tries.dials = status.attempt
            failures = tries.dials
            if status.attempt != failures:
                self._trace.violated(
                    "backoff", f"{status.socket} shows attempt {status.attempt}, and it is the {failures}."
                )
        tries.resets = 2 if tries.touched else max(0, tries.resets - 1)
        tries.until = status.next_try
        if status.next_try is None:
            self._trace.violated("backoff", f"{status.socket} waits for nothing")
            return
        delay, rule = status.next_try - status.since, self._backoff.delay(max(1, failures))
        longest = self._backoff.cap if owing else rule
        if not rule - EPSILON <= delay <= longest * (1.0 + self._backoff.jitter) + EPSILON:
            self._trace.violated("backoff", f"{status.socket} waits {delay:.6f} s after {failures} failures")
