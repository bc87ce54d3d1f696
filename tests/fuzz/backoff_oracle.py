"""The rule of backoff, checked while a script is played: on each dial, and on each state of rest that is shown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import attrs
import trio

from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.backoff import Backoff
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.registration.crashes import INTERNAL
from plugind.protocol.registration.failures import REPLACED
from plugind.protocol.registration.lives import CRASH_LOOP
from plugind.protocol.world.kept_names import NAME_KEPT
from plugind.protocol.world.line import TURN


@attrs.define(eq=False)
class _Tries:
    """What is known of the tries of one path in one generation."""

    generation: int
    #: Tries that have failed since the count began; waits for another try to notify.
    failures: int = 0
    notify_waits: int = 0
    #: A wait is under way until then.
    until: float | None = None
    last: PluginStatus | None = None
    #: Something happened since the wait began, upon which a try may come at once.
    retriggered: bool = False
    #: Something happened upon which the count may begin anew, with the next wait, or, if that came too late for the
    #: present try, with the one after: of so many waits the attempt that is shown is believed.
    resets: int = 0
    #: From here on it may try whenever it likes: a change of the file's attributes may be seen late.
    touched: bool = False
    #: A dial was made, and what came of the try is not shown yet.
    trying: bool = False
    #: When a try came that was not expected, and by how many seconds too soon.
    early: tuple[float, float] | None = None

    def retrigger(self) -> None:
        """It may try at once, also if it has just done so."""
        self.retriggered = True
        if self.early is not None and trio.current_time() <= self.early[0] + EPSILON:
            self.early = None


class BackoffOracle:
    """No try comes sooner after a failure than the backoff says, unless something happened that allows it."""

    def __init__(self, violated: Callable[[str, str], None], backoff: Backoff) -> None:
        self._violated = violated
        self._backoff = backoff
        self._tries: dict[str, _Tries] = {}
        self._last_trigger: dict[str | None, float] = {}
        #: When each path was first dialed since a state of rest of it was shown: a first try is silent at first.
        self._dialed: dict[str, float] = {}
        self._last_dial: dict[str, float] = {}
        #: Sockets that were touched, or are to be retried, before the daemon could look at them.
        self._unseen: set[str] = set()
        #: When instances of each name went.
        self._freed: dict[str, list[float]] = {}
        #: How many dials of each path found another file, and are not shown yet.
        self._replaced: Counter[str] = Counter()
        #: The name that each path gave in the try under way, which may have it until the try is over.
        self._claims: dict[str, str] = {}

    def forget(self) -> None:
        """Forget all tries: the daemon ended."""
        self._tries.clear()
        self._dialed.clear()
        self._last_dial.clear()
        self._freed.clear()
        self._claims.clear()

    def retriggered(self, path: str | None = None) -> None:
        """A retry of ``path``, or of any path, was asked for: it may try at once, and its count may begin anew."""
        self._last_trigger[path] = trio.current_time()
        if path is not None and path not in self._tries:
            self._unseen.add(path)  # The reconciler may hear of it after the socket.
        for other, tries in self._tries.items():
            if path in (None, other):
                tries.retrigger()
                tries.resets = 2

    def listener_found(self, path: str) -> None:
        """Somebody listens on ``path``: a stale socket may be tried at once, and a registered plugin is left alone."""
        tries = self._tries.get(path)
        if tries is None or tries.last is None or tries.last.state is not StateName.REGISTERED:
            self.retriggered(path)

    def _retriggered_just_now(self, path: str) -> bool:
        return self._retriggered_since(path, trio.current_time())

    def _retriggered_since(self, path: str, time: float) -> bool:
        return any(self._last_trigger.get(of, -math.inf) >= time for of in (None, path))

    def freed(self, name: str) -> None:
        """An instance of ``name`` is gone: plugins that were refused because of it may try at once.

        Those of other users may do so when the name is kept no more.
        """
        now = trio.current_time()
        self._freed[name] = [*(time for time in self._freed.get(name, ()) if now - time <= 2 * NAME_KEPT), now]
        for tries in self._tries.values():
            if tries.last is not None and tries.last.name == name:
                tries.retrigger()

    def _was_kept(self, tries: _Tries) -> bool:
        """Whether the name was kept after an instance had gone, and is free since a short while."""
        ended = () if tries.last is None or tries.last.name is None else self._freed.get(tries.last.name, ())
        now = trio.current_time()
        return any(NAME_KEPT - EPSILON <= now - time <= 2 * NAME_KEPT for time in ended)

    def _may_have_its_turn(self, tries: _Tries) -> bool:
        """Whether its name was free a short while ago: each other plugin in line may have had its turn before."""
        name, now = None if tries.last is None else tries.last.name, trio.current_time()
        if name is None:
            return False
        others = sum(known.last is not None and known.last.name == name for known in self._tries.values()) - 1
        return any(now - time <= others * TURN + EPSILON for time in self._freed.get(name, ()))

    def touched(self, path: str | None = None) -> None:
        """The attributes of the socket at ``path``, or of any, changed; that may be seen at any time from now on."""
        if path is not None and path not in self._tries:
            self._unseen.add(path)
        for other, tries in self._tries.items():
            if path in (None, other):
                tries.touched, tries.resets = True, 2

    def dialed(self, path: str) -> None:
        """The daemon tries to connect."""
        self._abandoned(path)
        tries, now = self._tries.get(path), trio.current_time()
        self._dialed.setdefault(path, now)
        self._last_dial[path] = now
        if tries is None or tries.trying:
            return
        is_expected = (
            tries.until is None
            or now >= tries.until - EPSILON
            or tries.retriggered
            or tries.touched
            or self._retriggered_just_now(path)
            or self._was_kept(tries)
            or self._may_have_its_turn(tries)
        )
        if tries.until is not None and not is_expected:
            # Whether another generation does so is known as soon as that is shown.
            tries.early = now, tries.until - now
        # A retry in this instant may have come after this dial began; it takes effect when the dial has failed.
        tries.trying, tries.until, tries.retriggered = True, None, self._retriggered_just_now(path)

    def asked(self, path: str, name: str) -> None:
        """The plugin at ``path`` is asked for its info, and gives this name, which it may have for a while."""
        self._claims[path] = name

    def _abandoned(self, path: str) -> None:
        """The try of ``path`` is over: if its plugin had its name, that may be free now."""
        if (name := self._claims.pop(path, None)) is not None:
            self.freed(name)

    def replaced(self, path: str) -> None:
        """The dial under way found another file at ``path``: it does not count, and the next try is soon (fault 41)."""
        # What is shown lags behind the dial, which may have been the first of its generation.
        self._replaced[path] += 1

    def shown(self, status: PluginStatus, *, to_notify: bool | None) -> None:
        """A state of rest is shown; ``to_notify``: the plugin is registered and is still to be notified.

        None says that this is not known, so that any wait is right.
        """
        dialed = self._dialed.get(status.socket, trio.current_time())
        if status.state not in (StateName.LEAVING, StateName.GONE):
            # The end of a generation may be shown after the first dial of the next one.
            self._dialed.pop(status.socket, None)
            if (last_dial := self._last_dial.get(status.socket, -math.inf)) >= status.since - EPSILON:
                self._dialed[status.socket] = last_dial
        tries = self._tries.get(status.socket)
        if tries is None or tries.generation != status.generation:
            before = tries
            if (status.reason or "").startswith(CRASH_LOOP):
                self._abandoned(status.socket)  # It is not dialed yet.
            tries = self._tries[status.socket] = _Tries(status.generation)
            if before is not None:
                # A retry that was asked for while the older one was there may reach this one.
                tries.retriggered, tries.resets, tries.touched = before.retriggered, before.resets, before.touched
            elif status.socket in self._unseen:
                tries.touched, tries.resets = True, 2
            self._unseen.discard(status.socket)
            if self._retriggered_since(status.socket, dialed):
                tries.retriggered, tries.resets = True, 2
        elif status.state is StateName.GONE:
            self._abandoned(status.socket)
        last, tries.last = tries.last, status
        if last is not None and (last.state, last.attempt, last.since, last.next_try) == (
            status.state,
            status.attempt,
            status.since,
            status.next_try,
        ):
            return
        self._claims.pop(status.socket, None)
        # Where another socket was found, the dial of that one may come before the wait of this one is shown.
        is_settled = status.reason != REPLACED or not self._replaced[status.socket]
        if tries.early is not None and is_settled and status.since >= tries.early[0] - EPSILON:
            if status.state not in (StateName.LEAVING, StateName.GONE):
                # A socket that is gone may have been replaced by the one that was dialed.
                self._violated("backoff", f"{status.socket} is dialed {tries.early[1]:.6f} s before its next try")
            tries.early = None
        tries.trying = False
        match status.state:
            case StateName.WAITING | StateName.STALE:
                self._waits(tries, status, to_notify=to_notify)
            case StateName.REGISTERED | StateName.LEAVING | StateName.PARKED:
                # What follows may go on from what was before, or begin anew.
                tries.notify_waits = 0
                tries.until = None
                tries.resets = max(1, tries.resets)
            case _:
                tries.until = None

    def deregistered(self, path: str) -> None:
        """The plugin at ``path`` was deregistered: what follows may begin anew."""
        tries = self._tries.get(path)
        if tries is not None:
            tries.notify_waits, tries.resets = 0, max(1, tries.resets)

    def _waits(self, tries: _Tries, status: PluginStatus, *, to_notify: bool | None) -> None:
        if status.reason == REPLACED and self._replaced[status.socket]:
            self._replaced[status.socket] -= 1
            self._waits_for_a_look(tries, status, to_notify=to_notify)
            return
        if (status.reason or "").startswith(CRASH_LOOP):
            tries.failures, tries.until = 0, status.next_try
            return
        if to_notify is None:
            tries.failures, tries.until, tries.resets = status.attempt, status.next_try, max(1, tries.resets)
            return
        if to_notify:
            tries.notify_waits = 1 if tries.resets else tries.notify_waits + 1
            failures = tries.notify_waits
        else:
            tries.failures = status.attempt if tries.resets else tries.failures + 1
            failures = tries.failures
            if status.attempt != failures:
                self._violated("backoff", f"{status.socket} shows attempt {status.attempt}, and {failures} are counted")
        tries.resets = 2 if tries.touched else max(0, tries.resets - 1)
        tries.until = status.next_try
        if any(time >= status.since - EPSILON for time in self._freed.get(status.name or "", ())):
            tries.retriggered = True  # What is shown lags behind the handler.
        if status.next_try is None:
            self._violated("backoff", f"{status.socket} waits without a next try")
            return
        earliest = latest = status.since
        if (status.reason or "").startswith(INTERNAL):
            # The actor that crashed may have waited too, and then the state began with its wait.
            latest = trio.current_time()
        delay, rule = status.next_try - earliest, self._backoff.delay(max(1, failures))
        longest = (self._backoff.cap if to_notify else rule) * (1.0 + self._backoff.jitter)
        if not (rule - EPSILON <= delay and status.next_try - latest <= longest + EPSILON):
            self._violated("backoff", f"{status.socket} waits {delay:.6f} s after {failures} failures")

    def _waits_for_a_look(self, tries: _Tries, status: PluginStatus, *, to_notify: bool | None) -> None:
        """Another file is at the path: the dial is not counted, and a short wait follows, whatever came before."""
        if to_notify is False:
            tries.failures = status.attempt if tries.resets else tries.failures
            if status.attempt != tries.failures:
                self._violated("backoff", f"{status.socket} counts a dial that found another socket")
        tries.until = status.next_try
        delay, rule = (status.next_try or 0.0) - status.since, self._backoff.delay(1)
        if not rule - EPSILON <= delay <= rule * (1.0 + self._backoff.jitter) + EPSILON:
            self._violated("backoff", f"{status.socket} waits {delay:.6f} s for a look")
