"""Plugins that are killed, and sockets that are listened on late, with a daemon as a process."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import trio

from plugind.tests.end_to_end.processes import PLUGIND, SOON, Done, Watch, daemon, plugin_process, run

NAME = "dead.example.com"


def fake(path: Path) -> list[str]:
    return [*PLUGIND, "fake", "--socket", str(path), "--type", "CSIPlugin", "--name", NAME, "--version", "1.0.0"]


async def command(*arguments: str, status: str) -> Done:
    return await trio.to_thread.run_sync(lambda: run(*arguments, status=status))


async def until_serving(watch: Watch, path: Path, *, serving: bool) -> None:
    await watch.until(lambda watch: watch.now.get(str(path), {}).get("serving") is serving)


async def test_a_plugin_killed_with_sigkill_is_shown_as_not_serving_until_it_is_started_again(tmp_path: Path) -> None:
    """Fault 39: its file stays. It stays registered, and everything that shows it says that nobody listens."""
    with daemon(tmp_path, "--expect", NAME) as started:
        path = started.root / "dead.sock"
        async with started.watch() as watch:
            async with plugin_process(fake(path)) as plugin:
                await until_serving(watch, path, serving=True)
                await started.ready()
                assert (await command("wait", NAME, "--serving", status=started.status)).code == 0
                assert await plugin.end(signal.SIGKILL) == -signal.SIGKILL
                await until_serving(watch, path, serving=False)
            assert path.is_socket()
            killed = watch.now[str(path)]
            assert killed["state"] == "registered"
            listed = await command("ls", status=started.status)
            line = next(line for line in listed.out.splitlines() if str(path) in line)
            assert "registered" in line
            assert "  not serving: nobody listens on its socket" in line
            described = await command("describe", NAME, status=started.status)
            assert re.search("^Serving: +no, since .*: nobody listens on its socket$", described.out, re.MULTILINE)
            assert re.search(f"^Process: +was pid {killed['pid']}, uid", described.out, re.MULTILINE)
            retried = await command("retry", NAME, status=started.status)
            why = "registered already, nothing to retry; not serving: nobody listens on its socket"
            assert retried == Done(1, f"{path}: {why}\n", "")
            waited = await command("wait", NAME, "--serving", "--timeout", SOON, status=started.status)
            assert waited.code == 1
            why = f"{path} is registered, but nobody listens on its socket"
            assert waited.err == f"plugind: {NAME} is not serving: {why}\n"
            assert (await command("wait", NAME, status=started.status)).code == 0
            code, body = await started.get("/readyz")
            assert (code, json.loads(body)["awaiting"]) == (503, [f"the plugin {NAME} (nobody listens on its socket)"])
            await started.metric('plugind_plugins_not_serving{plugin_type="CSIPlugin"} 1.0')
            async with plugin_process(fake(path)):
                await watch.state(path, "registered", after=1)
                assert (await command("wait", NAME, "--serving", status=started.status)).code == 0
                await started.ready()
        # The second one is killed, too, at the end of its block.
        said = [line for line in started.lines() if line["msg"] == "plugin does not serve"]
        warnings = [line for line in said if line["generation"] == killed["generation"]]
        assert len(warnings) == 1
        assert (warnings[0]["level"], warnings[0]["name"]) == ("warning", NAME)
