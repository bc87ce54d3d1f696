"""What the log says of leases, in a whole simulated node."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from unittest.mock import AsyncMock, patch

import attrs
import pytest
import trio

from plugind.actors.leases.lease_log import MAX_LABELS, OWNERS_RUN, LeaseLog
from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.protocol.errors import StateError
from plugind.protocol.leases.effects import StopOwner
from plugind.protocol.leases.messages import REBOOTED, Kept
from plugind.protocol.leases.replies import LeaseFailedError
from plugind.protocol.leases.values import (
    ContainerOwner,
    Lease,
    LeaseState,
    NoOwner,
    ProcessIdentity,
    ProcessOwner,
    Request,
    Wanted,
)
from plugind.protocol.logs.limits import LogLimits
from plugind.protocol.logs.lines import Field, Level
from plugind.protocol.plugins.devices import Device
from plugind.protocol.settings.config import Config
from plugind.testing import AllocationCall, FakePlugin, SimulatedNode

GPU = "vendor.com/gpu"
#: The user of a simulated daemon.
USER = 500


@attrs.define
class Log:
    """Keeps the lines about leases."""

    lines: list[tuple[Level, str, dict[str, Field]]] = attrs.field(factory=list)

    def enabled(self, level: Level) -> bool:
        return True

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        if "lease" in message or "devices are withheld" in message or "owner" in message:
            self.lines.append((level, message, {name: value for name, value in fields.items() if value is not None}))

    def take(self) -> list[tuple[Level, str, dict[str, Field]]]:
        lines, self.lines = self.lines, []
        return lines


async def started(node: SimulatedNode) -> FakeDevices:
    devices = FakeDevices((Device("gpu-0"), Device("gpu-1")))
    node.plug("a.sock", FakePlugin("DevicePlugin", GPU, ("v1beta1",), serves=[devices]))
    await node.settled()
    return devices


async def test_the_log_names_each_lease_that_is_granted_or_ends_and_each_caller_who_gets_none(
    autojump_clock: object,
) -> None:
    log = Log()
    async with SimulatedNode(log=log) as node:
        await started(node)
        async with node.supervisor.allocate({GPU: 2}, id="mine"):
            await trio.sleep(90.0)
            with pytest.raises(LeaseFailedError) as caught:
                async with node.supervisor.allocate({GPU: 1}):
                    pass
    granted = {"lease": "mine", "user": USER, "pid": os.getpid(), "devices": f"{GPU}=gpu-0,gpu-1"}
    assert log.take() == [
        (Level.INFO, "lease is granted", granted),
        (Level.INFO, "no lease is given", {"user": USER, "resources": GPU, "reason": str(caught.value)}),
        (Level.INFO, "lease has ended", granted | {"seconds": 90.0, "reason": "it was released"}),
    ]


async def test_the_log_warns_of_leases_that_are_uncertain(autojump_clock: object) -> None:
    log = Log()
    async with SimulatedNode(log=log) as node:
        (await started(node)).hangs.add(AllocationCall.ALLOCATE)
        with pytest.raises(LeaseFailedError):
            async with node.supervisor.allocate({GPU: 2}, id="mine"):
                pass
        await trio.sleep(100.0)
    uncertain = {"lease": "mine", "user": USER, "pid": os.getpid(), "devices": f"{GPU}=gpu-0,gpu-1"}
    late = f"{GPU}: no answer within 30 s"
    assert log.take() == [
        (Level.WARNING, "no lease is given", {"user": USER, "resources": GPU, "reason": late}),
        (Level.WARNING, "lease is uncertain", uncertain | {"reason": late}),
        (Level.INFO, "lease has ended", uncertain | {"reason": "its plugin is no longer preparing it"}),
    ]


async def test_the_log_says_how_many_leases_a_restart_has_kept_and_that_devices_are_withheld(
    autojump_clock: object,
) -> None:
    log = Log()
    async with SimulatedNode(log=log) as node:
        await started(node)
        async with node.supervisor.allocate({GPU: 1}):
            await node.kill()
            log.take()
            await node.start()
            await node.settled()
            assert log.take() == [(Level.INFO, "leases are kept", {"leases": 1})]
            await node.kill()
            node.lease_store.leases.clear()
            node.lease_store.withheld = "the file was lost"
            node.owners.start(os.getpid())
            log.take()
            await node.start()
            await node.settled()
            assert log.take() == [(Level.ERROR, "all devices are withheld", {"reason": "the file was lost"})]
            assert (await node.supervisor.internals.counts()).withheld


async def test_who_got_devices_is_never_left_out_and_who_got_none_is(autojump_clock: object) -> None:
    """Faults 48 and 91: 29 of 40 grants in a minute were "repeated", so that nobody knew who had had the devices."""
    log = Log()
    async with SimulatedNode(Config(log_limits=LogLimits(same=2, each=4, total=30)), log=log) as node:
        await started(node)
        for number in range(40):
            async with node.supervisor.allocate({GPU: 1}, id=f"job {number}"):
                with pytest.raises(LeaseFailedError):
                    async with node.supervisor.allocate({GPU: 7}):
                        pass
        lines = [(message, fields.get("lease")) for _, message, fields in log.take()]
    jobs = [f"job {number}" for number in range(40)]
    assert [lease for message, lease in lines if message == "lease is granted"] == jobs
    assert [lease for message, lease in lines if message == "lease has ended"] == jobs
    assert [message for message, _ in lines].count("no lease is given") == 2


def test_a_grant_names_the_process_and_the_labels_and_an_end_how_long_that_was() -> None:
    """The labels of a lease may have 64 KB, and a lease that a restart has kept has it since it was asked for."""
    log, now = Log(), 100.0
    of_leases = LeaseLog(log, lambda: now)
    request = Request((Wanted(GPU, 1),), labels=(("job", "7"), ("long", "x" * 9000)))
    lease = Lease("a", 1000, request, ContainerOwner(ProcessIdentity(7, 1, "boot")), LeaseState.HELD, 40.0)
    of_leases.show(lease.moved(LeaseState.PENDING), lease)
    now = 90.0  # The clock was set back.
    of_leases.show(lease, lease.moved(LeaseState.GONE))
    of_leases.keep(Kept((attrs.evolve(lease, owner=NoOwner()),)))
    of_leases.show(lease, lease.moved(LeaseState.GONE))
    granted, ended, _, ended_after_restart = (fields for _, _, fields in log.take())
    labels = str(granted["labels"])
    assert (granted["pid"], labels[:12], len(labels)) == (7, "job=7,long=x", MAX_LABELS + len("…(+8755)"))
    assert (ended["seconds"], ended_after_restart["seconds"]) == (0.0, 50.0)


def test_each_lease_that_ended_with_another_boot_has_a_line_like_any_other() -> None:
    log = Log()
    of_leases = LeaseLog(log, lambda: 90.0)
    owner = ProcessOwner(ProcessIdentity(7, 1, "boot"))
    request = Request((Wanted(GPU, 1),), labels=(("job", "7"),))
    held = Lease("a", 1000, request, owner, LeaseState.HELD, 40.0, {GPU: ("gpu-0",)}, reason=REBOOTED)
    uncertain = attrs.evolve(held, id="b", state=LeaseState.UNCERTAIN)
    pending = attrs.evolve(held, id="c", state=LeaseState.PENDING)
    of_leases.show_other_boot(Kept(ended=(held, uncertain, pending), moved=2))
    said = {"user": 1000, "pid": 7, "devices": f"{GPU}=gpu-0", "labels": "job=7", "reason": REBOOTED}
    assert log.take() == [
        (Level.INFO, "lease has ended", {"lease": "a", **said, "seconds": 50.0}),
        (Level.INFO, "lease has ended", {"lease": "b", **said}),
        (Level.WARNING, "leases of another boot are kept", {"leases": 2, "reason": OWNERS_RUN}),
    ]


@pytest.mark.parametrize("late", [False, True])
async def test_a_start_says_which_leases_the_reboot_has_ended(autojump_clock: object, late: bool) -> None:
    """Also if the state can be read only some time after the start."""
    log = Log()
    async with SimulatedNode(log=log) as node:
        await node.kill()
        store = node.lease_store
        held = Lease("a", 0, Request((Wanted(GPU, 1),)), NoOwner(), LeaseState.HELD, 40.0, reason=REBOOTED)
        read = AsyncMock(side_effect=[*([StateError("no disk")] if late else []), Kept(ended=(held,))])
        with patch.object(type(store), "read_leases", read):
            await node.start()
            await trio.sleep(60.0)
        ended = [(fields["lease"], fields["reason"]) for _, said, fields in log.take() if said == "lease has ended"]
        assert ended == [("a", REBOOTED)]


@pytest.mark.parametrize("when", ["while plugind runs", "while plugind is away"])
async def test_the_log_names_a_leased_device_that_its_plugin_lists_no_more(autojump_clock: object, when: str) -> None:
    log, left = Log(), FakeDevices((Device("gpu-1"),))
    async with SimulatedNode(log=log) as node, AsyncExitStack() as stack:
        devices = FakeDevices((Device("gpu-0"), Device("gpu-1")))
        plugged = node.plug("a.sock", FakePlugin("DevicePlugin", GPU, ("v1beta1",), serves=[devices]))
        await node.settled()
        await stack.enter_async_context(node.supervisor.allocate({GPU: 1}, ids=["gpu-0"], id="mine"))
        if when == "while plugind runs":
            devices.show(Device("gpu-1"))
        else:
            await node.kill()
            plugged.stop()
            node.plug("a.sock", FakePlugin("DevicePlugin", GPU, ("v1beta1",), serves=[left]))
            await node.start()
        await trio.sleep(20.0)
        (missing,) = [fields for level, _, fields in log.take() if level is Level.WARNING]
    assert missing["devices"] == f"{GPU}=gpu-0"
    assert str(missing["reason"]).startswith(f"unhealthy, {GPU} no longer lists gpu-0")


def test_the_log_says_that_an_owner_was_stopped_or_could_not_be() -> None:
    log = Log()
    effect = StopOwner("mine", ProcessIdentity(7, 1, "boot"), 1000, "gpu-0 is unhealthy")
    LeaseLog(log, lambda: 0.0).stop(effect)
    LeaseLog(log, lambda: 0.0).fail_to_stop(effect, PermissionError(1, "it is a process of user 0"))
    fields = {"lease": "mine", "user": 1000, "pid": 7, "reason": "gpu-0 is unhealthy"}
    assert log.take() == [
        (Level.WARNING, "owner is stopped", fields),
        (Level.WARNING, "owner cannot be stopped", fields | {"error": "it is a process of user 0"}),
    ]
