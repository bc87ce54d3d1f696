"""The view: the state of every socket, from which everything that users and programs see is made.

Each socket is a :class:`Row`, an immutable tuple that a change replaces. A copy of the view copies references, so a
reader can keep the view of one moment. A :class:`PluginStatus` is built from a row only when it is read, so a change
takes about a microsecond.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import attrs

from ..messages.status import (
    EndpointChanged,
    HealthReported,
    OwnerChanged,
    PluginDisplaced,
    RootStatus,
    ServingChanged,
    StateChanged,
)
from ..plugins.health import Health
from ..plugins.info import PluginInfo
from ..plugins.status import Finished, HistoryEntry, Operation, Outcome, PluginCounts, PluginStatus, StateName, Watching
from ..registration.phases import Phase
from ..text import encodable, escaped
from ..trust.directories import DirectoryReport
from ..words import STATE_IN, Step

#: How many changes of state are kept for each socket.
HISTORY = 32
#: How many sockets that are gone are kept for ``describe``.
GONE_KEPT = 100
#: How many logged causes are kept for each socket. An older cause would be logged again.
CAUSES = 8
_GONE = StateName.GONE
_REGISTERED = StateName.REGISTERED
_OBSERVED = StateName.OBSERVED
#: The states of plugins that can be used: they have sent their info, and are followed.
_IN_USE = (_REGISTERED, _OBSERVED)
_LEAVING = StateName.LEAVING
#: The states in which a plugin's handler can report its health. The handler can begin before the view has its state. A
#: plugin that must be notified again waits and is dialed while its handler has it. Any other plugin leaves before it
#: waits.
_HAS_LINK = (
    StateName.VALIDATING,
    StateName.REGISTERING,
    StateName.NOTIFYING,
    StateName.REGISTERED,
    StateName.OBSERVED,
    StateName.WAITING,
    StateName.DIALING,
)
#: The steps that are counted. The time of a claim depends on other plugins.
_STEPS = {phase.operation: phase.step for phase in Phase if phase.operation and phase.step}
#: Reason, attempt and cause of most entries of a history, in which nothing failed.
_USUAL = (None, 1, None)
DEPRECATED = "the socket lies in a deprecated directory"


#: A state and its cause.
Said = tuple[StateName, str | None]
#: The logged end of a socket. A socket that appears with a leaving plugin has this from the start: a refused entry was
#: in its place, and is gone again.
ENDED: Said = (_GONE, None)


class Row(NamedTuple):
    """The state of one socket at one moment."""

    last: StateChanged
    #: When the state began; a change of the reason alone does not count.
    since: float
    info: PluginInfo | None
    registered_in: float | None
    uid: int | None
    pid: int | None
    active: bool | None
    #: The entries in turn: time, state, reason, attempt and cause, or only time and state of a usual entry. The state
    #: of a try is its step. The list is flat to save memory.
    history: list[Any]
    #: The logged states of this generation since it was last registered; each is logged once.
    logged: tuple[Said, ...] = ()
    #: Set while nobody listens on the socket of a registered plugin.
    unserved: ServingChanged | None = None
    #: Why the endpoint of a registered plugin cannot be used, if that is known.
    endpoint_problem: str | None = None
    #: Why another plugin has the endpoint now; None if this plugin has it.
    displaced: str | None = None
    #: The last report of the plugin's handler, with the time when this health began.
    health: HealthReported | None = None
    #: The last failed step; None once the plugin is registered. A notification with outcome OK means a refused claim.
    failed: Finished | None = None
    #: The steps of the present or last try that ended before the last change.
    finished: tuple[Finished, ...] = ()

    @property
    def type(self) -> str | None:
        """The plugin's type. Until its info has come, the type of the last plugin at the path, if known."""
        info = self.info or self.last.last_known
        return None if info is None else info.type

    @property
    def name(self) -> str | None:
        """The plugin's name. Until its info has come, the name of the last plugin at the path, if known."""
        info = self.info or self.last.last_known
        return None if info is None else info.name

    @property
    def refused(self) -> bool:
        """Whether the entry at the path is not treated as a plugin: no attempt was made, and none will be."""
        return self.last.state is StateName.PARKED and self.last.attempt == 0

    @property
    def is_unserved(self) -> bool:
        """Whether the plugin is registered and known not to listen on its socket."""
        return self.last.state is _REGISTERED and self.unserved is not None

    @property
    def useful(self) -> bool:
        """Whether the plugin is registered or observed, and its endpoint is not known to be unserved (fault 39)."""
        return self.last.state in _IN_USE and (self.unserved is None or self.unserved.endpoint_serves)

    @property
    def healthy(self) -> bool:
        """Whether the plugin is of use and its handler reports that it is healthy."""
        return self.useful and self.health is not None and self.health.health is Health.HEALTHY

    @property
    def status(self) -> PluginStatus:
        """The row as a value to show, without its history."""
        last, info = self.last, self.info
        registered = last.state is StateName.REGISTERED
        return PluginStatus(
            last.socket,
            last.root,
            last.generation,
            last.state,
            self.since,
            last.reason,
            last.attempt,
            last.next_try,
            self.type,
            self.name,
            None if info is None else info.endpoint or None,
            None if info is None else info.versions,
            self.registered_in if registered else None,
            # A registered plugin is active unless a role says otherwise, or another plugin has its endpoint.
            self.active is not False and self.displaced is None if registered else None,
            self._warnings,
            self.uid,
            self.pid,
            last.cause,
            serving=self.unserved is None if registered else None,
            not_serving=None if self.unserved is None else self.unserved.reason,
            not_serving_since=None if self.unserved is None else self.unserved.time,
            called=info is not None and info.called,
            owner=last.owner,
            health=None if self.health is None else self.health.health,
            health_reason=None if self.health is None else self.health.reason or None,
            health_since=None if self.health is None else self.health.time,
            facts=() if self.health is None else self.health.facts,
            failed_checks=0 if self.health is None else self.health.failed_checks,
            last_known=info is None and last.last_known is not None,
            step=last.step,
            steps=self.steps,
        )

    @property
    def steps(self) -> tuple[tuple[Step, float], ...]:
        """How many seconds each step of the present or last try took; repetitions of a step are added."""
        seconds: dict[Step, float] = {}
        for finished in self.finished + self.last.finished:
            step = _STEPS.get(finished.operation)
            if step is not None:
                seconds[step] = seconds.get(step, 0.0) + finished.seconds
        return tuple(seconds.items())

    @property
    def _warnings(self) -> tuple[str, ...]:
        deprecated = DEPRECATED if self.last.deprecated else None
        of_health = () if self.health is None else self.health.warnings
        said = deprecated, self.displaced, self.endpoint_problem, *of_health
        return tuple(warning for warning in said if warning is not None)

    @property
    def status_with_history(self) -> PluginStatus:
        """The row as a value to show, with its history."""
        return attrs.evolve(self.status, history=tuple(_entries(self.history)))


