"""Faults of the file system and of inotify, on a directory in memory, in virtual time."""

from __future__ import annotations

import errno

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.discovery.roots import RootBusyError
from plugind.actors.discovery.watcher import WatcherConfig
from plugind.actors.simulation.directory import MemoryDirectory
from plugind.protocol.discovery.sockets import MAX_IGNORED, Found
from plugind.protocol.discovery.watches import LOCK_FILE
from plugind.protocol.errors import ConfigError
from plugind.protocol.messages.discovery import LookNow
from plugind.tests.actors.discovery.watching import ROOT, Stage, staged


def with_socket(directory: MemoryDirectory) -> None:
    directory.mkdir(ROOT)
    directory.bind(f"{ROOT}/a.sock")


def states(stage: Stage) -> list[tuple[float, str, str | None]]:
    """Return the times, states and reasons in the reports, without repetitions."""
    seen: list[tuple[float, str, str | None]] = []
    for report in stage.reports:
        if not seen or seen[-1][1:] != (report.watching, report.reason):
            seen.append((round(report.time, 3), report.watching, report.reason))
    return seen


# --- the root ---------------------------------------------------------------------------------------------------------


async def test_a_root_that_cannot_be_made_is_tried_again_with_doubling_delays(autojump_clock: MockClock) -> None:
    """Behaviour 2, faults 1 and 4: a failed start is visible, and retried."""

    def prepare(directory: MemoryDirectory) -> None:
        directory.mkdir("/run")
        directory.look_errors[ROOT] = errno.EACCES

    async with staged(prepare=prepare) as stage:
        await trio.sleep(100)
        assert [report.time for report in stage.reports] == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 61.5, 91.5]
        assert states(stage) == [(0, "unavailable", f"cannot use {ROOT}: Permission denied")]
        assert not stage.reports[-1].ready
        assert await stage.sent() == []
        stage.directory.look_errors.clear()
        await trio.sleep(22)
        assert await stage.timeline() == [(121.5, "first scan completed of []")]
        assert stage.reports[-1].ready


async def test_a_root_below_a_missing_directory_is_awaited(autojump_clock: MockClock) -> None:
    """Behaviour 1, faults 1 and 4."""
    async with staged(prepare=lambda directory: None) as stage:
        await trio.sleep(5)
        missing = "its parent directory /run is missing, and plugind does not make it"
        reason = f"cannot use {ROOT}: {missing}: make it, or name another root with --root DIR"
        assert states(stage) == [(0, "unavailable", reason)]
        stage.directory.mkdir("/run")
        await trio.sleep(5)
        assert await stage.timeline() == [(7.5, "first scan completed of []")]
        assert states(stage)[-1] == (7.5, "events", None)


async def test_a_root_without_which_the_node_works_is_absent_until_it_is_there_for_the_first_time(
    autojump_clock: MockClock,
) -> None:
    """A daemon with device plugins alone is ready on a machine without a kubelet. One that goes later is missed."""
    config = WatcherConfig(ROOT, jitter=0.0, optional=True)
    async with staged(prepare=lambda directory: None, config=config) as stage:
        await trio.sleep(5)
        assert [(report.watching, report.ready) for report in stage.reports[:1]] == [("absent", True)]
        # An alert fires for failures.
        assert stage.reports[-1].scan_failures == 0
        assert "name another root with --root DIR" in (stage.reports[0].reason or "")
        stage.directory.mkdir("/run")
        await trio.sleep(5)
        assert (stage.reports[-1].watching, stage.reports[-1].ready) == ("events", True)
        stage.directory.remove_tree("/run")
        await trio.sleep(30)
        assert (stage.reports[-1].watching, stage.reports[-1].ready) == ("unavailable", False)
        assert stage.reports[-1].scan_failures > 0


async def test_a_root_that_may_not_be_used_any_more_keeps_what_is_known_and_takes_nothing_new(
    autojump_clock: MockClock,
) -> None:
    """Fault 3: a user who may write there could register a plugin, but must not be able to end one."""
    error = ConfigError("everybody may write")
    async with staged(prepare=with_socket) as stage:
        await stage.sent()
        await trio.sleep(1)
        stage.directory.refused_roots[ROOT] = error
        stage.directory.chmod(ROOT)
        stage.directory.bind(f"{ROOT}/b.sock")
        stage.directory.unlink(f"{ROOT}/a.sock")
        assert await stage.sent() == []
        assert states(stage)[-1] == (1.0, "unavailable", str(error))
        assert not stage.reports[-1].ready
        await trio.sleep(100)
        assert await stage.sent() == []
        stage.directory.refused_roots.clear()
        stage.directory.chmod(ROOT)
        assert sorted(await stage.sent()) == ["a.sock vanished #1", "b.sock appeared #2"]
        assert states(stage)[-1] == (101.0, "events", None)
        assert stage.reports[-1].ready


