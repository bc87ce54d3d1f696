"""What the daemon shows and logs of plugins that are not registered, with real processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import trio

from plugind.tests.end_to_end.foreign import PLUGINS
from plugind.tests.end_to_end.processes import DEADLINE, PATIENT, Daemon, daemon, number, plugin_process, run


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
