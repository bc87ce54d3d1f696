"""The device plugins of a script that has leases: what they list, and how they answer the calls that leases need.

Each resource has some pieces of hardware, which its plugins list by ids; an id is not used for another piece.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.simulation.device_plugins import AllocationCall, FakeDevices
from plugind.actors.simulation.lease_owners import MemoryOwnerProcesses
from plugind.actors.simulation.node import SimulatedNode
from plugind.actors.simulation.plugins import FakePlugin, PluggedIn
from plugind.protocol.plugins.devices import HEALTHY, UNHEALTHY, Device, DeviceOptions
from plugind.protocol.plugins.info import DEVICE
from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as api
from plugind.tests.fuzz.preparation_oracle import PreparationOracle, Preparing

if TYPE_CHECKING:
    from plugind.actors.simulation.network import Process

T = TypeVar("T")

#: The root in which these plugins are found.
FOUND: Final = "/lab"
#: The resources, how many pieces each has, and the calls that their plugins offer.
GPU: Final = "lab.com/gpu"
NIC: Final = "lab.com/nic"
PIECES: Final = {GPU: 4, NIC: 3}
_OPTIONS: Final = (
    DeviceOptions(),
    DeviceOptions(get_preferred_allocation_available=True),
    DeviceOptions(pre_start_required=True),
    DeviceOptions(pre_start_required=True, get_preferred_allocation_available=True),
)
#: How many plugins a resource has at once, at most.
_AT_ONCE: Final = 2
#: An answer that is of no use.
_NONSENSE: Final = (
    api.AllocateResponse(),
    api.AllocateResponse(container_responses=[api.ContainerAllocateResponse()] * 2),
    api.AllocateResponse(
        container_responses=[api.ContainerAllocateResponse(mounts=[api.Mount(host_path="here", container_path="/a")])]
    ),
    api.AllocateResponse(container_responses=[api.ContainerAllocateResponse(envs={"A": "a\x00b"})]),
)


class LeasedDevices(FakeDevices):
    """The service of one plugin, which tells the oracle what becomes of each call that prepares devices."""

    def __init__(self, resource: str, oracle: PreparationOracle, options: DeviceOptions) -> None:
        super().__init__(options=options)
        self._resource = resource
        self._oracle = oracle
        #: Called when a call comes.
        self.on_call: Callable[[AllocationCall], None] = lambda _: None
        #: The process that serves.
        self.process: Process | None = None
        #: The call with which the fault ends that is set; None if it stays.
        self.faulty: AllocationCall | None = None

    async def _react(self, call: AllocationCall, peer: object, ids: Iterable[str], answer: Callable[[], T]) -> T:
        named = tuple(ids)
        preparing = Preparing(self._resource, call.value, named, self.process, trio.current_time())
        self.on_call(call)
        try:
            if call is AllocationCall.PREFERRED:
                return await super()._react(call, peer, named, answer)
            return await self._prepare(preparing, super()._react(call, peer, named, answer))
        finally:
            if call is self.faulty:
                self.behave()

    async def _prepare(self, preparing: Preparing, answer: Awaitable[T]) -> T:
        self._oracle.begins(preparing)
        try:
            made = await answer
        except GRPCError:
            self._oracle.refused(preparing)
            raise
        except trio.Cancelled:
            self._oracle.lost(preparing)
            raise
        self._oracle.answered(preparing)
        return made

    def behave(self) -> None:
        """Do what it is asked, at once."""
        self.hangs.clear()
        self.errors.clear()
        self.delays.clear()
        self.answer = self.faulty = None

    def allocate(self, ids: list[str]) -> api.ContainerAllocateResponse:
        """Name the devices in an environment variable of the resource."""
        name = self._resource.rpartition("/")[2].upper()
        return api.ContainerAllocateResponse(envs={name: ",".join(ids)})


@attrs.define(eq=False)
class LabPlugin:
    """One device plugin."""

    resource: str
    plugged: PluggedIn
    service: LeasedDevices


@attrs.define(eq=False)
class LeasePlugins:
    """The device plugins of one script."""

    _oracle: PreparationOracle
    #: Where the lease actor learns that processes have ended.
    _processes: MemoryOwnerProcesses
    #: Set before the script is played.
    node: SimulatedNode = attrs.field(init=False)
    plugins: dict[str, LabPlugin] = attrs.field(init=False, factory=dict)
    #: Called when a plugin is called.
    on_call: Callable[[AllocationCall], None] = lambda _: None
    #: By resource: what is before the number of a piece in its id, and how each piece is; None if it was taken out.
    _prefixes: dict[str, str] = attrs.field(init=False, factory=lambda: dict.fromkeys(PIECES, "d"))
    _healths: dict[str, list[str | None]] = attrs.field(
        init=False, factory=lambda: {name: [HEALTHY] * number for name, number in PIECES.items()}
    )
    _pids: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(3_000_000))
    _names: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(1))

    def of(self, resource: str) -> list[LabPlugin]:
        """Return the plugins of a resource, the first one first."""
        return [plugin for plugin in self.plugins.values() if plugin.resource == resource]

    def ids(self, resource: str) -> list[str]:
        """Return the ids that the pieces of a resource have now, also of those that are not there."""
        return [f"{self._prefixes[resource]}{number}" for number in range(PIECES[resource])]

    # --- processes ----------------------------------------------------------------------------------------------------

    def start(self, resource: str, options: DeviceOptions) -> LabPlugin:
        """Let a plugin of ``resource`` start."""
        name = resource.rpartition("/")[2]
        letters = (f"{name}-{letter}.sock" for letter in "abcd")
        path = next(path for letter in letters if (path := os.path.join(FOUND, letter)) not in self.plugins)
        service = LeasedDevices(resource, self._oracle, options)
        service.on_call = lambda call: self.on_call(call)
        if self.node.directory.exists(path):
            self.node.directory.unlink(path)
        fake = FakePlugin(DEVICE, resource, ("v1beta1",), serves=[service])
        plugged = self.node.plug(path, fake, pid=next(self._pids))
        plugin = self.plugins[path] = LabPlugin(resource, plugged, service)
        self._note_process(plugin)
        service.show(*self._devices(resource))
        return plugin

    def change_process(self, resource: str, chance: random.Random) -> None:
        """Let a plugin start, stop, crash, restart, or break its connections."""
        present = self.of(resource)
        if not present:
            self.start(resource, chance.choice(_OPTIONS))
            return
        plugin = chance.choice(present)
        match chance.randrange(9):
            case 0:
                self.stop(plugin)
            case 1 | 2:
                self._end(plugin)
                plugin.plugged.restart()
                self._note_process(plugin)
            case 3:
                self._end(plugin)
                plugin.plugged.crash()
            case 4:
                self.revive(plugin)
            case 5:
                plugin.plugged.reset()
            case 6:
                plugin.plugged.half_close()
            case 7:
                # Its stream of lists ends, and it goes on.
                plugin.service.end(chance.choice((None, GRPCError(Status.UNAVAILABLE, "no"))))
            case _ if len(present) < _AT_ONCE:
                self.start(resource, chance.choice(_OPTIONS))
            case _:
                self.stop(plugin)

    def register_anew(self, resource: str) -> None:
        """Let a plugin make its socket anew, while its process goes on."""
        for plugin in self.of(resource)[:1]:
            if plugin.plugged.alive and self.node.directory.exists(plugin.plugged.path):
                plugin.plugged.unlink()
                plugin.plugged.bind()
                plugin.plugged.listen()

    def stop(self, plugin: LabPlugin) -> None:
        """Let a plugin end, and remove its socket."""
        self._end(plugin)
        del self.plugins[plugin.plugged.path]
        plugin.plugged.stop()

    def crash_all(self) -> None:
        """All processes end, as in a reboot; their sockets are left behind."""
        for plugin in self.plugins.values():
            self._end(plugin)
            plugin.plugged.crash()

    def revive(self, plugin: LabPlugin) -> None:
        """Let a plugin run and listen that does not."""
        if not plugin.plugged.alive or not self.node.directory.exists(plugin.plugged.path):
            self._end(plugin)
            plugin.plugged.restart()
            self._note_process(plugin)

    def _end(self, plugin: LabPlugin) -> None:
        self._oracle.process_ended(plugin.service.process)
        self._processes.end(plugin.plugged.pid)

    def _note_process(self, plugin: LabPlugin) -> None:
        plugin.service.process = plugin.plugged.process
        self._processes.start(plugin.plugged.pid)

    # --- devices ------------------------------------------------------------------------------------------------------

    def change_devices(self, resource: str, chance: random.Random) -> None:
        """Let pieces turn unhealthy or well, be taken out or put in; or give them other ids."""
        healths = self._healths[resource]
        if chance.random() < 0.15:
            self._prefixes[resource] = f"r{next(self._names)}-"
        else:
            for number in chance.sample(range(len(healths)), chance.choice((1, 1, 2))):
                healths[number] = chance.choice((HEALTHY, HEALTHY, HEALTHY, HEALTHY, UNHEALTHY, UNHEALTHY, None))
        self._list(resource)

    def mend_devices(self) -> None:
        """Let all pieces be there, and well, by their first ids."""
        for resource, number in PIECES.items():
            self._prefixes[resource] = "d"
            self._healths[resource] = [HEALTHY] * number
            self._list(resource)

    def _list(self, resource: str) -> None:
        for plugin in self.of(resource):
            plugin.service.show(*self._devices(resource))

    def _devices(self, resource: str) -> list[Device]:
        healths = self._healths[resource]
        return [
            Device(name, health, (number // 2,))
            for number, (name, health) in enumerate(zip(self.ids(resource), healths, strict=True))
            if health is not None
        ]

    # --- answers ------------------------------------------------------------------------------------------------------

    def misbehave(self, resource: str, chance: random.Random) -> None:
        """Let the plugins of a resource hang, refuse, take their time, or answer nonsense: once, or for some time."""
        for plugin in self.of(resource):
            service, call = plugin.service, chance.choice([*AllocationCall, AllocationCall.ALLOCATE])
            service.behave()
            service.faulty = call if chance.random() < 0.7 else None
            match chance.randrange(6):
                case 0:
                    service.hangs.add(call)
                case 1:
                    service.errors[call] = GRPCError(Status.RESOURCE_EXHAUSTED, "not now")
                case 2 | 3:
                    service.delays[call] = chance.choice((0.1, 1.0, 3.0, 6.0, 29.0, 31.0))
                case 4 if call is AllocationCall.ALLOCATE:
                    service.answer = chance.choice(_NONSENSE)
                case _:
                    pass
