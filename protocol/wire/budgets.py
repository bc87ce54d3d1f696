"""Budgets for what a peer can send that costs us work.

There is a budget in each period for each kind of frame that carries nothing (faults 54 to 60), and budgets in each call
for frames, header work and bytes (faults 53 to 64). So whatever a peer sends, it ends.
"""

from typing import Final

from .errors import WireError, WireProblem, over_limit
from .limits import WireLimits

#: The most bytes of a connection that counts as holding little. 4,096 such connections fit into half of 4 MiB.
LITTLE: Final = 512


class UnparsedBytes:
    """The bytes that all connections hold, at most ``limit``."""

    __slots__ = ("kept", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept = 0

    def change(self, before: int, after: int) -> WireError | None:
        """Change the bytes of a connection from ``before`` to ``after``; return an error, with nothing changed, if that
        fails.
        """
        kept = self.kept + after - before
        if after > before and kept > (self.limit if after <= LITTLE else self.limit // 2):
            return over_limit(WireProblem.UNPARSED_BYTES, self.limit, "unparsed bytes of all conversations together")
        self.kept = kept
        return None


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
    SETTINGS_ENTRIES,
    SMALL_DATA,
) = range(11)

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
    (WireProblem.SETTINGS_ENTRIES, "entries of SETTINGS frames"),
    (WireProblem.SMALL_DATA, "small DATA frames"),
)


class Budgets:
    """The frames counted in this period, and the budgets left for the latest call."""

    __slots__ = ("_call_limits", "_limits", "bytes_left", "counted", "frames_left", "header_bytes_left", "spent")

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits.budgets
        self._call_limits = limits.call_budgets
        #: The frames, header work and bytes that the peer can still send.
        self.frames_left, self.header_bytes_left, self.bytes_left = limits.call_budgets
        #: Frames of each kind in this period, minus those that our own frames caused.
        self.spent = [0] * len(_KINDS)
        #: Frames of all kinds in this period.
        self.counted = 0

    def begin_call(self) -> None:
        """Refill the budgets of a call at its start."""
        self.frames_left, self.header_bytes_left, self.bytes_left = self._call_limits

    def spend_frame(self) -> None:
        """Count one frame of any kind for the call.

        Raises:
            WireError: there are too many.
        """
        self.frames_left -= 1
        if self.frames_left < 0:
            raise over_limit(WireProblem.CALL_FRAMES, self._call_limits[0], "frames for one call")

    def spend_header_bytes(self, size: int) -> None:
        """Count header work for the call.

        Raises:
            WireError: there is too much.
        """
        self.header_bytes_left -= size
        if self.header_bytes_left < 0:
            raise over_limit(WireProblem.CALL_HEADER_BYTES, self._call_limits[1], "bytes of headers for one call")

    def spend_bytes(self, size: int) -> None:
        """Count bytes for the call.

        Raises:
            WireError: there are too many.
        """
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise over_limit(WireProblem.CALL_BYTES, self._call_limits[2], "bytes for one call")

    def spend(self, kind: int) -> None:
        """Count one frame.

        Raises:
            WireError: there are too many.
        """
        self.counted += 1
        self.charge(kind, 1)

    def is_used_up(self, kind: int) -> bool:
        """Whether one more frame would exceed the budget."""
        return self.spent[kind] >= self._limits[kind]

    def charge(self, kind: int, count: int) -> None:
        """Charge a budget with ``count``, for frames that were counted before.

        Raises:
            WireError: the budget is exceeded.
        """
        spent = self.spent[kind] = self.spent[kind] + count
        if spent > self._limits[kind]:
            problem, what = _KINDS[kind]
            raise over_limit(problem, self._limits[kind], what)

    def replenish(self) -> None:
        """Begin a new period with full budgets."""
        self.spent = [0] * len(_KINDS)
        self.counted = 0
