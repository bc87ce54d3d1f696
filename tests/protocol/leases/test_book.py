"""Book as a whole: what follows from each message to the lease actor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TypeVar

import attrs
import pytest

from plugind.protocol.leases import effects as e
from plugind.protocol.leases import messages as m
from plugind.protocol.leases.book import Book, Sources
from plugind.protocol.leases.config import LeaseLimits
from plugind.protocol.leases.grace import GRACE
from plugind.protocol.leases.mapped import ResourceConfig
from plugind.protocol.leases.messages import Failure, Problem
from plugind.protocol.leases.values import (
    Answer,
    ConnectionOwner,
    ContainerOwner,
    Lease,
    LeaseState,
    Mount,
    NoOwner,
    Owner,
    Pool,
    ProcessIdentity,
    ProcessOwner,
    Request,
    TimeOwner,
    identity_key,
)
from plugind.protocol.leases.values import Node as LeasedNode
from plugind.protocol.plugins.devices import Device, DeviceList
from plugind.tests.protocol.leases.script import GPU, NIC, PLUGIN, offer, request

T = TypeVar("T")

ALICE, BOB, ROOT = 1000, 1001, 0
CMD = ProcessOwner(ProcessIdentity(991, 5, "boot"))
ONE = request((GPU, 1))
BOTH = request((GPU, 1), (NIC, 1))
INIT = ProcessIdentity(77, 8, "boot")
OTHER_INIT = ProcessIdentity(78, 9, "boot")
FOR_ALICE = attrs.evolve(ONE, for_uid=ALICE)
IN_CONTAINER = attrs.evolve(ONE, container=True)
TOO_FEW = "requested number of devices unavailable for vendor.com/gpu. Requested: {}, Available: {}"


class Inbox(list[T]):
    def send_nowait(self, message: T, /) -> None:
        self.append(message)


class Node:
    """The lease actor's book, with a disk, plugins and owners that do what the test says."""

    def __init__(self, *gpus: str, pools: Sequence[Pool] = (), limits: LeaseLimits | None = None) -> None:
        self.now = 0.0
        self.boottime = 1_000
        numbers = itertools.count()
        sources = Sources(lambda: 1e9 + self.now, lambda: self.boottime, lambda: next(numbers))
        rules = m.LeaseRules(tuple(pools), limits or LeaseLimits())
        self.book = Book(Inbox[m.CallMessage](), sources, rules)
        self.tickets = itertools.count(1)
        self.effects: list[e.Effect] = []
        self.disk: list[e.Write] = []
        self.calls: list[m.PluginCall] = []
        self.files: list[e.WriteFile] = []
        if gpus:
            self.offer(*gpus)
        self.effects.clear()

    def send(self, message: m.StateMessage) -> list[e.Effect]:
        return self.take(self.book.handle(message, self.now))

    def take(self, effects: list[e.Effect]) -> list[e.Effect]:
        for effect in effects:
            match effect:
                case e.AnswerAsker():
                    effect.send()
                case e.TellPlace():
                    effect.progress.send_nowait(effect.place)
                case e.Write():
                    self.disk.append(effect)
                case e.CallPlugin():
                    self.calls.append(effect.call)
                case e.WriteFile():
                    self.files.append(effect)
                case _:
                    pass
        self.effects += effects
        return effects

    def offer(self, *words: str, resource: str = GPU, preferred: bool = False, lost: bool = False) -> None:
        key = None if lost else PLUGIN
        self.send(m.OfferChanged(offer(words, resource, preferred=preferred, key=key)))

    def ask(
        self,
        asked: Request = ONE,
        *,
        id: str | None = None,  # noqa: A002 - as in the message
        uid: int = ALICE,
        owner: Owner = CMD,
        wait: float | None = None,
        progress: Inbox[m.InLine] | None = None,
    ) -> Asker:
        inbox: Inbox[Lease | Failure] = Inbox()
        ticket = next(self.tickets)
        deadline = None if wait is None else self.now + wait
        self.send(m.LeaseAsked(asked, owner, uid, ticket, inbox, id, deadline, progress))
        return Asker(inbox, ticket)

    def save(self, error: str | None = None) -> None:
        """Let the disk finish all writes."""
        while self.disk:
            write = self.disk.pop(0)
            if write.awaited:
                self.send(m.Saved(write.number, error))

    def allocated(self, **env: str) -> None:
        """Let the plugin answer the next call."""
        call = self.calls.pop(0)
        self.send(m.Allocated(call.lease, call.resource, Answer(env), uid=0))

    def hold(self, asked: Request = ONE, **more: object) -> Lease:
        """Ask for a lease, and let everything succeed."""
        asker = self.ask(asked, **more)  # type: ignore[arg-type] # they are those of ask
        self.run()
        return asker.lease

    def run(self) -> None:
        """Let everything succeed that is under way."""
        while self.disk or self.calls or self.files:
            self.save()
            for call in [*self.calls]:
                self.calls.remove(call)
                if isinstance(call, m.AllocateAsked):
                    self.send(m.Allocated(call.lease, call.resource, Answer(), uid=0))
                else:
                    self.send(m.Preferred(call.lease, call.resource))
            for file in [*self.files]:
                self.files.remove(file)
                self.send(m.FileWritten(file.lease.id))

    def ask_release(self, *ids: str, uid: int = ALICE) -> Inbox[m.Released | Failure]:
        inbox: Inbox[m.Released | Failure] = Inbox()
        self.send(m.ReleaseAsked(ids, uid, inbox))
        return inbox

    def release(self, *ids: str, uid: int = ALICE) -> m.Released | Failure:
        """Ask for it, and let the disk write what follows."""
        inbox = self.ask_release(*ids, uid=uid)
        if not inbox:
            self.save()
        return inbox[0]

    def bind(self, lease: str, init: ProcessIdentity = INIT, uid: int = ALICE) -> Inbox[Lease | Failure]:
        inbox: Inbox[Lease | Failure] = Inbox()
        self.send(m.BindAsked(lease, uid, init, inbox))
        return inbox

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.boottime += round(seconds * 1e9)
        self.take(self.book.pass_time(self.now))

    def states(self) -> list[str]:
        return [lease.state.value for lease in self.book.snapshot(self.now).leases]

    def ids(self) -> set[str]:
        return {lease.id for lease in self.book.snapshot(self.now).leases}

    def last_writes(self) -> list[e.Change]:
        changes = [change for write in self.disk for change in write.changes]
        self.disk.clear()
        return changes


