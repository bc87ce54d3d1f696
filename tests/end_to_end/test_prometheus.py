"""What operators give to Prometheus: the exposition, alerts and records by promtool, and the queries of the dashboard.

The series of the alerts are those of a daemon whose plugins fail, are killed and come back.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from plugind.tests.end_to_end.leasing import allocate, listed
from plugind.tests.end_to_end.processes import PLUGIND, Daemon, PluginProcess, daemon, plugin_process
from plugind.tests.end_to_end.promtool import (
    ALERTS,
    DEPLOY,
    RECORDS,
    assert_rules,
    expected,
    exposed,
    metrics_in,
    promtool,
    rules,
    stretched,
)
from plugind.tests.end_to_end.test_metrics_port import get, served_at

pytestmark = pytest.mark.extended

DASHBOARD = DEPLOY / "grafana" / "plugind.json"
GPU = "example.com/gpu"
NODE = {"job": "plugind", "instance": "192.0.2.7:9464", "node": "node-7"}
TARGET = 'job="plugind",instance="192.0.2.7:9464",node="node-7"'


@asynccontextmanager
async def played(node: Daemon, file: str, kind: str, name: str) -> AsyncIterator[PluginProcess]:
    """Play a plugin that the daemon has dealt with when the block begins."""
    command = [*PLUGIND, "fake", "--socket", str(node.root / file), "--type", kind, "--name", name]
    async with plugin_process(command) as plugin:
        await reaches(node, file, "parked" if kind == "Odd" else "registered")
        yield plugin


async def reaches(node: Daemon, file: str, state: str) -> None:
    async with node.watch() as watch:
        await watch.until(
            lambda seen: (plugin := seen.now.get(str(node.root / file))) is not None and plugin["state"] == state
        )


async def scraped(node: Daemon) -> str:
    return (await node.get("/metrics"))[1].decode()


async def run_of_a_daemon(directory: Path) -> dict[str, str]:
    """Return the metrics while all is well, while plugins fail, and when they are back."""
    texts: dict[str, str] = {}
    options = ["--expect", "red", "--expect", "blue", "--health", "off", "--metrics", "0"]
    with daemon(directory, *options, "--state", str(directory / "state")) as node:
        await node.logged("started")
        async with played(node, "gpu.sock", "DevicePlugin", GPU), played(node, "red.sock", "CSIPlugin", "red"):
            async with played(node, "blue.sock", "CSIPlugin", "blue") as blue:
                await listed(node, GPU)
                assert (await allocate(node, GPU))[0] == 201
                texts["well"] = await scraped(node)
                await blue.end(signal.SIGKILL)
            await node.metric('plugind_plugins_not_serving{plugin_type="CSIPlugin"} 1.0')
            async with played(node, "odd.sock", "Odd", "odd") as odd:
                texts["failing"] = await scraped(node)
                await odd.end()
            async with played(node, "blue.sock", "CSIPlugin", "blue"):
                await node.metric('plugind_expected_plugin{name="blue"} 1.0')
                await node.metric('plugind_plugins{plugin_type="CSIPlugin",state="registered"} 2.0')
                await node.metric('plugind_plugins_not_serving{plugin_type="CSIPlugin"} 0.0')
                await node.metric('plugin_manager_total_plugins{state="desired_state_of_world"} 3.0')
                texts["well again"] = await scraped(node)
                texts["over TCP"] = (await trio.to_thread.run_sync(get, *await served_at(node)))[1]
    return texts


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    return trio.run(run_of_a_daemon, tmp_path_factory.mktemp("d"))


def test_promtool_finds_nothing_wrong_with_what_a_daemon_exposes(texts: Mapping[str, str]) -> None:
    for text in texts.values():
        assert promtool("check", "metrics", stdin=text) == (0, "")


def test_the_rules_and_the_piece_of_a_configuration_are_valid() -> None:
    code, said = promtool("check", "rules", "--lint-fatal", str(ALERTS), str(RECORDS))
    assert (code, said.count("SUCCESS")) == (0, 2), said
    code, said = promtool("check", "config", str(DEPLOY / "prometheus" / "scrape.yml"))
    assert code == 0, said
    assert "SUCCESS: 2 rule files found" in said


def kinds(text: str) -> set[str]:
    """Return the names of the series in an exposition, which are more than those of the metrics."""
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}


def names_of(text: str) -> set[str]:
    """Return the names that a query may use: those of series, and of metrics that have no series in this run."""
    declared = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    parts = {"histogram": ("_bucket", "_count", "_sum")}
    return kinds(text) | {name + part for name, kind in declared for part in parts.get(kind, ("",))}


def queries() -> list[tuple[str, str]]:
    """Return the title of the panel, and the expression, of each query of the dashboard."""
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", [])]


def test_rules_and_dashboard_use_only_metrics_that_a_daemon_has(texts: Mapping[str, str]) -> None:
    existing = names_of(texts["well"]) | {"up"}
    used = {rule.name: metrics_in(rule.expression) for rule in (*rules(ALERTS), *rules(RECORDS))}
    used |= {f"{title}: {expression}": metrics_in(expression) for title, expression in queries()}
    assert all(used.values()), "each expression has a metric"
    assert {name: found - existing for name, found in used.items() if found - existing} == {}


def test_promtool_reads_each_query_of_the_dashboard(tmp_path: Path) -> None:
    """It reads expressions in rules alone, so each query is made one; Grafana's variables stand in strings."""
    listed_rules = [
        {"record": f"query:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, (_, expression) in enumerate(queries())
    ]
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": listed_rules}]}))
    code, said = promtool("check", "rules", str(path))
    assert (code, f"{len(listed_rules)} rules found" in said) == (0, True), said
    assert len(listed_rules) > 25


#: The alerts that fire, with the labels that say about what. When the daemon finds out that the
#: connection to a killed plugin is lost is a matter of its backoff.
FIRING = (
    'max by (alertname, name, plugin_type, cause) (ALERTS{alertstate="firing",alertname!="PlugindPluginsUnhealthy"})'
)
MISSING = ('{alertname="PlugindExpectedPluginMissing",name="blue"}', 1.0)
NOT_SERVING = ('{alertname="PlugindPluginsDoNotServe",plugin_type="CSIPlugin"}', 1.0)


def test_alerts_fire_for_the_plugins_that_fail_and_end_when_they_are_back(
    texts: Mapping[str, str], tmp_path: Path
) -> None:
    failing = '{alertname="PlugindPluginsFail",cause="claim-refused",plugin_type="other"}', 1.0
    scrapes = [
        (minutes, exposed(texts[name], NODE) | {f"up{{{TARGET}}}": "1"})
        for minutes, name in ((10, "well"), (20, "failing"), (20, "well again"))
    ]
    said = {
        "summary": "node-7 lacks the plugin blue",
        "description": "It is not registered, or does not serve, or is not healthy where that is required."
        " There: plugind describe blue",
        "runbook": "docs/runbooks.md#a-wedged-plugin",
    }
    labelled = {**NODE, "name": "blue", "severity": "critical"}
    tests = {
        "input_series": stretched(scrapes),
        "promql_expr_test": [
            expected(FIRING, 9, []),
            expected(FIRING, 14, []),
            expected(FIRING, 15, [MISSING, NOT_SERVING]),
            expected(FIRING, 25, [MISSING, NOT_SERVING, failing]),
            expected(FIRING, 29, [MISSING, NOT_SERVING, failing]),
            expected(FIRING, 30, []),
            expected(FIRING, 49, []),
        ],
        "alert_rule_test": [
            {
                "eval_time": "20m",
                "alertname": "PlugindExpectedPluginMissing",
                "exp_alerts": [{"exp_labels": labelled, "exp_annotations": said}],
            }
        ],
    }
    assert_rules(tmp_path, [tests])


def test_records_say_which_nodes_lack_a_plugin_and_how_many_devices_are_free(
    texts: Mapping[str, str], tmp_path: Path
) -> None:
    """Two nodes: on one of them a plugin is missing."""
    other = {"job": "plugind", "instance": "192.0.2.8:9464", "node": "node-8"}
    scrapes = [(5, exposed(texts["failing"], NODE) | exposed(texts["well"], other))]
    lacking = f'node_name:plugind_expected_plugin:missing{{{TARGET},name="blue"}}'
    queries_and_answers: list[tuple[str, list[tuple[str, float]]]] = [
        ("node_name:plugind_expected_plugin:missing == 1", [(lacking, 1)]),
        ("sum by (name) (name:plugind_expected_plugin:missing)", [('{name="blue"}', 1), ('{name="red"}', 0)]),
        ("sum by (name) (name:plugind_expected_plugin:nodes)", [('{name="blue"}', 2), ('{name="red"}', 2)]),
        ("sum by (node) (node:plugind_plugins:registered)", [('{node="node-7"}', 3), ('{node="node-8"}', 3)]),
        ("sum by (node) (node:plugind_plugins:not_registered)", [('{node="node-7"}', 1), ('{node="node-8"}', 0)]),
    ]
    for what, each in (("healthy", 4), ("unhealthy", 0), ("leased", 1)):
        by_node = f"sum by (node, resource_name) (node_resource:plugind_devices:{what})"
        in_all = f"resource:plugind_devices:{what}"
        of_nodes: list[tuple[str, float]] = [(f'{{node="node-{n}",resource_name="{GPU}"}}', each) for n in (7, 8)]
        queries_and_answers.append((by_node, of_nodes))
        queries_and_answers.append((in_all, [(f'{in_all}{{job="plugind",resource_name="{GPU}"}}', 2 * each)]))
    free: list[tuple[str, float]] = [('{node="node-7"}', 3), ('{node="node-8"}', 3)]
    queries_and_answers.append(("sum by (node) (node_resource:plugind_devices:free)", free))
    tests = [expected(query, 2, answer) for query, answer in queries_and_answers]
    assert_rules(tmp_path, [{"input_series": stretched(scrapes), "promql_expr_test": tests}])


def test_no_alert_fires_for_a_daemon_on_which_all_is_well(texts: Mapping[str, str], tmp_path: Path) -> None:
    scrapes = [(2000, exposed(texts["well"], NODE) | {f"up{{{TARGET}}}": "1"})]
    pending = expected("ALERTS", 1999, [])
    assert_rules(tmp_path, [{"input_series": stretched(scrapes), "promql_expr_test": [pending]}])
