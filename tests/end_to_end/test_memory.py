"""What hostile plugins cost a daemon in memory (fault 65)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest

from plugind.benchmarks.peers.daemon_process import DaemonProcess
from plugind.tests.tools.memory_limit import LIMIT, NoCgroupError, attack, limited_daemon, memory_cgroup

pytestmark = pytest.mark.extended

SOCKETS = 1000
SECONDS = 30.0


@attrs.frozen
class Limited:
    """A daemon, its root, and why its memory is not limited, if it is not."""

    daemon: DaemonProcess
    root: Path
    unlimited: str | None


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    """Run a daemon with 128 MiB, or with all memory where there can be no cgroup."""
    directory = tmp_path_factory.mktemp("m")
    with ExitStack() as stack:
        try:
            cgroup, reason = stack.enter_context(memory_cgroup(LIMIT)), None
        except NoCgroupError as error:
            cgroup, reason = None, str(error)
        daemon = stack.enter_context(limited_daemon(directory, cgroup))
        yield Limited(daemon, directory / "root", reason)


def test_a_hostile_socket_costs_at_most_24_kib(limited: Limited) -> None:
    """Fault 65: those that say nothing, and those that stop in the middle of an answer."""
    # A daemon loads its last modules right after it is ready, and some with its first plugins.
    attack(limited.daemon, "held-back", limited.root / "first", 10, SECONDS)
    before = limited.daemon.memory_kib()
    for kind in ("silent", "held-back"):
        attack(limited.daemon, kind, limited.root / kind, SOCKETS, SECONDS)
        assert (limited.daemon.memory_kib("VmHWM") - before) / SOCKETS <= 24


def test_a_thousand_hostile_sockets_do_not_end_a_daemon_with_128_mib(limited: Limited) -> None:
    """Faults 50 and 65: answers of 4 MiB. ``tests.tools.memory_limit`` does this with each kind in turn."""
    if limited.unlimited is not None:
        pytest.skip(f"needs root and a memory cgroup: {limited.unlimited}")
    attack(limited.daemon, "big-info", limited.root / "big-info", SOCKETS, SECONDS)
