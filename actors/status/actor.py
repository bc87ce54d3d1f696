"""The status actor: it receives every change of state, and owns the view that users and programs see.

Its loop waits only for its inbox. Changes are sent to subscribers with ``send_nowait``, and a subscriber that lags is
dropped. Connections to the status socket are tasks of their own in the nursery of this actor; they read the view.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import assert_never

import attrs
import trio

from ...protocol.device_directory import KUBELET_SOCKET
from ...protocol.device_messages import DevicesMessage
from ...protocol.directories import Condition, DirectoryReport
from ...protocol.endpoint_owners import PluginDisplaced
from ...protocol.health import ActorHealth
from ...protocol.logs import SILENT, Level, Logger
from ...protocol.messages import (
    ActorRestarted,
    Address,
    Deregistered,
    EndpointChanged,
    EntryIgnored,
    FollowEnded,
    HandlersChanged,
    HealthReported,
    Lagged,
    LoopBlocked,
    NameDefended,
    OwnerChanged,
    PluginChanged,
    ReconcilerMessage,
    RegisterCalled,
    RegisterRefused,
    RoleChanged,
    RootReported,
    ScansAwaited,
    ServingChanged,
    Snapshot,
    SnapshotAsked,
    StateChanged,
    StatusMessage,
    Subscribed,
    Unsubscribed,
    ViewMessage,
)
from ...protocol.plugin_health import Health
from ...protocol.status import Outcome, StateName, Watching
from ...protocol.successions import NamePassed
from ...protocol.view import DEPRECATED, ENDED, Row
from ..io import http_server as http
from ..io.descriptors import DescriptorReserve
from ..mailbox import Readable, offer
from .api import Api, LastCrash, Memory, StatusConfig, place
from .devices_api import DevicesApi
from .listener import StatusSocket

__all__ = ["Memory", "StatusConfig", "run"]

#: How many paths that are ignored are logged, each once.
MAX_IGNORED = 1000
#: How many refused entries of a root are logged, in the life of the daemon; one line counts what is more (fault 7).
MAX_REFUSED = 100
#: How many messages are taken before other actors have their turn: less than a millisecond of work.
BATCH = 128


async def run(
    config: StatusConfig,
    *,
    inbox: Readable[StatusMessage],
    reconciler: Address[ReconcilerMessage],
    log: Logger = SILENT,
    memory: Memory | None = None,
    health: Callable[[], tuple[ActorHealth, ...]] = tuple,
    reserve: DescriptorReserve | None = None,
    devices: Address[DevicesMessage] | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Keep the view and serve the status socket until ``inbox`` ends; started once the socket listens.

    While the process has no descriptors left, the status socket takes those of ``reserve`` (fault 46).
    ``health`` returns the health of the node's actors. It does not depend on the loop of this actor, which may itself
    hang. ``devices`` is the address of the devices actor, if there is one.

    Once the socket has been made, a restarted actor that cannot make it goes on without it and tries again.

    Raises:
      ConfigError: if the status socket cannot be made at the start.
    """
    actor = _Status(config, log, memory or Memory())
    if config.socket is None:
        task_status.started()
        await actor.run(inbox)
        return
    status_socket = StatusSocket(config.socket, log, again=actor.memory.has_served, failed=actor.memory.note_unmade)
    actor.memory.has_served = True
    try:
        async with trio.open_nursery() as nursery:
            api = Api(config, actor.memory, reconciler, health, DevicesApi(config.wall, devices))
            allowed = frozenset({0, os.geteuid()})
            serve = partial(http.serve, allowed=allowed, place=place, reserve=reserve)
            nursery.start_soon(status_socket.serve, nursery, partial(serve, handler=api, limits=config.http))
            task_status.started()
            await actor.run(inbox)
            # Requests under way are answered within the grace; streams end now.
            nursery.cancel_scope.deadline = trio.current_time() + config.grace
            api.end_watches()
            status_socket.close()
    finally:
        status_socket.close()


