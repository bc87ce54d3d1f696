"""The HTTP server of the status socket and of the metrics port, which the status actor makes for the first client."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial

from ...protocol.devices.messages import DevicesMessage
from ...protocol.handlers.facts_asking import RefreshFacts
from ...protocol.health.progress import ActorHealth
from ...protocol.leases.messages import LeasesMessage
from ...protocol.messages.addresses import Address
from ...protocol.messages.reconciler import ReconcilerMessage
from ...protocol.values import value
from ..handlers.remote import RemoteHandlers
from ..http import server as http
from ..io.descriptors import DescriptorReserve
from . import port_api
from .allocations import no_place
from .api import Api, changes_nothing, is_for_lease_users, place
from .devices_api import DevicesApi
from .handlers_api import HandlersApi, is_about_handlers
from .history_api import HistoryApi, HistoryReader
from .leases_api import LeasesApi
from .listener import Serve
from .memory import Memory, StatusConfig
from .metrics_port import MetricsPort
from .port_api import PortApi
from .streams import Unsent

READERS_ONLY = (
    "only the user of the daemon and root may ask that: the members of its group for readers change nothing, unless"
    " --lease-uids or --lease-group of 'plugind run' let them lease devices"
)
STRANGERS = (
    "only the user of the daemon and root may ask: 'plugind run' lets others lease devices with --lease-uids or"
    " --lease-group, look with --status-group, and serve the plugin types that handler_uids names for them"
)
HANDLERS_ONLY = "only the user of the daemon and root may ask that: you may serve the types that handler_uids names"
LEASE_USERS_ONLY = (
    "only the user of the daemon and root may ask that: others may see devices ('plugind devices', 'plugind who') and"
    " lease them, at /v1/devices and /v1/leases, and ask for the history of their own leases, at /v1/history"
)


@value
class ServedRoutes:
    """The routes, and functions that serve the status socket and the metrics port until they are closed."""

    api: Api
    serve: Serve
    serve_port: Callable[[MetricsPort], Awaitable[None]]


def served(
    config: StatusConfig,
    memory: Memory,
    reconciler: Address[ReconcilerMessage],
    health: Callable[[], tuple[ActorHealth, ...]],
    *,
    devices: Address[DevicesMessage] | None,
    leases: Address[LeasesMessage] | None,
    refresh_facts: RefreshFacts | None,
    reserve: DescriptorReserve | None,
    remote: Callable[[], RemoteHandlers] | None = None,
    history: HistoryReader | None = None,
) -> ServedRoutes:
    """Return the server of the status socket and the metrics port; see :func:`~plugind.actors.status.actor.run`."""
    unsent = Unsent(config.http.unsent)
    leases_api = LeasesApi(config.wall, leases, unsent=unsent, stopping=memory.stopping)
    devices_api = DevicesApi(config.wall, devices, memory.refused_calls, config.observes, unsent, leases_api.snapshot)
    users, allowed = config.lease_users, frozenset({0, os.geteuid()})
    handlers = None if remote is None else lambda: HandlersApi(remote(), allowed, memory.metrics)
    history_api = HistoryApi(config.wall, history, unsent)
    api = Api(config, memory, reconciler, health, devices_api, leases_api, history_api, refresh_facts, handlers, unsent)
    # The first group of guests to which a user belongs provides the text of the refusal.
    guests = (
        http.Guests(group=config.readers, may=changes_nothing, refusal=READERS_ONLY, sees_all=True),
        http.Guests(users.uids, users.group, is_for_lease_users, LEASE_USERS_ONLY),
        # Which type each may serve is asked there.
        http.Guests(config.handler_users, None, lambda request: is_about_handlers(request.path), HANDLERS_ONLY),
    )
    serve = partial(
        http.serve,
        allowed=allowed,
        guests=guests,
        place=place,
        full=no_place,
        reserve=reserve,
        stranger=STRANGERS,
    )

    async def serve_port(port: MetricsPort) -> None:
        routes = PortApi(port.hosts, api.metrics, api.counts, port.page)
        limits, reserve = port.limits, port.reserve
        await http.serve(port.listener, routes, limits, allowed=None, place=port_api.place, reserve=reserve)

    return ServedRoutes(api, partial(serve, handler=api, limits=config.http), serve_port)
