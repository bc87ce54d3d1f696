"""Ask a running daemon from Python: its plugins and their devices.

:class:`SyncClient` needs no Trio, and importing it loads little. :class:`Client` is for programs that use Trio. Both
have the same methods. A program that embeds a node asks its :class:`plugind.Supervisor` instead.

::

    from plugind.client import SyncClient

    client = SyncClient()
    client.wait("csi.example.com", timeout=120)
    for plugin in client.list():
        print(plugin.name, plugin.state)

**Values.** :class:`PluginStatus`, :class:`ResourceStatus` and :class:`DeviceStatus` are those of an embedded node.
Their times are Unix seconds, by the clock of the daemon.

**Errors.** Each is a :class:`ClientError`, and its text says what to do: :class:`NoDaemonError` if no daemon answers in
time, :class:`DaemonError` if it refuses, and :class:`NotReadyError` if what was waited for has not come.

PYTEST_DONT_REWRITE
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from .actors.client.client import Client
    from .actors.client.errors import ClientError, DaemonError, NoDaemonError, NotReadyError
    from .actors.client.sync import SyncClient
    from .protocol.devices import DeviceStatus, ResourceState, ResourceStatus
    from .protocol.status import PluginStatus, StateName

__all__ = [
    "Client",
    "ClientError",
    "DaemonError",
    "DeviceStatus",
    "NoDaemonError",
    "NotReadyError",
    "PluginStatus",
    "ResourceState",
    "ResourceStatus",
    "StateName",
    "SyncClient",
]

# If type checkers saw __getattr__, they would accept every misspelt name.
if not _typing.TYPE_CHECKING:
    _HOMES = {
        "Client": ".actors.client.client",
        "ClientError": ".actors.client.errors",
        "DaemonError": ".actors.client.errors",
        "DeviceStatus": ".protocol.devices",
        "NoDaemonError": ".actors.client.errors",
        "NotReadyError": ".actors.client.errors",
        "PluginStatus": ".protocol.status",
        "ResourceState": ".protocol.devices",
        "ResourceStatus": ".protocol.devices",
        "StateName": ".protocol.status",
        "SyncClient": ".actors.client.sync",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_HOMES[name], __package__), name)
        return value

    def __dir__():
        return sorted(__all__)
