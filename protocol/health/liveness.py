"""When to look whether anybody listens on a socket, and what follows from the answer.

A *look* is a connect that is closed at once; the liveness actor (``plugind.actors.health.liveness``) makes it. Nothing
here waits, connects or reads a clock.

Four queues say when to look at a socket:

* **At once**: sockets whose process has ended. Another process may have the listener now, so only a look decides (fault
39).
* **Accepting**: registered plugins on whose socket somebody listens, as far as is known. Each look disturbs the plugin,
so there are few: each plugin at most once a minute, and four in a second. Those whose process is not watched come
first.
* **Doubtful**: registered plugins whose file is gone. The watcher notices that too, and most of them are then no longer
watched. The others cannot be reached, and are looked at again after a second.
* **Refusing**: sockets on which nobody listens: stale ones, and those of registered plugins that do not serve. A
refused connect disturbs nobody and costs little, so each is looked at once in a rescan's period (behaviour 15). The
looks are spread over the period, and take at most one hundredth of a core.
"""

from __future__ import annotations

import enum
import errno
import math
from collections.abc import Iterator
from itertools import chain, islice, takewhile

import attrs

from ..discovery.endpoints import MISSING
from ..messages.liveness import WatchLiveness
from ..messages.registration import ListenerFound
from ..messages.status import EndpointChanged, ServingChanged
from ..values import record, value

#: The least number of seconds between two looks at a plugin that serves.
PLUGIN_PERIOD = 60.0
#: The least number of seconds between two looks at a refusing socket.
SHORTEST_PERIOD = 0.1
#: The number of serving plugins that are looked at in one round, and the least number of seconds between two rounds.
ROUND, ROUND_PERIOD = 4, 1.0
#: Seconds until a missing file is looked at again.
DOUBT_PERIOD = 1.0
#: The most sockets that are looked at in one go, which takes less than two milliseconds.
CHUNK = 64
#: The most seconds between two chunks of refusing sockets. Looking at several together saves wake-ups.
CHUNK_PERIOD = 1.0
#: The part of a core that looks at refusing sockets may take.
SHARE = 0.01


class ConnectAnswer(enum.Enum):
    """What the result of a connect says about a socket."""

    #: Somebody listens. A full backlog (EAGAIN) means the same.
    ACCEPTED = "accepted"
    REFUSED = "refused"
    #: There is no such file. In an insecure directory the plugin stays registered, although it cannot be reached.
    MISSING = "missing"
    #: Another file is there, which the watcher will report (fault 41).
    REPLACED = "replaced"
    #: The endpoint may not be used: its file or the listening process is refused (fault 43).
    FORBIDDEN = "forbidden"
    #: There was no descriptor for the connect, so the look has to be made again.
    EXHAUSTED = "exhausted"
    #: Another error, which says nothing about the listener.
    UNKNOWN = "unknown"


_ANSWERS = {
    errno.EAGAIN: ConnectAnswer.ACCEPTED,
    errno.ECONNREFUSED: ConnectAnswer.REFUSED,
    errno.ENOENT: ConnectAnswer.MISSING,
    errno.ENOTDIR: ConnectAnswer.MISSING,
    errno.ESTALE: ConnectAnswer.REPLACED,
    errno.EMFILE: ConnectAnswer.EXHAUSTED,
    errno.ENFILE: ConnectAnswer.EXHAUSTED,
}


def answer_of(error: OSError) -> ConnectAnswer:
    """Return what an error of connect means."""
    return _ANSWERS.get(error.errno or 0, ConnectAnswer.UNKNOWN)


@value
class EndpointAnswer:
    """The result of a connect to an endpoint."""

    answer: ConnectAnswer
    reason: str | None = None