@attrs.define
class _Status:
    _config: StatusConfig
    _log: Logger
    memory: Memory

    async def run(self, inbox: Readable[StatusMessage]) -> None:
        while True:
            try:
                message = await inbox.receive()
            except trio.EndOfChannel:
                return
            for _ in range(BATCH):
                if isinstance(message, StateChanged):
                    self._change(message)
                else:
                    await self._take(message)
                try:
                    message = inbox.receive_nowait()
                except (trio.WouldBlock, trio.EndOfChannel):
                    break
            else:
                await self._take(message)
            if self.memory.lagging:
                self._notify_lagging()
            await trio.lowlevel.checkpoint()

    def _change(self, change: StateChanged) -> None:
        """Apply a change of state, the most frequent message: some seven for each registration."""
        before, after = self.memory.view.apply(change)
        self.memory.metrics.count(change, after or before)
        if change.deregistered is not None:
            self._note_deregistered(change, change.deregistered)
        if after is not None:
            if before is not None and before.last.generation != after.last.generation:
                self._note_replaced(before, after)
            self._note_change(before, after)
            if self.memory.subscribers:
                self._publish(after, change.time)

    async def _take(self, message: StatusMessage) -> None:
        view, metrics = self.memory.view, self.memory.metrics
        match message:
            case StateChanged():
                self._change(message)
            case RoleChanged():
                row = view.set_active(message.socket, message.generation, active=message.active)
                if row is not None and self.memory.subscribers:
                    self._publish(row, trio.current_time())
            case NameDefended():
                self._note_defended(message)
            case NamePassed():
                self._note_passed(message)
            case PluginDisplaced():
                self._note_displaced(message)
            case OwnerChanged():
                row = view.set_owner(message)
                if row is not None and self.memory.subscribers:
                    self._publish(row, trio.current_time())
            case ServingChanged():
                self._note_serving(message)
            case EndpointChanged():
                self._note_endpoint(message)
            case HealthReported():
                self._note_health(message)
            case FollowEnded():
                self._note_follow_ended(message)
            case EntryIgnored():
                self._note_ignored(message)
            case RootReported():
                self._note_root(view.roots.get(message.root), message)
                self._note_directories(view.roots.get(message.root), message)
                self._note_refused(message.root)
                view.roots[message.root] = message
                metrics.count_root(message)
                self._answer_waiting()
            case RegisterCalled():
                metrics.register_calls.count(message.resource)
            case RegisterRefused():
                self._note_refused_call(message)
            case HandlersChanged():
                view.handlers = message.types
                metrics.learn_types(message.types)
                self._log.event(Level.INFO, "handlers changed", types=", ".join(message.types))
            case ActorRestarted():
                self._note_restart(message)
            case LoopBlocked():
                self._note_blocked(message)
            case SnapshotAsked():
                offer(message.reply, await self._snapshot(history=True))
            case ScansAwaited():
                self.memory.awaiting_scans.append(message.reply)
                self._answer_waiting()
            case Subscribed():
                snapshot = await self._snapshot(history=False)
                took = offer(message.subscriber, snapshot)
                (self.memory.subscribers if took else self.memory.lagging).append(message.subscriber)
            case Unsubscribed():
                for audience in (self.memory.subscribers, self.memory.lagging):
                    if message.subscriber in audience:
                        audience.remove(message.subscriber)
            case _:
                assert_never(message)

    def _answer_waiting(self) -> None:
        """Answer the callers that wait until a scan of each root was tried."""
        if self.memory.awaiting_scans and self.memory.view.roots.keys() >= set(self._config.roots):
            for address in self.memory.awaiting_scans:
                offer(address, message=True)
            self.memory.awaiting_scans.clear()

    async def _snapshot(self, *, history: bool) -> Snapshot:
        """Return the whole view at one moment: the actor reads no message meanwhile, but others have their turn."""
        plugins = []
        for number, row in enumerate(self.memory.view.rows.values()):
            plugins.append(row.status_with_history if history else row.status)
            if number % BATCH == BATCH - 1:
                await trio.lowlevel.checkpoint()
        view = self.memory.view
        return Snapshot(trio.current_time(), tuple(plugins), tuple(view.roots.values()), view.handlers)

    def _publish(self, row: Row, time: float) -> None:
        change = PluginChanged(time, row.status)
        subscribers = self.memory.subscribers
        kept = [subscriber for subscriber in subscribers if self._offer(subscriber, change)]
        if len(kept) != len(subscribers):
            self.memory.subscribers[:] = kept

    def _offer(self, subscriber: Address[ViewMessage], change: PluginChanged) -> bool:
        try:
            subscriber.send_nowait(change)
        except trio.WouldBlock:
            self.memory.lagging.append(subscriber)
            self._log.event(Level.WARNING, "a subscriber lags and is dropped")
            return False
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True

    def _notify_lagging(self) -> None:
        """Send the subscribers that were dropped their last message, as soon as there is room for it."""
        self.memory.lagging[:] = [address for address in self.memory.lagging if not offer(address, Lagged())]

    # --- what is logged: each change once -----------------------------------------------------------------------------

    def _note_deregistered(self, change: StateChanged, ended: Deregistered) -> None:
        """Log the end of a registration, which began with a line "plugin registered"."""
        outcome = _outcome(change)
        self._log.event(
            Level.INFO if outcome is None else Level.WARNING,
            "plugin deregistered",
            socket=change.socket,
            type=ended.info.type,
            name=ended.info.name,
            cause=ended.cause,
            generation=ended.generation,
            outcome=outcome,
        )

    def _note_replaced(self, before: Row, after: Row) -> None:
        """Log the end of a socket that another entry has replaced: no change of its own tells of it."""
        if before.refused or ENDED in before.logged:
            return  # It was no socket of a plugin, or its end is logged already.
        last = before.last
        self._log.event(
            Level.INFO,
            _MESSAGES[_GONE],
            socket=last.socket,
            type=before.type,
            name=before.name,
            cause="another entry is in its place" if after.refused else "a newer socket is in its place",
            generation=last.generation,
        )

    def _note_change(self, before: Row | None, after: Row) -> None:
        last = after.last
        level = _level(last)
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
            generation=last.generation,
            outcome=None if last.deregistered is not None else _outcome(last),
            warning=DEPRECATED if last.deprecated and last.state is StateName.REGISTERED else None,
        )

    def _is_news(self, before: Row | None, after: Row) -> bool:
        """Whether ``after`` is worth a line, which a try that fails as an earlier one did is not (issue 94827)."""
        last = after.last
        if last.state is _GONE:
            unseen = before is not None and (ENDED in before.logged or (before.refused and not before.logged))
            return not (last.still_there or unseen)
        said = last.state, last.cause or last.reason
        # A watcher that was restarted reports a refused entry again, as a new generation.
        if before is not None and before.refused and after.refused and said in before.logged:
            self.memory.view.set_logged(after, said)
            return False
        if said in after.logged:
            return False
        if after.refused and not self._may_log_refused(last.root):
            return False
        self.memory.view.set_logged(after, said)
        return True

    def _note_defended(self, message: NameDefended) -> None:
        """Log that a plugin claimed the name of another user's: an error, since somebody may try to take its place."""
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

    def _note_passed(self, message: NamePassed) -> None:
        """Log that a name passed to another user's plugin, and add it to the history of that."""
        self.memory.view.add_remark(message.socket, message.generation, trio.current_time(), message.reason)
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

    def _note_refused_call(self, message: RegisterRefused) -> None:
        self._log.event(
            Level.WARNING,
            "a call of Register was refused",
            # Not the root, whose other lines a flood of calls would use up.
            path=os.path.join(message.root, KUBELET_SOCKET),
            name=message.resource,
            endpoint=message.endpoint,
            uid=message.uid,
            pid=message.pid,
            reason=message.reason,
        )

    def _note_displaced(self, message: PluginDisplaced) -> None:
        """Show that the endpoint of a plugin is another one's now, or its own again (fault 79)."""
        after = self.memory.view.set_displaced(message)
        if after is None:
            return
        if self.memory.subscribers:
            self._publish(after, trio.current_time())
        self._log.event(
            Level.INFO if message.reason is None else Level.WARNING,
            "endpoint is the plugin's own again" if message.reason is None else "endpoint passed to another plugin",
            socket=message.socket,
            type=after.type,
            name=after.name,
            cause=message.reason,
            generation=message.generation,
        )

    def _note_serving(self, change: ServingChanged) -> None:
        """Show whether somebody listens on the socket of a registered plugin; a warning if nobody does (fault 39)."""
        after = self.memory.view.set_serving(change)
        if after is None:
            return
        if self.memory.subscribers:
            self._publish(after, change.time)
        self._log.event(
            Level.INFO if change.serving else Level.WARNING,
            "plugin serves again" if change.serving else "plugin does not serve",
            socket=change.socket,
            type=after.type,
            name=after.name,
            cause=change.reason,
            generation=change.generation,
            pid=after.pid,
        )

    def _note_endpoint(self, change: EndpointChanged) -> None:
        """Show whether an endpoint that did not exist can be used."""
        after = self.memory.view.set_endpoint(change)
        if after is None:
            return
        if self.memory.subscribers:
            self._publish(after, change.time)
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

    def _note_health(self, change: HealthReported) -> None:
        """Show how a plugin is, as its handler reports; log each change of its health."""
        noted = self.memory.view.set_health(change)
        if noted is None:
            return
        before, after = noted
        if self.memory.subscribers:
            self._publish(after, change.time)
        earlier = None if before is None else before.health
        if change.warning is not None and (before is None or before.warning is None):
            self._log_of_health(Level.WARNING, "facts were cut off", change, after, change.warning)
        if earlier is not change.health and (earlier, change.health) != (None, Health.UNKNOWN):
            level = Level.WARNING if change.health in _BAD_HEALTH else Level.INFO
            self._log_of_health(level, f"plugin is {change.health}", change, after, change.reason or None)

    def _log_of_health(self, level: Level, said: str, change: HealthReported, row: Row, cause: str | None) -> None:
        self._log.event(
            level, said, socket=change.socket, type=row.type, name=row.name, cause=cause, generation=change.generation
        )

    def _note_follow_ended(self, message: FollowEnded) -> None:
        """Count and log that a handler's follow is started again."""
        plugin = message.plugin
        self.memory.metrics.count_link_restart(plugin.type)
        self._log.event(
            Level.WARNING,
            "follow is started again",
            type=plugin.type,
            name=plugin.name,
            socket=plugin.socket,
            cause=message.error or "it returned",
            count=message.count,
            pause=round(message.pause, 3),
        )

    def _note_ignored(self, message: EntryIgnored) -> None:
        """Log once for each path that its entry only looks like a socket, even if a watcher is restarted."""
        ignored = self.memory.ignored
        if message.path not in ignored and len(ignored) < MAX_IGNORED:
            ignored.add(message.path)
            text = "a directory has the name of a socket" if message.directory else "not a socket"
            self._log.event(Level.WARNING, text, path=message.path, root=message.root)

    def _may_log_refused(self, root: str) -> bool:
        """Count a refused entry, and return whether its root has had few enough of them."""
        count = self.memory.refused[root] = self.memory.refused.get(root, 0) + 1
        return count <= MAX_REFUSED

    def _note_refused(self, root: str) -> None:
        """Log once, at the end of a scan, how many refused entries were not logged."""
        more = self.memory.refused.get(root, 0) - MAX_REFUSED
        if more > 0 and root not in self.memory.over_refused:
            self.memory.over_refused.add(root)
            self._log.event(Level.WARNING, "more entries are refused than are logged", root=root, more=more)

    def _note_directories(self, before: RootReported | None, report: RootReported) -> None:
        """Log what is wrong with directories, and what is not any more."""
        earlier = {} if before is None else _to_log(before)
        now = _to_log(report)
        for (path, condition), directory in now.items():
            if (path, condition) not in earlier:
                self._log.event(
                    Level.WARNING, f"directory is {condition}", root=report.root, path=path, reason=directory.reason
                )
        for path, condition in sorted(earlier.keys() - now.keys()):
            self._log.event(Level.INFO, f"directory is no longer {condition}", root=report.root, path=path)

    def _note_root(self, before: RootReported | None, report: RootReported) -> None:
        if report.made:
            self._log.event(Level.INFO, "root was missing and was made", root=report.root)
        if before is not None and (before.watching, before.reason, before.ready) == (
            report.watching,
            report.reason,
            report.ready,
        ):
            return
        self._log.event(
            Level.INFO if report.watching in (Watching.EVENTS, Watching.SERVING) else Level.WARNING,
            _ROOT_MESSAGES[report.watching],
            root=report.root,
            watching=report.watching,
            ready=report.ready,
            reason=report.reason,
        )

    def _note_restart(self, message: ActorRestarted) -> None:
        # The error may be a whole traceback, whose last line names it.
        error = (message.error.rstrip().splitlines() or ["unknown"])[-1]
        kind = self.memory.metrics.count_restart(message.name)
        count = self.memory.metrics.restarts[kind]
        self.memory.restarts[kind] = LastCrash(trio.current_time(), error, count)
        self._log.event(
            Level.WARNING,
            "actor crashed and was restarted",
            actor=message.name,
            error=error,
            # The end of it says where; the log limits the length of a value.
            traceback=message.error[-1000:] if "\n" in message.error else None,
        )

    def _note_blocked(self, message: LoopBlocked) -> None:
        self.memory.blocked = message
        self.memory.metrics.blocks += 1
        self.memory.metrics.blocked_seconds += message.seconds
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


