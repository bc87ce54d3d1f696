"""What ``benchmarks.leases`` measures, one function for each case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import attrs

from plugind.benchmarks.peers.allocate_client import CLIENTS
from plugind.benchmarks.peers.daemon_process import StatusPoll
from plugind.benchmarks.peers.lease_daemon import (
    RESOURCE,
    LeaseDaemon,
    Place,
    lease_daemon,
    plugin,
    resource_of,
    wait_for,
)
from plugind.benchmarks.plugins.server_process import scratch_directory

DAEMON = "plugind: allocate + release"
#: How many requests are made at once where their order does not matter.
_THREADS = 32


# --- allocate and release, in turns with a bare call ------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Turn:
    """The CPU of one consumer for each of its operations, in one round."""

    store: str
    who: str
    ms: float
    #: Of the daemon: the share of its loop, and of the threads in which it writes.
    loop_ms: float | None = None
    threads_ms: float | None = None


class BareClient:
    """A process that calls Allocate."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def call(self, number: int) -> float:
        """Make so many calls; return the milliseconds of CPU for each.

        Raises:
          RuntimeError: if the process has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(number, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the client of Allocate has ended")
        return float(json.loads(line)["cpu_s"]) * 1000 / number


@contextmanager
def bare_client(client: str, path: Path) -> Iterator[BareClient]:
    """Run a client of Allocate for the duration of the block."""
    command = [sys.executable, "-m", "plugind.benchmarks.peers.allocate_client", client, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield BareClient(process)
        finally:
            process.kill()


def daemon_turn(daemon: LeaseDaemon, store: str, number: int) -> Turn:
    """Allocate and release so many times."""
    loop, threads = daemon.process.cpu_of_threads()
    cpu = daemon.process.cpu_seconds()
    daemon.in_turns(number)
    cpu = daemon.process.cpu_seconds() - cpu
    loop_after, threads_after = daemon.process.cpu_of_threads()
    each = 1000 / number
    return Turn(
        store=store,
        who=DAEMON,
        ms=cpu * each,
        loop_ms=(loop_after - loop) * each,
        threads_ms=(threads_after - threads) * each,
    )


def turns(store: str, place: Place, rounds: int, number: int) -> Iterator[Turn]:
    """Measure bare calls of both clients, and leases of the daemon, in turns; ``number`` of each in a round."""
    calls, plugind_calls = CLIENTS
    with (
        plugin(place),
        lease_daemon(place) as daemon,
        bare_client(calls, place.socket) as first,
        bare_client(plugind_calls, place.socket) as second,
    ):
        for measured in range(rounds + 1):
            found = [
                Turn(store=store, who=f"{calls}: Allocate", ms=first.call(number)),
                Turn(store=store, who="plugind's client: Allocate", ms=second.call(number)),
                daemon_turn(daemon, store, number),
            ]
            if measured:  # The first round warms up.
                yield from found


# --- by part ----------------------------------------------------------------------------------------------------------

PARTS = {
    "HTTP: read, parse, answer": (
        "actors.http",
        "actors.io.client_streams",
        "actors.io.unix_socket",
        "actors.status",
        "actors.messaging.callers",
        "protocol.leases.leases_json",
        "protocol.leases.asked_json",
        "protocol.leases.json_",
        "protocol.text",
        "protocol.status.json",
    ),
    "the book, and the actor around it": (
        "protocol.leases",
        "actors.leases.actor",
        "actors.leases.inbox",
        "actors.messaging.queued",
    ),
    "what is shown and logged": (
        "actors.leases.memory",
        "actors.leases.lease_log",
        "actors.logs.limited",
        "actors.logs.lines",
        "protocol.log",
    ),
    "the write, on the loop": (
        "actors.leases.saving",
        "actors.io.state_",
        "actors.io.worker_thread",
        "actors.io.store_report",
        "protocol.leases.rows",
    ),
    "the owner's process": (
        "actors.leases.owners",
        "actors.io.owner_processes",
        "actors.io.pidfds",
        "actors.io.process_identity",
        "protocol.process_stat",
    ),
    "CDI": ("actors.leases.cdi", "actors.io.cdi", "protocol.leases.cdi"),
    "call the plugin": (
        "actors.handlers",
        "actors.grpc.client",
        "actors.conversation",
        "actors.handlers.links",
        "protocol.wire",
        "protocol.proto",
        "protocol.leases.answers",
    ),
    "Trio's scheduler": ("the scheduler",),
}
_REST = "the rest"


@attrs.frozen(kw_only=True)
class Part:
    """The CPU of one part of allocate and release."""

    store: str
    part: str
    us: float


def part_of(where: str) -> str:
    """Return the part to which a function belongs: that of the longest matching prefix."""
    fitting = [
        (len(prefix), part) for part, prefixes in PARTS.items() for prefix in prefixes if where.startswith(prefix)
    ]
    return max(fitting)[1] if fitting else _REST


def parts(store: str, place: Place, cost: Turn, number: int) -> list[Part]:
    """Sample a daemon that makes leases, and divide what one has cost in ``cost`` by the shares of the samples."""
    out = place.scratch / "profile.json"
    with plugin(place), lease_daemon(place, profile=out) as daemon:
        daemon.in_turns(number)
    hits: dict[str, int] = {}
    for sample in json.loads(out.read_text())["samples"]:
        part = part_of(sample["where"])
        hits[part] = hits.get(part, 0) + sample["hits"]
    each = (cost.loop_ms or 0.0) * 1000 / sum(hits.values())
    found = [Part(store=store, part=part, us=count * each) for part, count in hits.items()]
    threads = Part(store=store, part="the write, in its thread, with fsync", us=(cost.threads_ms or 0.0) * 1000)
    return sorted([*found, threads], key=lambda part: -part.us)


# --- a line of callers ------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Queued:
    """Many callers for few devices."""

    callers: int
    devices: int
    leases: int
    per_second: float
    cpu_ms: float
    median_wait_ms: float
    longest_wait_ms: float
    #: How many had a lease before one that was in line before them.
    overtaken: int


def queue(place: Place, callers: int, rounds: int) -> Queued:
    """Let ``callers`` take one device after the other, and then see in which order a line is served."""
    waits: list[float] = []

    def take(_: int) -> None:
        for _ in range(rounds):
            began = time.monotonic()
            lease = daemon.allocate(wait=60.0)
            waits.append((time.monotonic() - began) * 1000)
            daemon.release(lease)

    with plugin(place), lease_daemon(place) as daemon:
        cpu, began = daemon.process.cpu_seconds(), time.monotonic()
        _each(range(callers), take, threads=callers)
        took, cpu = time.monotonic() - began, daemon.process.cpu_seconds() - cpu
        overtaken = _overtaken(daemon, callers)
    waits.sort()
    return Queued(
        callers=callers,
        devices=place.devices,
        leases=len(waits),
        per_second=len(waits) / took,
        cpu_ms=cpu * 1000 / len(waits),
        median_wait_ms=waits[len(waits) // 2],
        longest_wait_ms=waits[-1],
        overtaken=overtaken,
    )


def _overtaken(daemon: LeaseDaemon, callers: int) -> int:
    """Let callers come one after the other while all devices are leased, and end one lease at a time."""
    served: list[int] = []
    leases: list[str] = [daemon.allocate() for _ in range(daemon.place.devices)]
    held = len(leases)

    def wait(number: int) -> None:
        lease = daemon.allocate(wait=60.0)
        served.append(number)
        leases.append(lease)

    waiting = [threading.Thread(target=wait, args=(number,)) for number in range(callers)]
    for number, thread in enumerate(waiting):
        thread.start()
        wait_for(lambda: daemon.count() == held + number + 1, "the caller is in line")  # noqa: B023
    for number in range(callers):
        daemon.release(leases[number])
        wait_for(lambda: len(leases) == held + number + 1, "the next caller has its lease")  # noqa: B023
    for thread in waiting:
        thread.join()
    for lease in leases[callers:]:
        daemon.release(lease)
    return sum(number < max(served[:place], default=-1) for place, number in enumerate(served))


def _each(values: Sequence[int], call: Callable[[int], object], threads: int = _THREADS) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(call, values):
            pass  # What a call has raised is raised here.


# --- many leases ------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Held:
    """Many leases that are held."""

    held: int
    kib_each: float
    #: The CPU of allocate and release, and how many times that of an empty book.
    ms: float
    times: float
    list_ms: float
    list_mib: float
    #: Until a daemon that begins with them is ready, and has given a lease.
    restart_s: float
    restart_cpu_s: float
    #: The longest steps of the loop, in CPU milliseconds: while they were taken, listed, and at the restart.
    blocked_taking_ms: float
    blocked_listing_ms: float
    blocked_restart_ms: float


def hold(place: Place, held: int, rounds: int, number: int) -> Held:
    """Take many leases, go on with them, and restart."""
    with plugin(place):
        with lease_daemon(place, watched=True) as daemon:
            before = _least(daemon, rounds, number)
            memory = daemon.process.memory_kib()
            daemon.blocked()
            _each(range(held), lambda number: daemon.allocate(resource=resource_of(number % place.plugins)))
            taking = daemon.blocked()
            memory = daemon.process.memory_kib() - memory
            after = _least(daemon, rounds, number)
            daemon.blocked()
            began = time.monotonic()
            body = daemon.process.get("/v1/leases")[1]
            listed = time.monotonic() - began
            listing = daemon.blocked()
            daemon.process.kill()
        began = time.monotonic()
        with lease_daemon(place, watched=True) as again:
            again.release(again.allocate())
            restart, cpu = time.monotonic() - began, again.process.cpu_seconds()
            kept, blocked = again.count(), again.blocked()
    if kept != held:
        raise RuntimeError(f"{kept} leases of {held} were there after a restart")
    return Held(
        held=held,
        kib_each=memory / held,
        ms=after,
        times=after / before,
        list_ms=listed * 1000,
        list_mib=len(body) / 1024 / 1024,
        restart_s=restart,
        restart_cpu_s=cpu,
        blocked_taking_ms=taking.cpu_ms,
        blocked_listing_ms=listing.cpu_ms,
        blocked_restart_ms=blocked.cpu_ms,
    )


def _least(daemon: LeaseDaemon, rounds: int, number: int) -> float:
    return min(daemon_turn(daemon, "", number).ms for _ in range(rounds))


# --- owners that die --------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Died:
    """Owners that were killed at once."""

    owners: int
    #: From the first kill until all devices were free, and that was written.
    freed_s: float
    cpu_s: float
    blocked_ms: float


def die(place: Place, owners: int) -> Died:
    """Give a device to each of many processes, and kill them."""
    command = [sys.executable, "-m", "plugind.benchmarks.plugins.owners", str(owners)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
        plugin(place),
        lease_daemon(place, watched=True) as daemon,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        _each(json.loads(process.stdout.readline()), lambda pid: daemon.allocate(owner=pid))
        if not os.listdir(place.markers):
            raise RuntimeError(f"nothing is in {place.markers} while leases are held")
        daemon.blocked()
        cpu, began = daemon.process.cpu_seconds(), time.monotonic()
        print(file=process.stdin, flush=True)
        wait_for(lambda: not os.listdir(place.markers), "no lease is written any more")
        freed, cpu = time.monotonic() - began, daemon.process.cpu_seconds() - cpu
        if left := daemon.count():
            raise RuntimeError(f"{left} leases are left")
        return Died(owners=owners, freed_s=freed, cpu_s=cpu, blocked_ms=daemon.blocked().cpu_ms)


# --- a slow disk ------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class SlowDisk:
    """A disk that takes long for each commit."""

    commit_ms: float
    leases: int
    per_second: float
    #: The longest step of the loop, and the slowest answer of the status socket.
    blocked_ms: float
    slowest_answer_ms: float


def be_slow(place: Place, callers: int, rounds: int) -> SlowDisk:
    """Allocate and release while each commit takes ``place.slow_disk`` seconds longer."""
    with plugin(place), lease_daemon(place, watched=True) as daemon:
        daemon.blocked()
        began = time.monotonic()
        with StatusPoll(daemon.process, every=0.01) as poll:
            _each(range(callers), lambda _: daemon.in_turns(rounds), threads=callers)
        took = time.monotonic() - began
        return SlowDisk(
            commit_ms=place.slow_disk * 1000,
            leases=callers * rounds,
            per_second=callers * rounds / took,
            blocked_ms=daemon.blocked().ms,
            slowest_answer_ms=max(poll.times),
        )


# --- the command ------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Command:
    """One run of a program, from exec to exit."""

    what: str
    ms: float
    cpu_ms: float


def commands(place: Place, runs: int) -> Iterator[Command]:
    """Run ``plugind allocate R=1 -- true`` in turns with an empty program of the same interpreter."""
    with plugin(place), lease_daemon(place) as daemon:
        allocate = ["allocate", f"{RESOURCE}=1", "--status", str(daemon.process.status), "--", "true"]
        programs = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "plugind allocate -- true": [sys.executable, "-m", "plugind", *allocate],
        }
        for measured in range(runs + 1):
            for what, command in programs.items():
                found = timed(what, command)
                if measured:  # The first round warms up.
                    yield found


def timed(what: str, command: Sequence[str]) -> Command:
    """Run a program.

    Raises:
      RuntimeError: if it fails.
    """
    began = time.monotonic()
    pid = os.posix_spawn(command[0], [*command], os.environ)
    _, status, used = os.wait4(pid, 0)
    took = time.monotonic() - began
    if status:
        raise RuntimeError(f"{what} has failed: {os.waitstatus_to_exitcode(status)}")
    return Command(what=what, ms=took * 1000, cpu_ms=(used.ru_utime + used.ru_stime) * 1000)


# --- places -----------------------------------------------------------------------------------------------------------


@contextmanager
def places(devices: int, *, plugins: int = 1, disk: bool = False, slow_disk: float = 0.0) -> Iterator[Place]:
    """Make the directories of a daemon; its state is in memory, or on the disk of temporary files."""
    with scratch_directory() as scratch, tempfile.TemporaryDirectory(prefix="plugind-") as on_disk:
        state = Path(on_disk) if disk else scratch / "state"
        state.mkdir(0o700, exist_ok=True)
        place = Place(scratch, state, devices, plugins, slow_disk)
        yield place
