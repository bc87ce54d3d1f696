"""Updates and restarts with device plugins that register by a call, each in a process of its own."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import attrs
import trio

from plugind.tests.end_to_end.device_plugins import GRPCIO
from plugind.tests.end_to_end.processes import DEADLINE, daemon, plugin_process
from plugind.tests.end_to_end.test_devices import listed

GPU = "example.com/gpu"
Resource = Mapping[str, Any]


@attrs.define
class Resources:
    """What ``GET /v1/devices/watch`` tells, from the first line on."""

    _pieces: AsyncIterator[bytes]
    _rest: bytes = b""
    lines: list[Resource] = attrs.field(factory=list)

    async def until(self, condition: Callable[[Resource], bool]) -> Resource:
        """Read on until a line meets the ``condition``; return that."""
        with trio.fail_after(DEADLINE):
            while not (self.lines and condition(self.lines[-1])):
                while b"\n" not in self._rest:
                    self._rest += await anext(self._pieces)
                line, self._rest = self._rest.split(b"\n", 1)
                self.lines.append(json.loads(line))
        return self.lines[-1]


async def stopped(process: trio.Process) -> None:
    """Wait until the kernel says that the process is stopped."""
    status = trio.Path(f"/proc/{process.pid}/stat")
    with trio.fail_after(DEADLINE):
        while (await status.read_text()).rpartition(")")[2].split()[0] != "T":  # noqa: ASYNC110 - another process
            await trio.sleep(0.01)


async def test_the_capacity_never_leaves_4_while_a_new_plugin_is_stopped_before_its_first_list(tmp_path: Path) -> None:
    """Behaviour 37: a surge. The new plugin is really stopped, after it was told that it is registered."""
    directory = tmp_path / "device-plugins"
    directory.mkdir(0o755)
    async with AsyncExitStack() as stack:
        node = stack.enter_context(daemon(tmp_path, f"--device-plugins={directory}"))
        await node.ready()
        old = await stack.enter_async_context(plugin_process(GRPCIO.command(directory, "old.sock", GPU)))
        await old.line(listed=4)
        await listed(node)
        watch = Resources(await stack.enter_async_context(node.pieces("/v1/devices/watch")))
        command = GRPCIO.command(directory, "new.sock", GPU, "--stop-before-list")
        new = await stack.enter_async_context(plugin_process(command))
        await watch.until(lambda resource: len(resource["plugins"]) == 2)
        await stopped(new.process)
        new.process.send_signal(signal.SIGCONT)
        await watch.until(lambda resource: resource["plugin"] == str(directory / "new.sock"))
        await old.end()
        await watch.until(lambda resource: len(resource["plugins"]) == 1)
    assert {(line["capacity"], line["allocatable"]) for line in watch.lines} == {(4, 4)}


async def test_a_plugin_is_back_after_a_kill_of_the_daemon_that_looks_at_kubelet_sock_alone(tmp_path: Path) -> None:
    """Consumers B.3: dpm's plugins, for example. ``test_device_lists`` has those that look at their own sockets."""
    directory = tmp_path / "device-plugins"
    directory.mkdir(0o755)
    async with AsyncExitStack() as stack:
        with daemon(tmp_path, f"--device-plugins={directory}") as node:
            await node.ready()
            command = GRPCIO.command(directory, "gpu.sock", GPU, "--sign", "kubelet")
            await stack.enter_async_context(plugin_process(command))
            await listed(node)
            node.process.kill()
        with daemon(tmp_path, f"--device-plugins={directory}") as node:
            await listed(node)