def _to_log(report: RootReported) -> dict[tuple[str, Condition], DirectoryReport]:
    """Return the directories with which something is wrong, but for an insecure root: that has a line of its own."""
    reports = report.directories
    own = report.root, Condition.INSECURE
    return {(it.path, it.condition): it for it in reports if (it.path, it.condition) != own}


_ROOT_MESSAGES = {
    Watching.EVENTS: "root is watched",
    Watching.SERVING: "device plugins may call",
    Watching.TAKEN: "device plugins are let go",
    Watching.POLLING: "root is polled",
    Watching.INSECURE: "root is insecure",
    Watching.UNAVAILABLE: "root is unavailable",
}
_LEVELS = {
    StateName.REGISTERED: Level.INFO,
    StateName.WAITING: Level.WARNING,
    StateName.PARKED: Level.WARNING,
    StateName.STALE: Level.WARNING,
    StateName.GONE: Level.INFO,
}
_BAD_HEALTH = (Health.UNHEALTHY, Health.DISCONNECTED)
_GONE = StateName.GONE
_MESSAGES = {state: f"plugin {state}" for state in StateName}


def _level(change: StateChanged) -> Level:
    """Return INFO for success, WARNING for failure or a deprecated root, and DEBUG for intermediate states."""
    if change.state is _GONE and change.deregistered is None and _failed(change):
        # Its last operation was to deregister it, and that failed (fault 84).
        return Level.WARNING
    if change.state is StateName.REGISTERED and change.deprecated:
        return Level.WARNING
    return _LEVELS.get(change.state, Level.DEBUG)


def _failed(change: StateChanged) -> bool:
    return change.finished is not None and change.finished.outcome not in (Outcome.OK, Outcome.SUPERSEDED)


def _outcome(change: StateChanged) -> str | None:
    finished = change.finished
    return None if finished is None or finished.outcome is Outcome.OK else f"{finished.operation} {finished.outcome}"
