"""Discovery (behaviours 1 to 16) on a directory in memory, in virtual time."""

from __future__ import annotations

import itertools

import trio
from trio.testing import MockClock

from plugind.actors.discovery.watcher import WatcherConfig, WatcherInbox
from plugind.actors.simulation.directory import MemoryDirectory, Telling
from plugind.protocol.messages.discovery import RescanNow
from plugind.tests.actors.discovery.watching import ROOT, staged


async def test_a_path_that_is_recreated_gets_a_newer_generation_each_time(autojump_clock: MockClock) -> None:
    """Reference: plugin_watcher_test TestPluginReRegistration. Behaviour 13, fault 11: inode and time are the same."""
    async with staged(MemoryDirectory(telling=Telling.NOTHING)) as stage:
        await stage.sent()
        stage.directory.bind(f"{ROOT}/a.sock")
        first = stage.directory.inode(f"{ROOT}/a.sock").number
        assert await stage.sent() == ["a.sock appeared #1"]
        for generation in range(2, 12):
            stage.directory.replace(f"{ROOT}/a.sock")
            assert stage.directory.inode(f"{ROOT}/a.sock").number == first
            assert await stage.sent() == [f"a.sock appeared #{generation}"]


async def test_rescans_are_periodic_and_repeat_no_message(autojump_clock: MockClock) -> None:
    """Behaviour 14: a periodic rescan always runs."""
    async with staged() as stage:
        stage.directory.bind(f"{ROOT}/a.sock")
        await trio.sleep(30.5)
        assert await stage.timeline() == [
            (0.0, "first scan completed of []"),
            (0.0, "a.sock appeared #1"),
            (10.0, "scan completed"),
            (20.0, "scan completed"),
            (30.0, "scan completed"),
        ]
        assert [report.scans for report in stage.reports] == [1, 2, 3, 4]


async def test_jitter_moves_each_rescan_by_a_tenth_at_most(autojump_clock: MockClock) -> None:
    """Behaviour 14."""
    async with staged(config=WatcherConfig(ROOT)) as stage:
        await trio.sleep(200)
        times = [time for time, _ in await stage.timeline()]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert len(set(gaps)) > 10
        assert 9 <= min(gaps) < 9.5 < 10.5 < max(gaps) <= 11


async def test_a_rename_moves_the_socket(autojump_clock: MockClock) -> None:
    """Behaviour 4, fault 9."""
    async with staged() as stage:
        stage.directory.bind(f"{ROOT}/a.sock")
        await stage.sent()
        stage.directory.rename(f"{ROOT}/a.sock", f"{ROOT}/b.sock")
        assert await stage.sent() == ["a.sock vanished #1", "b.sock appeared #2"]


async def test_sockets_are_found_in_nested_directories_that_are_filled_before_they_are_watched(
    autojump_clock: MockClock,
) -> None:
    """Fault 12, behaviour 9: the scan and the event of one socket make one generation."""
    async with staged() as stage:
        await stage.sent()
        stage.directory.mkdir(f"{ROOT}/x/y")
        stage.directory.bind(f"{ROOT}/x/a.sock")
        stage.directory.bind(f"{ROOT}/x/y/b.sock")
        assert await stage.sent() == ["x/a.sock appeared #1", "x/y/b.sock appeared #2"]
        stage.directory.bind(f"{ROOT}/x/y/c.sock")
        assert await stage.sent() == ["x/y/c.sock appeared #3"]
        stage.directory.remove_tree(f"{ROOT}/x")
        assert sorted(await stage.sent()) == [
            "x/a.sock vanished #1",
            "x/y/b.sock vanished #2",
            "x/y/c.sock vanished #3",
        ]


async def test_a_directory_that_is_moved_moves_its_sockets(autojump_clock: MockClock) -> None:
    """Behaviour 4 for directories: later events of the moved directory refer to its new path."""
    async with staged() as stage:
        stage.directory.mkdir(f"{ROOT}/x/y")
        stage.directory.bind(f"{ROOT}/x/y/a.sock")
        await stage.sent()
        stage.directory.rename(f"{ROOT}/x", f"{ROOT}/w")
        assert await stage.sent() == ["x/y/a.sock vanished #1", "w/y/a.sock appeared #2"]
        stage.directory.bind(f"{ROOT}/w/y/b.sock")
        assert await stage.sent() == ["w/y/b.sock appeared #3"]


async def test_dot_names_are_ignored_at_the_start_and_later(autojump_clock: MockClock) -> None:
    """Behaviour 6, fault 5."""

    def prepare(directory: MemoryDirectory) -> None:
        directory.mkdir(f"{ROOT}/.x")
        directory.bind(f"{ROOT}/.x/a.sock")
        directory.bind(f"{ROOT}/.b.sock")

    async with staged(prepare=prepare) as stage:
        stage.directory.bind(f"{ROOT}/.x/c.sock")
        stage.directory.mkdir(f"{ROOT}/.y")
        stage.directory.bind(f"{ROOT}/.y/c.sock")
        await trio.sleep(15)
        assert await stage.sent() == ["first scan completed of []"]


