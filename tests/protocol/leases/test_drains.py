"""What is out of service: nothing of it is given, holders keep theirs, and time or an operator ends it."""

from __future__ import annotations

import pytest

from plugind.protocol.leases import draining
from plugind.protocol.leases import effects as e
from plugind.protocol.leases import messages as m
from plugind.protocol.leases.book import Book, Sources
from plugind.protocol.leases.drains import NODE, Drain, DrainTarget
from plugind.protocol.leases.leases_json import drain_from_json, drain_to_json
from plugind.protocol.leases.messages import Failure, Problem
from plugind.protocol.leases.values import NoOwner
from plugind.tests.protocol.leases.script import GPU, NIC, request
from plugind.tests.protocol.leases.test_book import ALICE, ROOT, TOO_FEW, Inbox, Node

G0 = DrainTarget(GPU, "g0")


def drain(
    node: Node, target: DrainTarget, reason: str = "", until: float | None = None, uid: int = ROOT
) -> Inbox[Drain | Failure]:
    inbox: Inbox[Drain | Failure] = Inbox()
    node.send(m.DrainAsked(Drain(target, uid, 0.0, reason, until), inbox))
    return inbox


def undrain(node: Node, target: DrainTarget, uid: int = ROOT) -> Inbox[Drain | Failure]:
    inbox: Inbox[Drain | Failure] = Inbox()
    node.send(m.UndrainAsked(target, uid, inbox))
    return inbox


def drained(node: Node, *targets: DrainTarget, reason: str = "", until: float | None = None) -> None:
    for target in targets:
        drain(node, target, reason, until)
    node.save()


def wall(node: Node) -> float:
    return 1e9 + node.now


def free(node: Node) -> dict[str, int]:
    return dict(node.book.snapshot(node.now).free)


@pytest.mark.parametrize(
    ("target", "left"),
    [
        (G0, {GPU: 1, NIC: 1}),
        (DrainTarget(GPU, "s"), {GPU: 1, NIC: 1}),
        (DrainTarget(GPU, "s::0"), {GPU: 1, NIC: 1}),
        (DrainTarget(GPU), {GPU: 0, NIC: 1}),
        (NODE, {GPU: 0, NIC: 0}),
        (DrainTarget("other.com/x"), {GPU: 2, NIC: 1}),
    ],
)
def test_what_a_drain_covers_is_not_free(target: DrainTarget, left: dict[str, int]) -> None:
    """A resource that is offered, or a device that is listed, after the drain is covered as well."""
    late, early = Node(), Node()
    early.offer("g0", "s::0")
    early.offer("n0", resource=NIC)
    drained(early, target)
    drained(late, target)
    late.offer("g0")
    late.offer("g0", "s::0")
    late.offer("n0", resource=NIC)
    assert free(early) == free(late) == left
    undrain(early, target)
    early.save()
    assert free(early) == {GPU: 2, NIC: 1}


def test_a_drain_counts_once_it_is_written_and_holders_keep_theirs() -> None:
    node = Node("g0")
    held = node.hold(owner=NoOwner())
    asked = drain(node, G0, "broken fan", wall(node) + 90)
    assert not asked
    assert not node.book.drains
    node.save()
    assert asked == [Drain(G0, ROOT, wall(node), "broken fan", wall(node) + 90)]
    assert node.book.find(held.id) == held
    failure = node.ask().failure
    assert failure.text == TOO_FEW.format(1, 0) + f"; drained: {GPU}:g0 until 2001-09-09T01:48:10.000Z: broken fan"
    named = node.ask(request((GPU, 1), ids="g0")).failure
    assert "(g0 is drained until 2001-09-09T01:48:10.000Z: broken fan)" in named.text
    node.send(m.ReleaseAsked((held.id,), ROOT, Inbox()))
    node.save()
    assert node.ask().failure.text.startswith(TOO_FEW.format(1, 0))


def test_one_that_waits_for_a_drained_device_keeps_nobody_waiting_and_gets_it_afterwards() -> None:
    node = Node("g0", "g1")
    drained(node, G0)
    waiting = node.ask(request((GPU, 1), ids="g0"), wait=1e4)
    both = node.ask(request((GPU, 2)), wait=1e4)
    held = node.hold(owner=NoOwner())
    assert held.devices == {GPU: ("g1",)}
    undrain(node, G0)
    node.run()
    assert waiting.lease.devices == {GPU: ("g0",)}
    assert not both.inbox


def test_one_whose_plugin_was_asked_for_its_preference_gets_other_devices() -> None:
    node = Node()
    node.offer("g0", "g1", "g2", preferred=True)
    asked = node.ask()
    drained(node, G0)
    [call] = node.calls
    node.send(m.Preferred(call.lease, GPU, ("g0",)))
    node.save()
    assert node.book.snapshot(0.0).leases[0].devices == {GPU: ("g1",)}
    assert not asked.inbox


