"""Calls of Register in a script: device plugins that call, what happens to ``kubelet.sock``, and what must hold.

The plugins, their handler and the oracle are apart from those of all other plugins of a script. Every call is answered
exactly once, or its connection ends; no call is answered yes once another process has the socket; whatever was answered
yes stays registered as long as its socket is there, through crashes of actors; and nothing is registered once the
server has yielded.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection
from typing import Final

import attrs
import trio

from ....protocol.device_calls import RegisterCall
from ....protocol.errors import PluginError
from ....protocol.identity import Identity
from ....protocol.messages import PluginChanged
from ....protocol.plugins import DEVICE
from ..device_directory import MemoryDeviceDirectory, RegisterAttempt
from ..handlers import Behaviour, Fails, FakeHandler, Hangs, Takes
from ..node import SimulatedNode
from ..plugins import FakePlugin, PluggedIn
from .script import Fault
from .trace import Trace

#: Where device plugins call, in the scripts that have such a directory.
DIRECTORY: Final = "/dp"
ENDPOINTS: Final = ("gpu.sock", "nic", "fpga.sock")
RESOURCES: Final = ("vendor.com/gpu", "vendor.com/nic")
#: Seconds until the server has noticed that its socket was replaced: a look, and the messages that follow.
NOTICED: Final = 2.0
#: Seconds until every handler's call has ended, every backoff is over, and every server has its socket again.
SETTLED: Final = 400.0
#: Codes of calls that are refused before they change anything at their path.
_HARMLESS: Final = ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "PERMISSION_DENIED")


@attrs.define(eq=False)
class DeviceCalls:
    """The device plugins of one script."""

    _trace: Trace
    _faults: Collection[Fault]
    handler: FakeHandler = attrs.field(factory=FakeHandler)
    #: Set before the script is played.
    node: SimulatedNode = attrs.field(init=False)
    _plugged: dict[str, PluggedIn] = attrs.field(init=False, factory=dict)
    #: The calls at each endpoint, with the socket that was there.
    _calls: dict[str, list[tuple[RegisterAttempt, Identity | None]]] = attrs.field(init=False, factory=dict)
    #: What is shown, by path.
    _shown: dict[str, str] = attrs.field(init=False, factory=dict)
    #: When another process took the socket of the daemon that runs.
    _taken: float | None = attrs.field(init=False, default=None)

    @property
    def _directory(self) -> MemoryDeviceDirectory:
        assert self.node.device_directory is not None, "the script has such a directory"
        return self.node.device_directory

    def shown(self, change: PluginChanged) -> None:
        """A change of a plugin in the directory is shown."""
        self._shown[change.plugin.socket] = change.plugin.state

    # --- what happens -------------------------------------------------------------------------------------------------

    def act(self, chance: random.Random) -> None:
        """Let something happen to a device plugin, to the socket, or to the daemon."""
        endpoint = chance.choice(ENDPOINTS)
        draw = chance.random()
        if draw < 0.45:
            self._call(endpoint, chance)
        elif draw < 0.65:
            self._restart(endpoint)
            self._call(endpoint, chance)
        elif draw < 0.72:
            self._stop(endpoint)
        elif draw < 0.82:
            self._behave(chance)
        elif draw < 0.90:
            self._directory.remove_socket()
        elif draw < 0.98:
            self._crash(endpoint, chance)
        else:
            self._take()

    def _call(self, endpoint: str, chance: random.Random) -> None:
        resource = chance.choice(RESOURCES)
        version = chance.choice(("v1beta1",) * 9 + ("v1alpha",))
        for _ in range(chance.choice((1, 1, 1, 2))):
            identity = self._directory.identify(endpoint)
            attempt = self.node.register(endpoint, resource, version=version, pid=chance.randrange(900, 904))
            self._calls.setdefault(endpoint, []).append((attempt, identity))

    def _restart(self, endpoint: str) -> None:
        plugin = self._plugged.get(endpoint)
        if plugin is None or self._directory.identify(endpoint) is None:
            self._stop(endpoint)
            path = os.path.join(DIRECTORY, endpoint)
            self._plugged[endpoint] = self.node.plug(path, FakePlugin(DEVICE, endpoint))
        else:
            plugin.restart()

    def _stop(self, endpoint: str) -> None:
        plugin = self._plugged.pop(endpoint, None)
        if plugin is not None:
            plugin.stop()

    def _behave(self, chance: random.Random) -> None:
        if Fault.HANDLERS in self._faults:
            behaviours: tuple[Behaviour, ...] = (Fails(PluginError("no")), Takes(3.0), Takes(20.0), Hangs())
            self.handler.script(chance.choice(("validate", "register")), chance.choice(behaviours))

    def _crash(self, endpoint: str, chance: random.Random) -> None:
        if Fault.CRASHES in self._faults:
            if chance.random() < 0.5:
                self._directory.crash()
            else:
                self.node.crash("registration", os.path.join(DIRECTORY, endpoint))

    def _take(self) -> None:
        self._directory.take(4711)
        self._taken = trio.current_time() if self._taken is None else self._taken

    def before_start(self) -> None:
        """Let the directory be free, since the daemon starts again: it would not start on a socket of another."""
        self._directory.give_back()
        self._taken = None
        self._shown.clear()
        self.handler = FakeHandler()

    # --- what must hold -----------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Check what must hold at rest, once the faults have stopped; then take the socket, and check what follows."""
        self.handler.calm()
        await trio.sleep(SETTLED)
        self._check_answers()
        if self._taken is None:
            for path in sorted(self._expected() - self.handler.registered.keys()):
                self._trace.violated("calls", f"{path} was registered by a call, and is {self._shown.get(path)}")
        self._take()
        await trio.sleep(NOTICED)
        self._check_answers()
        for path in sorted(self.handler.registered):
            self._trace.violated("calls", f"{path} is registered, and another process has the socket")
        for endpoint in ENDPOINTS:
            self._stop(endpoint)

    def _check_answers(self) -> None:
        for attempt in self._directory.attempts:
            if len(attempt.answers) != 1:
                self._trace.violated("calls", f"the call of {attempt.call} was answered {attempt.answers}")
            self._check_yes(attempt.call, attempt)

    def _check_yes(self, call: RegisterCall, attempt: RegisterAttempt) -> None:
        late = self._taken is not None and attempt.answered_at is not None
        if late and attempt.code == "OK" and (attempt.answered_at or 0.0) > (self._taken or 0.0) + NOTICED:
            self._trace.violated("calls", f"{call} was answered yes while another process had the socket")

    def _expected(self) -> set[str]:
        """Return the paths whose last call that counts was answered yes, and whose socket is still the same."""
        found = set()
        for endpoint, calls in self._calls.items():
            counted = [(attempt, identity) for attempt, identity in calls if attempt.code not in _HARMLESS]
            if not counted:
                continue
            attempt, identity = counted[-1]
            there = self._directory.identify(endpoint)
            if attempt.code == "OK" and identity is not None and there is not None and identity.is_same(there):
                found.add(os.path.join(DIRECTORY, endpoint))
        return found
