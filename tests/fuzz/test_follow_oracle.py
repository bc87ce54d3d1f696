"""The oracles of follows and of devices where a plugin is registered twice, or an actor is behind."""

from __future__ import annotations

from typing import cast

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.handlers.link import Link
from plugind.protocol.plugins.devices import HEALTHY, UNHEALTHY, Device, DeviceList, ResourceState, ResourceStatus
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.info import Plugin
from plugind.tests.fuzz.device_oracle import DeviceOracle, Instance
from plugind.tests.fuzz.follow_oracle import LONGEST_PAUSE, FollowOracle

PLUGIN = Plugin("Colour", "red", "/plugins/a.sock", ("1.0.0",), "/plugins/a.sock", 7)
KEY = (PLUGIN.socket, PLUGIN.generation)


class Mute:
    """A link that nobody reads."""

    active = False

    def report(self, health: Health, reason: str = "", facts: object = None) -> None:
        pass


async def test_a_plugin_that_is_registered_once_more_is_not_followed_before_that_succeeds(
    autojump_clock: MockClock,
) -> None:
    """Seeds 1079 and 254: the second registration has another link, and what was said of the first is forgotten."""
    found: list[str] = []
    oracle = FollowOracle(lambda rule, _: found.append(rule), 1, calm=True)
    with trio.move_on_after(1.0):
        await oracle.follow(PLUGIN, cast("Link", Mute()), registered=True)
    await trio.sleep(LONGEST_PAUSE + 1.0)
    oracle.look([KEY], lambda *_: True)
    assert found == ["follow"], "it has a link, and nobody follows it"
    oracle.deregistering(PLUGIN)
    oracle.look([KEY], lambda *_: True)
    assert found == ["follow"]
    assert oracle.usable(PLUGIN) is None


@pytest.mark.parametrize("since", [10.0, 11.0, 12.0])
def test_an_actor_that_is_behind_may_take_either_of_two_losses(since: float) -> None:
    """Seeds 1182 and 1446: the second loss takes the place of the first in its inbox."""
    found: list[str] = []
    oracle, instance = DeviceOracle(lambda rule, _: found.append(rule)), Instance("v.com/a", "/devices/1", 1)
    oracle.added(instance, 1.0)
    oracle.listed(instance, {"d0": HEALTHY}, 1.0)
    oracle.up_to_date(1.0)
    oracle.behind = True
    oracle.lost(instance, 10.0)
    oracle.lost(instance, 11.0)
    listed = DeviceList([Device("d0", HEALTHY)])
    oracle.shown(_lost(listed, since), 11.0)
    oracle.up_to_date(12.0)
    assert found == ([] if since < 12.0 else ["devices"])


def _lost(listed: DeviceList, since: float) -> ResourceStatus:
    state, socket = ResourceState.LOST, "/devices/1"
    return ResourceStatus("v.com/a", state, since, "", None, (), socket, listed, {"d0": 1.0}, lost_since=since)


def test_an_actor_that_is_behind_may_miss_that_a_plugin_was_well_for_a_while() -> None:
    found: list[str] = []
    oracle, instance = DeviceOracle(lambda rule, _: found.append(rule)), Instance("v.com/a", "/devices/1", 1)
    oracle.added(instance, 1.0)
    oracle.listed(instance, {"d0": HEALTHY}, 1.0)
    oracle.lost(instance, 10.0)
    oracle.up_to_date(10.0)
    oracle.behind = True
    oracle.listed(instance, {"d0": HEALTHY}, 20.0)
    oracle.listed(instance, {"d0": UNHEALTHY}, 20.1)
    listed = DeviceList([Device("d0", UNHEALTHY)])
    state = ResourceState.LISTED
    oracle.shown(ResourceStatus("v.com/a", state, 20.1, socket="/devices/1", listed=listed, changed={"d0": 10.0}), 20.1)
    oracle.up_to_date(21.0)
    assert not found


@pytest.mark.parametrize("since", [1.0, 10.0, 20.0, 20.1])
def test_an_actor_that_is_behind_may_miss_a_list_without_a_device(since: float) -> None:
    """Seed 2702094: the next list with that device takes the place of this one in its inbox."""
    found: list[str] = []
    oracle, instance = DeviceOracle(lambda rule, _: found.append(rule)), Instance("v.com/a", "/devices/1", 1)
    oracle.added(instance, 1.0)
    oracle.listed(instance, {"d0": HEALTHY}, 1.0)
    oracle.up_to_date(1.0)
    oracle.listed(instance, {}, 20.0)
    oracle.behind = True
    oracle.listed(instance, {"d0": HEALTHY}, 20.1)
    listed = DeviceList([Device("d0", HEALTHY)])
    status = ResourceStatus("v.com/a", ResourceState.LISTED, 1.0, socket="/devices/1", listed=listed)
    oracle.shown(attrs.evolve(status, changed={"d0": since}), 20.1)
    oracle.up_to_date(21.0)
    assert found == ([] if since in (1.0, 20.1) else ["devices"])


def test_an_actor_that_is_behind_tells_since_when_a_device_has_its_new_health() -> None:
    found: list[str] = []
    oracle, instance = DeviceOracle(lambda rule, _: found.append(rule)), Instance("v.com/a", "/devices/1", 1)
    oracle.added(instance, 1.0)
    oracle.listed(instance, {"d0": UNHEALTHY}, 1.0)
    oracle.up_to_date(1.0)
    oracle.behind = True
    oracle.listed(instance, {}, 20.0)
    oracle.listed(instance, {"d0": HEALTHY}, 20.1)
    listed = DeviceList([Device("d0", HEALTHY)])
    status = ResourceStatus("v.com/a", ResourceState.LISTED, 1.0, socket="/devices/1", listed=listed)
    oracle.shown(attrs.evolve(status, changed={"d0": 1.0}), 20.1)
    oracle.up_to_date(21.0)
    assert found == ["devices"]