async def test_a_root_that_another_node_has_locked_is_left_to_it_until_it_ends(autojump_clock: MockClock) -> None:
    """Fault 96: that node registers the same sockets, and no plugin may be registered by two."""
    async with staged(prepare=with_socket) as stage:
        await stage.sent()
        await trio.sleep(1)
        stage.directory.refused_roots[ROOT] = RootBusyError("another plugind runs")
        # The lock is checked, because its file was removed and made again.
        stage.directory.write(f"{ROOT}/{LOCK_FILE}")
        assert await stage.sent() == ["a.sock vanished #1"]
        assert states(stage)[-1] == (1.0, "unavailable", "another plugind runs")
        stage.directory.bind(f"{ROOT}/b.sock")
        await trio.sleep(100)
        assert await stage.sent() == []
        stage.directory.refused_roots.clear()
        await trio.sleep(30)
        assert sorted(await stage.sent()) == ["a.sock appeared #2", "b.sock appeared #3"]


async def test_the_lock_is_checked_before_a_socket_is_taken_that_appears_after_the_lock_file_was_removed(
    autojump_clock: MockClock,
) -> None:
    """Fault 96: another node may have locked a new file by then, and may register that socket."""
    async with staged(prepare=with_socket) as stage:
        stage.directory.write(f"{ROOT}/{LOCK_FILE}")
        await stage.sent()
        stage.directory.refused_roots[ROOT] = RootBusyError("another plugind runs")
        stage.directory.chmod(f"{ROOT}/{LOCK_FILE}")
        assert await stage.sent() == [], "a change of its mode says nothing"
        stage.directory.unlink(f"{ROOT}/{LOCK_FILE}")
        stage.directory.bind(f"{ROOT}/b.sock")
        assert await stage.sent() == ["a.sock vanished #1"]


async def test_a_removed_root_is_recreated_and_watched_again(autojump_clock: MockClock) -> None:
    """Behaviour 10, fault 14."""
    async with staged(prepare=with_socket) as stage:
        await stage.sent()
        await trio.sleep(1)
        stage.directory.remove_tree(ROOT)
        await trio.sleep(1)
        assert await stage.timeline() == [(1.0, "a.sock vanished #1"), (1.5, "scan completed")]
        assert states(stage) == [
            (0.0, "events", None),
            (1.0, "unavailable", f"{ROOT} was removed"),
            (1.5, "events", None),
        ]
        stage.directory.bind(f"{ROOT}/b.sock")
        assert await stage.sent() == ["b.sock appeared #2"]


async def test_the_watch_on_the_parent_reports_a_removed_root_if_the_kernel_withholds_its_event(
    autojump_clock: MockClock,
) -> None:
    """Behaviour 11, fault 14: a process still listens in the removed directory."""
    async with staged(prepare=with_socket) as stage:
        await trio.sleep(1)
        stage.directory.withhold_self_events = True
        stage.directory.remove_tree(ROOT)
        stage.directory.mkdir(ROOT)
        stage.directory.bind(f"{ROOT}/b.sock")
        assert (await stage.sent())[2:] == ["a.sock vanished #1", "b.sock appeared #2"]


@pytest.mark.parametrize("events_lost", [False, True])
async def test_a_root_that_is_moved_away_and_recreated_is_watched_again(
    autojump_clock: MockClock, events_lost: bool
) -> None:
    """Fault 15. If no event arrives, the next rescan compares the root's identity."""
    async with staged(prepare=with_socket) as stage:
        await trio.sleep(1)
        if events_lost:
            stage.directory.drop_events()
        stage.directory.rename(ROOT, f"{ROOT}.old")
        stage.directory.mkdir(ROOT)
        stage.directory.bind(f"{ROOT}/b.sock")
        stage.directory.resume_events()
        await trio.sleep(10)
        time = 10.0 if events_lost else 1.0
        assert (await stage.timeline())[2:4] == [(time, "a.sock vanished #1"), (time, "b.sock appeared #2")]
        stage.directory.bind(f"{ROOT}/c.sock")
        stage.directory.bind(f"{ROOT}.old/d.sock")
        assert await stage.sent() == ["c.sock appeared #3"]


