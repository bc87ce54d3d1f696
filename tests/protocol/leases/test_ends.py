"""Until when things last: as a table that is searched each time would have it, and as quickly with many as with few."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.leases.ends import Ends
from plugind.tests.protocol.hypothesis_settings import examples

LEASE = st.sampled_from("abcde")
STEP = st.one_of(
    st.tuples(st.just("set"), LEASE, st.integers(0, 30)),
    st.tuples(st.just("forget"), LEASE, st.just(0)),
    st.tuples(st.just("take"), st.just(""), st.integers(0, 30)),
)


@examples(200)
@given(st.lists(STEP, max_size=60))
def test_ends_are_those_of_a_table(steps: list[tuple[str, str, int]]) -> None:
    ends, table = Ends(), dict[str, float]()
    for step, lease, time in steps:
        match step:
            case "set":
                ends.set(lease, time)
                table[lease] = time
            case "forget":
                assert ends.forget(lease) == table.pop(lease, None)
            case _:
                over = sorted((end, name) for name, end in table.items() if end <= time)
                assert ends.take(time) == [name for _, name in over]
                table = {name: end for name, end in table.items() if end > time}
        assert ends.next == min(table.values(), default=math.inf)


def test_a_time_that_is_set_again_and_again_costs_no_memory() -> None:
    ends = Ends()
    ends.set("never", 1e9)
    for number in range(10_000):
        ends.set("a", 100.0 + number)
    assert len(ends.by_time) < 100
    assert (ends.take(10_098.0), ends.take(10_099.0)) == ([], ["a"])
