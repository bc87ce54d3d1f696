"""``plugind demo``: a small running node that needs no set-up.

The demo makes a temporary directory, embeds a node as a program would, and runs eight fake plugins: some work, some are
faulty, one dies and comes back, one is replaced, and a device of one turns unhealthy and healthy again. The demo leases
devices now and then, as any program can. :mod:`~plugind.actors.console.demo_display` shows what happens.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial

import attrs
import trio

from ...protocol.leases.replies import LeaseFailedError
from ...protocol.logs.lines import SILENT
from ...protocol.plugins.info import CSI, DEVICE, DRA
from ...protocol.settings.config import Config, Root
from ...supervisor import Supervisor
from ..io.connecting import MAX_PATH
from ..simulation.csi_drivers import FakeCSIDriver
from ..simulation.file_devices import DeviceFile, FileDevices
from ..simulation.plugins import Call, FakePlugin
from .demo_display import Display, Guide
from .ending import EXIT_FAILED, EXIT_OK
from .fake import FakeSpec, run_fake

#: Seconds in which ``--once`` settles, even on a slow machine.
SETTLE = 60.0

#: The longest path of a parent directory with which all sockets of the demo fit into a socket's address.
LONGEST_PARENT = MAX_PATH - 60

#: What each plugin demonstrates.
LEGEND = (
    ("csi, dra, gpu", "good plugins: facts of csi; devices of gpu, leased or unhealthy"),
    ("faulty, hung", "one fails twice, the other says nothing: deadlines, longer pauses"),
    ("odd", "no handler serves its type: parked, until a program adds one"),
    ("mortal", "dies and comes back: gone, then registered anew"),
    ("rolling", "a newer instance takes over, the older one stands by and leaves"),
)


@attrs.frozen
class Pace:
    """The times between the changes of plugins, in seconds."""

    lives: float
    stays_dead: float
    overlaps: float
    rounds: int | None


#: Slow enough to be followed, without an end.
ENDLESS = Pace(lives=12.0, stays_dead=5.0, overlaps=6.0, rounds=None)
#: Each change once.
ONCE = Pace(lives=1.0, stays_dead=0.5, overlaps=0.5, rounds=1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind demo``."""
    parser.description = (
        "Run a node on a temporary directory with eight fake plugins: one of each type that works, one that fails"
        " twice, one that hangs, one of a type that no handler serves, one that dies and comes back, and one that is"
        " replaced. The CSI driver tells its facts. A device of the device plugin turns unhealthy and back, and two are"
        " leased for a while. It says what to look for, and what to try from a second terminal. Ctrl-C ends it."
    )
    parser.epilog = "examples:\n  plugind demo\n  plugind demo --once | grep registered"
    parser.add_argument("--once", action="store_true", help="print the table when all plugins have settled, and exit")


def run(args: argparse.Namespace) -> int:
    """Run the demo; return the exit code."""
    return trio.run(_demo, args.once)


def steady_plugins(root: str) -> list[FakeSpec]:
    """Return the plugins that do not change."""
    return [
        FakeSpec(f"{root}/csi.sock", csi_plugin()),
        gpu_plugin(root),
        FakeSpec(f"{root}/dra.sock", FakePlugin(DRA, "dra.example.com", ("v1.DRAPlugin", "v1beta1.DRAPlugin"))),
        FakeSpec(f"{root}/faulty.sock", FakePlugin(CSI, "faulty.example.com", get_info_fails=2)),
        FakeSpec(f"{root}/hung.sock", FakePlugin(CSI, "hung.example.com", hang="get-info")),
        FakeSpec(f"{root}/odd.sock", FakePlugin("OddPlugin", "odd.example.com")),
    ]


def csi_plugin() -> FakePlugin:
    """Return the CSI driver that reports its node and its maximum number of volumes."""
    driver = FakeCSIDriver("csi.example.com", node_id="node-7", max_volumes=16, topology={"zone": "z1"})
    return FakePlugin(CSI, driver.name, serves=[driver])


def gpu_plugin(root: str) -> FakeSpec:
    """Return the device plugin whose devices change their health."""
    devices = FileDevices(DeviceFile(f"gpu-{number}", os.devnull, same_path=True) for number in range(4))
    plugin = FakePlugin(DEVICE, "example.com/gpu", ("v1beta1",), serves=(devices,))
    return FakeSpec(f"{root}/gpu.sock", plugin)


def mortal_plugin(root: str) -> FakeSpec:
    """Return the plugin that dies and comes back."""
    return FakeSpec(f"{root}/mortal.sock", FakePlugin(DEVICE, "example.com/mortal", ("v1beta1",)))


def rolling_plugin(root: str, instance: int) -> FakeSpec:
    """Return one instance of the plugin that is replaced; two sockets alternate."""
    return FakeSpec(f"{root}/rolling-{instance % 2}.sock", FakePlugin(DRA, "rolling.example.com", ("v1.DRAPlugin",)))


def own_command() -> str:
    """Return the command that runs this plugind in any terminal: its script, or its python."""
    script = os.path.abspath(sys.argv[0])
    if os.path.basename(script) == "plugind" and os.access(script, os.X_OK):
        return shlex.quote(script)
    return f"{shlex.quote(sys.executable)} -m plugind"


