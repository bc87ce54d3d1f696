"""The devices actor: what followers tell it is kept, shown and written, also over a crash."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from plugind.actors.devices import actor
from plugind.actors.devices.inbox import DevicesInbox
from plugind.actors.devices.state import DEADLINE, MemoryStore, ResourceWriter
from plugind.actors.node.supervision import Children, ChildSpec, Crashes
from plugind.protocol.backoff import RestartIntensity
from plugind.protocol.devices.messages import (
    DevicesAsked,
    DevicesMessage,
    DevicesSubscribed,
    DevicesViewMessage,
    InstanceAdded,
    InstanceRemoved,
    InstanceRole,
    ListLost,
    ListReceived,
    ResourceChanged,
)
from plugind.protocol.devices.resources import Forget, Remember
from plugind.protocol.errors import StateError
from plugind.protocol.logs.lines import SILENT
from plugind.protocol.messages.status import Lagged
from plugind.protocol.plugins.devices import (
    Device,
    DeviceList,
    DeviceOptions,
    DevicesSnapshot,
    KnownResource,
    ResourceState,
    ResourceStatus,
)
from plugind.protocol.plugins.info import DEVICE, Plugin

GPU = "vendor.com/gpu"


def listed(*healths: str) -> DeviceList:
    return DeviceList(Device(f"d{number}", health) for number, health in enumerate(healths or ["Healthy"]))


def added(socket: str, name: str = GPU) -> InstanceAdded:
    plugin = Plugin(DEVICE, name, socket, ("v1beta1",), socket, 1)
    return InstanceAdded(plugin, DeviceOptions(), f"socket {socket}", trio.current_time())


def received(socket: str, devices: DeviceList) -> ListReceived:
    return ListReceived(socket, 1, devices, trio.current_time())


def lost(socket: str, reason: str = "the stream ended") -> ListLost:
    return ListLost(socket, 1, reason, trio.current_time())


@attrs.define
class SlowStore(MemoryStore):
    """A store that takes its time, or fails."""

    seconds: float = 0.0
    failure: str | None = None
    writes: list[Sequence[Remember | Forget]] = attrs.field(factory=list)

    async def begin(self) -> None:
        await trio.sleep(self.seconds)
        if self.failure is not None:
            raise StateError(self.failure)

    async def read(self) -> Sequence[KnownResource]:
        await trio.sleep(self.seconds)
        if self.failure is not None:
            raise StateError(self.failure)
        return await super().read()

    async def write(self, changes: Sequence[Remember | Forget]) -> None:
        await trio.sleep(self.seconds)
        if self.failure is not None:
            raise StateError(self.failure)
        self.writes.append(changes)
        await super().write(changes)


class ReadOnlyStore(SlowStore):
    """A store that can be read, and not be written while it fails."""

    async def read(self) -> Sequence[KnownResource]:
        return await MemoryStore.read(self)


@attrs.define
class Running:
    """A devices actor that runs under a supervisor."""

    inbox: DevicesInbox = attrs.field(factory=DevicesInbox)
    memory: actor.DevicesMemory = attrs.field(factory=actor.DevicesMemory)
    store: SlowStore = attrs.field(factory=SlowStore)
    crashes: list[str] = attrs.field(factory=list)

    @asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        writer = ResourceWriter(self.store, SILENT)
        crashes = Crashes(RestartIntensity(), lambda name, _: self.crashes.append(name))
        async with trio.open_nursery() as nursery:
            children = Children(nursery, crashes)
            await actor.read(writer, self.memory)
            children.start(ChildSpec("devices", lambda: actor.run(self.inbox, writer, self.memory, SILENT)))
            await trio.testing.wait_all_tasks_blocked()
            yield
            await children.stop_all()

    def send(self, *messages: DevicesMessage) -> None:
        for message in messages:
            self.inbox.send_nowait(message)

    async def snapshot(self) -> DevicesSnapshot:
        reply, answer = trio.open_memory_channel[DevicesSnapshot](1)
        self.send(DevicesAsked(reply))
        return await answer.receive()

    async def shown(self, name: str = GPU) -> ResourceStatus:
        found = (await self.snapshot()).find(name)
        assert found is not None
        return found

    async def counts(self, name: str = GPU) -> tuple[int, int]:
        found = await self.shown(name)
        return found.capacity, found.allocatable


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    running = Running()
    async with running.started():
        yield running


async def test_a_lost_resource_goes_when_its_grace_is_over_without_any_message(
    running: Running, autojump_clock: trio.testing.MockClock
) -> None:
    """The actor wakes by itself; the stream of changes says so at that time."""
    subscriber, changes = trio.open_memory_channel[DevicesViewMessage](10)
    running.send(added("/a"), received("/a", listed()), lost("/a"), InstanceRemoved("/a", 1, trio.current_time()))
    running.send(DevicesSubscribed(subscriber))
    assert isinstance(await changes.receive(), DevicesSnapshot)
    change = await changes.receive()
    assert isinstance(change, ResourceChanged)
    assert (change.time, change.resource.name, change.resource.state) == (300.0, GPU, ResourceState.GONE)
    assert (await running.snapshot()).resources == ()


async def test_a_crash_changes_nothing_that_is_shown(running: Running, autojump_clock: trio.testing.MockClock) -> None:
    """The next actor is told again what is the case, and knows since when (fault 85)."""
    running.send(added("/a"), InstanceRole("/a", 1, active=True), received("/a", listed("Healthy", "Sick")))
    running.send(added("/b", "vendor.com/nic"), received("/b", listed()), lost("/b"))
    await trio.sleep(7.0)
    before = (await running.snapshot()).resources
    running.send("poison")  # type: ignore[arg-type]
    await trio.sleep(1.0)
    assert running.crashes == ["devices"]
    assert (await running.snapshot()).resources == before


async def test_a_message_that_a_crash_loses_is_made_up_for(
    running: Running, autojump_clock: trio.testing.MockClock
) -> None:
    """What the actor had taken and not handled is sent again: the removal too, by its absence."""
    running.send(added("/a"), received("/a", listed()), added("/b"), received("/b", listed()))
    await running.snapshot()
    running.inbox.send_nowait(received("/a", listed("Sick")))
    running.inbox.send_nowait(InstanceRemoved("/b", 1, 0.0))
    running.inbox.receive_nowait()
    running.inbox.receive_nowait()
    running.send("poison")  # type: ignore[arg-type]
    await trio.sleep(1.0)
    shown = await running.shown()
    assert [instance.socket for instance in shown.instances] == ["/a"]
    assert (shown.capacity, shown.allocatable) == (1, 0)


async def test_while_the_actor_lags_only_the_newest_list_of_each_plugin_waits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its inbox is bounded however fast the lists come (fault 86)."""
    running = Running()
    running.send(added("/a"), added("/b"))
    for number in range(1000):
        running.send(received("/a", listed(*["Healthy"] * number)), received("/b", listed()), lost("/b"))
    assert running.inbox.read().waiting == 5
    async with running.started():
        assert await running.counts() == (999, 999)
        assert running.inbox.read().taken < 10


