"""What the log says of leases, in a whole simulated node."""

from __future__ import annotations

import os

import attrs
import pytest
import trio

from plugind.actors.leases.lease_log import LeaseLog
from plugind.actors.simulation import AllocationCall, FakePlugin, SimulatedNode
from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.protocol.config import Config
from plugind.protocol.devices import Device
from plugind.protocol.errors import AllocationError
from plugind.protocol.leases.effects import StopOwner
from plugind.protocol.leases.values import ProcessIdentity
from plugind.protocol.log_limits import LogLimits
from plugind.protocol.logs import Field, Level

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
            self.lines.append((level, message, {name: it for name, it in fields.items() if it is not None}))

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
            with pytest.raises(AllocationError) as caught:
                async with node.supervisor.allocate({GPU: 1}):
                    pass
    granted = {"lease": "mine", "user": USER, "devices": f"{GPU}=gpu-0,gpu-1"}
    assert log.take() == [
        (Level.INFO, "lease is granted", granted),
        (Level.INFO, "no lease is given", {"user": USER, "resources": GPU, "reason": str(caught.value)}),
        (Level.INFO, "lease has ended", granted | {"reason": "it was released"}),
    ]


async def test_the_log_warns_of_leases_that_are_uncertain(autojump_clock: object) -> None:
    log = Log()
    async with SimulatedNode(log=log) as node:
        (await started(node)).hangs.add(AllocationCall.ALLOCATE)
        with pytest.raises(AllocationError):
            async with node.supervisor.allocate({GPU: 2}, id="mine"):
                pass
        await trio.sleep(100.0)
    uncertain = {"lease": "mine", "user": USER, "devices": f"{GPU}=gpu-0,gpu-1"}
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


async def test_one_user_cannot_fill_the_log(autojump_clock: object) -> None:
    """Faults 48 and 91: each lease has its lines until the user has had a hundred."""
    log = Log()
    async with SimulatedNode(Config(log_limits=LogLimits(same=2, each=20)), log=log) as node:
        await started(node)
        for number in range(20):
            async with node.supervisor.allocate({GPU: 1}, id=f"lease {'abcdefghijklmnopqrst'[number]}"):
                pass
        granted = [fields["lease"] for _, message, fields in log.take() if message == "lease is granted"]
        assert len(granted) == len(set(granted)) == 10


def test_the_log_says_that_an_owner_was_stopped_or_could_not_be() -> None:
    log = Log()
    effect = StopOwner("mine", ProcessIdentity(7, 1, "boot"), 1000, "gpu-0 is unhealthy")
    LeaseLog(log).stop(effect)
    LeaseLog(log).fail_to_stop(effect, PermissionError(1, "it is a process of user 0"))
    fields = {"lease": "mine", "user": 1000, "pid": 7, "reason": "gpu-0 is unhealthy"}
    assert log.take() == [
        (Level.WARNING, "owner is stopped", fields),
        (Level.WARNING, "owner cannot be stopped", fields | {"error": "it is a process of user 0"}),
    ]