def _entries(flat: Sequence[Any]) -> Iterator[HistoryEntry]:
    """Yield the entries of :attr:`Row.history`."""
    position = 0
    while position < len(flat):
        size = _size(flat, position)
        entry: list[Any] = [*flat[position : position + size], *_USUAL[size - 2 :]]
        time, state, reason, attempt, cause = entry
        step = state if isinstance(state, Step) else None
        yield HistoryEntry(time, state if step is None else STATE_IN[step], reason, attempt, cause, step)
        position += size


def _size(flat: Sequence[Any], start: int) -> int:
    """Return the number of values of the entry at ``start``. After a short entry comes the time of the next."""
    is_short = start + 2 == len(flat) or isinstance(flat[start + 2], int | float)
    return 2 if is_short else 2 + len(_USUAL)


def _shorten(flat: list[Any], most: int) -> None:
    """Delete the oldest entries of a history that has more than ``most``."""
    number = sum(isinstance(value, StateName | Step) for value in flat)
    for _ in range(number - most):
        del flat[: _size(flat, 0)]


def _failed(before: Finished | None, change: StateChanged) -> Finished | None:
    """Return the last failed step after ``change``; ``before`` was the last one until then."""
    if change.state in _IN_USE:
        return None
    for finished in change.finished:
        before = _failed_by(before, finished)
    return before


