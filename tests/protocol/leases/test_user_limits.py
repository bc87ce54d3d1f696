"""Limits of users for a resource or a pool: a request over one reserves nothing, and a longest time takes nothing."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from plugind.protocol.leases import effects as e
from plugind.protocol.leases import messages as m
from plugind.protocol.leases.choosing import LeaseLine, choose
from plugind.protocol.leases.mapped import ResourceConfig
from plugind.protocol.leases.messages import Problem
from plugind.protocol.leases.replies import LimitMet
from plugind.protocol.leases.stock import Place, Stock
from plugind.protocol.leases.values import (
    ConnectionOwner,
    ContainerOwner,
    Lease,
    LeaseState,
    NoOwner,
    Owner,
    Pool,
    ProcessIdentity,
    Request,
    TimeOwner,
    UserLimits,
    Wanted,
)
from plugind.tests.protocol.hypothesis_settings import examples
from plugind.tests.protocol.leases.script import GPU, NIC, offer, request
from plugind.tests.protocol.leases.test_book import ALICE, BOB, CMD, INIT, ONE, ROOT, Inbox, Node

FILE = "/etc/plugind/plugind.toml:3"
TWO = request((GPU, 2))
LAB = Pool("lab", GPU, frozenset(["z"]), limits=UserLimits(devices_per_user=0))
#: Nanoseconds.
SECOND = 1_000_000_000


def limited(node: Node, *pools: Pool, **limits: object) -> None:
    """A reload puts limits for the resource in force."""
    of_users = UserLimits(source=FILE, **limits)  # type: ignore[arg-type] # they are those of the class
    node.send(m.LeaseRules(pools, resources={GPU: ResourceConfig(limits=of_users)}))


# --- a table of what is refused at once -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "owner", "wait", "said"),
    [
        (request((GPU, 3)), CMD, None, "3 of vendor.com/gpu are asked for, and a user may have 2 at once"),
        (
            ONE,
            TimeOwner(3601.0),
            None,
            "a lease of vendor.com/gpu for 3601s is asked for, and it lasts for 1h at most",
        ),
        (ONE, CMD, 90.0, "a wait of 90s for vendor.com/gpu is asked for, and it lasts for 1m at most"),
        (attrs.evolve(ONE, pool="lab"), CMD, None, "1 of vendor.com/gpu are asked for, and a user may have 0 at once"),
        (TWO, TimeOwner(3600.0), 60.0, None),
        (request((NIC, 3)), TimeOwner(9e6), 9e6, None),
    ],
)
def test_what_a_limit_never_allows_is_refused_with_its_place(
    asked: Request, owner: Owner, wait: float | None, said: str | None
) -> None:
    node = Node("a", "b", "c", "z")
    node.offer("n", "o", "p", resource=NIC)
    node.now = 1e6 / 3
    limited(node, LAB, devices_per_user=2, longest_lease=3600.0, longest_wait=60.0)
    asker = node.ask(asked, owner=owner, wait=wait)
    node.run()
    if said is None:
        assert asker.lease.state is LeaseState.HELD
        return
    assert asker.failure.problem is Problem.LIMIT
    met = asker.failure.limit
    assert met is not None
    where = f"limit {met.key}, {FILE}" if asked.pool is None else f"limit {met.key}"
    assert asker.failure.text == f"{said} ({where})"
    # Root has no limit of its own; whoever root leases for has.
    for_root = node.ask(asked, owner=owner, wait=wait, uid=ROOT)
    node.run()
    assert for_root.lease.uid == ROOT
    assert node.ask(attrs.evolve(asked, for_uid=ALICE), owner=owner, wait=wait, uid=ROOT).failure.limit == met


def test_the_key_of_a_limit_is_that_of_the_configuration() -> None:
    assert LimitMet("longest_wait", 60.0, GPU).key == f'resources."{GPU}".longest_wait'
    assert LimitMet("longest_wait", 60.0, GPU, "lab").key == f"longest_wait of the pool lab of {GPU}"


# --- in line ----------------------------------------------------------------------------------------------------------


def test_who_is_held_back_is_overtaken_and_told_so() -> None:
    node = Node("a", "b", "c")
    limited(node, devices_per_user=1)
    mine = node.hold(id="mine")
    told: Inbox[m.InLine] = Inbox()
    second = node.ask(wait=60.0, id="second", progress=told)
    why = (
        "it waits for a lease of its user to end: user 1000 has 1 of vendor.com/gpu and may have 1 at once"
        f' (limit resources."{GPU}".devices_per_user, {FILE})'
    )
    (in_line,) = told
    assert (in_line.place, in_line.shortage.text, in_line.shortage.holders) == (1, why, (mine,))
    assert in_line.shortage.limit == LimitMet("devices_per_user", 1, GPU, None, FILE)
    shown = node.book.find("second")
    assert shown is not None
    assert (shown.state, shown.reason) == (LeaseState.QUEUED, why)
    # Without --wait it fails at once, and another user gets all that is free.
    short = node.ask().failure
    assert (short.problem, short.limit, short.holders) == (Problem.LIMIT, in_line.shortage.limit, (mine,))
    assert "has 1 of vendor.com/gpu, waits for 1 before, and may have 1 at once" in short.text
    others = node.hold(TWO, uid=ROOT)
    assert others.devices == {GPU: ("b", "c")}
    node.release("mine")
    node.run()
    assert second.lease.devices == {GPU: ("a",)}
    assert second.lease.reason is None


def test_a_wait_that_the_limit_held_back_to_its_end_says_so() -> None:
    node = Node("a", "b")
    limited(node, devices_per_user=1)
    node.hold()
    second = node.ask(wait=5.0)
    node.wait(5.0)
    assert second.failure.problem is Problem.TIMEOUT
    assert second.failure.limit is not None


def test_a_lower_limit_takes_nothing_back_and_refuses_what_waits_for_more() -> None:
    node = Node("a", "b", "c")
    limited(node, devices_per_user=2)
    mine = node.hold(TWO)
    waits = node.ask(TWO, wait=60.0)
    limited(node, devices_per_user=1)
    assert waits.failure.limit == LimitMet("devices_per_user", 1, GPU, None, FILE)
    assert node.book.find(mine.id) == mine
    assert node.ask().failure.limit == LimitMet("devices_per_user", 1, GPU, None, FILE)
    waits = node.ask(wait=60.0)
    limited(node, devices_per_user=3)
    node.run()
    assert waits.lease.devices == {GPU: ("c",)}


def test_a_container_that_has_ended_makes_room_for_its_own_user() -> None:
    node = Node("a", "b")
    limited(node, devices_per_user=1)
    lease = node.hold(attrs.evolve(ONE, container=True), owner=ContainerOwner())
    node.bind(lease.id)
    node.run()
    bound = node.book.find(lease.id)
    assert bound is not None
    node.send(m.OwnerEnded(lease.id, bound.owner))
    second = node.ask()
    node.run()
    assert second.lease.devices == {GPU: ("a",)}
    assert node.ids() == {second.lease.id}


# --- the longest time -------------------------------------------------------------------------------------------------


def stops_of(node: Node) -> list[ProcessIdentity]:
    return [effect.process for effect in node.effects if isinstance(effect, e.StopOwner)]


@pytest.mark.parametrize(
    ("owner", "ends", "stops"),
    [
        (NoOwner(), True, False),
        (ContainerOwner(start_within=None), True, False),
        (ContainerOwner(start_within=1000.0), True, False),
        (CMD, False, True),
        (ContainerOwner(INIT), False, True),
        (ContainerOwner(INIT, start_within=None), False, True),
        (ConnectionOwner("hash"), False, False),
    ],
)
@pytest.mark.parametrize("stop", [False, True])
def test_the_longest_time_ends_what_nobody_may_use_and_stops_others_only_where_the_operator_says_so(
    owner: Owner, ends: bool, stops: bool, stop: bool
) -> None:
    node = Node("a")
    limited(node, longest_lease=100.0, stop_at_longest=stop)
    is_container = isinstance(owner, ContainerOwner)
    asked = attrs.evolve(ONE, container=is_container)
    unbound = attrs.evolve(owner, init=None) if isinstance(owner, ContainerOwner) else owner
    lease = node.hold(asked, owner=unbound)
    if unbound != owner:
        node.bind(lease.id)
        node.run()
    assert lease.longest_until == 1_000 + 100 * SECOND
    node.wait(99.0)
    assert node.ids() == {lease.id}
    assert not stops_of(node)
    node.wait(1.0)
    node.wait(60.0)
    found = node.book.find(lease.id)
    is_connection = isinstance(owner, ConnectionOwner)
    assert (found is None) is (ends or (stop and is_connection))
    assert len(stops_of(node)) == (stops and stop)
    if found is None:
        return
    assert (found.state, found.overdue) == (LeaseState.HELD, True)
    # Its device is nobody else's until the owner ends; a container has no grace then, and none follows it.
    assert node.ask(uid=BOB).failure.problem is Problem.UNAVAILABLE
    if is_connection:
        node.send(m.LeaseRules(resources={GPU: ResourceConfig(limits=UserLimits(stop_at_longest=True))}))
    else:
        node.send(m.OwnerEnded(lease.id, found.owner))
    assert not node.ids()


def test_an_operator_who_permits_it_later_stops_what_is_overdue_once() -> None:
    node = Node("a")
    limited(node, longest_lease=10.0)
    node.hold(owner=CMD)
    node.wait(10.0)
    assert not stops_of(node)
    for _ in range(2):
        limited(node, longest_lease=20.0, stop_at_longest=True)
    assert stops_of(node) == [CMD.process]


def test_a_renewal_ends_with_the_longest_time_and_is_refused_when_nothing_is_left() -> None:
    node = Node("a")
    limited(node, longest_lease=100.0)
    lease = node.hold(owner=TimeOwner(60.0))
    node.wait(50.0)
    answers: Inbox[Lease | m.Failure] = Inbox()
    node.send(m.RenewAsked(lease.id, ALICE, answers))
    node.run()
    (renewed,) = answers
    assert isinstance(renewed, Lease)
    assert renewed.owner == TimeOwner(60.0, lease.longest_until)
    node.send(m.RenewAsked(lease.id, ALICE, answers))
    refused = answers[-1]
    assert isinstance(refused, m.Failure)
    assert (refused.problem, refused.limit) == (Problem.LIMIT, LimitMet("longest_lease", 100.0, GPU, None, FILE))


def test_a_suspended_machine_goes_on_with_the_longest_time() -> None:
    node = Node("a")
    limited(node, longest_lease=1000.0)
    node.hold(owner=NoOwner())
    assert node.book.next_end <= node.now + 60.0
    node.boottime += 1000 * SECOND
    node.wait(60.0)
    assert not node.ids()


def test_a_restart_and_a_reload_leave_the_longest_time_as_it_was() -> None:
    node = Node("a")
    limited(node, longest_lease=100.0)
    lease = node.hold(owner=CMD)
    limited(node, longest_lease=10.0, stop_at_longest=True)
    again = Node("a")
    limited(again, stop_at_longest=True)
    again.take(again.book.start(m.Kept((lease,)), again.now))
    for each in (node, again):
        each.wait(99.0)
        assert not stops_of(each)
        each.wait(1.0)
        assert stops_of(each) == [CMD.process]
        assert each.ids() == {lease.id}


# --- never exceeded, no starvation, order of arrival -----------------------------------------------------------------

USERS = [ROOT, ALICE, BOB]
BIG = Pool("big", GPU, frozenset(("g4", "g5")))
PLACES: list[Place] = [(GPU, None), (NIC, None), (GPU, "big")]
most = st.none() | st.integers(0, 4)
limits_of_users = st.dictionaries(st.sampled_from(PLACES), st.builds(UserLimits, most), max_size=3)
counts = st.integers(1, 3)
requests = st.one_of(
    st.builds(lambda n: Request((Wanted(GPU, n),)), counts),
    st.builds(lambda n: Request((Wanted(GPU, n),), pool="big"), counts),
    st.builds(lambda n, k: Request((Wanted(NIC, n), Wanted(GPU, k))), counts, counts),
)
asks = st.tuples(st.sampled_from(USERS), requests)
acts = st.lists(asks | asks | st.integers(0, 5) | limits_of_users, max_size=30)


class Shared:
    """A line and its stock, and what its users have; whoever is granted has devices at once."""

    def __init__(self) -> None:
        self.stock = Stock([BIG])
        self.stock.offer(offer([f"g{number}" for number in range(6)]))
        self.stock.offer(offer(["n0", "n1"], NIC))
        self.line = LeaseLine()
        self.asked: dict[str, Lease] = {}
        self.held: dict[str, Lease] = {}

    def ask(self, uid: int, asked: Request) -> list[Lease]:
        name = f"l{len(self.asked):03}"
        self.asked[name] = Lease(name, uid, asked, NoOwner(), LeaseState.QUEUED, 0.0)
        self.line.add(name, len(self.asked), asked, uid)
        return self.grant()

    def release(self, at: int) -> list[Lease]:
        lease = self.held.pop(sorted(self.held)[at % len(self.held)])
        self.stock.give_lease_back(lease)
        return self.grant()

    def grant(self) -> list[Lease]:
        granted = []
        for name, reserved in self.line.take_fitting(self.stock):
            lease = self.asked[name]
            devices = {
                wanted.resource: choose(
                    self.stock.free((wanted.resource, lease.request.pool)),
                    wanted.count,
                    without=reserved.named(wanted.resource),
                )
                for wanted in lease.request.wanted
            }
            lease = self.held[name] = attrs.evolve(lease, devices=devices)
            self.stock.take_lease(lease)
            granted.append(lease)
            self.check_limits(lease)
        return granted

    def check_limits(self, lease: Lease) -> None:
        for resource in lease.devices if lease.uid else ():
            place = resource, lease.request.pool
            if (allowed := self.most(place)) is not None:
                assert self.had(lease.uid, place) <= allowed, "a grant exceeds a limit of its user"

    def most(self, place: Place) -> int | None:
        return self.stock.limits.get(place, UserLimits()).devices_per_user

    def had(self, uid: int, place: Place) -> int:
        return sum(
            len(lease.devices.get(place[0], ()))
            for lease in self.held.values()
            if (lease.uid, lease.request.pool) == (uid, place[1])
        )

    def waiting(self) -> list[Lease]:
        return [lease for name, lease in self.asked.items() if name in self.line]

    def permitted(self) -> list[Lease]:
        """Return those in line, in order, whose users may have them beside what they have and ask for before."""
        found, before = [], dict[tuple[int, Place], int]()
        for lease in self.waiting():
            wanted = {(name.resource, lease.request.pool): name.count for name in lease.request.wanted}
            totals = {
                place: self.had(lease.uid, place) + before.get((lease.uid, place), 0) + count
                for place, count in wanted.items()
            }
            if not self.stock.could(lease.request):
                continue
            if not lease.uid or all((top := self.most(place)) is None or n <= top for place, n in totals.items()):
                found.append(lease)
            for place, count in wanted.items():
                before[lease.uid, place] = before.get((lease.uid, place), 0) + count
        return found

    def fits(self, lease: Lease) -> bool:
        return all(
            len(self.stock.free((wanted.resource, lease.request.pool))) >= wanted.count
            for wanted in lease.request.wanted
        )


@examples(300)
@given(acts)
def test_no_limit_is_exceeded_and_nobody_starves(
    acts: list[tuple[int, Request] | int | dict[Place, UserLimits]],
) -> None:
    node = Shared()
    for act in acts:
        match act:
            case (uid, asked):
                granted = node.ask(uid, asked)
            case int() if node.held:
                granted = node.release(act)
            case dict():
                node.stock.limits = act
                granted = node.grant()
            case _:
                continue
        permitted = node.permitted()
        if permitted:
            assert not node.fits(permitted[0]), "the first one that its user's limits permit waits for nothing"
        if len(granted) == 1:
            (lease,) = granted
            for earlier in permitted:
                if earlier.id < lease.id:
                    event("one was granted while an earlier one waited")
                    check_order(node, earlier, lease)
            if any(each.id < lease.id and each not in permitted for each in node.waiting()):
                event("one that its user's limit held back was overtaken")
    # Everybody ends at some time; then nobody waits but those that ask for too much.
    while node.held:
        node.release(0)
    assert not node.permitted()
    for lease in node.waiting():
        allowed = [node.most((wanted.resource, lease.request.pool)) for wanted in lease.request.wanted]
        if node.stock.could(lease.request) and not any(
            each.uid == lease.uid and each.id < lease.id and node.stock.could(each.request) for each in node.waiting()
        ):
            wanted = [each.count for each in lease.request.wanted]
            assert any(top is not None and top < count for top, count in zip(allowed, wanted, strict=True)), lease


def check_order(node: Shared, earlier: Lease, later: Lease) -> None:
    """What ``later`` has got leaves enough for ``earlier``, of those resources of which it has taken some."""
    for wanted in earlier.request.wanted:
        if later.request.pool == earlier.request.pool and later.devices.get(wanted.resource):
            assert len(node.stock.free((wanted.resource, earlier.request.pool))) >= wanted.count