@attrs.define
class Asker:
    inbox: Inbox[Lease | Failure]
    ticket: int

    @property
    def lease(self) -> Lease:
        (answer,) = self.inbox
        assert isinstance(answer, Lease), answer
        return answer

    @property
    def failure(self) -> Failure:
        (answer,) = self.inbox
        assert isinstance(answer, Failure), answer
        return answer

    @property
    def why(self) -> tuple[str, str]:
        return self.failure.problem.value, self.failure.text


# --- to get a lease ---------------------------------------------------------------------------------------------------


def test_a_lease_is_written_before_allocate_and_again_before_the_reply() -> None:
    node = Node("a", "b")
    asker = node.ask()
    (write,) = node.disk
    (saved,) = write.changes
    assert isinstance(saved, e.SaveLease)
    assert write.awaited is True
    assert (saved.lease.state, saved.lease.devices) == (LeaseState.PENDING, {GPU: ("a",)})
    assert node.calls == []
    node.save()
    (call,) = node.calls
    assert isinstance(call, m.AllocateAsked)
    assert (call.resource, call.devices, call.pre_start) == (GPU, ("a",), False)
    node.allocated(A="1")
    (write,) = node.disk
    (saved,) = write.changes
    assert isinstance(saved, e.SaveLease)
    assert saved.lease.state is LeaseState.HELD
    assert not asker.inbox
    assert node.states() == ["pending"]
    node.save()
    assert asker.lease == saved.lease
    assert asker.lease.answer == Answer({"A": "1"})
    assert node.states() == ["held"]


def test_pod_container_device_allocation() -> None:
    """TestPodContainerDeviceAllocation: as many devices as are asked for, or an error that says why not."""
    node = Node("a", "b", "c")
    assert node.hold(request((GPU, 2)), id="x").devices == {GPU: ("a", "b")}
    asker = node.ask(request((GPU, 2)))
    assert asker.why == ("unavailable", TOO_FEW.format(2, 1))
    assert [lease.id for lease in asker.failure.holders] == ["x"]
    problem, text = node.ask(request(("other.com/x", 1))).why
    assert (problem, text[:48]) == ("unavailable", "cannot allocate unregistered device other.com/x,")
    assert node.states() == ["held"]


def test_get_preferred_allocation_parameters() -> None:
    """TestGetPreferredAllocationParameters: what is available, what must be included, and the number."""
    node = Node()
    node.offer("a", "b", "c!", "d", "e", preferred=True)
    node.hold(request((GPU, 1), ids="a"))
    asker = node.ask(request((GPU, 2), include="d"))
    (call,) = node.calls
    assert isinstance(call, m.PreferenceAsked)
    assert (call.available, call.must_include, call.size) == (("b", "d", "e"), ("d",), 2)
    node.calls.clear()
    node.send(m.Preferred(call.lease, GPU, ("e", "a", "d")))
    node.run()
    assert asker.lease.devices == {GPU: ("d", "e")}


@pytest.mark.parametrize("answer", ["error", "refused", "nonsense"])
def test_without_a_preference_of_use_devices_are_chosen_by_name(answer: str) -> None:
    node = Node()
    node.offer("a", "b", "c", preferred=True)
    asker = node.ask()
    lease = node.calls.pop().lease
    if answer == "refused":
        node.send(m.AllocationRefused(lease, GPU, "the plugin has left"))
    else:
        node.send(m.Preferred(lease, GPU, () if answer == "error" else ("x",), answer))
    node.run()
    assert asker.lease.devices == {GPU: ("a",)}


def test_nobody_is_asked_for_a_preference_where_there_is_no_choice() -> None:
    node = Node()
    node.offer("a", "b", preferred=True)
    node.ask(request((GPU, 1), ids="b"))
    node.ask()
    assert node.calls == []


def test_a_list_that_comes_during_an_allocation_gives_no_device_to_two() -> None:
    """TestDevicesToAllocateConflictWithUpdateAllocatedDevices."""
    node = Node()
    node.offer("a", "b", "c", preferred=True)
    first = node.ask()
    node.offer("b", "c", preferred=True)
    second = node.ask()
    for lease in [call.lease for call in node.calls]:
        node.send(m.Preferred(lease, GPU, ("b",)))
    node.calls.clear()
    node.run()
    assert [first.lease.devices, second.lease.devices] == [{GPU: ("c",)}, {GPU: ("b",)}]


def test_several_resources_are_prepared_one_after_the_other() -> None:
    node = Node("a")
    node.offer("n", resource=NIC)
    asker = node.ask(BOTH)
    node.save()
    assert [call.resource for call in node.calls] == [GPU]
    node.allocated(A="1")
    assert [call.resource for call in node.calls] == [NIC]
    node.allocated(B="2")
    node.save()
    assert asker.lease.answer == Answer({"A": "1", "B": "2"})


@pytest.mark.parametrize(("plugin", "taken"), [(0, True), (ALICE, True), (BOB, False), (None, False)])
def test_variables_are_taken_from_plugins_of_root_and_of_the_asker(plugin: int | None, taken: bool) -> None:
    node = Node("a")
    asker = node.ask(id="x")
    node.save()
    node.send(m.Allocated("x", GPU, Answer({"LD_PRELOAD": "/evil.so"}), uid=plugin))
    node.save()
    answer = asker.lease.answer
    assert answer is not None
    assert (dict(answer.env), len(asker.lease.warnings)) == (({"LD_PRELOAD": "/evil.so"}, 0) if taken else ({}, 1))


@pytest.mark.parametrize(("plugin", "taken"), [(0, True), (ALICE, False)])
def test_root_gets_no_variables_of_a_users_plugin_with_a_lease_for_that_user(plugin: int, taken: bool) -> None:
    node = Node("a")
    asker = node.ask(FOR_ALICE, id="x", uid=ROOT)
    node.save()
    node.send(m.Allocated("x", GPU, Answer({"LD_PRELOAD": "/evil.so"}), uid=plugin))
    node.save()
    answer = asker.lease.answer
    assert answer is not None
    assert bool(answer.env) is taken


def test_a_mount_of_another_users_plugin_frees_the_devices_until_a_reload_permits_it() -> None:
    node = Node("a")
    answer = Answer(mounts=(Mount("/", "/"),))
    asker = node.ask(id="x")
    node.save()
    node.send(m.Allocated("x", GPU, answer, uid=BOB))
    problem, text = asker.why
    assert (problem, text.rpartition(": ")[2]) == (
        "refused",
        f"it names mounts, and leases.permitted does not have {GPU}:mounts",
    )
    node.send(m.LeaseRules((), LeaseLimits(), frozenset({0}), (f"{GPU}:mounts",)))
    asker = node.ask(id="x")
    node.save()
    node.send(m.Allocated("x", GPU, answer, uid=BOB))
    node.save()
    assert asker.lease.answer == answer


