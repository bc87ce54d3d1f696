"""Registration conversations: the rate and the cost of plugind's client, of its peers, and of a baseline.

    python -m benchmarks.wire --json wire.json --plot wire.svg

A conversation consists of connect, GetInfo, NotifyRegistrationStatus(true) and close. One cheap server process on the
last core answers on all sockets. It does not sleep unless ``--no-spin`` is given, so a client's figure includes no
wake-ups of the server. Each measurement is a separate process on the first core, and the runs of all clients take
turns. The baseline, called the floor, makes the same system calls on Trio and parses nothing. A client whose package is
missing is named and not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import cast

import attrs

from plugind.benchmarks.peers.wire_clients import CLIENTS
from plugind.benchmarks.plugins.cheap_plugin import ServerOptions
from plugind.benchmarks.plugins.server_process import ServerProcess, cheap_server, scratch_directory
from plugind.benchmarks.report.files import add_file_arguments, write_files
from plugind.benchmarks.report.plots import Bars, Plot, Series
from plugind.benchmarks.report.table import Cell, Progress, Row, Spread, machine, table

_COLOURS = {
    "plugind": "#0072b2",
    "plugind-stubs": "#56b4e9",
    "grpcio-aio": "#e69f00",
    "grpcio-threads": "#d55e00",
    "grpclib-asyncio": "#cc79a7",
    "floor": "#8a94a0",
}
_MOST_IDLE_CHANNELS = 1000
#: The goal for plugind's client, as a multiple of the floor.
_TARGET = 2.5


class ClientFailed(Exception):  # noqa: N818 - it names what happened
    """A client cannot be measured; the text says why."""

    def __init__(self, reason: str, *, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


@attrs.frozen
class Run:
    """One measurement: conversations per second, and CPU milliseconds of each."""

    conversations_per_s: float
    cpu_ms: float


@attrs.frozen
class WireResult:
    """All measurements."""

    runs: dict[tuple[str, int], list[Run]]
    resident_kib: dict[str, float]
    failed: dict[str, ClientFailed]

    def cpu(self, client: str, concurrency: int) -> Spread | None:
        """Return the CPU milliseconds of a conversation."""
        runs = self.runs.get((client, concurrency))
        return Spread.of([run.cpu_ms for run in runs]) if runs else None

    def pace(self, client: str, concurrency: int) -> Spread | None:
        """Return the conversations per second."""
        runs = self.runs.get((client, concurrency))
        return Spread.of([run.conversations_per_s for run in runs]) if runs else None

    def ratio(self, client: str, other: str, concurrency: int) -> float | None:
        """Return the CPU of ``client`` relative to ``other``: the median of the ratios of each pair of runs.

        Runs that follow each other had the same load. Separate medians would compare runs under different loads.
        """
        mine, theirs = self.runs.get((client, concurrency)), self.runs.get((other, concurrency))
        if not mine or not theirs:
            return None
        return median(one.cpu_ms / two.cpu_ms for one, two in zip(mine, theirs, strict=False))


@attrs.frozen
class Bench:
    """The settings that all measurements share."""

    server: ServerProcess
    seconds: float
    core: int

    def child(self, client: str, sockets: int, *more: str) -> dict[str, float]:
        """Run one child process to its end.

        Raises:
          ClientFailed: if it fails.
        """
        command = [sys.executable, "-m", "plugind.benchmarks.peers.wire_clients.child", "--client", client]
        command += ["--dir", str(self.server.options.directory), "--sockets", str(sockets), "--core", str(self.core)]
        done = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
        if done.returncode == 3:
            raise ClientFailed(f"the module {json.loads(done.stdout)['missing']} is not installed", missing=True)
        if done.returncode:
            # The last line of a printed ExceptionGroup is only a frame.
            lines = [line.strip(" |+-") for line in done.stderr.splitlines()]
            raise ClientFailed(next(filter(None, reversed(lines)), f"exit code {done.returncode}"))
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    def hold(self, client: str) -> float:
        """Return the KiB of resident memory per open idle channel.

        Raises:
          ClientFailed: if the client fails.
        """
        return self.child(client, _idle_channels(self.server.options), "--hold")["rss_per_idle_channel_kib"]

    def run(self, client: str, concurrency: int) -> Run:
        """Measure once, and compare the client's count with the server's.

        Raises:
          ClientFailed: if the client fails, or the counts differ.
        """
        before = self.server.counts()
        more = ["--concurrency", str(concurrency), "--seconds", str(self.seconds)]
        figures = self.child(client, self.server.options.sockets, *more)
        after = self.server.counts()
        expected = figures["before"] + figures["conversations"]
        for what in ("accepted", "asked", "notified"):
            if (seen := after[what] - before[what]) != expected:
                raise ClientFailed(f"{expected:.0f} conversations, of which the server saw {seen:.0f} {what}")
        conversations = figures["conversations"]
        return Run(conversations / figures["wall_s"], figures["cpu_s"] / conversations * 1000)


def measure(bench: Bench, clients: Sequence[str], concurrency: Sequence[int], runs: int) -> WireResult:
    """Measure all clients in turns, so that a temporary load on the machine affects all of them equally."""
    outcome = WireResult({}, {}, {})
    steps: list[tuple[str, int | None]] = [(c, level) for _ in range(runs) for level in concurrency for c in clients]
    steps += [(client, None) for client in clients if client != "floor"]
    progress = Progress(len(steps))
    for client, level in steps:
        progress.step(f"{client}, {f'{level} at once' if level else 'idle channels'}")
        if client in outcome.failed:
            continue
        try:
            if level is None:
                outcome.resident_kib[client] = bench.hold(client)
            else:
                run = bench.run(client, level)
                outcome.runs.setdefault((client, level), []).append(run)
        except ClientFailed as error:
            outcome.failed[client] = error
    progress.end()
    return outcome


def rows(outcome: WireResult, server: ServerOptions) -> list[Row]:
    """Return one row for each client at each concurrency, for JSON."""
    out: list[Row] = []
    for (client, level), runs in outcome.runs.items():
        cpu, pace = outcome.cpu(client, level), outcome.pace(client, level)
        assert cpu is not None
        assert pace is not None
        out.append(
            {
                "client": client,
                "sockets": server.sockets,
                "concurrency": level,
                "conversations_per_s": round(pace.median, 1),
                "cpu_ms": round(cpu.median, 5),
                "ratio_to_floor": outcome.ratio(client, "floor", level),
                "ratio_to_grpcio_aio": outcome.ratio(client, "grpcio-aio", level),
                "times_cheaper_than_grpcio_aio": outcome.ratio("grpcio-aio", client, level),
                "rss_per_idle_channel_kib": outcome.resident_kib.get(client),
                "runs": [attrs.asdict(run) for run in runs],
                "server": "spins" if server.spin else "sleeps",
                "machine": machine(),
            }
        )
    return out


def from_rows(written: Sequence[Row]) -> tuple[WireResult, ServerOptions]:
    """Return the result and the server of which :func:`rows` made these rows, of which there is at least one."""
    outcome = WireResult({}, {}, {})
    for row in written:
        client, level = str(row["client"]), int(cast("int", row["concurrency"]))
        runs = cast("Sequence[Mapping[str, float]]", row["runs"])
        outcome.runs.setdefault((client, level), []).extend(Run(**run) for run in runs)
    sockets, spins = int(cast("int", written[0]["sockets"])), written[0]["server"] == "spins"
    return outcome, ServerOptions(directory=Path(), sockets=sockets, spin=spins)


def summary(outcome: WireResult, server: ServerOptions, clients: Sequence[str], concurrency: Sequence[int]) -> str:
    """Return the table and its notes as text."""
    head = ["client", "at once", "conversations/s", "CPU ms each", "lowest", "highest", "in floors"]
    head.append("cheaper than grpcio-aio")
    lines: list[list[Cell]] = []
    for level in concurrency:
        for client in clients:
            cpu, pace = outcome.cpu(client, level), outcome.pace(client, level)
            if cpu is not None and pace is not None:
                ratios = [outcome.ratio(client, "floor", level), outcome.ratio("grpcio-aio", client, level)]
                lines.append([client, level, pace.median, cpu.median, cpu.low, cpu.high, *ratios])
    idle = ", ".join(f"{client} {kib:.1f} KiB" for client, kib in outcome.resident_kib.items())
    return "\n".join(
        [
            _title(server),
            "",
            table(head, lines),
            "",
            f"resident memory per open idle channel ({_idle_channels(server)} of them): {idle or 'not measured'}",
            machine(),
        ]
    )


def plot(outcome: WireResult, server: ServerOptions, clients: Sequence[str], concurrency: Sequence[int]) -> Plot:
    """Return a plot of CPU and rate, with a group of bars for each concurrency."""
    groups = {level: f"{level:,} at once" for level in concurrency}
    pairs = [(level, client) for level in concurrency for client in clients]
    cpu = {(groups[level], client): outcome.cpu(client, level) for level, client in pairs}
    pace = {(groups[level], client): outcome.pace(client, level) for level, client in pairs}
    floors = {groups[level]: floor.median * _TARGET for level in concurrency if (floor := outcome.cpu("floor", level))}
    panels = [
        Bars(
            title="CPU milliseconds per conversation, logarithmic: less is better",
            groups=list(groups.values()),
            values={key: spread for key, spread in cpu.items() if spread},
            log=True,
            marks=floors,
            mark=f"{_TARGET} floors",
        ),
        Bars(
            title="Conversations per second on one core, logarithmic: more is better",
            groups=list(groups.values()),
            values={key: spread for key, spread in pace.items() if spread},
            log=True,
        ),
    ]
    shown = [
        Series(client, _COLOURS[client])
        for client in clients
        if any((client, level) in outcome.runs for level in concurrency)
    ]
    return Plot(_title(server), machine(), shown, panels)


def _title(server: ServerOptions) -> str:
    does = "does not sleep" if server.spin else "sleeps between calls"
    return f"Registration conversations on {server.sockets:,} sockets, against one server that {does}"


def _idle_channels(server: ServerOptions) -> int:
    return min(_MOST_IDLE_CHANNELS, server.sockets)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire", description=__doc__.split("\n")[0])
    parser.add_argument("--sockets", type=int, default=2000, help="the number of plugins (default 2000)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 64, 512], help="conversations at once")
    parser.add_argument("--runs", type=int, default=3, help="the number of runs (default 3); medians are shown")
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="the least duration of a run, which takes at least one pass"
    )
    parser.add_argument(
        "--no-spin", dest="spin", action="store_false", help="use a server that sleeps, as real ones do"
    )
    add_file_arguments(parser)
    return parser.parse_args()


def main() -> int:
    """Measure, print and write. Return 1 if a client failed for another reason than a missing package."""
    arguments = _parse()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1 and arguments.spin:
        print("one core only: the server sleeps, or the clients would wait for it to be preempted", file=sys.stderr)
    with scratch_directory() as directory:
        spin = arguments.spin and len(cores) > 1
        options = ServerOptions(directory=directory, sockets=arguments.sockets, spin=spin, core=cores[-1])
        with cheap_server(options) as server:
            bench = Bench(server, arguments.seconds, cores[0])
            outcome = measure(bench, arguments.clients, arguments.concurrency, arguments.runs)
    what = outcome, options, arguments.clients, arguments.concurrency
    print(summary(*what))
    write_files(arguments, rows(outcome, options), plot(*what))
    for client, reason in outcome.failed.items():
        print(f"{client} was not measured: {reason}", file=sys.stderr)
    return 0 if outcome.runs and all(reason.missing for reason in outcome.failed.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
