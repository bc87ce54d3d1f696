"""The oracle of crashes: when a file whose registration has crashed may be dialed again."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from plugind.protocol.backoff import Backoff
from plugind.protocol.identity import Identity
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.tests.fuzz.crash_oracle import CrashOracle
from plugind.tests.fuzz.life_oracle import LifeOracle

PATH = "/plugins/a.sock"
FILE = Identity(1, 7, 0, b"7")


@pytest.mark.parametrize(
    ("directory", "gone", "violated"),
    [
        (None, None, True),
        ("/plugins", None, False),
        ("/plugins", 0.5, False),
        ("/plugins", 1.5, True),
        ("/plugins/a", None, True),
    ],
)
async def test_a_file_is_dialed_too_soon_after_a_crash_unless_it_may_have_been_found_again(
    directory: str | None, gone: float | None, violated: bool, autojump_clock: MockClock
) -> None:
    """Fault 85; seed 7001531: until the daemon sees that a directory was made anew, it may find a file there twice."""
    found: list[str] = []
    say = lambda rule, text: found.append(rule)  # noqa: E731 - the oracles share it
    oracle = CrashOracle(say, Backoff(), LifeOracle(say, Backoff(), 60.0))
    oracle.dialed(PATH, FILE)
    await trio.sleep(1.0)
    if directory is not None:
        oracle.removed(directory)
    if gone is not None:
        oracle.shown(PluginStatus(PATH, "/plugins", 1, StateName.GONE, gone))
    await trio.sleep(1.0)
    oracle.crashed(PATH)
    await trio.sleep(0.1)
    oracle.dialed(PATH, FILE)
    assert found == ["backoff"] * violated