def test_a_mapped_variable_of_another_users_plugin_needs_a_permit_of_its_own() -> None:
    node = Node("a")
    resources = {GPU: ResourceConfig({"MADE": "{GIVEN}"})}
    node.send(m.LeaseRules(permitted=(f"{GPU}:env=MADE",), resources=resources))
    for plugin, env in ((BOB, {"MADE": "1"}), (ROOT, {"GIVEN": "1", "MADE": "1"})):
        asker = node.ask(id="x")
        node.save()
        node.send(m.Allocated("x", GPU, Answer({"GIVEN": "1"}), uid=plugin))
        node.save()
        assert asker.lease.answer == Answer(env)
        node.release("x")
    asker = node.ask(id="x")
    node.save()
    node.send(m.Allocated("x", GPU, Answer(), uid=ROOT))
    problem, text = asker.why
    assert (problem, text[: text.index(":", 20)]) == (
        "refused",
        f"{GPU}: the answer of its device plugin to Allocate cannot be used",
    )
    assert node.states() == []


def test_access_to_nodes_ends_before_others_get_the_devices_and_also_where_another_plugin_fails() -> None:
    node = Node("a")
    node.offer("n", resource=NIC)
    given = Answer(access={"/dev/a": "c1:3"})
    node.ask(BOTH, id="x")
    node.save()
    node.send(m.Allocated("x", GPU, given, uid=0))
    waiting = node.ask(id="y", wait=10)
    node.effects.clear()
    node.send(m.AllocationRefused("x", NIC, "no"))
    assert [effect for effect in node.effects if isinstance(effect, e.EndAccess)] == [e.EndAccess("x")]
    node.save()
    node.send(m.Allocated("y", GPU, given, uid=0))
    node.save()
    assert waiting.lease.answer == given
    effects = node.send(m.ReleaseAsked(("y",), ALICE, Inbox()))
    assert effects[0] == e.EndAccess("y")


def test_access_to_nodes_ends_where_another_plugin_may_still_prepare_devices() -> None:
    node = Node("a")
    node.offer("n", resource=NIC)
    node.ask(BOTH, id="x")
    node.save()
    node.send(m.Allocated("x", GPU, Answer(access={"/dev/a": "c1:3"}), uid=0))
    effects = node.send(m.AllocationLost("x", NIC, PLUGIN, "no answer"))
    assert e.EndAccess("x") in effects
    assert node.states() == ["uncertain"]


def test_answers_that_contradict_each_other_free_all() -> None:
    node = Node("a")
    node.offer("n", resource=NIC)
    asker = node.ask(BOTH)
    node.save()
    node.allocated(A="1")
    node.allocated(A="2")
    assert asker.why == ("refused", "vendor.com/gpu and vendor.com/nic set A to different values")
    assert node.hold(BOTH).state is LeaseState.HELD


def test_a_plugin_that_goes_before_its_call_refuses() -> None:
    node = Node("a")
    asker = node.ask()
    node.offer("a", lost=True)
    node.save()
    assert asker.why == ("unavailable", "unknown Device Plugin vendor.com/gpu")
    assert node.calls == []


def test_a_device_that_turns_unhealthy_before_the_call_is_not_prepared() -> None:
    node = Node("a")
    asker = node.ask()
    node.offer("a!")
    node.save()
    text = "previously allocated devices are no longer healthy; cannot allocate unhealthy devices vendor.com/gpu"
    assert asker.why == ("unavailable", text)


# --- uncertain leases -------------------------------------------------------------------------------------------------


def lost(node: Node) -> Asker:
    asker = node.ask(id="x")
    node.save()
    node.calls.clear()
    node.send(m.AllocationLost("x", GPU, PLUGIN, "Allocate: no answer within 30 s"))
    return asker


def test_a_lost_call_withholds_the_devices_for_a_minute() -> None:
    node = Node("a")
    asker = lost(node)
    assert asker.why == ("refused", f"{GPU}: Allocate: no answer within 30 s")
    assert node.states() == ["uncertain"]
    assert node.ask().why == ("unavailable", TOO_FEW.format(1, 0))
    assert node.book.next_end == 60
    (change,) = node.last_writes()
    assert isinstance(change, e.SaveLease)
    assert change.lease.state is LeaseState.UNCERTAIN
    node.wait(60)
    assert node.states() == []
    assert node.last_writes() == [e.DeleteLease("x")]
    assert node.hold().devices == {GPU: ("a",)}
    assert node.book.next_end == math.inf


def test_a_lost_call_withholds_the_devices_until_the_plugin_has_ended() -> None:
    node = Node("a")
    lost(node)
    node.send(m.PluginEnded(("/r/other.sock", 1)))
    assert node.states() == ["uncertain"]
    node.send(m.PluginEnded(PLUGIN))
    assert node.states() == []


# --- askers that leave ------------------------------------------------------------------------------------------------


def leave(node: Node, asker: Asker) -> None:
    node.send(m.AskerLeft(asker.ticket))


def test_an_unnamed_asker_that_leaves_amid_allocate_frees_when_the_plugin_has_answered() -> None:
    node = Node("a")
    asker = node.ask()
    node.save()
    leave(node, asker)
    assert node.states() == ["pending"]
    assert node.ask().why == ("unavailable", TOO_FEW.format(1, 0))
    node.allocated()
    assert node.states() == []


def test_a_named_lease_goes_on_without_its_asker() -> None:
    node = Node("a")
    asker = node.ask(id="x")
    leave(node, asker)
    node.run()
    assert node.states() == ["held"]
    assert node.ask(id="x").lease.id == "x"


# --- several askers ---------------------------------------------------------------------------------------------------


def test_each_who_waits_for_the_same_lease_has_a_deadline_of_its_own() -> None:
    node = Node("a")
    held = node.hold(id="holder")
    long, short = node.ask(id="x", wait=60), node.ask(id="x", wait=5)
    node.wait(4)
    assert short.inbox == []
    node.wait(1)
    assert short.why == ("timeout", TOO_FEW.format(1, 0))
    assert [holder.id for holder in short.failure.holders] == ["holder"]
    later = node.ask(id="y", wait=60)
    node.release(held.id)
    node.run()
    assert long.lease.id == "x"
    assert later.inbox == []


