"""Events that a plugin causes itself do not lead around its backoff."""

from __future__ import annotations

import itertools

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind import Backoff
from plugind.protocol.backoff import chance_of
from plugind.testing import DEFAULT_CONFIG, Accepting, FakePlugin, SimulatedNode
from plugind.tests.actors.registration.timelines import shown


async def dials_under_touches(node: SimulatedNode, path: str, seconds: float) -> list[float]:
    """Touch the socket at ``path`` a hundred times a second, and return when it was dialed."""
    began = trio.current_time()
    while trio.current_time() < began + seconds:
        node.directory.chmod(path)
        await trio.sleep(0.01)
    return [round(time, 3) for time, dialed in node.network.dials if dialed == path]


async def test_a_failing_socket_that_is_touched_all_the_time_is_dialed_twice_in_each_step(
    autojump_clock: MockClock,
) -> None:
    """Fault 49: five such sockets had 1,248 dials in a second, 62 to 97 % of a core and 1.5 MB/s of log."""
    async with SimulatedNode() as node:
        plugin = node.plug("a.sock", FakePlugin("CSIPlugin", "a"))
        plugin.accepting = Accepting.DENIED
        await trio.sleep(0.001)
        times = await dials_under_touches(node, plugin.path, 30.0)
        # One at the first touch of a step, and one when the step is over; without the touches the steps are the same.
        assert times == [0.0, 0.001, 1.001, 1.001, 5.001, 5.011, 21.011, 21.011]


async def test_retries_that_are_asked_for_during_one_try_are_one_try(autojump_clock: MockClock) -> None:
    """Seed 4800770: each of them was a try of its own, and the last was made long after it was asked for."""
    async with SimulatedNode(attrs.evolve(DEFAULT_CONFIG, backoff=Backoff(jitter=0.0))) as node:
        plugin = node.plug("a.sock", FakePlugin("CSIPlugin", "a", hang="get-info"))
        for time in (0.2, 0.4, 0.6):
            await trio.sleep_until(time)
            await node.supervisor.retry(plugin.path)
        await trio.sleep_until(6.0)
        # Each takes a second. The one that follows at once is the first of a new row.
        assert [time for time, _ in node.network.dials] == [0.0, 1.0, 2.5, 4.5]


async def test_the_pauses_of_a_socket_do_not_depend_on_other_sockets(autojump_clock: MockClock) -> None:
    """Behaviour 23: the jitter of a pause is drawn from the seed, the path, the generation and the attempt alone."""
    backoff = Backoff()
    async with SimulatedNode(attrs.evolve(DEFAULT_CONFIG, backoff=backoff, seed=7)) as node:
        plugins = [node.plug(f"{name}.sock", FakePlugin("CSIPlugin", name)) for name in "abc"]
        for plugin in plugins:
            plugin.accepting = Accepting.DENIED
        await trio.sleep_until(60.0)
        for path in (plugin.path for plugin in plugins):
            status = shown(node, path)
            pauses = [backoff.delay(n, chance_of(7, path, status.generation, n)) for n in range(1, 7)]
            dialed = [time for time, dialed in node.network.dials if dialed == path]
            assert dialed == pytest.approx(list(itertools.accumulate(pauses, initial=0.0)), abs=1e-6)
