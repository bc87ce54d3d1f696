"""Names whose plugin left: their last holders, and for how long they are kept for its user.

A plugin that restarts removes its socket and makes a new one, perhaps at another path. If the name were free in
between, a waiting plugin of another user would get it each time (fault 80).
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict

import attrs

from ..messages.status import Holder
from ..plugins.info import PluginInfo
from ..trust.users import user_words
from ..values import record

Named = tuple[str, str]
#: The most names for which the last holder is kept.
MOST_FORMER = 1000


@record
class FormerHolders:
    """The last holder of each name that was left recently."""

    _holders: OrderedDict[Named, Holder] = attrs.field(init=False, factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, named: Named, holder: Holder) -> None:
        """Note that ``holder`` left the name."""
        self._holders[named] = holder
        self._holders.move_to_end(named)
        if len(self._holders) > MOST_FORMER:
            self._holders.popitem(last=False)

    def get(self, named: Named) -> Holder | None:
        """Return the last holder of the name, if it is known."""
        return self._holders.get(named)


NAME_KEPT = 15.0


@record
class Keep:
    """The user for whom a name is kept, and until when."""

    uid: int | None
    until: float
    #: Whether a plugin of another user waits for that.
    awaited: bool = False


@record
class KeptNames:
    """The names that are kept. Only awaited ones need a timer; old ones are dropped at additions and after scans."""

    #: In the order of their ends. ``OrderedDict`` finds its first key at once, even after thousands were removed.
    _kept: OrderedDict[Named, Keep] = attrs.field(init=False, factory=OrderedDict)
    #: A heap of the ends that are awaited.
    _awaited: list[tuple[float, Named]] = attrs.field(init=False, factory=list)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def next_end(self) -> float:
        """When :meth:`ended` has something to return; infinity if nobody waits."""
        return self._awaited[0][0] if self._awaited else math.inf

    def keep(self, named: Named, uid: int | None, now: float) -> None:
        """Keep the name for ``uid`` from now on."""
        self.forget_old(now)
        self._kept.pop(named, None)
        self._kept[named] = Keep(uid, now + NAME_KEPT)

    def forget_old(self, now: float) -> None:
        """Drop the names whose time is over."""
        while self._kept:
            oldest = next(iter(self._kept))
            if self._kept[oldest].until > now:
                return
            del self._kept[oldest]

    def get(self, named: Named, now: float) -> Keep | None:
        """Return for whom the name is kept; None if it is not kept."""
        keep = self._kept.get(named)
        return None if keep is None or keep.until <= now else keep

    def wait(self, named: Named, keep: Keep) -> None:
        """Note that a plugin of another user waits for the end of ``keep``."""
        if not keep.awaited:
            keep.awaited = True
            heapq.heappush(self._awaited, (keep.until, named))

    def ended(self, now: float) -> list[Named]:
        """Remove and return the awaited names that are no longer kept."""
        self.forget_old(now)
        ended = []
        while self._awaited and self._awaited[0][0] <= now:
            named = heapq.heappop(self._awaited)[1]
            if named not in self._kept:
                ended.append(named)
        return ended


def kept_for(info: PluginInfo, keep: Keep) -> str:
    """Return why ``info`` cannot have a name that is kept for another user."""
    return (
        f"{info.type} {info.name!r} is kept for {user_words(keep.uid)} for {NAME_KEPT:g} s, whose plugin left: wait"
        " until then, or run this plugin as that user or as root"
    )
