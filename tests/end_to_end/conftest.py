"""Daemons for the tests that do not need one of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from plugind.tests.end_to_end.lease_scene import Forks, forks
from plugind.tests.end_to_end.processes import PATIENT, Daemon, daemon


@pytest.fixture(autouse=True)
def _markers(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no daemon of a test find what a killed one of another test has left, which would withhold all devices."""
    place = tmp_path_factory.mktemp("leases")
    monkeypatch.setenv("PLUGIND_MARKERS", str(place / "markers"))
    monkeypatch.setenv("PLUGIND_LEASES_CDI_DIRECTORY", str(place / "cdi"))


@pytest.fixture(name="place")
def _place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a short path: the path of a socket has at most 107 bytes."""
    return tmp_path_factory.mktemp("d")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run a daemon for all tests. Each test works in a directory of its own below the root."""
    with daemon(tmp_path_factory.mktemp("d")) as started:
        yield started


@pytest.fixture(scope="session")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run a daemon with long deadlines, for tests that expect the first attempt to succeed even on a busy machine."""
    with daemon(tmp_path_factory.mktemp("p"), timeouts=PATIENT) as started:
        yield started


@pytest.fixture(scope="session", name="forks")
def _forks() -> Iterator[Forks]:
    """Have a process from which daemons are forked."""
    with forks() as started:
        yield started
