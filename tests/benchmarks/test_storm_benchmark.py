"""The storm benchmarks measure what they report: each kind of storm runs on a small scale and loses no plugin."""

from __future__ import annotations

import importlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from plugind.benchmarks import steps
from plugind.benchmarks.plugins.cheap_plugin import ServerOptions
from plugind.benchmarks.plugins.server_process import cheap_server
from plugind.benchmarks.plugins.storm_plugins import shares
from plugind.benchmarks.storm_run import StormRun, run_storm
from plugind.tests.benchmarks.storms import TINY
from plugind.tests.end_to_end.go_programs import peer

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]
#: Retries are no faults: on a busy machine a plugin may take longer than the second that it has for GetInfo.
QUIET = {"lost": 0, "notified_twice": 0, "refused": 0}


def _faults(run: StormRun) -> dict[str, object]:
    return {name: getattr(run, name) for name in QUIET}


def test_healthy_plugins_are_notified_once_and_deregistered_and_hanging_ones_are_not_errors() -> None:
    run = run_storm(attrs.evolve(TINY, hang_fraction=0.25, remove=True), idle=False)
    assert (run.notified, run.healthy, _faults(run)) == (9, 9, QUIET)
    measured = (run.last_notified_s, run.p50_ms, run.max_ms, run.cpu_ms, run.peak_mib, run.removal_s, run.stop_s)
    assert all(figure is not None and figure > 0 for figure in measured)
    assert run.idle_percent is None


def test_a_suspended_daemon_finds_the_sockets_that_it_missed() -> None:
    run = run_storm(attrs.evolve(TINY, overflow=True), idle=False)
    assert (run.notified, run.overflows, _faults(run)) == (12, 0, QUIET)


def test_existing_grpcio_servers_are_registered() -> None:
    run = run_storm(attrs.evolve(TINY, server="grpcio", existing=True), idle=False)
    assert (run.notified, _faults(run)) == (12, QUIET)


def test_the_kubelets_plugin_manager_registers_and_deregisters() -> None:
    peer("kubelet-pm")
    run = run_storm(attrs.evolve(TINY, daemon="kubelet", remove=True), idle=False)
    assert (run.notified, run.last_error, _faults(run)) == (12, "", QUIET)
    assert run.removal_s is not None
    assert run.removal_s > 0


def test_the_kubelets_plugin_manager_registers_what_was_there_before_its_start() -> None:
    peer("kubelet-pm")
    run = run_storm(attrs.evolve(TINY, daemon="kubelet", existing=True), idle=False)
    assert (run.notified, run.last_error, _faults(run)) == (12, "", QUIET)


def test_a_storm_ends_when_its_patience_is_exhausted(tmp_path: Path) -> None:
    with cheap_server(ServerOptions(directory=tmp_path, sockets=2)) as server:
        assert server.reached(2, seconds=0.05) == 0


def test_cheap_plugins_share_a_process_while_descriptors_allow() -> None:
    assert shares(1, "fake") == [1]
    assert shares(501, "grpcio") == [167, 167, 167]
    assert sum(shares(1_000_000, "fake")) == 1_000_000


@pytest.mark.parametrize(
    ("command", "figure", "count"),
    [
        (
            [
                "storm",
                "--sockets",
                "3",
                "--runs",
                "1",
                "--idle-seconds",
                "0",
                "--settle",
                "0",
                "--no-floor",
                "--no-pin",
            ],
            "last_notified_s",
            1,
        ),
        (["churn", "--rates", "40", "--seconds", "0.3", "--life", "0.5", "--standing", "2", "--no-pin"], "p50_ms", 1),
        (["idle", "--registered", "0", "3", "--seconds", "0.2", "--settle", "0"], "rss_mib", 2),
    ],
    ids=["storm", "churn", "idle"],
)
def test_the_commands_print_a_table_and_write_rows(tmp_path: Path, command: list[str], figure: str, count: int) -> None:
    name, *options = command
    line = [sys.executable, "-m", f"benchmarks.{name}", *options, "--json", str(tmp_path / "rows.json")]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    written = json.loads((tmp_path / "rows.json").read_text())
    # Plugins of a churn are gone after their life, whether or not a busy machine has registered them by then.
    lost = name == "churn" and written[0]["errors"] > 0
    assert (done.returncode, done.stderr) == (int(lost), "")
    assert "──" in done.stdout
    assert [row[figure] > 0 for row in written] == [True] * count


def test_each_step_of_a_registration_names_code_that_exists() -> None:
    """Otherwise the prefix of a renamed module would silently match nothing."""
    for prefix in itertools.chain.from_iterable(steps.STEPS.values()):
        module, _, name = prefix.partition(":")
        if module == "the scheduler":
            continue
        found: object = importlib.import_module(f"plugind.{module}")
        for part in filter(None, name.split(".")):
            found = getattr(found, part)
