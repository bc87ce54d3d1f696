"""How the descriptors of the process are divided."""

from __future__ import annotations

import resource

import pytest

from plugind.actors.io.descriptors import RESERVE, most_connections, most_owners, most_processes


@pytest.mark.parametrize("soft", [1024, 4096, 1_048_576])
def test_processes_have_a_quarter_of_the_descriptors_and_connections_what_is_left(
    soft: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults 39 and 46."""
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (soft, soft))
    assert most_processes() == soft // 4
    assert most_owners() == soft // 8
    assert most_processes() + most_owners() + most_connections() + RESERVE == soft


def test_a_process_with_few_descriptors_still_dials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 46."""
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (256, 256))
    assert most_connections() == 16
