from __future__ import annotations

import contextlib
import os
import resource
import tempfile
from collections.abc import Iterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from plugind.actors.logs.lines import Log
from plugind.protocol.logs.lines import Format, Level


def at_zero() -> float:
    return 0.0


PREFIX = "time=1970-01-01T00:00:00.000Z level=info msg="


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    for descriptor in (reader, writer):
        # A test may have closed it.
        with contextlib.suppress(OSError):
            os.close(descriptor)


def drained(reader: int) -> bytes:
    whole = b""
    try:
        while piece := os.read(reader, 65536):
            whole += piece
    except BlockingIOError:
        pass
    return whole


async def read_until(reader: int, end: bytes) -> bytes:
    whole = b""
    with trio.fail_after(10):
        while not whole.endswith(end):
            await trio.lowlevel.wait_readable(reader)
            whole += os.read(reader, 65536)
    return whole


async def test_lines_are_written_in_order(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    log = Log(descriptor=writer, wall=at_zero)
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        for number in range(1000):
            log.event(Level.INFO, "m", n=number)
        whole = await read_until(reader, b"n=999\n")
        nursery.cancel_scope.cancel()
    assert whole.decode() == "".join(f"{PREFIX}m n={number}\n" for number in range(1000))


async def test_queued_lines_are_written_before_the_actor_stops(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    log = Log(descriptor=writer, wall=at_zero)
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        log.event(Level.INFO, "last words")
        nursery.cancel_scope.cancel()
    assert drained(reader).decode() == f'{PREFIX}"last words"\n'


async def test_events_under_the_level_are_left_out(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    log = Log(Level.WARNING, Format.JSON, descriptor=writer, wall=at_zero)
    assert [log.enabled(level) for level in Level] == [False, False, True, True]
    log.event(Level.INFO, "no")
    log.event(Level.ERROR, "yes")
    assert drained(reader) == b'{"time": "1970-01-01T00:00:00.000Z", "level": "error", "msg": "yes"}\n'


async def test_a_reader_that_stops_blocks_no_actor_and_lost_lines_are_counted(pipe: tuple[int, int]) -> None:
    """Fault 95."""
    reader, writer = pipe
    log = Log(descriptor=writer, wall=at_zero, max_queued=10_000)
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        with trio.fail_after(10):
            for number in range(10_000):
                log.event(Level.INFO, "m", n=number)
                if number % 100 == 0:
                    await trio.lowlevel.checkpoint()
        assert log.dropped > 0
        dropped = log.dropped
        last = f'level=warning msg="log lines dropped" dropped={dropped}\n'.encode()
        whole = await read_until(reader, last)
        nursery.cancel_scope.cancel()
    lines = whole.decode().splitlines()
    assert len(lines) == 10_000 - dropped + 1
    assert [line.startswith("time=") for line in lines] == [True] * len(lines)


async def test_a_closed_pipe_does_not_end_the_log(pipe: tuple[int, int]) -> None:
    """Fault 95: EPIPE."""
    reader, writer = pipe
    log = Log(descriptor=writer, wall=at_zero)
    os.close(reader)
    log.event(Level.INFO, "before it runs")
    assert log.dropped == 1
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        log.event(Level.INFO, "a")
        await wait_all_tasks_blocked()
        log.event(Level.INFO, "b")
        await wait_all_tasks_blocked()
        assert log.dropped == 3
        nursery.cancel_scope.cancel()


async def test_a_full_disk_does_not_end_the_log_and_lost_lines_are_counted_when_there_is_room() -> None:
    """Fault 95: ENOSPC, here from a device that is always full."""
    full = os.open("/dev/full", os.O_WRONLY)
    with tempfile.TemporaryFile() as file:
        try:
            log = Log(descriptor=full, wall=at_zero)
            async with trio.open_nursery() as nursery:
                await nursery.start(log.run)
                for _ in range(3):
                    log.event(Level.INFO, "lost")
                await wait_all_tasks_blocked()
                assert log.dropped == 3
                os.dup2(file.fileno(), full)
                log.event(Level.INFO, "room")
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            file.seek(0)
            text = file.read().decode()
        finally:
            os.close(full)
    assert text.splitlines() == [
        "",
        f"{PREFIX}room",
        'time=1970-01-01T00:00:00.000Z level=warning msg="log lines dropped" dropped=3',
    ]


async def test_stopping_does_not_wait_for_a_reader_that_never_reads(
    pipe: tuple[int, int], autojump_clock: trio.testing.MockClock
) -> None:
    """Fault 95: the writer blocks on the pipe only, so the clock may jump."""
    _, writer = pipe
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * resource.getpagesize())
    except BlockingIOError:
        pass
    log = Log(descriptor=writer, wall=at_zero)
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        log.event(Level.INFO, "m")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert trio.current_time() == 0.5
