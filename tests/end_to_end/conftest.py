"""One daemon for all tests that need none of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plugind.tests.end_to_end.processes import PATIENT, Daemon, daemon


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that lives as long as the tests do: each of them works in a directory of its own under the root."""
    with daemon(tmp_path_factory.mktemp("d")) as started:
        yield started


@pytest.fixture(scope="session")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Such a daemon too, for tests which assert that the first attempt succeeds, however busy the machine is."""
    with daemon(tmp_path_factory.mktemp("p"), timeouts=PATIENT) as started:
        yield started
