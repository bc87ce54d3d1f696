"""The file with the history of leases: damaged, removed, on a full disk and on one that cannot be written."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from plugind.actors.io.history_database import BEGINS, HistoryDatabase
from plugind.actors.io.history_file import HistoryFile
from plugind.protocol.errors import StateError
from plugind.protocol.leases.config import LeaseHistoryConfig
from plugind.protocol.leases.history import HistoryQuery
from plugind.protocol.logs.lines import Level
from plugind.tests.actors.io.test_history_database import GPU, granted
from plugind.tests.actors.status.bench import RecordingLogger

HELD = granted("a", {GPU: ("gpu-0",)}, 5.0)


@contextmanager
def opened(directory: Path, log: RecordingLogger | None = None) -> Iterator[HistoryFile]:
    file = HistoryFile(str(directory), LeaseHistoryConfig(), log or RecordingLogger())
    yield file
    file.close()


async def write(file: HistoryFile) -> None:
    if not await file.call(lambda database: database.write([HELD], 10.0)):
        await file.call(lambda database: database.begin([HELD], [], None, 10.0))


async def rows(file: HistoryFile) -> list[str]:
    found, _ = await file.call(lambda database: database.rows(HistoryQuery(), None, 10, 5.0))
    return [row.lease for row in found]


async def gaps(file: HistoryFile) -> list[str]:
    return [gap.reason for gap in await file.call(lambda database: database.gaps(HistoryQuery()))]


async def test_the_file_is_for_its_owner_alone_and_is_read_again(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        await write(file)
    assert stat.S_IMODE((tmp_path / "history.db").stat().st_mode) == 0o600
    with opened(tmp_path) as file:
        assert await rows(file) == ["a"]
        # Each opening is told of all leases that are held, before anything else is written.
        assert not await file.call(lambda database: database.write([], 20.0))


@pytest.mark.parametrize("content", [b"no database " * 1000, b"SQLite format 3\0" + b"x" * 5000])
async def test_a_file_that_is_damaged_is_set_aside_and_a_new_one_says_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "history.db").write_bytes(content)
    log = RecordingLogger()
    with opened(tmp_path, log) as file:
        await write(file)
        assert await rows(file) == ["a"]
        assert file.set_aside == 1
        (reason,) = await gaps(file)
        assert reason.startswith("the file was set aside: it is damaged")
    assert (tmp_path / "history.db.bad").read_bytes() == content
    ((level, message, fields),) = log.events
    assert (level, message, fields["path"]) == (
        Level.ERROR,
        "the history was set aside",
        f"{tmp_path}/history.db.bad",
    )


async def test_a_file_that_is_found_to_be_damaged_while_it_is_used_is_set_aside(tmp_path: Path) -> None:
    log = RecordingLogger()
    with opened(tmp_path, log) as file:
        await write(file)

        def break_it(database: HistoryDatabase) -> None:
            database._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            with open(file.path, "r+b") as raw:
                raw.seek(4096)
                raw.write(os.urandom(20 * 4096))
            database._database.execute("PRAGMA shrink_memory")
            database._database.execute("SELECT * FROM held").fetchall()

        with pytest.raises(StateError, match="cannot be used"):
            await file.call(break_it)
        await write(file)
        assert await rows(file) == ["a"]
        assert (file.set_aside, len(log.events)) == (1, 1)


async def test_a_row_that_cannot_be_understood_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        await write(file)
        await file.call(lambda database: database._database.execute("UPDATE held SET labels = 'x'"))
        with pytest.raises(StateError, match=r"history\.db cannot be understood: .*; remove it, and a new one begins"):
            await rows(file)


async def test_the_file_of_a_newer_version_is_set_aside(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        await write(file)
        await file.call(lambda database: database._database.execute("PRAGMA user_version = 99"))
    with opened(tmp_path) as file:
        await write(file)
        (reason,) = await gaps(file)
        assert "a newer plugind has written it: its version is 99, and this one has 1" in reason


async def test_a_file_that_was_removed_while_it_was_used_begins_anew(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        await write(file)
        os.unlink(tmp_path / "history.db")
        assert not await file.call(lambda database: database.write([], 20.0))
        await write(file)
        assert await rows(file) == ["a"]
        assert await gaps(file) == [BEGINS]
    with opened(tmp_path) as file:
        assert await rows(file) == ["a"]


async def test_something_else_in_the_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "history.db").mkdir()
    with opened(tmp_path) as file, pytest.raises(StateError, match=r"history\.db is not a file: move it away"):
        await write(file)


async def test_a_call_that_is_given_up_goes_on_and_closes_the_file_at_its_end(tmp_path: Path) -> None:
    goes_on, is_over = threading.Event(), threading.Event()

    def hang(_: HistoryDatabase) -> None:
        goes_on.wait(10.0)
        is_over.set()

    with opened(tmp_path) as file:
        await write(file)
        with trio.move_on_after(0.05):
            await file.call(hang)
    goes_on.set()
    assert await trio.to_thread.run_sync(is_over.wait, 10.0)
    with opened(tmp_path) as file, trio.fail_after(10.0):
        while True:
            try:
                assert await rows(file) == ["a"]
                break
            except StateError:  # It is still locked.
                await trio.sleep(0.01)


#: Writes to the file, and prints what it says.
_PLAY = """
import json, sys, trio
from plugind.actors.io.history_file import HistoryFile
from plugind.protocol.errors import StateError
from plugind.protocol.leases.config import LeaseHistoryConfig
from plugind.protocol.logs.lines import SILENT

async def main():
    file = HistoryFile(sys.argv[1], LeaseHistoryConfig(), SILENT)
    try:
        await file.call(lambda database: database.begin([], [], None, 1.0))
    except StateError as error:
        print(json.dumps(str(error)))
    file.close()

trio.run(main)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")
@pytest.mark.parametrize(
    ("mount", "said"),
    [
        ('mount -t tmpfs -o size=2m,mode=700 none "$1"', "less than 4 MiB are free"),
        ('mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"', "cannot be used: Read-only file system"),
    ],
)
def test_a_disk_that_is_full_or_read_only_is_an_error_that_says_so(tmp_path: Path, mount: str, said: str) -> None:
    command = ["unshare", "--mount", "sh", "-c", f'set -e; {mount}; "$2" -c "$3" "$1"', "sh", str(tmp_path)]
    done = subprocess.run([*command, sys.executable, _PLAY], stdout=subprocess.PIPE, check=True)
    assert said in json.loads(done.stdout)
