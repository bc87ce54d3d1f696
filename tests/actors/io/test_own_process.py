"""What a process says of itself agrees with what the kernel says of it to others."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from plugind.actors.io import own_process
from plugind.actors.io.own_process import figures
from plugind.tests.actors.io.exhaustion import no_descriptor_left


def test_the_figures_are_those_that_the_kernel_tells() -> None:
    before = time.process_time()
    found = figures()
    assert before <= found.cpu_seconds + 0.001 <= time.process_time() + 0.002
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    assert found.resident_bytes is not None
    assert found.virtual_bytes is not None
    # Counted per thread, so that the kernel may be off by some pages.
    assert abs(found.resident_bytes - int(status["VmRSS"].split()[0]) * 1024) < 8 << 20
    assert abs(found.virtual_bytes - int(status["VmSize"].split()[0]) * 1024) < 8 << 20
    assert found.max_descriptors == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@pytest.mark.parametrize("counted", [True, False], ids=["Linux 6.2", "older Linux"])
def test_open_descriptors_are_counted_exactly(monkeypatch: pytest.MonkeyPatch, counted: bool) -> None:
    if not counted:
        monkeypatch.setattr(
            own_process, "os", SimpleNamespace(**{**vars(os), "stat": lambda _: SimpleNamespace(st_size=0)})
        )
    elif os.stat("/proc/self/fd").st_size == 0:
        pytest.skip("the kernel is older than Linux 6.2")
    before = figures().open_descriptors
    assert before is not None
    opened = [os.open("/", os.O_PATH) for _ in range(5)]
    assert figures().open_descriptors == before + 5
    for descriptor in opened:
        os.close(descriptor)
    assert figures().open_descriptors == before


@pytest.mark.parametrize("counted", [True, False], ids=["Linux 6.2", "older Linux"])
def test_a_process_without_a_descriptor_left_says_how_many_it_has(
    monkeypatch: pytest.MonkeyPatch, counted: bool
) -> None:
    """Fault 46: it is what an alert on descriptors is for."""
    if not counted:
        monkeypatch.setattr(
            own_process, "os", SimpleNamespace(**{**vars(os), "stat": lambda _: SimpleNamespace(st_size=0)})
        )
    before = figures()  # The start is read once.
    with no_descriptor_left():
        found = figures()
    assert found.max_descriptors < before.max_descriptors
    assert found.open_descriptors == (before.open_descriptors if counted else found.max_descriptors)
    assert (found.resident_bytes, found.virtual_bytes) == (None, None)
    assert found.started is not None
