"""docs/status-socket.md agrees with a real daemon: its paths, its examples, the fields of the JSON, and the metrics."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import attrs
import pytest
import trio

from plugind.actors.status.allocations import STATUSES
from plugind.protocol.devices.json import device_to_json, instance_to_json, resource_to_json
from plugind.protocol.leases.asked_json import LeaseBody, ProcessWish, asked_to_json
from plugind.protocol.leases.drains import NODE, Drain
from plugind.protocol.leases.leases_json import drain_to_json, lease_to_json
from plugind.protocol.leases.values import Lease, LeaseState, NoOwner, Request
from plugind.protocol.plugins.devices import DeviceOptions, DeviceStatus, InstanceStatus, ResourceState, ResourceStatus
from plugind.protocol.trust.directories import DirectoryReport
from plugind.tests.end_to_end.processes import PLUGIND, Daemon, daemon, daemon_process
from plugind.tests.end_to_end.sockets import stale

PAGE = (Path(__file__).parents[2] / "docs" / "status-socket.md").read_text()
NAME = "red.example.com"
FAKE = ["--type", "CSIPlugin", "--name", NAME, "--version", "1.0.0"]


def section(heading: str) -> str:
    """Return the text below a heading, up to the next one."""
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def tables(heading: str) -> list[list[list[str]]]:
    """Return the rows of each table of a section, without its head, as cells."""
    found = re.findall(r"(?:^\|.*\n)+", section(heading), re.MULTILINE)
    return [[re.split(r" *\| *", line.strip("| ")) for line in table.splitlines()[2:]] for table in found]


def fields(heading: str, number: int = 0) -> set[str]:
    """Return the fields that one table of a section describes."""
    return {name for row in tables(heading)[number] for name in re.findall(r"`(\w+)`", row[0])}


@attrs.frozen
class Example:
    """A request that the page shows."""

    method: str
    target: str
    body: bytes

    @classmethod
    def read(cls, line: str, socket: str) -> Example:
        """Read a line of the page as a shell and curl do."""
        words = shlex.split(line.replace("$SOCKET", socket))
        assert words[0] == "curl", line
        assert words[1] in ("-s", "-sN"), line
        assert words[2:4] == ["--unix-socket", "$PLUGIND_STATUS"], line
        url = urlsplit(words[-1])
        target = url.path + (f"?{url.query}" if url.query else "")
        match words[4:-1]:
            case [] | ["-H", "Plugind-Status-Version: 2"]:
                return cls("GET", target, b"")
            case ["-d", body] | ["-H", "Accept: text/plain", "-d", body]:
                return cls("POST", target, body.encode())
            case ["-X", method]:
                return cls(method, target, b"")
            case _:
                raise AssertionError(f"what does this ask? {line}")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with one registered plugin, and a state, without which there is no history."""
    with daemon(place := tmp_path_factory.mktemp("d"), "--state", str(place / "state")) as node:
        trio.run(node.ready)
        command = [*PLUGIND, "fake", "--socket", str(node.root / "a.sock"), *FAKE]
        with (node.root.parent / "plugin.log").open("wb") as log, daemon_process(command, log):
            trio.run(until_registered, node)
            yield node


async def until_registered(node: Daemon) -> None:
    async with node.watch() as watch:
        await watch.state(node.root / "a.sock", "registered")


async def test_the_page_has_a_section_for_each_request_that_the_daemon_lists(node: Daemon) -> None:
    status, body = await node.get("/")
    assert status == 200
    assert list(json.loads(body)["paths"]) == re.findall(r"^## `(\w+ /.*)`$", PAGE, re.MULTILINE)


async def test_each_example_is_answered(node: Daemon) -> None:
    lines = re.findall(r"^    (curl .*)$", PAGE, re.MULTILINE)
    shown = set()
    for line in lines:
        example = Example.read(line, str(node.root / "a.sock"))
        path = re.sub("/plugins/.*", "/plugins/TARGET", urlsplit(example.target).path)
        shown.add(f"{example.method} {path.replace('/train', '/ID').replace('/SensorPlugin', '/TYPE')}")
        if "/watch" not in example.target and "/handlers" not in example.target:
            status, body = await node.get(example.target, method=example.method, body=example.body)
            if status != 200:
                # There are no devices and no leases here. A request that is wrong is told so by other words.
                no_process = b"plugind sees no process" in body
                assert no_process or json.loads(body)["problem"] in ("unavailable", "unknown", "storage"), (line, body)
                assert "/v1/leases" in line or "/v1/drains" in line
            assert NAME.encode() in body or not example.target.startswith("/plugins")
    assert shown == set(json.loads((await node.get("/"))[1])["paths"])


async def test_each_field_of_a_plugin_is_described(node: Daemon) -> None:
    (plugin,) = json.loads((await node.get(f"/plugins/{NAME}"))[1])
    assert fields("`GET /plugins`") == plugin.keys() - {"facts", "history"}
    assert plugin["facts"]["node-id"] == "node-1"
    assert fields("`GET /plugins/TARGET`") == plugin["history"][0].keys()
    async with node.watch() as watch:
        line = await watch.state(node.root / "a.sock", "registered")
    assert line.keys() - plugin.keys() == {"time"}
    described = {
        state for row in tables("`GET /plugins`")[0] if row[0] == "`state`" for state in row[2].split("`")[1::2]
    }
    assert {entry["state"] for entry in plugin["history"]} <= described


