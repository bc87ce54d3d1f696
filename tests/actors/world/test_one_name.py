"""Many sockets of one name: what they cost, and how many may register.

Nothing here measures time. The cost of a storm is the number of calls of Python functions, and of functions that
Python calls, which the profiler of the interpreter counts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.protocol.plugins.status import StateName
from plugind.testing import DEFAULT_CONFIG, FakeCSIDriver, FakePlugin, SimulatedNode
from plugind.tests.actors.registration.timelines import shown

#: How many sockets a storm has. What takes quadratic time costs several times as much as the rest of it already then.
STORM = 60


@attrs.define
class Count:
    calls: int = 0


@contextmanager
def counted() -> Iterator[Count]:
    """Count the calls of functions."""
    count = Count()

    def on_event(_frame: object, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            count.calls += 1

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        yield count
    finally:
        sys.setprofile(before)


def cost_of(plugins: list[FakePlugin]) -> int:
    """Return how many calls a node makes to register ``plugins`` and to deregister them again."""

    async def storm() -> int:
        config = attrs.evolve(DEFAULT_CONFIG, max_instances=10_000, endpoint_directories=("/run",))
        async with SimulatedNode(config) as node:
            for endpoint, name in {plugin.endpoint: plugin.name for plugin in plugins if plugin.endpoint}.items():
                node.plug(endpoint, [FakeCSIDriver(name)])
            with counted() as count:
                plugged = [node.plug(f"{number}.sock", plugin) for number, plugin in enumerate(plugins)]
                await node.settled()
                assert {status.state for status in node.statuses.values()} == {StateName.REGISTERED}
                assert len(node.statuses) == len(plugins)
                for one in plugged:
                    one.stop()
                await node.settled()
        return count.calls

    return trio.run(storm, clock=MockClock(autojump_threshold=0))


VERSIONS = tuple(f"1.{minor}.0" for minor in range(32))


@pytest.mark.parametrize(
    ("plugin_type", "versions", "shared"),
    [("CSIPlugin", VERSIONS, "/run/driver"), ("DRAPlugin", ("v1.DRAPlugin",), ""), ("DevicePlugin", ("v1beta1",), "")],
)
def test_sockets_of_one_name_cost_at_most_twice_as_much_as_those_of_as_many_names(
    plugin_type: str, versions: tuple[str, ...], shared: str
) -> None:
    """Fault 48: no step looks at all the instances of a name, or parses the versions of another one."""
    one = FakePlugin(plugin_type, "example.com/x", versions, endpoint=shared)
    others = [
        attrs.evolve(one, name=f"example.com/x{number}", endpoint=shared and f"{shared}-{number}")
        for number in range(STORM)
    ]

    assert cost_of([one] * STORM) <= 2 * cost_of(others)


async def test_one_more_plugin_than_a_name_may_have_waits_like_one_that_is_refused_for_its_name(
    autojump_clock: MockClock,
) -> None:
    """Fault 48: a name has a limit of instances, and the reason says which, and how to raise it."""
    async with SimulatedNode(attrs.evolve(DEFAULT_CONFIG, max_instances=2)) as node:
        plugin = FakePlugin("DRAPlugin", "x", ("v1.DRAPlugin",))
        first = node.plug("a.sock", plugin)
        node.plug("b.sock", plugin)
        await node.settled()
        late = node.plug("c.sock", plugin)
        node.plug("y.sock", attrs.evolve(plugin, name="y"))
        await node.settled()

        status = shown(node, "c.sock")
        assert (status.state, node.state("y.sock")) == (StateName.WAITING, StateName.REGISTERED)
        reason = "DRAPlugin 'x' has 2 instances already, the limit (raise it with --max-instances)"
        assert status.cause == f"plugin validation failed: {reason}"
        assert late.calls[-1].error is not None
        assert reason in late.calls[-1].error

        first.stop()
        before = node.now
        await node.settled()
        assert node.state("c.sock") == StateName.REGISTERED
        registered = next(entry for entry in node.history("c.sock") if entry.state is StateName.REGISTERED)
        assert registered.time == before