async def test_the_next_rescan_notices_a_mount_over_the_root(autojump_clock: MockClock) -> None:
    """Fault 16: a mount causes no event."""
    async with staged(prepare=with_socket) as stage:
        await trio.sleep(1)
        stage.directory.mount(ROOT)
        await trio.sleep(10)
        stage.directory.bind(f"{ROOT}/b.sock")
        assert (await stage.sent())[2:] == ["a.sock vanished #1", "b.sock appeared #2"]
        stage.directory.unmount(ROOT)
        await trio.sleep(10)
        assert await stage.sent() == ["b.sock vanished #2", "a.sock appeared #3"]


async def test_a_root_that_cannot_be_read_keeps_its_sockets(autojump_clock: MockClock) -> None:
    """Faults 4 and 26: a failed scan is never a mass deregistration; a chmod of the root is noticed at once."""
    async with staged(prepare=with_socket) as stage:
        await trio.sleep(1)
        stage.directory.scan_errors[ROOT] = errno.EACCES
        stage.directory.unlink(f"{ROOT}/a.sock")
        stage.directory.bind(f"{ROOT}/a.sock")
        await trio.sleep(10)
        assert (await stage.sent())[2:] == ["a.sock appeared #2"]
        assert states(stage)[1:] == [(10.0, "unavailable", f"cannot read {ROOT}: Permission denied")]
        del stage.directory.scan_errors[ROOT]
        stage.directory.chmod(ROOT)
        await wait_all_tasks_blocked()
        assert states(stage)[2:] == [(11.0, "events", None)]
        assert await stage.sent() == []


# --- scans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE])
async def test_a_directory_that_cannot_be_read_keeps_its_sockets(autojump_clock: MockClock, error: int) -> None:
    """Fault 26."""

    def prepare(directory: MemoryDirectory) -> None:
        directory.mkdir(f"{ROOT}/x")
        directory.bind(f"{ROOT}/x/a.sock")
        directory.bind(f"{ROOT}/b.sock")

    async with staged(prepare=prepare) as stage:
        await stage.sent()
        stage.directory.scan_errors[f"{ROOT}/x"] = error
        stage.directory.overflow()
        await trio.sleep(35)
        assert await stage.sent() == []
        assert stage.reports[-1].scan_failures == 4
        assert stage.reports[-1].watching == "events"
        assert stage.reports[-1].reason is not None
        assert stage.reports[-1].reason.startswith(f"cannot read {ROOT}/x: ")


async def test_a_name_that_cannot_be_looked_at_is_kept_and_reported(autojump_clock: MockClock) -> None:
    """Faults 4 and 26, for one name."""
    async with staged(prepare=with_socket) as stage:
        await stage.sent()
        stage.directory.look_errors[f"{ROOT}/a.sock"] = errno.EACCES
        stage.directory.chmod(f"{ROOT}/a.sock")
        stage.directory.overflow()
        await trio.sleep(1)
        assert await stage.sent() == []
        assert stage.reports[-1].reason == f"cannot look at {ROOT}/a.sock: Permission denied"


async def test_a_scan_of_a_hundred_thousand_files_lets_other_tasks_run(autojump_clock: MockClock) -> None:
    """Fault 27."""

    def prepare(directory: MemoryDirectory) -> None:
        directory.mkdir(ROOT)
        for number in range(100_000):
            directory.write(f"{ROOT}/{number}.sock")

    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while not stage.reports:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with staged(prepare=prepare) as stage:
        stage.reports.clear()
        stage.directory.overflow()
        await count_turns()
        assert turns > 100_000 / 256
        sent = await stage.sent()
        assert sent[:MAX_IGNORED] == [f"{number}.sock is no socket" for number in range(MAX_IGNORED)]
        assert sent[MAX_IGNORED:] == ["first scan completed of []"]


# --- inotify ----------------------------------------------------------------------------------------------------------


async def test_an_overflow_causes_a_rescan_at_once(autojump_clock: MockClock) -> None:
    """Fault 19, behaviour 14: three thousand sockets through a queue that holds sixteen events."""
    async with staged() as stage:
        await stage.sent()
        stage.directory.inotify.queue_size = 16
        await trio.sleep(1)
        for number in range(3000):
            stage.directory.bind(f"{ROOT}/{number}.sock")
        timeline = await stage.timeline()
        assert len(timeline) == 3001
        assert {time for time, _ in timeline} == {1.0}
        assert stage.reports[-1].overflows == 1
        assert stage.reports[-1].sockets == 3000


async def test_a_flood_of_overflows_does_not_starve_the_node(autojump_clock: MockClock) -> None:
    """Fault 19."""
    async with staged() as stage:
        for _ in range(100):
            stage.directory.overflow()
            await trio.sleep(0.01)
        assert 10 <= stage.reports[-1].scans <= 12


