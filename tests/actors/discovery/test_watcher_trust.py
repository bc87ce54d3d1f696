"""Directories that others may write to: what is known there stays, and nothing new is taken until that is mended."""

from __future__ import annotations

import errno

import pytest
import trio
from trio.testing import MockClock

from plugind.actors.discovery.watcher import WatcherConfig
from plugind.actors.simulation.directory import MemoryDirectory, Telling
from plugind.protocol.trust.directories import DirectoryCondition
from plugind.tests.actors.discovery.watching import ROOT, Stage, staged

SUB, DEEP = f"{ROOT}/sub", f"{ROOT}/sub/deep"


def with_sockets(directory: MemoryDirectory) -> None:
    directory.mkdir(DEEP)
    directory.bind(f"{SUB}/a.sock")
    directory.bind(f"{DEEP}/a.sock")


def conditions(stage: Stage) -> list[tuple[str, DirectoryCondition]]:
    return [(report.path, report.condition) for report in stage.reports[-1].directories]


def spoil(directory: MemoryDirectory, path: str, how: str) -> None:
    if how == "world-writable":
        directory.chmod(path, 0o777)
    else:
        directory.chown(path, 1000)


def mend(directory: MemoryDirectory, path: str) -> None:
    directory.chmod(path, 0o755)
    directory.chown(path, 0)


HOW = pytest.mark.parametrize("how", ["world-writable", "given away"])


@HOW
async def test_a_directory_that_fails_from_the_start_is_not_entered_but_shown(
    autojump_clock: MockClock, how: str
) -> None:
    """Fault 3."""

    def prepare(directory: MemoryDirectory) -> None:
        with_sockets(directory)
        spoil(directory, SUB, how)
        directory.bind(f"{ROOT}/b.sock")

    async with staged(prepare=prepare) as stage:
        assert (await stage.sent())[0] == "b.sock appeared #1 (first scan)"
        assert conditions(stage) == [(SUB, DirectoryCondition.INSECURE)]
        assert (stage.reports[-1].watching, stage.reports[-1].ready) == ("events", True)
        assert stage.reports[-1].conditions == ((DirectoryCondition.INSECURE, 1),)
        stage.directory.bind(f"{SUB}/c.sock")
        await trio.sleep(100)
        assert await stage.sent() == []
        mend(stage.directory, SUB)
        assert sorted(line.partition(" ")[0] for line in await stage.sent()) == [
            "sub/a.sock",
            "sub/c.sock",
            "sub/deep/a.sock",
        ]
        await trio.sleep(11)
        assert conditions(stage) == []


@HOW
@pytest.mark.parametrize("telling", [Telling.HANDLES, Telling.NOTHING])
async def test_a_directory_that_fails_later_keeps_what_is_known_and_takes_nothing_new(
    autojump_clock: MockClock, how: str, telling: Telling
) -> None:
    """Fault 3: a chmod must not deregister plugins, and neither must what strangers do in the directory then."""
    async with staged(MemoryDirectory(telling=telling), prepare=with_sockets) as stage:
        await stage.sent()
        await trio.sleep(1)
        spoil(stage.directory, SUB, how)
        stage.directory.bind(f"{SUB}/new.sock")
        stage.directory.bind(f"{DEEP}/new.sock")
        stage.directory.unlink(f"{SUB}/a.sock")
        stage.directory.replace(f"{DEEP}/a.sock")
        assert await stage.sent() == []
        await trio.sleep(100)
        assert await stage.sent() == []
        assert conditions(stage) == [(SUB, DirectoryCondition.INSECURE)]
        mend(stage.directory, SUB)
        assert sorted(line.partition(" #")[0] for line in await stage.sent()) == [
            "sub/a.sock vanished",
            "sub/deep/a.sock appeared",
            "sub/deep/new.sock appeared",
            "sub/new.sock appeared",
        ]


