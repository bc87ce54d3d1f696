"""A directory with real sockets, whose plugins are tasks of this process, and what happens in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import assert_never

import trio

from plugind.actors.io.grpc_server.serve import ConnectionEnded, HandlerFailed, serve_listener
from plugind.actors.io.unix_socket import UnixListener, listen
from plugind.actors.simulation.plugins import Call, FakePlugin, FakeRegistration
from plugind.tests.differential.acts import Act, Plugin


class Process:
    """A plugin that listens. What the kernel does with the sockets of a process is done with these."""

    def __init__(self, plugin: Plugin, listener: UnixListener, tell: Callable[[str], None]) -> None:
        self.plugin = plugin
        self.listener = listener
        self._tell = tell
        self._serving = trio.CancelScope()
        self.inode = os.lstat(listener.path).st_ino
        self.is_frozen = False

    @property
    def answers(self) -> bool:
        """Whether it lives and is not frozen."""
        return not self.is_frozen and self.listener.socket.fileno() >= 0

    def run(self, nursery: trio.Nursery) -> None:
        """Accept and answer, from now on or again."""
        self.is_frozen = False
        self._serving = trio.CancelScope()
        nursery.start_soon(self._serve, self._serving)

    async def _serve(self, serving: trio.CancelScope) -> None:
        fake = FakePlugin(self.plugin.type, self.plugin.name, self.plugin.versions, serves=())
        service = FakeRegistration(fake, self._record, lambda: None)
        try:
            with serving:
                await serve_listener([service], self.listener, report=_ignore, keep_open=True)
        except* trio.ClosedResourceError:
            assert self.listener.socket.fileno() < 0, "the process has ended"

    def _record(self, call: Call) -> None:
        if call.registered is not None:
            self._tell("registered" if call.registered else call.error)

    def freeze(self) -> None:
        """Accept and answer nothing more; who connects waits in the backlog, as with SIGSTOP."""
        self.is_frozen = True
        self._serving.cancel()

    def end(self) -> None:
        """End; the file of the socket stays."""
        self._serving.cancel()
        self.listener.socket.close()


def _ignore(_: HandlerFailed | ConnectionEnded) -> None:
    """How a connection ended is nothing that is compared."""


class World:
    """A directory, and the processes in it by the path at which each one's socket is."""

    def __init__(self, root: Path, nursery: trio.Nursery) -> None:
        self.root = root
        self._nursery = nursery
        self._processes: dict[str, Process] = {}
        self._all: list[Process] = []
        #: What each process was told: that its plugin is registered, or why it is not; without repetitions. The
        #: processes of both worlds have the same numbers.
        self.verdicts: dict[str, list[str]] = {}

    def perform(self, act: Act) -> None:
        """Let it happen, if it is possible."""
        with suppress(FileNotFoundError, NotADirectoryError, FileExistsError, IsADirectoryError):
            self._perform(act)

    def _perform(self, act: Act) -> None:
        path, process = self.root / act.path, self._processes.get(act.path)
        match act.kind:
            case "start":
                self._end(act.path)
                with suppress(FileNotFoundError):
                    path.unlink()
                self._start(act, act.path)
            case "replace":
                self._start(act, f"{act.path}.tmp")
                self._end(act.path)
                self._move(f"{act.path}.tmp", act.path)
            case "stop":
                if process is not None:
                    path.unlink()
                    self._end(act.path)
            case "kill":
                self._end(act.path)
            case "freeze":
                if process is not None:
                    process.freeze()
            case "thaw":
                if process is not None and process.is_frozen:
                    process.run(self._nursery)
            case "unlink":
                path.unlink()
            case "rename":
                self._end(act.to)
                self._move(act.path, act.to)
            case "link":
                path.symlink_to(self.root / act.to)
            case "touch":
                path.unlink() if path.is_file() else path.touch(exist_ok=False)
            case "make":
                path.mkdir()
            case "remove":
                shutil.rmtree(path)
            case _:
                assert_never(act.kind)

    def _start(self, act: Act, path: str) -> None:
        assert act.plugin is not None
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        process = Process(act.plugin, listen(str(self.root / path)), partial(self._tell, len(self._all)))
        self._processes[path] = process
        self._all.append(process)
        process.run(self._nursery)

    def _tell(self, process: int, verdict: str) -> None:
        verdicts = self.verdicts.setdefault(f"process {process}", [])
        verdict = verdict.replace(f"{self.root}/", "")
        if verdicts[-1:] != [verdict]:
            verdicts.append(verdict)

    def _move(self, path: str, to: str) -> None:
        os.rename(self.root / path, self.root / to)
        if path in self._processes:
            self._processes[to] = self._processes.pop(path)

    def _end(self, path: str) -> None:
        if (process := self._processes.pop(path, None)) is not None:
            process.end()

    def there(self, *, answering: bool) -> dict[str, Plugin]:
        """Return the plugin of each socket that no rule hides: of all of them, or of those that answer."""
        found: dict[str, Plugin] = {}
        for directory, names, files in os.walk(self.root):
            names[:] = [name for name in names if not name.startswith(".")]
            for file in files:
                path = Path(directory, file)
                if file.startswith(".") or path.is_symlink():
                    continue
                inode = path.lstat().st_ino
                process = next((one for one in reversed(self._all) if one.inode == inode), None)
                if process is not None and path.is_socket() and (process.answers or not answering):
                    found[str(path.relative_to(self.root))] = process.plugin
        return found

    def close(self) -> None:
        for process in self._all:
            process.end()
