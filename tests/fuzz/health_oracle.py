"""What must hold of the checks of endpoints, and of the health that is shown because of them.

The oracle sees each check that the handler makes, and what is shown of the plugin. It counts for itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, cast

import attrs
import trio

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.handlers.link import Link
from plugind.actors.health.endpoint_checks import Check, Note
from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import PluginStatus

#: Seconds between two checks, at least and at most: 30 s ± 20 %, and a check begins up to half a second early.
SHORTEST: Final = 24.0
LONGEST: Final = 36.0
EARLY: Final = 0.5
#: The most seconds from a connection to its first check.
FIRST: Final = 30.0
#: Seconds from a check that failed to the next one, the first two times.
CONFIRM: Final = 5.0
#: Seconds until a check has failed that is not answered.
DEADLINE: Final = 3.0
#: How many checks in a row must fail.
MISSES: Final = 3
#: The most seconds until a change is shown that is not the end of being healthy.
LAG: Final = 1.0
#: The most seconds from the last answer of an endpoint until it is shown as unhealthy; and from the moment at which it
#: answers again until it is shown as healthy.
UNHEALTHY_WITHIN: Final = 60.0
HEALTHY_WITHIN: Final = 40.0

#: The socket and the generation of an instance.
Key = tuple[str, int]


@attrs.frozen(order=True)
class AnsweredCheck:
    """When an endpoint was asked for its health, when it answered, and whether it said that it was well.

    A script may change what it says while the answer is delayed. One that was given up long ago may be answered after a
    newer one; the newer one is the greater.
    """

    asked_at: float = -math.inf
    answered_at: float = -math.inf
    serves: bool = False

    def passes(self, since: float, suspended_at: float) -> bool | None:
        """Return whether this check has passed since then; None if that is not known.

        An answer that is as late as its deadline may have been missed. What was answered after ``suspended_at``, when
        the process was suspended, is not sent.
        """
        if self.asked_at < since:
            return False
        if self.answered_at > since + DEADLINE - EPSILON or self.answered_at == suspended_at:
            return None
        return self.answered_at < suspended_at and self.serves


@attrs.define(eq=False)
class _Instance:
    """What the checks of one instance have shown."""

    #: Since when at least three checks in a row have failed; None if they have not.
    unhealthy_since: float | None = None
    #: When that was to be shown at the latest, and when it was. Nothing is due once it has ended.
    due: float = math.inf
    shown_at: float | None = None
    #: When that ended last.
    ended: float = -math.inf
    status: PluginStatus | None = None
    #: Until when it may be starting, if it says that it is not ready.
    may_start: float = -math.inf


@attrs.define(eq=False)
class _Run:
    """The checks over one connection."""

    key: Key
    #: When the next check begins, at the earliest and at the latest.
    earliest: float
    latest: float
    misses: int = 0
    #: When the check began that is out.
    out: float | None = None


class HealthOracle:
    """Endpoints are checked in time; three misses in a row are shown as unhealthy, and one success ends that."""

    def __init__(self, violated: Callable[[str, str], None], excused: Callable[[], bool] = lambda: False) -> None:
        """Report to ``violated``; while ``excused``, what is shown may be late."""
        self._violated = violated
        self._excused = excused
        self._runs: dict[Key, _Run] = {}
        self._instances: dict[Key, _Instance] = {}

    def forget(self) -> None:
        """The daemon ended."""
        self._runs.clear()
        self._instances.clear()

    def watched(
        self,
        plugin: Plugin,
        link: Link,
        answered: Callable[[float], bool | None] = lambda _: None,
    ) -> Link:
        """Return ``link``, whose checks are seen; those over one connection begin and end with it.

        ``answered`` says whether the endpoint has answered a check well since some time; None if that is not known.
        """
        return cast("Link", _WatchedLink(link, plugin, self, answered))

    def misses(self, plugin: Plugin) -> int:
        """Return how many checks of an instance have failed in a row."""
        run = self._runs.get((plugin.socket, plugin.generation))
        return 0 if run is None else run.misses

    def misses_at(self, path: str) -> int:
        """Return how many checks have failed in a row of the instances at a path, at most."""
        return max((run.misses for (of, _), run in self._runs.items() if of == path), default=0)

    def health(self, path: str) -> tuple[Health | None, str | None]:
        """Return how the newest instance at a path is shown, and why."""
        shown = [
            instance.status
            for (of, _), instance in self._instances.items()
            if of == path and instance.status is not None
        ]
        newest = max(shown, key=lambda status: status.generation, default=None)
        return (None, None) if newest is None else (newest.health, newest.health_reason)

    def may_start(self, plugin: Plugin, until: float) -> None:
        """An instance that is not ready may be starting until then."""
        self._instance((plugin.socket, plugin.generation)).may_start = until

    # --- checks -------------------------------------------------------------------------------------------------------

    def connected(self, key: Key) -> _Run:
        """The checks over a connection begin."""
        if key in self._runs:
            self._violated("health", f"{_named(key)} is checked over two connections at once")
        now = trio.current_time()
        run = self._runs[key] = _Run(key, now, now + FIRST)
        return run

    def disconnected(self, run: _Run) -> None:
        """The checks over a connection have ended."""
        if self._runs.get(run.key) is run:
            del self._runs[run.key]
        self._recovered(run.key)

    def begins(self, run: _Run) -> None:
        """A check begins."""
        now = trio.current_time()
        if run.out is not None:
            self._violated("health", f"a check of {_named(run.key)} begins while another one is out")
        if not run.earliest - EPSILON <= now <= run.latest + EPSILON:
            due = f"between {run.earliest:g} and {run.latest:g}"
            self._violated("health", f"a check of {_named(run.key)} begins at {now:g}, and is due {due}")
        run.out = now

    def abandoned(self, run: _Run) -> None:
        """A check has ended with its connection."""
        run.out = None

    def succeeded(self, run: _Run) -> None:
        """A check has found nothing wrong."""
        run.misses = 0
        self._next(run, SHORTEST - EARLY, LONGEST)
        self._recovered(run.key)

    def failed(self, run: _Run) -> None:
        """A check has failed."""
        run.misses += 1
        if run.misses < MISSES:
            self._next(run, CONFIRM - EARLY, CONFIRM)
            return
        self._next(run, SHORTEST - EARLY, LONGEST)
        instance, now = self._instance(run.key), trio.current_time()
        if instance.unhealthy_since is None:
            is_shown = instance.status is not None and _is_unwell(instance.status)
            instance.unhealthy_since, instance.shown_at = now, now if is_shown else None
            was_healthy = instance.status is not None and instance.status.health is Health.HEALTHY
            instance.due = now if was_healthy and now > instance.may_start else max(now, instance.may_start) + LAG

    def judge(self, run: _Run, answered: bool | None, *, passed: bool) -> None:
        """Compare how a check ended with what the endpoint says that it did."""
        if answered is not None and answered is not passed:
            words = "counts as passed" if passed else "counts as missed"
            did = "was answered" if answered else "was not answered"
            self._violated("health", f"a check of {_named(run.key)} {words}, and {did}")

    def _next(self, run: _Run, least: float, most: float) -> None:
        assert run.out is not None, "a check has ended"
        run.earliest, run.latest, run.out = run.out + least, run.out + most, None

    def _recovered(self, key: Key) -> None:
        instance, now = self._instance(key), trio.current_time()
        if instance.unhealthy_since is not None:
            if not self._excused():
                self._compare(key, instance, now)
            # A driver that was starting meanwhile was never shown as unhealthy, and need not be any more.
            instance.unhealthy_since, instance.due, instance.ended = None, math.inf, now

    def _instance(self, key: Key) -> _Instance:
        return self._instances.setdefault(key, _Instance())

    # --- what is shown ------------------------------------------------------------------------------------------------

    def shown(self, status: PluginStatus, time: float) -> None:
        """A plugin is shown."""
        instance = self._instance((status.socket, status.generation))
        if instance.shown_at is None and _is_unwell(status):
            instance.shown_at = time
            if time > instance.due + EPSILON and not self._excused():
                self._violated(
                    "health", f"{status.socket} is shown as unhealthy at {time:g}, and not by {instance.due:g}"
                )
        instance.status = status

    def look(self) -> None:
        """Compare what is shown with what the checks have shown; and see that checks come and end."""
        now = trio.current_time()
        for run in self._runs.values():
            if now > (run.latest if run.out is None else run.out + DEADLINE) + EPSILON:
                self._violated("health", f"{_named(run.key)} is not checked any more: {run}")
        for key, instance in self._instances.items() if not self._excused() else ():
            self._compare(key, instance, now)

    def _compare(self, key: Key, instance: _Instance, now: float) -> None:
        status = instance.status
        if status is None or status.health is None:
            return
        late = now > instance.due + EPSILON and not (
            status.health is Health.STARTING and now <= instance.may_start + LAG
        )
        if instance.unhealthy_since is not None and late and not _is_unwell(status):
            words = f"has missed {MISSES} checks since {instance.unhealthy_since:g}"
            self._violated("health", f"{_named(key)} {words}, and is shown as {status.health}")
        by_checks = status.health is Health.UNHEALTHY and status.failed_checks > 0
        if by_checks and instance.unhealthy_since is None and now > instance.ended + LAG + EPSILON:
            words = f"{status.health_reason} ({status.failed_checks} checks)"
            self._violated(
                "health", f"{_named(key)} has not missed {MISSES} checks, and is shown as unhealthy: {words}"
            )


class _WatchedLink:
    """A link whose checks an oracle sees."""

    def __init__(
        self,
        link: Link,
        plugin: Plugin,
        oracle: HealthOracle,
        answered: Callable[[float], bool | None],
    ) -> None:
        self._link = link
        self._key = plugin.socket, plugin.generation
        self._oracle = oracle
        self._answered = answered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    async def check(self, check: Check, note: Note | None = None) -> None:
        """See :class:`~plugind.actors.handlers.link.Link`."""
        oracle = self._oracle
        run = oracle.connected(self._key)

        async def watched(channel: Channel) -> None:
            oracle.begins(run)
            began = trio.current_time()
            try:
                await check(channel)
            except trio.Cancelled:
                # The deadline has passed, or the connection or the follow has ended.
                self._end(run, began, passed=None if trio.current_time() < began + DEADLINE - EPSILON else False)
                raise
            except Exception:
                self._end(run, began, passed=None if channel.connection.failure is not None else False)
                raise
            self._end(run, began, passed=True)

        try:
            await self._link.check(watched, note)
        finally:
            oracle.disconnected(run)

    def _end(self, run: _Run, began: float, *, passed: bool | None) -> None:
        if passed is None:
            self._oracle.abandoned(run)
            return
        self._oracle.judge(run, self._answered(began), passed=passed)
        if passed:
            self._oracle.succeeded(run)
        else:
            self._oracle.failed(run)


def _is_unwell(status: PluginStatus) -> bool:
    return status.health in (Health.UNHEALTHY, Health.DISCONNECTED)


def _named(key: Key) -> str:
    return f"{key[0]} generation {key[1]}"