async def test_a_subscriber_gets_each_change_after_the_snapshot(
    running: Running, autojump_clock: trio.testing.MockClock
) -> None:
    subscriber, changes = trio.open_memory_channel[DevicesViewMessage](10)
    running.send(added("/a"), received("/a", listed()), DevicesSubscribed(subscriber))
    first = await changes.receive()
    assert isinstance(first, DevicesSnapshot)
    assert [resource.capacity for resource in first.resources] == [1]
    running.send(received("/a", listed("Healthy", "Sick")))
    await trio.testing.wait_all_tasks_blocked()
    running.send(received("/a", listed("Healthy", "Sick")))  # Nothing is different.
    running.send(lost("/a"))
    seen = [(await changes.receive()) for _ in range(2)]
    assert [
        (change.resource.capacity, change.resource.allocatable)
        for change in seen
        if isinstance(change, ResourceChanged)
    ] == [(2, 1), (2, 0)]
    await trio.testing.wait_all_tasks_blocked()
    assert changes.statistics().current_buffer_used == 0


async def test_a_subscriber_that_does_not_read_is_dropped_and_told_so(
    running: Running, autojump_clock: trio.testing.MockClock
) -> None:
    """It costs what its channel holds, and slows no other (fault 86)."""
    subscriber, changes = trio.open_memory_channel[DevicesViewMessage](3)
    running.send(added("/a"), DevicesSubscribed(subscriber))
    for number in range(10):
        running.send(received("/a", listed(*["Healthy"] * number)))
        await trio.testing.wait_all_tasks_blocked()
    for _ in range(3):
        await changes.receive()
    running.send(lost("/a"))
    assert await changes.receive() == Lagged()
    assert running.memory.audience.subscribers == []


