"""Which devices a request gets.

Names such as ``TestFilterByAffinity`` are those of the kubelet's tests that assert the same: the file
``manager_test.go`` of its device manager.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.leases.choosing import choose
from plugind.protocol.leases.free import FreeDevices, natural
from plugind.protocol.plugins.devices import Device
from plugind.tests.protocol.hypothesis_settings import examples
from plugind.tests.protocol.leases.script import devices


def chosen(words: str, size: int, *, include: str = "", preferred: str = "") -> str:
    free = FreeDevices(devices(*words.split()))
    return " ".join(choose(free, size, include.split(), preferred.split()))


def test_ids_are_in_natural_order() -> None:
    ids = ["GPU-10", "GPU-2", "GPU-1", "a", "GPU-02", "GPU-2-b", "7", "10", ""]
    assert sorted(ids, key=natural) == ["", "7", "10", "GPU-1", "GPU-02", "GPU-2", "GPU-2-b", "GPU-10", "a"]


def test_a_number_of_thousands_of_digits_is_an_id_like_any_other() -> None:
    long = "9" * 5000
    assert sorted([f"g{long}1", f"g{long}0", "g1"], key=natural) == ["g1", f"g{long}0", f"g{long}1"]


@pytest.mark.parametrize(
    ("words", "size", "expected"),
    [
        ("a@0 b@1 c@1", 2, "b c"),
        ("a b@1 c@1", 1, "b"),
        ("a b@1 c@1", 3, "a b c"),
        ("a b@1 c", 2, "a b"),
        ("a@0+1 b@1 c@1", 2, "b c"),
        ("a@0+1 b@1 c@0", 2, "a c"),
        ("a@0+1 b@1", 1, "b"),
        ("a b c", 2, "a b"),
    ],
)
def test_filter_by_affinity(words: str, size: int, expected: str) -> None:
    """TestFilterByAffinity: those near to the nodes first, those of several nodes after them, those of none last."""
    assert chosen(words, size) == expected


@pytest.mark.parametrize(
    ("words", "size", "include", "expected"),
    [
        ("a@0 b@1 c@0 d@1", 2, "", "a c"),
        ("a@0 b@1 c@1 d@1", 3, "", "b c d"),
        ("a@0 b@1 c@2 d@2 e@1", 3, "", "a b e"),
        ("a@0 b@1 c@2 d@2 e@2 f@1", 5, "", "b c d e f"),
        ("a@0 b@1 c@0 d@1", 2, "b", "b d"),
        ("a@0 b@1 c@0 d@1 e@0", 3, "b", "a b c"),
        ("a b@1 c@0 d@1", 2, "a", "a c"),
        ("a b@0 c@0 d@1", 3, "a", "a b c"),
        ("a@0 b@1", 2, "", "a b"),
    ],
)
def test_topology_aligned_allocation(words: str, size: int, include: str, expected: str) -> None:
    """TestTopologyAlignedAllocation: devices of one node if it has enough, and of as few nodes as possible if not."""
    assert chosen(words, size, include=include) == expected


@pytest.mark.parametrize(
    ("preferred", "include", "expected"),
    [
        ("GPU-3 GPU-1", "", "GPU-1 GPU-3"),
        ("GPU-3 GPU-9", "", "GPU-0 GPU-3"),
        ("GPU-9", "", "GPU-0 GPU-1"),
        ("GPU-3 GPU-2 GPU-1", "", "GPU-2 GPU-3"),
        ("GPU-3 GPU-3", "", "GPU-0 GPU-3"),
        ("GPU-3 GPU-1", "GPU-2", "GPU-2 GPU-3"),
        ("", "GPU-2", "GPU-0 GPU-2"),
    ],
)
def test_a_preferred_answer_is_used_as_far_as_it_is_available(preferred: str, include: str, expected: str) -> None:
    """Of too many the first are used, what must be included is taken anyway, and what is missing is chosen."""
    assert chosen("GPU-0 GPU-1 GPU-2 GPU-3", 2, include=include, preferred=preferred) == expected


def test_many_numa_nodes_are_not_all_combined() -> None:
    """A plugin may name any number of nodes: those with the most devices are taken first."""
    words = [f"d{node}@{node}" for node in range(400)] + ["x@7", "y@7", "z@9"]
    assert chosen(" ".join(words), 5) == "d7 d9 x y z"


found = st.dictionaries(
    st.sampled_from([f"g{number}" for number in range(12)]), st.sets(st.integers(0, 3), max_size=2), min_size=1
)


@examples(200)
@given(found, st.data())
def test_a_choice_is_complete_and_uses_as_few_nodes_as_possible(
    found: dict[str, set[int]], data: st.DataObject
) -> None:
    available = {name: Device(name, numa=tuple(sorted(nodes))) for name, nodes in found.items()}
    size = data.draw(st.integers(1, len(available)))
    ids = sorted(available)
    include = data.draw(st.lists(st.sampled_from(ids), unique=True, max_size=size))
    preferred = data.draw(st.lists(st.sampled_from([*ids, "other"]), max_size=6))
    result = choose(FreeDevices(available.values()), size, include, preferred)
    assert len(set(result)) == size == len(result)
    assert set(include) <= set(result) <= set(available)
    if not include and not preferred:
        for node in range(4):
            near = {name for name, nodes in found.items() if node in nodes}
            if len(near) >= size:
                assert any(all(one in found[name] for name in result) for one in range(4))


@pytest.mark.parametrize(
    ("size", "include", "expected"),
    [
        (1, "", "a::0"),
        (2, "", "a::0 b::0"),
        (2, "a::1", "a::1 b::0"),
        (3, "", "a::0 a::1 b::0"),
        (2, "b::0", "a::0 b::0"),
    ],
)
def test_shares_of_different_static_devices_are_taken_first(size: int, include: str, expected: str) -> None:
    free = FreeDevices(Device(f"{name}::{share}", identity=name) for name in "ab" for share in range(2))
    assert choose(free, size, include.split()) == tuple(expected.split())
