"""What a registration is made of: tasks, steps, waits, messages, scopes, deadlines and bytecodes, counted exactly.

    python -m benchmarks.counts --sockets 300

A node in this process registers a storm of cheap plugins, which are in another process, once with counters and once
with a tracer. CPU time depends on what else the machine does, and these numbers hardly do: they are for comparing two
trees. The tracer makes the node some fifty times slower, so answers of plugins have mostly come before it waits for
them.

With ``--csi`` the plugins are CSI drivers, and their handler does what is named: ``judged`` applies the rules,
``linked`` holds a connection to each, too, and ``asked`` is plugind's own, which makes the four calls and follows the
driver, without health checks.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, cast
from unittest.mock import patch

import trio
from trio import _channel

from plugind import Config, Handler, Root, Supervisor
from plugind.actors.logs import Log
from plugind.actors.status.actor import StatusConfig
from plugind.benchmarks.peers.judging import handlers
from plugind.benchmarks.peers.with_links import Following
from plugind.benchmarks.plugins.cheap_plugin import ServerOptions
from plugind.benchmarks.plugins.server_process import ServerProcess, cheap_server, scratch_directory
from plugind.benchmarks.report.table import Progress
from plugind.protocol.config import Timeouts
from plugind.protocol.health_checks import HealthChecks

#: Seconds until the last plugin must be registered.
_PATIENCE = 300.0


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
        enter(counting(trio.MemorySendChannel, "send_nowait", "messages through channels"))
        enter(counting(trio.MemoryReceiveChannel, "receive", "receives that may wait"))
        enter(counting(_channel, "MemoryChannelState", "channels"))
        enter(counting(trio.lowlevel, "wait_readable", "waits for a descriptor"))
        enter(patch.object(trio.CancelScope, "deadline", property(deadline.fget, set_deadline)))
        yield


class Tracer:
    """Counts bytecodes, by the module and the function of their code."""

    def __init__(self) -> None:
        self.codes: Counter[CodeType] = Counter()

    def __call__(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        """See ``sys.settrace``."""
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        codes, code = self.codes, frame.f_code

        def local(_frame: FrameType, event: str, _argument: object) -> Any:
            if event == "opcode":
                codes[code] += 1
            return local

        return local

    def modules(self) -> Counter[str]:
        """Return the bytecodes of each module."""
        found: Counter[str] = Counter()
        for code, count in self.codes.items():
            found[_module_of(code)] += count
        return found

    def functions(self) -> Counter[str]:
        """Return the bytecodes of each function."""
        found: Counter[str] = Counter()
        for code, count in self.codes.items():
            found[f"{_module_of(code)}:{code.co_qualname}"] += count
        return found


def _module_of(code: CodeType) -> str:
    path = Path(code.co_filename)
    root = Path(__file__).parent.parent
    if path.is_relative_to(root) and ".venv" not in path.parts:
        return str(path.relative_to(root))
    parts = path.parts
    return "/".join(parts[parts.index("site-packages") + 1 :]) if "site-packages" in parts else path.name


#: What is done with CSI drivers, and the handlers for that.
CSI: dict[str, Callable[[], dict[str, Handler]]] = {
    "judged": handlers,
    "linked": lambda: handlers() | {"CSIPlugin": Following()},
    "asked": dict,
}


async def storm(server: ServerProcess, root: Path, count: Callable[[], Any], log: Log, csi: str | None) -> None:
    """Register all plugins of ``server``; from the first on, within the context manager ``count``."""
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
        status = StatusConfig(str(root.parent / "status.sock"))
        async with Supervisor(config, handlers=judging, status_config=status, log=log) as node:
            await node.wait_scanned()
            await trio.sleep(0.5)
            with count():
                server.ask("create")
                with trio.fail_after(_PATIENCE):
                    await trio.to_thread.run_sync(server.reached, server.options.sockets, _PATIENCE)
                    await trio.sleep(1.0)
            plugins = (await node.snapshot()).plugins
            registered = sum(plugin.state == "registered" for plugin in plugins)
            assert registered == server.options.sockets, f"only {registered} plugins were registered"
        nursery.cancel_scope.cancel()


def run_storm(
    sockets: int, count: Callable[[], Any], csi: str | None, instruments: Sequence[trio.abc.Instrument] = ()
) -> None:
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


def counted(sockets: int, csi: str | None) -> dict[str, float]:
    """Return how often each thing happens for each registration."""
    counts: Counter[str] = Counter()
    final: dict[str, float] = {}

    @contextmanager
    def window() -> Iterator[None]:
        start = counts.copy()
        yield
        final.update({what: (number - start[what]) / sockets for what, number in counts.items()})

    with calls_counted(counts):
        run_storm(sockets, window, csi, [Steps(counts)])
    return final


def traced(sockets: int, csi: str | None) -> Tracer:
    """Return the bytecodes of a storm."""
    tracer = Tracer()

    @contextmanager
    def window() -> Iterator[None]:
        sys.settrace(tracer)
        try:
            yield
        finally:
            sys.settrace(None)

    run_storm(sockets, window, csi)
    return tracer


def main(arguments: Sequence[str] | None = None) -> int:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sockets", type=int, default=300, help="how many at once (default 300)")
    parser.add_argument("--csi", choices=tuple(CSI), help="register CSI drivers, with this handler")
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="show the N longest functions, too")
    parser.add_argument("--modules", type=int, default=0, metavar="N", help="show the N longest modules, too")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures to this file")
    options = parser.parse_args(arguments)
    progress = Progress(2)
    try:
        progress.step(f"{options.sockets:,} registrations, counted")
        found = counted(options.sockets, options.csi)
        progress.step(f"{options.sockets:,} registrations, traced: some fifty times slower")
        tracer = traced(options.sockets, options.csi)
    finally:
        progress.end()
    found["bytecodes"] = tracer.codes.total() / options.sockets
    for what, number in found.items():
        print(f"{what:28}{number:10.2f}")
    for title, most, table in (
        ("modules", options.modules, tracer.modules()),
        ("functions", options.functions, tracer.functions()),
    ):
        if most:
            print(f"\nbytecodes by {title}")
            for name, number in table.most_common(most):
                print(f"{number / options.sockets:10.1f}  {name}")
    if options.json is not None:
        by = {name: number / options.sockets for name, number in tracer.functions().items()}
        options.json.write_text(json.dumps({"counts": found, "functions": by}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
