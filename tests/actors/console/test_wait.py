"""What ``plugind wait`` says, and when it need not go on."""

from __future__ import annotations

import attrs
import pytest

from plugind.actors.console.wait import WaitingForPlugins
from plugind.protocol.health.checks import HealthChecks
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.status.json import plugin_to_json

OFF = HealthChecks(off={"CSIPlugin"}).why_not_checked("CSIPlugin")
UNCHECKED = PluginStatus(
    "/r/a.sock",
    "/r",
    1,
    StateName.REGISTERED,
    1.0,
    type="CSIPlugin",
    name="a",
    health=Health.UNKNOWN,
    health_reason=OFF,
)
GOOD = attrs.evolve(UNCHECKED, socket="/r/b.sock", name="b", health=Health.HEALTHY, health_reason=None)
WAITS = attrs.evolve(UNCHECKED, socket="/r/c.sock", state=StateName.WAITING, health=None, health_reason=None)


def waiting(*plugins: PluginStatus, names: str = "a", has_list: bool = True, healthy: bool = True) -> WaitingForPlugins:
    found = WaitingForPlugins([*names], None, None, healthy=healthy, has_list=has_list)
    for plugin in plugins:
        found.note(plugin_to_json(plugin, 10.0, 1000.0))
    return found


@pytest.mark.parametrize(
    "plugins",
    [(UNCHECKED,), (GOOD, UNCHECKED), (UNCHECKED, WAITS), (UNCHECKED, attrs.evolve(UNCHECKED, socket="/r/d"))],
)
def test_a_wait_for_the_health_of_a_type_that_is_not_checked_ends_at_once(plugins: tuple[PluginStatus, ...]) -> None:
    """It waited until its timeout, and did not say why."""
    found = waiting(*plugins, names="ab")
    assert (found.over, found.done, found.exit_code) == (True, False, 1)
    assert found.why_not("a").startswith(
        "a is not healthy: /r/a.sock is registered, but its health is unknown: checks of its type are off:"
        " 'plugind run --health CSIPlugin=30' turns them on"
    )


@pytest.mark.parametrize(
    "found",
    [
        waiting(),
        waiting(WAITS),
        waiting(attrs.evolve(UNCHECKED, health_reason=None)),
        waiting(attrs.evolve(UNCHECKED, health=Health.UNHEALTHY)),
        # Another type of that name may be checked.
        waiting(UNCHECKED, attrs.evolve(WAITS, type="DRAPlugin")),
        # A healthy one may be in the rest of the list.
        waiting(UNCHECKED, has_list=False),
    ],
)
def test_a_wait_goes_on_as_long_as_it_may_succeed(found: WaitingForPlugins) -> None:
    assert not found.over


def test_a_plugin_that_is_not_checked_is_registered_all_the_same() -> None:
    found = waiting(UNCHECKED, healthy=False)
    assert (found.over, found.done, found.exit_code) == (True, True, 0)


def test_a_plugin_in_a_crash_loop_has_one_time_of_its_next_try() -> None:
    found = waiting(attrs.evolve(WAITS, name="a", cause="crash loop: 7 short lives", next_try=17.3))
    assert found.why_not("a") == ("a is not healthy: /r/c.sock is waiting: crash loop: 7 short lives, next try in 8 s")
