"""What a daemon says of its health while something is wrong with it, over its real status socket."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import trio

from plugind.actors.grpc.server.serve import serve_listener
from plugind.actors.io.unix_socket import listen
from plugind.actors.simulation.plugins import FakeRegistration
from plugind.testing import FakePlugin
from plugind.tests.end_to_end.processes import DEADLINE, Daemon, daemon, run


async def health(node: Daemon) -> tuple[int, dict[str, object]]:
    """The status of /healthz, and its report."""
    status, body = await node.get("/healthz")
    report: dict[str, object] = json.loads(body)
    return status, report


async def until_status(node: Daemon, target: str, wanted: int) -> None:
    """Wait until ``target`` is answered with the status ``wanted``."""
    with trio.fail_after(DEADLINE):
        while (await node.get(target))[0] != wanted:  # noqa: ASYNC110 - it is in another process
            await trio.sleep(0.02)


@pytest.mark.parametrize("actor", ["reconciler", "status"])
async def test_an_actor_that_hangs_is_named_by_health_readiness_and_the_log_and_goes_on(
    actor: str, tmp_path: Path
) -> None:
    """With the reconciler hung for 70 s, health said ok and ready. Nobody asks before the log says so."""
    hang = tmp_path / actor
    with daemon(tmp_path, "--rescan", "0.2", script="hanging.py") as node:
        await node.ready()
        hang.touch()
        for number in range(10):
            # The reconciler reports to the status actor that a link is refused, the watcher that it has scanned.
            (node.root / f"link{number}").symlink_to(node.status)
        with trio.fail_after(DEADLINE):
            while not node.about("actor hangs"):  # noqa: ASYNC110 - it is in another process
                await trio.sleep(0.02)
        code, report = await health(node)
        assert (code, report["status"]) == (503, "failed")
        assert [part["name"] for part in actors(report) if part["status"] == "failed"] == [actor]
        code, body = await node.get("/readyz")
        assert code == 503
        assert json.loads(body)["awaiting"][0].startswith(f"the actor {actor} (it hangs: it has taken no message for")
        await node.metric(f'plugind_actors_hanging{{actor="{actor}"}} 1.0')
        hang.unlink()
        await until_status(node, "/healthz", 200)
        await until_status(node, "/readyz", 200)
        assert [(line["level"], line["actor"]) for line in node.about("actor hangs")] == [("error", actor)]
        await node.logged("actor goes on")
        assert [(line["level"], line["actor"]) for line in node.about("actor goes on")] == [("info", actor)]


def actors(report: dict[str, object]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = report["actors"]  # type: ignore[assignment]  # it is JSON
    return found


async def test_a_handler_that_blocks_is_named_and_a_daemon_that_is_blocked_ends_within_its_limit(
    tmp_path: Path,
) -> None:
    """Faults 83 and 87: a handler that blocked froze everything for 20 s, unnamed, and SIGTERM with it."""
    with daemon(tmp_path, "--blocked-after", "1", script="blocking.py", output=subprocess.PIPE) as node:
        await node.ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_listener, [blocked("held-up")], listen(str(node.root / "a.sock")))
            line = await blocked_by_a_handler(node)
            assert (line["level"], line["handler"], line["call"], line["name"]) == (
                "error",
                "BlockedPlugin",
                "validate",
                "held-up",
            )
            assert str(line["stack"]).startswith("validate (end_to_end/blocking.py:")
            code, report = await health(node)
            assert code == 200
            (loop,) = [part for part in actors(report) if part["name"] == "loop"]
            assert (loop["status"], report["status"]) == ("degraded", "degraded")
            assert "by validate of held-up in the handler for BlockedPlugin" in str(loop["reason"])
            assert b"plugind_loop_blocks_total " in (await node.get("/metrics"))[1]

            nursery.start_soon(serve_listener, [blocked("stuck")], listen(str(node.root / "b.sock")))
            assert node.process.stdout is not None
            assert await trio.to_thread.run_sync(node.process.stdout.readline) == b"stuck\n"
            node.process.send_signal(signal.SIGTERM)
            assert await node.ended() == -signal.SIGALRM
            nursery.cancel_scope.cancel()
    log = (tmp_path / "log").read_text()
    assert re.search(r'File ".*/blocking.py", line \d+ in register', log) is not None


async def blocked_by_a_handler(node: Daemon) -> dict[str, object]:
    """Wait for the line of the log about a handler that blocks. A busy machine may block the daemon, too."""
    with trio.fail_after(DEADLINE):
        while True:
            for line in node.about("the loop was blocked"):
                if line.get("handler") is not None:
                    return line
            await trio.sleep(0.02)


@pytest.mark.parametrize("signals", [1, 2])
async def test_a_daemon_whose_handler_cannot_be_cancelled_ends_within_its_limit_and_names_it(
    signals: int, tmp_path: Path
) -> None:
    """Fault 87: SIGALRM ended it, and a bare dump named neither the handler nor the plugin."""
    with daemon(tmp_path, script="blocking.py", output=subprocess.PIPE) as node:
        await node.ready()
        async with trio.open_nursery() as nursery:
            path = node.root / "a.sock"
            nursery.start_soon(serve_listener, [blocked("shielded")], listen(str(path)))
            assert node.process.stdout is not None
            assert await trio.to_thread.run_sync(node.process.stdout.readline) == b"shielded\n"
            node.process.send_signal(signal.SIGTERM)
            await node.logged("stopping")
            if signals == 2:
                node.process.send_signal(signal.SIGTERM)
            assert await node.ended() == 1
            nursery.cancel_scope.cancel()
    *log, last = (tmp_path / "log").read_text().splitlines()
    line = json.loads(log[-1])
    call = f"register of shielded ({path}) in the handler for BlockedPlugin"
    assert (line["level"], line["msg"], line["calls"]) == ("error", "the node does not stop", call)
    # On a busy machine others need more than 0.2 s, too.
    assert "registrations" in line["actors"].split(", ")
    assert last == f"plugind: the node did not stop within 0.2 s, because of {call}"


def blocked(name: str) -> FakeRegistration:
    return FakeRegistration(FakePlugin("BlockedPlugin", name), lambda _: None, lambda: None)


#: How many plugins hang, and for how many of them the daemon has descriptors.
HANGING, LEFT = 100, 20


def answering(path: str, endpoint: str = "") -> FakeRegistration:
    """A plugin that answers."""
    plugin = FakePlugin("DRAPlugin", f"{os.path.basename(path)}.example.com", ("v1.DRAPlugin",), endpoint)
    return FakeRegistration(plugin, lambda _: None, lambda: None)


def limit_descriptors(pid: int, *, left: int) -> tuple[int, int]:
    """Let a process have so many more descriptors than it has now; return its limits before."""
    highest = max(map(int, os.listdir(f"/proc/{pid}/fd")))
    _soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    return resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1 + left, hard))


async def test_without_descriptors_the_status_socket_answers_and_no_plugin_pays_for_it(tmp_path: Path) -> None:
    """Fault 46: a hundred plugins hang, and the daemon has descriptors for twenty of them."""
    with daemon(tmp_path) as node, ExitStack() as stack, trio.fail_after(2 * DEADLINE):
        await node.ready()
        before = limit_descriptors(node.process.pid, left=LEFT)
        paths = [str(node.root / f"{number}.sock") for number in range(HANGING)]
        listeners = [stack.enter_context(listen(path)) for path in paths]
        shown: dict[str, object] = {}
        while shown.get("status") != "degraded":
            code, report = await health(node)
            assert code == 200, report
            shown = next(actor for actor in actors(report) if actor["name"] == "dial slots")
            await trio.sleep(0.02)
        assert str(shown["reason"]).startswith("no descriptors left; ")
        while True:
            done = await trio.to_thread.run_sync(partial(run, "ls", "--json", status=node.status))
            assert done.code == 0, done.err
            plugins = json.loads(done.out)
            held_up = [plugin for plugin in plugins if plugin["reason"] == "no descriptors left"]
            if len(held_up) > HANGING // 2:
                break  # Before, the daemon may not have found all of them yet.
        assert {plugin["step"] for plugin in held_up} == {"dial"}
        assert [plugin for plugin in plugins if "open files" in str(plugin["reason"])] == []
        for target in ("/readyz", "/metrics", "/plugins"):
            assert (await node.get(target))[0] == 200, target
        async with trio.open_nursery() as nursery:
            for path, listener in zip(paths, listeners, strict=True):
                nursery.start_soon(serve_listener, [answering(path)], listener)
            resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, before)
            while {plugin["state"] for plugin in (await node.plugins()).values()} != {"registered"}:  # noqa: ASYNC110
                await trio.sleep(0.1)
            assert len(await node.plugins()) == HANGING
            _, report = await health(node)
            assert report["status"] == "ok"
            nursery.cancel_scope.cancel()


async def test_the_limit_of_conversations_is_that_of_the_descriptors_that_the_daemon_may_have(tmp_path: Path) -> None:
    """Fault 47: it was the soft limit at the start, for example 300, and a few hung plugins used all of it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        with daemon(tmp_path, timeouts={"get_info": DEADLINE}) as node, ExitStack() as stack:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await node.ready()
            for number in range(100):
                stack.enter_context(listen(str(node.root / f"{number}.sock")))
            async with node.watch() as watch:
                await watch.until(lambda watch: [p["step"] for p in watch.now.values()] == ["info"] * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
