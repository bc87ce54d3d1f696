"""A plugin of a user who is not trusted, and a daemon. Only root can listen as another user."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from plugind.actors.grpc.server.serve import serve_stream
from plugind.actors.io.connecting import stream_socket
from plugind.actors.simulation.plugins import Call, FakePlugin, FakeRegistration
from plugind.tests.end_to_end.processes import DEADLINE, PATIENT, daemon, run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as another user")

NOBODY = 65534
ANN = 4242


@contextmanager
def as_user(uid: int) -> Iterator[None]:
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@asynccontextmanager
async def plugin_of(uid: int, path: Path, name: str) -> AsyncIterator[list[Call]]:
    """Serve a plugin on ``path``, with the credentials of a process of user ``uid``; the value is its calls."""
    calls: list[Call] = []
    with stream_socket() as made:
        made.bind(str(path))
        with as_user(uid):
            made.listen()
        service = FakeRegistration(FakePlugin("DRAPlugin", name, ("v1.DRAPlugin",)), calls.append, lambda: None)
        serve = partial(serve_stream, [service], report=lambda _: None)
        async with trio.open_nursery() as nursery:
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(made))
            nursery.start_soon(partial(trio.serve_listeners, serve, [listener]))
            yield calls
            nursery.cancel_scope.cancel()
    os.unlink(path)


async def test_a_plugin_that_makes_its_own_directory_is_registered_in_it(tmp_path: Path) -> None:
    """Faults 3 and 80: it was refused, with advice that broke it; a plugin of another user is not taken there."""
    root = tmp_path / "root"
    own, foreign = root / "own", root / "foreign"
    for directory, user in (own, ANN), (foreign, NOBODY):
        directory.mkdir(parents=True)
        os.chown(directory, user, user)
    with daemon(tmp_path, "--trust-uid", f"{ANN}", "--trust-uid", f"{ANN + 1}", timeouts=PATIENT) as node:
        await node.ready()
        with trio.fail_after(DEADLINE):
            async with node.watch() as watch, plugin_of(ANN, own / "a.sock", "a.example.com"):
                await watch.state(own / "a.sock", "registered")
                async with plugin_of(ANN + 1, own / "b.sock", "b.example.com") as calls:
                    parked = await watch.state(own / "b.sock", "parked")
                    assert f"it is in a directory of user {ANN}, who could remove it" in str(parked["cause"])
                    assert calls == []
                roots = json.loads((await node.get("/healthz"))[1])["roots"]
        (report,) = roots[0]["directories"]
        assert (report["path"], report["condition"]) == (str(foreign), "insecure")
        assert f"run plugind with --trust-uid {NOBODY} if that user's plugins belong there" in report["reason"]


async def test_a_process_of_another_user_does_not_get_the_name_of_a_driver_of_root(tmp_path: Path) -> None:
    """Faults 40 and 80: it was registered, and became the active one of its name.

    Once its user is trusted, it is asked for its name, and does not get that.
    """
    root = tmp_path / "root"
    with daemon(tmp_path, "--trust-uid", str(ANN), timeouts=PATIENT) as node:
        await node.ready()
        driver, stranger, friend = root / "driver.sock", root / "stranger.sock", root / "friend.sock"
        with trio.fail_after(DEADLINE):
            async with plugin_of(0, driver, "gpu.example.com"), node.watch() as watch:
                await watch.state(driver, "registered")
                async with plugin_of(NOBODY, stranger, "gpu.example.com") as calls:
                    parked = await watch.state(stranger, "parked")
                    assert parked["cause"] == (
                        f"process {os.getpid()} of user {NOBODY} listens there, which is not trusted: run the plugin as"
                        f" root, or plugind with --trust-uid {NOBODY}"
                    )
                    assert (calls, parked["uid"], parked["pid"]) == ([], NOBODY, os.getpid())
                async with plugin_of(ANN, friend, "gpu.example.com"):
                    waiting = await watch.state(friend, "waiting")
                    assert f"belongs to user 0, by the socket {driver}, and user {ANN} may not" in str(waiting["cause"])
                assert watch.now[str(driver)]["active"] is True
                async with plugin_of(ANN, friend, "net.example.com"):
                    await watch.state(friend, "registered", after=int(str(waiting["generation"])))


async def test_sighup_trusts_a_user_and_a_reload_takes_the_trust_away(tmp_path: Path) -> None:
    file, path = tmp_path / "plugind.toml", tmp_path / "root" / "a.sock"

    def write(uids: str) -> None:
        # The plugin is served by this very process, which may be late.
        file.write_text(f"[timeouts]\nget_info = {DEADLINE}\nnotify = {DEADLINE}\n[trust]\nuids = {uids}\n")
        file.chmod(0o644)

    write("[]")
    with daemon(tmp_path, "--config", str(file)) as node:
        await node.ready()
        with trio.fail_after(DEADLINE):
            async with node.watch() as watch, plugin_of(ANN, path, "a.example.com") as calls:
                parked = await watch.state(path, "parked")
                assert f"of user {ANN} listens there, which is not trusted" in str(parked["cause"])
                write(f"[{ANN}]")
                node.process.send_signal(signal.SIGHUP)
                await watch.state(path, "registered")
                write("[]")
                done = await trio.to_thread.run_sync(partial(run, "reload", status=node.status))
                assert (done.code, done.out, done.err) == (0, "changed: trust.uids\n", "")
                again = await watch.state(path, "parked")
                assert again["cause"] == parked["cause"]
                assert [call.method for call in calls] == ["GetInfo", "NotifyRegistrationStatus"]
        (line,) = await node.logged("plugin deregistered")
        assert f"of user {ANN} listens there, which is not trusted" in str(line["cause"])
