"""What must hold once the faults have stopped: what is there is registered, as the view says, and nothing leaks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import attrs
import trio
import trio.testing

from plugind.actors.simulation.node import SimulatedNode
from plugind.actors.simulation.plugins import FakePlugin, PluggedIn
from plugind.protocol.discovery.sockets import EntryKind
from plugind.protocol.plugins.info import InstancePolicy, Plugin
from plugind.protocol.plugins.status import StateName
from plugind.tests.fuzz.endpoint_oracle import EndpointOracle
from plugind.tests.fuzz.follow_oracle import FollowOracle
from plugind.tests.fuzz.handler_oracle import HandlerOracle
from plugind.tests.fuzz.log_oracle import LogOracle
from plugind.tests.fuzz.plugs import Plugs
from plugind.tests.fuzz.script import PRIVILEGED, TRUSTED, TYPE
from plugind.tests.fuzz.sentinels import Sentinels
from plugind.tests.fuzz.trace import Trace

#: Virtual seconds until all is registered: a call that hangs or whose answer was lost (120), its deregistration (120),
#: the longest backoff (134) and a rescan.
CONVERGED: Final = 400.0
#: Seconds for which it must stay so.
STAYS: Final = 25.0
#: Seconds until all is deregistered after the last socket was removed; events arrive and handlers are well.
EMPTY: Final = 5.0


@attrs.frozen(eq=False)
class FinalChecks:
    """What must hold of one node at rest."""

    _node: SimulatedNode
    _trace: Trace
    _plugs: Plugs
    _sentinels: Sentinels
    _oracle: HandlerOracle
    _endpoints: EndpointOracle
    _log: LogOracle
    _policy: InstancePolicy
    _follows: FollowOracle | None

    async def check(self) -> None:
        """Wait until the node is at rest, check what must hold then, remove every plugin, and check again."""
        if not await _within(CONVERGED, lambda: not self.differences()):
            for difference in self.differences():
                self._trace.violated("converges", difference)
        self._trace.line("converged")
        await trio.sleep(STAYS)
        await trio.testing.wait_all_tasks_blocked()
        for difference in self.differences():
            self._trace.violated("stays", difference)
        await self._check_view()
        self._log.check_end(self._node.statuses)
        self._unplug_all()
        if not await _within(EMPTY, lambda: not self.leftovers()):
            for leftover in self.leftovers():
                self._trace.violated("leak", leftover)
        self._log.check_end(self._node.statuses)

    def differences(self) -> list[str]:
        """How what is registered and shown differs from what is there and valid."""
        valid, taken = self._valid(), self._oracle.registered()
        shown = self._registered_states()
        found = [
            f"{path} is registered with a handler, and is not there" for path in sorted(taken.keys() - valid.keys())
        ]
        found += [
            f"{path} is {self._node.state(path)}, and not registered with a handler"
            for path in sorted(shown.keys() - taken.keys())
        ]
        found += [
            f"{path} is registered with a handler, and {self._node.state(path)}"
            for path in sorted(taken.keys() - shown.keys())
        ]
        found += [
            f"{path} is shown with generation {generation}, registered with {taken[path].generation}"
            for path, generation in shown.items()
            if path in taken and taken[path].generation != generation
        ]
        found += [
            f"{path} has a pending deregistration" for path in sorted(self._oracle.registrations.keys() - taken.keys())
        ]
        there = self._node.directory.sockets(self._node.root)
        found += [f"{path} has an actor, and is not there" for path in self._node.actors() if path not in there]
        # Also what is not valid: it is found late where scans of the root failed and are repeated by backoff.
        found += [f"{path} is there, and not shown" for path in sorted(there.keys() - self._node.statuses.keys())]
        # A link that leads to no socket is no plugin, and not refused as one either (fault 7).
        found += [
            f"{path} is {status.state}, and a link to no socket"
            for path, status in self._node.statuses.items()
            if self._is_mere_link(path)
        ]
        # Every plugin is well: somebody listens on each socket.
        found += [f"{path} does not serve" for path, status in self._node.statuses.items() if status.serving is False]
        found += [f"{call.ask} of {call.plugin.socket} is under way" for call in self._oracle.under_way]
        found += () if self._follows is None else self._follows.differences(taken)
        if self._policy is InstancePolicy.REJECT:
            counts = Counter((plugin.name, plugin.privileged) for plugin in taken.values())
            found += [f"{count} plugins have the name {name}" for (name, _), count in counts.items() if count > 1]
        found += [
            f"{path} is {self._node.state(path)}"
            for path in sorted(valid.keys() - taken.keys())
            if not self._is_kept_out(path, taken)
        ]
        return found

    def _is_kept_out(self, path: str, taken: Mapping[str, Plugin]) -> bool:
        """Whether another user has the name of the plugin at ``path`` (fault 80), or an equal, if there may be one."""
        users = {path: plugin.uid for plugs in self._all_plugs() for path, plugin in plugs.items()}
        name = self._valid()[path]
        holders = {users[other] for other, plugin in taken.items() if plugin.name == name and other in users}
        if users[path] not in PRIVILEGED and holders - {users[path]}:
            return True
        equals = {plugin.privileged for plugin in taken.values() if plugin.name == name}
        return self._policy is InstancePolicy.REJECT and (users[path] in PRIVILEGED) in equals

    def _is_mere_link(self, path: str) -> bool:
        directory = self._node.directory
        is_link = directory.exists(path) and directory.inode(path).kind is EntryKind.SYMLINK
        return is_link and not directory.leads_to_socket(path)

    async def _check_view(self) -> None:
        """The status view, asked for, equals the truth: states, generations, names, and which plugins are active."""
        taken = self._oracle.registered()
        snapshot = await self._node.snapshot()
        streamed = {path: status.state for path, status in self._node.statuses.items()}
        asked = {status.socket: status.state for status in snapshot.plugins}
        if streamed != asked:
            self._trace.violated("view", f"the stream says {streamed}, the snapshot {asked}")
        there = self._node.directory.sockets(self._node.root)
        parked = {status.socket for status in snapshot.plugins if status.state is StateName.PARKED}
        if there.keys() - asked.keys() or asked.keys() - there.keys() - parked:
            self._trace.violated("view", f"there are {sorted(there)}, shown are {sorted(asked)}")
        for status in snapshot.plugins:
            plugin = taken.get(status.socket)
            usable = status.endpoint in self._plugs.drivers
            self._endpoints.shown(status.socket, status.warnings, usable=usable)
            if plugin is not None and (plugin.name, plugin.generation) != (status.name, status.generation):
                self._trace.violated("view", f"{status.socket} is shown as {status.name}, and is {plugin.name}")
        if self._follows is not None:
            self._follows.check_view(snapshot.plugins, taken)
        active = {status.socket for status in snapshot.plugins if status.active and status.type == TYPE}
        warnings = {status.socket: status.warnings for status in snapshot.plugins}
        expected = self._active() - self._endpoints.standing_by(warnings, taken)
        if active != expected:
            self._trace.violated("view", f"active are {sorted(expected)}, shown as such {sorted(active)}")
        for path, plugged in self._plugs.by_path.items():
            verdicts = [call.registered for call in plugged.calls if call.registered is not None]
            if path in taken and (not verdicts or not verdicts[-1]):
                self._trace.violated("view", f"{path} is registered, and was notified {verdicts}")

    def _active(self) -> set[str]:
        """Return the active paths by the rule of the policy; plugins are in the order of their registration."""
        names: defaultdict[str, list[str]] = defaultdict(list)
        taken = self._oracle.registered()
        for path, plugin in taken.items():
            names[plugin.name].append(path)
        match self._policy:
            case InstancePolicy.NEWEST | InstancePolicy.REJECT:
                # max() keeps the first of equals.
                return {
                    max(reversed(paths), key=lambda path: self._preference(taken[path])) for paths in names.values()
                }
            case InstancePolicy.HIGHEST_VERSION:
                # All versions here are 1.x.0.
                return {
                    max(reversed(paths), key=lambda path: (self._preference(taken[path]), taken[path].versions))
                    for paths in names.values()
                }
            case _:
                return set(taken)

    def _preference(self, plugin: Plugin) -> tuple[bool, int]:
        """Return what counts more than the version of a plugin and the order of registration."""
        usable = None if self._follows is None else self._follows.usable(plugin)
        return plugin.privileged, {True: 2, None: 1, False: 0}[usable]

    def leftovers(self) -> list[str]:
        """What is left though every plugin is gone."""
        found = [f"{path} is registered with a handler" for path in sorted(self._oracle.registrations)]
        found += [
            f"{path} is shown as {status.state}"
            for path, status in sorted(self._node.statuses.items())
            if not self._node.directory.exists(path)
        ]
        return [*found, *self._node.leftovers()]

    def _valid(self) -> dict[str, str]:
        """Return the names of the plugins that are there, valid and of a trusted user, by path."""
        found = {
            path: plugin.plugin
            for plugs in self._all_plugs()
            for path, plugin in plugs.items()
            if plugin.uid in (*PRIVILEGED, *TRUSTED)
        }
        return {
            path: fake.name
            for path, fake in found.items()
            if isinstance(fake, FakePlugin)
            and fake.type == TYPE
            and fake.name.isprintable()
            and 0 < len(fake.name) < 254
        }

    def _all_plugs(self) -> tuple[dict[str, PluggedIn], dict[str, PluggedIn]]:
        return self._plugs.by_path, self._sentinels.plugs

    def _registered_states(self) -> dict[str, int]:
        """Return the generations of those that are shown as registered, by path, without the built-in types."""
        return {
            path: status.generation
            for path, status in self._node.statuses.items()
            if status.state is StateName.REGISTERED and status.type == TYPE
        }

    def _unplug_all(self) -> None:
        """End every plugin; each removes its socket."""
        for plugs in self._all_plugs():
            for plugin in plugs.values():
                plugin.stop()
        with suppress(FileNotFoundError):
            self._node.directory.remove_tree(self._node.path("sub"))
        self._plugs.by_path.clear()
        self._sentinels.all_gone()


async def _within(seconds: float, holds: Callable[[], bool]) -> bool:
    deadline = trio.current_time() + seconds
    pause = 0.25
    while True:
        await trio.testing.wait_all_tasks_blocked()
        if holds():
            return True
        if trio.current_time() >= deadline:
            return False
        await trio.sleep(pause)
        pause = min(pause * 2, 16.0)
