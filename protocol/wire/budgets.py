"""How much more a peer may send that costs us work.

For each kind of frame that carries nothing there is a budget for each period (faults 54 to 60). For each call there is
a budget of all frames, of header work and of bytes (faults 53 to 64): whatever a peer sends, it ends.
"""

from typing import Final

from .errors import WireError, WireProblem, over_limit
from .limits import Limits

#: What a connection may hold to count as one that holds little. 4,096 of them fit into half of 4 MiB.
LITTLE: Final = 512


class UnparsedBytes:
    """How many bytes all connections hold, of at most ``limit``."""

    __slots__ = ("kept", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept = 0

    def change(self, before: int, after: int) -> WireError | None:
        """Let a connection that held ``before`` bytes hold ``after``; or return why not, with nothing changed."""
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
    """The frames counted so far in this period, and what is left for the call that began last."""

    __slots__ = ("_call_limits", "_limits", "bytes_left", "counted", "frames_left", "header_bytes_left", "spent")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits.budgets
        self._call_limits = limits.call_budgets
        #: What the peer may still send: frames of all kinds, header work, bytes.
        self.frames_left, self.header_bytes_left, self.bytes_left = limits.call_budgets
        #: Frames of each kind in this period, less those that our own frames asked for.
        self.spent = [0] * len(_KINDS)
        #: Frames of all kinds in this period.
        self.counted = 0

    def begin_call(self) -> None:
        """Fill the budgets of a call: one begins."""
        self.frames_left, self.header_bytes_left, self.bytes_left = self._call_limits

    def spend_frame(self) -> None:
        """Count one frame of any kind for the call.

        Raises:
            WireError: it is one too many.
        """
        self.frames_left -= 1
        if self.frames_left < 0:
            raise over_limit(WireProblem.CALL_FRAMES, self._call_limits[0], "frames for one call")

    def spend_header_bytes(self, size: int) -> None:
        """Count header work for the call.

        Raises:
            WireError: it is too much.
        """
        self.header_bytes_left -= size
        if self.header_bytes_left < 0:
            raise over_limit(WireProblem.CALL_HEADER_BYTES, self._call_limits[1], "bytes of headers for one call")

    def spend_bytes(self, size: int) -> None:
        """Count bytes for the call.

        Raises:
            WireError: they are too many.
        """
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise over_limit(WireProblem.CALL_BYTES, self._call_limits[2], "bytes for one call")

    def spend(self, kind: int) -> None:
        """Count one frame.

        Raises:
            WireError: it is one too many.
        """
        self.counted += 1
        self.charge(kind, 1)

    def is_used_up(self, kind: int) -> bool:
        """Whether one more frame is one too many."""
        return self.spent[kind] >= self._limits[kind]

    def charge(self, kind: int, count: int) -> None:
        """Charge a budget with ``count``, for frames that are counted already.

        Raises:
            WireError: it is too much.
        """
        spent = self.spent[kind] = self.spent[kind] + count
        if spent > self._limits[kind]:
            problem, what = _KINDS[kind]
            raise over_limit(problem, self._limits[kind], what)

    def replenish(self) -> None:
        """Begin a new period: all budgets are full again."""
        self.spent = [0] * len(_KINDS)
        self.counted = 0
