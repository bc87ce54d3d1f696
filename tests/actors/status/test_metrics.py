from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import attrs
import pytest
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from plugind import __version__
from plugind.actors import status
from plugind.actors.status.api import StatusConfig
from plugind.protocol.messages.status import (
    ActorRestarted,
    HandlersChanged,
    HealthReported,
    RootStatus,
)
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import Finished, Operation, Outcome, StateName, Watching
from plugind.protocol.text import escaped
from plugind.tests.actors.status.bench import bench, body_of, changed, info


async def test_metrics_are_shown_with_one_series_for_each_path_and_world(autojump_clock: MockClock) -> None:
    """TestMetricCollection: one count per state; behaviour 39."""
    async with bench(StatusConfig(path_metrics=True)) as node:
        for number in range(120):
            node.memory.view.apply(changed(f"p{number:03}", StateName.REGISTERED))
        node.memory.view.apply(attrs.evolve(changed('odd"\n\udcff', StateName.WAITING), attempt=1))
        text = (await body_of(await node.get("/metrics"))).decode()
    series = [line for line in text.splitlines() if line.startswith("plugin_manager_total_plugins{")]
    assert len(series) == len(set(series)) == 241
    assert 'plugin_manager_total_plugins{socket_path="/r/p007.sock",state="actual_state_of_world"} 1.0' in series
    assert 'plugin_manager_total_plugins{socket_path="/r/p007.sock",state="desired_state_of_world"} 1.0' in series
    assert series[-1] == (
        'plugin_manager_total_plugins{socket_path="/r/odd\\"\\\\n\\\\xff.sock",state="desired_state_of_world"} 1.0'
    )
    assert text.count("# HELP plugin_manager_total_plugins Number of plugins in Plugin Manager\n") == 1
    assert "# TYPE plugind_operations_total counter\n" in text
    assert 'plugind_operations_total{operation="notify",outcome="timed-out",plugin_type="DRAPlugin"} 0.0\n' in text
    assert 'plugind_plugins{plugin_type="unknown",state="registered"} 120.0\n' in text
    assert 'plugind_registration_seconds_bucket{le="+Inf"} 0.0\n' in text
    assert "plugind_path_metrics_suppressed 0.0\n" in text


async def test_what_links_and_the_device_server_count_has_its_name_and_its_labels(autojump_clock: MockClock) -> None:
    """Consumers-proposal 0 and 1, Metrics; no name of a plugin is a label (fault 92)."""
    async with bench() as node:
        node.memory.view.apply(attrs.evolve(changed("a", StateName.REGISTERED), info=info("a")))
        node.memory.view.set_health(HealthReported("/r/a.sock", 1, Health.DISCONNECTED, "", (), 0.0))
        node.memory.metrics.count_link_restart("DevicePlugin")
        node.memory.metrics.count_root(RootStatus("/dp", Watching.SERVING, 0.0, remade=2))
        node.memory.metrics.unawaited_answers = 3
        series = (await body_of(await node.get("/metrics"))).decode().splitlines()
    assert 'plugind_plugin_health{health="disconnected",plugin_type="CSIPlugin"} 1.0' in series
    assert 'plugind_plugin_health{health="healthy",plugin_type="CSIPlugin"} 0.0' in series
    assert 'plugind_link_restarts_total{plugin_type="DevicePlugin"} 1.0' in series
    assert "plugind_kubelet_socket_remade_total 2.0" in series
    assert 'plugind_handler_answers_dropped_total{reason="not-awaited"} 3.0' in series
    assert 'plugind_handler_answers_dropped_total{reason="no-session"} 0.0' in series


@pytest.mark.parametrize(
    ("config", "suppressed"),
    [
        pytest.param(StatusConfig(), "0.0", id="not asked for"),
        pytest.param(StatusConfig(path_metrics=True, max_path_metrics=5), "1.0", id="too many"),
    ],
)
async def test_without_path_labels_the_gauge_of_the_kubelet_counts_each_world(
    config: StatusConfig, suppressed: str, autojump_clock: MockClock
) -> None:
    """Fault 92, behaviour 39: sums over the kubelet's series stay what they were."""
    async with bench(config) as node:
        for number in range(6):
            node.memory.view.apply(changed(f"p{number}", StateName.REGISTERED))
        node.memory.view.apply(changed("p6", StateName.DIALING))
        text = (await body_of(await node.get("/metrics"))).decode()
    assert [line for line in text.splitlines() if line.startswith("plugin_manager_total_plugins")] == [
        'plugin_manager_total_plugins{state="actual_state_of_world"} 6.0',
        'plugin_manager_total_plugins{state="desired_state_of_world"} 7.0',
    ]
    assert "/r/" not in text
    assert f"plugind_path_metrics_suppressed {suppressed}\n" in text


