"""Daemons that all tests share, for those that do not need one of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plugind.tests.end_to_end.processes import PATIENT, Daemon, daemon


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that runs as long as the tests do. Each test works in a directory of its own below the root."""
    with daemon(tmp_path_factory.mktemp("d")) as started:
        yield started


@pytest.fixture(scope="session")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with long deadlines, for tests which assert that the first attempt succeeds on a busy machine too."""
    with daemon(tmp_path_factory.mktemp("p"), timeouts=PATIENT) as started:
        yield started
