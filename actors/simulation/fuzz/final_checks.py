"""What must hold once the faults have stopped: what is there is registered, as the view says, and nothing leaks.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Final

import trio
import trio.testing

from ....protocol.plugins import InstancePolicy
from ....protocol.status import StateName
from .stage import TYPE, Stage

#: Virtual seconds until all is registered: a call that hangs or whose answer was lost (240), its deregistration (240),
#: the longest backoff (134) and a rescan.
CONVERGED: Final = 640.0
#: Seconds for which it must stay so.
STAYS: Final = 25.0
#: Seconds until all is let go after the last socket was removed: events are heard and handlers are well.
EMPTY: Final = 5.0


async def check_rest(stage: Stage) -> None:
    """Wait until the node is at rest, check what must hold then, remove every plugin, and check again."""
    trace = stage.trace
    if not await _within(CONVERGED, lambda: not differences(stage)):
        for difference in differences(stage):
            trace.violated("converges", difference)
    trace.line("converged")
    await trio.sleep(STAYS)
    await trio.testing.wait_all_tasks_blocked()
    for difference in differences(stage):
        trace.violated("stays", difference)
    await _check_view(stage)
    stage.unplug_all()
    if not await _within(EMPTY, lambda: not leftovers(stage)):
        for leftover in leftovers(stage):
            trace.violated("leak", leftover)


async def _within(seconds: float, holds: Callable[[], bool]) -> bool:
    deadline = trio.current_time() + seconds
    pause = 0.25
    while True:
        await trio.testing.wait_all_tasks_blocked()
        if holds():
            return True
        if trio.current_time() >= deadline:
            return False
        await trio.sleep(pause)
        pause = min(pause * 2, 16.0)


def differences(stage: Stage) -> list[str]:
    """How what is registered and shown differs from what is there and valid."""
    valid, taken = stage.valid(), stage.handlers.registered()
    shown = stage.registered_states()
    found = [f"{path} is held by a handler, and is not there" for path in sorted(taken.keys() - valid.keys())]
    found += [f"{path} is {stage.node.state(path)}, and not held" for path in sorted(shown.keys() - taken.keys())]
    found += [f"{path} is held, and {stage.node.state(path)}" for path in sorted(taken.keys() - shown.keys())]
    found += [
        f"{path} is shown with generation {generation}, held with {taken[path].generation}"
        for path, generation in shown.items()
        if path in taken and taken[path].generation != generation
    ]
    found += [f"{path} has a pending deregistration" for path in sorted(stage.handlers.owing.keys() - taken.keys())]
    there = stage.node.directory.sockets(stage.node.root)
    found += [f"{path} has an actor, and is not there" for path in stage.node.actors() if path not in there]
    # Also what is not valid: it is found as late as anything else where the root is looked at by backoff.
    found += [f"{path} is there, and not shown" for path in sorted(there.keys() - stage.node.statuses.keys())]
    found += [f"{call.ask} of {call.plugin.socket} is under way" for call in stage.handlers.under_way]
    if stage.policy is InstancePolicy.REJECT:
        names = sorted(plugin.name for plugin in taken.values())
        if names != sorted(set(valid.values())):
            found.append(f"{names} are registered, and {sorted(set(valid.values()))} are there")
    else:
        found += [f"{path} is {stage.node.state(path)}" for path in sorted(valid.keys() - taken.keys())]
    return found


async def _check_view(stage: Stage) -> None:
    """The status view, asked for, equals the truth: states, generations, names, and who is active."""
    trace, taken = stage.trace, stage.handlers.registered()
    snapshot = await stage.node.snapshot()
    streamed = {path: status.state for path, status in stage.node.statuses.items()}
    asked = {status.socket: status.state for status in snapshot.plugins}
    if streamed != asked:
        trace.violated("view", f"the stream says {streamed}, the snapshot {asked}")
    there = stage.node.directory.sockets(stage.node.root)
    parked = {status.socket for status in snapshot.plugins if status.state is StateName.PARKED}
    if there.keys() - asked.keys() or asked.keys() - there.keys() - parked:
        trace.violated("view", f"there are {sorted(there)}, shown are {sorted(asked)}")
    for status in snapshot.plugins:
        plugin = taken.get(status.socket)
        if plugin is not None and (plugin.name, plugin.generation) != (status.name, status.generation):
            trace.violated("view", f"{status.socket} is shown as {status.name}, and is {plugin.name}")
    active = {status.socket for status in snapshot.plugins if status.active and status.type == TYPE}
    if active != _active(stage):
        trace.violated("view", f"active are {sorted(_active(stage))}, shown as such {sorted(active)}")
    for path, plugged in stage.plugs.items():
        verdicts = [call.registered for call in plugged.calls if call.registered is not None]
        if path in taken and (not verdicts or not verdicts[-1]):
            trace.violated("view", f"{path} is registered, and was told {verdicts}")


def _active(stage: Stage) -> set[str]:
    """Return the active paths by the rule of the policy; registered plugins are in the order of their registration."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    taken = stage.handlers.registered()
    for path, plugin in taken.items():
        names[plugin.name].append(path)
    match stage.policy:
        case InstancePolicy.NEWEST:
            return {paths[-1] for paths in names.values()}
        case InstancePolicy.HIGHEST_VERSION:
            # All versions here are 1.x.0, and max() keeps the first of equals.
            return {max(reversed(paths), key=lambda path: taken[path].versions) for paths in names.values()}
        case _:
            return set(taken)


def leftovers(stage: Stage) -> list[str]:
    """What is left though every plugin is gone."""
    node = stage.node
    found = [f"{path} is held by a handler" for path in sorted(stage.handlers.owing)]
    found += [
        f"{path} is shown as {status.state}"
        for path, status in sorted(node.statuses.items())
        if not node.directory.exists(path)
    ]
    return [*found, *node.leftovers()]
