"""Daemons for the tests that do not need one of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plugind.tests.end_to_end.processes import PATIENT, Daemon, daemon


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
