"""Programs that embed a node get the same checks and locks of their roots as the daemon."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from plugind import Config, ConfigError, Root, RootBusyError, Supervisor
from plugind.actors.discovery.roots import RootLock
from plugind.protocol.plugins.status import Watching
from plugind.testing import SimulatedNode
from plugind.tests.actors.io.exhaustion import descriptors
from plugind.tests.end_to_end.processes import run


def node(*roots: Root) -> Supervisor:
    return Supervisor(Config(roots=roots))


async def test_a_daemon_cannot_use_the_root_of_an_embedded_node(tmp_path: Path) -> None:
    """Fault 96."""
    (tmp_path / "root").mkdir()
    async with node(Root(tmp_path / "root")):
        done = await trio.to_thread.run_sync(
            lambda: run("run", "--root", str(tmp_path / "root"), status=str(tmp_path / "status.sock"))
        )
        said = f"plugind: another plugind runs on {tmp_path}/root: stop it, or choose another directory with --root\n"
        assert (done.code, done.err) == (1, said)


async def test_a_root_that_everybody_may_write_to_is_refused_unless_the_program_allows_it(
    tmp_path: Path,
) -> None:
    """Fault 3; no descriptor stays open, and the other root is free again."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    for directory in (good, bad):
        directory.mkdir()
    bad.chmod(0o777)
    before = descriptors()
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"everybody may write to the root {bad}"):
            async with node(Root(good), Root(bad)):
                pass
    assert descriptors() == before
    async with node(Root(good), Root(bad, insecure=True)) as allowed:
        await allowed.wait_scanned()
        assert [root.watching for root in (await allowed.snapshot()).roots] == [Watching.EVENTS] * 2


async def test_a_simulated_node_locks_no_directory_of_the_machine(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Fault 96 is about real directories."""
    lock = RootLock()
    lock.take(str(tmp_path))
    try:
        async with SimulatedNode(Config(roots=(Root(tmp_path),))) as simulated:
            await simulated.supervisor.wait_scanned()
            with pytest.raises(RootBusyError):
                RootLock().take(str(tmp_path))
    finally:
        lock.release()
