"""The design of the kubelet's plugin manager in its simplest form in Python, as a peer to measure plugind against.

    python -m benchmarks.peers.reference --root DIR

One thread follows inotify and keeps the desired world. Another one compares both worlds every second and passes the
differences to a pool of threads, one operation at a time for each path, with the reference's backoff. An operation uses
grpcio's blocking API: dial, GetInfo, the handler, NotifyRegistrationStatus, close. The worlds are maps with a lock. The
peer also has the reference's weaknesses: it never recovers from an overflow of inotify's queue, and a hung plugin
occupies a thread.
"""

from __future__ import annotations

import argparse
import os
import signal
import stat
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import grpc
from inotify_simple import INotify, flags

from plugind.benchmarks.peers.worlds import ActualWorld, DesiredWorld, Registered
from plugind.benchmarks.plugins.cheap_protocol import GET_INFO, NOTIFY
from plugind.protocol.proto.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)

_PASS = 1.0
_DIAL, _GET_INFO, _NOTIFY = 10.0, 1.0, 5.0
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 122.0
_TYPES = ("CSIPlugin", "DevicePlugin", "DRAPlugin")


class OperationError(Exception):
    """An operation failed, and will be tried again after a delay."""


@attrs.define
class _Pending:
    running: bool = True
    failed_at: float = 0.0
    delay: float = 0.0


class Operations:
    """Runs at most one operation at a time for each path, in a pool; after a failure the path has a backoff."""

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers)
        self._lock = threading.Lock()
        self._pending: dict[str, _Pending] = {}

    def run(self, path: str, operation: Callable[[], None]) -> None:
        """Start the operation, unless one is in progress for that path or its backoff has not passed."""
        with self._lock:
            pending = self._pending.setdefault(path, _Pending(running=False))
            if pending.running or time.monotonic() - pending.failed_at <= pending.delay:
                return
            pending.running = True
        self._pool.submit(self._run, path, pending, operation)

    def _run(self, path: str, pending: _Pending, operation: Callable[[], None]) -> None:
        try:
            operation()
        except OperationError as error:
            _log(f"{error}")
            with self._lock:
                pending.running, pending.failed_at = False, time.monotonic()
                pending.delay = min(max(pending.delay * 2, _FIRST_DELAY), _LONGEST_DELAY)
        else:
            with self._lock:
                del self._pending[path]


class Manager:
    """The watcher, the reconciler and their shared state."""

    def __init__(self, root: Path, workers: int) -> None:
        self._root = root
        self._desired = DesiredWorld()
        self._actual = ActualWorld()
        self._operations = Operations(workers)
        self._inotify = INotify()

    def start(self) -> None:
        """Start the threads."""
        self._inotify.add_watch(str(self._root), flags.CREATE | flags.MOVED_TO | flags.DELETE | flags.DELETE_SELF)
        for entry in os.scandir(self._root):
            self._appeared(entry.path)
        threading.Thread(target=self._watch, daemon=True).start()
        threading.Thread(target=self._reconcile, daemon=True).start()

    def _watch(self) -> None:
        while True:
            for event in self._inotify.read():
                if event.mask & flags.Q_OVERFLOW:
                    _log("the queue overflowed")
                elif event.mask & (flags.CREATE | flags.MOVED_TO):
                    self._appeared(f"{self._root}/{event.name}")
                elif event.mask & flags.DELETE:
                    self._desired.remove(f"{self._root}/{event.name}")

    def _appeared(self, path: str) -> None:
        try:
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                self._desired.add(path)
        except OSError as error:
            _log(f"{path}: {error}")

    def _reconcile(self) -> None:
        while True:
            self._pass()
            time.sleep(_PASS)

    def _pass(self) -> None:
        for path, plugin in self._actual.all().items():
            if not self._desired.has(path, plugin.identity):
                self._operations.run(path, lambda path=path, plugin=plugin: self._unregister(path, plugin))  # type: ignore[misc]
        for path, identity in self._desired.all().items():
            if not self._actual.has(path, identity):
                self._operations.run(path, lambda path=path, identity=identity: self._register(path, identity))  # type: ignore[misc]

    def _unregister(self, path: str, plugin: Registered) -> None:
        self._actual.remove(path)
        _log(f'msg="plugin gone" socket={path} name={plugin.name}')

    def _register(self, path: str, identity: uuid.UUID) -> None:
        # Without its own subchannel pool, a channel shares its connection with equal channels.
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"unix:{path}", options) as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=_DIAL)
                ask = channel.unary_unary(GET_INFO, InfoRequest.SerializeToString, PluginInfo.FromString)
                info: PluginInfo = ask(InfoRequest(), timeout=_GET_INFO)
                error = _validate(info)
                if not error:
                    self._actual.add(path, Registered(identity, info.type, info.name, info.endpoint or path))
                notify = channel.unary_unary(
                    NOTIFY, RegistrationStatus.SerializeToString, RegistrationStatusResponse.FromString
                )
                notify(RegistrationStatus(plugin_registered=not error, error=error), timeout=_NOTIFY)
            except (grpc.RpcError, grpc.FutureTimeoutError) as failure:
                self._actual.remove(path)
                raise OperationError(f"{path}: {failure!r}") from failure
        if error:
            raise OperationError(f"{path}: {error}")
        _log(f'msg="plugin registered" socket={path} name={info.name}')


def _validate(info: PluginInfo) -> str:
    if info.type not in _TYPES:
        return f"no handler registered for plugin type: {info.type}"
    return "" if info.name and info.supported_versions else "plugin validation failed"


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Run until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.reference", description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, required=True, help="the directory to discover plugins in")
    parser.add_argument("--workers", type=int, default=64, help="threads for operations")
    arguments = parser.parse_args()
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    Manager(arguments.root, arguments.workers).start()
    _log("ready")
    signal.sigwait(signals)
    # Threads may be in the middle of calls; like the reference, the peer does not wait for them.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
