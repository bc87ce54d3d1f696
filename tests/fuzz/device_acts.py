"""What a script lets device plugins say to the devices actor, and what it reads of what that shows.

Each resource has one plugin, and two during a surge. The roles are decided as the world decides them, a little later.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Final

import attrs
import trio

from plugind.actors.simulation.node import SimulatedNode
from plugind.protocol.backoff import RESTART_PAUSE
from plugind.protocol.devices.messages import (
    DevicesMessage,
    DevicesSubscribed,
    DevicesViewMessage,
    InstanceAdded,
    InstanceMessage,
    InstanceRemoved,
    InstanceRole,
    ListLost,
    ListReceived,
    ResourceChanged,
)
from plugind.protocol.plugins.devices import HEALTHY, UNHEALTHY, Device, DeviceList, DeviceOptions, DevicesSnapshot
from plugind.protocol.plugins.info import DEVICE, Plugin
from plugind.tests.fuzz.device_oracle import GRACE, DeviceOracle, Instance
from plugind.tests.fuzz.trace import Trace

RESOURCES: Final = ("vendor.com/gpu", "vendor.com/nic")
#: How many devices a plugin has at most, and how many changes may wait to be read.
_MOST: Final = 5
_ROOM: Final = 10_000
#: Seconds between two losses at the end of a script: an actor that has crashed runs again by then.
END_PAUSE: Final = RESTART_PAUSE.cap + 1.0


@attrs.define(eq=False)
class DeviceActs:
    """The device plugins of a script."""

    _node: SimulatedNode
    _oracle: DeviceOracle
    _trace: Trace
    #: What the devices actor has shown and is not read yet; None before the first act, and while there is no daemon.
    _changes: trio.MemoryReceiveChannel[DevicesViewMessage] | None = None
    #: The lists that were sent last, which the next ones are made from.
    _lists: dict[str, DeviceList] = attrs.field(factory=dict)
    _generations: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))
    #: Roles that were decided and are not known to the plugins' links yet.
    _roles: list[tuple[Instance, bool]] = attrs.field(factory=list)
    #: When the last list of each resource was sent: two at one time count as one.
    _listed_at: dict[str, float] = attrs.field(factory=dict)

    def act(self, chance: random.Random, *, may_crash: bool) -> None:
        """Let a plugin register, list, be lost, return or leave; or crash the devices actor."""
        if self._changes is None:
            self._subscribe()
        if chance.random() < 0.1 and may_crash:
            self._node.crash("devices")
            return
        self._send_roles(chance)
        name = chance.choice(RESOURCES)
        present = self._oracle.present(name)
        if not present or (len(present) == 1 and chance.random() < 0.25):
            self._add(name, chance)
        else:
            self._change(chance.choice(present), chance)
        self._decide(name, chance)

    def forget(self) -> None:
        """The daemon ended, and with it what followed plugins."""
        if self._changes is not None:
            self._changes.close()
            self._changes = None
        self._oracle.forget(trio.current_time())
        self._roles.clear()

    def look(self) -> None:
        """Read what the actor has shown, and let the oracle judge it."""
        if self._changes is None:
            return
        for message in _waiting(self._changes):
            if isinstance(message, DevicesSnapshot):
                for resource in message.resources:
                    if resource.name in RESOURCES:
                        self._oracle.shown(resource, message.time)
            elif isinstance(message, ResourceChanged) and message.resource.name in RESOURCES:
                self._oracle.shown(message.resource, message.time)
        if self._is_behind():
            self._oracle.behind = True
        else:
            self._oracle.up_to_date(trio.current_time())

    async def end(self) -> None:
        """Let every stream end twice, and check that each resource goes when its grace is over."""
        if self._changes is None:
            return
        for _ in range(2):
            for name in RESOURCES:
                for instance in self._oracle.present(name):
                    self._lose(instance)
            await trio.sleep(END_PAUSE)
            self.look()
        await trio.sleep(GRACE)
        self.look()

    def _is_behind(self) -> bool:
        return self._node.supervisor.internals.devices.inbox.read().waiting > 0

    def _subscribe(self) -> None:
        writer, self._changes = trio.open_memory_channel[DevicesViewMessage](_ROOM)
        self._send(DevicesSubscribed(writer))

    def _send(self, message: DevicesMessage) -> None:
        if isinstance(message, InstanceMessage):
            self._trace.line("device", message)
        self._node.supervisor.internals.devices.inbox.send_nowait(message)

    # --- what plugins say ---------------------------------------------------------------------------------------------

    def _add(self, name: str, chance: random.Random) -> None:
        generation = next(self._generations)
        instance = Instance(name, f"/devices/{generation}.sock", generation)
        plugin = Plugin(DEVICE, name, instance.socket, ("v1beta1",), instance.socket, generation)
        self._oracle.added(instance, trio.current_time())
        self._send(InstanceAdded(plugin, DeviceOptions(), "a script", trio.current_time()))
        if chance.random() < 0.5:
            self._list(instance, chance)

    def _change(self, instance: Instance, chance: random.Random) -> None:
        now, drawn = trio.current_time(), chance.random()
        if drawn < 0.65:
            self._list(instance, chance)
        elif drawn < 0.85:
            if self._listed_at.get(instance.name) != now:
                self._lose(instance)
        else:
            self._oracle.removed(instance, now)
            self._roles[:] = [(other, active) for other, active in self._roles if other is not instance]
            self._send(InstanceRemoved(instance.socket, instance.generation, now))

    def _lose(self, instance: Instance) -> None:
        now = trio.current_time()
        self._oracle.lost(instance, now)
        self._send(ListLost(instance.socket, instance.generation, "the script ended the stream", now))

    def _list(self, instance: Instance, chance: random.Random) -> None:
        now = trio.current_time()
        if self._listed_at.get(instance.name) == now:
            return
        self._listed_at[instance.name] = now
        others = [
            other.listed for other in self._oracle.present(instance.name) if other is not instance and other.listed
        ]
        if instance.listed is None and others:
            # A surge: the new plugin lists what the old one does.
            healths = dict(others[-1])
        elif instance.listed is None or chance.random() < 0.3:
            healths = {f"d{number}": HEALTHY for number in range(chance.randrange(_MOST + 1))}
        else:
            healths = {device_id: chance.choice((HEALTHY, HEALTHY, UNHEALTHY, "Sick")) for device_id in instance.listed}
        self._oracle.listed(instance, healths, now)
        devices = self._made(instance.socket, healths)
        self._send(ListReceived(instance.socket, instance.generation, devices, now))

    def _made(self, socket: str, healths: dict[str, str]) -> DeviceList:
        """Return a list, made from the one before if that has the same devices."""
        before = self._lists.get(socket)
        if before is None or [*before.devices] != [*healths]:
            made = DeviceList(Device(name, health) for name, health in healths.items())
        else:
            changed = (Device(name, health) for name, health in healths.items())
            made = before.replacing(device for device in changed if before.devices[device.id] != device)
        self._lists[socket] = made
        return made

    # --- what the world decides ---------------------------------------------------------------------------------------

    def _decide(self, name: str, chance: random.Random) -> None:
        """The newest plugin with a list that is up to date is active, or else the newest one."""
        present = self._oracle.present(name)
        live = [instance for instance in present if instance.live] or present
        wanted = {instance: instance is live[-1] for instance in present}
        has = {instance: instance.active for instance in present} | dict(self._roles)
        decided = [(instance, active) for instance, active in wanted.items() if has[instance] is not active]
        self._roles += chance.sample(decided, len(decided))
        if chance.random() < 0.5 or self._is_behind():
            self._send_roles(chance)

    def _send_roles(self, chance: random.Random) -> None:
        """Let one or all of the decided roles be known."""
        if not self._roles:
            return
        # While messages wait, those of one plugin are taken together: all roles come then.
        count = len(self._roles) if self._is_behind() else chance.randint(1, len(self._roles))
        for instance, active in self._roles[:count]:
            self._oracle.decided(instance, trio.current_time(), active=active)
            self._send(InstanceRole(instance.socket, instance.generation, active))
        del self._roles[:count]


def _waiting(changes: trio.MemoryReceiveChannel[DevicesViewMessage]) -> Iterator[DevicesViewMessage]:
    while changes.statistics().current_buffer_used:
        yield changes.receive_nowait()
