"""A daemon with the state file of an older and of a newer plugind, and the version that its status socket says."""

from __future__ import annotations

import json
import re
import sqlite3
from functools import partial
from pathlib import Path

import trio

from plugind.actors.http.on_trio import ask
from plugind.actors.io.state_database import APPLICATION_ID, VERSION
from plugind.protocol.version import STATUS_VERSION, __version__
from plugind.tests.actors.io.test_lease_tables import GPU, VERSION_1
from plugind.tests.end_to_end.processes import DEADLINE, Daemon, daemon, run

PAGE = (Path(__file__).parents[2] / "docs" / "upgrades.md").read_text()
LEASE = json.dumps({"resources": {GPU: 1}, "owner": {"kind": "none"}}).encode()


def state_file(directory: Path, script: str) -> Path:
    """Make a state file by the statements of another version."""
    path = directory / "state" / "state.db"
    path.parent.mkdir(mode=0o700)
    with sqlite3.connect(path) as database:
        database.executescript(f"PRAGMA journal_mode = WAL; {script}")
    database.close()
    path.chmod(0o600)
    return path


def version_of(path: Path) -> int:
    with sqlite3.connect(path) as database:
        found: int = database.execute("PRAGMA user_version").fetchone()[0]
    database.close()
    return found


async def test_the_file_of_an_older_plugind_is_used_and_brought_up_to_date(tmp_path: Path) -> None:
    path = state_file(tmp_path, VERSION_1)
    with daemon(tmp_path, "--state", str(path.parent)) as node:
        await node.ready()
        status, body = await node.get("/v1/devices")
        assert status == 200
        assert [(resource["resource"], resource["state"]) for resource in json.loads(body)["resources"]] == [
            (GPU, "awaited")
        ]
        node.process.terminate()
        assert await node.ended() == 0
    assert version_of(path) == VERSION
    assert not path.with_name("state.db.bad").exists()


async def test_the_file_of_a_newer_plugind_is_set_aside_and_its_devices_are_given_to_nobody(tmp_path: Path) -> None:
    newer = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION + 1}; CREATE TABLE later(x);"
    path = state_file(tmp_path, newer)
    before = path.read_bytes()
    why = f"a newer plugind has written it: its version is {VERSION + 1}, and this one has {VERSION}"
    with daemon(tmp_path, "--state", str(path.parent)) as node:
        await node.unready("plugind leases recover")
        status, body = await node.get("/v1/leases", method="POST", body=LEASE)
        assert (status, json.loads(body)["problem"]) == (507, "storage")
        assert why in json.loads(body)["error"]
        assert "plugind leases recover --none-held" in json.loads(body)["error"]
        (line,) = [line for line in node.lines() if line["msg"] == "the state was set aside"]
        assert (line["path"], line["reason"]) == (f"{path}.bad", why)
        # As its users see that: each command says why, and what to do.
        commands = {("leases",): 0, ("allocate", f"{GPU}=1", "--", "true"): 125, ("allocate", f"{GPU}=1", "--ttl=9"): 1}
        for command, code in commands.items():
            asking = partial(run, *command, environment={"PLUGIND_STATUS": str(node.status)})
            done = await trio.to_thread.run_sync(asking)
            assert done.code == code, done
            assert why in done.out + done.err
            assert "plugind leases recover --none-held" in done.out + done.err
        node.process.terminate()
        assert await node.ended() == 0
    assert path.with_name("state.db.bad").read_bytes() == before
    assert version_of(path) == VERSION


async def test_every_answer_says_the_version(shared: Daemon) -> None:
    await shared.ready()
    asked = {"GET /": 200, "HEAD /plugins": 200, "GET /watch": 200, "GET /nothing": 404, "POST /retry": 400}
    for line, status in (asked | {"BREW /plugins": 405}).items():
        method, target = line.split()
        with trio.fail_after(DEADLINE):
            async with ask(shared.status, method, target) as reply:
                assert (reply.status, reply.version) == (status, str(STATUS_VERSION)), line
    said = json.loads((await shared.get("/"))[1])
    assert (said["version"], said["status_version"]) == (__version__, STATUS_VERSION)


def test_the_page_names_the_versions_that_there_are() -> None:
    assert re.findall(r"this plugind writes version (\d+)\.", PAGE) == [str(VERSION)]
    assert re.findall(r"It is (\d+) now", " ".join(PAGE.split())) == [str(STATUS_VERSION)]
