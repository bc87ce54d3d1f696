"""Ask a running daemon from Python: its plugins and their devices, and lease devices.

:class:`SyncClient` needs neither Trio nor asyncio, and importing it loads little. :class:`Client` is for programs that
use Trio or asyncio. Both have the same methods. A program that embeds a node asks its :class:`plugind.Supervisor`
instead.

::

    from plugind.client import SyncClient

    client = SyncClient()
    client.wait_for("csi.example.com", timeout=120)
    for plugin in client.list():
        print(plugin.name, plugin.state)
    with client.allocate({"vendor.com/gpu": 1}, wait=60) as lease:
        print(lease.devices["vendor.com/gpu"])

**Owners.** The process owns what it has by ``allocate``, and a connection what it has by ``hold``; ``take`` is for
others.

**Values.** :class:`PluginStatus`, :class:`ResourceStatus` and :class:`DeviceStatus` are those of an embedded node.
Their times are Unix seconds, by the clock of the daemon. A :class:`Lease` is in a :class:`LeaseState`.

**Errors.** Each is a :class:`ClientError`, and its text says what to do: :class:`NoDaemonError` if no daemon answers in
time, :class:`DaemonError` if it refuses, :class:`NotReadyError` if what was waited for has not come,
:class:`LeaseFailedError` with a :class:`Problem` if there is no lease, and :class:`LeaseLostError` if one has ended
before the block that holds it.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from .actors.client.client import Client, Watch
    from .actors.client.errors import DaemonError, LeaseLostError, NoDaemonError, NotReadyError
    from .actors.client.holding import HeldLease
    from .actors.client.serving import HandlerAsk, Serving, SyncHandlerAsk, SyncServing
    from .actors.client.sync import SyncClient, SyncWatch
    from .protocol.errors import ClientError
    from .protocol.handlers.remote import AskKind, Instance, RoleTold
    from .protocol.leases.drains import Drain, DrainTarget
    from .protocol.leases.replies import LeaseFailedError, LimitMet, Problem
    from .protocol.leases.values import Answer, Lease, LeaseState, Mount, Node
    from .protocol.messages.reconciler import RetryAnswer
    from .protocol.plugins.devices import DeviceStatus, ResourceState, ResourceStatus
    from .protocol.plugins.health import Health
    from .protocol.plugins.status import HistoryEntry, PluginStatus, StateName

__all__ = [
    "Answer",
    "AskKind",
    "Client",
    "ClientError",
    "DaemonError",
    "DeviceStatus",
    "Drain",
    "DrainTarget",
    "HandlerAsk",
    "Health",
    "HeldLease",
    "HistoryEntry",
    "Instance",
    "Lease",
    "LeaseFailedError",
    "LeaseLostError",
    "LeaseState",
    "LimitMet",
    "Mount",
    "NoDaemonError",
    "Node",
    "NotReadyError",
    "PluginStatus",
    "Problem",
    "ResourceState",
    "ResourceStatus",
    "RetryAnswer",
    "RoleTold",
    "Serving",
    "StateName",
    "SyncClient",
    "SyncHandlerAsk",
    "SyncServing",
    "SyncWatch",
    "Watch",
]

# If type checkers saw __getattr__, they would accept every misspelt name.
if not _typing.TYPE_CHECKING:
    #: The names of each module.
    _NAMES = {
        ".actors.client.client": "Client Watch",
        ".actors.client.errors": "DaemonError LeaseLostError NoDaemonError NotReadyError",
        ".actors.client.holding": "HeldLease",
        ".actors.client.serving": "HandlerAsk Serving SyncHandlerAsk SyncServing",
        ".actors.client.sync": "SyncClient SyncWatch",
        ".protocol.errors": "ClientError",
        ".protocol.handlers.remote": "AskKind Instance RoleTold",
        ".protocol.leases.drains": "Drain DrainTarget",
        ".protocol.leases.replies": "LeaseFailedError LimitMet Problem",
        ".protocol.leases.values": "Answer Lease LeaseState Mount Node",
        ".protocol.messages.reconciler": "RetryAnswer",
        ".protocol.plugins.devices": "DeviceStatus ResourceState ResourceStatus",
        ".protocol.plugins.health": "Health",
        ".protocol.plugins.status": "HistoryEntry PluginStatus StateName",
    }
    _HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_HOMES[name], __package__), name)
        return value

    def __dir__():
        return sorted(__all__)
