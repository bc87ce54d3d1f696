"""What there is to lease: available devices, pools, ids that are not listed any more, and the texts of shortages."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.leases.choosing import Reserved, available, fits
from plugind.protocol.leases.free import natural
from plugind.protocol.leases.messages import Offer
from plugind.protocol.leases.shortages import shortage, unhealthy_since
from plugind.protocol.leases.stock import Stock
from plugind.protocol.leases.values import Lease, LeaseState, NoOwner, Pool, Request
from plugind.protocol.plugins.devices import HEALTHY, Device, DeviceList
from plugind.tests.protocol.hypothesis_settings import examples
from plugind.tests.protocol.leases.script import GPU, NIC, PLUGIN, UNHEALTHY, Calls, offer, request

NONE = Reserved()


def stock(*words: str, taken: str = "", pools: tuple[Pool, ...] = ()) -> Stock:
    made = Stock(pools)
    made.offer(offer(words))
    made.take("other", GPU, taken.split())
    return made


def number(of: Stock, asked: Request, reserved: Reserved = NONE) -> int:
    return available(of, reserved, asked, asked.wanted[0])


ONE = request((GPU, 1))


def test_a_device_is_not_taken_twice() -> None:
    of = stock("a", "b", taken="a")
    with pytest.raises(ValueError, match=r"a of vendor\.com/gpu is already taken by the lease other"):
        of.take("mine", GPU, ["b", "a"])
    assert set(of.free((GPU, None))) == {"b"}


def test_renamed_devices_do_not_make_leased_ones_available() -> None:
    of = stock("a0", "a1", "a2", "a3", taken="a0 a1")
    of.offer(offer(["b0", "b1", "b2", "b3"]))
    assert number(of, ONE) == 2
    of.offer(offer(["a0", "b1", "b2", "b3"]))
    assert number(of, ONE) == 2, "a1 is one of b1, b2 and b3"
    of.give_back(GPU, ["a0"])
    assert number(of, ONE) == 3
    of.give_back(GPU, ["a1"])
    assert number(of, ONE) == 4


def test_a_request_may_ignore_leased_devices_that_are_not_listed() -> None:
    of = stock("a0", "a1", taken="a0")
    of.offer(offer(["a1"]))
    assert number(of, ONE) == 0
    assert number(of, attrs.evolve(ONE, ignore_missing=True)) == 1


def test_a_lost_plugin_or_resource_makes_nothing_available_and_ends_nothing() -> None:
    of = stock("a", "b", taken="a")
    of.offer(offer(["a", "b"], key=None))
    assert not fits(of, NONE, ONE)
    of.end(GPU)
    assert not fits(of, NONE, ONE)
    of.offer(offer(["a", "b"]))
    assert set(of.free((GPU, None))) == {"b"}
    of.end(GPU)
    of.give_back(GPU, ["a"])
    of.offer(offer(["a", "b"]))
    assert number(of, ONE) == 2


POOL = Pool("big", GPU, frozenset(("a", "b")), frozenset((1000,)))


def test_devices_of_a_pool_are_taken_only_from_the_pool() -> None:
    of = stock("a", "b", "c", pools=(POOL,))
    assert set(of.free((GPU, None))) == {"c"}
    assert set(of.free((GPU, "big"))) == {"a", "b"}
    of.take("lease", GPU, ["a"])
    assert number(of, attrs.evolve(ONE, pool="big")) == 1
    assert not fits(of, NONE, request((GPU, 1), ids="a"))
    assert not fits(of, NONE, request((GPU, 1), ids="c", pool="big"))
    of.give_back(GPU, ["a"])
    assert fits(of, NONE, request((GPU, 2), ids="a b", pool="big"))


def test_devices_of_a_pool_from_which_only_root_may_take_are_not_free() -> None:
    """The record counted them, so that a node whose devices were all kept from use looked as if it had some."""
    of = stock("a", "b", "c", "d", pools=(POOL, Pool("kept", GPU, frozenset("c"), frozenset((0,)))))
    assert dict(of.free_numbers()) == {GPU: 3}
    of.take("lease", GPU, ["a"])
    assert dict(of.free_numbers()) == {GPU: 2}
    of.offer(offer(["b", "c", "d"]))
    assert dict(of.free_numbers()) == {GPU: 1}, "the leased device may be listed by another id"
    of.end(GPU)
    assert dict(of.free_numbers()) == {GPU: 0}


def test_a_pool_without_ids_has_the_whole_resource() -> None:
    of = stock("a", "b", pools=(Pool("all", GPU),))
    assert not fits(of, NONE, ONE)
    assert fits(of, NONE, request((GPU, 2), pool="all"))


def test_two_pools_with_a_device_in_common_are_refused() -> None:
    for other in (Pool("other", GPU, frozenset("bc")), Pool("other", GPU)):
        with pytest.raises(ValueError, match=r"the pools big and other have devices of vendor\.com/gpu in common"):
            Stock((POOL, other))
    Stock((POOL, Pool("other", GPU, frozenset("c")), Pool("big", NIC)))


UNKNOWN = "cannot allocate unregistered device {}, which nobody has offered; 'plugind devices' lists what there is"
TOO_FEW = "requested number of devices unavailable for vendor.com/gpu. Requested: {}, Available: {}"


@pytest.mark.parametrize(
    ("words", "asked", "text"),
    [
        ("a b c", request(("other.com/x", 1)), UNKNOWN.format("other.com/x")),
        (
            "a b c",
            request(("vendor.com/gpus", 1)),
            "cannot allocate unregistered device vendor.com/gpus: did you mean vendor.com/gpu?",
        ),
        (
            "a! b! c!",
            ONE,
            "no healthy devices present; cannot allocate unhealthy devices vendor.com/gpu; unhealthy: b, c",
        ),
        ("", ONE, "no healthy devices present; cannot allocate unhealthy devices vendor.com/gpu"),
        ("a b c", request((GPU, 3)), TOO_FEW.format(3, 2)),
        ("a b! c", request((GPU, 2)), TOO_FEW.format(2, 1) + "; unhealthy: b"),
        ("a b! c", request((GPU, 4)), TOO_FEW.format(4, 1) + "; unhealthy: b; there are 3 in all"),
        (
            "a b! c d",
            request((GPU, 5), ids="a b c x d"),
            TOO_FEW.format(5, 2) + " (a is leased by other, b is unhealthy, x is not listed)",
        ),
        ("a b c", request((GPU, 2), include="a"), TOO_FEW.format(2, 2) + " (a is leased by other)"),
        ("a b c", request((GPU, 1), ids="c", pool="big"), TOO_FEW.format(1, 0) + " (c is in no pool)"),
        ("a b c", request((GPU, 1), (NIC, 1)), UNKNOWN.format(NIC)),
    ],
)
def test_pod_container_device_to_allocate(words: str, asked: Request, text: str) -> None:
    """TestPodContainerDeviceToAllocate: the right errors, with the kubelet's words."""
    assert shortage(stock(*words.split(), taken="a" if words else ""), NONE, asked, 7) == text


