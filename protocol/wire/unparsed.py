"""The account of what all connections of a node hold unparsed: the beginnings of frames, header blocks and messages.

It is plain arithmetic. A connection that would hold more than is left is refused, and what it held is free at once; no
connection ever waits for another. Half of the limit is kept for connections that hold little, as nearly all
plugins do when their answer comes in pieces: those that hold much cannot shut them out (fault 65).

PYTEST_DONT_REWRITE
"""

from typing import Final

from .errors import WireError, WireProblem, over_limit

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
