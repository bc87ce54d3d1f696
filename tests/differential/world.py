"""A directory with sockets, whose plugins are processes, and what happens in it."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import assert_never

from plugind.tests.differential.acts import Act, Plugin
from plugind.tests.differential.programs import Program, Programs


class World:
    """A directory, and the processes in it by the path at which each one's socket is."""

    def __init__(self, root: Path, programs: Programs) -> None:
        self.root = root
        self._programs = programs
        self._processes: dict[str, Program] = {}
        self._all: list[Program] = []

    @property
    def verdicts(self) -> dict[str, list[str]]:
        """What each process was told: that its plugin is registered, or why it is not; without repetitions.

        The processes of both worlds have the same numbers.
        """
        self._programs.listen()
        return {
            f"process {number}": [verdict.replace(f"{self.root}/", "") for verdict, _ in groupby(process.verdicts)]
            for number, process in enumerate(self._all)
            if process.verdicts
        }

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
                    process.thaw()
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
        self._processes[path] = process = self._programs.start(act.plugin, self.root / path)
        self._all.append(process)

    def _move(self, path: str, to: str) -> None:
        os.rename(self.root / path, self.root / to)
        if path in self._processes:
            self._processes[to] = self._processes.pop(path)

    def _end(self, path: str) -> None:
        if (process := self._processes.pop(path, None)) is not None:
            process.kill()

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
                if process is not None and path.is_socket() and (_answers(process) or not answering):
                    found[str(path.relative_to(self.root))] = process.plugin
        return found


def _answers(process: Program) -> bool:
    return not process.has_ended and not process.is_frozen