def test_what_is_free_in_other_pools_is_said_to_those_who_may_take_it() -> None:
    closed = Pool("closed", GPU, frozenset("de"), frozenset((1000,)))
    of = stock(*"abcdefg", taken="a b d", pools=(Pool("lab", GPU, frozenset("bc")), closed))
    # Of those in no pool, f and g are free.
    three, inside, named = request((GPU, 3)), request((GPU, 2), pool="lab"), request((GPU, 3), include="f")
    few = TOO_FEW.format(3, 2)
    assert shortage(of, NONE, three, 7) == f"{few}; more are free, 1 in the pool lab: ask with --pool"
    assert shortage(of, NONE, three, 1000) == (
        f"{few}; more are free, 1 in the pool lab, 1 in the pool closed: ask with --pool"
    )
    assert shortage(of, NONE, inside, 7) == (
        TOO_FEW.format(2, 1) + "; more are free, 2 in no pool: ask with another --pool, or without one"
    )
    assert shortage(of, NONE, named, 0) == few
    # What others wait for is not free.
    waited = Reserved()
    waited.add(request((GPU, 1), pool="lab"))
    assert shortage(of, waited, three, 7) == few


def test_a_plugin_that_is_not_there_is_named_with_the_reason() -> None:
    of = Stock()
    of.offer(offer([], key=None, reason="no device plugin has registered since the restart"))
    assert shortage(of, NONE, ONE, 7) == (
        "unknown Device Plugin vendor.com/gpu (no device plugin has registered since the restart)"
    )
    of.offer(offer(["a"], key=None, reason="the stream ended"))
    assert shortage(of, NONE, ONE, 7) == (
        "no healthy devices present; cannot allocate unhealthy devices vendor.com/gpu (the stream ended)"
    )
    of.offer(attrs.evolve(offer([]), reason="no node matches /dev/gpu*"))
    assert shortage(of, NONE, ONE, 7) == "vendor.com/gpu has no devices (no node matches /dev/gpu*)"


def test_why_a_named_device_cannot_be_taken_is_said_and_it_does_not_count_as_available() -> None:
    of = Stock()
    sick, held, free = (
        Device(name, health, identity=name)
        for name, health in (("x", "others may replace it"), ("a", HEALTHY), ("b", HEALTHY))
    )
    of.offer(Offer(NIC, DeviceList((sick, held, free)), PLUGIN, calls=Calls()))
    of.offer(Offer(GPU, DeviceList((attrs.evolve(held, id="other"),)), PLUGIN, calls=Calls()))
    of.take("other", GPU, ["other"])
    few = f"requested number of devices unavailable for {NIC}. Requested: 1, Available: 0"
    assert shortage(of, NONE, request((NIC, 1), ids="x"), 7) == f"{few} (x is unhealthy (others may replace it))"
    assert shortage(of, NONE, request((NIC, 1), ids="a"), 7) == f"{few} (a is leased under another name)"