def test_those_in_line_are_shown_last_in_its_order() -> None:
    node = Node("a")
    for name in ("m", "z", "b", "c"):
        node.ask(id=name, wait=60)
        node.run()
    assert [lease.id for lease in node.book.snapshot(node.now).leases] == ["m", "z", "b", "c"]
    node.release("m")
    node.run()
    assert [lease.id for lease in node.book.snapshot(node.now).leases] == ["z", "b", "c"]


# --- one id -----------------------------------------------------------------------------------------------------------


def test_the_same_id_and_request_get_the_same_answer() -> None:
    """TestUpdatePluginResources: what has its devices gets them again, though none are free."""
    node = Node("a")
    first, second = node.ask(id="x"), node.ask(id="x")
    node.run()
    assert first.lease == second.lease == node.ask(id="x").lease


@pytest.mark.parametrize(
    ("asked", "owner", "uid"),
    [(request((GPU, 2)), CMD, ALICE), (ONE, NoOwner(), ALICE), (ONE, ProcessOwner(INIT), ALICE), (ONE, CMD, ROOT)],
)
def test_the_same_id_with_another_request_is_refused(asked: Request, owner: Owner, uid: int) -> None:
    node = Node("a", "b")
    node.hold(id="x")
    assert node.ask(asked, id="x", owner=owner, uid=uid).why == ("usage", "lease x exists with another request")


def test_the_id_of_another_user_is_refused() -> None:
    node = Node("a", "b")
    node.hold(id="x")
    assert node.ask(id="x", uid=BOB).why == ("forbidden", "lease x belongs to another user")


@pytest.mark.parametrize("name", ["slurm:c:n:1:0:0:gpu", "slurm:", "nomad-0123456789ab", "nomad:x", "unit:server"])
def test_an_id_as_operators_tools_have_it_is_for_root_alone(name: str) -> None:
    node = Node("a")
    why = f"ids that begin with {name[:6] if name.startswith('nomad') else name.partition(':')[0] + ':'} are for root's"
    problem, text = node.ask(id=name).why
    assert (problem, text) == ("forbidden", f"{why} tools: give the lease another id")
    assert node.hold(id=name, uid=ROOT).id == name


def test_a_lease_for_another_user_belongs_to_that_user_and_may_have_an_id_of_roots_tools() -> None:
    node = Node("a", limits=LeaseLimits(leases=1))
    lease = node.hold(FOR_ALICE, id="slurm:7", uid=ROOT)
    assert lease.uid == ALICE
    assert node.ask(FOR_ALICE, id="slurm:7", uid=ROOT).lease == lease
    assert node.ask(FOR_ALICE, uid=ROOT).why[0] == "limit", "it counts for her limits"
    assert node.release("slurm:7", uid=BOB) == Failure(Problem.FORBIDDEN, "lease slurm:7 belongs to another user")
    assert node.release("slurm:7", uid=ALICE) == m.Released(("slurm:7",))


def test_root_gets_no_lease_for_a_user_by_the_id_of_one_that_the_user_asked_for() -> None:
    """Its answer may have variables of a plugin of that user."""
    node = Node("a")
    node.hold(id="x")
    assert node.ask(FOR_ALICE, id="x", uid=ROOT).why == ("usage", "lease x exists with another request")


@pytest.mark.parametrize("uid", [ALICE, BOB])
def test_only_root_leases_for_another_user(uid: int) -> None:
    why = "only root and the user of plugind may lease devices for another user"
    assert Node("a").ask(FOR_ALICE, uid=uid).why == ("forbidden", why)


def test_a_lease_whose_devices_are_unhealthy_is_not_given_again_but_stays() -> None:
    """TestPodContainerDeviceToAllocate: previously allocated devices that are no longer healthy."""
    node = Node("a")
    node.hold(id="x")
    node.offer("a!")
    text = "previously allocated devices are no longer healthy; cannot allocate unhealthy devices vendor.com/gpu"
    assert node.ask(id="x").why == ("unavailable", text)
    assert node.states() == ["held"]


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_one_that_waits_for_too_long_is_told_so_and_those_behind_it_go_on() -> None:
    node = Node("a", "b")
    node.hold()
    large, small = node.ask(request((GPU, 2)), wait=10), node.ask(wait=10)
    node.wait(10)
    assert large.why == ("timeout", TOO_FEW.format(2, 1))
    node.run()
    assert small.lease.devices == {GPU: ("b",)}


# --- the end ----------------------------------------------------------------------------------------------------------


def test_who_waits_is_told_the_place_in_line_and_each_change_of_it() -> None:
    """Who wants another resource, or more than there is, is before nobody; and a failure names those in line, too."""
    node, told = Node("a", "b"), Inbox[m.InLine]()

    def places() -> list[tuple[int, list[str]]]:
        said = [(each.place, [lease.id for lease in each.shortage.holders]) for each in told]
        told.clear()
        return said

    node.hold(request((GPU, 2)), id="held")
    node.ask(request((GPU, 3)), id="large", wait=100.0)
    node.ask(request((NIC, 1)), id="nic", wait=100.0)
    node.ask(id="first", wait=5.0)
    asker = node.ask(request((GPU, 2)), id="second", wait=100.0, progress=told)
    assert "Requested: 2, Available: 0" in told[0].shortage.text
    assert places() == [(2, ["first", "held"])]
    assert [lease.id for lease in node.ask().failure.holders] == ["first", "second", "held"]
    assert places() == [], "one that comes later changes nothing"
    node.wait(5.0)
    assert places() == [(1, ["held"])]
    node.offer("a", "b!")
    assert "Requested: 2, Available: 0" in told[0].shortage.text
    assert places() == [(1, ["held"])]
    node.offer("a", "b")
    assert places() == [(1, ["held"])]
    node.release("held")
    node.run()
    assert (asker.lease.id, places()) == ("second", [])


def test_a_plugin_that_gives_the_node_of_a_leased_static_device_is_a_warning() -> None:
    node = Node("a", "b")
    static, edits = "lab/serial", (LeasedNode("/dev/ttyUSB0", "/dev/ttyUSB0"),)
    devices = DeviceList([Device("ttyUSB0", identity="c188:0")])
    node.send(m.OfferChanged(attrs.evolve(offer([], static), devices=devices)))
    node.ask(request((static, 1)), id="mine")
    node.save()
    call = node.calls.pop(0)
    given = Answer(nodes=edits, identities={identity_key(static, "ttyUSB0"): "c188:0"})
    node.send(m.Allocated(call.lease, static, given, uid=0))
    node.run()
    asker = node.ask()
    node.save()
    call = node.calls.pop(0)
    node.send(m.Allocated(call.lease, GPU, Answer(nodes=edits), uid=0))
    node.run()
    assert asker.lease.warnings == (
        "vendor.com/gpu: the plugin gives /dev/ttyUSB0, which is also of the lease mine of static devices",
    )


