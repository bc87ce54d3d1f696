"""The file of resources: what it survives, and what it never does to another one's file."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
import trio

from plugind.actors.io.state_database import APPLICATION_ID, VERSION, read_only, resources
from plugind.actors.io.state_file import StateFile
from plugind.protocol.devices.resources import Forget, Remember
from plugind.protocol.errors import ConfigError, StateError
from plugind.protocol.logs.lines import SILENT
from plugind.protocol.plugins.devices import KnownResource

GPU = "vendor.com/gpu"


def file_in(directory: Path) -> StateFile:
    return StateFile(str(directory / "state"), SILENT)


async def test_what_is_written_is_read_again(directory: Path) -> None:
    """TestCheckpoint: registered resources survive write and read."""
    file = file_in(directory)
    assert await file.read() == []
    await file.write([Remember(GPU, 4), Remember("v.com/a", 1), Remember("v.com/b", 0)])
    await file.write([Forget("v.com/a"), Remember(GPU, 3)])
    file.close()
    again = file_in(directory)
    assert set(await again.read()) == {KnownResource(GPU, 3), KnownResource("v.com/b", 0)}
    again.close()


async def test_the_file_is_the_users_own_and_says_what_it_is(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    await file.write([Remember(GPU, 4)])
    file.close()
    assert sorted(os.listdir(tmp_path / "state")) == ["state.db"]
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state/state.db").stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(file.path)) as database:
        assert database.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert database.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert database.execute("SELECT name, capacity FROM resource").fetchall() == [(GPU, 4)]
        assert {key for (key,) in database.execute("SELECT key FROM meta")} == {"instance", "boot", "serves", "serial"}


async def test_the_journal_stays_small_and_is_empty_after_a_restart(tmp_path: Path) -> None:
    """It grew to 4 MiB before any of it was moved into the file, and what a killed daemon had left stayed there."""
    file, journal = file_in(tmp_path), tmp_path / "state/state.db-wal"
    sizes = []
    for number in range(60):
        await file.write([Remember(f"vendor.com/gpu{number % 4}", number)])
        sizes.append(journal.stat().st_size)
    assert 0 < max(sizes) < 80 * 1024
    content, left = (tmp_path / "state/state.db").read_bytes(), journal.read_bytes()
    file.close()
    (tmp_path / "state/state.db").write_bytes(content)
    journal.write_bytes(left)
    again = file_in(tmp_path)
    assert len(await again.read()) == 4
    assert journal.stat().st_size == 0
    again.close()


@pytest.mark.parametrize("replaced", [False, True])
async def test_nothing_is_written_to_a_file_that_was_removed(replaced: bool, tmp_path: Path) -> None:
    """A lease that is kept nowhere would be forgotten with the process."""
    file = file_in(tmp_path)
    await file.write([Remember(GPU, 4)])
    shutil.rmtree(tmp_path / "state")
    if replaced:
        (tmp_path / "state").mkdir()
        (tmp_path / "state/state.db").touch()
    with pytest.raises(StateError, match="was removed or replaced while plugind ran: start plugind again"):
        await file.write([Remember(GPU, 3)])
    file.close()


async def test_a_second_daemon_is_refused(tmp_path: Path) -> None:
    """It says what to do, and exits with 78; also in another process."""
    first = file_in(tmp_path)
    await first.read()
    with pytest.raises(ConfigError, match=r"another plugind uses .*/state\.db: .* with --state"):
        await file_in(tmp_path).read()
    code = f"import sqlite3; sqlite3.connect({first.path!r}, timeout=0).execute('SELECT * FROM resource')"
    other = await trio.run_process([sys.executable, "-c", code], capture_stderr=True, check=False)
    assert b"database is locked" in other.stderr
    await first.write([Remember(GPU, 1)])
    first.close()
    second = file_in(tmp_path)
    assert await second.read() == [KnownResource(GPU, 1)]
    second.close()


async def test_the_resources_of_another_directory_are_not_taken_over(tmp_path: Path) -> None:
    """Two daemons of one user have the same default: what one knows never appears in the other."""

    def serving(directory: str) -> StateFile:
        return StateFile(str(tmp_path / "state"), SILENT, serves=directory)

    for directory in ("/a", "/b", "/a"):
        unused = serving(directory)
        assert await unused.read() == []  # There is nothing to be mixed up.
        await unused.begin()
        unused.close()
    first = serving("/a")
    await first.write([Remember(GPU, 4)])
    first.close()
    refused = serving("/b")
    text = (
        r"state\.db keeps the resources of the device plugins in /a: give this plugind another directory with --state"
    )
    with pytest.raises(ConfigError, match=text):
        await refused.read()
    refused.close()
    for directory in ("/a", "", "/a"):  # One without a directory of device plugins takes what there is.
        again = serving(directory)
        assert await again.read() == [KnownResource(GPU, 4)]
        await again.begin()
        again.close()


def foreign(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE theirs(x)")
    database.close()


def newer(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
        database.execute("CREATE TABLE later(x)")
    database.close()


def no_database(path: Path) -> None:
    path.write_bytes(b"nothing of the kind" * 100)


@pytest.mark.parametrize("make", [foreign, newer, no_database])
async def test_a_file_that_cannot_be_understood_is_set_aside(tmp_path: Path, make: object) -> None:
    """It is renamed, with an error in the log that says so, and the daemon begins with an empty one."""
    assert callable(make)
    (tmp_path / "state").mkdir(mode=0o700)
    path = tmp_path / "state/state.db"
    make(path)
    (tmp_path / "state/state.db-wal").write_bytes(b"its journal")
    before = path.read_bytes()
    log = Lines()
    file = StateFile(str(tmp_path / "state"), log)
    assert await file.read() == []
    await file.write([Remember(GPU, 2)])
    file.close()
    assert (tmp_path / "state/state.db.bad").read_bytes() == before
    assert [line["message"] for line in log.lines] == ["the state was set aside"]
    again = file_in(tmp_path)
    assert await again.read() == [KnownResource(GPU, 2)]
    again.close()


async def test_a_damaged_page_is_found_at_the_start(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    await file.write([Remember(f"v.com/{number:05}", number) for number in range(2000)])
    file.close()
    path = tmp_path / "state/state.db"
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8192] = b"\xff" * 8192
    path.write_bytes(content)
    again = file_in(tmp_path)
    assert await again.read() == []
    again.close()
    assert (tmp_path / "state/state.db.bad").read_bytes() == bytes(content)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    """Another user could put a file of its own there."""
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", 12345, -1)
    with pytest.raises(ConfigError, match="others may write to the state directory"):
        await file_in(tmp_path).read()


async def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state/state.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError):
        await file_in(tmp_path).read()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("state", ["afile", "afile/state"])
async def test_a_file_in_the_place_of_the_directory_is_bad_configuration(tmp_path: Path, state: str) -> None:
    """It was ``cannot be used: File exists; repair it``, and the daemon ran without its state."""
    (tmp_path / "afile").write_text("a file")
    file = StateFile(str(tmp_path / state), SILENT)
    with pytest.raises(ConfigError) as refused:
        await file.read()
    where = tmp_path / state
    assert str(refused.value) == (
        f"the state directory {where} is not a directory: move it away, or name another with --state DIR"
    )


async def test_a_directory_that_cannot_be_made_is_an_error_that_passes(tmp_path: Path) -> None:
    """A missing disk: the daemon goes on without, and tries again."""
    (tmp_path / "state").symlink_to("missing/state")
    file = file_in(tmp_path)
    assert await file.read() == []
    with pytest.raises(StateError, match="cannot be used"):
        await file.begin()
    (tmp_path / "state").unlink()
    await file.write([Remember(GPU, 2)])
    assert await file.read() == [KnownResource(GPU, 2)]
    file.close()


# --- where nothing can be written -------------------------------------------------------------------------------------

_ROOT = os.geteuid() == 0
_HELPER = """
import json, sys, trio
from plugind.actors.io.state_file import StateFile
from plugind.protocol.errors import StateError
from plugind.protocol.logs.lines import SILENT

