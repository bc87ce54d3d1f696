"""What an observed plugin says of itself, compared with what it said before.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from ..plugins import PluginInfo
from ..text import quoted


def changed(before: PluginInfo, after: PluginInfo) -> str:
    """Return in words what a plugin has said before, as far as it says something else now; empty if it does not."""
    said = (
        ("type", before.type, after.type),
        ("name", before.name, after.name),
        ("endpoint", before.endpoint, after.endpoint),
        ("versions", ", ".join(before.versions), ", ".join(after.versions)),
    )
    words = [f"the {what} {quoted(was)}" for what, was, is_now in said if was != is_now]
    return f"at the same socket it gave {' and '.join(words)} before" if words else ""