@pytest.mark.parametrize("named", ["", "a2"])
def test_free_devices_that_are_kept_back_for_missing_ones_are_explained(named: str) -> None:
    """Three of four are listed and free, and the fourth is leased: it may be one of these by another id."""
    of = stock("a0", "a1", "a2", "a3", taken="a3")
    of.offer(offer(["a0", "a1", "a2"]))
    assert shortage(of, NONE, request((GPU, 3), include=named), 7) == (
        TOO_FEW.format(3, 2)
        + "; leased and no longer listed: a3; as many others are kept back, since they may be the same devices with"
        " other ids: ask with --ignore-missing if they are not"
    )
    assert fits(of, NONE, request((GPU, 3), ignore_missing=True))
    assert shortage(of, NONE, request((GPU, 4), ignore_missing=True), 7) == TOO_FEW.format(4, 3)


def test_devices_of_a_lease_that_are_unhealthy_since() -> None:
    """TestPodContainerDeviceToAllocate: devices that are held are taken again, and unhealthy ones are an error."""
    lease = Lease("x", 0, ONE, NoOwner(), LeaseState.HELD, 0.0, {GPU: ("a", "b")})
    of = stock("a", "b", taken="a b")
    assert unhealthy_since(of, lease) is None
    of.offer(offer(["a", "b!"]))
    assert unhealthy_since(of, lease) == (
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices vendor.com/gpu"
    )
    of.offer(offer(["a", "b!"], key=None))
    assert unhealthy_since(of, lease) is None, "nobody knows more of them"


some_device = st.builds(
    Device,
    st.sampled_from([f"g{number}" for number in range(8)]),
    st.sampled_from(["Healthy", "Healthy", UNHEALTHY]),
    st.sampled_from([(), (0,), (1,), (0, 1), (1, 0)]),
)
some_devices = st.lists(some_device, max_size=8, unique_by=lambda device: device.id)


@examples(100)
@given(
    st.lists(st.one_of(st.tuples(st.just("list"), some_devices), st.tuples(st.booleans(), some_devices)), max_size=8)
)
def test_each_change_of_a_list_leads_to_what_the_list_says(changes: list[tuple[object, list[Device]]]) -> None:
    """Devices are taken and given back meanwhile, and the plugin is lost at times."""
    of, listed, taken = Stock([Pool("big", GPU, frozenset(("g1", "g2")))]), DeviceList(), set[str]()
    for kind, some in changes:
        listed = DeviceList(some) if kind == "list" else listed.replacing(some)
        lost = kind is True
        of.offer(Offer(GPU, listed, None if lost else PLUGIN, calls=Calls()))
        for device in some[:3]:
            if device.id in taken:
                of.give_back(GPU, [device.id])
            else:
                of.take("lease", GPU, [device.id])
            taken ^= {device.id}
        assert of.missing(GPU).keys() == taken - listed.devices.keys()
        for pool, ids in (("big", {"g1", "g2"}), (None, {"g0", "g3", "g4", "g5", "g6", "g7"})):
            healthy = {
                device_id
                for device_id, device in listed.devices.items()
                if device.healthy and device_id in ids and not lost
            }
            assert of.healthy((GPU, pool)).keys() == healthy
            assert of.free((GPU, pool)) == {device_id: listed.devices[device_id] for device_id in healthy - taken}
            in_order = of.free((GPU, pool)).in_order(len)
            key = [(len(device.numa), natural(device.id)) for device in in_order]
            assert key == sorted(key)
            assert len(key) == len(healthy - taken)


@given(data=st.data())
@examples(100)
def test_devices_that_are_sorted_into_other_pools_are_as_in_a_stock_that_began_with_these(data: st.DataObject) -> None:
    """In which pool a device is decides the present configuration alone, and what is taken stays taken."""
    words = [f"{name}{data.draw(st.sampled_from(['', '!']))}" for name in "abcdef"]
    taken = " ".join(data.draw(st.sets(st.sampled_from("abcdefg"))))
    before, after = (data.draw(_POOLS) for _ in range(2))
    changed, fresh = stock(*words, taken=taken, pools=before), stock(*words, taken=taken, pools=after)
    changed.sort_into(after)
    for of in (changed, fresh):
        of.give_back(GPU, taken.split()[:1])
    for pool in (None, "x", "y"):
        assert changed.healthy((GPU, pool)) == fresh.healthy((GPU, pool))
        assert list(changed.free((GPU, pool))) == list(fresh.free((GPU, pool)))
    assert changed.missing(GPU).keys() == fresh.missing(GPU).keys()


_POOLS = st.lists(st.sampled_from("abcdef"), unique=True, min_size=2).map(
    lambda ids: (Pool("x", GPU, frozenset(ids[:1])), Pool("y", GPU, frozenset(ids[1:])))
) | st.just(())