@HOW
async def test_the_root_is_judged_at_each_scan(autojump_clock: MockClock, how: str) -> None:
    """Fault 3: seen within a rescan also where no event tells of it, and said."""
    async with staged(prepare=with_sockets) as stage:
        await stage.sent()
        stage.directory.drop_events()
        spoil(stage.directory, ROOT, how)
        await trio.sleep(10)
        stage.directory.bind(f"{ROOT}/new.sock")
        stage.directory.unlink(f"{SUB}/a.sock")
        stage.directory.resume_events()
        await trio.sleep(100)
        assert await stage.sent() == []
        report = stage.reports[-1]
        assert (report.watching, report.ready) == ("insecure", False)
        assert conditions(stage) == [(ROOT, DirectoryCondition.INSECURE)]
        assert report.reason == report.directories[0].reason
        mend(stage.directory, ROOT)
        assert sorted(await stage.sent()) == ["new.sock appeared #3", "sub/a.sock vanished #1"]
        assert (stage.reports[-1].watching, stage.reports[-1].ready, conditions(stage)) == ("events", True, [])


@HOW
@pytest.mark.parametrize("then", ["removed", "replaced", "a link"])
async def test_what_strangers_do_with_a_root_through_a_directory_above_it_deregisters_nothing(
    autojump_clock: MockClock, how: str, then: str
) -> None:
    """Fault 3: whoever may write to a directory above the root can move the root away."""
    above = ROOT.rpartition("/")[0]
    async with staged(prepare=with_sockets) as stage:
        await stage.sent()
        spoil(stage.directory, above, how)
        stage.directory.rename(ROOT, "/old")
        if then == "replaced":
            stage.directory.mkdir(ROOT)
        elif then == "a link":
            stage.directory.symlink("/old", ROOT)
        await trio.sleep(100)
        assert await stage.sent() == []
        report = stage.reports[-1]
        assert (report.watching, report.ready, report.made) == ("insecure", False, False)
        assert conditions(stage) == [(ROOT, DirectoryCondition.INSECURE)]
        assert above in (report.reason or "")
        if then == "replaced":
            stage.directory.remove_tree(ROOT)
        elif then == "a link":
            stage.directory.unlink(ROOT)
        stage.directory.rename("/old", ROOT)
        mend(stage.directory, above)
        await trio.sleep(100)
        assert await stage.sent() == []
        assert (stage.reports[-1].watching, conditions(stage)) == ("events", [])


async def test_a_directory_that_is_insecure_in_an_insecure_one_stays_closed_when_that_is_mended(
    autojump_clock: MockClock,
) -> None:
    """Fault 3."""
    async with staged(prepare=with_sockets) as stage:
        await stage.sent()
        stage.directory.chmod(SUB, 0o777)
        await stage.sent()
        stage.directory.chmod(DEEP, 0o777)
        stage.directory.bind(f"{DEEP}/new.sock")
        stage.directory.bind(f"{SUB}/new.sock")
        assert await stage.sent() == []
        await trio.sleep(0.1)  # The look at a mode that changes again at once would wait.
        stage.directory.chmod(SUB, 0o755)
        assert await stage.sent() == ["sub/new.sock appeared #3"]
        await trio.sleep(11)
        assert conditions(stage) == [(DEEP, DirectoryCondition.INSECURE)]
        stage.directory.chmod(DEEP, 0o755)
        assert await stage.sent() == ["sub/deep/new.sock appeared #4"]


async def test_an_insecure_directory_that_is_removed_or_replaced_takes_its_sockets_with_it(
    autojump_clock: MockClock,
) -> None:
    """Fault 3: whoever may write to the directory above it did that, and that one is secure."""
    async with staged(prepare=with_sockets) as stage:
        await stage.sent()
        stage.directory.chmod(SUB, 0o777)
        await stage.sent()
        stage.directory.rename(SUB, "/run/aside")
        assert await stage.sent() == ["sub/a.sock vanished #1", "sub/deep/a.sock vanished #2"]
        stage.directory.mkdir(SUB)
        stage.directory.bind(f"{SUB}/b.sock")
        assert await stage.sent() == ["sub/b.sock appeared #3"]


