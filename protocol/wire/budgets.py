"""How many more frames a peer may send of each kind that costs us work and carries nothing (faults 54 to 60).

PYTEST_DONT_REWRITE
"""

from typing import Final

from .errors import WireProblem, over_limit
from .limits import Limits

(
    PINGS,
    SETTINGS_FRAMES,
    EMPTY_DATA,
    INFORMATIONAL,
    WINDOW_UPDATES,
    PRIORITIES,
    UNKNOWN_FRAMES,
    RESETS,
    LATE_FRAMES,
) = range(9)

_KINDS: Final = (
    (WireProblem.PINGS, "PING frames"),
    (WireProblem.SETTINGS, "SETTINGS frames"),
    (WireProblem.EMPTY_DATA, "empty DATA frames"),
    (WireProblem.INFORMATIONAL, "1xx responses"),
    (WireProblem.WINDOW_UPDATES, "WINDOW_UPDATE frames"),
    (WireProblem.PRIORITIES, "PRIORITY frames"),
    (WireProblem.UNKNOWN_FRAMES, "frames of unknown types"),
    (WireProblem.RESETS, "GOAWAY frames and late RST_STREAM frames"),
    (WireProblem.LATE_FRAMES, "frames for calls that are over"),
)


class Budgets:
    """The frames counted so far in this period."""

    __slots__ = ("_limits", "counted", "spent")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits.budgets
        #: Frames of each kind in this period, less those that our own frames asked for.
        self.spent = [0] * 9
        #: Frames of all kinds in this period.
        self.counted = 0

    def spend(self, kind: int) -> None:
        """Count one frame.

        Raises:
            WireError: it is one too many.
        """
        self.counted += 1
        spent = self.spent[kind] = self.spent[kind] + 1
        if spent > self._limits[kind]:
            problem, what = _KINDS[kind]
            raise over_limit(problem, self._limits[kind], what)

    def replenish(self) -> None:
        """Begin a new period: all budgets are full again."""
        self.spent = [0] * 9
        self.counted = 0