def _failed_by(before: Finished | None, finished: Finished) -> Finished | None:
    """Return the last failed step after a step has ``finished``.

    If a plugin that has answered stops listening, its earlier failure stays, as its cause does. A claim has no step: if
    a plugin was notified although no step had failed, its claim was refused.
    """
    if finished.outcome is Outcome.SUPERSEDED:
        return before
    if finished.outcome is Outcome.OK:
        return finished if before is None and finished.operation is Operation.NOTIFY else before
    if before is not None and finished.operation is Operation.DIAL and before.operation is not Operation.DIAL:
        return before
    return finished


#: Values of ``watching`` for a root in which no plugin can be found.
_UNUSABLE = (Watching.TAKEN, Watching.ABSENT, Watching.UNAVAILABLE)


class View:
    """All sockets, the last ones that are gone, the roots and the handlers."""

    def __init__(self, history: int = HISTORY, gone_kept: int = GONE_KEPT) -> None:
        self.rows: dict[str, Row] = {}
        self.roots: dict[str, RootStatus] = {}
        self.handlers: tuple[str, ...] = ()
        self._gone: collections.deque[Row] = collections.deque(maxlen=gone_kept)
        #: The highest generation that is gone. A newer one need not be searched in ``_gone``.
        self._newest_gone = 0
        self._history = history
        #: A history with at most this number of values cannot have too many entries.
        self._surely_short = 2 * history

    def counts(self) -> PluginCounts:
        """Return how many sockets are in each state."""
        states = collections.Counter(row.last.state for row in self.rows.values())
        unusable = [report.reason for report in self.roots.values() if report.watching in _UNUSABLE and report.reason]
        return PluginCounts(states, sum(row.is_unserved for row in self.rows.values()), tuple(unusable))

    def directory_warnings(self, path: str) -> list[str]:
        """Return the problems of the directories above ``path``."""
        return [directory.reason for directory in self._directories_above(path)]

    def why_not_taken(self, path: str) -> list[str]:
        """Return why no new plugin is accepted at ``path``, with advice: the problems of the directories above it."""
        named = [
            f"directory {encodable(directory.path)} is {directory.condition}: {encodable(directory.reason)}"
            for directory in self._directories_above(path)
            if directory.condition.degrades and directory.path not in self.roots
        ]
        return named or [*self._unnamed(path)]

    def _unnamed(self, path: str) -> Iterator[str]:
        """Yield a hint for each root that has more directories with problems than its report lists."""
        for root, report in self.roots.items():
            number = sum(count for condition, count in report.conditions if condition.degrades)
            if number > len(report.directories) and path.startswith(f"{root}/"):
                yield (
                    f"nothing new is taken from {number} directories below {encodable(root)}, of which 'plugind ls'"
                    f" names {len(report.directories)}: mend those first"
                )

    def _directories_above(self, path: str) -> Iterator[DirectoryReport]:
        directories = chain.from_iterable(report.directories for report in self.roots.values())
        return (directory for directory in directories if path.startswith(f"{directory.path}/"))

    def apply(self, change: StateChanged) -> tuple[Row | None, Row | None]:
        """Apply ``change``; return the rows before and after it. The row after is None if the change is ignored.

        Late changes are ignored: those of an older generation, and the end of an unknown socket.
        """
        socket = change.socket
        before = self.rows.get(socket)
        if before is None:
            if change.state is _GONE or self._is_overtaken(change):
                return None, None
            after = self._first(change, [])
        elif change.generation < before.last.generation:
            return before, None
        elif change.generation > before.last.generation:
            after = self._first(change, before.history)
        else:
            after = self._next(before, change)
        flat = after.history
        # Inlined, because most entries are usual.
        state = change.step or change.state
        if change.reason is None and change.cause is None and change.attempt == 1:
            flat += (change.time, state)
        else:
            flat += (change.time, state, change.reason, change.attempt, change.cause)
        if len(flat) > self._surely_short:
            _shorten(flat, self._history)
        if change.state is _GONE:
            del self.rows[socket]
            self._gone.append(after)
            self._newest_gone = max(self._newest_gone, change.generation)
        else:
            self.rows[socket] = after
        return before, after

    def _is_overtaken(self, change: StateChanged) -> bool:
        """Whether a newer entry of the path is gone already: one that was refused while a plugin was leaving.

        A plugin that still leaves is shown, since leaving can take long.
        """
        if change.state is StateName.LEAVING or change.generation > self._newest_gone:
            return False
        ends = ((row.last.socket, row.last.generation) for row in self._gone)
        return any(socket == change.socket and generation > change.generation for socket, generation in ends)

    @staticmethod
    def _first(change: StateChanged, history: list[Any]) -> Row:
        """Return the first row of a generation, which knows nothing of its plugin and continues the path's history."""
        logged = (ENDED,) if change.state is StateName.LEAVING else ()
        return Row(
            change,
            change.time,
            change.info,
            change.registered_in,
            change.uid,
            change.pid,
            None,
            history,
            logged,
            failed=_failed(None, change),
        )

    @staticmethod
    def _next(before: Row, change: StateChanged) -> Row:
        uid, pid = change.uid, change.pid
        # A plugin that is registered again has just answered.
        stays = change.state in _IN_USE and before.last.state is change.state
        # A plugin that is no longer observed waits or is dialed without its handler; a registered one never is.
        has_link = change.state in _HAS_LINK and (before.last.state is not _OBSERVED or change.state is _OBSERVED)
        # A try always has a step, unless its plugin is leaving since the handler failed to register it. A repeated
        # report has no finished steps.
        is_same_try = before.last.step is not None or before.last.state is _LEAVING
        if change.state is not _LEAVING:
            is_same_try = is_same_try or not (change.step or change.finished)
        # Not Row(...), which is one more call of a Python function for each change.
        return tuple.__new__(
            Row,
            (
                change,
                before.since if change.state is before.last.state else change.time,
                before.info if change.info is None else change.info,
                before.registered_in if change.registered_in is None else change.registered_in,
                before.uid if uid is None else uid,
                before.pid if pid is None else pid,
                before.active,
                before.history,
                () if change.deregistered is not None else before.logged,
                before.unserved if stays else None,
                before.endpoint_problem if stays else None,
                before.displaced,
                before.health if has_link else None,
                _failed(before.failed, change) if change.finished else before.failed,
                before.finished + before.last.finished if is_same_try else (),
            ),
        )

    def is_behind(self, socket: str, generation: int) -> bool:
        """Whether this generation of a socket was not reported yet."""
        row = self.rows.get(socket)
        return row is None or row.last.generation < generation

    def set_logged(self, row: Row, said: Said) -> None:
        """Note that ``said`` was logged about the socket of ``row``, its present row."""
        earlier = () if said[0] in _IN_USE else row.logged[-CAUSES + 1 :]
        self.rows[row.last.socket] = row._replace(logged=(*earlier, said))

    def set_active(self, socket: str, generation: int, *, active: bool) -> Row | None:
        """Set whether an instance is active; return its row if that changed (behaviour 37)."""
        before = self._row_of(socket, generation)
        return None if before is None or before.active is active else self._put(before._replace(active=active))

    def _row_of(self, socket: str, generation: int) -> Row | None:
        row = self.rows.get(socket)
        return None if row is None or row.last.generation != generation else row

    def _put(self, row: Row) -> Row:
        self.rows[row.last.socket] = row
        return row

    def set_owner(self, change: OwnerChanged) -> Row | None:
        """Set the owner of a socket's file; return the row if it is known."""
        before = self._row_of(change.socket, change.generation)
        if before is None:
            return None
        return self._put(before._replace(last=attrs.evolve(before.last, owner=change.owner)))

    def set_serving(self, change: ServingChanged) -> Row | None:
        """Set whether somebody listens on the socket of a registered plugin; return its row if that changed."""
        before = self._row_of(change.socket, change.generation)
        if before is None or before.last.state is not _REGISTERED:
            return None
        unserved = None if change.serving else change
        if unserved is not None and before.unserved is not None:
            # Another reason does not change the beginning.
            unserved = attrs.evolve(unserved, time=before.unserved.time)
        if (unserved and unserved.reason) == (before.unserved and before.unserved.reason):
            return None
        return self._put(before._replace(unserved=unserved))

    def set_endpoint(self, change: EndpointChanged) -> Row | None:
        """Set whether the endpoint of a registered plugin can be used; return its row if that changed."""
        before = self._row_of(change.socket, change.generation)
        if before is None or before.last.state not in _IN_USE or before.endpoint_problem == change.problem:
            return None
        return self._put(before._replace(endpoint_problem=change.problem))

    def set_displaced(self, change: PluginDisplaced) -> Row | None:
        """Set which other plugin has the endpoint of this one; return its row if that changed (fault 79)."""
        before = self._row_of(change.socket, change.generation)
        if before is None or before.displaced == change.reason:
            return None
        return self._put(before._replace(displaced=change.reason))

    def add_remark(self, socket: str, generation: int, time: float, remark: str) -> Row | None:
        """Add a remark to the history of a socket, which can be gone; return its row if it is known."""
        rows = (row for row in (self.rows.get(socket), *self._gone) if row is not None)
        row = next((row for row in rows if (row.last.socket, row.last.generation) == (socket, generation)), None)
        if row is None:
            return None
        row.history.extend((time, row.last.state, remark, row.last.attempt, remark))
        _shorten(row.history, self._history)
        return row

    def set_health(self, change: HealthReported) -> tuple[HealthReported | None, Row] | None:
        """Set a handler's report; return the one before and the row, or None if nothing has changed.

        A report about a plugin that is no longer registered comes too late, and is ignored.
        """
        before = self._row_of(change.socket, change.generation)
        if before is None or before.last.state not in _HAS_LINK:
            return None
        reported = before.health
        if reported is not None and reported.health is change.health:
            # Another reason does not change the beginning.
            change = _since(reported.time, change)
        if reported == change:
            return None
        after = self._put(before._replace(health=change))
        if has_only_other_facts(reported, change) and reported is not None and reported.facts == change.facts:
            return None  # One more check has failed like the last one: that is shown, but is no news.
        return reported, after

    def find(self, target: str) -> list[Row]:
        """Return the rows of the socket path or plugin name ``target``.

        A path can be given as it is shown, with escapes (fault 21), or as a file name alone if one socket has it.
        Sockets that are gone are returned only if no other matches, the latest first.
        """
        exact = self.rows.get(target)
        if exact is not None:
            return [exact]
        found = [row for row in self.rows.values() if _is_target(row, target)]
        if found:
            return found
        alike = self.with_file_name(target)
        if len(alike) == 1:
            return alike
        return [row for row in reversed(self._gone) if row.last.socket == target or _is_target(row, target)]

    def with_file_name(self, name: str) -> list[Row]:
        """Return the rows of sockets with that file name, which lists show for sockets without a plugin name."""
        return [row for row in self.rows.values() if _is_shown(row.last.socket.rpartition("/")[2], name)]