async def test_what_only_looks_like_a_socket_is_reported_once(autojump_clock: MockClock) -> None:
    """Behaviours 5 and 8, fault 6: whether an event or a rescan finds it; a directory is entered as any other."""

    def prepare(directory: MemoryDirectory) -> None:
        directory.mkdir(ROOT)
        directory.write(f"{ROOT}/before.sock")
        directory.write(f"{ROOT}/readme.txt")

    async with staged(prepare=prepare) as stage:
        assert await stage.sent() == ["before.sock is no socket", "first scan completed of []"]
        stage.directory.write(f"{ROOT}/notes.txt")
        stage.directory.write(f"{ROOT}/.hidden.sock")
        stage.directory.write(f"{ROOT}/after.socket")
        stage.directory.mkdir(f"{ROOT}/mount.sock")
        stage.directory.bind(f"{ROOT}/mount.sock/a.sock")
        assert sorted(await stage.sent()) == [
            "after.socket is no socket",
            "mount.sock is a directory",
            "mount.sock/a.sock appeared #1",
        ]
        stage.directory.unlink(f"{ROOT}/after.socket")
        stage.directory.write(f"{ROOT}/after.socket")
        await trio.sleep(100)
        assert await stage.sent() == []
        # It is no obstacle to a plugin.
        stage.directory.replace(f"{ROOT}/after.socket")
        assert await stage.sent() == ["after.socket appeared #2"]


async def test_a_chmod_after_bind_touches_the_same_generation(autojump_clock: MockClock) -> None:
    """Behaviour 3: IN_ATTRIB causes another look."""
    async with staged() as stage:
        stage.directory.bind(f"{ROOT}/a.sock")
        await stage.sent()
        await trio.sleep(1)
        stage.directory.chmod(f"{ROOT}/a.sock")
        assert await stage.sent() == ["a.sock touched #1"]
        await trio.sleep(30)
        assert await stage.sent() == []


async def test_symbolic_links_are_refused_with_a_reason(autojump_clock: MockClock) -> None:
    """Behaviour 7, fault 7; links to directories are not followed (fault 13)."""
    async with staged() as stage:
        stage.directory.bind(f"{ROOT}/a.sock")
        stage.directory.symlink("a.sock", f"{ROOT}/b.sock")
        stage.directory.symlink("a.sock", f"{ROOT}/current")
        refusal = "a symbolic link, and links are not followed"
        assert (await stage.sent())[1:] == [
            "a.sock appeared #1",
            f"b.sock refused #2: {refusal}",
            f"current refused #3: {refusal}",
        ]
        stage.directory.unlink(f"{ROOT}/current")
        assert await stage.sent() == ["current vanished #3"]
        await trio.sleep(30)
        assert await stage.sent() == []


async def test_links_that_lead_to_no_socket_are_ignored_until_they_do(autojump_clock: MockClock) -> None:
    """Fault 7: only what has the name of a socket is reported, and as a plain file is; links are not entered."""
    async with staged() as stage:
        stage.directory.mkdir(f"{ROOT}/v1.2")
        stage.directory.symlink("v1.2", f"{ROOT}/current")
        stage.directory.symlink("..", f"{ROOT}/loop")
        stage.directory.symlink("itself", f"{ROOT}/itself")
        stage.directory.symlink("nowhere", f"{ROOT}/dangling")
        stage.directory.symlink("late", f"{ROOT}/a.sock")
        assert (await stage.sent())[1:] == ["a.sock is no socket"]
        stage.directory.bind(f"{ROOT}/late")
        await trio.sleep(10)
        refusal = "a symbolic link, and links are not followed"
        assert await stage.sent() == ["late appeared #1", f"a.sock refused #2: {refusal}"]
        stage.directory.unlink(f"{ROOT}/late")
        await trio.sleep(10)
        assert await stage.sent() == ["late vanished #1", "a.sock vanished #2"]


async def test_links_inside_the_root_are_accepted_with_the_option(autojump_clock: MockClock) -> None:
    """Behaviour 7, with the option."""
    config = WatcherConfig(ROOT, jitter=0.0, follow_symlinks_inside_root=True)
    async with staged(config=config) as stage:
        stage.directory.mkdir(f"{ROOT}/.hidden")
        stage.directory.bind(f"{ROOT}/.hidden/a.sock")
        stage.directory.mkdir("/elsewhere")
        stage.directory.bind("/elsewhere/c.sock")
        await stage.sent()
        stage.directory.symlink(".hidden/a.sock", f"{ROOT}/a.sock")
        stage.directory.symlink("/elsewhere/c.sock", f"{ROOT}/c.sock")
        assert await stage.sent() == [
            "a.sock appeared #1",
            "c.sock refused #2: a symbolic link that leads to no socket inside the root",
        ]
        stage.directory.unlink(f"{ROOT}/.hidden/a.sock")
        await trio.sleep(10)
        assert await stage.sent() == ["a.sock vanished #1", "a.sock is no socket"]