def test_the_end_of_the_owner_frees() -> None:
    node = Node("a")
    lease = node.hold()
    assert [effect for effect in node.effects if isinstance(effect, e.WatchOwner)] == [e.WatchOwner(lease.id, CMD)]
    node.send(m.OwnerEnded(lease.id, CMD))
    assert node.states() == []
    assert node.last_writes() == [e.DeleteLease(lease.id)]
    assert node.hold().devices == {GPU: ("a",)}


def test_only_the_owner_and_root_release() -> None:
    node = Node("a", "b")
    node.hold(id="x")
    node.hold(id="y", uid=BOB)
    assert node.release("x", "y") == Failure(Problem.FORBIDDEN, "lease y belongs to another user")
    assert node.states() == ["held", "held"]
    assert node.release("x", "z") == m.Released(("x",), ("z",))
    assert node.release("y", uid=ROOT) == m.Released(("y",))


def test_a_release_is_answered_when_it_is_written() -> None:
    """Fault 88: a lease that was answered as released was back after a SIGKILL before the write."""
    node = Node("a", "b")
    node.hold(id="x")
    node.hold(id="y")
    answer = node.ask_release("x", "y", "z")
    assert answer == []
    assert node.states() == [], "the devices are free at once"
    changes = [write.changes for write in node.disk]
    assert changes == [(e.DeleteLease("x"),), (e.DeleteLease("y"),), ()], "what is awaited is the last"
    node.save()
    assert answer == [m.Released(("x", "y"), ("z",))]


def test_a_release_that_cannot_be_written_is_answered_since_it_is_tried_again() -> None:
    node = Node("a")
    node.hold(id="x")
    answer = node.ask_release("x")
    node.save("the disk is full")
    assert answer == [m.Released(("x",), unwritten="the disk is full")]


def test_a_time_begins_when_the_lease_is_held_and_again_with_each_renewal() -> None:
    node = Node("a")
    lease = node.hold(owner=TimeOwner(10.0))
    assert lease.owner == TimeOwner(10.0, node.boottime + 10_000_000_000)
    node.wait(9)
    inbox: Inbox[Lease | Failure] = Inbox()
    node.send(m.RenewAsked(lease.id, ALICE, inbox))
    assert inbox == []
    node.save()
    (renewed,) = inbox
    assert isinstance(renewed, Lease)
    assert renewed.owner == TimeOwner(10.0, node.boottime + 10_000_000_000)
    node.wait(2)
    node.send(m.OwnerEnded(lease.id, lease.owner))
    assert node.states() == ["held"], "it was said of the time before the renewal"
    node.wait(9)
    node.send(m.OwnerEnded(lease.id, renewed.owner))
    assert node.states() == []


def test_a_renewal_that_cannot_be_written_changes_nothing() -> None:
    node = Node("a")
    lease = node.hold(owner=TimeOwner(10.0))
    node.wait(5)
    inbox: Inbox[Lease | Failure] = Inbox()
    node.send(m.RenewAsked(lease.id, ALICE, inbox))
    node.save("disk full")
    assert inbox == [Failure(Problem.STORAGE, "the lease cannot be written: disk full")]
    assert node.book.find(lease.id) == lease
    inbox.clear()
    node.release(lease.id)
    held = node.hold(owner=NoOwner())
    node.send(m.RenewAsked(held.id, ALICE, inbox))
    assert isinstance(inbox[0], Failure)
    assert inbox[0].problem is Problem.USAGE


# --- containers -------------------------------------------------------------------------------------------------------


def contained(node: Node) -> Lease:
    return node.hold(IN_CONTAINER, owner=ContainerOwner(), id="x")


def test_the_file_of_a_container_is_there_before_it_is_told() -> None:
    node = Node("a")
    asker = node.ask(IN_CONTAINER, owner=ContainerOwner())
    node.save()
    node.allocated()
    (file,) = node.files
    assert node.disk == []
    assert file.lease.cdi_name is not None
    assert file.lease.answer is not None
    node.run()
    assert asker.lease.cdi_name == file.lease.cdi_name


def test_a_file_that_cannot_be_written_frees() -> None:
    node = Node("a")
    asker = node.ask(IN_CONTAINER, owner=ContainerOwner(), id="x")
    node.save()
    node.allocated()
    node.files.clear()
    node.effects.clear()
    node.send(m.FileWritten("x", "no space"))
    assert asker.why == ("storage", "the CDI file cannot be written: no space")
    assert any(isinstance(effect, e.RemoveFile) for effect in node.effects)
    assert node.states() == []


def test_a_container_that_does_not_bind_its_lease_loses_it() -> None:
    node = Node("a")
    contained(node)
    node.wait(59)
    assert node.states() == ["held"]
    node.effects.clear()
    node.wait(1)
    assert node.states() == []
    kinds = [type(effect) for effect in node.effects]
    assert kinds.index(e.RemoveFile) < kinds.index(e.Write)


def test_a_bound_lease_is_written_before_the_hook_is_answered() -> None:
    node = Node("a")
    contained(node)
    inbox = node.bind("x")
    assert inbox == []
    node.save()
    (bound,) = inbox
    assert isinstance(bound, Lease)
    assert bound.owner == ContainerOwner(INIT)
    node.wait(1000)
    assert node.states() == ["held"]
    again = node.bind("x")
    node.save()
    assert isinstance(again[0], Lease)
    (refused,) = node.bind("x", OTHER_INIT)
    assert refused == Failure(Problem.FORBIDDEN, "lease x is bound to another container, whose init is 77")


def test_after_the_end_of_a_container_another_may_bind_it_for_some_time() -> None:
    node = Node("a")
    contained(node)
    node.bind("x")
    node.save()
    node.send(m.OwnerEnded("x", ContainerOwner(INIT)))
    node.wait(GRACE - 1)
    inbox = node.bind("x", OTHER_INIT)
    node.save()
    assert isinstance(inbox[0], Lease)
    node.send(m.OwnerEnded("x", ContainerOwner(INIT)))
    node.wait(100)
    assert node.states() == ["held"], "it was said again of the first container, as after a crash"
    node.send(m.OwnerEnded("x", ContainerOwner(OTHER_INIT)))
    node.wait(GRACE)
    assert node.states() == []


