"""The oracle of the health of devices notices what is wrong, and nothing else; and the wall clock of a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import trio
from trio.testing import MockClock

from plugind.protocol.logs.lines import timestamp
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.proto import dra_health_v1_pb2 as api
from plugind.tests.fuzz.device_health_oracle import SHOWN, DeviceHealthOracle
from plugind.tests.fuzz.wall import WallClock

V1 = "v1.DRAResourceHealth"
PLUGIN = Plugin("DRAPlugin", "gpu.lab.com", "/claims/a.sock", ("v1.DRAPlugin", V1), "/registry/a.sock", 1)
KEY = PLUGIN.socket, PLUGIN.generation


def message(status: api.HealthStatus, holds: int = 10) -> bytes:
    device = api.DeviceIdentifier(pool_name="pool", device_name="gpu")
    health = api.DeviceHealth(device=device, health=status, health_check_timeout_seconds=holds, message="list 1")
    return api.NodeWatchResourcesResponse(devices=[health]).SerializeToString()


def status(facts: Mapping[str, str]) -> PluginStatus:
    return PluginStatus(
        socket=PLUGIN.socket,
        root="/registry",
        state=StateName.REGISTERED,
        since=0.0,
        generation=1,
        name=PLUGIN.name,
        facts=tuple(facts.items()),
    )


def facts(text: str, state: str = V1) -> dict[str, str]:
    return {"device-health": state, "device.pool/gpu": text}


class Judged:
    """An oracle of an instance that is connected, and has said of one device that it is healthy."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.wall = WallClock("test")
        self.oracle = DeviceHealthOracle(lambda rule, text: self.wrong.append(text), self.wall.may_show)
        self.oracle.registered(PLUGIN)
        self.oracle.connected(KEY)
        self.oracle.followed(KEY)
        self.oracle.opened(KEY, V1)
        self.oracle.took(KEY, message(api.HEALTHY))

    def shows(self, facts: Mapping[str, str], *, is_used: bool = True) -> bool:
        """Whether nothing is wrong if this is shown."""
        self.wrong.clear()
        self.oracle.compare(status(facts), is_used=is_used)
        return not self.wrong


HEALTHY = f"Healthy: list 1 (since {timestamp(0.0)})"


async def test_what_was_said_last_is_shown_for_as_long_as_it_holds(autojump_clock: MockClock) -> None:
    judged = Judged()
    unknown = f"Unknown (since {timestamp(10.0)})"
    await trio.sleep(5)
    assert judged.shows(facts(HEALTHY))
    assert not judged.shows(facts(unknown))
    assert not judged.shows(facts("Healthy: list 1 (since 1970-01-01T00:00:02.000Z)"))
    assert not judged.shows({"device-health": V1}), "the device is not shown"
    assert not judged.shows({**facts(HEALTHY), "device.pool/other": HEALTHY}), "nobody has said anything of it"
    await trio.sleep(5 + SHOWN + 0.1)
    assert judged.shows(facts(unknown))
    assert not judged.shows(facts(HEALTHY)), "it holds for 10 s"


async def test_devices_of_an_instance_that_is_not_used_are_not_shown(autojump_clock: MockClock) -> None:
    judged = Judged()
    assert judged.shows({"device-health": V1}, is_used=False)
    assert not judged.shows(facts(HEALTHY), is_used=False)


async def test_the_end_of_a_stream_changes_no_device_and_that_of_a_connection_all(autojump_clock: MockClock) -> None:
    judged = Judged()
    await trio.sleep(4)
    judged.oracle.ended(KEY, unimplemented=False, failed=False)
    await trio.sleep(SHOWN + 0.1)
    assert judged.shows(facts(HEALTHY, f"{V1} has ended"))
    judged.oracle.disconnected(KEY)
    lost = timestamp(trio.current_time())
    await trio.sleep(SHOWN + 0.1)
    assert judged.shows({"device.pool/gpu": f"Unknown (since {lost})"})
    assert not judged.shows({"device.pool/gpu": HEALTHY})


