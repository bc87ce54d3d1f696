"""Names that pass from one user's plugin to another's, which are reported (fault 80).

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import OrderedDict

import attrs

from ..messages.status import Holder
from ..values import record

#: For how many names that no plugin has it is remembered which one had them last.
MOST_FORMER = 1000

#: A plugin's type and name.
Named = tuple[str, str]


@record
class FormerHolders:
    """Which plugin left each name last, for the names that were left last."""

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
        """Return who left the name last, if that is known."""
        return self._holders.get(named)
