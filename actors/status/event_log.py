"""The log lines of the status actor: each change once."""

from __future__ import annotations

import os

from ...protocol.discovery.device_directory import KUBELET_SOCKET
from ...protocol.logs.lines import Field, Level, Logger
from ...protocol.messages.consumers import EventNoted, PluginEvent
from ...protocol.messages.discovery import EntryIgnored
from ...protocol.messages.status import (
    ActorRestarted,
    Deregistered,
    EndpointChanged,
    FollowEnded,
    HealthReported,
    LoopBlocked,
    NameDefended,
    NamePassed,
    PluginDisplaced,
    RegisterRefused,
    RootStatus,
    ServingChanged,
    StateChanged,
)
from ...protocol.plugins.health import Health
from ...protocol.plugins.info import Plugin, PluginInfo
from ...protocol.plugins.status import Outcome, StateName, Watching
from ...protocol.status.view import DEPRECATED, ENDED, Row
from ...protocol.trust.directories import DirectoryCondition, DirectoryReport
from ...protocol.values import value
from ...protocol.words import words_of_steps
from .memory import Memory

#: How many ignored paths are logged, each once.
MAX_IGNORED = 1000
#: How many refused entries of a root are logged in the life of the daemon; one line counts the others (fault 7).
MAX_REFUSED = 100