@pytest.mark.parametrize(
    ("again_after", "how", "count"),
    [
        pytest.param(5.0, lambda oracle: oracle.opened(KEY, V1), 0, id="in time"),
        pytest.param(4.0, lambda oracle: oracle.opened(KEY, V1), 1, id="too soon"),
        pytest.param(5.0, lambda oracle: oracle.opened(KEY, "v1alpha1.DRAResourceHealth"), 1, id="not announced"),
        pytest.param(5.0, lambda oracle: oracle.look(), 0, id="not yet late"),
        pytest.param(9.0, lambda oracle: oracle.look(), 1, id="not at all"),
    ],
)
async def test_a_stream_that_has_ended_is_opened_again_after_5_s(
    autojump_clock: MockClock, again_after: float, how: Callable[[DeviceHealthOracle], None], count: int
) -> None:
    judged = Judged()
    judged.oracle.ended(KEY, unimplemented=False, failed=False)
    await trio.sleep(again_after)
    how(judged.oracle)
    assert len(judged.wrong) == count


async def test_a_service_that_is_not_implemented_is_not_asked_again(autojump_clock: MockClock) -> None:
    judged = Judged()
    judged.oracle.ended(KEY, unimplemented=True, failed=False)
    await trio.sleep(100)
    judged.oracle.look()
    assert judged.wrong == []
    judged.oracle.opened(KEY, V1)
    assert len(judged.wrong) == 1


async def test_a_list_that_cannot_be_changes_nothing(autojump_clock: MockClock) -> None:
    judged = Judged()
    nameless = api.NodeWatchResourcesResponse(devices=[api.DeviceHealth(health=api.UNHEALTHY)])
    judged.oracle.took(KEY, nameless.SerializeToString())
    await trio.sleep(SHOWN + 0.1)
    assert judged.shows(facts(HEALTHY, f"{V1} is refused: a name is missing"))


async def test_the_end_of_a_stream_is_shown_unless_the_node_has_refused_that_stream_itself(
    autojump_clock: MockClock,
) -> None:
    judged = Judged()
    refused, ended = f"{V1} is refused: a name is missing", f"{V1} has ended: INTERNAL: not now"
    nameless = api.NodeWatchResourcesResponse(devices=[api.DeviceHealth(health=api.UNHEALTHY)])
    judged.oracle.took(KEY, nameless.SerializeToString())
    judged.oracle.ended(KEY, unimplemented=False, failed=False)
    await trio.sleep(5)
    assert judged.shows(facts(HEALTHY, refused))
    assert not judged.shows(facts(HEALTHY, ended))
    # The next stream ends before anything is taken from it.
    judged.oracle.opened(KEY, V1)
    judged.oracle.ended(KEY, unimplemented=False, failed=False)
    await trio.sleep(SHOWN + 0.1)
    assert judged.shows(facts(HEALTHY, ended))
    assert not judged.shows(facts(HEALTHY, refused))


async def test_the_newest_list_is_taken_in_time(autojump_clock: MockClock) -> None:
    judged = Judged()
    sent_at = trio.current_time()
    judged.oracle.compare_taken(KEY, 2, sent_at)
    assert judged.wrong == []
    await trio.sleep(3)
    judged.oracle.compare_taken(KEY, 1, sent_at)
    assert judged.wrong == []
    judged.oracle.compare_taken(KEY, 2, sent_at)
    assert len(judged.wrong) == 1


async def test_dates_are_those_of_the_wall_clock_since_a_moment(autojump_clock: MockClock) -> None:
    wall = WallClock("test")
    await trio.sleep(10)
    wall.set_off(3600.0)
    await trio.sleep(10)
    assert wall() == 3620.0
    assert wall.may_show(timestamp(5.0), 5.0, 5.0)
    assert wall.may_show(timestamp(3605.0), 5.0, 5.0), "it may be written later"
    assert wall.may_show(timestamp(3615.0), 15.0, 15.0)
    assert not wall.may_show(timestamp(15.0), 15.0, 15.0), "the clock was set by then"
    assert not wall.may_show(timestamp(3617.0), 15.0, 16.0)
