"""Each alert of ``deploy/prometheus`` fires for what it is about, and each metric that says so has an alert."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from plugind.protocol.devices.resources import GRACE
from plugind.tests.end_to_end.promtool import ALERTS, assert_rules, expected, metrics_in, rules

pytestmark = pytest.mark.extended

PAGE = Path(__file__).parents[2] / "docs" / "status-socket.md"
TARGET = 'job="plugind",instance="192.0.2.7:9464",node="node-7"'

#: The devices of a plugin that has ended, and then their resource is gone.
LOST = f"8+0x{GRACE / 60:g}"
#: What each alert is about, with the values of each minute; what fires by it, and from which minute on.
EACH: Mapping[str, tuple[Mapping[str, str], int]] = {
    "PlugindDown": ({f"up{{{TARGET}}}": "0+0x2000"}, 5),
    "PlugindRestarts": ({f"process_start_time_seconds{{{TARGET}}}": "1 2 3 4+0x30"}, 3),
    "PlugindExpectedPluginMissing": ({f'plugind_expected_plugin{{{TARGET},name="a"}}': "0+0x2000"}, 5),
    "PlugindExpectedDevicesMissing": ({f"plugind_expected_devices_missing{{{TARGET}}}": "8+0x2000"}, 5),
    "PlugindPluginsFail": ({f'plugind_plugin_causes{{{TARGET},cause="dial-failed"}}': "2+0x2000"}, 15),
    # It waits, and is tried and dies in between.
    "PlugindPluginsCrash": ({f'plugind_plugin_causes{{{TARGET},cause="crash-loop"}}': "2 2 _ 2 _x2 " * 8}, 15),
    "PlugindEntriesRefused": ({f'plugind_plugin_causes{{{TARGET},cause="entry-refused"}}': "2+0x2000"}, 60),
    "PlugindPluginsDoNotServe": ({f"plugind_plugins_not_serving{{{TARGET}}}": "1+0x2000"}, 5),
    # Unknown is a plugin whose type is not checked: nothing fires for it.
    "PlugindPluginsUnhealthy": (
        {f'plugind_plugin_health{{{TARGET},health="{health}"}}': "1+0x2000" for health in ("unhealthy", "unknown")},
        5,
    ),
    "PlugindDevicesUnhealthy": ({f'plugind_devices{{{TARGET},health="unhealthy"}}': LOST}, 3),
    # Missing and unhealthy devices of what is drained are expected; the devices of the node are drained as well.
    "PlugindDrained": (
        {
            f'plugind_drains{{{TARGET},resource_name="v.com/a"}}': "1+0x2000",
            f'plugind_expected_devices_missing{{{TARGET},resource_name="v.com/a"}}': "1+0x2000",
            f'plugind_devices{{{TARGET},resource_name="v.com/a",health="unhealthy"}}': "1+0x2000",
        },
        1440,
    ),
    "PlugindRootUnusable": ({f'plugind_roots{{{TARGET},watching="taken"}}': "1+0x2000"}, 5),
    "PlugindRootDegraded": ({f'plugind_directories{{{TARGET},condition="full"}}': "1+0x2000"}, 15),
    "PlugindScansFail": ({f"plugind_scan_failures_total{{{TARGET}}}": "0 1 4+0x10"}, 2),
    "PlugindLeasesWithheld": ({f"plugind_leases_withheld{{{TARGET}}}": "1+0x2000"}, 1),
    "PlugindLeasesFail": ({f'plugind_lease_failures_total{{{TARGET},reason="storage"}}': "_x3 1+0x10"}, 3),
    "PlugindLeaseHistoryLost": ({f'plugind_lease_history_losses_total{{{TARGET},what="files"}}': "_x3 1+0x10"}, 3),
    "PlugindStateFails": ({f"plugind_state_failing{{{TARGET}}}": "1+0x2000"}, 5),
    "PlugindStateFailures": ({f"plugind_state_failures_total{{{TARGET}}}": "0 0 1+0x10"}, 2),
    "PlugindConfigRefused": ({f"plugind_config_refused{{{TARGET}}}": "1+0x2000"}, 5),
    "PlugindActorHangs": ({f'plugind_actors_hanging{{{TARGET},actor="watcher"}}': "1+0x2000"}, 1),
    "PlugindActorsCrash": ({f'plugind_actor_restarts_total{{{TARGET},actor="watcher"}}': "_x3 1+0x10"}, 3),
    "PlugindLoopBlocked": ({f"plugind_loop_blocked_seconds_total{{{TARGET}}}": "0 3 9+0x10"}, 2),
    "PlugindDeviceListsLost": (
        {f'plugind_device_streams_ended_total{{{TARGET},resource_name="v.com/a"}}': "0 1 4+0x10"},
        2,
    ),
    "PlugindFollowsRestart": ({f"plugind_link_restarts_total{{{TARGET}}}": "0 9 40+0x10"}, 2),
    "PlugindKubeletSocketRemoved": ({f"plugind_kubelet_socket_remade_total{{{TARGET}}}": "0 0 1+0x10"}, 2),
    "PlugindEventsLost": ({f"plugind_watch_overflows_total{{{TARGET}}}": "0 0 1+0x10"}, 2),
    "PlugindPathsNotShown": ({f"plugind_path_metrics_suppressed{{{TARGET}}}": "1+0x2000"}, 60),
    "PlugindDescriptorsRunOut": (
        {f"process_open_fds{{{TARGET}}}": "95+0x2000", f"process_max_fds{{{TARGET}}}": "100+0x2000"},
        5,
    ),
    "PlugindStatusSocketLost": ({f"plugind_status_socket_failures_total{{{TARGET}}}": "0 0 1+0x10"}, 2),
    "PlugindVersionsDiffer": (
        {f'plugind_build_info{{{TARGET},version="{version}"}}': "1+0x2000" for version in ("1", "2")},
        1440,
    ),
}


def test_each_alert_fires_for_what_it_is_about_after_its_time_and_nothing_else_does(tmp_path: Path) -> None:
    assert list(EACH) == [rule.name for rule in rules(ALERTS)]
    names = 'count by (alertname) (ALERTS{alertstate="firing"})'
    assert_rules(
        tmp_path,
        [
            {
                "input_series": [{"series": series, "values": values} for series, values in given.items()],
                "promql_expr_test": [
                    expected(names, minute - 1, []),
                    expected(names, minute, [(f'{{alertname="{alert}"}}', 1)]),
                ],
            }
            for alert, (given, minute) in EACH.items()
        ],
    )


def test_a_drain_of_the_node_silences_what_is_missing_there_and_one_of_a_resource_nothing_else(tmp_path: Path) -> None:
    missing = 'plugind_expected_devices_missing{%s,resource_name="%s"}'
    other = TARGET.replace("192.0.2.7", "192.0.2.8")
    names = 'count by (alertname, instance) (ALERTS{alertstate="firing"})'
    series = {
        f'plugind_drains{{{other},resource_name="v.com/a"}}': 1,
        f"plugind_drains{{{TARGET}}}": 1,
        missing % (TARGET, "v.com/a"): 1,
        missing % (other, "v.com/a"): 1,
        missing % (other, "v.com/b"): 1,
    }
    fires = '{alertname="PlugindExpectedDevicesMissing",instance="192.0.2.8:9464"}'
    given = [{"series": name, "values": f"{value}+0x20"} for name, value in series.items()]
    assert_rules(tmp_path, [{"input_series": given, "promql_expr_test": [expected(names, 10, [(fires, 1)])]}])


# --- with a real Prometheus -------------------------------------------------------------------------------------------


# --- what has an alert ------------------------------------------------------------------------------------------------

#: The metrics that no alert goes by, and why none is needed.
WITHOUT: Mapping[str, str] = {
    "plugin_manager_total_plugins": "it counts, and plugind_plugin_causes has those that fail",
    "plugind_plugins": "it counts, and plugind_plugin_causes has those that fail",
    "plugind_dra_instances": "an instance without a connection is disconnected in plugind_plugin_health",
    "plugind_leases": "it counts",
    "plugind_leased_devices": "it counts",
    "plugind_drained_devices": "it counts, and plugind_drains has the drains",
    "plugind_free_devices": "it counts, and that all are leased is nothing wrong",
    "plugind_health_checks_total": "a plugin whose checks fail is unhealthy in plugind_plugin_health",
    "plugind_operations_total": "plugind_plugin_causes has the plugins that a step still fails for",
    "plugind_handler_answers_dropped_total": "it counts, and plugind_plugin_causes has the plugins that lack an answer",
    "plugind_rescans_total": "it counts, and a watcher that scans no more hangs in plugind_actors_hanging",
    "device_plugin_registration_total": "it counts",
    "plugind_config_reloads_total": "plugind_config_refused is 1 from a reload that is refused to one that is used",
    "plugind_loop_blocks_total": "plugind_loop_blocked_seconds_total says how much that is",
    "plugind_mailbox_depth": "plugind_actors_hanging is 1 once messages wait for too long",
    "plugind_mailbox_oldest_wait_seconds": "plugind_actors_hanging is 1 once messages wait for too long",
    "process_cpu_seconds_total": "what is too much depends on the node",
    "process_resident_memory_bytes": "what is too much depends on the node, and PlugindRestarts tells of what it ends",
    "process_virtual_memory_bytes": "it costs nothing",
    "plugind_health_check_duration_seconds": "checks have deadlines, and what is late is unhealthy",
    "plugind_operation_duration_seconds": "steps have deadlines, and what is late has failed",
    "plugind_registration_seconds": "PlugindPluginsFail tells of what is never registered",
    "csi_operations_seconds": "calls have deadlines, and what is late is unhealthy",
    "dra_grpc_operations_duration_seconds": "calls have deadlines, and what is late is unhealthy",
    "device_plugin_alloc_duration_seconds": "what is late is in plugind_lease_failures_total",
}


def test_each_metric_has_an_alert_or_a_reason_why_it_needs_none() -> None:
    """plugind_config_refused had none: one typo, reloaded, would have ended a fleet at its next boot."""
    table = PAGE.read_text().partition("## `GET /metrics`")[2].partition("\n## ")[0]
    metrics = set(re.findall(r"^\| `(\w+)` \| (?:gauge|counter|histogram) ", table, re.MULTILINE))
    alerted = set[str]().union(*(metrics_in(rule.expression) for rule in rules(ALERTS))) - {"up"}
    assert alerted <= metrics
    assert metrics - alerted == WITHOUT.keys()
