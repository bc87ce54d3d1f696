"""A large or flooded directory delays no plugin elsewhere: the order in which a scanner reads a tree (fault 48)."""

from __future__ import annotations

from collections.abc import Iterable

from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.io.directory import CHUNK
from plugind.actors.simulation.directory import MemoryDirectory
from plugind.tests.actors.test_scanner import Scanned, following, scanned
from plugind.tests.actors.watching import ROOT

#: Large, and the first of all by its name.
LARGE = f"{ROOT}/a"
SMALL = f"{ROOT}/z/deep"


def tree() -> Scanned[MemoryDirectory]:
    directory = MemoryDirectory()
    directory.mkdir(LARGE)
    directory.mkdir(SMALL)
    return scanned(directory, max_entries=1_000_000)


def fill(directory: MemoryDirectory, numbers: Iterable[int]) -> None:
    for number in numbers:
        directory.bind(f"{LARGE}/{number}.sock")


def place(appeared: list[str], wanted: str) -> int:
    """Return how many sockets of the large directory appeared before ``wanted``."""
    names = [line.split()[0] for line in appeared]
    return sum(name.startswith("a/") for name in names[: names.index(wanted)])


async def test_a_rescan_reads_the_root_first_then_small_directories_and_large_ones_last(
    autojump_clock: MockClock,
) -> None:
    stage = tree()
    fill(stage.directory, range(3 * CHUNK))
    stage.directory.bind(f"{SMALL}/new.sock")
    stage.directory.bind(f"{ROOT}/new.sock")
    report = await stage.rescan()
    assert (report.sockets, report.failures) == (3 * CHUNK + 2, 0)
    appeared = stage.sent.take()
    assert appeared[0].split()[0] == "new.sock"
    assert place(appeared, "z/deep/new.sock") == 0
    assert len(appeared) == report.sockets, "each appeared once"


async def test_after_an_overflow_a_new_socket_does_not_wait_for_the_directory_that_caused_it(
    autojump_clock: MockClock,
) -> None:
    """Fault 19: the events from before the overflow name thousands of paths of that directory."""
    stage = tree()
    fill(stage.directory, range(2 * CHUNK))
    await stage.rescan()
    stage.sent.take()
    fill(stage.directory, range(2 * CHUNK, 6 * CHUNK))
    stage.directory.overflow()
    stage.directory.bind(f"{SMALL}/new.sock")
    await stage.scanner.follow_events(1.0)
    assert (await stage.rescan()).overflowed
    appeared = stage.sent.take()
    assert place(appeared, "z/deep/new.sock") == 0
    assert len(appeared) == 4 * CHUNK + 1


async def test_a_new_socket_does_not_wait_for_thousands_of_events_in_another_directory(
    autojump_clock: MockClock,
) -> None:
    stage = tree()
    await stage.rescan()
    async with following(stage):
        fill(stage.directory, range(8 * CHUNK))
        stage.directory.bind(f"{SMALL}/new.sock")
        await wait_all_tasks_blocked()
    appeared = stage.sent.take()
    assert place(appeared, "z/deep/new.sock") < CHUNK
    assert len(appeared) == 8 * CHUNK + 1
