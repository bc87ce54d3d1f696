"""What a command costs until it has done its work, in empty interpreters: the CPU time of ``python -c pass``.

    python -m benchmarks.start --turns 12
    python -m benchmarks.start --installed ENVIRONMENT --commands run pass --turns 40
    python -m benchmarks.start --daemon plugind kubelet --there 0 1 1000 --turns 5

The checkout is installed into an environment of Debian's Python as a wheel, with the tested versions of what it needs,
and all of it compiled to bytecode. ``ls`` asks a daemon with ten plugins and prints to a pipe. ``run`` counts until the
daemon tells its service manager that it is ready. Each figure is the least of all turns, in which the commands come in
random order. The environment is in memory if the machine has a file system for that.

With ``--daemon`` daemons of this checkout are measured instead, from their start until they are ready and all plugins
that were there before are registered.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import attrs

from plugind.benchmarks.peers.daemon_process import plugind_run
from plugind.benchmarks.peers.daemons import DAEMONS
from plugind.benchmarks.plugins.cheap_plugin import ServerOptions
from plugind.benchmarks.plugins.cheap_server import raise_descriptor_limit
from plugind.benchmarks.plugins.server_process import cheap_server, scratch_directory
from plugind.benchmarks.report.files import add_json_argument, write_json
from plugind.benchmarks.report.table import Cell, Progress, machine, table

_REPOSITORY: Final = Path(__file__).parents[1]
#: What plugind needs, in the versions that are tested.
_REQUIREMENTS: Final = _REPOSITORY / ".ci" / "requirements" / "run.txt"
#: What is not part of the sources.
_IGNORED: Final = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "node_modules")
#: How many plugins the daemon has that ``ls`` asks.
_PLUGINS: Final = 10
#: Seconds for a command, and until the plugins are registered.
_PATIENCE: Final = 60.0
#: Seconds until the plugins are registered that were there before a daemon.
_THERE_PATIENCE: Final = 900.0
#: The kernel's clock CPUCLOCK_SCHED: the nanoseconds for which all threads of a process have run.
_CPU_OF_ALL_THREADS: Final = 2
#: The empty interpreter.
EMPTY: Final = "pass"
#: What is measured, by the words after ``plugind``.
WORDS: Final[Mapping[str, Sequence[str]]] = {
    "version": ["--version"],
    "help": ["--help"],
    "ls-json": ["ls", "-o", "json"],
    "ls": ["ls"],
    "run": ["run"],
}
#: The most that each command may cost, in empty interpreters.
LIMITS: Final[Mapping[str, float]] = {"version": 4, "help": 8, "ls-json": 6, "ls": 10, "run": 22}


class FailedError(Exception):
    """A command did not do what it should."""


class Commands:
    """The commands of an installed plugind: ``plugind`` is its program, ``directory`` is for the daemons it starts."""

    def __init__(self, python: Path, directory: Path, status: Path) -> None:
        self._python = python
        self._plugind = python.with_name("plugind")
        self._directory = directory
        self._status = status

    def cpu(self, name: str) -> float:
        """Run one of ``WORDS``, or the empty interpreter; return its CPU seconds, in the kernel too.

        Raises:
          FailedError: if it fails.
        """
        if name == "run":
            return self._until_ready()
        if name == EMPTY:
            return _cpu_until_end([self._python, "-c", "pass"])
        words = WORDS[name]
        status = ("--status", self._status) if words[0] == "ls" else ()
        return _cpu_until_end([self._plugind, *words, *status])

    def _until_ready(self) -> float:
        place = self._directory / "notify"
        place.unlink(missing_ok=True)
        root, status = self._directory / "root", self._directory / "status.sock"
        root.mkdir(mode=0o700, exist_ok=True)
        environment = os.environ | {"NOTIFY_SOCKET": str(place)}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            notified.bind(str(place))
            notified.settimeout(_PATIENCE)
            command: list[str | Path] = [
                self._plugind,
                "run",
                "--root",
                root,
                "--status",
                status,
                "--log-level",
                "error",
            ]
            with subprocess.Popen(command, env=environment) as process:
                try:
                    said = notified.recv(100)
                    spent = time.clock_gettime((~process.pid << 3) | _CPU_OF_ALL_THREADS)
                except TimeoutError:
                    raise FailedError(f"plugind run was not ready in {_PATIENCE:g} s") from None
                finally:
                    process.kill()
        if said != b"READY=1":
            raise FailedError(f"plugind run said {said!r} to its service manager")
        return spent


def _cpu_until_end(command: Sequence[str | Path]) -> float:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, code, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        raise FailedError(f"{' '.join(map(str, command))}: exit code {process.returncode}: {said.decode()[-500:]}")
    return used.ru_utime + used.ru_stime


@contextmanager
def commands(python: Path, names: Sequence[str]) -> Iterator[Commands]:
    """Yield the commands beside an interpreter, while there is a daemon with ten plugins for those that ask one."""
    with scratch_directory() as directory, ExitStack() as stack:
        asked = directory / "asked"
        root, starts = asked / "root", directory / "starts"
        for made in (asked, root, starts):
            made.mkdir(mode=0o700)
        if {"ls", "ls-json"} & {*names}:
            # The daemon comes first, so that no plugin has to be found by a later scan.
            stack.enter_context(plugind_run(root, asked / "log"))
            server = stack.enter_context(cheap_server(ServerOptions(directory=root, sockets=_PLUGINS)))
            server.await_notified(_PLUGINS, _PATIENCE)
        yield Commands(python, starts, asked / "status.sock")


@contextmanager
def installed(base: str) -> Iterator[Path]:
    """Yield the interpreter of a new environment of ``base`` with plugind and what it needs, compiled to bytecode.

    Raises:
      subprocess.CalledProcessError: if that fails; pip has said why.
    """
    with scratch_directory() as scratch:
        shutil.copytree(_REPOSITORY, scratch / "source", ignore=_IGNORED)
        pip: list[str | Path] = [sys.executable, "-m", "pip"]
        subprocess.run([base, "-m", "venv", "--without-pip", scratch / "environment"], check=True)
        python = scratch / "environment" / "bin" / "python"
        wheel: list[str | Path] = [
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            scratch,
            scratch / "source",
        ]
        install: list[str | Path] = ["--python", python, "install", "-q", "--compile"]
        subprocess.run([*pip, *wheel], check=True)
        subprocess.run([*pip, *install, "--require-hashes", "-r", _REQUIREMENTS], check=True)
        subprocess.run([*pip, *install, "--no-deps", *scratch.glob("*.whl")], check=True)
        yield python


def measure(asked: Commands, names: Sequence[str], turns: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each command in each turn, after one that does not count.

    Raises:
      FailedError: if a command fails.
    """
    progress = Progress(turns + 1)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns + 1):
        progress.step(f"turn {turn}/{turns}")
        for name in random.sample(names, len(names)):
            spent = asked.cpu(name)
            if turn:
                times[name].append(spent)
    progress.end()
    return times


