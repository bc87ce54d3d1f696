"""The leases on a real disk that is full or read-only: allocations fail with the reason, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")

#: Plays a lease actor: writes what stands on each line of its input, and prints the answer.
_ACTOR = """
import json, math, os, sys, trio
from plugind.actors.io.state_file import StateFile
from plugind.actors.leases.saving import Saving
from plugind.protocol.leases.effects import DeleteLease, SaveLease, Write
from plugind.protocol.leases.values import Lease, LeaseState, NoOwner, Request, Wanted
from plugind.protocol.logs.lines import SILENT

directory, steps = sys.argv[1], json.loads(sys.argv[2])

def lease(name):
    return Lease(name, 0, Request((Wanted("v.com/a", 1),)), NoOwner(), LeaseState.HELD, 1.5, {"v.com/a": (name,)})

async def main():
    file = StateFile(directory, SILENT, boot_id="this boot")
    send, answers = trio.open_memory_channel(math.inf)
    saving = Saving(file, send, SILENT)
    kept = await saving.open()
    print(json.dumps([it.id for it in kept.leases]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(saving.run)
        for number, (act, name) in enumerate(steps):
            if act == "fill":
                with open(directory + "/filler", "wb", buffering=0) as filler:
                    try:
                        while filler.write(bytes(1024)):
                            pass
                    except OSError:
                        pass
            elif act == "free":
                os.unlink(directory + "/filler")
            elif act == "delete":
                saving.write(Write(number, (DeleteLease(name),), awaited=False))
            else:
                saving.write(Write(number, (SaveLease(lease(name)),)))
                print(json.dumps((await answers.receive()).error))
        nursery.cancel_scope.cancel()
    file.close()

trio.run(main)
"""
_TINY = 'mount -t tmpfs -o size=256k,mode=700 none "$1"'
_READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"'
_PLAY = '"$2" -c "$3" "$1" "$4"'


def play(directory: Path, script: str, *steps: list[tuple[str, str]]) -> list[object]:
    """Return what daemons print that run one after the other, each with its steps."""
    arguments = [str(directory), sys.executable, _ACTOR, *map(json.dumps, steps)]
    command = ["unshare", "--mount", "sh", "-c", f"set -e; {script}", "sh", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_on_a_full_disk_an_allocation_fails_and_a_release_is_written_later(tmp_path: Path) -> None:
    """Each with its device free again: a release on a full disk cannot be written either."""
    steps = [("save", "a"), ("fill", ""), ("save", "b" * 100_000), ("delete", "a"), ("free", ""), ("save", "c")]
    found = play(tmp_path, f"{_TINY}; {_PLAY}; {_PLAY.replace('$4', '$5')}", steps, [])
    before, saved, full, again, after = found
    assert (before, saved, again, after) == ([], None, None, ["c"])
    assert "database or disk is full; free space" in str(full)


def test_on_a_read_only_disk_leases_are_known_and_none_is_given(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    directory.mkdir(mode=0o700)
    steps = [("save", "a")]
    before, saved, found, refused = play(
        directory, f"{_PLAY}; {_READ_ONLY}; {_PLAY.replace('$4', '$5')}", steps, [("save", "b")]
    )
    assert (before, saved, found) == ([], None, ["a"])
    assert "its file system is read-only; mount it with rw, or use --state" in str(refused)
