"""Names that are kept for the user whose plugin left, against other users and for a limited time (fault 80)."""

from __future__ import annotations

import math

from plugind.protocol.plugins.info import PluginInfo
from plugind.protocol.world.kept_names import NAME_KEPT, KeptNames, kept_for

RED, BLUE = ("Colour", "red"), ("Colour", "blue")


def test_a_name_is_kept_for_a_user_and_for_a_while() -> None:
    """Fault 80."""
    kept = KeptNames()
    kept.keep(RED, 1001, now=100.0)
    keep = kept.get(RED, 100.0 + NAME_KEPT - 0.01)
    assert keep is not None
    assert keep.uid == 1001
    assert kept.get(RED, 100.0 + NAME_KEPT) is None
    assert kept.get(BLUE, 100.0) is None
    info = PluginInfo(*RED, "/e", ())
    assert kept_for(info, keep).startswith("Colour 'red' is kept for user 1001 for 15 s, whose plugin left: wait")


def test_only_the_end_of_a_name_for_which_somebody_waits_needs_a_timer() -> None:
    kept = KeptNames()
    kept.keep(BLUE, 1001, now=0.0)
    kept.keep(RED, 1001, now=1.0)
    assert kept.next_end == math.inf
    keep = kept.get(RED, 2.0)
    assert keep is not None
    kept.wait(RED, keep)
    kept.wait(RED, keep)
    assert kept.next_end == 1.0 + NAME_KEPT
    assert kept.ended(0.9 + NAME_KEPT) == []
    assert kept.ended(1.0 + NAME_KEPT) == [RED]
    assert (kept.next_end, len(kept)) == (math.inf, 0)


def test_a_name_that_is_kept_anew_does_not_end_with_the_time_before() -> None:
    kept = KeptNames()
    kept.keep(RED, 1001, now=0.0)
    keep = kept.get(RED, 0.0)
    assert keep is not None
    kept.wait(RED, keep)
    kept.keep(RED, 1001, now=10.0)
    assert kept.ended(NAME_KEPT) == []
    assert kept.get(RED, NAME_KEPT) is not None


def test_what_is_kept_no_more_is_forgotten() -> None:
    """Fault 48."""
    kept = KeptNames()
    for number in range(1000):
        kept.keep(("Colour", str(number)), 1001, now=float(number))
    assert len(kept) == NAME_KEPT
