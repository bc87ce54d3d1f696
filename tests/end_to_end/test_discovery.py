"""The sockets of a root and their changes, with real plugins and a daemon as processes."""

from __future__ import annotations

import os
from pathlib import Path

from plugind.tests.end_to_end.processes import PATIENT, Daemon, daemon, number
from plugind.tests.end_to_end.sockets import NAME, place, plugins_at, stale


async def test_sockets_are_found_in_directories_that_are_made_while_it_runs(shared: Daemon, tmp_path: Path) -> None:
    """TestFoundNestedPluginSocket..., at depths 0 to 3; a tree that is moved in is found too (behaviour 5)."""
    directory = await place(shared, "nested")
    staged = [tmp_path / str(index) for index in range(6)]
    paths = [
        directory / "0.sock",
        directory / "one" / "1.sock",
        directory / "one" / "two" / "2.sock",
        directory / "moved" / "3.sock",
        directory / "moved" / "in" / "4.sock",
        shared.root / "top.sock",
    ]
    async with shared.watch() as watch, plugins_at(*staged):
        for old, new in zip(staged[:3], paths[:3], strict=True):
            new.parent.mkdir(exist_ok=True)
            old.rename(new)
        (tmp_path / "tree" / "in").mkdir(parents=True)
        staged[3].rename(tmp_path / "tree" / "3.sock")
        staged[4].rename(tmp_path / "tree" / "in" / "4.sock")
        (tmp_path / "tree").rename(directory / "moved")
        staged[5].rename(paths[5])
        names = [plugin["name"] for plugin in await watch.all(paths, "registered")]
        assert names == [NAME.format(index) for index in range(6)]
        # A socket that is moved out is gone, and counts as new when it is moved in again (behaviour 3).
        before = watch.now[str(paths[0])]
        paths[0].rename(staged[0])
        await watch.state(paths[0], "gone")
        staged[0].rename(paths[0])
        await watch.state(paths[0], "registered", after=number(before["generation"]))
        # The plugins of a directory tree that is moved out are gone.
        (directory / "moved").rename(tmp_path / "out")
        await watch.all(paths[3:5], "gone")
        paths[5].unlink()
        await watch.state(paths[5], "gone")
        assert watch.now[str(paths[2])]["state"] == "registered"


async def test_odd_names_are_registered_and_shown_in_one_line(shared: Daemon, tmp_path: Path) -> None:
    """Fault 21; paths of over 107 bytes: fault 23."""
    directory = await place(shared, "odd")
    names = [
        b"with space.sock",
        b"caf\xc3\xa9 \xe2\x9c\x93.sock",
        b"bad-\xff\xfe.sock",
        b"new\nline\x1b[31m.sock",
        b"%2e%41#?.sock",
        b"x" * 255,
    ]
    shown = [str(directory / os.fsdecode(name)) for name in names]
    shown[2] = shown[2].replace("\udcff", "\\xff").replace("\udcfe", "\\xfe")
    staged = [tmp_path / str(index) for index in range(len(names))]
    async with shared.watch() as watch, plugins_at(*staged) as plugin:
        for old, name in zip(staged, names, strict=True):
            old.rename(directory / os.fsdecode(name))
        for index, socket_shown in enumerate(shown):
            assert (await watch.state(socket_shown, "registered"))["name"] == NAME.format(index)
        for _ in names:
            await plugin.notified_registered()
        for name in names:
            os.unlink(directory / os.fsdecode(name))
        for socket_shown in shown:
            await watch.state(socket_shown, "gone")


async def test_ten_sockets_and_a_stale_one_that_exist_before_the_start(tmp_path: Path) -> None:
    """TestPluginRegistrationAtKubeletStart; a stale socket at the start delays no plugin (behaviour 15)."""
    root = tmp_path / "root"
    (root / "deeper").mkdir(parents=True)
    paths = [root / f"{index}.sock" for index in range(9)] + [root / "deeper" / "9.sock"]
    stale(root / "dead.sock")
    async with plugins_at(*paths):
        with daemon(tmp_path, timeouts=PATIENT) as node:
            async with node.watch() as watch:
                plugins = await watch.all(paths, "registered")
                assert [plugin["attempt"] for plugin in plugins] == [1] * 10
                await watch.state(root / "dead.sock", "stale")