async def main(directory):
    file = StateFile(directory, SILENT)
    read = [(it.name, it.capacity) for it in await file.read()]
    try:
        await file.begin()
    except StateError as error:
        print(json.dumps([read, str(error)]))

trio.run(main, sys.argv[1])
"""
#: Shell commands that leave a directory in which nothing can be written, of which $1 is the name.
_FULL = """mv "$1"/* "$1.kept"; mount -t tmpfs -o size=64k,mode=700 none "$1"; mv "$1.kept"/* "$1"
head -c 65536 /dev/zero > "$1/filler" 2>/dev/null"""
_READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"'


async def leave_behind(directory: Path, *, killed: bool) -> None:
    """Write a file, and close it or leave it as a daemon does that is killed: with a journal."""
    file = file_in(directory)
    await file.write([Remember(GPU, 4)])
    journal = (directory / "state/state.db-wal").read_bytes()
    content = (directory / "state/state.db").read_bytes()
    file.close()
    assert os.listdir(directory / "state") == ["state.db"]
    if killed:
        (directory / "state/state.db").write_bytes(content)
        (directory / "state/state.db-wal").write_bytes(journal)


@pytest.mark.skipif(not _ROOT, reason="only root mounts file systems")
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(
    ("mount", "why"),
    [(_FULL, "database or disk is full; free space"), (_READ_ONLY, "cannot be used: its file system is read-only; ")],
)
async def test_what_is_on_a_full_or_read_only_disk_is_read(tmp_path: Path, mount: str, why: str, killed: bool) -> None:
    """What a daemon needs at its start is there, and it finds out at once that nothing can be kept."""
    await leave_behind(tmp_path, killed=killed)
    (tmp_path / "state.kept").mkdir()
    script = f'set -e; {mount} || true; exec "$2" -c "$3" "$1"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path / "state"), sys.executable, _HELPER]
    done = await trio.run_process(command, capture_stdout=True)
    read, problem = json.loads(done.stdout)
    assert read == [[GPU, 4]]
    assert why in problem


_KILLED = """
import os, sys, trio
from plugind.actors.io.state_file import StateFile
from plugind.protocol.logs.lines import SILENT
from plugind.protocol.devices.resources import Remember

async def main(directory, first):
    file = StateFile(directory, SILENT)
    assert len(await file.read()) == (0 if first == 1 else 4)
    for number in range(first, first + 50):
        await file.write([Remember(f"vendor.com/gpu{number % 4}", number)])
    os._exit(9)

trio.run(main, sys.argv[1], int(sys.argv[2]))
"""


@pytest.mark.skipif(not _ROOT, reason="only root mounts file systems")
async def test_a_disk_of_64_kib_is_enough_for_some_resources_and_many_restarts(tmp_path: Path) -> None:
    """After a daemon was killed, the journal of four resources took up all of it, and nothing was kept any more."""
    restarts = 'for n in 1 2 3; do "$2" -c "$3" "$1" $n || test $? = 9; done'
    script = f'set -e; mount -t tmpfs -o size=64k,mode=700 none "$1"; {restarts}'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable, _KILLED]
    done = await trio.run_process(command, capture_stderr=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(_ROOT, reason="root may write everywhere")
@pytest.mark.parametrize("killed", [False, True])
async def test_what_is_in_a_directory_that_may_only_be_read_is_read(tmp_path: Path, killed: bool) -> None:
    await leave_behind(tmp_path, killed=killed)
    (tmp_path / "state/state.db").chmod(0o400)
    (tmp_path / "state").chmod(0o500)
    file = file_in(tmp_path)
    assert await file.read() == [KnownResource(GPU, 4)]
    uid = os.geteuid()

    def refusal(path: str, mode: str) -> str:
        owner = f"which belongs to uid {uid} with the mode {mode};"
        return re.escape(f"cannot be used: uid {uid} may not write to {tmp_path}/{path}, {owner}")

    with pytest.raises(StateError, match=refusal("state", "0500")):
        await file.begin()
    (tmp_path / "state").chmod(0o700)
    with pytest.raises(StateError, match=refusal("state/state.db", "0400")):
        await file.begin()
    (tmp_path / "state/state.db").chmod(0o600)
    await file.write([Remember(GPU, 3)])
    assert await file.read() == [KnownResource(GPU, 3)]
    file.close()


@pytest.mark.parametrize("killed", [False, True])
async def test_a_file_that_can_only_be_read_is_read_with_its_journal(tmp_path: Path, killed: bool) -> None:
    """Also without root; a journal is not lost, and nothing is made beside the file."""
    await leave_behind(tmp_path, killed=killed)
    before = sorted(os.listdir(tmp_path / "state"))
    assert read_only(str(tmp_path / "state/state.db"), lambda connection: resources(connection, "")) == [
        KnownResource(GPU, 4)
    ]
    assert sorted(os.listdir(tmp_path / "state")) == before


class Lines:
    """A log that keeps its events."""

    def __init__(self) -> None:
        self.lines: list[dict[str, object]] = []

    def enabled(self, level: object) -> bool:
        return True

    def event(self, level: object, message: str, /, **fields: object) -> None:
        self.lines.append({"message": message, **fields})
