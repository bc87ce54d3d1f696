"""The static devices of the node: those that the configuration names, which no plugin offers.

To the devices actor each of these resources is one more device plugin: it is added, its list comes, and its calls are
answered. So leases, pools, metrics and the page know no difference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

import attrs
import trio

from ...protocol.devices.messages import InstanceAdded, InstanceMessage, InstanceRemoved, InstanceRole, ListReceived
from ...protocol.devices.static import FoundNode, ListedNodes, answer, listed
from ...protocol.leases.answers import AnswerError
from ...protocol.leases.messages import (
    AllocateAsked,
    Allocated,
    AllocationRefused,
    CallWithdrawn,
    DeviceCall,
    Preferred,
)
from ...protocol.logs.lines import Level, Logger
from ...protocol.messages.addresses import Address
from ...protocol.plugins.devices import DeviceOptions
from ...protocol.plugins.info import DEVICE, Plugin
from ...protocol.plugins.static_devices import SOURCE, StaticResource
from ..io.device_nodes import NOT_FINISHED, NodePort, NodeWatch
from ..io.node_access import NodeAccess

#: Seconds after a change until the next look, since devices come with several nodes and links.
SETTLE: Final = 0.05
_NONE_ADVICE: Final = "see whether the devices are plugged in, and whether the pattern is right: it is looked at again"
#: Seconds until the next look while udev has not finished with a device.
SOON: Final = 0.25


@attrs.define(eq=False)
class StaticDevices:
    """The task that looks for static devices. It goes on after a crash of itself."""

    _nodes: NodePort
    #: The devices actor.
    _devices: Address[InstanceMessage]
    #: Seconds until the next look if nothing changes.
    _rescan: float
    #: The user of the daemon.
    _uid: int
    #: Who may open nodes.
    _access: NodeAccess
    _log: Logger
    _offers: dict[str, _Offer] = attrs.field(init=False, factory=dict)
    _generation: int = attrs.field(init=False, default=0)
    _wake: trio.Event = attrs.field(init=False, factory=trio.Event)

    async def run(self, resources: Callable[[], Mapping[str, StaticResource]]) -> None:
        """Look for the devices of ``resources`` until cancelled."""
        while True:
            self._wake = trio.Event()
            with self._nodes.watch(resources().values()) as watch:
                is_finished = self._look(resources())
                with trio.move_on_after(self._rescan if is_finished else SOON):
                    await self._wait(watch)
            await trio.sleep(SETTLE)

    async def _wait(self, watch: NodeWatch) -> None:
        """Wait until something has changed in the directories, or in the configuration."""
        async with trio.open_nursery() as nursery:
            for wait in (watch.wait, self._wake.wait):
                nursery.start_soon(partial(_and_cancel, wait, nursery.cancel_scope))

    def look_again(self) -> None:
        """Look at once."""
        self._wake.set()

    def _look(self, resources: Mapping[str, StaticResource]) -> bool:
        """Report what has changed; return whether udev has finished with all devices."""
        now, numbers, is_finished = trio.current_time(), dict[str, str](), True
        for name in [name for name, offer in self._offers.items() if resources.get(name) != offer.resource]:
            gone = self._offers.pop(name)
            self._devices.send_nowait(InstanceRemoved(gone.plugin.socket, gone.plugin.generation, now))
        for name, resource in resources.items():
            found = list(self._nodes.find(resource))
            is_finished &= all(node.problem != NOT_FINISHED for node in found)
            if resource.access is not None:
                found = [attrs.evolve(node, problem=node.problem or self._access.mend(node)) for node in found]
                for path in resource.nodes:
                    if (shared := self._nodes.look(path)) is not None and shared.problem is None:
                        self._access.mend(shared)  # If that is not possible, whoever asks for a lease is told so.
            if (offer := self._offers.get(name)) is None:
                offer = self._added(name, resource, now)
                if not found:
                    advice = self._nodes.why_hidden() or _NONE_ADVICE
                    self._log.event(
                        Level.WARNING, "no device matches", name=name, match=_where(resource), advice=advice
                    )
            offer.take(listed(name, resource, found, numbers), now)
        return is_finished

    def _added(self, name: str, resource: StaticResource, now: float) -> _Offer:
        self._generation += 1
        # Where it matches nothing, users see this as the reason.
        where = _where(resource) + (f"; {hidden}" if (hidden := self._nodes.why_hidden()) else "")
        plugin = Plugin(DEVICE, name, where, ("v1beta1",), f'devices."{name}"', self._generation)
        offer = self._offers[name] = _Offer(
            plugin, resource, self._nodes, self._devices, self._uid, self.look_again, self._access
        )
        key = plugin.socket, plugin.generation
        self._devices.send_nowait(InstanceAdded(plugin, DeviceOptions(), SOURCE, now, offer))
        self._devices.send_nowait(InstanceRole(*key, active=True))
        return offer


def _where(resource: StaticResource) -> str:
    return ", ".join(resource.paths or (f"{key}={text}" for key, text in resource.match.items()))


async def _and_cancel(wait: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
    await wait()
    scope.cancel()


@attrs.define(eq=False)
class _Offer:
    """One resource that is offered. It is the address of the calls that leases need, and answers them at once."""

    plugin: Plugin
    resource: StaticResource
    _nodes: NodePort
    _address: Address[InstanceMessage]
    _uid: int
    _look_again: Callable[[], None]
    _access: NodeAccess
    _devices: ListedNodes | None = None

    def take(self, devices: ListedNodes, now: float) -> None:
        """Report the devices if they have changed."""
        before, self._devices = self._devices, devices
        if before is None or before.listed != devices.listed:
            message = ListReceived(self.plugin.socket, self.plugin.generation, devices.listed, now)
            self._address.send_nowait(message)

    def send_nowait(self, call: DeviceCall, /) -> None:
        """Answer ``call``."""
        match call:
            case AllocateAsked():
                call.reply.send_nowait(self._answer(call))
            case CallWithdrawn():  # It was answered.
                pass
            case _:
                call.reply.send_nowait(Preferred(call.lease, call.resource))

    def _answer(self, call: AllocateAsked) -> Allocated | AllocationRefused:
        try:
            nodes = {device: self._node(device) for device in call.devices}
            shared = [self._shared(path) for path in self.resource.nodes]
            made = answer(self.resource, self.plugin.name, nodes, shared)
            if self.resource.access is not None:
                self._admit(call, [*nodes.values(), *shared])
        except (_GoneError, AnswerError) as error:
            self._look_again()
            return AllocationRefused(call.lease, call.resource, str(error))
        return Allocated(call.lease, call.resource, made, seconds=0.0, uid=self._uid)

    def _node(self, device: str) -> FoundNode:
        """Return the node of a device, which is looked at again: what was listed may have been unplugged."""
        known = None if self._devices is None else self._devices.nodes.get(device)
        now = None if known is None else self._nodes.look(known.path)
        if known is None or now is None or now.identity != known.identity:
            raise _GoneError(f"{device} of {self.plugin.name} was unplugged, or is another device by now: try again")
        if now.problem is not None:
            raise _GoneError(f"{device} of {self.plugin.name} is not given: {now.problem}")
        return attrs.evolve(now, attributes=known.attributes)

    def _admit(self, call: AllocateAsked, nodes: Sequence[FoundNode]) -> None:
        why = self._access.give(call.lease, call.uid, nodes, self.resource.permissions)
        if why is not None:
            raise _GoneError(f"no lease of {self.plugin.name} gives access to {why}")

    def _shared(self, path: str) -> FoundNode:
        node = self._nodes.look(path)
        problem = "it is missing" if node is None else node.problem
        if node is None or problem is not None:
            raise _GoneError(f"the node {path}, which all devices of {self.plugin.name} share, is not given: {problem}")
        return node


class _GoneError(Exception):
    """A node cannot be given; the text says why."""
