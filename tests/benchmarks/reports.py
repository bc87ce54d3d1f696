"""Reports of plugins for the tests of what is made of them."""

from __future__ import annotations

from plugind.benchmarks.plugins.cheap_plugin import PluginReport


def report_of(
    index: int, listening: float, notified: float | None, *, removed: float = 0.0, times: int = 1, refused: int = 0
) -> PluginReport:
    """``listening``, ``notified`` and ``removed`` are seconds."""
    return {
        "index": index,
        "name": f"plugin-{index}",
        "path": f"/root/plugin-{index}.sock",
        "hang": "",
        "error": "no" if refused else "",
        "bound_ns": 0,
        "asked_ns": 0,
        "asked": 1,
        "refused": refused,
        "notified": times if notified else 0,
        "listening_ns": int(listening * 1e9),
        "notified_ns": 0 if notified is None else int(notified * 1e9),
        "removed_ns": int(removed * 1e9),
    }
