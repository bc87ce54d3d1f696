"""Plugins as processes: each is forked from one that does nothing else, and can be killed and stopped.

A fork takes milliseconds, where an interpreter of its own would take as long as a manager needs to register the plugin.
As a program, this module is the process that forks. It ends with its standard input, and its forks end with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Self

from plugind.benchmarks.plugins.cheap_protocol import (
    AskInfo,
    Automaton,
    BadClient,
    DeviceCall,
    Node,
    Notification,
    Part,
    not_implemented,
    plugin_info,
    success,
)
from plugind.tests.differential.acts import Plugin

_PR_SET_PDEATHSIG: Final = 1
#: Seconds in which a process must have ended or stopped.
_PATIENCE: Final = 60.0


class Program:
    """The process of a plugin. Its socket listens."""

    def __init__(self, plugin: Plugin, path: Path, pid: int) -> None:
        self.plugin = plugin
        self.pid = pid
        self.inode = path.lstat().st_ino
        #: What it was told: that it is registered, or why it is not.
        self.verdicts: list[str] = []
        self.is_frozen = self.has_ended = False
        self._descriptor = os.pidfd_open(pid)

    def freeze(self) -> None:
        """Stop it with SIGSTOP; who connects waits in the backlog."""
        self.is_frozen = True
        signal.pidfd_send_signal(self._descriptor, signal.SIGSTOP)
        deadline = time.monotonic() + _PATIENCE
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline, "the process was not stopped"

    def thaw(self) -> None:
        """Continue it with SIGCONT."""
        self.is_frozen = False
        signal.pidfd_send_signal(self._descriptor, signal.SIGCONT)

    def kill(self) -> None:
        """End it with SIGKILL; the file of its socket stays."""
        if not self.has_ended:
            self.has_ended = True
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
            assert select.select([self._descriptor], [], [], _PATIENCE)[0], "the process did not end"
            os.close(self._descriptor)


class Programs:
    """All processes of a script, and the one that forks them."""

    def __init__(self) -> None:
        self._all: list[Program] = []
        self._reported, written = os.pipe()
        os.set_blocking(self._reported, False)
        command = [sys.executable, "-m", __name__, str(written)]
        self._forking = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[written], text=True
        )
        os.close(written)
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._all:
            program.kill()
        self._forking.communicate()
        os.close(self._reported)

    def start(self, plugin: Plugin, path: Path) -> Program:
        """Start a plugin; return once it listens."""
        assert self._forking.stdin is not None
        assert self._forking.stdout is not None
        asked = {"number": len(self._all), "path": str(path), "about": [plugin.type, plugin.name, "", plugin.versions]}
        self._forking.stdin.write(json.dumps(asked) + "\n")
        self._forking.stdin.flush()
        program = Program(plugin, path, int(self._forking.stdout.readline()))
        self._all.append(program)
        return program

    def listen(self) -> None:
        """Give each process what it was told by now."""
        try:
            while piece := os.read(self._reported, 1 << 16):
                *lines, self._rest = (self._rest + piece).split(b"\n")
                for line in lines:
                    number, verdict = json.loads(line)
                    self._all[number].verdicts.append(verdict)
        except BlockingIOError:
            pass


# --- the process that forks, and its forks ---


def main() -> None:
    """Fork a plugin for each line, and print its process id once it listens."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for the forks.
    reports = int(sys.argv[1])
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        listening = os.pipe()
        if (pid := os.fork()) == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(asked["path"])
            listener.listen()
            for descriptor in listening:
                os.close(descriptor)
            _Serving(asked, reports).run(listener)
        os.close(listening[1])
        os.read(listening[0], 1)
        os.close(listening[0])
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


class _Serving:
    def __init__(self, asked: dict[str, Any], reports: int) -> None:
        type_, name, endpoint, versions = asked["about"]
        self._info = plugin_info(type_, name, endpoint, tuple(versions))
        self._number = asked["number"]
        self._reported = reports
        self._automaton = Automaton()
        self._selector = selectors.DefaultSelector()

    def run(self, listener: socket.socket) -> None:
        """Accept and answer until the process is killed."""
        self._selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is listener:
                    self._selector.register(listener.accept()[0], selectors.EVENT_READ, self._automaton.start)
                else:
                    self._read(key)

    def _read(self, key: selectors.SelectorKey) -> None:
        connection, node = key.fileobj, key.data
        assert isinstance(connection, socket.socket)
        assert isinstance(node, Node)
        try:
            if chunk := connection.recv(1 << 16):
                step = self._automaton.learn(node, chunk)
                connection.sendall(self._reply(step.parts))
                self._selector.modify(connection, selectors.EVENT_READ, step.node)
                return
        except (OSError, BadClient):
            pass
        self._selector.unregister(connection)
        connection.close()

    def _reply(self, parts: Iterable[Part]) -> bytes:
        reply = b""
        for part in parts:
            match part:
                case AskInfo(stream):
                    reply += success(stream, self._info)
                case Notification(_, registered, error):
                    verdict = json.dumps([self._number, "registered" if registered else error])
                    os.write(self._reported, verdict.encode() + b"\n")
                case DeviceCall(stream):
                    reply += not_implemented(stream)
                case _:
                    reply += part
        return reply


if __name__ == "__main__":
    main()
