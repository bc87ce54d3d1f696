"""A reload: each changed value of the configuration is sent to the actor that owns it.

No actor reads a configuration that another one changes. Only this module replaces :attr:`.Node.config`, and what the
node keeps of it for the successors of crashed actors.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial

import attrs
import trio

from ...protocol.errors import ConfigError
from ...protocol.messages.config import (
    PausesChanged,
    RootRemoved,
    RootsChanged,
    SettingsChanged,
    TrustChanged,
    WorldChanged,
)
from ...protocol.messages.reconciler import RootAdded
from ...protocol.settings.config import Config, Root
from ...protocol.trust.users import Trust, Users
from ..io.worker_thread import WorkerThread
from .node import Node
from .paths import check_places, directories_of
from .wiring import check_pools, expectation_of, follow_pauses, operators_of, registration_settings, rules_of


async def reconfigure(node: Node, config: Config) -> None:
    """Put another configuration in force; see :meth:`plugind.Supervisor.reconfigure`."""
    from ...protocol.settings.reload import fixed_fields

    try:
        node.reload.acquire_nowait()
    except trio.WouldBlock:
        raise RuntimeError("another configuration is being put in force: wait for that") from None
    with ExitStack() as under_way:
        under_way.callback(node.reload.release)
        if fixed := fixed_fields(node.config, config):
            raise ConfigError(f"a node that runs does not take another value of {', '.join(fixed)}: start another node")
        node.handlers.check(node.call_config(config))
        check_pools(config.leases.pools)
        check_places(config, node.status_socket)
        if config.roots != node.config.roots:
            node.leases.serve(tuple(directories_of(config)))
        with node.callers.asking("has no other configuration"):
            users = node.rules.users if config.trust == node.config.trust else await _find_users(node, config.trust)
            applied = trio.Event()
            # A task of the node, so that a cancelled caller does not leave half of it in force.
            node.nursery.start_soon(_put_in_force, node, config, users, applied, under_way.pop_all())
            await applied.wait()


async def _find_users(node: Node, trust: Trust) -> Users:
    if not trust.names:
        return node.ports.users(trust)
    # The name service that knows the users may be slow.
    thread = WorkerThread("users")
    try:
        return await thread.run(partial(node.ports.users, trust))
    finally:
        thread.close()


async def _put_in_force(node: Node, config: Config, users: Users, applied: trio.Event, under_way: ExitStack) -> None:
    # If the actors have ended, so does the node, and the caller is told.
    with under_way, suppress(trio.ClosedResourceError):
        before, node.config = node.config, config
        if config.trust != before.trust:
            await _trust(node, users)
        moved = (config.roots, config.endpoint_directories) != (before.roots, before.endpoint_directories)
        if moved:
            await _place(node)
        await _send_settings(node)
        if moved:
            # Registrations have the new settings by now.
            await _change_watchers(node, config.roots)
        if (config.leases, config.resources) != (before.leases, before.resources):
            # Most nodes lease nothing, and need not load the lease actor.
            node.leases.reconfigure(config.leases, operators_of(node.rules.users), config.resources)
        applied.set()


async def _trust(node: Node, users: Users) -> None:
    """Send the new trust to the actors that do not register plugins."""
    node.rules = rules_of(node.config, users)
    node.endpoints = node.endpoints.trusting(node.rules.distrust)
    changed = TrustChanged(node.config.trust, users)
    for inbox in node.watchers.inboxes.values():
        inbox.send_nowait(changed)
    await node.liveness.report(changed)
    await node.status.report(changed)


async def _place(node: Node) -> None:
    """Send the new places of sockets and endpoints to the actors that do not register plugins."""
    node.rules = rules_of(node.config, node.rules.users)
    roots_changed = _roots_changed(node)
    files = node.endpoints.files.below(roots_changed.directories)
    node.endpoints = attrs.evolve(node.endpoints.within(node.rules.endpoint_directories), files=files)
    await node.liveness.report(roots_changed)


def _roots_changed(node: Node) -> RootsChanged:
    return RootsChanged(node.rules.roots, tuple(directories_of(node.config)), node.rules.endpoint_directories)


async def _send_settings(node: Node) -> None:
    """Send new settings to the actors."""
    config = node.config
    node.crashes.allow(config.intensity)
    node.handlers.reconfigure(node.call_config(config))
    node.links.send_nowait(PausesChanged(follow_pauses(config)))
    number = node.registration.settings.number + 1
    settings = registration_settings(config, node.rules.users, node.rules.endpoint_directories, number)
    node.registration = attrs.evolve(node.registration, settings=settings)
    await node.registrations.reconfigure(SettingsChanged(settings))
    await node.reconciler.report(WorldChanged(config.max_instances, config.backoff, config.stable_after))
    node.static.reconfigure(config.devices)
    expectation = expectation_of(config)
    node.devices.inbox.send_nowait(expectation)
    await node.status.report(expectation)


async def _change_watchers(node: Node, roots: Sequence[Root]) -> None:
    """Start the watchers of new roots, and stop those of removed ones.

    The reconciler is told that a root is removed when its watcher has ended, so no message of the watcher comes later.
    """
    inboxes = node.watchers.inboxes
    for root in [root for root in inboxes if root not in roots]:
        await node.watchers.stop(root)
        await node.reconciler.report(RootRemoved(root.path))
        del inboxes[root]
    await node.status.report(_roots_changed(node))
    for root in [root for root in roots if root not in inboxes]:
        await node.reconciler.report(RootAdded(root.path, node.watchers.add(root)))
