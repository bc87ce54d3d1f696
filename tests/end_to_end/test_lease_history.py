"""The history of leases of a real daemon: over kills, on its disk, for its users, and who had a device at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from plugind.protocol.leases.history import row_to_json
from plugind.tests.end_to_end.lease_scene import GPU, Forks, Scene, open_scene
from plugind.tests.end_to_end.processes import DEADLINE, Daemon, daemon, finish
from plugind.tests.end_to_end.test_status_group import AS
from plugind.tests.end_to_end.test_status_page import fields
from plugind.tests.protocol.leases.test_history import ROW

PLUGIND = (sys.executable, "-m", "plugind")


def plugind(status: str, *words: str) -> Any:
    """Run a command, and return its JSON."""
    done = finish([*PLUGIND, *words, "-o", "json", "--status", status])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def run(scene: Scene, *words: str) -> Any:
    return await trio.to_thread.run_sync(plugind, scene.status, *words)


async def test_who_had_a_device_at_a_time_is_known_after_kills_and_over_the_end_of_the_state(
    tmp_path: Path, forks: Forks
) -> None:
    async with open_scene(tmp_path, forks, devices=2) as scene:
        await scene.start()
        owner = scene.owner()
        held = await scene.lease_of_process(owner, id="first", labels={"project": "x"})
        (device,) = held["devices"][GPU]
        then = datetime.now(UTC)
        await scene.kill()
        await scene.start()
        (row,) = (await run(scene, "leases", "--history", "--device", device, "--at", "now"))["rows"]
        assert (row["lease"], row["ended"], row["pid"]) == ("first", None, owner.pid)
        owner.kill()
        owner.wait()
        await scene.until_states()
        assert (await scene.lease(2, id="second"))[0] == 201
        for words, leases in (
            (("--at", then.isoformat()), ["first"]),
            (("--at", "now"), ["second"]),
            ((), ["second", "first"]),
            (("--until", "1h"), []),
            (("--user", str(os.getuid() + 1)), []),
        ):
            rows = (await run(scene, "leases", "--history", "--device", device, *words))["rows"]
            assert [row["lease"] for row in rows] == leases, words
        _, first = (await run(scene, "leases", "--history", "--device", device))["rows"]
        assert first["reason"] == "its owner has ended, or its time is over"
        assert first["granted_unix"] == row["granted_unix"] <= then.timestamp() <= first["ended_unix"]
        labelled, others = sorted(
            (await run(scene, "usage", "--by", "label:project"))["usage"],
            key=lambda usage: str(usage["label"]),
            reverse=True,
        )
        assert (labelled["label"], labelled["leases"], others["label"], others["leases"]) == ("x", 1, None, 1)
        # The history outlives a state that is lost, and says that nobody saw the end of what was held.
        await scene.kill()
        for name in ("state.db", "state.db-wal"):
            (scene.state / name).unlink(missing_ok=True)
        await scene.start()
        ends: dict[str, tuple[str | None, bool]] = {"second": (None, True)}
        with trio.fail_after(DEADLINE):
            # The daemon is ready before it has written that.
            while ends["second"][0] is None:
                found = (await run(scene, "leases", "--history"))["rows"]
                ends = {each["lease"]: (each["reason"], each["seen_unix"] is None) for each in found}
        assert ends == {
            "first": ("its owner has ended, or its time is over", True),
            "second": ("plugind did not see the end", False),
        }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")
@pytest.mark.parametrize("way", ["too small a disk", "a directory in its place", "damaged"])
async def test_leases_are_given_and_kept_without_a_history(way: str, tmp_path: Path, forks: Forks) -> None:
    async with open_scene(tmp_path, forks, devices=2) as scene:
        if way == "a directory in its place":
            (scene.state / "history.db").mkdir()
        if way == "damaged":
            (scene.state / "history.db").write_bytes(os.urandom(10_000))
        await scene.start(mount="tiny" if way == "too small a disk" else None)
        assert (await scene.lease(id="kept"))[0] == 201
        assert (await scene.get("GET", "/healthz"))[1]["status"] == "ok"
        status, answer = await scene.get("GET", "/v1/history")
        if way == "damaged":
            assert (status, [row["lease"] for row in answer["rows"]]) == (200, ["kept"])
            assert "the file was set aside: it is damaged" in answer["gaps"][0]["reason"]
            assert (scene.state / "history.db.bad").exists()
        else:
            said = "less than 4 MiB are free" if way == "too small a disk" else "is not a file: move it away"
            assert status == 503
            assert said in answer["error"]
            assert "the history of leases cannot be kept" in (scene.directory / "log").read_text()


READERS, ALICE, BOB = 4711, 61001, 61002


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose two null devices other users may lease."""
    place = tmp_path_factory.mktemp("shared")
    for above in (place, *place.parents):
        if above.stat().st_uid == os.geteuid() and above != Path("/"):
            above.chmod(above.stat().st_mode | 0o011)
    for minor, name in ((3, "a"), (5, "b")):
        os.mknod(place / name, 0o020666, os.makedev(1, minor))
    options = ("--devices", f"lab/null={place}/[ab]", "--state", str(place / "state"))
    with daemon(place, *options, "--lease-uids", f"{ALICE},{BOB}", "--status-group", str(READERS)) as node:
        yield node