def has_only_other_facts(before: HealthReported | None, after: HealthReported | None) -> bool:
    """Whether two reports differ in nothing that lists of plugins show."""
    # Called twice for each registered driver; making a third report for the comparison would take longer.
    return (
        before is not None
        and after is not None
        and before.health is after.health
        and before.reason == after.reason
        and before.time == after.time
        and before.warnings == after.warnings
        and (before.socket, before.generation) == (after.socket, after.generation)
    )


def _since(time: float, change: HealthReported) -> HealthReported:
    """Return ``change`` with another time."""
    return HealthReported(
        change.socket,
        change.generation,
        change.health,
        change.reason,
        change.facts,
        time,
        change.warnings,
        change.failed_checks,
    )


def _is_target(row: Row, target: str) -> bool:
    return (row.name is not None and _is_shown(row.name, target)) or _is_shown(row.last.socket, target)


def _is_shown(text: str, shown: str) -> bool:
    """Whether ``text`` is, or looks like ``shown`` in JSON, on a terminal, or on one that has only ASCII."""
    if text == shown or (text.isascii() and text.isprintable()):
        return text == shown
    plain = escaped(encodable(text))
    return shown in (encodable(text), escaped(text), plain, plain.encode("ascii", "backslashreplace").decode("ascii"))