def test_a_drain_ends_by_itself_also_when_the_clock_is_set() -> None:
    node = Node("g0")
    drained(node, G0, until=wall(node) + 90)
    assert node.book.next_end == node.now + 60, "the clock may be set meanwhile"
    node.wait(60)
    assert node.book.next_end == node.now + 30
    node.wait(29.5)
    assert free(node) == {GPU: 0}
    node.wait(0.5)
    assert free(node) == {GPU: 1}
    [_, ended] = [effect for effect in node.effects if isinstance(effect, e.ShowDrain)]
    assert ended.ended == "its time is over"
    assert [write.changes for write in node.disk] == [(e.SaveDrain(G0, None),)]


def test_a_drain_that_is_repeated_has_another_reason_and_end_and_its_beginning() -> None:
    node = Node("g0")
    drained(node, G0, reason="first", until=wall(node) + 90)
    began = wall(node)
    node.wait(50)
    again = drain(node, G0, "second")
    node.save()
    assert again == [Drain(G0, ROOT, began, "second", None)]
    node.wait(1000)
    assert free(node) == {GPU: 0}


def test_who_may_not_drain_and_what_is_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "MAX_DRAINS", 4)
    node = Node("g0")
    drained(node, G0, DrainTarget(NIC))
    only = Failure(Problem.FORBIDDEN, "only root and the user of the daemon may do that")
    assert drain(node, NODE, uid=ALICE) == [only]
    assert undrain(node, G0, ALICE) == [only]
    assert undrain(node, DrainTarget(GPU)) == [
        Failure(Problem.UNKNOWN, f"{GPU} is not drained; drained: {GPU}:g0, {NIC}")
    ]
    past = drain(node, G0, until=wall(node))
    assert past == [Failure(Problem.USAGE, "2001-09-09T01:46:40.000Z is over: name a later time")]
    drained(node, *(DrainTarget(GPU, f"x{number}") for number in range(2)))
    [most] = drain(node, NODE)
    assert isinstance(most, Failure)
    assert most.problem is Problem.LIMIT
    [none] = undrain(Node(), NODE)
    assert isinstance(none, Failure)
    assert none.text == "the node is not drained; nothing is"


def test_a_daemon_that_leases_nothing_drains_nothing() -> None:
    """It keeps no state, so the drain would be lost."""
    node = Node()
    node.book = Book(Inbox[m.CallMessage](), Sources(lambda: 1e9, lambda: 0, lambda: 1), closed="no state")
    assert drain(node, NODE) == [Failure(Problem.STORAGE, "no state")]


def test_what_cannot_be_written_is_taken_back() -> None:
    """It may be written in part, or later."""
    node = Node("g0")
    asked = drain(node, G0)
    node.disk.clear()
    node.send(m.Saved(1, "disk full", unknown=True))
    assert asked == [Failure(Problem.STORAGE, "that cannot be written: disk full")]
    assert [write.changes for write in node.disk] == [(e.SaveDrain(G0, None),)]
    assert free(node) == {GPU: 1}


def test_of_two_changes_the_later_one_stands() -> None:
    node = Node("g0")
    first, second = drain(node, G0, "first"), drain(node, G0, "second")
    one, two = (write.number for write in node.disk)
    node.disk.clear()
    node.send(m.Saved(one, "disk full"))
    assert not node.disk, "the second write takes the place of the first"
    node.send(m.Saved(two))
    assert isinstance(first[0], Failure)
    assert second == [node.book.drains[G0]]


def test_drains_outlive_restarts_and_end_if_their_time_has_passed() -> None:
    node = Node()
    kept = (Drain(NODE, ROOT, 5.0, "move", 1e9 + 30), Drain(G0, ROOT, 6.0))
    node.take(node.book.start(m.Kept(drains={drain.target: drain for drain in kept}), 0.0))
    node.offer("g0", "g1")
    assert free(node) == {GPU: 0}
    node.wait(30)
    assert free(node) == {GPU: 1}
    assert [*node.book.drains] == [G0]


@pytest.mark.parametrize("target", [NODE, G0, DrainTarget(GPU)])
@pytest.mark.parametrize("until", [None, 2e9])
def test_the_json_of_a_drain_is_read_as_it_was_written(target: DrainTarget, until: float | None) -> None:
    drain = Drain(target, 5, 1e9, "why", until)
    content = drain_to_json(drain)
    assert drain_from_json(content) == drain
    assert content["until"] == (None if until is None else "2033-05-18T03:33:20.000Z")


@pytest.mark.parametrize(
    "wrong",
    [{"device": "g0", "resource": None}, {"by": "root"}, {"until_unix": 1e300}, {"since_unix": None}, {"reason": 5}],
)
def test_the_json_of_no_drain_is_refused(wrong: dict[str, object]) -> None:
    content = {**drain_to_json(Drain(DrainTarget(GPU), 0, 1.0)), **wrong}
    with pytest.raises((TypeError, ValueError)):
        drain_from_json(content)


def test_metrics_and_readers_see_what_is_drained() -> None:
    node = Node("g0", "g1", "g2!")
    drained(node, DrainTarget(GPU), DrainTarget(NIC, "n7"))
    shown = node.book.snapshot(0.0)
    assert shown.drained == {GPU: 3}
    assert shown.drains.keys() == {DrainTarget(GPU), DrainTarget(NIC, "n7")}
    assert shown.free == {GPU: 0}
