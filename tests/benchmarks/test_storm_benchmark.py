"""The storm benchmarks measure what they report: each kind of storm runs on a small scale and loses no plugin."""

from __future__ import annotations

import importlib
import itertools

import attrs
import pytest

from plugind.benchmarks import steps
from plugind.benchmarks.storm_run import Scenario, StormRun, run_storm
from plugind.tests.end_to_end.go_programs import peer

pytestmark = pytest.mark.extended

TINY = Scenario(sockets=12, idle_seconds=0, patience=30, settle=0)
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


def test_each_step_of_a_registration_names_code_that_exists() -> None:
    """Otherwise the prefix of a renamed module would silently match nothing."""
    for prefix in itertools.chain.from_iterable(steps.STEPS.values()):
        module, _, name = prefix.partition(":")
        if module == "the scheduler":
            continue
        found: object = importlib.import_module(f"plugind.{module}")
        for part in filter(None, name.split(".")):
            found = getattr(found, part)
