"""plugind discovers plugin sockets on a node and registers each with the consumer of its type.

The names in ``__all__`` and the modules ``plugind.client`` and ``plugind.testing`` are the public interface, which
docs/api.md describes with its guarantees. Each name is imported when it is first used, so a program that only needs a
configuration does not load Trio. Modules of the package import each other, never this one.
"""

# Type checkers take this for true. Importing typing would slow down the commands, which import this module first.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .actors.grpc.client.channel import Channel
    from .actors.handlers.dra.calls import DRADriver
    from .actors.handlers.handler import Handler
    from .actors.handlers.link import Link
    from .actors.node.supervision import GaveUpError
    from .protocol.backoff import Backoff, RestartIntensity
    from .protocol.errors import ConfigError, NoConnectionError, PluginError
    from .protocol.handlers.csi import CSIConfig
    from .protocol.handlers.dra import DRAConfig
    from .protocol.handlers.dra_claims import (
        DRAAnswerError,
        DRACallError,
        DRAClaim,
        DRAClaimError,
        DRADriverUnknownError,
        DRAError,
        PreparedDevice,
    )
    from .protocol.health.checks import Checked, HealthChecks
    from .protocol.leases.config import LeaseHistoryConfig, LeaseLimits, LeasesConfig, LeaseUsers
    from .protocol.leases.drains import Drain, DrainTarget
    from .protocol.leases.mapped import ResourceConfig
    from .protocol.leases.replies import LeaseFailedError, LimitMet, Problem
    from .protocol.leases.values import Lease, Pool, UserLimits
    from .protocol.logs.limits import LogLimits
    from .protocol.logs.lines import Level, Logger
    from .protocol.messages.reconciler import RetryAnswer
    from .protocol.messages.status import RootStatus, Snapshot
    from .protocol.plugins.devices import Device
    from .protocol.plugins.health import Health
    from .protocol.plugins.info import InfoLimits, InstancePolicy, Plugin
    from .protocol.plugins.static_devices import StaticResource
    from .protocol.settings.config import Config, DevicePluginDirectory, Root, Timeouts
    from .protocol.status.metrics_config import MetricsConfig
    from .protocol.trust.users import Trust
    from .protocol.version import __version__
    from .protocol.wire.limits import WireLimits
    from .supervisor import LaggedError, NodeEndedError, RootBusyError, Supervisor

__all__ = [
    "Backoff",
    "CSIConfig",
    "Channel",
    "Checked",
    "Config",
    "ConfigError",
    "DRAAnswerError",
    "DRACallError",
    "DRAClaim",
    "DRAClaimError",
    "DRAConfig",
    "DRADriver",
    "DRADriverUnknownError",
    "DRAError",
    "Device",
    "DevicePluginDirectory",
    "Drain",
    "DrainTarget",
    "GaveUpError",
    "Handler",
    "Health",
    "HealthChecks",
    "InfoLimits",
    "InstancePolicy",
    "LaggedError",
    "Lease",
    "LeaseFailedError",
    "LeaseHistoryConfig",
    "LeaseLimits",
    "LeaseUsers",
    "LeasesConfig",
    "Level",
    "LimitMet",
    "Link",
    "LogLimits",
    "Logger",
    "MetricsConfig",
    "NoConnectionError",
    "NodeEndedError",
    "Plugin",
    "PluginError",
    "Pool",
    "PreparedDevice",
    "Problem",
    "ResourceConfig",
    "RestartIntensity",
    "RetryAnswer",
    "Root",
    "RootBusyError",
    "RootStatus",
    "Snapshot",
    "StaticResource",
    "Supervisor",
    "Timeouts",
    "Trust",
    "UserLimits",
    "WireLimits",
    "__version__",
]

# If type checkers saw __getattr__, they would accept every misspelt name.
if not TYPE_CHECKING:
    del TYPE_CHECKING
    #: The names of each module.
    _NAMES = {
        ".actors.grpc.client.channel": "Channel",
        ".actors.handlers.dra.calls": "DRADriver",
        ".actors.handlers.handler": "Handler",
        ".actors.handlers.link": "Link",
        ".actors.node.supervision": "GaveUpError",
        ".protocol.backoff": "Backoff RestartIntensity",
        ".protocol.errors": "ConfigError NoConnectionError PluginError",
        ".protocol.handlers.csi": "CSIConfig",
        ".protocol.handlers.dra": "DRAConfig",
        ".protocol.handlers.dra_claims": """
            DRAAnswerError DRACallError DRAClaim DRAClaimError DRADriverUnknownError DRAError PreparedDevice
        """,
        ".protocol.health.checks": "Checked HealthChecks",
        ".protocol.leases.config": "LeaseHistoryConfig LeaseLimits LeaseUsers LeasesConfig",
        ".protocol.leases.drains": "Drain DrainTarget",
        ".protocol.leases.mapped": "ResourceConfig",
        ".protocol.leases.replies": "LeaseFailedError LimitMet Problem",
        ".protocol.leases.values": "Lease Pool UserLimits",
        ".protocol.logs.limits": "LogLimits",
        ".protocol.logs.lines": "Level Logger",
        ".protocol.messages.reconciler": "RetryAnswer",
        ".protocol.messages.status": "RootStatus Snapshot",
        ".protocol.plugins.devices": "Device",
        ".protocol.plugins.health": "Health",
        ".protocol.plugins.info": "InfoLimits InstancePolicy Plugin",
        ".protocol.plugins.static_devices": "StaticResource",
        ".protocol.settings.config": "Config DevicePluginDirectory Root Timeouts",
        ".protocol.status.metrics_config": "MetricsConfig",
        ".protocol.trust.users": "Trust",
        ".protocol.version": "__version__",
        ".protocol.wire.limits": "WireLimits",
        ".supervisor": "LaggedError NodeEndedError RootBusyError Supervisor",
    }
    _HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_HOMES[name], __name__), name)
        return value

    def __dir__():
        return sorted(__all__)
