"""The stage of a script: the node, who is plugged in, what the oracles saw, and what must be known to judge it.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Final

import attrs

from ....protocol.backoff import Backoff, RestartIntensity
from ....protocol.plugins import InstancePolicy
from ....protocol.status import StateName
from ..node import DEFAULT_CONFIG
from ..plugins import Call, FakePlugin, PluggedIn
from .backoff_oracle import BackoffOracle
from .handler_oracle import HandlerOracle
from .script import Fault
from .sentinels import Sentinels
from .trace import Trace
from .watched_node import WatchedHandler, WatchedNode

TYPE: Final = "Colour"
NAMES: Final = ("red", "green", "blue")
SOCKETS: Final = ("a.sock", "b.sock", "c.sock", "d.sock", "sub/e.sock", "sub/f.sock", "sub/deep/g.sock")
DIRECTORIES: Final = ("sub", "sub/deep")


class RecordedCalls(list[Call]):
    """The calls that a plugin received; the oracle sees each as it comes."""

    def __init__(self, plugged: PluggedIn, seen: HandlerOracle, trace: Trace, faulty: set[str]) -> None:
        super().__init__(plugged.calls)
        self._path = plugged.path
        self._plugged = plugged
        self._seen = seen
        self._trace = trace
        self._faulty = faulty

    def append(self, call: Call) -> None:
        """Take note of one more call."""
        super().append(call)
        if call.registered is None:
            self._trace.line("asked", self._path, call.method)
        else:
            well = self._path not in self._faulty
            self._seen.notified(self._path, self._plugged, registered=call.registered, well=well)


@attrs.define(eq=False)
class Stage:
    """One node and what a script does to it; ``trace`` has what came of it."""

    seed: int
    faults: Collection[Fault]
    trace: Trace
    policy: InstancePolicy = attrs.field(init=False)
    backoff: BackoffOracle = attrs.field(init=False)
    handlers: HandlerOracle = attrs.field(init=False)
    node: WatchedNode = attrs.field(init=False)
    sentinels: Sentinels = attrs.field(init=False)
    handler: WatchedHandler | None = attrs.field(init=False, default=None)
    #: The plugins by path, and the paths whose plugin ever misbehaved or had a fault of its connections.
    plugs: dict[str, PluggedIn] = attrs.field(init=False, factory=dict)
    faulty: set[str] = attrs.field(init=False, factory=set)
    _handlers_made: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        backoff = Backoff(jitter=0.1)
        # Crashes are asked for, and a script may ask for many.
        intensity = RestartIntensity(restarts=100_000) if Fault.CRASHES in self.faults else RestartIntensity(0)
        config = attrs.evolve(DEFAULT_CONFIG, seed=self.seed, backoff=backoff, intensity=intensity)
        self.policy = list(InstancePolicy)[self.seed % len(InstancePolicy)]
        self.backoff = BackoffOracle(self.trace, backoff)
        sees_all = not {Fault.EVENTS, Fault.SCANS, Fault.CRASHES} & set(self.faults)
        self.handlers = HandlerOracle(self.trace, self.policy, sees_all=sees_all)
        handler = self.new_handler()
        self.node = WatchedNode(config, self.trace, self.handlers, self.backoff, handler=(TYPE, handler))
        self.sentinels = Sentinels(self.node, self.trace, self.handlers.owing)

    def new_handler(self) -> WatchedHandler:
        """Another handler, which is the present one from now on."""
        self._handlers_made += 1
        self.handler = WatchedHandler(self._handlers_made, self.policy, self.handlers, self.backoff)
        return self.handler

    def adopt(self, path: str, plugged: PluggedIn) -> None:
        """A plugin is at ``path``."""
        plugged.path = path
        # Connections that are open tell of the path by which they were made.
        plugged.calls = RecordedCalls(plugged, self.handlers, self.trace, self.faulty)
        self.plugs[path] = plugged

    def disturbed(self) -> bool:
        """Whether something is wrong with the whole node, so that nobody can be sure to be registered soon."""
        directory = self.node.directory
        return bool(
            directory.dropping_events
            or directory.delaying_events
            or directory.scan_errors
            or directory.look_errors
            or directory.withhold_self_events
            or directory.inotify.watches_left is not None
            or self.node.network.exhausted
            or self.handler is None
        )

    def valid(self) -> dict[str, str]:
        """The names of those that are there and well, by path, once all is calm."""
        found = {path: plugin.plugin for path, plugin in (*self.plugs.items(), *self.sentinels.plugs.items())}
        return {
            path: fake.name
            for path, fake in found.items()
            if isinstance(fake, FakePlugin)
            and fake.type == TYPE
            and fake.name.isprintable()
            and 0 < len(fake.name) < 254
        }

    def unplug_all(self) -> None:
        """Every plugin ends, and removes its socket."""
        for plugin in (*self.plugs.values(), *self.sentinels.plugs.values()):
            plugin.stop()
        with suppress(FileNotFoundError):
            self.node.directory.remove_tree(self.node.path("sub"))
        self.plugs.clear()
        self.sentinels.all_gone()

    def registered_states(self) -> dict[str, int]:
        """The generations of those that are shown as registered, by path, the built-in types left out."""
        shown = self.node.shown(StateName.REGISTERED)
        return {path: status.generation for path, status in shown.items() if status.type == TYPE}
