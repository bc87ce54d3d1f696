"""The daemons that benchmarks can start, by name: plugind, variants of it, and the kubelet's own plugin manager."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

from plugind.benchmarks.peers.daemon_process import DaemonProcess, kubelet_started, plugind_started, variant_started

#: Each is started with its root and the file for its log.
DAEMONS: Final[Mapping[str, Callable[[Path, Path], AbstractContextManager[DaemonProcess]]]] = {
    "plugind": plugind_started,
    # A day, which no measurement takes.
    "without-rescans": partial(plugind_started, options=("--rescan", "86400")),
    "without-liveness": partial(variant_started, "without_liveness"),
    "with-links": partial(variant_started, "with_links"),
    "with-checks": partial(variant_started, "with_checks"),
    "kubelet": kubelet_started,
}
