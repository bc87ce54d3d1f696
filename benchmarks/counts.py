"""What a registration and a removal are made of: tasks, steps, waits, messages, scopes, deadlines and bytecodes.

    python -m benchmarks.counts --sockets 300

A node in this process registers a storm of cheap plugins, which are in another process, and then deregisters them as
their sockets are removed, once with counters and once with a tracer. CPU time depends on what else the machine does,
and these numbers hardly do: they are for comparing two trees, and with :data:`BUDGETS`. The tracer makes the node some
fifty times slower, so answers of plugins have mostly come before it waits for them.

The same is done with CSI drivers and a handler that makes calls; ``--csi`` does only that, with a handler that does
what is named: ``judged`` applies the rules, ``linked`` holds a connection to each, too, and ``asked`` is plugind's own,
which makes the four calls and follows the driver, without health checks.

``--record`` measures one registration on the simulated node, where each run gives the same numbers, and writes them to
the file with which a test compares them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import attrs
import trio
from trio import _channel

from plugind import Config, Handler, Root, Supervisor
from plugind.actors.logs.lines import Log
from plugind.actors.registration import timers, tries
from plugind.benchmarks import simulated
from plugind.benchmarks.peers.judging import handlers
from plugind.benchmarks.peers.with_links import Following
from plugind.benchmarks.plugins.cheap_plugin import ServerOptions
from plugind.benchmarks.plugins.server_process import ServerProcess, cheap_server, scratch_directory
from plugind.benchmarks.report.table import Cell, Progress, table
from plugind.benchmarks.tracer import Tracer
from plugind.protocol.health.checks import HealthChecks
from plugind.protocol.settings.config import Timeouts

#: Seconds until the last plugin must be registered.
_PATIENCE = 300.0
#: Counts the block within it under the name that it is given.
Count = Callable[[str], AbstractContextManager[None]]
REGISTRATION, REMOVAL = "registration", "removal"
BYTECODES, MESSAGES = "bytecodes", "messages through channels"
FUNCTIONS, FILES = "functions of plugind", "files of these functions"
#: What each figure is to be at most, and what it is to be next.
BUDGETS: dict[tuple[str, str], tuple[int, int | None]] = {
    (REGISTRATION, BYTECODES): (15_000, 12_000),
    (REGISTRATION, MESSAGES): (6, None),
    (REGISTRATION, FUNCTIONS): (120, None),
    (REGISTRATION, FILES): (25, None),
    (REMOVAL, BYTECODES): (6_000, None),
}


class Steps(trio.abc.Instrument):
    """Counts tasks and their steps, and the passes of the loop."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        """See Trio."""
        self._counts["tasks"] += 1

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """See Trio."""
        self._counts["steps of tasks"] += 1

    def before_io_wait(self, timeout: float) -> None:
        """See Trio."""
        self._counts["passes of the loop"] += 1


@contextmanager
def calls_counted(counts: Counter[str]) -> Iterator[None]:
    """Count the calls of Trio that cost most."""

    def counting(owner: Any, name: str, what: str) -> Any:
        inner = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            counts[what] += 1
            return inner(*args, **options)

        return patch.object(owner, name, counted)

    deadline = cast("property", vars(trio.CancelScope)["deadline"])
    setter = cast("Callable[[Any, float], None]", deadline.fset)

    def set_deadline(self: trio.CancelScope, new: float) -> None:
        counts["changes of deadlines"] += 1
        setter(self, new)

    with ExitStack() as stack:
        enter = stack.enter_context
        enter(counting(trio.CancelScope, "__enter__", "cancel scopes"))
        enter(counting(trio.MemorySendChannel, "send_nowait", MESSAGES))
        enter(counting(trio.MemoryReceiveChannel, "receive", "receives that may wait"))
        enter(counting(_channel, "MemoryChannelState", "channels"))
        enter(counting(trio.lowlevel, "wait_readable", "waits for a descriptor"))
        enter(patch.object(trio.CancelScope, "deadline", property(deadline.fget, set_deadline)))
        yield


#: What is done with CSI drivers, and the handlers for that.
CSI: dict[str, Callable[[], dict[str, Handler]]] = {
    "judged": handlers,
    "linked": lambda: handlers() | {"CSIPlugin": Following()},
    "asked": dict,
}


def _await_lines(path: Path, words: bytes, count: int) -> None:
    """Wait until a log has so many lines with these words."""
    until = time.monotonic() + _PATIENCE
    while path.read_bytes().count(words) < count:
        assert time.monotonic() < until, f"fewer than {count} lines with {words!r} came"
        time.sleep(0.1)


async def storm(server: ServerProcess, root: Path, count: Count, log: Log, csi: str | None) -> None:
    """Register and deregister all plugins of ``server``, each within ``count``. Threads are not traced."""
    judging = CSI[csi or "judged"]()
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        # A tracer is slow, and so is a busy machine: no plugin must be called twice for that.
        timeouts = Timeouts(dial=_PATIENCE, get_info=_PATIENCE, notify=_PATIENCE)
        config = Config(
            roots=(Root(str(root)),),
            handles_sigint=True,
            timeouts=timeouts,
            rescan=_PATIENCE,
            health_checks=HealthChecks(off={"CSIPlugin"}),
        )
        async with Supervisor(config, handlers=judging, status_socket=root.parent / "status.sock", log=log) as node:
            await node.wait_scanned()
            await trio.sleep(0.5)
            with count(REGISTRATION):
                server.ask("create")
                with trio.fail_after(_PATIENCE):
                    await trio.to_thread.run_sync(server.reached, server.options.sockets, _PATIENCE)
                    await trio.sleep(1.0)
            plugins = (await node.snapshot()).plugins
            registered = sum(plugin.state == "registered" for plugin in plugins)
            assert registered == server.options.sockets, f"only {registered} plugins were registered"
            with count(REMOVAL):
                await trio.to_thread.run_sync(server.remove)
                lines = (root.parent / "log", b"plugin deregistered", registered)
                await trio.to_thread.run_sync(_await_lines, *lines)
                await trio.sleep(1.0)
        nursery.cancel_scope.cancel()


def run_storm(sockets: int, count: Count, csi: str | None, instruments: Sequence[trio.abc.Instrument] = ()) -> None:
    """Run one storm in a loop of its own."""
    cores = sorted(os.sched_getaffinity(0))
    with scratch_directory() as scratch:
        root = scratch / "root"
        root.mkdir()
        core = cores[-1] if len(cores) > 1 else None
        options = ServerOptions(directory=root, sockets=sockets, wait=True, core=core)
        serves = "cheap_server" if csi is None else "csi_server"
        with cheap_server(options, serves) as server, open(scratch / "log", "wb") as file:
            log = Log(descriptor=file.fileno())
            trio.run(storm, server, root, count, log, csi, instruments=list(instruments))


@attrs.frozen
class Figures:
    """What one registration and one removal cost."""

    #: Each figure, by what is done and what is counted.
    all: dict[tuple[str, str], float]
    tracers: dict[str, Tracer]
    sockets: int

    def functions(self) -> dict[str, float]:
        """Return the bytecodes of each function in a registration."""
        return {name: n / self.sockets for name, n in self.tracers[REGISTRATION].functions().items()}

    def modules(self) -> dict[str, float]:
        """Return the bytecodes of each module in a registration."""
        return {name: n / self.sockets for name, n in self.tracers[REGISTRATION].modules().items()}


def measure(sockets: int, csi: str | None, progress: Progress) -> Figures:
    """Run a storm with counters, and one with tracers."""
    counts: Counter[str] = Counter()
    found: dict[tuple[str, str], float] = {}
    tracers: dict[str, Tracer] = {}

    @contextmanager
    def counting(doing: str) -> Iterator[None]:
        start = counts.copy()
        yield
        found.update({(doing, what): (number - start[what]) / sockets for what, number in counts.items()})

    def tracing(doing: str) -> AbstractContextManager[None]:
        tracers[doing] = Tracer()
        return tracers[doing].tracing()

    of = f"{sockets:,} {'plugins' if csi is None else f'CSI drivers, {csi}'}"
    progress.step(f"{of}, counted")
    with calls_counted(counts):
        run_storm(sockets, counting, csi, [Steps(counts)])
    progress.step(f"{of}, traced: some fifty times slower")
    with ExitStack() as stack:
        # No try is looked at, or shown, because of the tracer.
        for owner, name in ((tries, "FIRST_LOOK"), (tries, "SILENT_FOR"), (timers, "FIRST_LOOK")):
            stack.enter_context(patch.object(owner, name, _PATIENCE))
        run_storm(sockets, tracing, csi)
    for doing, tracer in tracers.items():
        # What is done once for the whole storm counts for none of its registrations.
        own = tracer.own(sockets / 2)
        found[doing, BYTECODES] = tracer.codes.total() / sockets
        found[doing, FUNCTIONS] = len(own)
        found[doing, FILES] = len({code.co_filename for code in own})
    return Figures(found, tracers, sockets)


def summary(found: dict[str, Figures]) -> str:
    """Return the table of all figures beside their budgets."""
    rows: list[list[Cell]] = []
    for doing, what in sorted({key for figures in found.values() for key in figures.all}):
        aim, following = BUDGETS.get((doing, what), (None, None))
        rows.append([doing, what, *(figures.all.get((doing, what), 0.0) for figures in found.values()), aim, following])
    return table(["of one", "figure", *found, "aim", "next aim"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sockets", type=int, default=300, help="how many at once (default 300)")
    parser.add_argument("--csi", choices=tuple(CSI), help="register only CSI drivers, with this handler")
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="show the N longest functions, too")
    parser.add_argument("--modules", type=int, default=0, metavar="N", help="show the N longest modules, too")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures to this file")
    parser.add_argument("--record", action="store_true", help="measure on the simulated node, and record that")
    options = parser.parse_args(arguments)
    if options.record:
        print(simulated.record(), end="")
        return 0
    cases = {"plugin": None, "CSI driver": "asked"} if options.csi is None else {options.csi: options.csi}
    progress = Progress(2 * len(cases))
    try:
        found = {name: measure(options.sockets, csi, progress) for name, csi in cases.items()}
    finally:
        progress.end()
    print(summary(found))
    for name, figures in found.items():
        for title, most, by in (
            ("modules", options.modules, figures.modules()),
            ("functions", options.functions, figures.functions()),
        ):
            if most:
                print(f"\nbytecodes of the registration of a {name}, by {title}")
                for where, number in Counter(by).most_common(most):
                    print(f"{number:10.1f}  {where}")
    if options.json is not None:
        written = {
            name: {"counts": {f"{doing}: {what}": n for (doing, what), n in figures.all.items()}}
            | {"functions": figures.functions()}
            for name, figures in found.items()
        }
        options.json.write_text(json.dumps(written, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