@record(eq=False)
class Subject:
    """A watched socket, and what is known about it."""

    asked: WatchLiveness
    #: Whether somebody listens; None before the first look.
    serving: bool | None = None
    #: Whether the last look found no file, and whether that was shown.
    missing: bool = False
    shown_missing: bool = False
    #: While nobody listens: whether somebody listens on an endpoint elsewhere.
    endpoint_serves: bool = False
    #: Whether a missing endpoint was looked at, and its problem.
    endpoint_known: bool = False
    endpoint_problem: str | None = None

    @property
    def path(self) -> str:
        """The path of the socket."""
        return self.asked.path

    @property
    def other_endpoint(self) -> str | None:
        """The path of the endpoint, if it is another socket."""
        endpoint = self.asked.endpoint.removeprefix("unix://")
        return endpoint if endpoint and endpoint != self.path else None


class Schedule:
    """The watched sockets, and when each is due for a look."""

    def __init__(self, rescan: float) -> None:
        """Look at each refusing socket once in ``rescan`` seconds, and at least once a minute."""
        self._period = min(max(rescan, SHORTEST_PERIOD), PLUGIN_PERIOD)
        self._subjects: dict[str, Subject] = {}
        self._at_once: dict[str, None] = {}
        #: Registered plugins for the next round: those whose process is not watched, and those whose look found no
        #: descriptor.
        self._unknown: dict[str, None] = {}
        #: When each is due, earliest first.
        self._doubtful: dict[str, float] = {}
        self._accepting: dict[str, float] = {}
        self._refusing: dict[str, float] = {}
        #: Registered plugins whose endpoint did not exist: new ones, and others with the times when they are due.
        self._new_endpoints: dict[str, None] = {}
        self._awaited: dict[str, float] = {}
        self._next_round = -math.inf
        self._next_chunk = -math.inf
        #: The end of a rest in which refusing sockets are not looked at, after their share of the core.
        self._rests_until = -math.inf

    def __contains__(self, path: str) -> bool:
        return path in self._subjects

    # --- which sockets ------------------------------------------------------------------------------------------------

    def watch(self, asked: WatchLiveness, now: float, *, process_is_watched: bool) -> None:
        """Watch a socket, in place of another one at its path."""
        path = asked.path
        self.unwatch(path)
        self._subjects[path] = Subject(asked)
        if not asked.registered:
            self._refusing[path] = now + self._period
            return
        self._accepting[path] = now + PLUGIN_PERIOD
        if not process_is_watched:
            self._unknown[path] = None
        if asked.endpoint_missing:
            self._new_endpoints[path] = None

    def unwatch(self, path: str) -> None:
        """Stop watching the socket at ``path``, if it is watched."""
        if self._subjects.pop(path, None) is not None:
            for queue in (self._at_once, self._unknown, self._accepting, self._refusing):
                queue.pop(path, None)
            self._new_endpoints.pop(path, None)
            self._awaited.pop(path, None)
            self._doubtful.pop(path, None)

    def ask(self, path: str) -> None:
        """Look at ``path`` at once, because its process has ended."""
        if path in self._subjects:
            self._at_once[path] = None

    # --- when ---------------------------------------------------------------------------------------------------------

    def next_time(self) -> float:
        """Return when :meth:`take` has something to return; infinity if nothing is watched."""
        if self._at_once or self._new_endpoints:
            return -math.inf
        doubtful, awaited = (next(iter(times.values()), math.inf) for times in (self._doubtful, self._awaited))
        return min(self._time_of_round(), self._time_of_chunk(), doubtful, awaited)

    def _time_of_round(self) -> float:
        if self._unknown:
            return self._next_round
        return max(self._next_round, next(iter(self._accepting.values()), math.inf))

    def _time_of_chunk(self) -> float:
        due = next(iter(self._refusing.values()), math.inf)
        return max(self._rests_until, min(due, self._next_chunk if self._refusing else math.inf))

    def take(self, now: float) -> Iterator[Subject]:
        """Yield the sockets to look at now, at most :data:`CHUNK`. Sockets that the caller does not take stay due."""
        for path in [*islice(self._at_once, CHUNK)]:
            yield self._taken(path, now)
        if self._at_once:
            return
        doubtful = takewhile(lambda path: self._doubtful[path] <= now, self._doubtful)
        for path in [*islice(doubtful, CHUNK)]:
            yield self._taken(path, now)
        if now >= self._time_of_round():
            self._next_round = now + ROUND_PERIOD
            for path in self._round(now):
                yield self._taken(path, now)
        if now >= self._time_of_chunk():
            size = self._chunk_size()
            self._next_chunk = now + size * self._period / len(self._refusing)
            for path in [*islice(self._refusing, size)]:
                yield self._taken(path, now)

    def take_awaited(self, now: float) -> list[Subject]:
        """Return some plugins whose awaited endpoints are due for a look."""
        due = takewhile(lambda path: self._awaited[path] <= now, self._awaited)
        paths = [*islice(chain(self._new_endpoints, due), CHUNK)]
        for path in paths:
            self._new_endpoints.pop(path, None)
            self._awaited.pop(path, None)
            self._awaited[path] = now + self._period
        return [self._subjects[path] for path in paths]

    def _round(self, now: float) -> list[str]:
        paths = [*islice(self._unknown, ROUND)]
        due = (path for path, due in takewhile(lambda entry: entry[1] <= now, self._accepting.items()))
        paths += islice((path for path in due if path not in self._unknown), ROUND - len(paths))
        return paths

    def _chunk_size(self) -> int:
        """Return a size with which all have their turn in a period, with few wake-ups, and no go is long."""
        return max(1, min(CHUNK, int(len(self._refusing) * CHUNK_PERIOD / self._period)))

    def _taken(self, path: str, now: float) -> Subject:
        """Put the socket at the end of its queue, whatever the look finds."""
        self._at_once.pop(path, None)
        self._unknown.pop(path, None)
        self._doubtful.pop(path, None)
        if self._refusing.pop(path, None) is not None:
            self._refusing[path] = now + self._period
        elif self._accepting.pop(path, None) is not None:
            self._accepting[path] = now + PLUGIN_PERIOD
        return self._subjects[path]

    def spent(self, subject: Subject, seconds: float, now: float) -> None:
        """Note how long a look took, for the share of refusing sockets."""
        if subject.path in self._refusing:
            self._rests_until = max(self._rests_until, now) + seconds / SHARE

    # --- what follows -------------------------------------------------------------------------------------------------

    def judge(
        self, subject: Subject, answer: ConnectAnswer, now: float, endpoint: EndpointAnswer | None = None
    ) -> ServingChanged | ListenerFound | None:
        """Return the message that follows from the ``answer`` of a socket, and of its other ``endpoint`` if asked.

        A stale socket that accepts is no longer watched: its registration gets the message and dials it.
        """
        if answer is ConnectAnswer.EXHAUSTED and subject.path in self._accepting:
            # Its process may have ended; without a descriptor for the look, that would show only a minute later.
            self._unknown[subject.path] = None
        if answer not in (ConnectAnswer.ACCEPTED, ConnectAnswer.REFUSED, ConnectAnswer.MISSING) or self._is_doubtful(
            subject, answer, now
        ):
            return None
        serving = answer is ConnectAnswer.ACCEPTED
        if not subject.asked.registered:
            return self._found(subject) if serving else None
        endpoint_serves = endpoint is not None and endpoint.answer in _MAY_SERVE
        shown = subject.serving, subject.endpoint_serves, subject.shown_missing
        if (serving, endpoint_serves, subject.missing) == shown:
            return None
        subject.serving, subject.endpoint_serves, subject.shown_missing = serving, endpoint_serves, subject.missing
        self._put(subject, now)
        reason = None if serving else _reason(subject, endpoint)
        return ServingChanged(
            subject.path, subject.asked.generation, serving, now, reason, endpoint_serves=endpoint_serves
        )

    def judge_endpoint(self, subject: Subject, found: EndpointAnswer, now: float) -> EndpointChanged | None:
        """Return the message that follows from a look at an awaited endpoint. One that accepts is no longer awaited."""
        if found.answer is ConnectAnswer.EXHAUSTED:
            return None  # The look says nothing about the endpoint.
        problem = _problem_of(found)
        if problem is None:
            self._awaited.pop(subject.path, None)
        # What was shown before this actor started is not known here.
        if subject.endpoint_known and problem == subject.endpoint_problem:
            return None
        subject.endpoint_known, subject.endpoint_problem = True, problem
        return EndpointChanged(subject.path, subject.asked.generation, now, problem)

    def _is_doubtful(self, subject: Subject, answer: ConnectAnswer, now: float) -> bool:
        """Whether to look again for the file, because this is the first look that did not find it."""
        again, subject.missing = subject.missing, answer is ConnectAnswer.MISSING
        if not subject.missing or again or not subject.asked.registered:
            return False
        self._doubtful[subject.path] = now + DOUBT_PERIOD
        return True

    def _found(self, subject: Subject) -> ListenerFound:
        self.unwatch(subject.path)
        return ListenerFound(subject.path, subject.asked.generation)

    def _put(self, subject: Subject, now: float) -> None:
        """Put a registered socket into its queue."""
        path = subject.path
        self._accepting.pop(path, None)
        self._refusing.pop(path, None)
        if subject.serving:
            self._accepting[path] = now + PLUGIN_PERIOD
        else:
            self._refusing[path] = now + self._period


