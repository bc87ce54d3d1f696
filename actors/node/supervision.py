"""Supervision: child specifications, restarts within an intensity, start in order and stop in reverse.

The vocabulary is OTP's. A child is a function that runs in a task and cancel scope of its own. A child that crashes is
restarted after a pause, as its specification says. The pause grows with the crashes of that child, so that a child that
fails at once does not use up the intensity within milliseconds. :class:`GaveUpError` ends the supervisor if crashes
come too often (fault 85).
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Collection

import trio

from ...protocol.backoff import RESTART_PAUSE, RestartIntensity
from ...protocol.errors import ConfigError, leaves
from ...protocol.values import record, value


class GaveUpError(Exception):
    """Children crashed more often than the restart intensity allows; the last crash is the cause."""


class Restart(enum.Enum):
    """When a child that has ended is restarted."""

    #: Always: every end counts as a crash.
    PERMANENT = "permanent"
    TRANSIENT = "transient"


@value
class ChildSpec:
    """The specification of a child."""

    name: str
    run: Callable[[], Awaitable[None]]
    restart: Restart = Restart.PERMANENT


class Crashes:
    """Counts crashes against the intensity, and reports them."""

    def __init__(self, intensity: RestartIntensity, report: Callable[[str, Exception], None]) -> None:
        self._intensity = intensity
        self._reports = [report]
        self._past: tuple[float, ...] = ()
        self._of_child: dict[str, tuple[float, ...]] = {}

    def allow(self, intensity: RestartIntensity) -> None:
        """Use another intensity, also for the crashes of the last period."""
        self._intensity = intensity

    def watch(self, report: Callable[[str, Exception], None]) -> None:
        """Also call ``report`` for each crash from now on, with the name of the child and the error."""
        self._reports.append(report)

    def report(self, name: str, error: Exception) -> None:
        """Report the crash of ``name``, which does not count against the intensity."""
        for report in self._reports:
            report(name, error)

    def count(self, name: str, error: Exception) -> float:
        """Report and count the crash of ``name``; return the seconds to wait before its restart.

        Raises:
          GaveUpError: if the intensity is exceeded.
        """
        self.report(name, error)
        recent = self._intensity.admit(self._past, trio.current_time())
        if recent is None:
            allowed = f"{self._intensity.restarts} in {self._intensity.period:g} s"
            raise GaveUpError(f"actors crashed more often than {allowed}, the last was {name}: {error!r}") from error
        self._past = recent
        return self._pause(name)

    def _pause(self, name: str) -> float:
        now = trio.current_time()
        past = self._of_child.get(name, ())
        recent = (*(time for time in past if now - time < self._intensity.period), now)
        self._of_child[name] = recent
        return RESTART_PAUSE.delay(len(recent))


@record
class _Child:
    spec: ChildSpec
    scope: trio.CancelScope
    done: trio.Event


class Children:
    """The children of one supervisor, in the order of their start."""

    def __init__(self, nursery: trio.Nursery, crashes: Crashes) -> None:
        self._nursery = nursery
        self._crashes = crashes
        self._children: dict[str, _Child] = {}

    def start(self, spec: ChildSpec) -> None:
        """Start a child.

        Raises:
          ValueError: if a child of that name runs.
        """
        if spec.name in self._children:
            raise ValueError(f"a child named {spec.name!r} runs already")
        child = self._children[spec.name] = _Child(spec, trio.CancelScope(), trio.Event())
        self._nursery.start_soon(self._keep, child, name=spec.name)

    async def wait(self, name: str) -> None:
        """Wait until the child has ended for good. Return at once if there is no child of that name."""
        child = self._children.get(name)
        if child is not None:
            await child.done.wait()

    async def stop(self, name: str) -> None:
        """Cancel a child and wait for its end."""
        child = self._children.get(name)
        if child is not None:
            child.scope.cancel()
            await child.done.wait()

    async def stop_all(self, *, but: Collection[str] = ()) -> None:
        """Stop all children in reverse order of their start, except those named in ``but``."""
        for name in reversed(list(self._children)):
            if name not in but:
                await self.stop(name)

    @property
    def stopping(self) -> tuple[str, ...]:
        """The names of children that were stopped and have not ended; all names if none was stopped."""
        return tuple(name for name, child in self._children.items() if child.scope.cancel_called) or tuple(
            self._children
        )

    async def _keep(self, child: _Child) -> None:
        spec = child.spec
        try:
            with child.scope:
                while True:
                    pause = 0.0
                    try:
                        await spec.run()
                    except Exception as error:  # noqa: BLE001 - reported, counted, and repaired by a restart
                        _raise_what_no_restart_repairs(error)
                        pause = self._crashes.count(spec.name, error)
                    except BaseExceptionGroup as group:
                        # The child's nursery crashed while it was cancelled: count the crash, then end.
                        crash, cancelled = group.split(Exception)
                        if crash is not None:
                            _raise_what_no_restart_repairs(crash)
                            pause = self._crashes.count(spec.name, crash)
                        if cancelled is not None:
                            raise cancelled from None
                    else:
                        if spec.restart is Restart.TRANSIENT:
                            break
                        pause = self._crashes.count(spec.name, RuntimeError("it ended, and should not have"))
                    await trio.sleep(pause)
        finally:
            del self._children[spec.name]
            child.done.set()


def _raise_what_no_restart_repairs(error: Exception) -> None:
    """Raise an error that ends the supervisor, taken out of a child's exception group if necessary."""
    for leaf in leaves(error):
        if isinstance(leaf, GaveUpError | ConfigError):
            raise leaf from leaf.__cause__
