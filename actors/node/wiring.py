"""Creates what a node's actors need from its configuration: rules, endpoints, settings, ports."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import attrs

from ...protocol.backoff import Backoff
from ...protocol.discovery.endpoints import default_directories
from ...protocol.errors import ConfigError
from ...protocol.identity import Identity
from ...protocol.leases.config import LeaseUsers
from ...protocol.leases.values import Pool
from ...protocol.logs.lines import Logger
from ...protocol.messages.config import ExpectationChanged
from ...protocol.plugins.info import Plugin
from ...protocol.registration.settings import RegistrationSettings
from ...protocol.settings.config import Config, Root
from ...protocol.settings.rules import Rules
from ...protocol.status.metrics_config import tcp_address
from ...protocol.trust.users import ROOT, Users
from ...protocol.wire.limits import ENDPOINT_LIMITS
from ..discovery.watcher import WatcherConfig
from ..grpc.client.channel import Channel
from ..grpc.client.turns import Shared
from ..grpc.endpoints import EndpointFiles, Endpoints
from ..handlers.links import RESTARTS
from ..io.node_access import NodeAccess
from ..leases.unit import LeasePorts, LeaseUnit
from ..status.metrics_port import MetricsPort
from .ports import NodeState

_NO_STATE = (
    "this plugind leases no devices, since it keeps no state, and would give them to others after a restart: start it"
    " with --device-plugins, or with --state DIR"
)
_OBSERVING = "this plugind leases no devices, since it only observes plugins: start it without --observe"


def rules_of(config: Config, users: Users) -> Rules:
    """Return the rules of trust, with the directories in which plugins may have endpoints."""
    directories = config.endpoint_directories
    if directories is None:
        directories = default_directories(root.path for root in config.roots)
    if config.device_plugins is not None:
        directories = tuple(dict.fromkeys((*directories, config.device_plugins.directory)))
    return Rules(config.trust, users, config.roots, directories)


def endpoints_of(rules: Rules, files: EndpointFiles, status_socket: str | None) -> Endpoints:
    """Return the endpoints of plugins, which exclude the status socket."""
    status_socket = None if status_socket is None else os.path.abspath(status_socket)
    return Endpoints(files, rules.endpoint_directories, status_socket).trusting(rules.distrust)


def connect_endpoints(endpoints: Callable[[], Endpoints]) -> Callable[[Plugin, Identity | None], Channel]:
    """Return a function that connects to endpoints of plugins with links, by the present ``endpoints``.

    All these connections share one limit of unparsed bytes.
    """
    shared = Shared(ENDPOINT_LIMITS.unparsed_bytes)

    def connect(plugin: Plugin, file: Identity | None) -> Channel:
        if plugin.endpoint == plugin.socket and file is not None:
            made = endpoints().connect_own(plugin.socket, file)
        else:
            made = endpoints().connect(plugin.endpoint)
        return Channel(made.transport(), limits=ENDPOINT_LIMITS, peer=made.peer, shared=shared)

    return connect


def lease_users_of(config: Config, users: Users) -> LeaseUsers:
    """Return who may lease over the status socket, without the user that stands for many in a user namespace."""
    named = config.leases.users
    return attrs.evolve(named, uids=named.uids - {users.overflow})


def leases_of(
    config: Config, users: Users, state: NodeState, ports: Callable[[], LeasePorts], access: NodeAccess, log: Logger
) -> LeaseUnit:
    """Return the lease actor of a node with its parts.

    Raises:
      ConfigError: if a device is in two pools.
    """
    check_pools(config.leases.pools)
    why_not = _OBSERVING if config.observe else _NO_STATE
    closed = None if state.leases.lasting or config.leases.without_state else why_not
    return LeaseUnit(
        state.leases,
        ports,
        config.leases,
        log,
        operators=operators_of(users),
        resources=config.resources,
        access=access,
        closed=closed,
        history=state.history,
    )


def operators_of(users: Users) -> frozenset[int]:
    """Return the users who may end the leases of others, besides configured ones."""
    return frozenset({ROOT, users.own})


def check_pools(pools: Sequence[Pool]) -> None:
    """Check that no device is in two pools, and that no two pools of a resource have the same name.

    Raises:
      ConfigError: if there is one.
    """
    if not pools:
        return
    from ...protocol.leases.stock import Pools

    try:
        Pools(pools)
    except ValueError as error:
        raise ConfigError(f"{error}: each device may be in one pool, and each pool needs a name of its own") from error


def metrics_port_of(config: Config, log: Logger) -> MetricsPort | None:
    """Return the port for metrics; None if the configuration has none."""
    wanted, hosts = config.metrics.address, config.metrics.hosts
    return None if wanted is None else MetricsPort(tcp_address(wanted), frozenset(hosts), log)


def follow_pauses(config: Config) -> Backoff:
    """Return the pauses before a follow is restarted."""
    return attrs.evolve(RESTARTS, jitter=config.backoff.jitter)


def registration_settings(
    config: Config, users: Users, endpoint_directories: tuple[str, ...] | None = None, number: int = 0
) -> RegistrationSettings:
    """Return the settings of registration actors; ``number`` counts their changes."""
    return RegistrationSettings(
        config.timeouts, config.backoff, config.info_limits, config.trust, users, endpoint_directories, number
    )


def watcher_config(config: Config, rules: Rules, root: Root) -> WatcherConfig:
    """Return the configuration of the watcher of a root."""
    return WatcherConfig(
        root.path,
        deprecated=root.deprecated,
        rescan=config.rescan,
        follow_symlinks_inside_root=config.follow_symlinks_inside_root,
        insecure=root.insecure,
        optional=root.optional,
        make=not config.observe,
        trusts=rules.trusts,
    )


def expectation_of(config: Config) -> ExpectationChanged:
    """Return the message with the plugins and devices that are expected."""
    return ExpectationChanged(config.expected, healthy=config.ready_when == "healthy", devices=config.expected_devices)
