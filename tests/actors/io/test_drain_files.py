"""The files that say what is out of service: what they outlive, and what becomes of a damaged one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from plugind.actors.io.drain_files import DrainFiles
from plugind.protocol.errors import StateError
from plugind.protocol.leases.drains import NODE, Drain, DrainTarget, sorted_drains
from plugind.protocol.leases.effects import SaveDrain, SaveLease
from plugind.tests.actors.io.test_lease_tables import GPU, file_in, lease, save

ONE = Drain(DrainTarget(GPU, "GPU-0"), 0, 1.5, "the fan is broken")
ALL = Drain(NODE, 0, 2.5, "", 5.5)


async def drains_in(directory: Path, boot: str = "this boot") -> tuple[Drain, ...]:
    """Start, and return what is drained then."""
    file = file_in(directory, boot=boot)
    kept = await file.read_leases()
    await file.begin()
    file.close()
    return tuple(sorted_drains(kept.drains))


async def drained(directory: Path, *drains: Drain) -> None:
    """Drain, and be killed."""
    file = file_in(directory)
    await file.read_leases()
    assert await save(file, *(SaveDrain(drain.target, drain) for drain in drains)) is None
    file.close()


def copies(directory: Path) -> list[Path]:
    return sorted((directory / "run").glob("drains-*.json"))


def reboot(directory: Path) -> None:
    shutil.rmtree(directory / "run")


def lose_database(directory: Path) -> None:
    (directory / "state/state.db").unlink()


def damage_database(directory: Path) -> None:
    (directory / "state/state.db").write_bytes(b"no database" * 100)


def lose_state(directory: Path) -> None:
    shutil.rmtree(directory / "state")


def lose_file(directory: Path) -> None:
    (directory / "state/drains.json").unlink()


@pytest.mark.parametrize("loss", [reboot, lose_database, damage_database, lose_state, lose_file])
async def test_drains_outlive_a_loss_and_both_files_say_them_afterwards(loss: object, tmp_path: Path) -> None:
    await drained(tmp_path, ONE, ALL)
    assert callable(loss)
    loss(tmp_path)
    assert await drains_in(tmp_path, "another boot") == (ALL, ONE)
    assert (tmp_path / "state/drains.json").read_text() == copies(tmp_path)[0].read_text()
    assert ((tmp_path / "state/drains.json").stat().st_mode & 0o777) == 0o600


async def test_a_drain_that_ends_is_in_no_file(tmp_path: Path) -> None:
    await drained(tmp_path, ONE, ALL)
    file = file_in(tmp_path)
    await file.read_leases()
    assert await save(file, SaveDrain(ONE.target, None), SaveLease(lease("a", "GPU-1"))) is None
    assert await save(file, SaveDrain(ALL.target, None)) is None
    file.close()
    assert not (tmp_path / "state/drains.json").exists()
    assert copies(tmp_path) == []
    assert await drains_in(tmp_path) == ()


async def test_states_of_other_directories_have_their_own_drains(tmp_path: Path) -> None:
    await drained(tmp_path, ONE)
    other = file_in(tmp_path, state="other", plugins=("elsewhere",))
    assert not (await other.read_leases()).drains
    assert await save(other, SaveDrain(ALL.target, ALL)) is None
    other.close()
    assert len(copies(tmp_path)) == 2
    assert await drains_in(tmp_path) == (ONE,)


@pytest.mark.parametrize(
    "content", [b"", b'{"drains": [', b"[]", b'{"drains": [{"device": "a"}]}', b"\xff", b"[" * 9999]
)
async def test_a_damaged_file_is_set_aside_and_named_and_the_other_one_counts(content: bytes, tmp_path: Path) -> None:
    """It is named at each start until somebody has removed it."""
    await drained(tmp_path, ONE)
    path = tmp_path / "state/drains.json"
    path.write_bytes(content)
    for _ in range(2):
        file = file_in(tmp_path)
        kept = await file.read_leases()
        await file.begin()
        file.close()
        assert kept.drains == {ONE.target: ONE}
        assert kept.withheld is None
        assert kept.problem is not None
        assert kept.problem.startswith(f"{path} was set aside (")
        assert (tmp_path / "state/drains.json.bad").read_bytes() == content
    (tmp_path / "state/drains.json.bad").unlink()
    file = file_in(tmp_path)
    assert (await file.read_leases()).problem is None
    file.close()


async def test_what_cannot_be_written_is_an_error_that_names_the_file_and_is_not_kept(tmp_path: Path) -> None:
    """The file beside the database may be written already: what is written next takes its place."""
    file = file_in(tmp_path)
    await file.read_leases()
    await file.begin()
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(StateError, match=r"run/drains-\w+\.json cannot be written, which says what is drained"):
        await save(file, SaveDrain(ONE.target, ONE))
    assert await save(file, SaveDrain(ONE.target, None)) is None
    file.close()
    (tmp_path / "run").unlink()
    assert await drains_in(tmp_path) == ()


def test_a_file_of_somebody_else_or_a_link_is_not_read(tmp_path: Path) -> None:
    mine = DrainFiles(str(tmp_path / "a"), None)
    mine.write({ONE.target: ONE})
    files = DrainFiles(str(tmp_path / "b"), None)
    (tmp_path / "b").mkdir()
    os.symlink(tmp_path / "a/drains.json", tmp_path / "b/drains.json")
    with pytest.raises(StateError, match=r"drains\.json cannot be read"):
        files.read()