@value
class EventLog:
    """Logs the messages of the status actor; ``memory`` has what was logged already."""

    _log: Logger
    _memory: Memory

    def note_deregistered(self, change: StateChanged, ended: Deregistered) -> None:
        """Log the end of a registration, which began with a line "plugin registered"."""
        outcome = _outcome(change)
        level = Level.INFO if outcome is None else Level.WARNING
        self._note(
            level, "plugin deregistered", ended.info, change.socket, ended.generation, ended.cause, outcome=outcome
        )

    def note_replaced(self, before: Row, after: Row) -> None:
        """Log the end of a socket that another entry has replaced, since no change of its own reports the end."""
        if before.refused or ENDED in before.logged:
            return  # It was no plugin's socket, or its end is logged already.
        last, cause = before.last, _why_replaced(before, after)
        self._note(Level.INFO, _MESSAGES[_GONE], before, last.socket, last.generation, cause)

    def note_change(self, before: Row | None, after: Row) -> None:
        """Log the current state of a socket, if that is news."""
        last = after.last
        level = _level(last) if last.state in _LEVELS else Level.DEBUG
        if level > Level.DEBUG and not self._is_news(before, after):
            level = Level.DEBUG
        if not self._log.enabled(level):
            return
        self._log.event(
            level,
            _MESSAGES[last.state],
            socket=last.socket,
            type=after.type,
            name=after.name,
            cause=last.cause or last.reason,
            attempt=last.attempt or None,
            next_try_in=None if last.next_try is None else round(max(0.0, last.next_try - last.time), 3),
            registered_in=last.registered_in,
            steps=None if last.registered_in is None else words_of_steps(after.steps) or None,
            generation=last.generation,
            outcome=None if last.deregistered is not None else _outcome(last),
            warning=DEPRECATED if last.deprecated and last.state is StateName.REGISTERED else None,
        )

    def _is_news(self, before: Row | None, after: Row) -> bool:
        """Whether ``after`` is worth a line; a failure like an earlier one is not (issue 94827)."""
        last = after.last
        if last.state is _GONE:
            unseen = before is not None and (ENDED in before.logged or (before.refused and not before.logged))
            return not (last.still_there or unseen)
        said = last.state, last.cause or last.reason
        # A restarted watcher reports a refused entry again, as a new generation.
        if before is not None and before.refused and after.refused and said in before.logged:
            self._memory.view.set_logged(after, said)
            return False
        if said in after.logged:
            return False
        if after.refused and not self._may_log_refused(last.root):
            return False
        self._memory.view.set_logged(after, said)
        return True

    def note_defended(self, message: NameDefended) -> None:
        """Log that a plugin claimed the name of another user's plugin. It is an error, since it can be an attack."""
        self._log.event(
            Level.ERROR,
            "another user claims a name",
            socket=message.socket,
            type=message.info.type,
            name=message.info.name,
            uid=message.info.uid,
            cause=message.reason,
            generation=message.generation,
        )

    def note_passed(self, message: NamePassed) -> None:
        """Log that a name passed to another user's plugin."""
        self._log.event(
            Level.WARNING,
            "a name passed to another user",
            socket=message.socket,
            type=message.info.type,
            name=message.info.name,
            uid=message.info.uid,
            uid_before=message.before.uid,
            socket_before=message.before.socket,
            generation=message.generation,
        )

    def note_refused_call(self, message: RegisterRefused) -> None:
        """Log a refused call of Register."""
        self._log.event(
            Level.WARNING,
            "a call of Register was refused",
            # Not as the root: a flood of calls would use up the lines of the root.
            path=os.path.join(message.root, KUBELET_SOCKET),
            name=message.resource,
            endpoint=message.endpoint,
            uid=message.uid,
            pid=message.pid,
            reason=message.reason,
        )

    def note_displaced(self, message: PluginDisplaced, after: Row) -> None:
        """Log that a plugin lost its endpoint to another plugin, or got it back (fault 79)."""
        text = "endpoint is the plugin's own again" if message.reason is None else "endpoint passed to another plugin"
        level = Level.INFO if message.reason is None else Level.WARNING
        self._note(level, text, after, message.socket, message.generation, message.reason)

    def note_serving(self, change: ServingChanged, after: Row) -> None:
        """Log whether somebody listens on the socket of a registered plugin; a warning if nobody does (fault 39)."""
        text = "plugin serves again" if change.serving else "plugin does not serve"
        level = Level.INFO if change.serving else Level.WARNING
        self._note(level, text, after, change.socket, change.generation, change.reason, pid=after.pid)

    def note_endpoint(self, change: EndpointChanged, after: Row) -> None:
        """Log whether an endpoint that did not exist can be used."""
        self._log.event(
            Level.INFO if change.problem is None else Level.WARNING,
            "endpoint can be used" if change.problem is None else "endpoint cannot be used",
            socket=change.socket,
            type=after.type,
            name=after.name,
            endpoint=None if after.info is None else after.info.endpoint,
            cause=change.problem,
            generation=change.generation,
        )

    def note_health(self, change: HealthReported, before: HealthReported | None, after: Row) -> None:
        """Log each change of the health that a handler reports."""
        earlier = None if before is None else before.health
        logged = () if before is None else before.warnings
        for warning in change.warnings:
            if warning not in logged:
                self._note(Level.WARNING, "warning about a plugin", after, change.socket, change.generation, warning)
        if earlier is not change.health and (earlier, change.health) != (None, Health.UNKNOWN):
            level = Level.WARNING if change.health in _BAD_HEALTH else Level.INFO
            text, cause = f"plugin is {change.health}", change.reason or None
            self._note(level, text, after, change.socket, change.generation, cause)

    def _note(
        self,
        level: Level,
        text: str,
        plugin: Row | PluginInfo | Plugin,
        socket: str,
        generation: int | None,
        cause: str | None,
        **more: Field,
    ) -> None:
        """Log a line about a plugin."""
        self._log.event(
            level,
            text,
            socket=socket,
            type=plugin.type,
            name=plugin.name,
            cause=cause,
            generation=generation,
            **more,
        )

    def note_event(self, message: EventNoted) -> None:
        """Log an event of a plugin that is no change of its state."""
        level, said = _EVENTS[message.event]
        plugin = message.plugin
        self._note(level, said, plugin, plugin.socket, plugin.generation, message.text)

    def note_follow_ended(self, message: FollowEnded) -> None:
        """Log that a handler's follow is started again."""
        plugin = message.plugin
        cause, pause = message.error or "it returned", round(message.pause, 3)
        self._note(
            Level.WARNING,
            "follow is started again",
            plugin,
            plugin.socket,
            plugin.generation,
            cause,
            count=message.count,
            pause=pause,
        )

    def note_ignored(self, message: EntryIgnored) -> None:
        """Log once for each path that its entry only looks like a socket, even if a watcher is restarted."""
        ignored = self._memory.ignored
        if message.path not in ignored and len(ignored) < MAX_IGNORED:
            ignored.add(message.path)
            text = "a directory has the name of a socket" if message.directory else "not a socket"
            self._log.event(Level.WARNING, text, path=message.path, root=message.root)

    def _may_log_refused(self, root: str) -> bool:
        """Count a refused entry; return whether its root has had few enough of them to log it."""
        count = self._memory.refused[root] = self._memory.refused.get(root, 0) + 1
        return count <= MAX_REFUSED

    def note_refused(self, root: str) -> None:
        """Log once, at the end of a scan, how many refused entries were not logged."""
        more = self._memory.refused.get(root, 0) - MAX_REFUSED
        if more > 0 and root not in self._memory.over_refused:
            self._memory.over_refused.add(root)
            self._log.event(Level.WARNING, "more entries are refused than are logged", root=root, more=more)

    def note_directories(self, before: RootStatus | None, report: RootStatus) -> None:
        """Log new problems of directories, and the end of earlier ones."""
        earlier = {} if before is None else _to_log(before)
        now = _to_log(report)
        for (path, condition), directory in now.items():
            if (path, condition) not in earlier:
                self._log.event(
                    Level.WARNING, f"directory is {condition}", root=report.root, path=path, reason=directory.reason
                )
        for path, condition in sorted(earlier.keys() - now.keys()):
            self._log.event(Level.INFO, f"directory is no longer {condition}", root=report.root, path=path)

    def note_root(self, before: RootStatus | None, report: RootStatus) -> None:
        """Log that a root was made, and each change of how it is watched."""
        if report.made:
            self._log.event(Level.INFO, "root was missing and was made", root=report.root)
        if before is not None and (before.watching, before.reason, before.ready) == (
            report.watching,
            report.reason,
            report.ready,
        ):
            return
        self._log.event(
            Level.INFO if report.watching in _AS_IT_SHOULD_BE else Level.WARNING,
            _ROOT_MESSAGES[report.watching],
            root=report.root,
            watching=report.watching,
            ready=report.ready,
            reason=report.reason,
        )

    def note_restart(self, message: ActorRestarted, error: str) -> None:
        """Log the crash of an actor; ``error`` is its last line."""
        self._log.event(
            Level.WARNING,
            "actor crashed and was restarted",
            actor=message.name,
            error=error,
            # The end names the place of the error. The log limits the length of a value.
            traceback=message.error[-1000:] if "\n" in message.error else None,
        )

    def note_blocked(self, message: LoopBlocked) -> None:
        """Log what blocked the loop (fault 83)."""
        step = message.step
        self._log.event(
            Level.ERROR,
            "the loop was blocked",
            seconds=message.seconds,
            cpu_seconds=message.cpu_seconds,
            handler=None if step is None else step.type,
            call=None if step is None else step.call,
            name=None if step is None else step.plugin.name,
            socket=None if step is None else step.plugin.socket,
            stack=message.stack,
            advice=None if step is None else "write the method with def, which is called in a thread",
        )


