"""Both managers, and what their handlers were called with."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

import plugind
from plugind.tests.differential.acts import HANDLED, Plugin


@attrs.define(eq=False)
class Manager:
    """What a manager has done with each plugin, in order; it may go on. A plugin here is a name at an endpoint.

    A plugin is ``registered``, ``refused`` by Validate, ``failed`` in Register, or ``deregistered``. A retry that ends
    as the attempt before it is left out. So is the Deregister of a Register that failed, which plugind calls and the
    kubelet does not (behaviour 36).
    """

    root: Path
    is_ready: bool = False
    done: dict[str, list[str]] = attrs.Factory(dict)

    def add(self, call: str, name: str, endpoint: str, versions: Iterable[str], error: str = "") -> None:
        """Add a call of a handler that has ended."""
        place = endpoint.removeprefix(f"{self.root}/")
        done = self.done.setdefault(f"{name} at {place}", [])
        last = done[-1] if done else ""
        if (call == "validate" and not error) or (call == "deregister" and last.startswith("failed")):
            return
        ended = {"validate": "refused", "register": "failed" if error else "registered", "deregister": "deregistered"}
        words = f"{ended[call]} {' '.join(versions)} {error}".strip()
        if words != last or not error:
            done.append(words)

    def held(self) -> set[str]:
        """Return the plugins that are registered."""
        return {plugin for plugin, done in self.done.items() if done and done[-1].startswith("registered")}


class _Handler:
    follow = None

    def __init__(self, manager: Manager, plugins: dict[str, Plugin]) -> None:
        self._manager = manager
        self._plugins = plugins

    async def validate(self, plugin: plugind.Plugin) -> None:
        """Refuse what is to be refused."""
        self._end("validate", plugin)

    async def register(self, plugin: plugind.Plugin) -> None:
        """Take as long as is wanted, and refuse what is to be refused."""
        await trio.sleep(self._plugins[plugin.name].seconds)
        self._end("register", plugin)

    async def deregister(self, plugin: plugind.Plugin) -> None:
        self._manager.add("deregister", plugin.name, plugin.endpoint, ())

    def _end(self, call: str, plugin: plugind.Plugin) -> None:
        refused = self._plugins[plugin.name].verdict == f"refuse {call}"
        error = f"{call} of {plugin.name} is refused" if refused else ""
        self._manager.add(call, plugin.name, plugin.endpoint, plugin.versions, error)
        if error:
            raise plugind.PluginError(error)


@asynccontextmanager
async def ours(root: Path, plugins: Iterable[Plugin]) -> AsyncIterator[Manager]:
    """Run plugind on ``root``."""
    manager = Manager(root)
    handler = _Handler(manager, {plugin.name: plugin for plugin in plugins})
    config = plugind.Config(roots=(plugind.Root(str(root)),))
    async with plugind.Supervisor(config, handlers={HANDLED: handler}):
        yield manager


@asynccontextmanager
async def theirs(program: str, root: Path, plugins: Iterable[Plugin]) -> AsyncIterator[Manager]:
    """Run the kubelet's plugin manager on ``root``."""
    manager = Manager(root)
    command = [program, f"--types={HANDLED}"]
    for plugin in plugins:
        for call in ("validate", "register"):
            rule: dict[str, Any] = {"call": call, "name": plugin.name}
            if plugin.verdict == f"refuse {call}":
                rule["error"] = f"{call} of {plugin.name} is refused"
            if call == "register" and plugin.seconds:
                rule["seconds"] = plugin.seconds
            if len(rule) > 2:
                command.append(f"--script={json.dumps(rule)}")
    async with trio.open_nursery() as nursery:
        process = await trio.lowlevel.open_process([*command, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            nursery.start_soon(_read, process, manager)
            yield manager
            if not manager.is_ready:
                # Its watcher needs an inotify instance, of which a user has 128.
                raise RuntimeError("the kubelet's plugin manager did not start: play fewer scripts side by side")
        finally:
            process.terminate()
            with trio.CancelScope(shield=True):
                await process.wait()
            nursery.cancel_scope.cancel()


async def _read(process: trio.Process, manager: Manager) -> None:
    versions: dict[str, tuple[str, ...]] = {}
    rest = b""
    assert process.stdout is not None
    async for piece in process.stdout:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            said = json.loads(line)
            manager.is_ready |= "ready" in said
            if said.get("call") in ("validate", "register"):
                versions[said["name"]] = tuple(said.get("versions") or ())
            if (call := said.get("returned")) is not None:
                own = versions.get(said["name"], ()) if call != "deregister" else ()
                manager.add(call, said["name"], said["endpoint"], own, said["error"])
