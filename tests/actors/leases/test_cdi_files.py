"""The files that container engines read: complete or not there, our own alone, and in nobody else's reach."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import attrs
import pytest
import trio

from plugind.actors.leases.cdi_files import MOST_ENTRIES, MOST_NODES, CdiFiles, Search, hook_command
from plugind.protocol.leases.cdi import CdiError, Hook, HostNode, name_of
from plugind.protocol.leases.values import Answer, ContainerOwner, Lease, LeaseState, Node, Request, Wanted
from plugind.tests.protocol.leases.cdi_schema import check_document

_ROOT = os.geteuid() == 0
HOOK = Hook(("/usr/bin/plugind",), "/run/plugind/status.sock")


def lease(number: int = 1, answer: Answer | None = None) -> Lease:
    wanted, name = Request((Wanted("v.com/a", 1),), container=True), name_of(number)
    return Lease(f"lease-{number}", 0, wanted, ContainerOwner(), LeaseState.PENDING, 0.0, answer=answer, cdi_name=name)


def files_in(directory: Path, instance: str = "abc") -> CdiFiles:
    return CdiFiles(instance, HOOK, directory=str(directory / "cdi"))


def there(directory: Path) -> list[str]:
    return sorted(os.listdir(directory / "cdi"))


def read(path: Path) -> Any:
    """Return the content of a file as an engine loads it."""
    written = json.loads(path.read_bytes())
    check_document(written)
    return written


async def test_a_file_is_written_that_everybody_may_read(directory: Path) -> None:
    files = files_in(directory)
    umask = os.umask(0o077)
    try:
        await files.write(lease(1))
    finally:
        os.umask(umask)
    path = Path(files.path_of(name_of(1)))
    assert there(directory) == [path.name] == [f"plugind-abc-{name_of(1)}.json"]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o644
    assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o755
    assert read(path)["devices"][0]["name"] == name_of(1)


async def test_a_file_is_removed_and_one_that_is_not_there_may_be(directory: Path) -> None:
    files = files_in(directory)
    await files.remove(name_of(1))
    await files.write(lease(1))
    await files.write(lease(2))
    await files.remove(name_of(1))
    await files.remove(name_of(1))
    assert there(directory) == [f"plugind-abc-{name_of(2)}.json"]


async def test_at_the_start_only_our_own_files_are_removed(directory: Path) -> None:
    files, other = files_in(directory), files_in(directory, "abcd")
    for number in (1, 2):
        await files.write(lease(number))
    await other.write(lease(3))
    strangers = ["vendor.com-gpu.json", "plugind-abc.json", "plugind-abc-x.yaml", "plugind-ab-x.json", "plugind-abc-"]
    for name in [*strangers, f".plugind-abc-{name_of(4)}"]:
        (directory / "cdi" / name).write_text("{}")
    await files.clean({name_of(2), name_of(4)})
    assert there(directory) == sorted([*strangers, f"plugind-abc-{name_of(2)}.json", f"plugind-abcd-{name_of(3)}.json"])


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
async def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi").chmod(mode)
    for refused in (files_in(tmp_path).write(lease()), files_in(tmp_path).clean(())):
        with pytest.raises(CdiError, match=r"others may write to .*/cdi, and so change .* chmod go-w"):
            await refused
    assert there(tmp_path) == []


async def test_a_directory_that_others_may_replace_is_refused(tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o777)
    with pytest.raises(CdiError, match=f"others may replace {above}/cdi, because of {above}: everybody may write"):
        await files_in(above).write(lease())


async def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "cdi").mkdir()
    (tmp_path / "precious").write_text("kept")
    for name in (f".plugind-abc-{name_of(1)}", f"plugind-abc-{name_of(1)}.json"):
        (tmp_path / "cdi" / name).symlink_to(tmp_path / "precious")
    await files_in(tmp_path).write(lease(1))
    assert (tmp_path / "precious").read_text() == "kept"
    assert not (tmp_path / "cdi" / f"plugind-abc-{name_of(1)}.json").is_symlink()


# --- what goes wrong --------------------------------------------------------------------------------------------------

_HELPER = """
import os, sys, trio
from plugind.actors.leases.cdi_files import CdiFiles
from plugind.protocol.leases.cdi import CdiError
from plugind.tests.actors.leases.test_cdi_files import HOOK, lease
if sys.argv[2:]:
    os.setuid(int(sys.argv[2]))
try:
    trio.run(CdiFiles("abc", HOOK, directory=sys.argv[1]).write, lease(2))
except CdiError as error:
    print(error)
