"""The test kit: a simulated node, scripted plugins and handlers, and ports that fail on request.

:mod:`plugind.testing` is its public module, and :mod:`.node` explains how it works.

PYTEST_DONT_REWRITE
"""

from ...protocol.devices import Device, DeviceOptions
from ...protocol.dra_health import DeviceReport, DeviceStatus
from ...supervisor import NodeEndedError
from .csi_drivers import CSICall, FakeCSIDriver
from .device_plugins import AllocationCall, FakeDevices
from .directory import MemoryDirectory
from .dra_drivers import DRACall, FakeDRADriver
from .faults import ACTORS, InjectedError
from .handlers import Fails, FakeFollower, FakeHandler, HandlerCall, Hangs, Takes
from .network import Accepting, MemoryNetwork
from .node import DEFAULT_CONFIG, ROOT, Entry, LeakError, NotSettledError, SimulatedNode
from .plugins import Call, FakePlugin, PluggedIn
from .reactions import Reaction

__all__ = [
    "ACTORS",
    "DEFAULT_CONFIG",
    "ROOT",
    "Accepting",
    "AllocationCall",
    "CSICall",
    "Call",
    "DRACall",
    "Device",
    "DeviceOptions",
    "DeviceReport",
    "DeviceStatus",
    "Entry",
    "Fails",
    "FakeCSIDriver",
    "FakeDRADriver",
    "FakeDevices",
    "FakeFollower",
    "FakeHandler",
    "FakePlugin",
    "HandlerCall",
    "Hangs",
    "InjectedError",
    "LeakError",
    "MemoryDirectory",
    "MemoryNetwork",
    "NodeEndedError",
    "NotSettledError",
    "PluggedIn",
    "Reaction",
    "SimulatedNode",
    "Takes",
]
