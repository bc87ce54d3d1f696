"""The status socket and the commands that use it, over real sockets in one process."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from plugind.actors.client.paths import default_status_path
from plugind.actors.console import commands
from plugind.actors.http.on_trio import ask
from plugind.actors.status import actor as status
from plugind.actors.status.actor import StatusConfig
from plugind.protocol.messages.reconciler import ReconcilerMessage, RetryAnswer, RetryAnswered, RetryAsked
from plugind.protocol.messages.status import StateChanged, StatusMessage
from plugind.protocol.plugins.info import PluginInfo
from plugind.protocol.plugins.status import StateName
from plugind.tests.end_to_end.processes import DEADLINE


@attrs.frozen
class Daemon:
    """A status actor that listens, with a reconciler that finds every target except ``unknown``."""

    path: str
    inbox: trio.MemorySendChannel[StatusMessage]

    async def show(self, name: str, state: StateName, reason: str | None = None, *, with_info: bool = True) -> None:
        socket = f"/r/{name}.sock"
        info = PluginInfo("CSIPlugin", name, socket, ("1.0.0",)) if with_info else None
        await self.inbox.send(StateChanged(socket, "/r", 1, state, trio.current_time(), reason, 1, info=info))

    async def until(self, count: int) -> None:
        """Return when the daemon lists ``count`` sockets."""
        while True:
            async with ask(self.path, "GET", "/plugins") as reply:
                if len(json.loads(await reply.body())) == count:
                    return


@asynccontextmanager
async def daemon(path: str) -> AsyncIterator[Daemon]:
    to_status, inbox = trio.open_memory_channel[StatusMessage](100)
    to_reconciler, asked = trio.open_memory_channel[ReconcilerMessage](10)
    config = StatusConfig(path, roots=("/r",))

    async def reconcile() -> None:
        async for message in asked:
            assert isinstance(message, RetryAsked)
            answer = RetryAnswer(message.path, tried=True, why="tried now")
            message.reply.send_nowait(RetryAnswered(() if message.path == "unknown" else (answer,)))

    async def run(task_status: trio.TaskStatus[None]) -> None:
        await status.run(config, inbox=inbox, reconciler=to_reconciler, task_status=task_status)

    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reconcile)
            await nursery.start(run)
            yield Daemon(path, to_status)
            to_status.close()
            to_reconciler.close()


async def command(*words: str) -> int:
    """Run a command as the command line does, in a thread, since it starts an event loop of its own."""
    return await trio.to_thread.run_sync(commands.main, words)


async def waited(capsys: pytest.CaptureFixture[str], *words: str) -> int:
    """Run ``wait`` for plugins that do not come, with a timeout that leaves the daemon time to answer."""
    for timeout in ("0.3", "3"):
        if (code := await command("wait", *words, "--timeout", timeout)) != 69:
            return code
        capsys.readouterr()
    return await command("wait", *words, "--timeout", "30")


async def test_wait_waits_for_a_daemon_that_is_not_up_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kubernetes issue 91758."""
    path = str(tmp_path / "s")
    codes: list[int] = []

    async def wait_for_both() -> None:
        codes.append(await command("wait", "a", "b", "--status", path, "--timeout", "60"))

    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_both)
            await trio.sleep(0.3)
            async with daemon(path) as node:
                await node.show("a", StateName.REGISTERED)
                await node.show("b", StateName.WAITING, "no answer")
                await node.until(2)
                assert codes == []
                await node.show("b", StateName.REGISTERED)
                while not codes:  # noqa: ASYNC110 - the other event loop, in a thread, sets it
                    await trio.sleep(0.01)
    assert codes == [0]
    assert capsys.readouterr().out == "a is registered: /r/a.sock\nb is registered: /r/b.sock\n"


async def test_wait_prints_at_its_timeout_why_each_plugin_is_not_registered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "s")
    async with daemon(path) as node:
        await node.show("good", StateName.REGISTERED)
        await node.show("bad", StateName.PARKED, "no handler")
        await node.show("quiet", StateName.WAITING, "no answer", with_info=False)
        await node.until(3)
        assert await waited(capsys, "good", "bad", "none", "--status", path) == 1
        assert capsys.readouterr().err == (
            "plugind: bad is not registered: /r/bad.sock is parked, attempt 1: no handler\n"
            "plugind: none is not registered: no plugin has that name;"
            " sockets that have not said their name: /r/quiet.sock is waiting, attempt 1: no answer\n"
        )
        assert await waited(capsys, "good", "--type", "DRAPlugin", "--status", path) == 1
        assert capsys.readouterr().err == (
            "plugind: good is not registered: it is there as CSIPlugin, not as DRAPlugin\n"
        )
    assert await command("wait", "good", "--timeout", "0.1", "--status", path) == 69
    assert capsys.readouterr().err.startswith("plugind: cannot tell whether good is registered: no daemon answers at ")


def test_the_default_socket_depends_on_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLUGIND_STATUS", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    for uid, expected in ((0, "/run/plugind/status.sock"), (1000, "/run/user/1000/plugind/status.sock")):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        assert default_status_path() == expected
    monkeypatch.setenv("PLUGIND_STATUS", "/tmp/other")
    assert default_status_path() == "/tmp/other"