print(sorted(os.listdir(sys.argv[1])))
"""
_FULL = 'mount -t tmpfs -o size=4k,mode=755 none "$1"; head -c 65536 /dev/zero > "$1/filler" 2>/dev/null'
_READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"'


@pytest.mark.skipif(not _ROOT, reason="only root mounts file systems")
@pytest.mark.parametrize(
    ("mount", "why", "left"),
    [
        (_FULL, "No space left on device; free space on its file system", ["filler"]),
        (_READ_ONLY, "Read-only file system; mount it with rw", []),
    ],
    ids=["full", "read-only"],
)
def test_a_full_or_read_only_disk_is_told_and_nothing_is_left(
    tmp_path: Path, mount: str, why: str, left: list[str]
) -> None:
    (tmp_path / "cdi").mkdir()
    script = f'{mount}; exec "$2" -c "$3" "$1"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path / "cdi"), sys.executable, _HELPER]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path}/cdi cannot be written: {why}\n{left}\n", done.stderr


@pytest.mark.skipif(_ROOT, reason="root may write everywhere")
async def test_a_user_who_may_not_write_learns_it(tmp_path: Path) -> None:
    (tmp_path / "cdi").mkdir(0o555)
    with pytest.raises(CdiError, match=rf"cannot be written: .*; uid {os.geteuid()} may not write there, so run"):
        await files_in(tmp_path).write(lease())


async def test_what_cannot_be_renamed_leaves_nothing(tmp_path: Path) -> None:
    """Also where the error comes last; here a directory is in the place of the file."""
    (tmp_path / "cdi" / f"plugind-abc-{name_of(1)}.json").mkdir(parents=True)
    with pytest.raises(CdiError, match="Is a directory"):
        await files_in(tmp_path).write(lease(1))
    assert there(tmp_path) == [f"plugind-abc-{name_of(1)}.json"]


#: Writes a file in children, and ends each one by SIGKILL before another system call.
_KILLED = """
import os, signal, sys
from plugind.actors.leases import cdi_files
from plugind.tests.actors.leases.test_cdi_files import HOOK, lease

def deadly(name, call):
    def killed(*arguments, **options):
        print(name, flush=True)
        os.kill(os.getpid(), signal.SIGKILL) if sys.argv[-1] == name + str(calls.count(name)) else calls.append(name)
        return call(*arguments, **options)
    return killed

for directory in sys.argv[1:]:
    if os.fork() == 0:
        os.dup2(os.open(directory + ".calls", os.O_CREAT | os.O_WRONLY, 0o600), 1)
        sys.argv[-1], calls = os.path.basename(directory), []
        for name in ("open", "fchmod", "fsync", "rename"):
            setattr(os, name, deadly(name, getattr(os, name)))
        files = cdi_files.CdiFiles("abc", HOOK, directory=directory + "/cdi")
        files._write(lease(1), files._content(lease(1)))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def test_a_kill_amid_writing_leaves_no_half_file_that_an_engine_loads(tmp_path: Path) -> None:
    """Before each system call; until the last one nothing is there, and then all of it."""
    calls = ["open0", "open1", "fchmod0", "fsync0", "rename0", "fsync1", "nothing"]
    for call in calls:
        (tmp_path / call).mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, *[str(tmp_path / call) for call in calls]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["-9"] * 6 + ["0"], done.stderr
    loaded = [[read(path) for path in (tmp_path / call / "cdi").glob("*.json")] for call in calls]
    assert [len(documents) for documents in loaded] == [0, 0, 0, 0, 0, 1, 1]
    # What is left is no obstacle, and goes with the next start.
    assert there(tmp_path / "rename0") == [f".plugind-abc-{name_of(1)}"]
    trio.run(files_in(tmp_path / "rename0").write, lease(1))
    assert there(tmp_path / "rename0") == [f"plugind-abc-{name_of(1)}.json"]
    trio.run(files_in(tmp_path / "fsync0").clean, ())
    assert there(tmp_path / "fsync0") == []


# --- device nodes -----------------------------------------------------------------------------------------------------


def test_the_mode_and_owner_of_a_node_are_the_hosts() -> None:
    null = os.stat("/dev/null")
    expected = HostNode("/dev/null", "", stat.S_IMODE(null.st_mode), null.st_uid, null.st_gid)
    assert Search().nodes_at("/dev/null") == [expected]


