"""The members of ``--status-group`` at a real status socket: they read everything, and change nothing."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugind.actors.status.api import REQUESTS
from plugind.actors.status.serving import READERS_ONLY, STRANGERS
from plugind.tests.end_to_end.processes import Daemon, daemon, finish

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")

READERS, LEASING, OTHERS = 4711, 4712, 4713
#: Sends a request as a user in the groups of the arguments.
AS = (
    "import os, socket, sys; os.setgroups([int(g) for g in sys.argv[1].split(',')]);"
    "os.setgid(65534); os.setuid(65534);"
    "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[2]); s.sendall(sys.argv[3].encode());"
    "sys.stdout.buffer.write(b''.join(iter(lambda: s.recv(65536), b'')))"
)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that others can pass; those of pytest are for one user."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)
        yield Path(directory)


def asked(node: Daemon, groups: str, method: str, target: str, body: str = "") -> tuple[int, str]:
    """Ask as a user in these groups; a user who cannot even connect gets 0."""
    request = f"{method} {target} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    command = [sys.executable, "-S", "-c", AS, groups, node.status, request]
    done = finish(command)
    if "PermissionError" in done.stderr:
        return 0, ""
    assert done.returncode == 0, done.stderr
    head, _, answer = done.stdout.partition("\n\n")
    return int(head.split()[1]), answer


async def test_readers_read_everything_and_change_nothing(place: Path) -> None:
    with daemon(place, "--status-group", str(READERS), "--state", str(place / "state")) as node:
        await node.ready()
        readable = [
            line.split()[1]
            for line in REQUESTS
            if line.startswith("GET ") and "watch" not in line and "handlers" not in line
        ]
        targets = [path.replace("TARGET", "none").replace("ID", "none") for path in readable]
        answers = {target: asked(node, str(READERS), "GET", target)[0] for target in targets}
        missing = {"/plugins/none", "/v1/leases/none"}
        assert answers == {target: 404 if target in missing else 200 for target in targets}
        # With a body that would do something, where one is needed for that.
        bodies = {
            "/retry": {"target": "a"},
            "/v1/leases": {"resources": {"a.com/gpu": 1}, "owner": {"kind": "none"}},
            "/v1/leases/recover": {"none_held": True},
        }
        changing = [line.split() for line in REQUESTS if not line.startswith("GET ")]
        assert ["POST", "/reload"] in changing
        for method, target in (*changing, ("PUT", "/plugins")):
            body = json.dumps(bodies.get(target, {}))
            status, said = asked(node, str(READERS), method, target.replace("ID", "none"), body)
            assert (status, json.loads(said)["error"]) == (403, READERS_ONLY), (method, target)
        assert asked(node, str(READERS), "GET", "/v1/handlers/SensorPlugin")[0] == 403
        assert asked(node, str(OTHERS), "GET", "/plugins") == (0, "")


async def test_those_who_read_and_those_who_lease_are_told_apart(place: Path) -> None:
    """With two groups anybody can connect, and is asked who they are."""
    options = ("--status-group", str(READERS), "--lease-group", str(LEASING), "--state", str(place / "state"))
    with daemon(place, *options) as node:
        await node.ready()
        both = f"{READERS},{LEASING}"
        rows = {
            groups: (
                asked(node, groups, "GET", "/plugins")[0],
                asked(node, groups, "GET", "/v1/leases")[0],
                asked(node, groups, "DELETE", "/v1/leases/none")[0],
                asked(node, groups, "POST", "/retry", '{"target": "a"}')[0],
            )
            for groups in (str(READERS), str(LEASING), both, str(OTHERS))
        }
        assert rows == {
            str(READERS): (200, 200, 403, 403),
            str(LEASING): (403, 200, 404, 403),
            both: (200, 200, 404, 403),
            str(OTHERS): (403, 403, 403, 403),
        }
        assert json.loads(asked(node, str(OTHERS), "GET", "/v1/leases")[1])["error"] == STRANGERS
