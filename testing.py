"""Test a plugin or a handler against plugind, in memory and in virtual time: no cluster, no sockets, no sleeping.

::

    from plugind.testing import Call, FakePlugin, SimulatedNode


    async def test_a_driver_that_starts_slowly_is_registered(node: SimulatedNode) -> None:
        plugin = node.plug("csi.sock", FakePlugin("CSIPlugin", "csi.example.com", get_info_fails=1))
        await node.settled()
        assert node.state("csi.sock") == "registered"
        assert plugin.calls[-1] == Call(0.5, "NotifyRegistrationStatus", registered=True)

**The node.** :class:`SimulatedNode` runs plugind's own supervisor, actors and wire on a directory and a network in
memory. The pytest plugin ``plugind.actors.simulation.pytest_plugin`` has four fixtures. Name it in ``pytest_plugins``
of your ``conftest.py``. ``node`` is a running :class:`SimulatedNode`; override ``plugind_config``
and ``plugind_handlers`` to choose its configuration and handlers. Without pytest, write
``async with SimulatedNode() as node:`` under a :class:`trio.testing.MockClock` with ``autojump_threshold=0``.

**Plugins.** :meth:`SimulatedNode.plug` takes a scripted :class:`FakePlugin`, or services that you built on grpclib's
generated base classes. It returns a :class:`PluggedIn`, which restarts, crashes and disconnects the plugin and records
each :class:`Call` to it. A fake device plugin serves :class:`FakeDevices`, which lists each :class:`Device` and reports
:class:`DeviceOptions`; its attributes choose the answer to each :class:`AllocationCall`. The attributes of a
:class:`FakeCSIDriver` choose its identity, its health and the answer to each :class:`CSICall`. Assign an
:class:`Accepting` to ``PluggedIn.accepting`` to choose what happens to new connections.

**Handlers.** Pass your own handler, or a :class:`FakeHandler` with a script of :class:`Fails`, :class:`Hangs` and
:class:`Takes`; it records its calls. With ``follows=True`` it also follows its plugins, and has their
links. :func:`connected` has a channel in memory to services of yours, for tests of a handler's own calls.
:func:`play` lets plugins appear, change and fail at random, by seed, and checks an invariant of your handler.

**Fault points.** :meth:`SimulatedNode.crash` crashes one of the :data:`ACTORS`, and :meth:`SimulatedNode.hang` hangs
one. ``node.directory`` drops, delays and overflows events and fails scans (:class:`MemoryDirectory`); ``node.stop()``,
``node.kill()`` and ``node.start()`` restart the daemon.

**A real daemon.** :func:`daemon`, and the fixture ``plugind_daemon``, run a :class:`RunningDaemon` for the tests of
plugins in any language, each a :class:`PluginProcess`.

**Errors.** The :class:`WaitFailedError` of a wait shows the state of each socket, and :class:`LeakError` what was left
open.
"""

from __future__ import annotations

from .actors.grpc.server.serve import Service
from .actors.simulation.csi_drivers import CSICall, FakeCSIDriver
from .actors.simulation.daemon import PluginProcess, RunningDaemon, daemon
from .actors.simulation.device_plugins import AllocationCall, FakeDevices
from .actors.simulation.directory import MemoryDirectory
from .actors.simulation.faults import ACTORS, WaitFailedError
from .actors.simulation.handlers import Fails, FakeHandler, Hangs, Takes
from .actors.simulation.network import Accepting
from .actors.simulation.node import DEFAULT_CONFIG, LeakError, SimulatedNode
from .actors.simulation.plugins import Call, FakePlugin, PluggedIn
from .actors.simulation.scripts import play
from .actors.simulation.streams import connected
from .protocol.plugins.devices import Device, DeviceOptions

__all__ = [
    "ACTORS",
    "DEFAULT_CONFIG",
    "Accepting",
    "AllocationCall",
    "CSICall",
    "Call",
    "Device",
    "DeviceOptions",
    "Fails",
    "FakeCSIDriver",
    "FakeDevices",
    "FakeHandler",
    "FakePlugin",
    "Hangs",
    "LeakError",
    "MemoryDirectory",
    "PluggedIn",
    "PluginProcess",
    "RunningDaemon",
    "Service",
    "SimulatedNode",
    "Takes",
    "WaitFailedError",
    "connected",
    "daemon",
    "play",
]
