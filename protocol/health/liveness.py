"""When to look whether anybody listens on a socket, and what follows from the answer.

A *look* is a connect that is closed at once; the liveness actor (``plugind.actors.health.liveness``) makes it. Nothing
here waits, connects or reads a clock.

Four queues say when a socket is looked at:

* **At once**: those whose process has ended. The end of a process only asks for a look, since another process may have
  the listener now (fault 39).
* **Accepting**: registered plugins on whose socket somebody listens, as far as is known. Each look disturbs the plugin,
  so there are few: each plugin once a minute at most, and four a second in all. Those whose process is not watched come
  first.
* **Doubtful**: registered plugins whose file is gone. The watcher hears of that too, and then most of them
  are not watched any more. What stays registered is looked at again after a second: nobody can reach it.
* **Refusing**: sockets on which nobody listens, which are stale, or registered and not serving. A refused connect
  disturbs nobody and costs little, so each is looked at once in every period of a rescan (behaviour 15). The looks are
  spread over the period, and are never more than one hundredth of a core.
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

#: Seconds between two looks at a plugin that serves, at least.
PLUGIN_PERIOD = 60.0
#: Seconds between two looks at a refusing socket, at least.
SHORTEST_PERIOD = 0.1
#: How many plugins that serve are looked at in one round, and the seconds between two rounds, at least.
ROUND, ROUND_PERIOD = 4, 1.0
#: Seconds after which a file that is gone is looked at again.
DOUBT_PERIOD = 1.0
#: How many sockets are looked at in one go: less than two milliseconds of work, since others wait meanwhile.
CHUNK = 64
#: The seconds between two chunks of refusing sockets, at most; few sockets are looked at together, for fewer wake-ups.
CHUNK_PERIOD = 1.0
#: The part of a core that looks at refusing sockets may take.
SHARE = 0.01


class ConnectAnswer(enum.Enum):
    """What the result of a connect says about a socket."""

    #: Somebody listens. A full backlog (EAGAIN) says so too.
    ACCEPTED = "accepted"
    #: Nobody listens.
    REFUSED = "refused"
    #: There is no such file. In an insecure directory the plugin stays registered, and nobody can reach it.
    MISSING = "missing"
    #: Another file is there, of which the watcher will tell, too (fault 41).
    REPLACED = "replaced"
    #: The endpoint may not be used: its file or the process that listens there is refused (fault 43).
    FORBIDDEN = "forbidden"
    #: No descriptor was left for the connect: the look has to be made again.
    EXHAUSTED = "exhausted"
    #: Any other error says nothing of the listener.
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
    """Return what the error of a connect says."""
    return _ANSWERS.get(error.errno or 0, ConnectAnswer.UNKNOWN)


@value
class EndpointAnswer:
    """What a connect says of an endpoint."""

    answer: ConnectAnswer
    #: Why it may not be used, if it is forbidden.
    reason: str | None = None


@record(eq=False)
class Subject:
    """A socket that is watched, and what is known of it."""

    asked: WatchLiveness
    #: Whether somebody listens; None before the first look.
    serving: bool | None = None
    #: Whether the last look found no file, and whether that is shown.
    missing: bool = False
    shown_missing: bool = False
    #: While nobody listens: whether somebody listens on the endpoint, if that is another socket.
    endpoint_serves: bool = False
    #: Whether its endpoint was looked at, and why it is awaited.
    endpoint_known: bool = False
    endpoint_problem: str | None = None

    @property
    def path(self) -> str:
        """The path of the socket."""
        return self.asked.path

    @property
    def other_endpoint(self) -> str | None:
        """The path of the endpoint, if that is another socket."""
        endpoint = self.asked.endpoint.removeprefix("unix://")
        return endpoint if endpoint and endpoint != self.path else None


class Schedule:
    """The sockets that are watched, each due for a look at some time."""

    def __init__(self, rescan: float) -> None:
        """Look at each refusing socket once in ``rescan`` seconds, and once a minute at least."""
        self._period = min(max(rescan, SHORTEST_PERIOD), PLUGIN_PERIOD)
        self._subjects: dict[str, Subject] = {}
        self._at_once: dict[str, None] = {}
        #: Registered plugins to be looked at in the next round: those whose process is not watched, before their first
        #: look, and those at which a look found no descriptor.
        self._unknown: dict[str, None] = {}
        #: When each is due, the earliest first.
        self._doubtful: dict[str, float] = {}
        self._accepting: dict[str, float] = {}
        self._refusing: dict[str, float] = {}
        #: Registered plugins whose endpoint did not exist: those before the first look at it, and when the others are
        #: due, the earliest first.
        self._new_endpoints: dict[str, None] = {}
        self._awaited: dict[str, float] = {}
        self._next_round = -math.inf
        self._next_chunk = -math.inf
        #: Until then the refusing sockets have had their share of the core.
        self._rests_until = -math.inf

    def __contains__(self, path: str) -> bool:
        return path in self._subjects

    # --- which sockets ------------------------------------------------------------------------------------------------

    def watch(self, asked: WatchLiveness, now: float, *, process_is_watched: bool) -> None:
        """Watch a socket from now on; it takes the place of another one at its path."""
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
        """Watch the socket at ``path`` no more, if it is watched."""
        if self._subjects.pop(path, None) is not None:
            for queue in (self._at_once, self._unknown, self._accepting, self._refusing):
                queue.pop(path, None)
            self._new_endpoints.pop(path, None)
            self._awaited.pop(path, None)
            self._doubtful.pop(path, None)

    def ask(self, path: str) -> None:
        """Have a look at ``path`` at once: its process has ended."""
        if path in self._subjects:
            self._at_once[path] = None

    # --- when ---------------------------------------------------------------------------------------------------------

    def next_time(self) -> float:
        """Return when :meth:`take` has something to return; infinite if nothing is watched."""
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
        """Yield the sockets to look at now, at most :data:`CHUNK`; those that the caller does not take stay due."""
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
        """Return some plugins whose endpoints are awaited and have to be looked at now."""
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
        """Return so many that all have their turn in a period, in few wake-ups, and no go is long."""
        return max(1, min(CHUNK, int(len(self._refusing) * CHUNK_PERIOD / self._period)))

    def _taken(self, path: str, now: float) -> Subject:
        """Put the socket to the end of its queue, whatever becomes of the look."""
        self._at_once.pop(path, None)
        self._unknown.pop(path, None)
        self._doubtful.pop(path, None)
        if self._refusing.pop(path, None) is not None:
            self._refusing[path] = now + self._period
        elif self._accepting.pop(path, None) is not None:
            self._accepting[path] = now + PLUGIN_PERIOD
        return self._subjects[path]

    def spent(self, subject: Subject, seconds: float, now: float) -> None:
        """Note how long a look took: refusing sockets have no more than their share of the core."""
        if subject.path in self._refusing:
            self._rests_until = max(self._rests_until, now) + seconds / SHARE

    # --- what follows -------------------------------------------------------------------------------------------------

    def judge(
        self, subject: Subject, answer: ConnectAnswer, now: float, endpoint: EndpointAnswer | None = None
    ) -> ServingChanged | ListenerFound | None:
        """Return the message that follows from the ``answer`` of a socket, and of its other ``endpoint`` if asked.

        A stale socket that accepts is watched no more: its registration, which gets the message, goes on with it.
        """
        if answer is ConnectAnswer.EXHAUSTED and subject.path in self._accepting:
            # Its process may have ended, which would otherwise be shown a minute later.
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
        """Return the message that follows from a look at an endpoint that is awaited; one that accepts no longer is."""
        if found.answer is ConnectAnswer.EXHAUSTED:
            return None  # It says nothing of the endpoint, which stays awaited.
        problem = _problem_of(found)
        if problem is None:
            self._awaited.pop(subject.path, None)
        # Of what was shown before this actor has started nothing is known here.
        if subject.endpoint_known and problem == subject.endpoint_problem:
            return None
        subject.endpoint_known, subject.endpoint_problem = True, problem
        return EndpointChanged(subject.path, subject.asked.generation, now, problem)

    def _is_doubtful(self, subject: Subject, answer: ConnectAnswer, now: float) -> bool:
        """Whether the file has to be looked at again, because this is the first look that did not find it."""
        again, subject.missing = subject.missing, answer is ConnectAnswer.MISSING
        if not subject.missing or again or not subject.asked.registered:
            return False
        self._doubtful[subject.path] = now + DOUBT_PERIOD
        return True

    def _found(self, subject: Subject) -> ListenerFound:
        self.unwatch(subject.path)
        return ListenerFound(subject.path, subject.asked.generation)

    def _put(self, subject: Subject, now: float) -> None:
        """Put a registered socket into the queue in which it belongs."""
        path = subject.path
        self._accepting.pop(path, None)
        self._refusing.pop(path, None)
        if subject.serving:
            self._accepting[path] = now + PLUGIN_PERIOD
        else:
            self._refusing[path] = now + self._period


#: What a connect says of an endpoint on which somebody may listen.
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
    """Which process listens on which of the watched sockets: one process may have thousands of them."""

    _process_of: dict[str, int] = attrs.field(init=False, factory=dict)
    _paths_of: dict[int, set[str]] = attrs.field(init=False, factory=dict)
    _pid_of: dict[int, int] = attrs.field(init=False, factory=dict)
    _of_pid: dict[int, int] = attrs.field(init=False, factory=dict)

    def of_pid(self, pid: int) -> int | None:
        """Return the process that is watched under this process id."""
        return self._of_pid.get(pid)

    def of_path(self, path: str) -> int | None:
        """Return the process that listens on ``path``, if it is watched."""
        return self._process_of.get(path)

    def add(self, path: str, process: int, pid: int = 0) -> None:
        """Note that ``process`` listens on ``path``; ``pid`` is 0 if it is not known here (another namespace)."""
        self._process_of[path] = process
        self._paths_of.setdefault(process, set()).add(path)
        if pid:
            self._pid_of[process], self._of_pid[pid] = pid, process

    def remove(self, path: str) -> int | None:
        """Forget ``path``; return its process if that listens on no other one, and is forgotten too."""
        process = self._process_of.pop(path, None)
        if process is None:
            return None
        self._paths_of[process].discard(path)
        if self._paths_of[process]:
            return None
        self._forget(process)
        return process

    def end(self, process: int) -> list[str]:
        """Forget ``process``; return the paths on which it listened, in order."""
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