@pytest.mark.parametrize("exhausted", ["watches_left", "instances_left"])
async def test_without_inotify_only_rescans_find_changes_until_it_is_available_again(
    autojump_clock: MockClock, exhausted: str
) -> None:
    """Behaviour 2, faults 17, 18 and 24: the reports give the reason."""

    def prepare(directory: MemoryDirectory) -> None:
        directory.mkdir(ROOT)
        setattr(directory.inotify, exhausted, 0)

    async with staged(prepare=prepare) as stage:
        assert stage.reports[-1].watching == "polling"
        assert stage.reports[-1].ready
        assert "inotify" in (stage.reports[-1].reason or "")
        await trio.sleep(20)
        stage.directory.bind(f"{ROOT}/a.sock")
        await trio.sleep(10)
        assert [(time, line) for time, line in await stage.timeline() if line != "scan completed"] == [
            (0.0, "first scan completed of []"),
            (25.5, "a.sock appeared #1"),
        ]
        assert [report.time for report in stage.reports] == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 25.5]
        setattr(stage.directory.inotify, exhausted, None)
        await trio.sleep(10)
        assert stage.reports[-1].watching == "events"
        stage.directory.bind(f"{ROOT}/b.sock")
        assert await stage.sent() == ["b.sock appeared #2"]


async def test_a_watch_that_the_kernel_ends_is_added_again(autojump_clock: MockClock) -> None:
    """Fault 20."""

    def prepare(directory: MemoryDirectory) -> None:
        directory.mkdir(f"{ROOT}/x")
        directory.bind(f"{ROOT}/x/a.sock")

    async with staged(prepare=prepare) as stage:
        await stage.sent()
        stage.directory.lose_watch(ROOT)
        stage.directory.lose_watch(f"{ROOT}/x")
        assert await stage.sent() == []
        stage.directory.bind(f"{ROOT}/b.sock")
        stage.directory.bind(f"{ROOT}/x/c.sock")
        assert sorted(await stage.sent()) == ["b.sock appeared #2", "x/c.sock appeared #3"]


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["\udcff\udcfe.sock", "a\n\x1b[31m\u202e.sock", "x" * 200])
async def test_odd_names_are_passed_on_unchanged(autojump_clock: MockClock, name: str) -> None:
    """Faults 21 to 23: the modules that show or dial a name escape or refuse it."""
    async with staged() as stage:
        stage.directory.bind(f"{ROOT}/{name}")
        assert (await stage.sent())[1:] == [f"{name} appeared #1"]


# --- idle time and bugs -----------------------------------------------------------------------------------------------


async def test_a_bug_ends_the_watcher(autojump_clock: MockClock) -> None:
    """Fault 85: the error propagates to the supervisor, and no instance of inotify stays open."""

    class Broken(MemoryDirectory):
        def follow(self, path: str, root: str) -> Found | None:
            raise ZeroDivisionError

    directory = Broken()

    async def play() -> None:
        async with staged(directory, config=WatcherConfig(ROOT, follow_symlinks_inside_root=True)):
            directory.symlink("a.sock", f"{ROOT}/b.sock")
            await trio.sleep(1)

    with pytest.raises(ExceptionGroup) as caught:
        await play()
    assert caught.group_contains(ZeroDivisionError)
    assert directory.inotify.instances == []


# --- where a dial found another socket --------------------------------------------------------------------------------


async def test_paths_that_are_asked_for_often_are_looked_at_once_and_again_a_moment_later(
    autojump_clock: MockClock,
) -> None:
    """Fault 41: a plugin that replaces its socket all the time must not keep the watcher busy."""
    async with staged(prepare=with_socket) as stage:
        await trio.sleep(1)
        looks = stage.directory.looks
        for _ in range(50):
            stage.asks.send_nowait(LookNow(f"{ROOT}/a.sock"))
            await trio.sleep(0.01)
        await trio.sleep(0.5)
        assert stage.directory.looks - looks == 6
        assert stage.asks.take() == []


async def test_an_event_is_followed_while_a_path_waits_for_its_look(autojump_clock: MockClock) -> None:
    """Fault 41: the pause between two looks that are asked for delays no event."""
    async with staged(prepare=with_socket) as stage:
        await trio.sleep(1)
        for _ in range(2):
            stage.asks.send_nowait(LookNow(f"{ROOT}/a.sock"))
            await wait_all_tasks_blocked()
        stage.directory.bind(f"{ROOT}/b.sock")
        await trio.sleep(1)
        assert (await stage.timeline())[2:] == [(1.0, "b.sock appeared #2")]
