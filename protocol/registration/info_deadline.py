"""Until when a plugin may answer GetInfo: a pure rule.

A process that has bound and listens may not serve yet: one that makes thousands of sockets needs seconds before it
reads the first of them. The kernel accepts the connection and keeps the request. To hang up after GetInfo's second and
to dial again would gain nothing, and the next try would wait for its backoff. So GetInfo's second begins when the
plugin says its first byte, or has read all that it was sent. Until then it has as long as a dial may take, as in the
reference, whose dial waits for the server's first frame.

The first byte is noticed at once. That a peer has read is not, so the connection of a silent peer is looked at. The
first look comes 0.1 s after the call, and serves two ends: the second of a peer that has read by then counts from the
call, and one that has not gives its dial slot back. The next look comes when the second would be over, and each later
one after twice as long; a first try is also looked at when it has been silent for long enough. That makes seven looks
within ten seconds, so thousands of silent sockets cost next to nothing. After the first look a plugin never has less
than its second, which counts from the look that finds the request read. It has at most as much more as the time that it
took to read, and at most one second after the time of the dial.
"""

from __future__ import annotations

from .settings import Timeouts

#: Seconds from the call to the first look. A conversation in which nothing was read by then gives its dial slot back.
FIRST_LOOK = 0.1
#: What is shown while the second has not begun.
NOT_READ = "its process listens, and has not read anything yet"
#: Why a conversation failed that was closed early.
NEEDED = "its descriptor was needed for another plugin, and it had not read anything"


class InfoDeadline:
    """The deadline of one call of GetInfo. Times are those of ``trio.current_time()``, in seconds."""

    __slots__ = ("_asked", "_dial", "_get_info", "_last", "_looked", "_since")

    def __init__(self, dialed: float, asked: float, timeouts: Timeouts) -> None:
        """Begin with the time of the first attempt to connect, and with that of the call."""
        self._asked = asked
        self._get_info, self._dial = timeouts.get_info, timeouts.dial
        #: When a peer is given up that has read nothing.
        self._last = max(asked + timeouts.get_info, dialed + timeouts.dial)
        #: When GetInfo's second began; None if it has not.
        self._since: float | None = None
        #: Whether a look has found that the peer had not read the request.
        self._looked = False

    @property
    def has_begun(self) -> bool:
        """Whether GetInfo's second has begun."""
        return self._since is not None

    def hear(self, now: float) -> float:
        """Note that the peer has said something, and return the deadline from now on."""
        if self._since is None:
            self._since = now
        return self._since + self._get_info

    def look(self, now: float, *, idle: bool) -> float | None:
        """Return when to look again, or the deadline; None if the time is over.

        ``idle`` says that the peer has neither said anything nor read all that it was sent.
        """
        if self._since is None and idle:
            if now >= self._last:
                return None
            self._looked = True
            return min(self._last, self._asked + max(self._get_info, 2 * (now - self._asked)))
        if self._since is None:
            # A first look that comes much later than it should says little about when the peer has read.
            self._since = self._asked if now <= self._asked + 2 * FIRST_LOOK and not self._looked else now
        deadline = self._since + self._get_info
        return None if now >= deadline else deadline

    def is_late(self, now: float) -> bool:
        """Whether the second would be over if it had begun with the call."""
        return now >= self._asked + self._get_info

    def why_over(self) -> str:
        """Return why the call has failed whose time is over."""
        if self.has_begun:
            return f"no answer in {self._get_info:g} s"
        # Not the time that it took: each attempt would have a reason of its own, and a line in the log.
        return f"its process listens, and has not read anything in {max(self._get_info, self._dial):g} s"


def first_look(timeouts: Timeouts) -> float:
    """Return how many seconds after the call the first look comes."""
    return min(FIRST_LOOK, timeouts.get_info)