def test_a_container_has_the_time_to_start_that_was_asked_for() -> None:
    """The first start of a container may download its image."""
    node = Node("a")
    node.hold(IN_CONTAINER, owner=ContainerOwner(start_within=600.0))
    node.wait(599)
    assert node.states() == ["held"]
    node.wait(1)
    assert node.states() == []


def test_a_lease_that_is_kept_has_one_container_after_the_other_until_it_is_released() -> None:
    node = Node("a")
    kept = ContainerOwner(start_within=None)
    node.hold(IN_CONTAINER, owner=kept, id="x")
    for init in (INIT, OTHER_INIT):
        node.wait(1000)
        inbox = node.bind("x", init)
        node.save()
        (bound,) = inbox
        assert isinstance(bound, Lease)
        assert bound.owner == ContainerOwner(init, None)
        node.send(m.OwnerEnded("x", bound.owner))
        (change,) = node.disk[-1].changes
        assert change == e.SaveLease(attrs.evolve(bound, owner=kept))
        node.save()
    node.ask(wait=5.0, id="y")
    assert node.states() == ["held", "queued"]
    node.release("x")
    assert "held" not in node.states()


def test_in_the_grace_after_its_container_a_lease_ends_for_a_request_that_needs_it() -> None:
    """``for i in 1 2 3; do podman run $(plugind allocate …) …; done`` on the only device."""
    node = Node("a")
    for init in (INIT, OTHER_INIT):
        lease = node.hold(IN_CONTAINER, owner=ContainerOwner())
        assert node.states() == ["held"]
        node.bind(lease.id, init)
        node.save()
        node.send(m.OwnerEnded(lease.id, ContainerOwner(init)))
        assert node.states() == ["held"]


def test_a_grace_ends_only_if_that_is_enough_and_the_latest_last() -> None:
    node = Node("a", "b", "c")
    first, second = (node.hold(IN_CONTAINER, owner=ContainerOwner(), id=name) for name in ("first", "second"))
    for lease in (first, second):
        node.bind(lease.id)
        node.save()
        node.send(m.OwnerEnded(lease.id, ContainerOwner(INIT)))
    node.hold(owner=NoOwner(), id="other")
    assert node.ask(request((GPU, 3))).failure.problem is Problem.UNAVAILABLE
    assert node.ids() == {"first", "second", "other"}
    node.hold(owner=NoOwner(), id="needed")
    assert node.ids() == {"second", "other", "needed"}
    node.wait(GRACE)
    assert node.ids() == {"other", "needed"}


def test_of_two_bindings_to_one_container_one_that_is_written_is_enough() -> None:
    """The failure of the first one left the lease unbound, though the second one was answered yes."""
    node = Node("a")
    contained(node)
    first, second = node.bind("x"), node.bind("x")
    for write, error in zip(list(node.disk), ("disk full", None), strict=True):
        node.send(m.Saved(write.number, error))
    assert isinstance(first[0], Failure)
    assert isinstance(second[0], Lease)
    node.wait(1000)
    assert node.states() == ["held"]


def test_only_its_user_and_root_bind_a_lease() -> None:
    node = Node("a", "b")
    contained(node)
    assert node.bind("x", uid=BOB) == [Failure(Problem.FORBIDDEN, "lease x belongs to another user")]
    assert node.bind("y") == [Failure(Problem.UNKNOWN, "there is no lease y")]
    inbox = node.bind("x", uid=ROOT)
    node.save()
    assert isinstance(inbox[0], Lease)
    node.hold(id="z")
    (refused,) = node.bind("z")
    assert refused == Failure(Problem.USAGE, "lease z belongs to no container")


# --- connections ------------------------------------------------------------------------------------------------------


def test_a_lease_of_a_connection_ends_with_it() -> None:
    node = Node("a")
    asker = node.ask(owner=ConnectionOwner("hash"), id="x")
    node.run()
    assert asker.lease.owner == ConnectionOwner("hash")
    leave(node, asker)
    assert node.states() == []


def test_after_a_restart_a_connection_comes_back_with_its_token() -> None:
    node = Node("a")
    asker = node.ask(owner=ConnectionOwner("hash"), id="x")
    node.run()
    after = Node("a")
    after.take(after.book.start(m.Kept((asker.lease,)), 0.0))
    inbox: Inbox[Lease | Failure] = Inbox()
    after.send(m.ResumeAsked("x", ALICE, "other", 90, inbox))
    after.send(m.ResumeAsked("x", ALICE, "hash", 91, inbox))
    assert inbox == [Failure(Problem.FORBIDDEN, "lease x has another token"), asker.lease]
    after.wait(100)
    assert after.states() == ["held"]
    after.send(m.AskerLeft(91))
    assert after.states() == []


# --- starts -----------------------------------------------------------------------------------------------------------


def restarted(*leases: Lease, withheld: str | None = None) -> Node:
    node = Node()
    node.take(node.book.start(m.Kept(leases, withheld), 0.0))
    return node


def test_after_a_restart_a_pending_lease_is_uncertain() -> None:
    before = Node("a")
    before.ask(id="x")
    (lease,) = before.book.snapshot(0.0).leases
    node = restarted(lease)
    assert node.states() == ["uncertain"]
    node.offer("a")
    assert node.ask().why[0] == "unavailable"
    node.wait(60)
    assert node.hold().devices == {GPU: ("a",)}


def test_after_a_restart_a_held_lease_is_there_and_its_owner_is_watched() -> None:
    lease = Node("a").hold(id="x")
    node = restarted(lease)
    assert node.book.find("x") == lease
    assert e.WatchOwner("x", CMD) in node.effects
    assert not any(isinstance(effect, e.Write) for effect in node.effects)
    assert node.ask(id="x").lease == lease
    node.offer("a", "b")
    assert node.hold().devices == {GPU: ("b",)}
    node.send(m.OwnerEnded("x", CMD))
    assert node.hold().devices == {GPU: ("a",)}


def test_a_file_that_cannot_be_written_again_is_a_warning() -> None:
    node = restarted(contained(Node("a")))
    node.send(m.FileWritten("x", "read-only"))
    (lease,) = node.book.snapshot(0.0).leases
    assert lease.warnings == ("its CDI file is not there: read-only",)
    node.send(m.FileWritten("x"))
    assert node.book.snapshot(0.0).leases[0].warnings == ()


