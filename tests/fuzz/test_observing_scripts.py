"""Random scripts on a node that observes: what holds in them, and that their oracles find bugs that are put in."""

from __future__ import annotations

import pytest

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.handlers.csi.driver import DriverCalls
from plugind.actors.handlers.links import Links
from plugind.actors.registration.actor import _Registration
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.registration import following
from plugind.protocol.registration.failures import PluginRefusedError, refusal_before_register
from plugind.protocol.registration.following import Next
from plugind.tests.fuzz.observing import simulate_observing

#: Scripts in which each of the bugs below shows.
SEEDS = range(3)
EVENTS = 80


def oracles(seeds: range = SEEDS) -> set[str]:
    """Return which oracles find something."""
    results = [simulate_observing(seed, events=EVENTS) for seed in seeds]
    return {violation.oracle for result in results for violation in result.violations}


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_violated(seed: int) -> None:
    """Behaviour 45. ``python -m tests.fuzz --observe --seeds 0..999`` plays more of them."""
    assert simulate_observing(seed, events=EVENTS).violations == ()


def test_one_seed_gives_one_trace_and_others_give_others() -> None:
    hashes = [simulate_observing(seed, events=EVENTS).trace_hash for seed in (1, 1, 2)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_part_of_a_script_can_be_played() -> None:
    lines: list[str] = []
    assert simulate_observing(1, events=EVENTS, only=(3, 7), show=lines.append).events == 2
    assert [line.split()[2] for line in lines if line.split()[1] == "event"] == ["3", "7"]


def test_a_plugin_that_is_told_something_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def telling(self: _Registration, failure: PluginRefusedError) -> Next:
        return await self._tell_refusal(refusal_before_register(failure), following.wait(failure.reason, 1))

    monkeypatch.setattr(_Registration, "_refuse", telling)
    assert "told" in oracles()


def test_a_driver_that_is_asked_nodegetinfo_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def curious(self: DriverCalls, channel: Channel) -> str:
        await self.node_get_info(channel)
        return ""

    monkeypatch.setattr(DriverCalls, "get_plugin_info", curious)
    assert "node-info" in oracles()


def test_a_link_that_is_not_dropped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(self: Links, plugin: Plugin) -> None:
        """Leave it."""

    monkeypatch.setattr(Links, "drop", kept)
    assert "links" in oracles()


def test_a_plugin_that_is_not_followed_anew_under_its_new_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "changed", lambda before, after: "")
    assert "converges" in oracles()