async def test_a_directory_is_judged_as_it_is_opened_even_if_it_cannot_be_looked_at(autojump_clock: MockClock) -> None:
    """Fault 3: the look at it fails, and so says nothing of its mode."""
    async with staged(prepare=with_sockets) as stage:
        await stage.sent()
        stage.directory.look_errors[SUB] = errno.EIO
        stage.directory.chmod(SUB, 0o777)
        await trio.sleep(11)
        stage.directory.bind(f"{SUB}/new.sock")
        assert await stage.sent() == []
        assert conditions(stage) == [(SUB, DirectoryCondition.INSECURE)]


async def test_a_watcher_that_starts_again_forgets_nothing_because_of_an_insecure_directory(
    autojump_clock: MockClock,
) -> None:
    """Faults 3 and 85: its first list of all paths would deregister what is in that directory."""

    def prepare(directory: MemoryDirectory) -> None:
        with_sockets(directory)
        directory.chmod(SUB, 0o777)

    async with staged(prepare=prepare) as stage:
        assert await stage.sent() == ["first scan completed"]


@HOW
@pytest.mark.parametrize("spoilt", [SUB, DEEP])
async def test_a_rescan_judges_a_directory_before_it_takes_a_new_socket_that_an_event_named(
    autojump_clock: MockClock, how: str, spoilt: str
) -> None:
    """Fault 3: the event of the change was lost, that of the socket was not, and no rescan could come between."""
    async with staged(prepare=with_sockets) as stage:
        await stage.sent()
        spoil(stage.directory, ROOT, how)
        await stage.sent()
        stage.directory.drop_events()
        spoil(stage.directory, spoilt, how)
        stage.directory.resume_events()
        stage.directory.bind(f"{DEEP}/new.sock")
        await trio.sleep(100)
        mend(stage.directory, ROOT)
        assert await stage.sent() == []
        assert conditions(stage) == [(spoilt, DirectoryCondition.INSECURE)]
        mend(stage.directory, spoilt)
        assert await stage.sent() == ["sub/deep/new.sock appeared #3"]


@HOW
async def test_a_directory_that_can_neither_be_scanned_nor_looked_at_takes_nothing_new(
    autojump_clock: MockClock, how: str
) -> None:
    """Fault 3: who may write to it now is not known, nor whether an event of that was lost (seed 2701550)."""
    async with staged(prepare=with_sockets) as stage:
        await stage.sent()
        stage.directory.look_errors[SUB] = stage.directory.scan_errors[SUB] = errno.EIO
        await trio.sleep(100)
        stage.directory.drop_events()
        spoil(stage.directory, SUB, how)
        stage.directory.bind(f"{DEEP}/quiet.sock")
        stage.directory.resume_events()
        stage.directory.bind(f"{DEEP}/new.sock")
        await trio.sleep(100)
        stage.directory.look_errors.clear()
        stage.directory.scan_errors.clear()
        await trio.sleep(100)
        assert await stage.sent() == []
        assert conditions(stage) == [(SUB, DirectoryCondition.INSECURE)]
        mend(stage.directory, SUB)
        assert sorted(line.partition(" #")[0] for line in await stage.sent()) == [
            "sub/deep/new.sock appeared",
            "sub/deep/quiet.sock appeared",
        ]


async def test_directories_below_a_root_that_may_be_insecure_are_not_judged(autojump_clock: MockClock) -> None:
    """Fault 3: ``Root(insecure=True)``."""

    def prepare(directory: MemoryDirectory) -> None:
        with_sockets(directory)
        directory.insecure_roots.add(ROOT)
        directory.chmod(ROOT, 0o1777)
        directory.chown(SUB, 1000)

    async with staged(prepare=prepare, config=WatcherConfig(ROOT, jitter=0.0, insecure=True)) as stage:
        assert len(await stage.sent()) == 3
        assert conditions(stage) == []