async def test_streams_that_ended_and_devices_are_counted_under_a_bounded_number_of_names(
    running: Running, autojump_clock: trio.testing.MockClock
) -> None:
    """The first 64 resources have a label; the others share one (fault 92)."""
    for number in range(70):
        running.send(added(f"/{number}", f"v.com/r{number:02}"), received(f"/{number}", listed()), lost(f"/{number}"))
    snapshot = await running.snapshot()
    assert len(snapshot.streams_ended) == len(snapshot.counts) == 65
    assert snapshot.streams_ended["other"] == 6
    assert snapshot.counts["other"] == (0, 6)


# --- what outlives a restart ------------------------------------------------------------------------------------------


async def test_the_resources_of_the_last_run_are_awaited(autojump_clock: trio.testing.MockClock) -> None:
    running = Running()
    async with running.started():
        running.send(added("/a"), received("/a", listed()))
        await running.snapshot()
        await trio.testing.wait_all_tasks_blocked()
    again = Running(store=running.store)
    async with again.started():
        shown = await again.shown()
        assert (shown.state, shown.capacity) == (ResourceState.AWAITED, 0)
        await trio.sleep(301.0)
        assert (await again.snapshot()).resources == ()
    assert again.store.resources == {}


async def test_a_slow_write_holds_up_nothing_and_is_shown(autojump_clock: trio.testing.MockClock) -> None:
    """There is one write at a time; what comes meanwhile is written in the next one."""
    running = Running()
    async with running.started():
        running.store.seconds = 60.0
        running.send(added("/a"), received("/a", listed()))
        await trio.sleep(DEADLINE - 1.0)
        assert (await running.snapshot()).problem is None
        running.send(received("/a", listed("Healthy", "Healthy")))
        running.send(added("/b", "v.com/b"), received("/b", listed()))
        await trio.sleep(2.0)
        assert (await running.snapshot()).problem == "the state was not written within 5 s"
        assert running.inbox.read().wrong == "the state was not written within 5 s"
        assert await running.counts() == (2, 2)
        running.store.seconds = 0.0
        await trio.sleep(60.0)
        assert running.store.resources == {GPU: 2, "v.com/b": 1}
        assert (await running.snapshot()).problem is None
    assert [len(write) for write in running.store.writes] == [1, 2]


async def test_a_store_that_cannot_be_read_at_the_start_is_read_later(autojump_clock: trio.testing.MockClock) -> None:
    """Its resources are awaited from then on, and nothing of it is forgotten meanwhile (fault 88)."""
    running = Running(store=SlowStore({GPU: 3, "v.com/a": 1}, failure="no disk"))
    async with running.started():
        running.send(added("/a", "v.com/a"), received("/a", listed("Healthy", "Sick")))
        await trio.sleep(10.0)
        snapshot = await running.snapshot()
        assert ([resource.name for resource in snapshot.resources], snapshot.problem) == (["v.com/a"], "no disk")
        assert running.store.resources == {GPU: 3, "v.com/a": 1}
        running.store.failure = None
        await trio.sleep(30.0)
        assert [
            (resource.name, resource.state, resource.last_capacity) for resource in (await running.snapshot()).resources
        ] == [("v.com/a", ResourceState.LISTED, None), (GPU, ResourceState.AWAITED, 3)]
        assert (await running.snapshot()).problem is None
        assert running.store.resources == {GPU: 3, "v.com/a": 2}


async def test_what_can_only_be_read_is_awaited_and_the_report_goes_without_any_change(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The disk is full at the start: the store is tried again until it can be written, with nothing to write."""
    running = Running(store=ReadOnlyStore({GPU: 3}, failure="no space"))
    async with running.started():
        assert (await running.shown()).state is ResourceState.AWAITED
        assert (await running.snapshot()).problem == "no space"
        await trio.sleep(60.0)
        assert (await running.snapshot()).state_failures == 6  # At 0, 1, 3, 7, 15 and 31 s.
        running.store.failure = None
        await trio.sleep(30.0)
        assert (await running.snapshot()).problem is None
        assert running.inbox.read().wrong is None


async def test_what_is_unwritten_survives_a_crash(autojump_clock: trio.testing.MockClock) -> None:
    """A write that was under way is made again."""
    running = Running()
    async with running.started():
        running.store.seconds = 3.0
        running.send(added("/a"), received("/a", listed()))
        await trio.sleep(1.0)
        running.send("poison")  # type: ignore[arg-type]
        await trio.sleep(10.0)
    assert running.store.resources == {GPU: 1}
