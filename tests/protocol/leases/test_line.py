"""The line of those that wait for devices: order of arrival, all or nothing, no starvation, no deadlock."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import event, given
from hypothesis import strategies as st

from plugind.protocol.leases.choosing import LeaseLine
from plugind.protocol.leases.stock import Stock
from plugind.protocol.leases.values import Pool, Request, Wanted
from plugind.tests.protocol.hypothesis_settings import examples
from plugind.tests.protocol.leases.script import GPU, NIC, offer, request

BIG = Pool("big", GPU, frozenset(("g4", "g5")))


class Room:
    """A line and its stock; who is granted takes any devices that are not reserved."""

    def __init__(self, *gpus: str, nics: int = 0) -> None:
        self.stock = Stock([BIG])
        self.stock.offer(offer(gpus))
        self.stock.offer(offer([f"n{number}" for number in range(nics)], NIC))
        self.line = LeaseLine()
        self.requests: dict[str, Request] = {}
        self.held: dict[str, dict[str, list[str]]] = {}

    def ask(self, lease: str, asked: Request) -> list[str]:
        self.requests[lease] = asked
        self.line.add(lease, len(self.requests), asked)
        return self.grant()

    def grant(self) -> list[str]:
        granted = []
        for lease, reserved in self.line.take_fitting(self.stock):
            asked = self.requests[lease]
            self.held[lease] = {}
            for wanted in asked.wanted:
                free = self.stock.free((wanted.resource, asked.pool))
                named = [*(asked.ids or asked.include)]
                others = [
                    device_id
                    for device_id in free
                    if device_id not in named and device_id not in reserved.named(wanted.resource)
                ]
                ids = (named + others)[: wanted.count]
                assert len(ids) == wanted.count
                self.held[lease][wanted.resource] = ids
            for resource, ids in self.held[lease].items():
                self.stock.take(lease, resource, ids)
            granted.append(lease)
        return granted

    def release(self, lease: str) -> list[str]:
        for resource, ids in self.held.pop(lease).items():
            self.stock.give_back(resource, ids)
        return self.grant()


def test_a_place_counts_those_that_wait_for_the_same_resources() -> None:
    room = Room("g0", nics=1)
    room.ask("holder", request((GPU, 1), (NIC, 1)))
    for lease, asked in {
        "gpu": request((GPU, 1)),
        "nic": request((NIC, 1)),
        "large": request((GPU, 2)),
        "both": request((NIC, 1), (GPU, 1)),
        **{f"g{number}": request((GPU, 1)) for number in range(9)},
    }.items():
        room.ask(lease, asked)
    places = {lease: (place, before) for lease, place, before in room.line.places(room.stock)}
    assert [places[lease] for lease in ("gpu", "nic", "large")] == [(1, ()), (1, ()), (2, ("gpu",))]
    assert places["both"] == (3, ("nic", "gpu"))
    assert places["g8"] == (11, ("gpu", "both", "g0", "g1", "g2", "g3", "g4", "g5"))


def test_one_that_wants_more_than_there_is_keeps_nobody_waiting() -> None:
    room = Room("g0", "g1", "g2!")
    assert room.ask("large", request((GPU, 3))) == []
    assert room.ask("unknown", request((GPU, 1), ("other.com/x", 1))) == []
    assert room.ask("small", request((GPU, 2))) == ["small"]
    room.release("small")
    room.stock.offer(offer(["g0", "g1", "g2"]))
    assert room.grant() == ["large"]


def test_who_waits_holds_nothing_but_has_a_claim_on_what_it_waits_for() -> None:
    """Of the resource that is there it reserves as many as it wants, and no more."""
    room = Room("g0", "g1", nics=1)
    room.ask("nic", request((NIC, 1)))
    assert room.ask("both", request((GPU, 1), (NIC, 1))) == []
    assert room.ask("one", request((GPU, 1))) == ["one"]
    assert room.ask("two", request((GPU, 1))) == []
    assert room.release("nic") == ["both"]
    assert room.release("both") == ["two"]


def test_one_that_waits_for_named_devices_leaves_the_others() -> None:
    room = Room("g0", "g1", "g2")
    room.ask("a", request((GPU, 1), ids="g0"))
    assert room.ask("named", request((GPU, 2), ids="g0 g1")) == []
    assert room.ask("also", request((GPU, 1), ids="g1")) == []
    assert room.ask("any", request((GPU, 1))) == ["any"]
    assert room.held["any"] == {GPU: ["g2"]}
    assert room.release("a") == ["named"]


def test_one_that_comes_back_has_its_place() -> None:
    room = Room("g0")
    room.line.add("first", 1, request((GPU, 1)))
    room.line.add("third", 3, request((GPU, 1)))
    room.line.add("second", 2, request((GPU, 1)))
    room.line.remove("first")
    assert next(room.line.take_fitting(room.stock))[0] == "second"


counts = st.integers(1, 3)
free_requests = st.one_of(
    st.builds(lambda n: Request((Wanted(GPU, n),)), counts),
    st.builds(lambda n: Request((Wanted(NIC, n),)), counts),
    st.builds(lambda n, m: Request((Wanted(NIC, n), Wanted(GPU, m))), counts, counts),
    st.builds(lambda n: Request((Wanted(GPU, n),), pool="big"), counts),
)
named_requests = st.builds(
    lambda ids, more: Request((Wanted(GPU, len(ids) + more),), () if more else tuple(ids), tuple(ids) if more else ()),
    st.lists(st.sampled_from(["g0", "g1", "g2", "g3"]), min_size=1, max_size=3, unique=True),
    st.integers(0, 1),
)
requests = free_requests | named_requests
offers = st.lists(st.sampled_from(["g0", "g1", "g2", "g3", "g4", "g5"]), unique=True)
acts = st.lists(requests | st.integers(0, 5) | offers.map(tuple), max_size=25)


def free_of(room: Room, asked: Request) -> Mapping[str, frozenset[str]]:
    return {wanted.resource: frozenset(room.stock.free((wanted.resource, asked.pool))) for wanted in asked.wanted}


def check_not_overtaken(room: Room, before: Stock, earlier: Request, later: str) -> None:
    """What ``later`` has got was not needed by ``earlier``, which could be served with the devices that there are."""
    got = room.held[later]
    for wanted in earlier.wanted:
        ids = got.get(wanted.resource, [])
        assert not set(earlier.ids or earlier.include) & set(ids), "it has taken a device that was waited for"
        free = room.stock.free((wanted.resource, earlier.pool))
        taken = sum(before.pools.pool_of(wanted.resource, device_id) == earlier.pool for device_id in ids)
        assert taken == 0 or len(free) >= wanted.count - len(earlier.ids or earlier.include)


@examples(300)
@given(acts)
def test_nobody_is_overtaken_starves_or_blocks(acts: list[Request | int | tuple[str, ...]]) -> None:
    room = Room("g0", "g1", "g2", "g3", "g4", "g5", nics=2)
    for act in acts:
        match act:
            case Request():
                granted = room.ask(f"l{len(room.requests)}", act)
            case int() if room.held:
                granted = room.release(sorted(room.held)[act % len(room.held)])
            case tuple():
                room.stock.offer(offer(act))
                granted = room.grant()
            case _:
                continue
        waiting = [lease for lease in room.requests if lease in room.line]
        for lease in granted:
            for other in waiting:
                earlier = room.requests[other]
                if int(other[1:]) < int(lease[1:]) and room.stock.could(earlier) and len(granted) == 1:
                    event("one was granted while an earlier one waited")
                    check_not_overtaken(room, room.stock, earlier, lease)
        if waiting:
            first = room.requests[waiting[0]]
            assert not room.stock.could(first) or not can_have(room, first), "the first one in line waits for nothing"
    # Everybody ends at some time; then nobody waits but those that want more than there is.
    while room.held:
        room.release(min(room.held))
    assert not any(room.stock.could(asked) for lease, asked in room.requests.items() if lease in room.line)


def can_have(room: Room, asked: Request) -> bool:
    free = free_of(room, asked)
    return not any(room.stock.missing(wanted.resource) for wanted in asked.wanted) and all(
        len(free[wanted.resource]) >= wanted.count and free[wanted.resource].issuperset(asked.ids or asked.include)
        for wanted in asked.wanted
    )
