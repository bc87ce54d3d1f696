"""DRA drivers that are hostile where they tell the health of their devices, beside a good one, and a daemon."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from plugind.actors.simulation.dra_drivers import USUAL_SERVICES, FakeDRADriver
from plugind.benchmarks.peers.hostile.process import hostile_peers
from plugind.protocol.handlers.dra_health import DeviceReport, DRADeviceHealth
from plugind.testing import FakePlugin
from plugind.tests.end_to_end.processes import Daemon, daemon
from plugind.tests.end_to_end.sockets import serving

HEALTH = "v1.DRAResourceHealth"
REFUSED = f"{HEALTH} is refused: "
#: What is shown of each driver, and the fact that shows it.
SHOWN = (
    ("device-health", HEALTH),
    ("devices", "0 healthy, 4096 unhealthy, 0 unknown"),
    ("device-health", f"{REFUSED}it has more than 4096 fields"),
    ("device-health", f'{REFUSED}a pool or a device is named "": a name has 1 to 253 characters that print'),
    ("device-health", f"{REFUSED}Error parsing message"),
    ("device-health", f"{REFUSED}it ends in the middle of a field"),
)
HUGE = "dra-health-00001.example.com"
KIB = 1024


def most_memory(node: Daemon) -> int:
    """Return the most memory that the daemon had so far, in KiB."""
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def shows(key: str, text: str, facts: dict[str, str]) -> bool:
    return text in facts.get(key, "")


async def test_hostile_health_of_devices_costs_little_and_a_good_driver_beside_it_is_heard(tmp_path: Path) -> None:
    """Fault 65 for the streams of DRA drivers: floods, 10,000 devices, the longest texts, no names, no messages."""
    good = FakeDRADriver((*USUAL_SERVICES, HEALTH))
    good.show(DeviceReport("pool-0", "gpu-0", DRADeviceHealth.HEALTHY, timeout=3600))
    plugin = FakePlugin("DRAPlugin", "good.example.com", ("v1.DRAPlugin", HEALTH), serves=[good])
    with ExitStack() as stack:
        node = stack.enter_context(daemon(tmp_path))
        await node.ready()
        before = most_memory(node)
        stack.enter_context(hostile_peers("dra-health", node.root, len(SHOWN)))
        for index, (key, text) in enumerate(SHOWN):
            await node.facts(f"dra-health-{index:05d}.example.com", partial(shows, key, text))
        async with serving(node.root / "good.sock", plugin):
            await node.facts(plugin.name, partial(shows, "devices", "1 healthy"))
            good.show(DeviceReport("pool-0", "gpu-0", DRADeviceHealth.UNHEALTHY, "ECC", timeout=3600))
            await node.facts(plugin.name, partial(shows, "devices", "1 unhealthy"))
        _, huge = await node.get(f"/plugins/{HUGE}")
        _, metrics = await node.get("/metrics")
        cost = most_memory(node) - before
        log = node.log.read_text()
    # Facts have at most 16 KiB.
    assert len(huge) < 32 * KIB
    assert len(metrics) < 64 * KIB
    assert len(log) < 16 * KIB
    # Of one driver, a message of 4 MiB, what it says, and what was kept of the one before.
    assert cost < 64 * KIB
