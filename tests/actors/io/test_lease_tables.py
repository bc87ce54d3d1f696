"""The leases in the state file: what is committed is there, all or none of it, and a lost file is noticed."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import Mock, create_autospec

import attrs
import pytest
import trio

from plugind.actors.io import state_database
from plugind.actors.io.lease_marker import LeaseMarker
from plugind.actors.io.process_identity import identity_of
from plugind.actors.io.state_database import APPLICATION_ID, VERSION, begin, open_to_write, try_room, write
from plugind.actors.io.state_database import serial as state_serial
from plugind.actors.io.state_file import StateFile
from plugind.actors.leases.saving import Saving
from plugind.protocol.devices.resources import Remember
from plugind.protocol.errors import ConfigError, StateError
from plugind.protocol.leases.effects import Change, DeleteLease, EndWithholding, SaveLease, Write
from plugind.protocol.leases.messages import REBOOTED, Kept, LeasesRead, Saved
from plugind.protocol.leases.values import (
    ConnectionOwner,
    ContainerOwner,
    Lease,
    LeaseState,
    NoOwner,
    Owner,
    ProcessIdentity,
    ProcessOwner,
    Request,
    TimeOwner,
    Wanted,
)
from plugind.protocol.logs.lines import SILENT
from plugind.protocol.plugins.devices import KnownResource

GPU = "vendor.com/gpu"
#: A file as version 1 has written it.
VERSION_1 = f"""
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE resource(name TEXT PRIMARY KEY, capacity INTEGER NOT NULL, last_seen REAL NOT NULL) STRICT;
INSERT INTO resource VALUES('{GPU}', 4, 1.0);
INSERT INTO meta VALUES('instance', 'abc');
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = 1;
"""


def lease(name: str, *devices: str, state: LeaseState = LeaseState.PENDING) -> Lease:
    return Lease(name, 0, Request((Wanted(GPU, len(devices)),)), NoOwner(), state, 1.5, {GPU: devices})


def file_in(
    directory: Path, *, boot: str = "this boot", state: str = "state", plugins: Sequence[str] = ("plugins",)
) -> StateFile:
    run, cdi, served = str(directory / "run"), str(directory / "cdi"), [str(directory / name) for name in plugins]
    return StateFile(str(directory / state), SILENT, directories=served, markers=run, cdi=cdi, boot_id=boot)


async def save(file: StateFile, *changes: Change) -> str | None:
    return (await file.write_leases([changes]))[0]


async def names_in(file: StateFile) -> list[str]:
    return [known.id for known in (await file.read_leases()).leases]


def markers(directory: Path) -> list[str]:
    run = directory / "run"
    return os.listdir(run) if run.is_dir() else []


def version_1(directory: Path) -> None:
    (directory / "state").mkdir(mode=0o700)
    with closing(sqlite3.connect(directory / "state/state.db")) as database:
        database.executescript(VERSION_1)


def test_commits_of_leases_do_not_wait_for_the_disk_and_all_others_do(tmp_path: Path) -> None:
    """They outlive the process, as the tests of kills show; with the kernel's end all leases end."""
    path = str(tmp_path / "state.db")
    Path(path).touch()
    said: list[str] = []
    with closing(open_to_write(path)) as database:
        assert synchronous(database) == "NORMAL"
        database.set_trace_callback(said.append)
        begin(database, "", "this boot", None)
        write(database, [[Remember(GPU, 1)], [SaveLease(lease("b", "GPU-1"))]], 1.0, "this boot")
        assert levels(said) == ["FULL", "BEGIN", "COMMIT", "NORMAL"] * 2
        said.clear()
        write(database, [[SaveLease(lease("a", "GPU-0"))], []], 1.0, "this boot")
        write(database, [[DeleteLease("a")]], 1.0, "this boot")
        assert levels(said) == ["BEGIN", "COMMIT"] * 2
        assert synchronous(database) == "NORMAL"


def synchronous(database: sqlite3.Connection) -> str:
    level: int = database.execute("PRAGMA synchronous").fetchone()[0]
    return ("OFF", "NORMAL", "FULL", "EXTRA")[level]


def levels(statements: list[str]) -> list[str]:
    """Return the transactions in them, and what says whether these wait for the disk."""
    words = (statement.removeprefix("PRAGMA synchronous = ").split()[0] for statement in statements)
    return [word for word in words if word in ("BEGIN", "COMMIT", "FULL", "NORMAL")]


