from __future__ import annotations

import pytest

from plugind.actors.console.demo import has_settled, specs
from plugind.protocol.plugins import BUILT_IN_TYPES
from plugind.protocol.status import PluginStatus, StateName


def test_the_demo_has_a_good_plugin_of_each_type_and_some_that_are_not() -> None:
    plugins = specs("/r")
    good = {spec.plugin.type for spec in plugins if spec.plugin.hang is None and not spec.plugin.get_info_fails}
    assert set(BUILT_IN_TYPES) < good
    assert [spec.plugin.get_info_fails for spec in plugins if spec.plugin.get_info_fails] == [2]
    assert [spec.plugin.hang for spec in plugins if spec.plugin.hang] == ["get-info"]


@pytest.mark.parametrize(
    ("state", "attempt", "settled"),
    [
        (StateName.REGISTERED, 1, True),
        (StateName.PARKED, 1, True),
        (StateName.STALE, 1, True),
        (StateName.WAITING, 2, False),
        (StateName.WAITING, 3, True),
        (StateName.DIALING, 9, False),
    ],
)
def test_all_has_settled_when_nothing_new_is_to_be_seen(state: StateName, attempt: int, settled: bool) -> None:
    assert has_settled(PluginStatus("/r/a", "/r", 1, state, 0.0, attempt=attempt)) is settled