def test_after_lost_state_all_devices_are_withheld_until_an_operator_recovers() -> None:
    node = restarted(withheld="the file was damaged")
    node.offer("a")
    assert node.ask(wait=10).why == ("storage", "all devices are withheld: the file was damaged")
    answers: Inbox[Failure | None] = Inbox()
    node.send(m.RecoverAsked(ALICE, answers))
    node.send(m.RecoverAsked(ROOT, answers))
    node.save("disk full")
    node.send(m.RecoverAsked(ROOT, answers))
    node.save()
    assert [answer.problem if answer else None for answer in answers] == [Problem.FORBIDDEN, Problem.STORAGE, None]
    assert node.hold().devices == {GPU: ("a",)}


def test_a_store_that_is_read_later_brings_its_leases() -> None:
    lease = Node("a").hold(id="x")
    node = restarted(withheld="the file cannot be read")
    node.offer("a")
    node.send(m.LeasesRead(m.Kept((lease,))))
    assert node.states() == ["held"]
    assert node.ask().why == ("unavailable", TOO_FEW.format(1, 0))


def test_a_connection_that_comes_back_before_its_lease_is_read_is_to_ask_again() -> None:
    lease = Node("a").hold(owner=ConnectionOwner("hash"), id="x")
    node = restarted(withheld="the file cannot be read")
    inbox: Inbox[Lease | Failure] = Inbox()
    node.send(m.ResumeAsked("x", ALICE, "hash", 90, inbox))
    assert inbox == [Failure(Problem.STORAGE, "all devices are withheld: the file cannot be read")]
    node.send(m.LeasesRead(m.Kept((lease,))))
    node.send(m.ResumeAsked("x", ALICE, "hash", 91, inbox))
    assert isinstance(inbox[-1], Lease)


# --- requests and limits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        (Request(()), "at least one device"),
        (request((GPU, 0)), "at least one device"),
        (request((GPU, 1), (GPU, 1)), f"{GPU} is named twice"),
        (request((GPU, 1), (NIC, 1), ids="a"), "for one resource only"),
        (request((GPU, 2), ids="a"), f"--ids names 1 devices, and 2 of {GPU} are wanted"),
        (request((GPU, 2), ids="a a"), "the device a is named twice"),
        (request((GPU, 1), include="a b"), f"--include names 2 devices, and 1 of {GPU} are wanted"),
        (request((GPU, 1), pool="big"), "there is no pool big of vendor.com/gpu"),
    ],
)
def test_a_wrong_request_is_refused(asked: Request, part: str) -> None:
    failure = Node("a", "b").ask(asked).failure
    assert failure.problem is Problem.USAGE
    assert part in failure.text


def test_a_wrong_id_or_owner_is_refused() -> None:
    node = Node("a")
    for name in ("", "-x", "a\nb", "x" * 129):
        assert node.ask(id=name).failure.problem is Problem.USAGE
    assert node.ask(owner=ContainerOwner()).failure.problem is Problem.USAGE
    assert node.ask(owner=TimeOwner(0.0)).failure.problem is Problem.USAGE


def test_a_pool_is_for_its_users() -> None:
    node = Node("a", "b", pools=[Pool("big", GPU, frozenset("a"), frozenset((BOB,)))])
    asked = request((GPU, 1), pool="big")
    assert node.ask(asked).why == ("forbidden", "user 1000 may not take devices from the pool big")
    assert node.hold(asked, uid=BOB).devices == {GPU: ("a",)}
    assert node.hold().devices == {GPU: ("b",)}


def test_a_user_has_limits_and_root_has_none() -> None:
    node = Node("a", "b", "c", "d", "e", limits=LeaseLimits(leases=2, devices=3, all_leases=4))
    first = node.hold()
    assert "not have more than 3 devices" in node.ask(request((GPU, 3))).failure.text
    node.hold()
    assert node.ask().why == ("limit", "user 1000 has 2 leases, and may not have more: release some")
    for _ in range(2):
        node.hold(uid=ROOT)
    assert node.ask(uid=ROOT).why == ("limit", "there are 4 leases, and there may not be more: release some")
    node.release(first.id)
    assert node.hold().state is LeaseState.HELD


def test_the_labels_of_a_user_have_a_limit_of_bytes_and_those_of_root_have_none() -> None:
    node = Node("a", "b", "c", limits=LeaseLimits(label_bytes=10))
    first = node.hold(attrs.evolve(ONE, labels=(("job", "1234"),)))
    why = "may not have more than 10 bytes in all (limit leases.limits.label_bytes)"
    assert why in node.ask(attrs.evolve(ONE, labels=(("k", "\u00fc\u00fc"),))).failure.text
    node.hold(attrs.evolve(ONE, labels=(("job", "1234567890"),)), uid=ROOT)
    node.release(first.id)
    assert node.hold(attrs.evolve(ONE, labels=(("job", "1234567"),))).state is LeaseState.HELD


# --- devices that turn unhealthy --------------------------------------------------------------------------------------

STOPPED = attrs.evolve(ONE, stop_on_unhealthy=True)
UNHEALTHY = "previously allocated devices are no longer healthy; cannot allocate unhealthy devices vendor.com/gpu"


def stopped(effects: Sequence[e.Effect]) -> list[str]:
    return [effect.id for effect in effects if isinstance(effect, e.StopOwner)]


def test_the_owner_is_stopped_once_when_a_device_of_its_lease_turns_unhealthy() -> None:
    """The lease stays. Neither another device nor a plugin that is away for a moment stops anybody."""
    node = Node("GPU-0", "GPU-1")
    lease = node.hold(STOPPED)
    node.offer("GPU-0", "GPU-1!")
    node.offer("GPU-0!", "GPU-1!", lost=True)
    assert stopped(node.effects) == []
    node.effects.clear()
    node.offer("GPU-0!", "GPU-1!")
    node.offer("GPU-0")
    node.offer("GPU-0!")
    assert [effect for effect in node.effects if isinstance(effect, e.StopOwner)] == [
        e.StopOwner(lease.id, CMD.process, ALICE, UNHEALTHY)
    ]
    found = node.book.find(lease.id)
    assert found is not None
    assert found.state is LeaseState.HELD


def test_who_has_not_asked_for_it_is_not_stopped() -> None:
    node = Node("GPU-0")
    node.hold(ONE)
    node.offer("GPU-0!")
    assert stopped(node.effects) == []