#: Texts of plugins and file names that would deceive a terminal, or break a line of the exposition.
HOSTILE = (
    'quote"',
    "back\\slash",
    "line\nend",
    "\x1b[2J",
    "\r",
    "\x00",
    "\x85",
    "\u202ecod.exe",
    "\u2028",
    "\u200b",
    "\udcff",
)


async def test_metrics_hold_no_character_that_does_not_print_and_parse_to_distinct_labels(
    autojump_clock: MockClock,
) -> None:
    """Faults 91 and 92: ESC, bidirectional controls and line ends in paths, types and the names of actors."""
    paths = [f"/r/{text}.sock" for text in (*HOSTILE, *(escaped(text) for text in HOSTILE if not text.isprintable()))]
    async with bench(StatusConfig(path_metrics=True)) as node:
        await node.take(HandlersChanged(HOSTILE), *(ActorRestarted(text, "KeyError") for text in HOSTILE))
        for number, path in enumerate(paths):
            shown = attrs.evolve(changed("a", StateName.REGISTERED), socket=path)
            plugin = attrs.evolve(info("a"), type=HOSTILE[number % len(HOSTILE)])
            finished = Finished(Operation.REGISTER, Outcome.OK, 0.1)
            await node.take(attrs.evolve(shown, info=plugin, finished=(finished,)))
        text = (await body_of(await node.get("/metrics"))).decode()
    assert [line for line in text.split("\n") if not line.isprintable()] == []
    families = {family.name: family for family in text_string_to_metric_families(text)}
    labels = [sample.labels["socket_path"] for sample in families["plugin_manager_total_plugins"].samples]
    assert len(set(labels)) == len(paths) == len(labels) / 2
    assert {sample.labels["plugin_type"] for sample in families["plugind_operations"].samples} >= {
        escaped(text.replace("\\", r"\\")) for text in HOSTILE
    }


async def test_expected_plugins_causes_roots_and_the_process_are_shown(autojump_clock: MockClock) -> None:
    """Which nodes lack a plugin can be asked only if there is a series for it where it is not."""
    failed = Finished(Operation.VALIDATE, Outcome.REFUSED, 0.1)
    async with bench(StatusConfig(expected=("a", "b"))) as node:
        await node.take(attrs.evolve(changed("a", StateName.REGISTERED), info=info("a")))
        await node.take(attrs.evolve(changed("b", StateName.WAITING), info=info("b"), finished=(failed,)))
        await node.take(RootStatus("/r", Watching.POLLING, 0.0))
        series = (await body_of(await node.get("/metrics"))).decode().splitlines()
        assert [line for line in series if line.startswith("plugind_expected_plugin{")] == [
            'plugind_expected_plugin{name="a"} 1.0',
            'plugind_expected_plugin{name="b"} 0.0',
        ]
        assert [line for line in series if line.startswith("plugind_plugin_causes{")] == [
            'plugind_plugin_causes{cause="validate-refused",plugin_type="CSIPlugin"} 1.0'
        ]
        assert [line for line in series if line.startswith("plugind_roots{") and not line.endswith(" 0.0")] == [
            'plugind_roots{watching="polling"} 1.0'
        ]
        assert [line for line in series if line.startswith("plugind_build_info{")] == [
            f'plugind_build_info{{python="{platform.python_version()}",version="{__version__}"}} 1.0'
        ]
        process = {line.split()[0]: float(line.split()[1]) for line in series if line.startswith("process_")}
    names = (
        "cpu_seconds_total",
        "start_time_seconds",
        "resident_memory_bytes",
        "virtual_memory_bytes",
        "open_fds",
        "max_fds",
    )
    assert list(process) == [f"process_{name}" for name in names]
    assert all(process.values())


@pytest.mark.parametrize("half_written", [None, "def render("])
async def test_metrics_that_cannot_be_loaded_any_more_are_refused_and_the_actor_goes_on(
    half_written: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """An upgrade moves the files of a daemon away that nobody has asked for metrics yet."""
    if half_written is not None:
        (tmp_path / "exposition.py").write_text(half_written)
    async with bench() as node:
        with monkeypatch.context() as upgraded:
            for name in ("exposition", "exposition_of_node"):
                upgraded.delitem(sys.modules, f"{status.__name__}.{name}", raising=False)
                upgraded.delattr(status, name, raising=False)
            upgraded.setattr(status, "__path__", [str(tmp_path)])
            answer = await node.get("/metrics")
            assert answer.status == 503
            said = json.loads(await body_of(answer))["error"]
            assert said.startswith("what renders metrics cannot be imported: ")
            assert said.endswith(": restart plugind after an upgrade")
        assert (await node.get("/metrics")).status == 200
