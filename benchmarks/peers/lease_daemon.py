"""A daemon that leases the devices of one plugin, and requests to it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import attrs

from plugind.benchmarks.consumers import DeviceServer, Load, device_server
from plugind.benchmarks.peers.daemon_process import DaemonProcess, plugind_started
from plugind.benchmarks.plugins.device_server import socket_of

RESOURCE = "bench.example.com/device-0"

#: Seconds between two lists of the plugin, so that it sends one only.
_ONCE = 1e6
#: Seconds until what must happen has happened.
PATIENCE = 120.0


class NoLeaseError(Exception):
    """The daemon gives no lease; the text says why."""


@attrs.frozen
class Blocked:
    """The longest step of the daemon's loop, in milliseconds."""

    ms: float
    cpu_ms: float
    task: str


@attrs.frozen
class Place:
    """Where the files of one daemon are."""

    #: On a file system in memory, since storms of sockets are measured there too.
    scratch: Path
    #: The directory of the state file.
    state: Path
    #: Of each plugin.
    devices: int
    plugins: int = 1
    #: Seconds that each commit takes longer.
    slow_disk: float = 0.0

    @property
    def markers(self) -> Path:
        """The directory of the file that is there while any lease is written."""
        return self.scratch / "markers"

    @property
    def root(self) -> Path:
        """The directory of the plugin's socket."""
        return self.scratch / "root"

    @property
    def socket(self) -> Path:
        """The socket of the first plugin."""
        return socket_of(self.root, 0)

    @property
    def steps(self) -> Path:
        """Where the daemon writes what has blocked its loop."""
        return self.scratch / "steps.json"


class LeaseDaemon:
    """A daemon, and requests for leases to it."""

    def __init__(self, daemon: DaemonProcess, place: Place) -> None:
        self.process = daemon
        self.place = place

    def allocate(
        self, count: int = 1, *, resource: str = RESOURCE, wait: float | None = None, owner: int | None = None
    ) -> str:
        """Return the id of a lease of so many devices, owned by the process ``owner``, which is this one by default.

        Raises:
          NoLeaseError: if there is none.
        """
        own = os.getpid()
        asked = {
            "resources": {resource: count},
            "owner": {"kind": "process", "pid": owner or own},
            "client_pid": own,
            "wait": wait,
        }
        status, body = self.process.ask("POST", "/v1/leases", json.dumps(asked).encode(), (wait or 0.0) + PATIENCE)
        if status != 201:
            raise NoLeaseError(f"{status}: {body.decode(errors='replace')}")
        return str(json.loads(body)["id"])

    def release(self, lease: str) -> None:
        """End a lease.

        Raises:
          NoLeaseError: if there is none.
        """
        status, body = self.process.ask("DELETE", f"/v1/leases/{quote(lease, safe='')}")
        if status != 200:
            raise NoLeaseError(f"{status}: {body.decode(errors='replace')}")

    def in_turns(self, number: int) -> None:
        """Allocate and release so many times, one after the other."""
        for _ in range(number):
            self.release(self.allocate())

    def count(self) -> int:
        """Return how many leases there are."""
        return len(json.loads(self.process.get("/v1/leases")[1])["leases"])

    def blocked(self) -> Blocked:
        """Return what has blocked the loop for the longest time since this was asked last."""
        self.place.steps.unlink(missing_ok=True)
        os.kill(self.process.pid, signal.SIGUSR2)
        wait_for(self.place.steps.exists, "the daemon writes its steps")
        return Blocked(**json.loads(self.place.steps.read_text()))


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until ``condition()`` is true.

    Raises:
      RuntimeError: if that takes too long; ``what`` says what was awaited.
    """
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"it took over {PATIENCE:g} s until {what}")
        time.sleep(0.002)


def resource_of(number: int) -> str:
    """Return the resource of a plugin."""
    return f"bench.example.com/device-{number}"


@contextmanager
def plugin(place: Place) -> Iterator[DeviceServer]:
    """Run the plugins for the duration of the block."""
    place.root.mkdir(exist_ok=True)
    with device_server(
        place.root, Load(plugins=place.plugins, devices=place.devices, changed=0, period=_ONCE)
    ) as server:
        yield server


@contextmanager
def lease_daemon(place: Place, *, profile: Path | None = None, watched: bool = False) -> Iterator[LeaseDaemon]:
    """Run a daemon for the duration of the block, once its devices can be leased.

    It is sampled into ``profile``, or its steps are watched.
    """
    module: Sequence[str] = ("plugind",)
    if watched:
        module = ("plugind.benchmarks.peers.watched_steps", str(place.steps), str(place.slow_disk))
    registry = place.scratch / "device-plugins"
    registry.mkdir(mode=0o755, exist_ok=True)
    options = ["--state", str(place.state), "--device-plugins", str(registry)]
    # One that was killed has left a marker, which would withhold the devices of the next one.
    prefix = ("env", f"PLUGIND_MARKERS={place.markers}", f"PLUGIND_LEASES_CDI_DIRECTORY={place.scratch}/cdi")
    started = plugind_started(place.root, place.scratch / "log", options, profile=profile, prefix=prefix, module=module)
    with started as process:
        process.wait_ready()
        daemon = LeaseDaemon(process, place)
        wait_for(lambda: _listed(process) == place.devices * place.plugins, "all devices are known")
        yield daemon


def _listed(daemon: DaemonProcess) -> float:
    """Return how many devices the daemon knows."""
    metrics = daemon.get("/metrics")[1].decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in metrics if line.startswith("plugind_devices{"))