async def test_leases_are_there_after_a_restart(tmp_path: Path) -> None:
    """With their devices in order; one that was changed is there as it was last."""
    file = file_in(tmp_path)
    assert (await file.read_leases()).leases == ()
    first = lease("b", "GPU-1", "GPU-0")
    assert await save(file, SaveLease(first), SaveLease(lease("a", "GPU-2"))) is None
    held = attrs.evolve(first, state=LeaseState.HELD, devices={GPU: ("GPU-3", "GPU-1")}, cdi_name="a1")
    assert await save(file, SaveLease(held)) is None
    assert await save(file, DeleteLease("a"), SaveLease(lease("c", "GPU-2"))) is None
    file.close()
    again = file_in(tmp_path)
    found = await again.read_leases()
    again.close()
    assert found.leases == (held, lease("c", "GPU-2"))
    assert found.withheld is None


async def test_a_device_in_two_leases_cannot_be_written(tmp_path: Path) -> None:
    """The text names the holder; nothing of the group is written, and the others of its transaction are."""
    file = file_in(tmp_path)
    assert await save(file, SaveLease(lease("first", "GPU-0"))) is None
    groups = [
        [SaveLease(lease("half", "GPU-1")), SaveLease(lease("second", "GPU-0"))],
        [SaveLease(lease("third", "GPU-2"))],
        [SaveLease(lease("no\udcff", "GPU-3"))],
    ]
    conflict, none, unwritable = await file.write_leases(groups)
    assert (conflict, none) == (f"GPU-0 of {GPU} is in the lease first", None)
    assert unwritable is not None
    assert unwritable.startswith("the lease 'no\\udcff' cannot be written")
    assert await names_in(file) == ["first", "third"]
    file.close()


async def test_what_is_asked_for_in_one_turn_is_one_transaction(tmp_path: Path) -> None:
    """The devices actor and the lease actor write through one connection; a conflict of one does not harm the other."""
    file = file_in(tmp_path)
    await save(file, SaveLease(lease("first", "GPU-0")))
    statements: list[str] = []
    assert file._database is not None
    file._database.set_trace_callback(statements.append)
    answers: list[str | None] = []

    async def lease_again(name: str, device: str) -> None:
        answers.append(await save(file, SaveLease(lease(name, device))))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.write, [Remember(GPU, 4)])
        nursery.start_soon(lease_again, "second", "GPU-0")
        nursery.start_soon(lease_again, "third", "GPU-1")
    assert statements.count("COMMIT") == 1
    assert sorted(map(str, answers)) == [f"GPU-0 of {GPU} is in the lease first", "None"]
    assert await file.read() == [KnownResource(GPU, 4)]
    assert await names_in(file) == ["first", "third"]
    file.close()