def test_a_device_that_turns_unhealthy_while_its_lease_is_written_stops_the_owner() -> None:
    node = Node("GPU-0")
    asker = node.ask(STOPPED)
    node.save()
    node.allocated()
    node.offer("GPU-0!")
    assert stopped(node.effects) == []
    node.save()
    assert stopped(node.effects) == [asker.lease.id]


def test_after_a_restart_the_owner_of_an_unhealthy_device_is_stopped() -> None:
    kept = attrs.evolve(Node("GPU-0").hold(STOPPED), id="kept")
    node = Node()
    assert stopped(node.take(node.book.start(m.Kept((kept,)), 0.0))) == []
    node.offer("GPU-0!")
    assert stopped(node.effects) == ["kept"]


def test_the_owner_of_a_lease_that_is_read_late_is_watched_before_it_is_stopped() -> None:
    """The signal goes by the descriptor with which it is watched."""
    kept = attrs.evolve(Node("GPU-0").hold(STOPPED), id="kept")
    node = Node("GPU-0!")
    effects = node.take(node.book.start(m.Kept((kept,)), 0.0))
    kinds = [type(effect) for effect in effects if isinstance(effect, e.WatchOwner | e.StopOwner)]
    assert kinds == [e.WatchOwner, e.StopOwner]


@pytest.mark.parametrize("owner", [TimeOwner(60.0), NoOwner(), ConnectionOwner("t")])
def test_only_a_process_can_be_stopped(owner: Owner) -> None:
    failure = Node("GPU-0").ask(STOPPED, owner=owner).failure
    assert failure.problem is Problem.USAGE
    assert failure.text.endswith("this lease is to have none: use -- CMD")


def test_each_container_that_binds_a_lease_is_told_of_itself() -> None:
    """The first one has ended, and a second one binds the lease, before the disk has answered for the first."""
    node = Node("a")
    lease = node.hold(IN_CONTAINER, owner=ContainerOwner())
    first = node.bind(lease.id)
    node.send(m.OwnerEnded(lease.id, ContainerOwner(INIT)))
    second = node.bind(lease.id, OTHER_INIT)
    node.save()
    owners = [answer.owner for answer in (*first, *second) if isinstance(answer, Lease)]
    assert owners == [ContainerOwner(INIT), ContainerOwner(OTHER_INIT)]


# --- devices that are not listed any more -----------------------------------------------------------------------------

MISSING = "unhealthy, vendor.com/gpu no longer lists GPU-0"
RENAMED = f"{MISSING}, and unknown ids are listed: they may have these by now"


def reason(node: Node, lease: Lease) -> str | None:
    found = node.book.find(lease.id)
    assert found is not None
    assert found.state is LeaseState.HELD
    return found.reason


def test_an_unplugged_device_is_shown_and_its_owner_is_stopped_after_10_seconds() -> None:
    """The lease stays. Other leases, and devices that come back, have nothing to do with it."""
    node = Node("GPU-0", "GPU-1")
    lease, other = node.hold(STOPPED), node.hold(STOPPED)
    node.offer("GPU-1")
    assert node.book.next_end == 10.0
    node.wait(9.9)
    assert (reason(node, lease), stopped(node.effects)) == (None, [])
    node.wait(0.1)
    assert (reason(node, lease), reason(node, other)) == (MISSING, None)
    assert [effect for effect in node.effects if isinstance(effect, e.StopOwner)] == [
        e.StopOwner(lease.id, CMD.process, ALICE, f"{UNHEALTHY} (no longer listed: GPU-0)")
    ]
    node.offer("GPU-0", "GPU-1")
    assert (reason(node, lease), stopped(node.effects)) == (None, [lease.id])


def test_a_device_that_is_listed_again_within_10_seconds_was_never_missing() -> None:
    node = Node("GPU-0", "GPU-1")
    lease = node.hold(STOPPED)
    node.offer("GPU-1")
    node.wait(9.0)
    node.offer("GPU-0", "GPU-1")
    node.wait(60.0)
    node.offer("GPU-1")
    node.wait(9.0)
    assert (reason(node, lease), stopped(node.effects)) == (None, [])


@pytest.mark.parametrize("later", [False, True])
def test_where_unknown_ids_are_listed_a_missing_device_is_shown_and_nobody_is_stopped(later: bool) -> None:
    """The device may have another id: the plugin gives new ones, or has split it."""
    node = Node("GPU-0", "GPU-1")
    lease = node.hold(STOPPED)
    node.offer("GPU-1", *([] if later else ["MIG-0"]))
    node.wait(5.0)
    node.offer("GPU-1", "MIG-0")
    node.wait(5.0)
    assert (reason(node, lease), stopped(node.effects)) == (RENAMED, [])
    node.offer("GPU-1", "MIG-0", lost=True)
    node.offer("GPU-1", "MIG-0")
    node.wait(60.0)
    assert (reason(node, lease), stopped(node.effects)) == (RENAMED, [])


def test_the_10_seconds_begin_again_with_the_plugin() -> None:
    """Only a plugin that is there can say that a device is not: one that starts lists its devices bit by bit."""
    node = Node("GPU-0", "GPU-1")
    lease = node.hold(STOPPED)
    node.offer("GPU-1")
    node.wait(9.0)
    node.offer("GPU-1", lost=True)
    node.wait(60.0)
    node.offer()
    node.wait(9.0)
    assert reason(node, lease) is None
    node.wait(1.0)
    assert (reason(node, lease), stopped(node.effects)) == (MISSING, [lease.id])


@pytest.mark.parametrize(("listed", "is_stopped"), [(("GPU-1",), True), (("GPU-1", "GPU-2"), False)])
def test_after_a_restart_only_leased_ids_are_known(listed: tuple[str, ...], is_stopped: bool) -> None:
    before = Node("GPU-0", "GPU-1")
    kept = tuple(attrs.evolve(before.hold(STOPPED), id=name, reason=MISSING) for name in ("kept", "other"))
    node = Node()
    node.take(node.book.start(m.Kept(kept), 0.0))
    assert reason(node, kept[0]) is None, "it is found out anew"
    node.offer(*listed)
    node.wait(10.0)
    assert reason(node, kept[0]) == (MISSING if is_stopped else RENAMED)
    assert stopped(node.effects) == (["kept"] if is_stopped else [])


def test_a_lease_with_a_missing_device_is_not_given_again() -> None:
    node = Node("GPU-0", "GPU-1")
    node.hold(ONE, id="mine")
    node.offer("GPU-1")
    node.wait(10.0)
    assert node.ask(ONE, id="mine").why[1] == f"{UNHEALTHY} (no longer listed: GPU-0)"
