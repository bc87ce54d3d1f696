"""Keeps messages to the status actor about plugins whose first try has not been reported yet.

Roles and health are decided as soon as a handler has registered a plugin. The first report of its registration comes
later: when the plugin was notified, or when its first try has taken too long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, get_args

from ..messages.status import (
    EndpointChanged,
    HealthReported,
    NamePassed,
    PluginDisplaced,
    RoleChanged,
    ServingChanged,
    StateChanged,
)

OfAPlugin = RoleChanged | NamePassed | PluginDisplaced | ServingChanged | EndpointChanged | HealthReported
OF_A_PLUGIN: Final[tuple[type[OfAPlugin], ...]] = get_args(OfAPlugin)

#: Seconds for which a message is kept. A first try is reported sooner; an older message belongs to a try that has
#: ended.
_KEPT_FOR = 1.0


class EarlyMessages:
    """The newest message of each kind about each generation that was not reported yet."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], tuple[float, dict[type, OfAPlugin]]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, message: OfAPlugin, now: float) -> None:
        """Keep a message, and drop old ones; ``now`` is in ``trio.current_time()``."""
        while self._kept and (first := next(iter(self._kept.items())))[1][0] < now - _KEPT_FOR:
            del self._kept[first[0]]
        of = self._kept.setdefault((message.socket, message.generation), (now, {}))
        of[1][type(message)] = message

    def take(self, change: StateChanged) -> Iterable[OfAPlugin]:
        """Return the messages kept about a generation whose first report is ``change``."""
        found = self._kept.pop((change.socket, change.generation), None)
        return () if found is None else found[1].values()