async def test_a_hard_link_is_refused_until_the_first_name_is_removed(autojump_clock: MockClock) -> None:
    """Fault 8."""
    async with staged() as stage:
        stage.directory.bind(f"{ROOT}/a.sock")
        await stage.sent()
        stage.directory.link(f"{ROOT}/a.sock", f"{ROOT}/b.sock")
        stage.directory.link(f"{ROOT}/a.sock", f"{ROOT}/c.sock")
        assert await stage.sent() == [
            "b.sock refused #2: a hard link of a.sock",
            "c.sock refused #3: a hard link of a.sock",
        ]
        stage.directory.unlink(f"{ROOT}/a.sock")
        assert await stage.sent() == [
            "a.sock vanished #1",
            "b.sock vanished #2",
            "b.sock appeared #4",
            "c.sock vanished #3",
            "c.sock refused #5: a hard link of b.sock",
        ]


async def test_directories_that_are_too_deep_are_refused_with_a_reason(autojump_clock: MockClock) -> None:
    """Fault 13."""
    async with staged(config=WatcherConfig(ROOT, jitter=0.0, max_depth=2)) as stage:
        await stage.sent()
        stage.directory.mkdir(f"{ROOT}/1/2/3/4")
        stage.directory.bind(f"{ROOT}/1/2/a.sock")
        stage.directory.bind(f"{ROOT}/1/2/3/b.sock")
        assert sorted(await stage.sent()) == [
            "1/2/3 refused #1: a directory more than 2 levels below the root",
            "1/2/a.sock appeared #2",
        ]
        stage.directory.remove_tree(f"{ROOT}/1/2/3")
        assert await stage.sent() == ["1/2/3 vanished #1"]


async def test_sockets_in_a_deprecated_root_are_marked(autojump_clock: MockClock) -> None:
    """Behaviour 16."""
    async with staged(config=WatcherConfig(ROOT, deprecated=True, jitter=0.0)) as stage:
        await stage.sent()
        stage.directory.bind(f"{ROOT}/a.sock")
        assert await stage.sent() == ["a.sock appeared #1 (deprecated)"]
        assert stage.reports[0].deprecated


async def test_a_full_inbox_slows_the_watcher_and_loses_no_message(autojump_clock: MockClock) -> None:
    """The watcher waits until the reconciler takes its messages."""

    def prepare(directory: MemoryDirectory) -> None:
        directory.mkdir(ROOT)
        for number in range(600):
            directory.bind(f"{ROOT}/{number:03}.sock")

    async with staged(prepare=prepare, inbox=0) as stage:
        lines = await stage.sent()
        assert lines[:-1] == [f"{number:03}.sock appeared #{number + 1} (first scan)" for number in range(600)]
        assert stage.reports[-1].sockets == 600


# --- what it is asked -------------------------------------------------------------------------------------------------


async def test_a_requested_rescan_begins_at_once_and_finds_what_no_event_reported(autojump_clock: MockClock) -> None:
    """Behaviour 14: SIGHUP asks for one."""
    async with staged() as stage:
        await trio.sleep(1)
        stage.directory.drop_events()
        stage.directory.bind(f"{ROOT}/a.sock")
        stage.directory.resume_events()
        for _ in range(100):
            stage.asks.send_nowait(RescanNow())
        assert (await stage.timeline())[1:] == [(1.0, "a.sock appeared #1"), (1.0, "scan completed")]
        await trio.sleep(15)
        assert [report.time for report in stage.reports] == [0, 1, 11], "the schedule goes on from there"


async def test_a_rescan_that_is_asked_for_is_a_deep_one(autojump_clock: MockClock) -> None:
    """Fault 16: only a look shows another device under the same inode number."""

    def prepare(directory: MemoryDirectory) -> None:
        directory.mkdir(ROOT)
        directory.bind(f"{ROOT}/a.sock")

    async with staged(prepare=prepare) as stage:
        await trio.sleep(1)
        stage.directory.inode(f"{ROOT}/a.sock").device = 9
        await trio.sleep(10)
        assert (await stage.timeline())[2:] == [(10.0, "scan completed")]
        stage.asks.send_nowait(RescanNow())
        assert await stage.sent() == ["a.sock appeared #2"]


async def test_an_ask_from_before_the_start_or_during_a_scan_is_not_lost(autojump_clock: MockClock) -> None:
    """Fault 86."""
    inbox = WatcherInbox()
    inbox.send_nowait(RescanNow())
    woken: list[None] = []
    inbox.wake_by(lambda: woken.append(None))
    inbox.send_nowait(RescanNow())
    assert (len(woken), inbox.take(), inbox.take()) == (2, [RescanNow()], [])
    async with staged(inbox=0) as stage:
        stage.asks.send_nowait(RescanNow())
        await stage.sent()
        assert [report.time for report in stage.reports] == [0, 0]
