"""Records what plugins and handlers are asked in simulated scripts, to compare two versions of the core.

``python -m tests.tools.timelines --seeds 0..99 --out FILE`` plays the script of each seed, without crashes, restarts,
races and scarce slots, and writes a JSON object a line for each path, each generation of a path (its first is 1), and
each type with a name: the calls, with arguments, outcomes and virtual times. ``--against OTHER`` compares them with
the file of another version, and prints the first difference of each seed; the exit code is 1 if there is one.

Times may differ by a microsecond, and what happens in one instant has no order. So each script is played with several
orders of the tasks of one instant: if these disagree, the seed is not written, and a seed differs if all of them do.

It uses the simulated network, plugins and handlers alone, so that it outlives whatever lies between them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import attrs
import trio

from plugind.actors.simulation import node
from plugind.actors.simulation.fuzz import run
from plugind.actors.simulation.fuzz.crashing_handler import CrashingHandler
from plugind.actors.simulation.fuzz.csi_acts import ScriptedCSIHandler
from plugind.actors.simulation.fuzz.dra_acts import ScriptedDRAHandler
from plugind.actors.simulation.fuzz.handler_oracle import WatchedHandler
from plugind.actors.simulation.fuzz.run import ALL, EVENTS, FEW_SLOTS, simulate
from plugind.actors.simulation.fuzz.script import Act, Event, Fault, choose, write
from plugind.actors.simulation.handlers import FakeHandler
from plugind.actors.simulation.network import MemoryNetwork
from plugind.actors.simulation.node import SimulatedNode
from plugind.actors.simulation.plugins import PluggedIn
from plugind.actors.simulation.scheduling import pinned
from plugind.protocol.plugins import Plugin
from plugind.protocol.wire.errors import DialError

#: Seconds by which the same times may differ.
TOLERANCE: Final = 1e-6
#: What scripts do not have: in these the order within one instant decides what happens next.
LEFT_OUT: Final = frozenset({Act.START_AMID, Act.REPLACE_AT_SCAN, Act.REPLACE_AT_DIAL, Act.EXHAUST})
#: How many orders of the tasks of one instant are tried.
ORDERS: Final = 3
#: Seconds between two events of a script, at least: of what happens in one instant the order decides what follows.
PAUSE: Final = 0.0137
FAULTS: Final = ALL - {Fault.CRASHES, Fault.RESTARTS}
HANDLERS: Final = (WatchedHandler, FakeHandler, CrashingHandler, ScriptedCSIHandler, ScriptedDRAHandler)

#: A time, and what was asked or came of it then.
Entry = tuple[float, str]
Timelines = dict[str, list[Entry]]


@attrs.define
class Recorder:
    """Writes down the calls of one script, by whom they concern."""

    timelines: defaultdict[str, list[Entry]] = attrs.field(factory=lambda: defaultdict(list))
    #: Every plugin that was started, with the path that it had then.
    plugged: list[tuple[str, PluggedIn]] = attrs.field(factory=list)

    async def record(self, keys: Sequence[str], what: str, call: Awaitable[Any]) -> Any:
        """Make a call, and write down when it begins and how it ends."""
        self._add(keys, what)
        outcome = "cancelled"
        try:
            result = await call
            outcome = "ok"
        except DialError as error:
            outcome = error.kind.name
            raise
        except (Exception, SystemExit, BaseExceptionGroup) as error:
            outcome = repr(error)
            raise
        finally:
            self._add(keys, f"{what}: {outcome}")
        return result

    def _add(self, keys: Sequence[str], what: str) -> None:
        for key in keys:
            self.timelines[key].append((trio.current_time(), what))

    def finish(self) -> Timelines:
        """Add what the plugins were asked, and return all that was written down."""
        for path, plugged in self.plugged:
            for call in plugged.calls:
                if call.method in ("GetInfo", "NotifyRegistrationStatus"):
                    said = "" if call.registered is None else f" {call.registered} {call.error}"
                    self.timelines[path].append((call.time, f"{call.method}{said}"))
        return {key: sorted(timeline) for key, timeline in sorted(_numbered(self.timelines).items())}


def _numbered(timelines: Timelines) -> Timelines:
    """Return them with the generations of each path counted: all paths share the numbers that they are given."""
    found: Timelines = {}
    counts = Counter[str]()
    # Those of one path are in the order of their numbers.
    for key, timeline in sorted(timelines.items(), key=lambda item: int(item[0].partition(" #")[2] or 0)):
        path, is_generation, _ = key.partition(" #")
        counts[path] += bool(is_generation)
        found[f"{path} #{counts[path]}" if is_generation else key] = timeline
    return found


def _spaced(seed: int, events: int, faults: Collection[Fault]) -> tuple[Event, ...]:
    return tuple(attrs.evolve(event, pause=event.pause + PAUSE) for event in write(seed, events, faults))


@contextmanager
def recording() -> Iterator[Recorder]:
    """Write down the calls on all simulated networks, and those of all handlers that scripts have."""
    recorder, plug, dial = Recorder(), SimulatedNode.plug, MemoryNetwork.dial

    def plugging(self: SimulatedNode, *args: Any, **options: Any) -> PluggedIn:
        plugged = plug(self, *args, **options)
        recorder.plugged.append((plugged.path, plugged))
        return plugged

    async def dialing(self: MemoryNetwork, path: str, **options: Any) -> Any:
        return await recorder.record((path,), "dial", dial(self, path, **options))

    with ExitStack() as stack:
        stack.enter_context(patch.object(run, "write", _spaced))
        stack.enter_context(patch.object(SimulatedNode, "plug", plugging))
        stack.enter_context(patch.object(MemoryNetwork, "dial", dialing))
        for handler in HANDLERS:
            for ask in ("validate", "register", "deregister"):
                stack.enter_context(patch.object(handler, ask, _recorded(recorder, ask, getattr(handler, ask))))
        yield recorder


def _recorded(recorder: Recorder, ask: str, method: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    # Whether it takes a link is read from its parameters.
    if method.__code__.co_argcount > 2:

        async def linked(self: object, plugin: Plugin, link: object) -> None:
            await recorder.record(_keys_of(plugin), _words(ask, plugin), method(self, plugin, link))

        return linked

    async def alone(self: object, plugin: Plugin) -> None:
        await recorder.record(_keys_of(plugin), _words(ask, plugin), method(self, plugin))

    return alone


def _keys_of(plugin: Plugin) -> tuple[str, str]:
    return f"{plugin.socket} #{plugin.generation}", f"{plugin.type} {plugin.name}"


def _words(ask: str, plugin: Plugin) -> str:
    versions, rank = ",".join(plugin.versions), "privileged" if plugin.privileged else "unprivileged"
    return f"{ask} {plugin.type} {plugin.name} {versions} {plugin.endpoint} {plugin.socket} {rank}"


def play(seed: int, events: int = EVENTS, order: int = 0) -> Timelines:
    """Return what was asked in the script of ``seed``, in one ``order`` of the tasks of each instant."""
    faults = choose(seed, FAULTS)
    only = [event.number for event in write(seed, events, faults) if event.act not in LEFT_OUT]
    in_order = patch.object(node, "pinned", lambda seed, watch: pinned(seed + order, watch))
    with in_order, recording() as recorder:
        simulate(seed, events=events, faults=FAULTS, only=only)
    return recorder.finish()


def difference(old: Timelines, new: Timelines) -> str | None:
    """Return the first difference of two scripts, None if there is none."""
    found = []
    for key in sorted(old.keys() | new.keys()):
        before, after = _by_instant(old.get(key, ())), _by_instant(new.get(key, ()))
        for (time, was), (other, happened) in zip_longest(before, after, fillvalue=(math.inf, [])):
            if was != happened or abs(time - other) > TOLERANCE:
                found.append((min(time, other), f"{key}: {time:.6f} {was}, and now {other:.6f} {happened}"))
                break
    return None if not found else min(found)[1]


def _by_instant(timeline: Iterable[Entry]) -> list[tuple[float, list[str]]]:
    """Return what happened in each instant, in an order that does not depend on the order in which it happened."""
    instants: list[tuple[float, list[str]]] = []
    for time, what in sorted(timeline):
        if not instants or time - instants[-1][0] > TOLERANCE:
            instants.append((time, []))
        instants[-1][1].append(what)
    return [(time, sorted(happened)) for time, happened in instants]


def read(file: Path) -> dict[int, Timelines]:
    """Return the timelines of each seed in a file that this command has written."""
    found: defaultdict[int, Timelines] = defaultdict(dict)
    for line in file.read_text().splitlines():
        entry = json.loads(line)
        found[entry["seed"]][entry["of"]] = [(time, what) for time, what in entry["calls"]]
    return found


def comparable(seed: int, events: int) -> Timelines | None:
    """Return what was asked in the script of ``seed``; None if that depends on the order within an instant."""
    first, *others = (play(seed, events, order) for order in range(ORDERS))
    return None if any(difference(first, other) for other in others) else first


def difference_from(old: Timelines, seed: int, events: int) -> str | None:
    """Return the first difference from ``old`` of what is asked now; None if there is none in one of the orders."""
    found = None
    for order in range(ORDERS):
        if (found := difference(old, play(seed, events, order))) is None:
            break
    return found


def main(arguments: list[str] | None = None) -> int:
    """Play the scripts, and write or compare what was asked in them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", required=True, help="such as 0..99")
    parser.add_argument("--events", type=int, default=EVENTS)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--out", type=Path, help="the file to write")
    chosen.add_argument("--against", type=Path, help="the file of another version, to compare with")
    args = parser.parse_args(arguments)
    first, _, last = args.seeds.partition("..")
    seeds = [seed for seed in range(int(first), int(last or first) + 1) if seed % 16 != FEW_SLOTS]
    if args.out is not None:
        written = 0
        with args.out.open("w") as file:
            for seed in seeds:
                timelines = comparable(seed, args.events)
                written += timelines is not None
                for key, calls in (timelines or {}).items():
                    print(json.dumps({"seed": seed, "of": key, "calls": calls}), file=file, flush=True)
        print(f"{len(seeds)} seeds, {written} comparable")
        return 0
    others, different = read(args.against), 0
    for seed in [seed for seed in seeds if seed in others]:
        if (found := difference_from(others[seed], seed, args.events)) is not None:
            different += 1
            print(f"seed {seed}: {found}", flush=True)
    print(f"{len(seeds)} seeds, {len(others)} comparable, {different} different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
