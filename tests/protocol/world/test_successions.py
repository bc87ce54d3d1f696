"""Names that pass from one user's plugin to another's (fault 80)."""

from __future__ import annotations

from plugind.protocol.messages.status import Holder
from plugind.protocol.world.kept_names import MOST_FORMER, FormerHolders


def test_the_last_holder_of_a_name_is_remembered_for_a_limited_number_of_names() -> None:
    """Fault 48."""
    former = FormerHolders()
    for number in range(MOST_FORMER + 1):
        former.add(("Colour", str(number)), Holder(number, "/reg/a"))
        former.add(("Colour", "1"), Holder(number, "/reg/b"))
    assert len(former) == MOST_FORMER
    assert former.get(("Colour", "0")) is None
    assert former.get(("Colour", "1")) == Holder(MOST_FORMER, "/reg/b")
