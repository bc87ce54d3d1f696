"""Debian's Prometheus and Alertmanager as processes of a test, in a scratch directory and on ports of the loopback.

They read the files of ``deploy/prometheus`` as an operator's would, but for times: what takes minutes takes seconds.
What Alertmanager sends is taken by a receiver of the test's own.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final
from urllib.parse import urlencode

import attrs
import trio

from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import DEADLINE
from plugind.tests.end_to_end.promtool import ALERTS, RECORDS

#: The labels of a series, or of an alert.
Labels = Mapping[str, str]

#: Where an alert that has lasted for so long fires, in the place of the minutes of the rules.
_FOR: Final = "2s"
_PROMETHEUS: Final = """
global: {{scrape_interval: {interval}s, scrape_timeout: {interval}s, evaluation_interval: {interval}s}}
alerting:
  alertmanagers:
    - static_configs: [{{targets: ["{alertmanager}"]}}]
"""
_ALERTMANAGER: Final = """
route: {{receiver: test, group_by: [alertname, node], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}}
receivers:
  - name: test
    webhook_configs: [{{url: "http://{receiver}/", send_resolved: true}}]
"""


@attrs.define
class Received:
    """What Alertmanager has sent, in order: the status and the labels of each alert."""

    alerts: list[tuple[str, Labels]] = attrs.field(factory=list)

    def with_status(self, status: str, alert: str) -> list[Labels]:
        """Return the labels of each alert of that name that was sent as ``firing`` or as ``resolved``."""
        return [labels for said, labels in self.alerts if (said, labels["alertname"]) == (status, alert)]


@attrs.frozen
class Monitoring:
    """Both servers, which run."""

    prometheus: str
    alertmanager: str
    received: Received

    async def query(self, expression: str) -> list[tuple[Labels, float]]:
        """Return what an expression gives now: the labels and the value of each series."""
        answer = await _fetched(self.prometheus, f"/api/v1/query?{urlencode({'query': expression})}")
        return [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]

    async def firing(self) -> list[Labels]:
        """Return the labels of the alerts that fire now, as Prometheus says."""
        answer = await _fetched(self.prometheus, "/api/v1/alerts")
        return [alert["labels"] for alert in answer["data"]["alerts"] if alert["state"] == "firing"]

    async def at_alertmanager(self) -> list[Labels]:
        """Return the labels of the alerts that Alertmanager has now."""
        return [alert["labels"] for alert in await _fetched(self.alertmanager, "/api/v2/alerts")]

    async def targets(self) -> list[tuple[str, str]]:
        """Return the node and the health of each target."""
        answer = await _fetched(self.prometheus, "/api/v1/targets?state=active")
        return [(target["labels"]["node"], target["health"]) for target in answer["data"]["activeTargets"]]

    async def own_metric(self, name: str) -> float:
        """Return the value of one of Prometheus' own metrics, which has no labels."""
        _, text = await trio.to_thread.run_sync(_get, self.prometheus, "/metrics")
        (value,) = re.findall(rf"^{name} (\S+)$", text.decode(), re.MULTILINE)
        return float(value)


async def _fetched(server: str, target: str) -> Any:
    status, content = await trio.to_thread.run_sync(_get, server, target)
    assert status == 200, f"{server}{target}: {status} {content!r}"
    return json.loads(content)


async def _status(server: str, target: str) -> int:
    return (await trio.to_thread.run_sync(_get, server, target))[0]


def _get(server: str, target: str) -> tuple[int, bytes]:
    connection = HTTPConnection(server, timeout=DEADLINE)
    try:
        connection.request("GET", target)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


async def until(condition: Callable[[], Any], seconds: float = DEADLINE) -> None:
    """Wait until the coroutine function ``condition`` returns something true; it asks another process."""
    with trio.fail_after(seconds):
        while not await condition():  # noqa: ASYNC110 - it is in another process
            await trio.sleep(0.2)


def nodes_file(nodes: Iterable[tuple[str, str]]) -> str:
    """Return the file in which Prometheus finds its targets: the name and the address of each node."""
    return json.dumps([{"targets": [address], "labels": {"node": node}} for node, address in nodes])


def quick(rules: str) -> str:
    """Return rules whose alerts fire after :data:`_FOR`."""
    return re.sub(r"^(\s+for): \w+$", rf"\1: {_FOR}", rules, flags=re.MULTILINE)


@asynccontextmanager
async def monitoring(
    directory: Path, nodes: Sequence[tuple[str, str]], *, interval: int = 1
) -> AsyncIterator[Monitoring]:
    """Run both servers with files in ``directory``; each node has a name and the address of its metrics."""
    received = Received()
    async with AsyncExitStack() as stack:
        receiver = stack.enter_context(_receiver(received))
        (directory / "alertmanager.yml").write_text(_ALERTMANAGER.format(receiver=receiver))
        alertmanager = await stack.enter_async_context(
            _server(
                directory,
                "prometheus-alertmanager",
                f"--config.file={directory / 'alertmanager.yml'}",
                f"--storage.path={directory / 'alerts'}",
                # Without this it looks for others of its kind.
                "--cluster.listen-address=",
            )
        )
        _write_prometheus(directory, nodes, alertmanager, interval)
        prometheus = await stack.enter_async_context(
            _server(
                directory,
                "prometheus",
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'series'}",
            )
        )
        yield Monitoring(prometheus, alertmanager, received)


def _write_prometheus(directory: Path, nodes: Sequence[tuple[str, str]], alertmanager: str, interval: int) -> None:
    scrape = (ALERTS.parent / "scrape.yml").read_text()
    scrape, count = re.subn(r"(?m)^(    scrape_interval): \w+$", rf"\1: {interval}s", scrape)
    assert count == 1, "scrape.yml names its interval once"
    head = _PROMETHEUS.format(interval=interval, alertmanager=alertmanager)
    (directory / "prometheus.yml").write_text(head + scrape)
    (directory / "plugind-nodes.json").write_text(nodes_file(nodes))
    for rules in (ALERTS, RECORDS):
        (directory / rules.name).write_text(quick(rules.read_text()))


@asynccontextmanager
async def _server(directory: Path, name: str, *options: str) -> AsyncIterator[str]:
    """Run a server on a free port; the address is in its log."""
    log = directory / f"{name}.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            [program(name), "--web.listen-address=127.0.0.1:0", *options], stdout=stderr, stderr=stderr, cwd=directory
        )
        try:
            with trio.fail_after(DEADLINE):
                while (found := re.search(r'msg="Listening on" address=(127\.0\.0\.1:\d+)', log.read_text())) is None:
                    assert process.poll() is None, log.read_text()
                    await trio.sleep(0.05)
                while await _status(found[1], "/-/ready") != 200:  # noqa: ASYNC110 - it is in another process
                    await trio.sleep(0.05)
            yield found[1]
        finally:
            process.kill()
            process.wait()


class _receiver:  # noqa: N801 - it is used as a function
    """Takes what Alertmanager sends, at an address of its own."""

    def __init__(self, received: Received) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                received.alerts.extend((alert["status"], alert["labels"]) for alert in content["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever)

    def __enter__(self) -> str:
        self._thread.start()
        return f"127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
