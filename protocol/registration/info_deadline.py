"""The deadline of GetInfo: a pure rule.

A process that has bound and listens may not serve yet: one that makes thousands of sockets needs seconds before it
reads the first request, which the kernel keeps. Dialing again would gain nothing. So the second of GetInfo begins when
the plugin sends its first byte, or has read all that it was sent. Until then the deadline is that of the dial, as in
the reference, whose dial waits for the server's first frame.

That a peer has read causes no event, so the connection of a silent peer is looked at, 0.1 s after the call. If the peer
has read by then, its second counts from the call; if not, it gives its dial slot back. The next look comes when the
second would be over, and each later one after twice the time: that makes seven looks in ten seconds. From then on the
second counts from the look that finds the request read, so the deadline is at most one second after that of the dial.
"""

from __future__ import annotations

from .settings import Timeouts

#: Seconds from the call to the first look.
FIRST_LOOK = 0.1
#: What is shown while the second has not begun.
NOT_READ = "its process listens, and has not read anything yet"
#: The failure of a conversation that was closed for its descriptor.
NEEDED = "its descriptor was needed for another plugin, and it had not read anything"


class InfoDeadline:
    """The deadline of one call of GetInfo. Times are ``trio.current_time()``, in seconds."""

    __slots__ = ("_asked", "_dial", "_get_info", "_last", "_looked", "_since")

    def __init__(self, dialed: float, asked: float, timeouts: Timeouts) -> None:
        """``dialed`` is the time of the first attempt to connect, ``asked`` that of the call."""
        self._asked = asked
        self._get_info, self._dial = timeouts.get_info, timeouts.dial
        self._last = max(asked + timeouts.get_info, dialed + timeouts.dial)
        self._since: float | None = None
        self._looked = False

    @property
    def has_begun(self) -> bool:
        """Whether GetInfo's second has begun."""
        return self._since is not None

    def hear(self, now: float) -> float:
        """Note that the peer has sent something, and return the deadline."""
        if self._since is None:
            self._since = now
        return self._since + self._get_info

    def look(self, now: float, *, idle: bool) -> float | None:
        """Return when to look again, or the deadline; None if the deadline has passed.

        ``idle`` says that the peer has sent nothing, and has not read all that it was sent.
        """
        if self._since is None and idle:
            if now >= self._last:
                return None
            self._looked = True
            return min(self._last, self._asked + max(self._get_info, 2 * (now - self._asked)))
        if self._since is None:
            # A first look that comes much too late says little about when the peer has read.
            self._since = self._asked if now <= self._asked + 2 * FIRST_LOOK and not self._looked else now
        deadline = self._since + self._get_info
        return None if now >= deadline else deadline

    def is_late(self, now: float) -> bool:
        """Whether the second would be over if it had begun with the call."""
        return now >= self._asked + self._get_info

    def why_over(self) -> str:
        """Return why the call has failed at its deadline."""
        if self.has_begun:
            return f"no answer in {self._get_info:g} s"
        # Not the exact time: each attempt would then have a reason of its own, and a line in the log.
        return f"its process listens, and has not read anything in {max(self._get_info, self._dial):g} s"


def first_look(timeouts: Timeouts) -> float:
    """Return how many seconds after the call the first look comes."""
    return min(FIRST_LOOK, timeouts.get_info)