def test_a_link_to_a_node_is_the_node(tmp_path: Path) -> None:
    (tmp_path / "by-id").symlink_to("/dev/null")
    (node,) = Search().nodes_at(str(tmp_path / "by-id"))
    assert (node.path, node.below) == ("/dev/null", "")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "cannot be used: No such file or directory"),
        (lambda path: path.write_text(""), "is no device node"),
        (lambda path: path.mkdir(), "no device node is in it"),
        (lambda path: path.symlink_to(path), "cannot be used: Too many levels of symbolic links"),
        (os.mkfifo, "is no device node"),
    ],
    ids=["nothing", "file", "empty", "circle", "fifo"],
)
async def test_what_is_no_device_node_fails_the_lease(tmp_path: Path, make: object, why: str) -> None:
    assert callable(make)
    make(tmp_path / "node")
    path = str(tmp_path / "node")
    with pytest.raises(CdiError, match=rf"the plugin gives .*{path}.*{why}"):
        await files_in(tmp_path).write(lease(1, Answer(nodes=(Node(path, path),))))
    assert not (tmp_path / "cdi").exists()


def _make_nodes(directory: Path, names: Sequence[str]) -> None:
    for name in names:
        (directory / name).parent.mkdir(exist_ok=True)
        os.mknod(directory / name, 0o600 | stat.S_IFCHR, os.makedev(1, 3))


@pytest.mark.skipif(not _ROOT, reason="only root makes device nodes")
def test_a_directory_is_all_nodes_in_it(tmp_path: Path) -> None:
    snd = tmp_path / "snd"
    _make_nodes(snd, ["timer", "pcm0"])
    _make_nodes(snd / "by", ["path"])
    (snd / "text").write_text("")
    (snd / "link").symlink_to("/dev/null")
    (tmp_path / "here").symlink_to(snd)
    nodes = Search().nodes_at(str(tmp_path / "here"))
    assert [node.below for node in nodes] == ["/by/path", "/pcm0", "/timer"]
    assert [node.path for node in nodes] == [f"{snd}{node.below}" for node in nodes]
    assert {node.mode for node in nodes} == {0o600}


@pytest.mark.skipif(not _ROOT, reason="only root makes device nodes")
def test_a_directory_of_too_many_nodes_fails_the_lease(tmp_path: Path) -> None:
    _make_nodes(tmp_path / "many", [str(number) for number in range(MOST_NODES + 1)])
    with pytest.raises(CdiError, match="with more than 1024 device nodes"):
        Search().nodes_at(str(tmp_path / "many"))


async def test_a_directory_of_many_files_fails_its_lease_after_few_of_them(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for number in range(MOST_ENTRIES + 1000):
        (tmp_path / "many" / str(number)).touch()
    path, looked = str(tmp_path / "many"), 0
    lstat = os.lstat

    def count(*args: Any, **options: Any) -> os.stat_result:
        nonlocal looked
        looked += str(args[0]).startswith(path)
        return lstat(*args, **options)

    with patch.object(os, "lstat", count), pytest.raises(CdiError, match=r"more than 4096 entries.*name the nodes"):
        await files_in(tmp_path).write(lease(1, Answer(nodes=(Node(path, path),))))
    assert looked <= MOST_ENTRIES + 10


async def test_a_look_at_nodes_that_hangs_fails_its_own_leases_alone(tmp_path: Path) -> None:
    over = threading.Event()

    def hang(_: str) -> list[HostNode]:
        over.wait(30)
        return []

    files = CdiFiles("abc", HOOK, directory=str(tmp_path / "cdi"), nodes_at=hang)
    hung = attrs.evolve(lease(1, Answer(nodes=(Node("/dev/x", "/dev/x"),))), devices={"v.com/a": ("1",)})
    try:
        with pytest.raises(CdiError, match=r"^the look at .* plugins of v\.com/a give has not ended within 2 s: have"):
            await files.write(attrs.evolve(hung, cdi_name=name_of(10)))
        with pytest.raises(CdiError, match=r"^an earlier look at .* has not ended yet, so no new one is made: have"):
            await files.write(attrs.evolve(hung, cdi_name=name_of(11)))
        with trio.fail_after(20):
            await files.write(attrs.evolve(lease(2), devices={"v.com/b": ("1",)}))
    finally:
        over.set()
    assert there(tmp_path) == [f"plugind-abc-{name_of(2)}.json"]


def test_the_hooks_command_runs_whatever_the_environment_is(tmp_path: Path) -> None:
    """An engine may run it with its caller's environment, and in a directory of its own."""
    (tmp_path / "plugind.py").write_text("raise SystemExit('not this one')")
    command, env = [*hook_command(), "--version"], {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:8]) == (0, "plugind "), done.stderr


def test_the_hooks_command_is_the_script_of_a_debian_package(tmp_path: Path) -> None:
    """That script alone finds the package, which is in a directory of its own."""
    script = tmp_path / "plugind"
    script.write_text(
        f"#!{sys.executable} -I\nfrom plugind.actors.leases.cdi_files import hook_command\nprint(*hook_command())\n"
    )
    script.chmod(0o755)
    done = subprocess.run(["./plugind"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{script}\n"), done.stderr