@attrs.frozen(kw_only=True)
class Start:
    """What one command costs at the least."""

    command: str
    cpu_ms: float
    empty_interpreters: float
    limit: float | None
    turns: int

    @property
    def over(self) -> bool:
        """Whether it costs more than it may."""
        return self.limit is not None and self.empty_interpreters > self.limit


def starts(times: Mapping[str, Sequence[float]]) -> list[Start]:
    """Return the least of each command's CPU seconds, beside those of the empty interpreter."""
    empty = min(times[EMPTY])
    return [
        Start(
            command=name,
            cpu_ms=min(spent) * 1000,
            empty_interpreters=min(spent) / empty,
            limit=LIMITS.get(name),
            turns=len(spent),
        )
        for name, spent in times.items()
    ]


def summary(found: Sequence[Start], interpreter: str, load: float) -> str:
    """Return the table as text."""
    lines: list[list[Cell]] = [[one.command, one.cpu_ms, one.empty_interpreters, one.limit] for one in found]
    head = ["command", "CPU, ms", "empty interpreters", "at most"]
    title = f"The start with {interpreter}, the least of {found[0].turns} turns; the load of the machine was {load:.1f}"
    return "\n".join([title, machine(), "", table(head, lines)])


@attrs.frozen(kw_only=True)
class DaemonStart:
    """What the start of a daemon costs at the least, with so many plugins there before."""

    daemon: str
    there: int
    cpu_ms: float
    wall_ms: float
    turns: int


