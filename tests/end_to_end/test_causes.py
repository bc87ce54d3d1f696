"""What the daemon shows and logs of plugins that are not registered, with real processes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import trio

from plugind.tests.end_to_end.foreign import PLUGINS
from plugind.tests.end_to_end.processes import DEADLINE, PATIENT, Daemon, daemon, number, plugin_process, run
from plugind.tests.end_to_end.sockets import plugins_at, stale


def registrar(path: Path, version: str) -> list[str]:
    return [sys.executable, str(PLUGINS / "registrar.py"), str(path), "a.example.com", version]


def logged_causes(node: Daemon, state: str) -> list[object]:
    return [line["cause"] for line in node.lines() if line["msg"] == f"plugin {state}"]


async def test_a_registrar_that_exits_when_it_is_refused_is_shown_with_its_refusal(tmp_path: Path) -> None:
    """Its socket stays behind (fault 28), and each later dial fails; "nobody listens" alone would not show why."""
    path = tmp_path / "root" / "a.sock"
    with daemon(tmp_path, timeouts=PATIENT) as node:
        await node.ready()
        async with node.watch() as watch:
            async with plugin_process(registrar(path, "9.9.9")) as plugin:
                with trio.fail_after(DEADLINE):
                    assert await plugin.process.wait() == 1
            stale = await watch.state(path, "stale")
            await watch.until(lambda watch: number(watch.now[str(path)]["attempt"]) > number(stale["attempt"]))
            again = await watch.state(path, "stale")
            causes = {str(said["cause"]) for said in (stale, again)}
            (cause,) = causes
            assert cause.startswith("plugin validation failed: ")
            assert "9.9.9" in cause
            assert cause.endswith(" (now: nobody listens)")
            assert str(again["reason"]).endswith(f"err: nobody listens on '{path}'")
            listed = run("ls", status=node.status)
            assert cause in listed.out
            # The same failures again, in further tries, give no further line.
            assert logged_causes(node, "waiting") == [cause.removesuffix(" (now: nobody listens)")]
            assert logged_causes(node, "stale") == [cause]
            # A new socket is another generation, with no cause yet.
            os.unlink(path)
            async with plugin_process(registrar(path, "1.0.0")):
                registered = await watch.state(path, "registered")
                assert (registered["reason"], registered["cause"]) == (None, None)


#: A change of state; "plugin is healthy" is a report of the handler, and "devices are listed" comes from its lists.
_STATE = re.compile("plugin (?!is )")


def plugin_lines(node: Daemon, path: Path) -> list[str]:
    """The lines of the log about the states of the plugin at ``path``: message, generation, cause."""
    said = [line for line in node.lines() if line.get("socket") == str(path) and _STATE.match(str(line["msg"]))]
    # The sockets of all paths share one counter.
    generations = sorted({number(line["generation"]) for line in said})
    return [
        f"{line['msg']} g{generations.index(number(line['generation'])) + 1}"
        + (f": {line['cause']}" if "cause" in line else "")
        for line in said
    ]


async def test_the_log_has_one_line_for_each_true_event_of_a_plugin(tmp_path: Path) -> None:
    """A plugin that is replaced and removed, and others that are there when plugind stops (behaviour 42)."""
    path, stays, left = (tmp_path / "root" / name for name in ("a.sock", "b.sock", "c.sock"))
    with daemon(tmp_path, timeouts=PATIENT) as node:
        await node.ready()
        stale(left)
        newer = path.with_suffix(".new")
        async with node.watch() as watch, plugins_at(stays):
            async with plugins_at(path), plugins_at(newer):
                first = await watch.state(path, "registered")
                # In one step: there is no moment without a socket at the path. Both processes go on.
                newer.rename(path)
                await watch.state(path, "registered", after=number(first["generation"]))
                os.unlink(path)
                await watch.state(path, "gone")
            await watch.state(stays, "registered")
            await watch.state(left, "stale")
            node.process.terminate()
            assert await node.ended() == 0
        replaced = "a newer socket is in its place"
        assert plugin_lines(node, path) == [
            "plugin registered g1",
            f"plugin deregistered g1: {replaced}",
            f"plugin gone g1: {replaced}",
            "plugin waiting g2: crash loop: 1 short life",
            "plugin registered g2",
            "plugin deregistered g2: the socket was removed",
            "plugin gone g2: the socket was removed",
        ]
        assert plugin_lines(node, stays) == ["plugin registered g1"]
        assert plugin_lines(node, left) == ["plugin stale g1: nobody listens"]


async def test_what_only_looks_like_a_socket_is_named_once_in_the_log_and_never_opened(tmp_path: Path) -> None:
    """Fault 6: a FIFO that were opened for reading would block the daemon; so would a plugin behind it.

    Fault 7: links that lead to no socket are no plugins.
    """
    root = tmp_path / "root"
    root.mkdir()
    os.mkfifo(root / "before.sock")
    (root / "file.sock").write_text("")
    (root / "notes.txt").write_text("")
    for name, target in {"passwd": "/etc/passwd", "etc": "/etc", "loop": "loop", "link.sock": "nowhere"}.items():
        (root / name).symlink_to(target)
    with daemon(tmp_path, "--rescan", "0.2", timeouts=PATIENT) as node:
        await node.ready()
        async with node.watch() as watch:
            os.mkfifo(root / "after.sock")
            (root / "mount.sock").mkdir()
            async with plugins_at(root / "mount.sock" / "a.sock"):
                await watch.state(root / "mount.sock" / "a.sock", "registered")
            stale(root / "last.sock")
            await watch.state(root / "last.sock", "stale")
        listed = await node.plugins()
        assert set(listed) == {str(root / "mount.sock" / "a.sock"), str(root / "last.sock")}
        node.process.terminate()
        assert await node.ended() == 0
        said = sorted((line["msg"], line["path"]) for line in node.lines() if "path" in line)
        assert said == [
            ("a directory has the name of a socket", str(root / "mount.sock")),
            *(("not a socket", str(root / name)) for name in ("after.sock", "before.sock", "file.sock", "link.sock")),
        ]
