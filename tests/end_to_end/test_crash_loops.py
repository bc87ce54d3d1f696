"""A plugin in a crash loop, with a real daemon."""

from __future__ import annotations

import json
import os
from pathlib import Path

from plugind.tests.end_to_end.processes import PATIENT, daemon, number, run
from plugind.tests.end_to_end.sockets import plugins_at

NAME = "loop.example.com/colour"


async def test_a_plugin_that_waits_in_a_crash_loop_is_described_and_tried_by_its_name(tmp_path: Path) -> None:
    """Fault 49: ``describe NAME``, ``retry NAME`` and readiness did not find it, since its socket is a new one."""
    path = tmp_path / "root" / "a.sock"
    with daemon(tmp_path, "--expect", NAME, timeouts={**PATIENT, "backoff": 100.0}) as node:
        async with node.watch() as watch:
            async with plugins_at(path, name=NAME):
                first = await watch.state(path, "registered")
            os.unlink(path)
            await watch.state(path, "gone")
            async with plugins_at(path, name=NAME) as plugin:
                waiting = await watch.state(path, "waiting")
                assert (waiting["name"], waiting["last_known"], waiting["versions"]) == (NAME, True, None)
                await node.metric('plugind_plugin_causes{cause="crash-loop",plugin_type="DevicePlugin"} 1.0')
                described = run("describe", NAME, status=node.status)
                assert described.code == 0, described.err
                assert f"Name:       {NAME} (last known)\n" in described.out
                assert "Cause:      crash loop: 1 short life, next try in " in described.out
                _, ready = await node.get("/readyz")
                assert json.loads(ready)["awaiting"] == [f"the plugin {NAME} (waiting: crash loop: 1 short life)"]
                retried = run("retry", NAME, status=node.status)
                assert (retried.code, str(path) in retried.out) == (0, True), retried
                await plugin.notified_registered()
                registered = await watch.state(path, "registered", after=number(first["generation"]))
                assert (registered["name"], registered["last_known"]) == (NAME, False)
