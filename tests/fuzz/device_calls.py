"""Calls of Register in a script: device plugins that call, what happens to ``kubelet.sock``, and what must hold.

The plugins, their handler and the oracle are apart from those of all other plugins of a script. Every call is answered
exactly once, or its connection ends; no call is answered yes once another process has the socket; whatever was answered
yes stays registered as long as its socket is there, through crashes of actors; and nothing is registered once the
server has yielded.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection
from typing import ClassVar, Final

import attrs
import trio

from plugind.actors.simulation.device_directory import MemoryDeviceDirectory
from plugind.actors.simulation.handlers import Behaviour, Fails, FakeHandler, Hangs, Takes
from plugind.actors.simulation.node import SimulatedNode
from plugind.actors.simulation.plugins import FakePlugin, PluggedIn
from plugind.protocol.errors import PluginError
from plugind.protocol.messages.status import PluginChanged
from plugind.protocol.plugins.info import DEVICE
from plugind.tests.fuzz.call_oracle import NOTICED, REFUSAL, CallOracle
from plugind.tests.fuzz.script import Fault
from plugind.tests.fuzz.trace import Trace

#: Where device plugins call, in the scripts that have such a directory.
DIRECTORY: Final = "/dp"
ENDPOINTS: Final = ("gpu.sock", "nic", "fpga.sock")
RESOURCES: Final = ("vendor.com/gpu", "vendor.com/nic")
#: Seconds until every handler's call has ended, every backoff is over, and every server has its socket again.
SETTLED: Final = 400.0


@attrs.define(eq=False)
class DeviceCalls:
    """The device plugins of one script."""

    plugin_type: ClassVar[str] = DEVICE
    _trace: Trace
    _faults: Collection[Fault]
    handler: FakeHandler = attrs.field(factory=FakeHandler)
    #: Set before the script is played.
    node: SimulatedNode = attrs.field(init=False)
    _plugged: dict[str, PluggedIn] = attrs.field(init=False, factory=dict)
    _oracle: CallOracle = attrs.field(init=False)
    #: What is shown, by path.
    _shown: dict[str, str] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self._oracle = CallOracle(self._trace.violated)

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
            self._trace.line("call", endpoint)
            identity = self._directory.identify(endpoint)
            attempt = self.node.register(endpoint, resource, version=version, pid=chance.randrange(900, 904))
            self._oracle.made(attempt, identity)

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
            behaviours: tuple[Behaviour, ...] = (Fails(PluginError(REFUSAL)), Takes(3.0), Takes(20.0), Hangs())
            self.handler.script(chance.choice(("validate", "register")), chance.choice(behaviours))

    def _crash(self, endpoint: str, chance: random.Random) -> None:
        if Fault.CRASHES in self._faults:
            if chance.random() < 0.5:
                self._directory.crash()
            else:
                self.node.crash("registration", os.path.join(DIRECTORY, endpoint))

    def _take(self) -> None:
        self._directory.take(4711)
        self._oracle.took()

    def before_start(self) -> None:
        """Let the directory be free, since the daemon starts again: it would not start on a socket of another."""
        self._directory.give_back()
        self._oracle.taken = None
        self._shown.clear()
        self.handler = FakeHandler()

    # --- what must hold -----------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Check what must hold at rest, once the faults have stopped; then take the socket, and check what follows."""
        self.handler.calm()
        await trio.sleep(SETTLED)
        self._oracle.check_answers(self._directory.attempts)
        if self._oracle.taken is None:
            for endpoint in sorted(self._oracle.expected(self._directory)):
                path = os.path.join(DIRECTORY, endpoint)
                if path not in self.handler.registered:
                    self._trace.violated("calls", f"{path} was registered by a call, and is {self._shown.get(path)}")
        self._take()
        await trio.sleep(NOTICED)
        self._oracle.check_answers(self._directory.attempts)
        for path in sorted(self.handler.registered):
            self._trace.violated("calls", f"{path} is registered, and another process has the socket")
        for endpoint in ENDPOINTS:
            self._stop(endpoint)