def asked_as(node: Daemon, uid: int, groups: str, method: str, target: str, body: str = "") -> tuple[int, Any]:
    request = f"{method} {target} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    script = AS.replace("os.setuid(65534)", f"os.setuid({uid})")
    done = subprocess.run(
        [sys.executable, "-S", "-c", script, groups, node.status, request],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    head, _, answer = done.stdout.partition("\n\n")
    return int(head.split()[1]), json.loads(answer)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")
async def test_users_see_their_own_rows_and_readers_and_root_all(shared: Daemon) -> None:
    await shared.ready()
    with trio.fail_after(DEADLINE):
        while json.loads((await shared.get("/v1/devices"))[1])["resources"][0]["allocatable"] != 2:  # noqa: ASYNC110 - another process
            await trio.sleep(0.02)
    for uid, lease in ((ALICE, "of alice"), (BOB, "of bob")):
        body = json.dumps({"resources": {"lab/null": 1}, "owner": {"kind": "none"}, "id": lease})
        assert asked_as(shared, uid, "0", "POST", "/v1/leases", body)[0] == 201
    seen = {}
    for name, uid, group in (
        ("alice", ALICE, "0"),
        ("bob", BOB, "0"),
        ("reader", 65534, str(READERS)),
        ("root", 0, "0"),
    ):
        status, answer = asked_as(shared, uid, group, "GET", "/v1/history")
        assert status == 200
        seen[name] = sorted(row["lease"] for row in answer["rows"])
        _, answer = asked_as(shared, uid, group, "GET", "/v1/history/usage")
        assert len(answer["usage"]) == len(seen[name])
    both = ["of alice", "of bob"]
    assert seen == {"alice": ["of alice"], "bob": ["of bob"], "reader": both, "root": both}
    assert asked_as(shared, ALICE, "0", "GET", f"/v1/history?uid={BOB}")[0] == 403
    assert asked_as(shared, ALICE, "0", "GET", f"/v1/history/usage?by=label&uid={BOB}")[0] == 403
    assert asked_as(shared, 65534, "0", "GET", "/v1/history")[0] == 403


async def test_each_field_of_the_history_is_described(shared: Daemon) -> None:
    await shared.ready()
    answer = json.loads((await shared.get("/v1/history"))[1])
    assert fields("`GET /v1/history`", 0) == answer.keys()
    assert fields("`GET /v1/history`", 1) == row_to_json(ROW, 0.0).keys()
    said = (await shared.get("/v1/history/usage"))[1]
    assert json.loads(said).keys() == {
        *("time", "time_unix", "uid", "gaps", "by", "since_unix", "until_unix", "usage", "more")
    }