def _to_log(report: RootStatus) -> dict[tuple[str, DirectoryCondition], DirectoryReport]:
    """Return the directories with problems, except an insecure root, which has its own line."""
    reports = report.directories
    own = report.root, DirectoryCondition.INSECURE
    return {(other.path, other.condition): other for other in reports if (other.path, other.condition) != own}


_AS_IT_SHOULD_BE = (Watching.EVENTS, Watching.SERVING, Watching.ABSENT)
_ROOT_MESSAGES = {
    Watching.EVENTS: "root is watched",
    Watching.SERVING: "device plugins may call",
    Watching.TAKEN: "device plugins are let go",
    Watching.POLLING: "root is polled",
    Watching.INSECURE: "root is insecure",
    Watching.ABSENT: "root is absent",
    Watching.UNAVAILABLE: "root is unavailable",
}
_LEVELS = {
    StateName.REGISTERED: Level.INFO,
    StateName.OBSERVED: Level.INFO,
    StateName.WAITING: Level.WARNING,
    StateName.PARKED: Level.WARNING,
    StateName.STALE: Level.WARNING,
    StateName.GONE: Level.INFO,
}
_EVENTS = {
    PluginEvent.FACTS: (Level.INFO, "facts of a plugin have changed"),
    PluginEvent.DRIVER_GONE: (Level.WARNING, "DRA driver is gone"),
}
_BAD_HEALTH = (Health.UNHEALTHY, Health.DISCONNECTED)
_GONE = StateName.GONE
_MESSAGES = {state: f"plugin {state}" for state in StateName}


def _level(change: StateChanged) -> Level:
    """Return INFO for success, WARNING for failure or a deprecated root, and DEBUG for intermediate states."""
    if change.state is _GONE and change.deregistered is None and _failed(change):
        # Its last operation was a failed deregistration (fault 84).
        return Level.WARNING
    if change.state is StateName.REGISTERED and change.deprecated:
        return Level.WARNING
    return _LEVELS.get(change.state, Level.DEBUG)


def _failed(change: StateChanged) -> bool:
    return bool(change.finished) and change.finished[-1].outcome not in (Outcome.OK, Outcome.SUPERSEDED)


def _outcome(change: StateChanged) -> str | None:
    if not change.finished or change.finished[-1].outcome is Outcome.OK:
        return None
    return f"{change.finished[-1].operation} {change.finished[-1].outcome}"


def _why_replaced(before: Row, after: Row) -> str:
    """Return why ``after`` has replaced ``before``. A plugin that called Register is replaced by a call."""
    if after.refused:
        return "another entry is in its place"
    if before.info is not None and before.info.called:
        return "a newer call of Register has named its path"
    return "a newer socket is in its place"