def guide(status: str) -> Guide:
    """Return the heading, the legend and the commands to try from a second terminal."""
    return Guide(
        heading="plugind demo: one node and eight fake plugins. Ctrl-C ends it.",
        legend=LEGEND,
        commands=(
            f"alias plugind={shlex.quote(own_command())}",
            f"export PLUGIND_STATUS={shlex.quote(status)}",
            "plugind ls; plugind describe csi.example.com; plugind retry odd.example.com",
            "plugind devices; plugind allocate example.com/gpu=1 -- sleep 3; plugind watch",
        ),
    )


def parent_directory() -> str:
    """Return the parent of the demo's directory: the usual temporary directory, or ``/tmp`` if its path is too long."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= LONGEST_PARENT else "/tmp"


async def _demo(once: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="plugind-demo-", dir=parent_directory()) as directory:
        root, status = f"{directory}/plugins", f"{directory}/status.sock"
        display = Display(guide(status), live=sys.stdout.isatty(), once=once)
        settled = False
        node = Supervisor(Config(roots=(Root(root),)), status_socket=status, log=SILENT)
        # Whatever ends the demo, its plugins end first and then the node, as on a real machine.
        async with node, trio.open_nursery() as nursery:
            await nursery.start(_cancel_at_signal, nursery.cancel_scope)
            await node.snapshot()
            left_to_do = await _play(nursery, root, ONCE if once else ENDLESS)
            left_to_do.add("lease")
            nursery.start_soon(_lease, node, ONCE if once else ENDLESS, partial(left_to_do.discard, "lease"))
            final = {spec.socket for spec in [*steady_plugins(root), mortal_plugin(root), rolling_plugin(root, 1)]}
            with trio.move_on_after(SETTLE) if once else trio.CancelScope():
                settled = await display.follow(node, lambda sockets: not left_to_do and sockets == final)
            nursery.cancel_scope.cancel()
    return EXIT_OK if settled or not once else EXIT_FAILED


async def _cancel_at_signal(
    scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()


async def _play(nursery: trio.Nursery, root: str, pace: Pace) -> set[str]:
    """Start all plugins; return the names of those that have not finished, a set that becomes empty."""
    left_to_do = {"gpu", "mortal", "rolling"}
    for spec in steady_plugins(root):
        await nursery.start(_fake, spec)
        for devices in spec.plugin.serves:
            if isinstance(devices, FileDevices):
                nursery.start_soon(_fail_and_recover, devices, pace, partial(left_to_do.discard, "gpu"))
    changing: list[tuple[str, Callable[[str, Pace, Callable[[], None]], Awaitable[None]]]]
    changing = [("mortal", _die_and_come_back), ("rolling", _replace)]
    for name, act in changing:
        nursery.start_soon(act, root, pace, partial(left_to_do.discard, name))
    return left_to_do


async def _fake(spec: FakeSpec, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    """Play a plugin until the scope passed to the caller is cancelled."""
    with trio.CancelScope() as life:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(run_fake, spec, on_call=_ignore))
            task_status.started(life)


def _ignore(call: Call) -> None:
    """Do nothing: the demo shows the side of the node."""


def _rounds(pace: Pace) -> Iterable[int]:
    return itertools.count() if pace.rounds is None else range(pace.rounds)


async def _fail_and_recover(devices: FileDevices, pace: Pace, done: Callable[[], None]) -> None:
    for _ in _rounds(pace):
        await trio.sleep(pace.overlaps)
        devices.turn(devices.ids[1:2], healthy=False)
        await trio.sleep(pace.stays_dead)
        devices.turn(devices.ids, healthy=True)
    done()


async def _lease(node: Supervisor, pace: Pace, done: Callable[[], None]) -> None:
    for _ in _rounds(pace):
        await trio.sleep(pace.overlaps / 2)
        # A user who tries the commands may have leased the devices.
        with suppress(LeaseFailedError):
            async with node.allocate({"example.com/gpu": 2}, wait=SETTLE):
                await trio.sleep(pace.overlaps)
        await trio.sleep(pace.stays_dead)
    done()


async def _die_and_come_back(root: str, pace: Pace, done: Callable[[], None]) -> None:
    async with trio.open_nursery() as nursery:
        for _ in _rounds(pace):
            life: trio.CancelScope = await nursery.start(_fake, mortal_plugin(root))
            await trio.sleep(pace.lives)
            life.cancel()
            await trio.sleep(pace.stays_dead)
        done()
        await nursery.start(_fake, mortal_plugin(root))


async def _replace(root: str, pace: Pace, done: Callable[[], None]) -> None:
    async with trio.open_nursery() as nursery:
        older: trio.CancelScope = await nursery.start(_fake, rolling_plugin(root, 0))
        for instance in _rounds(pace):
            await trio.sleep(pace.lives)
            newer: trio.CancelScope = await nursery.start(_fake, rolling_plugin(root, instance + 1))
            await trio.sleep(pace.overlaps)
            if instance + 1 == pace.rounds:
                done()
            older.cancel()
            older = newer