async def test_who_leaves_before_a_thread_has_begun_has_written_nothing(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    await file.begin()
    with trio.CancelScope() as scope:
        scope.cancel()
        await save(file, SaveLease(lease("a", "GPU-0")))
    assert await save(file, SaveLease(lease("b", "GPU-0"))) is None
    assert await names_in(file) == ["b"]
    file.close()


# --- versions ---------------------------------------------------------------------------------------------------------


async def test_a_file_of_version_1_keeps_its_resources(tmp_path: Path) -> None:
    version_1(tmp_path)
    file = file_in(tmp_path)
    assert await file.read() == [KnownResource(GPU, 4)]
    assert (await file.read_leases()).leases == ()
    assert await save(file, SaveLease(lease("a", "GPU-0"))) is None
    assert await file.read() == [KnownResource(GPU, 4)]
    file.close()
    with closing(sqlite3.connect(file.path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert database.execute("SELECT value FROM meta WHERE key = 'instance'").fetchone() == ("abc",)


_MIGRATE = """
import os, sys
from plugind.actors.io import state_database

path, last = sys.argv[1], int(sys.argv[2])
database = state_database.open_to_write(path)
left = iter(range(last))
database.set_trace_callback(lambda statement: os._exit(9) if next(left, None) is None else None)
state_database.begin(database, "", "this boot", None)
"""


async def test_a_migration_that_is_killed_leaves_version_1(tmp_path: Path) -> None:
    """After each statement; from the last on the file is of the new version."""
    version_1(tmp_path)
    path = str(tmp_path / "state/state.db")
    for last in (1, 2, 4, 7):
        done = await trio.run_process([sys.executable, "-c", _MIGRATE, path, str(last)], check=False)
        assert done.returncode == 9
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("PRAGMA user_version").fetchone() == (1,)
            names = {name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            assert names == {"meta", "resource"}
    file = file_in(tmp_path)
    assert await save(file, SaveLease(lease("a", "GPU-0"))) is None
    file.close()


# --- boots, and what is lost ------------------------------------------------------------------------------------------


async def test_leases_of_another_boot_are_gone(tmp_path: Path) -> None:
    """TestResetExtendedResource: whoever had them is gone, and their devices may be leased anew."""
    file = file_in(tmp_path)
    await save(file, SaveLease(lease("old", "GPU-0")))
    file.close()
    after = file_in(tmp_path, boot="another")
    ended = attrs.evolve(lease("old", "GPU-0"), reason=REBOOTED)
    assert await after.read_leases() == Kept(ended=(ended,))
    assert await save(after, SaveLease(lease("new", "GPU-0"))) is None
    assert await after.read_leases() == Kept((lease("new", "GPU-0"),)), "the end is said once"
    after.close()


def this_process() -> ProcessIdentity:
    found = identity_of(os.getpid())
    assert found is not None
    return found


OWN = this_process()
EARLIER = attrs.evolve(OWN, start_ticks=OWN.start_ticks - 1)


@pytest.mark.parametrize(
    ("owner", "is_kept"),
    [
        pytest.param(ProcessOwner(OWN), True, id="process"),
        pytest.param(ContainerOwner(OWN), True, id="container"),
        pytest.param(ProcessOwner(EARLIER), False, id="earlier process"),
        pytest.param(ContainerOwner(EARLIER), False, id="earlier container"),
        pytest.param(ProcessOwner(attrs.evolve(OWN, pid=1 << 30)), False, id="process that has ended"),
        pytest.param(ContainerOwner(), False, id="container that is not bound"),
        pytest.param(TimeOwner(60.0, 1 << 60), False, id="time"),
        pytest.param(ConnectionOwner("hash"), False, id="connection"),
        pytest.param(NoOwner(), False, id="nobody"),
    ],
)
@pytest.mark.parametrize("begins_first", [False, True])
async def test_a_lease_whose_owner_runs_under_another_boot_id_keeps_its_devices(
    begins_first: bool, owner: Owner, is_kept: bool, tmp_path: Path
) -> None:
    """A drop-in for the service changed the boot id that it sees, and a device was given to two owners.

    Whoever keeps the resources may begin with the file before the leases are read.
    """
    before = attrs.evolve(lease("a", "GPU-0", state=LeaseState.HELD), owner=owner)
    file = file_in(tmp_path, boot=OWN.boot_id)
    await save(file, SaveLease(before))
    file.close()
    here: Owner = owner
    if isinstance(owner, ProcessOwner):
        here = ProcessOwner(attrs.evolve(owner.process, boot_id="another"))
    elif isinstance(owner, ContainerOwner) and owner.init is not None:
        here = ContainerOwner(attrs.evolve(owner.init, boot_id="another"))
    for moved in (1, 0):  # The next daemon finds it as a lease of this boot.
        after = file_in(tmp_path, boot="another")
        if begins_first:
            await after.begin()
        kept = await after.read_leases()
        assert kept.leases == ((attrs.evolve(before, owner=here),) if is_kept else ())
        assert kept.moved == (moved if is_kept else 0)
        assert [ended.id for ended in kept.ended] == (["a"] if moved and not is_kept else [])
        conflict = await save(after, SaveLease(lease("b", "GPU-0")))
        assert conflict == ("GPU-0 of vendor.com/gpu is in the lease a" if is_kept else None)
        await save(after, DeleteLease("b"))
        after.close()


async def test_a_lease_of_another_boot_that_cannot_be_understood_has_ended_like_any_other(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    await save(file, SaveLease(lease("old", "GPU-0", "GPU-1", state=LeaseState.HELD)))
    file.close()
    with closing(sqlite3.connect(tmp_path / "state/state.db")) as database, database:
        database.execute("UPDATE lease SET request = '{'")
    after = file_in(tmp_path, boot="another")
    kept = await after.read_leases()
    assert (kept.leases, kept.withheld) == ((), None)
    assert [(ended.id, ended.state, ended.devices) for ended in kept.ended] == [
        ("old", LeaseState.HELD, {GPU: ("GPU-0", "GPU-1")})
    ]
    after.close()


async def test_a_damaged_file_withholds_until_it_is_recovered(tmp_path: Path) -> None:
    """Also after further restarts, since an empty file does not say that no device is in use."""
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state/state.db").write_bytes(b"nothing of the kind" * 100)
    for _ in range(2):
        file = file_in(tmp_path)
        withheld = (await file.read_leases()).withheld
        assert withheld is not None
        assert "was set aside: it is damaged: file is not a database; so it is not known which" in withheld
        assert "'plugind leases recover --none-held'" in withheld
        await file.begin()
        file.close()
    file = file_in(tmp_path)
    assert await save(file, EndWithholding()) is None
    assert (await file.read_leases()).withheld is None
    file.close()


async def test_a_reboot_ends_what_a_lost_file_withholds(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state/state.db").write_bytes(b"nothing of the kind" * 100)
    file = file_in(tmp_path)
    await file.begin()
    file.close()
    for after in (file_in(tmp_path, boot="another"), file_in(tmp_path, boot="another")):
        assert (await after.read_leases()).withheld is None
        await after.begin()
        after.close()


def damage(path: Path) -> None:
    """Overwrite all pages but the first."""
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))


async def test_a_file_that_is_damaged_while_it_is_open_gets_its_leases_again(tmp_path: Path) -> None:
    """A disk that returns other bytes than were written: nothing is lost, so nothing is withheld after a restart."""
    file = file_in(tmp_path)
    send, answers = trio.open_memory_channel[Saved | LeasesRead](10)
    saving = Saving(file, send, SILENT)
    await saving.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(saving.run)
        saving.write(Write(1, (SaveLease(lease("a", "GPU-0")),)))
        assert await answers.receive() == Saved(1)
        assert file._database is not None
        file._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        file._database.execute("PRAGMA cache_size = 0")
        file._database.execute("PRAGMA shrink_memory")
        damage(Path(file.path))
        saving.write(Write(2, (SaveLease(lease("b", "GPU-1")),)))
        answer = await answers.receive()
        assert isinstance(answer, Saved)
        assert "malformed" in str(answer.error)
        saving.write(Write(3, (SaveLease(lease("c", "GPU-2")),)))
        assert await answers.receive() == Saved(3)
        saving.write(Write(4, (DeleteLease("c"),)))
        assert await answers.receive() == Saved(4)
        assert await names_in(file) == ["a"]
        nursery.cancel_scope.cancel()
    file.close()
    again = file_in(tmp_path)
    assert (await again.read_leases()).withheld is None
    again.close()
    assert (tmp_path / "state/state.db.bad").exists()


async def test_a_row_that_cannot_be_understood_is_a_damaged_file(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    await save(file, SaveLease(lease("a", "GPU-0")))
    assert file._database is not None
    file._database.execute("UPDATE lease SET request = '{'")
    file.close()
    again = file_in(tmp_path)
    found = await again.read_leases()
    assert found.leases == ()
    assert "the row of the lease a cannot be understood" in str(found.withheld)
    again.close()
    assert (tmp_path / "state/state.db.bad").exists()


NOT_IN = "leases were held that are not in {}/state.db, as {}"


def remove_file(directory: Path) -> str:
    (directory / "state/state.db").unlink()
    return "state"


def remove_state(directory: Path) -> str:
    shutil.rmtree(directory / "state")
    return "state"


def another_state(directory: Path) -> str:
    return "another"


@pytest.mark.parametrize("lose", [remove_file, remove_state, another_state])
async def test_leases_that_are_not_in_the_state_withhold_until_it_is_recovered(
    lose: Callable[[Path], str], tmp_path: Path
) -> None:
    """The marker is there while leases are written, in a place that a reboot empties."""
    file = file_in(tmp_path)
    await file.begin()
    assert not markers(tmp_path)
    await save(file, SaveLease(lease("a", "GPU-0")))
    marker = f"leases-{await file.instance()}"
    assert markers(tmp_path) == [marker]
    file.close()
    state = lose(tmp_path)
    for _ in range(2):
        after = file_in(tmp_path, state=state)
        withheld = (await after.read_leases()).withheld
        assert withheld is not None
        assert withheld.startswith(NOT_IN.format(tmp_path / state, tmp_path / "run" / marker))
        await after.begin()
        after.close()
    recovered = file_in(tmp_path, state=state)
    assert await save(recovered, EndWithholding()) is None
    recovered.close()
    assert markers(tmp_path) == []
    again = file_in(tmp_path, state=state)
    assert (await again.read_leases()).withheld is None
    again.close()


async def test_what_another_state_withholds_is_not_withheld_from_the_state_with_the_leases(tmp_path: Path) -> None:
    """To start with the wrong --state is mended by a start with the right one."""
    file = file_in(tmp_path)
    await save(file, SaveLease(lease("a", "GPU-0")))
    file.close()
    wrong = file_in(tmp_path, state="wrong")
    assert (await wrong.read_leases()).withheld is not None
    await wrong.begin()
    wrong.close()
    right = file_in(tmp_path)
    assert (await right.read_leases()) == Kept((lease("a", "GPU-0"),))
    right.close()


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_leases_of_a_daemon_that_lives_withhold_nothing_from_another_one(
    restarted: bool, tmp_path: Path
) -> None:
    """Two daemons side by side on one machine, each with a state and devices of its own."""
    living = file_in(tmp_path)
    await save(living, SaveLease(lease("a", "GPU-0")))
    cdi_file(tmp_path, str(await living.instance()))
    if restarted:
        living.close()
        living = file_in(tmp_path)
        await living.read_leases()
    beside = file_in(tmp_path, state="beside")
    assert (await beside.read_leases()).withheld is None
    await save(beside, SaveLease(lease("b", "GPU-0")))
    assert len(markers(tmp_path)) == 2
    for file in (living, beside):
        file.close()


@pytest.mark.parametrize(
    ("plugins", "served", "withholds"),
    [
        (["a"], ["b"], False),
        (["a", "b"], ["c", "ab"], False),
        (["a", "b"], ["c", "b"], True),
        (["a"], ["a/below"], True),
        (["a/below"], ["a"], True),
        (["link"], ["a"], True),
        (["a"], ["link"], True),
    ],
)
async def test_leases_of_another_state_withhold_only_devices_whose_plugins_they_may_concern(
    plugins: list[str], served: list[str], withholds: bool, tmp_path: Path
) -> None:
    """A neighbour that was killed has a state of its own; to recover here takes nothing from it."""
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    killed = file_in(tmp_path, state="neighbour", plugins=plugins)
    await save(killed, SaveLease(lease("a", "GPU-0")))
    cdi = cdi_file(tmp_path, str(await killed.instance()))
    killed.close()
    (marker,) = markers(tmp_path)
    here = file_in(tmp_path, plugins=served)
    assert ((await here.read_leases()).withheld is not None) is withholds
    await save(here, EndWithholding())
    assert (marker in markers(tmp_path), cdi.exists()) == (not withholds, not withholds)
    here.close()


@pytest.mark.parametrize(
    "content", [b"", b"this", b"this boot", b"this boot\0", b"this boot\0/x\0", b"this boot\0" + b"0" * 16 + b"\0/x"]
)
async def test_a_marker_that_says_no_directories_withholds_everywhere(content: bytes, tmp_path: Path) -> None:
    """It is half written, or of an earlier version; once the state with its leases is there, it goes on to say so."""
    file = file_in(tmp_path)
    await save(file, SaveLease(lease("a", "GPU-0")))
    file.close()
    (marker,) = markers(tmp_path)
    (tmp_path / "run" / marker).write_bytes(content)
    for restarted in (False, True):
        if restarted:
            again = file_in(tmp_path)
            assert (await again.read_leases()).withheld is None
            await save(again, SaveLease(lease("b", "GPU-1")))
            again.close()
        other = file_in(tmp_path, state=f"other {restarted}", plugins=["elsewhere"])
        # Of one that has no whole boot, it is not known that its leases are of this boot.
        assert ((await other.read_leases()).withheld is None) is (restarted and content in (b"", b"this"))
        other.close()


async def test_a_marker_names_all_directories_of_which_a_lease_may_be(tmp_path: Path) -> None:
    """Those that were served when leases were held, also by an earlier daemon; until no lease is held any more."""

    async def seen_in(*plugins: str) -> list[bool]:
        said = []
        for number, name in enumerate(plugins):
            other = file_in(tmp_path, state=f"other-{number}", plugins=[name])
            said.append((await other.read_leases()).withheld is not None)
            other.close()
            shutil.rmtree(tmp_path / f"other-{number}")
        return said

    first = file_in(tmp_path, plugins=["a"])
    await save(first, SaveLease(lease("a", "GPU-0")))
    first.serve([str(tmp_path / "b")])
    first.serve([str(tmp_path / "b"), str(tmp_path / "c")])
    await save(first, SaveLease(lease("b", "GPU-1")))
    first.serve([str(tmp_path / "d")])
    first.close()
    assert await seen_in("a", "b", "c", "d") == [True, True, True, False]
    second = file_in(tmp_path, plugins=["d"])
    await second.begin()
    second.close()
    assert await seen_in("a", "b", "c", "d", "e") == [True, True, True, True, False]
    third = file_in(tmp_path, plugins=["e"])
    await save(third, DeleteLease("a"), DeleteLease("b"))
    await save(third, SaveLease(lease("c", "GPU-0")))
    third.close()
    assert await seen_in("a", "b", "c", "d", "e") == [False, False, False, False, True]


@pytest.mark.parametrize("lives", [False, True])
async def test_a_directory_cannot_be_added_while_leases_of_another_state_may_concern_it(
    lives: bool, tmp_path: Path
) -> None:
    """Otherwise its devices would be given twice: what withholds is looked for at the start alone."""
    here = file_in(tmp_path, plugins=["a"])
    await save(here, SaveLease(lease("a", "GPU-0")))
    killed = file_in(tmp_path, state="neighbour", plugins=["b"])
    await save(killed, SaveLease(lease("b", "GPU-0")))
    if not lives:
        killed.close()
    with pytest.raises(ConfigError, match="leases of another state may be held of devices in the directories"):
        here.serve([str(tmp_path / "a"), str(tmp_path / "b")])
    here.serve([str(tmp_path / "a"), str(tmp_path / "c")])
    neighbour = killed if lives else file_in(tmp_path, state="neighbour", plugins=["b"])
    await neighbour.write_leases([[DeleteLease("b")]])
    here.serve([str(tmp_path / "b")])
    here.close()
    neighbour.close()


OLDER = "{}/state.db is older than leases that were held since this machine was started: an earlier copy of it has"


async def saved_twice(directory: Path) -> None:
    """Leave a state with two leases, and a copy of when it had one."""
    file = file_in(directory)
    await save(file, SaveLease(lease("a", "GPU-0")))
    file.close()
    shutil.copytree(directory / "state", directory / "copy")
    file = file_in(directory)
    await save(file, SaveLease(lease("b", "GPU-1")))
    file.close()


def restore(directory: Path) -> None:
    shutil.rmtree(directory / "state")
    shutil.copytree(directory / "copy", directory / "state")


async def test_an_earlier_copy_of_the_state_withholds_until_it_is_recovered(tmp_path: Path) -> None:
    """Also after a restart, if it comes back once more, and if no lease in it is held any more."""
    await saved_twice(tmp_path)
    restore(tmp_path)
    for _ in range(2):
        file = file_in(tmp_path)
        found = await file.read_leases()
        assert found.leases == (lease("a", "GPU-0"),)
        assert str(found.withheld).startswith(OLDER.format(tmp_path / "state"))
        await file.begin()
        file.close()
    file = file_in(tmp_path)
    await save(file, DeleteLease("a"))
    file.close()
    restore(tmp_path)
    file = file_in(tmp_path)
    assert (await file.read_leases()).withheld is not None
    await save(file, EndWithholding())
    file.close()
    again = file_in(tmp_path)
    assert (await again.read_leases()) == Kept((lease("a", "GPU-0"),))
    await save(again, SaveLease(lease("c", "GPU-1")), DeleteLease("a"))
    again.close()
    last = file_in(tmp_path)
    assert (await last.read_leases()) == Kept((lease("c", "GPU-1"),))
    await save(last, DeleteLease("c"))
    last.close()
    assert markers(tmp_path) == []


async def test_an_earlier_copy_withholds_nothing_if_no_lease_was_held_or_in_another_boot(tmp_path: Path) -> None:
    """A lease that has ended may come back so, but no device is given to two."""
    await saved_twice(tmp_path)
    restore(tmp_path)
    file = file_in(tmp_path, boot="another boot")
    assert (await file.read_leases()).withheld is None
    file.close()
    shutil.rmtree(tmp_path / "state")
    shutil.rmtree(tmp_path / "copy")
    await saved_twice(tmp_path)
    file = file_in(tmp_path)
    await save(file, DeleteLease("a"), DeleteLease("b"))
    file.close()
    restore(tmp_path)
    file = file_in(tmp_path)
    assert await file.read_leases() == Kept((lease("a", "GPU-0"),))
    file.close()


async def test_a_state_whose_marker_could_not_follow_it_is_not_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill between the commit and the write of the marker."""
    file = file_in(tmp_path)
    await save(file, SaveLease(lease("a", "GPU-0")))
    monkeypatch.setattr(LeaseMarker, "note", create_autospec(LeaseMarker.note))
    await save(file, SaveLease(lease("b", "GPU-1")))
    file.close()
    monkeypatch.undo()
    again = file_in(tmp_path)
    assert (await again.read_leases()).withheld is None
    again.close()


async def test_a_change_that_is_not_made_does_not_count(tmp_path: Path) -> None:
    """Alone and with others; and a lease that ends does not, so that this takes no more of a full disk."""
    file = file_in(tmp_path)
    await save(file, SaveLease(lease("a", "GPU-0")))
    (marker,) = markers(tmp_path)

    def serial() -> int:
        assert file._database is not None
        said = int((tmp_path / "run" / marker).read_bytes().split(b"\0")[1])
        assert said == state_serial(file._database)
        return said

    before = serial()
    assert await save(file, SaveLease(lease("b", "GPU-0"))) is not None
    assert serial() == before
    again: list[list[Change]] = [[SaveLease(lease("c", "GPU-1"))], [SaveLease(lease("b", "GPU-0"))], [DeleteLease("a")]]
    assert [conflict is None for conflict in await file.write_leases(again)] == [True, False, True]
    assert serial() == before + 1
    await file.write([Remember(GPU, 4)])
    assert serial() == before + 1
    file.close()


@pytest.mark.parametrize("has_file", [True, False])
async def test_what_withholds_is_told_also_where_nothing_can_be_written(
    has_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later, when that is possible, the state that was lost may be back."""
    await saved_twice(tmp_path)
    (tmp_path / "state").rename(tmp_path / "kept")
    if has_file:
        shutil.copytree(tmp_path / "copy", tmp_path / "state")
    file = file_in(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(StateFile, "_open", Mock(side_effect=sqlite3.OperationalError("disk I/O error")))
        assert (await file.read_leases()).withheld is not None
        with pytest.raises(StateError):
            await file.begin()
    if has_file:
        shutil.rmtree(tmp_path / "state")
    (tmp_path / "kept").rename(tmp_path / "state")
    await file.begin()
    file.close()
    again = file_in(tmp_path)
    assert await again.read_leases() == Kept((lease("a", "GPU-0"), lease("b", "GPU-1")))
    again.close()


def cdi_file(directory: Path, instance: str) -> Path:
    (directory / "cdi").mkdir(exist_ok=True)
    file = directory / f"cdi/plugind-{instance}-l0a1b2c3.json"
    file.write_text("{}")
    return file


async def test_a_file_for_container_engines_of_another_state_withholds_and_recovery_removes_it(tmp_path: Path) -> None:
    file = cdi_file(tmp_path, "0" * 32)
    state = file_in(tmp_path)
    assert str(file) in str((await state.read_leases()).withheld)
    await state.begin()
    own = cdi_file(tmp_path, str(await state.instance()))
    await save(state, EndWithholding())
    state.close()
    assert (file.exists(), own.exists()) == (False, True)
    again = file_in(tmp_path)
    assert (await again.read_leases()).withheld is None
    again.close()


async def test_a_marker_of_another_boot_withholds_nothing(tmp_path: Path) -> None:
    """One that does not say of which boot it is counts: it may be half written."""
    file = file_in(tmp_path, boot="the boot before")
    await save(file, SaveLease(lease("a", "GPU-0")))
    file.close()
    (marker,) = markers(tmp_path)
    after = file_in(tmp_path, state="another")
    assert (await after.read_leases()).withheld is None
    after.close()
    (tmp_path / "run" / marker).write_bytes(b"")
    after = file_in(tmp_path, state="third")
    assert (await after.read_leases()).withheld is not None
    after.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
async def test_a_marker_and_a_file_of_another_user_withhold_nothing(tmp_path: Path) -> None:
    """Whoever may write there could keep all devices from everybody."""
    (tmp_path / "run").mkdir()
    marker = tmp_path / f"run/leases-{'0' * 32}"
    marker.write_text("this boot")
    for path in (marker, cdi_file(tmp_path, "0" * 32)):
        os.chown(path, 1000, 1000)
    file = file_in(tmp_path)
    assert (await file.read_leases()).withheld is None
    await save(file, EndWithholding())
    file.close()
    assert marker.exists()


async def test_a_file_that_is_removed_when_no_lease_is_held_withholds_nothing(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    await save(file, SaveLease(lease("a", "GPU-0")))
    await save(file, DeleteLease("a"))
    file.close()
    assert not markers(tmp_path)
    (tmp_path / "state/state.db").unlink()
    again = file_in(tmp_path)
    assert (await again.read_leases()).withheld is None
    again.close()


# --- crashes ----------------------------------------------------------------------------------------------------------

_WRITE = """
import itertools, sys, trio
from plugind.actors.io.state_file import StateFile
from plugind.protocol.leases.effects import DeleteLease, SaveLease
from plugind.protocol.leases.values import Lease, LeaseState, NoOwner, Request, Wanted
from plugind.protocol.logs.lines import SILENT

def lease(name, *devices):
    return SaveLease(Lease(name, 0, Request((Wanted("v.com/a", 2),)), NoOwner(), LeaseState.HELD, 1.5,
        {"v.com/a": devices}))

async def main(directory):
    file = StateFile(directory, SILENT, boot_id="this boot")
    for turn in itertools.count():
        one, two = f"{turn}a", f"{turn}b"
        await file.write_leases([[lease(one, "0", "1"), lease(two, "2", "3")]])
        print(turn, flush=True)
        await file.write_leases([[DeleteLease(one), DeleteLease(two)]])

trio.run(main, sys.argv[1])
"""


async def test_a_process_that_is_killed_amid_commits_leaves_all_or_nothing(tmp_path: Path) -> None:
    """Of each transaction: two leases with two devices each, or none."""
    for turns in (1, 10):
        command = [sys.executable, "-c", _WRITE, str(tmp_path / "state")]
        async with trio.open_nursery() as nursery:
            process = await nursery.start(_started, command)
            seen = b""
            while seen.count(b"\n") < turns:
                seen += await process.stdout.receive_some()
            process.send_signal(signal.SIGKILL)
        file = file_in(tmp_path)
        found = (await file.read_leases()).leases
        assert [sorted(known.devices["v.com/a"]) for known in found] in ([], [["0", "1"], ["2", "3"]])
        await save(file, *(DeleteLease(known.id) for known in found))
        file.close()


async def _started(command: list[str], task_status: trio.TaskStatus[trio.Process]) -> None:
    await trio.run_process(command, stdout=subprocess.PIPE, check=False, task_status=task_status)


async def test_a_start_finds_out_whether_there_is_room_for_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk a start was noted, and nothing was wrong until somebody asked for a lease."""
    full = create_autospec(try_room, side_effect=sqlite3.OperationalError("database or disk is full"))
    monkeypatch.setattr(state_database, "try_room", full)
    file = file_in(tmp_path)
    send, _ = trio.open_memory_channel[Saved | LeasesRead](10)
    saving = Saving(file, send, SILENT)
    assert await saving.open() == Kept()
    assert "database or disk is full" in str(saving.problem)
    assert await save(file, SaveLease(lease("a", "GPU-0"))) is None, "what has room yet is written"
    monkeypatch.undo()
    await file.begin()
    file.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")
@pytest.mark.parametrize("leases_before", [5, 6])
def test_once_a_full_disk_has_room_again_the_leases_that_follow_have_it_too(tmp_path: Path, leases_before: int) -> None:
    """The try took the space that it had found: each lease failed, and no alert lasted for long enough to fire."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2M", "tmpfs", tmp_path], check=True)
    path = str(tmp_path / "state.db")
    state_database.make_file(path)

    def take(database: sqlite3.Connection, times: int) -> None:
        for name in (f"lease {number}" for number in range(times)):
            for change in (SaveLease(lease(name)), SaveLease(lease(name)), DeleteLease(name)):
                write(database, [[change]], 0.0, "this boot")

    try:
        for number in range(2):  # The second has a file with pages, and a journal of its own.
            with closing(open_to_write(path)) as database:
                begin(database, "", "this boot", None)
                write(database, [[SaveLease(lease(f"kept {number}", f"GPU-{number}"))]], 0.0, "this boot")
                take(database, leases_before)
                if number:
                    with suppress(OSError), open(tmp_path / "filler", "wb", buffering=0) as filler:
                        while filler.write(bytes(512)):
                            pass
                    with pytest.raises(sqlite3.OperationalError, match="full"):
                        take(database, 20)
                    try_room(database, 0)
                    take(database, 20)
    finally:
        subprocess.run(["umount", tmp_path], check=True)
