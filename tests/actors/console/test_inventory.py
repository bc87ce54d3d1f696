"""``plugind inventory``: the document, by its schema, of what a daemon answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plugind.actors.console.commands import main
from plugind.protocol.devices.json import LeaseMarks, device_to_json, resource_to_json
from plugind.protocol.leases.leases_json import snapshot_to_json
from plugind.protocol.leases.replies import LeasesSnapshot
from plugind.protocol.leases.values import Pool
from plugind.protocol.plugins.devices import Device, ResourceState, ResourceStatus
from plugind.protocol.status.json import plugin_to_json
from plugind.protocol.version import __version__
from plugind.tests.actors.console.lease_server import answer, lease_server
from plugind.tests.actors.console.snapshots import UNIX
from plugind.tests.actors.console.test_who import GPU, NOW, SERIAL, lease, queued, resource
from plugind.tests.protocol.client.test_status_values import PLUGIN
from plugind.tests.tools.schemas import INVENTORY, check

FOUND = LeasesSnapshot(
    UNIX,
    (
        lease("slurm:c:n:42:0:1234567:gpu", {GPU: ("GPU-0",)}),
        lease("both", {GPU: ("GPU-9",), SERIAL: ("a", "b")}),
        queued("waits"),
    ),
    withheld="leases were lost",
    pools=(Pool("lab", GPU, frozenset({"GPU-1"})),),
)
RESOURCES = (
    resource(GPU, Device("GPU-0", "Healthy", (1,)), Device("GPU-1", "Unhealthy")),
    ResourceStatus("v.com/a", ResourceState.AWAITED, 0.0, "no device plugin since the start", 300.0),
)
DRAINED = {
    "resource": GPU,
    "device": None,
    "reason": "broken fan",
    "since": "2023-11-14T12:00:00.000Z",
    "since_unix": 1.0,
    "until": None,
    "until_unix": None,
    "by": 0,
}


def devices() -> bytes:
    """Return the answer about devices, of which one is drained."""
    marks = LeaseMarks(FOUND)
    shown: list[Any] = [
        {
            **resource_to_json(one, NOW, UNIX),
            "devices": [device_to_json(each, NOW, UNIX) | marks.of(one).get(each.id, {}) for each in one.devices()],
        }
        for one in RESOURCES
    ]
    shown[0]["devices"][1]["drained"] = DRAINED
    return answer(200, {"resources": shown, "problem": "gpus cannot be kept"})


def document(directory: Path, capsys: pytest.CaptureFixture[str], *answers: bytes) -> Any:
    leases = answer(200, snapshot_to_json(FOUND, UNIX))
    with lease_server(directory, devices(), leases, *answers) as server:
        assert main(["inventory", "--node", "n1", "--status", str(server.path)]) == 0
    made = json.loads(capsys.readouterr().out)
    check("inventory", made, INVENTORY)
    return made


def test_the_document_has_each_device_with_its_holder_and_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also devices that are leased and no longer listed, and a resource that nobody offers any more."""
    others = [{**plugin_to_json(PLUGIN, NOW, UNIX), "socket": socket} for socket in ("/b.sock", "/a.sock")]
    made = document(tmp_path, capsys, answer(200, {"version": __version__, "paths": {}}), answer(200, others))
    assert (made["node"], made["version"]) == ("n1", __version__)
    assert made["problems"] == ["leases were lost", "gpus cannot be kept"]
    assert [plugin["socket"] for plugin in made["plugins"]] == ["/a.sock", "/b.sock"]
    names = [(one["resource"], one["state"], [each["id"] for each in one["devices"]]) for one in made["resources"]]
    assert names == [
        (GPU, "listed", ["GPU-0", "GPU-1", "GPU-9"]),
        ("v.com/a", "awaited", []),
        (SERIAL, "gone", ["a", "b"]),
    ]
    held, drained, unlisted = made["resources"][0]["devices"]
    assert held["holder"] == {
        "lease": "slurm:c:n:42:0:1234567:gpu",
        "state": "held",
        "user": "user 1234567",
        "uid": 1234567,
        "purpose": "job 42",
        "since": "2023-11-15T08:25:00.000Z",
    }
    assert (held["healthy"], held["attributes"]) == (True, {"numa": [1], "pool": None})
    assert (drained["holder"], drained["drained"], drained["attributes"]["pool"]) == (None, DRAINED, "lab")
    assert (unlisted["health"], unlisted["healthy"], unlisted["since"]) == ("not listed", False, None)
    assert {each["holder"]["lease"] for each in (unlisted, *made["resources"][2]["devices"])} == {"both"}


def test_a_user_who_may_only_lease_gets_it_without_plugins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = document(tmp_path, capsys, answer(403, {"error": "you may only lease"}))
    assert (made["version"], made["plugins"], len(made["resources"])) == (None, None, 3)


def test_without_a_daemon_nothing_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inventory", "--status", str(tmp_path / "nowhere")]) == 69
    assert capsys.readouterr().out == ""
