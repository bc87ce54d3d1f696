"""A large or flooded directory delays no plugin elsewhere: the order in which a scanner reads a tree (fault 48).

What happens to a directory that the rescan under way has read already is not missed either (fault 12).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.discovery.directory import CHUNK, Chunk, LeaveOut, take_all
from plugind.actors.simulation.directory import MemoryDirectory
from plugind.protocol.discovery.sockets import Found
from plugind.protocol.identity import Identity
from plugind.tests.actors.discovery.test_scanner import Scanned, following, scanned
from plugind.tests.actors.discovery.watching import ROOT

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


#: Two directories below the root, of which the first has another one.
D, E, Z = f"{ROOT}/d", f"{ROOT}/d/e", f"{ROOT}/z"


class Disturbed(MemoryDirectory):
    """Something happens once, when the listing of the directory ``at`` begins, or when it ends."""

    def __init__(self, at: str, happens: Callable[[MemoryDirectory], None], *, after: bool) -> None:
        super().__init__()
        for path in (E, Z):
            self.mkdir(path)
        self.bind(f"{D}/1.sock")
        self.bind(f"{E}/1.sock")
        self._at, self._after = at, after
        self._waits = [happens]

    def scan(
        self, path: str, known_sockets: Mapping[str, Identity | None], *, deep: bool, leave_out: LeaveOut = take_all
    ) -> Generator[Chunk, None, None]:
        if path == self._at and not self._after:
            self._happen()
        yield from super().scan(path, known_sockets, deep=deep, leave_out=leave_out)
        if path == self._at and self._after:
            self._happen()

    def _happen(self) -> None:
        while self._waits:
            self._waits.pop()(self)


def make_again(directory: MemoryDirectory) -> None:
    directory.remove_tree(D)
    directory.mkdir(D)
    directory.bind(f"{D}/1.sock")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [ROOT, D, E, Z])
async def test_a_directory_that_is_made_again_during_the_first_rescan_is_read_and_watched(
    autojump_clock: MockClock, at: str, after: bool
) -> None:
    """It may be one that was read already. What was there before is gone, and nothing waits for the next rescan."""
    stage = scanned(Disturbed(at, make_again, after=after))
    await stage.rescan()
    async with following(stage):
        stage.directory.bind(f"{D}/2.sock")
        await wait_all_tasks_blocked()
    assert there(stage.sent.take()) == {"d/1.sock", "d/2.sock"}


def there(lines: list[str]) -> set[str]:
    """Return the names that have appeared and not vanished since."""
    names = set[str]()
    for path, what, *_ in (line.split() for line in lines):
        assert what in ("appeared", "vanished")
        (names.add if what == "appeared" else names.discard)(path)
    return names


async def chmod_in_a_loop(directory: MemoryDirectory, sockets: int, times: int, every: float = 0.001) -> None:
    for _ in range(times):
        for number in range(sockets):
            directory.chmod(f"{LARGE}/{number}.sock")
        await trio.sleep(every)


@pytest.mark.parametrize(("sockets", "every"), [(1, 0.001), (5, 0.001), (2 * CHUNK, 0.1)])
async def test_sockets_whose_attributes_change_all_the_time_are_looked_at_a_hundred_times_a_second(
    autojump_clock: MockClock, sockets: int, every: float
) -> None:
    """Fault 48. A look and what follows from it cost a hundred times as much as the chmod."""
    stage = tree()
    fill(stage.directory, range(sockets))
    await stage.rescan()
    stage.sent.take()
    async with following(stage):
        await chmod_in_a_loop(stage.directory, sockets, round(2.0 / every), every)
        assert len(stage.sent.take()) <= 100 * 2 + CHUNK
        await chmod_in_a_loop(stage.directory, sockets, 1)
        await trio.sleep(sockets * 0.01 + 2.6)
    touched = {line.split()[0] for line in stage.sent.take()}
    assert touched == {f"a/{number}.sock" for number in range(sockets)}, "the last chmod of each is noticed"


class Counted(MemoryDirectory):
    """Counts the looks at each path."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = Counter[str]()

    def look(self, path: str) -> Found | None:
        self.looked[path] += 1
        return super().look(path)


@pytest.mark.parametrize("path", [f"{LARGE}/0.sock", LARGE], ids=["socket", "directory"])
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "mixed"])
async def test_attributes_that_change_all_the_time_cause_a_hundred_looks_a_second_whatever_else_happens(
    autojump_clock: MockClock, path: str, mixed: bool
) -> None:
    """Fault 48. The other events cause their own looks, and neither they nor the mode of a directory more than that."""
    directory = Counted()
    directory.mkdir(LARGE)
    directory.bind(f"{LARGE}/0.sock")
    stage = scanned(directory)
    await stage.rescan()
    async with following(stage):
        directory.looked.clear()
        directory.chmod(path)
        await wait_all_tasks_blocked()
        assert directory.looked == {path: 1}, "the first one is looked at without delay"
        for number in range(1000):
            directory.chmod(path)
            if mixed:
                (directory.unlink if number % 2 else directory.write)(f"{ROOT}/x")
            await trio.sleep(0.002)
    assert 150 <= directory.looked[path] <= 205
    assert directory.looked[f"{ROOT}/x"] >= 500 * mixed


async def test_a_directory_whose_mode_changes_is_judged_before_what_is_new_in_it_although_looks_at_sockets_wait(
    autojump_clock: MockClock,
) -> None:
    """Fault 3: others may write to it from then on."""
    stage = tree()
    fill(stage.directory, range(CHUNK))
    await stage.rescan()
    stage.sent.take()
    async with following(stage):
        for _ in range(2):
            await chmod_in_a_loop(stage.directory, CHUNK, 1)
        assert len(stage.sent.take()) == CHUNK, "the second time they wait"
        stage.directory.chmod(SMALL, 0o777)
        await trio.sleep(0.0021)
        stage.directory.bind(f"{SMALL}/new.sock")
        await trio.sleep(0.1)
    assert f"{SMALL}/new.sock" not in "".join(stage.sent.take())