def daemon_starts(daemons: Sequence[str], sizes: Sequence[int], turns: int) -> list[DaemonStart]:
    """Return the figures of each daemon with each number of plugins there before.

    Raises:
      RuntimeError: if one is not ready, or does not register all plugins.
    """
    cases = [(daemon, there) for there in sizes for daemon in daemons]
    spent: dict[tuple[str, int], list[tuple[float, float]]] = {case: [] for case in cases}
    progress = Progress(turns * len(cases))
    for _ in range(turns):
        for daemon, there in random.sample(cases, len(cases)):
            progress.step(f"{daemon}, {there:,} there")
            spent[daemon, there].append(_daemon_start(daemon, there))
    progress.end()
    return [
        DaemonStart(
            daemon=daemon,
            there=there,
            cpu_ms=min(cpu for cpu, _ in times) * 1000,
            wall_ms=min(wall for _, wall in times) * 1000,
            turns=turns,
        )
        for (daemon, there), times in spent.items()
    ]


def _daemon_start(daemon: str, there: int) -> tuple[float, float]:
    """Return the CPU seconds and the seconds from its start until it is ready and has registered all plugins."""
    with scratch_directory() as directory:
        root = directory / "root"
        root.mkdir(mode=0o700)
        with cheap_server(ServerOptions(directory=root, sockets=there)) as server:
            began = time.monotonic()
            with DAEMONS[daemon](root, directory / "log") as process:
                server.await_notified(there, _THERE_PATIENCE)
                process.wait_ready()
                return process.cpu_seconds(), time.monotonic() - began


def daemon_summary(found: Sequence[DaemonStart], load: float) -> str:
    """Return the table as text."""
    lines: list[list[Cell]] = [[one.daemon, one.there, one.cpu_ms, one.wall_ms] for one in found]
    title = f"Until a daemon is ready and has registered what was there, the least of {found[0].turns} turns"
    about = f"{machine()}; the load of the machine was {load:.1f}"
    return "\n".join([title, about, "", table(["daemon", "plugins there", "CPU, ms", "wall, ms"], lines)])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.start", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=12, help="how often each command runs (default 12)")
    parser.add_argument(
        "--python", default="/usr/bin/python3", help="of the new environment (default /usr/bin/python3)"
    )
    parser.add_argument(
        "--installed", type=Path, metavar="DIR", help="an environment that has plugind; none is made, then"
    )
    parser.add_argument(
        "--commands", nargs="+", choices=WORDS, default=[*WORDS], help=f"what is measured, besides {EMPTY}"
    )
    parser.add_argument("--daemon", nargs="+", choices=("plugind", "kubelet"), help="measure daemons, and no commands")
    parser.add_argument(
        "--there",
        type=int,
        nargs="+",
        default=[0],
        metavar="N",
        help="plugins before the start of a daemon (default 0)",
    )
    add_json_argument(parser)
    return parser.parse_args()


def _measured_daemons(arguments: argparse.Namespace) -> int:
    # A daemon may have a connection to each plugin, and the process of the plugins a listener for each, too.
    raise_descriptor_limit(2 * max(arguments.there) + 1024)
    found = daemon_starts(arguments.daemon, arguments.there, arguments.turns)
    load = os.getloadavg()[0]
    print(daemon_summary(found, load))
    write_json(arguments, [attrs.asdict(one) | {"load": load} for one in found])
    return 0


def main() -> int:
    """Measure, print and write. Return 1 if a command costs more than its limit."""
    arguments = _parse()
    if arguments.daemon:
        return _measured_daemons(arguments)
    names = list(dict.fromkeys([EMPTY, *arguments.commands]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with ExitStack() as stack:
        given: Path | None = arguments.installed
        python = given / "bin" / "python" if given else stack.enter_context(installed(arguments.python))
        asked = stack.enter_context(commands(python, names))
        interpreter = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.strip()
        found = starts(measure(asked, names, arguments.turns))
    load = os.getloadavg()[0]
    print(summary(found, interpreter, load))
    write_json(arguments, [attrs.asdict(one) | {"python": interpreter, "load": load} for one in found])
    return 1 if any(one.over for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
