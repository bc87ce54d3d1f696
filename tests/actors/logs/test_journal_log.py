"""The log in the journal, against a journal of the test's own."""

from __future__ import annotations

import array
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.logs.journal import JournalLog, log_of
from plugind.actors.logs.journal_socket import JournalSocket, is_journal
from plugind.actors.logs.lines import Log
from plugind.protocol.logs.lines import Format, Level
from plugind.tests.protocol.logs.test_journal import parsed


class Journal:
    """A journal that takes entries when the test asks it to."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.bind(self.path)
        self._connected: list[JournalSocket] = []

    def connected(self) -> JournalSocket:
        """Return a connection that the end of the test closes."""
        self._connected.append(JournalSocket(self.path))
        return self._connected[-1]

    def close(self) -> None:
        self.socket.close()
        for connection in self._connected:
            connection.close()

    def entries(self) -> list[dict[str, str]]:
        """Return the entries that have come, of datagrams and of sealed files."""
        found = []
        try:
            while True:
                entry, controls, _, _ = self.socket.recvmsg(1 << 20, 64)
                for _, _, data in controls:
                    (file,) = array.array("i", data)
                    entry = os.pread(file, 1 << 24, 0)
                    with pytest.raises(PermissionError):
                        os.write(file, b"x")
                    os.close(file)
                found.append({name: value.decode() for name, value in parsed(entry)})
        except BlockingIOError:
            return found

    def messages(self) -> list[str]:
        return [entry["MESSAGE"] for entry in self.entries()]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "journal")
    yield made
    made.close()


async def until(journal: Journal, holds: Callable[[list[str]], bool]) -> list[str]:
    """Take messages until ``holds`` of all of them."""
    found: list[str] = []
    with trio.fail_after(10):
        while not holds(found):
            await trio.lowlevel.wait_readable(journal.socket)
            found += journal.messages()
    return found


async def test_entries_are_sent_in_order_with_their_fields(journal: Journal) -> None:
    log = JournalLog(journal.connected())
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        for number in range(200):
            log.event(Level.INFO, "m", n=number)
        found = await until(journal, lambda found: len(found) == 200)
        log.event(Level.WARNING, "plugin refused", name="red\nPRIORITY=0")
        await wait_all_tasks_blocked()
        (entry,) = journal.entries()
        nursery.cancel_scope.cancel()
    assert found == [f"m n={number}" for number in range(200)]
    assert (entry["PRIORITY"], entry["PLUGIND_NAME"]) == ("4", "red\nPRIORITY=0")


async def test_a_journal_that_takes_nothing_blocks_no_actor_and_what_waits_is_sent_later(journal: Journal) -> None:
    """Fault 95."""
    log = JournalLog(journal.connected())
    for number in range(100):
        log.event(Level.INFO, "early", n=number)
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        for number in range(900):
            log.event(Level.INFO, "late", n=number)
        await wait_all_tasks_blocked()
        assert log.dropped == 0
        found = await until(journal, lambda found: len(found) == 1000)
        nursery.cancel_scope.cancel()
    assert found == [*(f"early n={number}" for number in range(100)), *(f"late n={number}" for number in range(900))]


async def test_what_does_not_fit_into_the_queue_is_counted_and_a_later_entry_says_so(journal: Journal) -> None:
    """Fault 95."""
    log = JournalLog(journal.connected(), max_queued=10_000)
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        for number in range(1000):
            log.event(Level.INFO, "m", n=number)
            await trio.lowlevel.checkpoint()
        dropped = log.dropped
        assert 0 < dropped < 1000
        last = f"log lines dropped dropped={dropped}"
        found = await until(journal, lambda found: last in found)
        nursery.cancel_scope.cancel()
    assert found == [*(f"m n={number}" for number in range(1000 - dropped)), last]
    assert log.dropped == 0


async def test_an_entry_too_large_for_a_datagram_comes_as_a_sealed_file(journal: Journal) -> None:
    journal_socket = journal.connected()
    log = JournalLog(journal_socket)
    # 15 KB for a datagram: fifty fields of 1024 characters, in the message and on their own, are more.
    inner = vars(journal_socket)["_socket"]
    inner.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    fields = {f"field_{number}": f"{number:04}" * 256 for number in range(50)}
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        log.event(Level.INFO, "large", **fields)
        log.event(Level.INFO, "small")
        await wait_all_tasks_blocked()
        large, small = journal.entries()
        nursery.cancel_scope.cancel()
    assert {name: large[f"PLUGIND_{name.upper()}"] for name in fields} == fields
    assert (small["MESSAGE"], log.dropped) == ("small", 0)


async def test_entries_without_a_journal_are_counted_until_there_is_one_again(tmp_path: Path) -> None:
    """Fault 95: it is stopped, and another one listens at its path later."""
    first = Journal(tmp_path / "journal")
    log = JournalLog(first.connected())
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        first.socket.close()
        for number in range(3):
            log.event(Level.INFO, "lost", n=number)
            await wait_all_tasks_blocked()
        assert log.dropped == 3
        os.unlink(first.path)
        log.event(Level.INFO, "lost", n=3)
        await wait_all_tasks_blocked()
        assert log.dropped == 4
        second = Journal(tmp_path / "journal")
        with second.socket:
            log.event(Level.INFO, "again")
            await wait_all_tasks_blocked()
            assert second.messages() == ["again", "log lines dropped dropped=4"]
        nursery.cancel_scope.cancel()
    first.close()


async def test_stopping_does_not_wait_for_a_journal_that_takes_nothing(
    journal: Journal, autojump_clock: MockClock
) -> None:
    """Fault 95."""
    log = JournalLog(journal.connected())
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        for _ in range(1000):
            log.event(Level.INFO, "m")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert trio.current_time() == 0.5


async def test_a_process_that_ends_at_once_sends_what_waits(journal: Journal) -> None:
    log = JournalLog(journal.connected())
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        log.event(Level.ERROR, "the node does not stop")
        log.write_now()
        assert journal.messages() == ["the node does not stop"]
        nursery.cancel_scope.cancel()


@contextmanager
def standard_error(descriptor: int) -> Iterator[None]:
    kept = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def test_the_journal_gets_fields_if_standard_error_leads_there_and_lines_of_json_as_they_are(journal: Journal) -> None:
    with tempfile.TemporaryFile() as file:
        found = os.fstat(file.fileno())
        ours = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        redirected = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + 1}"}
        assert [is_journal(file.fileno(), named) for named in (ours, redirected, {})] == [True, False, False]
        with standard_error(file.fileno()):
            in_journal = log_of(Level.INFO, Format.TEXT, ours, journal.path)
            assert isinstance(in_journal, JournalLog)
            vars(in_journal)["_journal"].close()
            assert isinstance(log_of(Level.INFO, Format.TEXT, redirected, journal.path), Log)
            assert isinstance(log_of(Level.INFO, Format.JSON, ours, journal.path), Log)
            assert isinstance(log_of(Level.INFO, Format.TEXT, ours, f"{journal.path}.none"), Log)
    assert not is_journal(file_that_is_closed(), ours)


def file_that_is_closed() -> int:
    with tempfile.TemporaryFile() as file:
        return file.fileno()
