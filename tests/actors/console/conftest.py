"""A fixture for what commands print."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from plugind.tests.actors.console.snapshots import UNIX


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let it be ``UNIX`` on a terminal in Berlin."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        patched.setattr(time, "time", lambda: UNIX)
        time.tzset()
        yield
    time.tzset()