_MAY_SERVE = (ConnectAnswer.ACCEPTED, ConnectAnswer.EXHAUSTED, ConnectAnswer.UNKNOWN)


def _problem_of(found: EndpointAnswer) -> str | None:
    """Return why an endpoint cannot be used."""
    match found.answer:
        case ConnectAnswer.MISSING:
            return MISSING
        case ConnectAnswer.REFUSED:
            return "nobody listens on its endpoint"
        case ConnectAnswer.FORBIDDEN:
            return found.reason
        case _:
            return None


def _reason(subject: Subject, found: EndpointAnswer | None) -> str:
    endpoint = subject.other_endpoint
    problem = "its socket file is gone, so nobody can reach it" if subject.missing else "nobody listens on its socket"
    if endpoint is None:
        return problem
    if found is not None and found.answer is ConnectAnswer.FORBIDDEN:
        return f"{problem}, and {found.reason}"
    if subject.endpoint_serves:
        return f"{problem}, but somebody listens on its endpoint {endpoint}"
    if subject.missing:
        return f"{problem}, and nobody listens on its endpoint {endpoint}"
    return f"{problem}, nor on its endpoint {endpoint}"


@record
class SocketOwners:
    """The processes that listen on the watched sockets. One process may have thousands of sockets."""

    _process_of: dict[str, int] = attrs.field(init=False, factory=dict)
    _paths_of: dict[int, set[str]] = attrs.field(init=False, factory=dict)
    _pid_of: dict[int, int] = attrs.field(init=False, factory=dict)
    _of_pid: dict[int, int] = attrs.field(init=False, factory=dict)

    def of_pid(self, pid: int) -> int | None:
        """Return the watched process that has this process id."""
        return self._of_pid.get(pid)

    def of_path(self, path: str) -> int | None:
        """Return the watched process that listens on ``path``, if any."""
        return self._process_of.get(path)

    def add(self, path: str, process: int, pid: int = 0) -> None:
        """Note that ``process`` listens on ``path``; ``pid`` is 0 if unknown (another namespace)."""
        self._process_of[path] = process
        self._paths_of.setdefault(process, set()).add(path)
        if pid:
            self._pid_of[process], self._of_pid[pid] = pid, process

    def remove(self, path: str) -> int | None:
        """Remove ``path``; return and forget its process if that has no other path."""
        process = self._process_of.pop(path, None)
        if process is None:
            return None
        self._paths_of[process].discard(path)
        if self._paths_of[process]:
            return None
        self._forget(process)
        return process

    def end(self, process: int) -> list[str]:
        """Forget ``process``; return the paths on which it listened, sorted."""
        paths = sorted(self._paths_of.get(process, ()))
        for path in paths:
            del self._process_of[path]
        self._forget(process)
        return paths

    def _forget(self, process: int) -> None:
        self._paths_of.pop(process, None)
        pid = self._pid_of.pop(process, None)
        if pid is not None and self._of_pid.get(pid) == process:
            del self._of_pid[pid]