async def test_each_field_of_health_readiness_and_retries_is_described(node: Daemon) -> None:
    health = json.loads((await node.get("/healthz"))[1])
    assert health.keys() == {"status", "roots", "actors", "queued"}
    assert fields("`GET /healthz`", 0) == {field for root in health["roots"] for field in root}
    assert fields("`GET /healthz`", 1) == {field.name for field in attrs.fields(DirectoryReport)}
    assert fields("`GET /healthz`", 2) == {field for actor in health["actors"] for field in actor}
    assert fields("`GET /readyz`") == json.loads((await node.get("/readyz"))[1]).keys()
    retried = json.loads((await node.get("/retry", method="POST", body=b'{"target": "red.example.com"}'))[1])
    assert fields("`POST /retry`", 0) == retried.keys()
    assert fields("`POST /retry`", 1) == retried["answers"][0].keys()
    assert fields("`POST /reload`") == json.loads((await node.get("/reload", method="POST"))[1]).keys()


def test_each_field_of_devices_is_described() -> None:
    """The forms are the ones that the daemon uses; it has no device plugin here."""
    instance = InstanceStatus("/d/a", 1, "/d/a", "socket /d/a", DeviceOptions(), active=True)
    resource = resource_to_json(ResourceStatus("v.com/a", ResourceState.LISTED, 0.0, instances=(instance,)), 0.0, 0.0)
    assert fields("`GET /v1/devices`", 1) == resource.keys() | {"devices"}
    drain = Drain(NODE, 0, 0.0)
    device = device_to_json(DeviceStatus("a", "Healthy", 0.0), 0.0, 0.0)
    assert fields("`GET /v1/devices`", 2) == device.keys() | {"drained"}
    assert fields("`GET /v1/devices`", 3) == drain_to_json(drain).keys()
    assert fields("`GET /v1/devices`", 4) == instance_to_json(instance, 0.0, 0.0).keys()


async def test_the_answer_about_devices_is_described(node: Daemon) -> None:
    answer = json.loads((await node.get("/v1/devices"))[1])
    assert fields("`GET /v1/devices`", 0) == answer.keys()
    assert (answer["problem"], answer["resources"]) == (None, [])


async def test_the_answers_about_leases_are_described(node: Daemon) -> None:
    lease = Lease("a", 0, Request(()), NoOwner(), LeaseState.HELD, 0.0)
    answer = json.loads((await node.get("/v1/leases"))[1])
    assert fields("`GET /v1/leases`", 0) == answer.keys()
    assert (answer["withheld"], answer["problem"], answer["leases"]) == (None, None, [])
    assert fields("`GET /v1/leases`", 1) == lease_to_json(lease).keys()
    asked = asked_to_json(LeaseBody(lease.request, ProcessWish(1, 1)))
    assert fields("`POST /v1/leases`", 0) == {*asked, "for_uid"}
    described = {row[1].strip("`"): int(row[0]) for row in tables("`POST /v1/leases`")[1]}
    assert described == {problem.value: status for problem, status in STATUSES.items()}


async def test_each_field_of_the_configuration_is_described(node: Daemon) -> None:
    answer = json.loads((await node.get("/config"))[1])
    assert fields("`GET /config`", 0) == answer.keys()
    assert fields("`GET /config`", 1) == answer["settings"][0].keys()


async def test_each_field_of_the_rules_is_described(node: Daemon) -> None:
    rules = json.loads((await node.get("/rules"))[1])
    assert fields("`GET /rules`", 0) == rules.keys()
    (root,) = rules["roots"]
    assert fields("`GET /rules`", 1) == root.keys()
    assert root == {"root": str(node.root), "deprecated": False, "insecure": False}
    assert (rules["uid"], rules["trusted_uids"], rules["endpoint_directories"]) == (os.geteuid(), [], [str(node.root)])


@attrs.frozen
class Metric:
    """What the page, or a daemon, says of one metric."""

    type: str
    labels: frozenset[str]


def described_metrics() -> dict[str, tuple[Metric, str]]:
    """Return the metrics of the page with their meaning."""
    (table,) = tables("`GET /metrics`")
    return {
        name.strip("`"): (Metric(kind, frozenset(re.findall(r"`(\w+)`", labels))), meaning)
        for name, kind, labels, meaning in table
    }


def exposed(text: str) -> tuple[Mapping[str, Metric], Mapping[str, str]]:
    """Return the metrics in a daemon's text, and the help of each."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    help_texts = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
    metrics = {}
    for name, kind in kinds.items():
        samples = re.findall(rf"^{name}(?:_bucket)?{{(.*)}} \S+$", text, re.MULTILINE)
        labels = {label for sample in samples for label in re.findall(r'(\w+)="', sample)}
        metrics[name] = Metric(kind, frozenset(labels - {"le"}))
    return metrics, help_texts


async def test_the_list_of_metrics_is_what_the_daemon_exposes(node: Daemon) -> None:
    # A plugin that is not registered has a cause.
    stale(path := node.root / "stale.sock")
    async with node.watch() as watch:
        await watch.state(path, "stale")
    metrics, help_texts = exposed((await node.get("/metrics"))[1].decode())
    path.unlink()
    described = described_metrics()
    assert {name: metric.type for name, metric in metrics.items()} == {
        name: metric.type for name, (metric, _) in described.items()
    }
    assert [name for name, (_, meaning) in described.items() if not meaning.startswith(help_texts[name])] == []
    # Some metrics have no samples here, and those of paths are asked for by an option.
    by_path = {"plugin_manager_total_plugins": {"socket_path"}, "plugind_directories": {"directory"}}
    labelled = {name: metric.labels | by_path.get(name, set()) for name, metric in metrics.items() if metric.labels}
    assert "plugind_plugin_causes" in labelled
    assert labelled == {name: described[name][0].labels for name in labelled}
