"""Fixtures for what commands print."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from plugind.actors.console.commands import main
from plugind.tests.actors.console.lease_server import lease_server
from plugind.tests.actors.console.snapshots import UNIX
from plugind.tests.actors.console.test_allocate import Done, Run


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let it be ``UNIX`` on a terminal in Berlin."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        patched.setattr(time, "time", lambda: UNIX)
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def plugind(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs commands in this process, each against a daemon of its own that answers so."""
    numbers = itertools.count()

    def run(answers: Sequence[bytes], *words: str, hold: bool = False) -> Done:
        (directory := tmp_path / f"{next(numbers)}").mkdir()
        with lease_server(directory, *answers, hold=hold) as server:
            monkeypatch.setenv("PLUGIND_STATUS", str(server.path))
            code = main(words)
            return Done(code, *capsys.readouterr(), server.requests)

    return run
