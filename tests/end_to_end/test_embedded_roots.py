"""Programs that embed a node get the same checks and locks of their roots as the daemon."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from plugind import Config, ConfigError, NodeEndedError, Root, RootBusyError, Supervisor
from plugind.actors.discovery.roots import RootLock
from plugind.protocol.plugins.status import Watching
from plugind.testing import SimulatedNode
from plugind.tests.actors.io.exhaustion import descriptors
from plugind.tests.end_to_end.processes import DEADLINE, run


def node(*roots: Root) -> Supervisor:
    return Supervisor(Config(roots=roots))


async def test_two_nodes_of_one_process_cannot_use_one_root(tmp_path: Path) -> None:
    """Fault 96; the first one is not disturbed, and its root is free once it has ended."""
    async with node(Root(tmp_path)) as first:
        with pytest.raises(RootBusyError, match=f"another plugind runs on {tmp_path}"):
            async with node(Root(tmp_path)):
                pass
        await first.wait_scanned()
        assert (await first.snapshot()).roots[0].watching == Watching.EVENTS
    async with node(Root(tmp_path)) as second:
        await second.snapshot()


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


async def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """Fault 2."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is not a directory, or is a symbolic link"):
        async with node(Root(tmp_path / "file")):
            pass


async def test_a_node_runs_while_a_root_is_missing_and_a_rescan_finds_it_at_once(tmp_path: Path) -> None:
    """Faults 1 and 4, behaviour 2."""
    root = tmp_path / "missing" / "root"
    async with node(Root(root)) as waiting:
        await waiting.wait_scanned()
        (report,) = (await waiting.snapshot()).roots
        assert (report.watching, report.ready) == (Watching.UNAVAILABLE, False)
        root.mkdir(parents=True)
        await waiting.rescan()
        with trio.fail_after(DEADLINE):
            while (await waiting.snapshot()).roots[0].watching != Watching.EVENTS:  # noqa: ASYNC110 - the stream has no roots
                await trio.sleep(0.01)
        assert (await waiting.snapshot()).roots[0].scans == report.scans + 1
    for call in (waiting.rescan, waiting.wait_scanned):
        with pytest.raises(NodeEndedError):
            await call()


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
