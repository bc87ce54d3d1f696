"""When leases of tasks of Nomad end: two looks agree, and what fails releases nothing. In virtual time."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.console.nomad_reconciler import APART, Reconciler
from plugind.client import ClientError, LeaseFailedError, NoDaemonError, Problem
from plugind.protocol.leases.replies import Failure
from plugind.protocol.leases.values import Lease, Pool
from plugind.protocol.nomad import NomadError
from plugind.protocol.nomad_allocations import Allocation
from plugind.tests.protocol.test_nomad_allocations import ended, lease, living

POOLS = [Pool("nomad", "example.com/gpu")]


@attrs.define
class Node:
    """plugind and the agent of Nomad, with the times of what they are asked."""

    held: list[Lease]
    shown: list[Allocation]
    #: What fails instead.
    away: ClientError | None = None
    error: NomadError | None = None
    refusal: ClientError | None = None
    #: Seconds that the agent takes for an answer.
    takes: float = 0.0
    said: list[tuple[float, str]] = attrs.field(factory=list)

    def note(self, what: str) -> None:
        self.said.append((trio.current_time(), what))

    async def leases(self, prefix: str = "") -> tuple[Lease, ...]:
        self.note("leases")
        if self.away is not None:
            raise self.away
        return tuple(it for it in self.held if it.id.startswith(prefix))

    async def release(self, lease: str) -> None:
        self.note(f"release {lease}")
        if self.refusal is not None:
            raise self.refusal
        self.held = [it for it in self.held if it.id != lease]

    async def allocations(self) -> tuple[Allocation, ...]:
        self.note("allocations")
        await trio.sleep(self.takes)
        if self.error is not None:
            raise self.error
        return tuple(self.shown)

    def released(self) -> list[tuple[float, str]]:
        return [(when, what) for when, what in self.said if what.startswith("release")]


class Scene:
    """Runs the reconciler; changes happen at moments between looks."""

    def __init__(self, node: Node, nursery: trio.Nursery, later: float) -> None:
        self.began = trio.current_time()
        nursery.start_soon(Reconciler(node, node, POOLS).run, lambda: later)

    async def at(self, moment: float) -> None:
        await trio.sleep_until(self.began + moment)


async def test_a_lease_ends_at_the_second_look_after_its_allocation_has(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node([lease("nomad-a", "0"), lease("nomad-b", "1")], [living("x", "0"), living("y", "1")])
    async with trio.open_nursery() as nursery:
        scene = Scene(node, nursery, later=5.0)
        await scene.at(70.0)
        node.shown = [ended("x", "0"), living("y", "1")]
        await scene.at(200.0)
        nursery.cancel_scope.cancel()
    looks = [65.0, 130.0, 195.0]
    asked = [(when, what) for when in looks for what in ("leases", "allocations")]
    assert node.said == [*asked, (195.0, "release nomad-a")]
    assert [it.id for it in node.held] == ["nomad-b"]
    assert capsys.readouterr().err == "plugind: the allocation x has ended: its lease nomad-a has ended, too\n"


async def test_two_looks_are_so_far_apart_however_long_the_agent_takes(autojump_clock: MockClock) -> None:
    node = Node([lease("nomad-a", "0")], [ended("x", "0")], takes=8.0)
    async with trio.open_nursery() as nursery:
        scene = Scene(node, nursery, later=0.0)
        await scene.at(100.0)
        node.takes = 1.0
        await scene.at(300.0)
        nursery.cancel_scope.cancel()
    # The first one has its answer at 68; the second asks at 128 and has its answer at 129.
    assert node.released() == [(129.0, "release nomad-a")]


async def test_an_allocation_that_lives_again_keeps_its_lease(autojump_clock: MockClock) -> None:
    """As one that was lost, on a node that is back; and the count of looks begins anew."""
    node = Node([lease("nomad-a", "0")], [ended("x", "0")])
    async with trio.open_nursery() as nursery:
        scene = Scene(node, nursery, later=0.0)
        await scene.at(90.0)
        node.shown = [living("x", "0")]
        await scene.at(150.0)
        node.shown = [ended("x", "0")]
        await scene.at(230.0)
        assert node.released() == []
        await scene.at(250.0)
        nursery.cancel_scope.cancel()
    assert node.released() == [(240.0, "release nomad-a")]


async def test_what_fails_releases_nothing_and_is_said_once_for_each_change(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node([lease("nomad-a", "0")], [ended("x", "0")], error=NomadError("the answer is 500"))
    async with trio.open_nursery() as nursery:
        scene = Scene(node, nursery, later=0.0)
        await scene.at(210.0)
        node.error = NomadError("the answer is 403")
        await scene.at(330.0)
        node.error, node.away = None, NoDaemonError("/s", "no such file", 2)
        await scene.at(450.0)
        assert node.released() == []
        node.away = None
        await scene.at(550.0)
        nursery.cancel_scope.cancel()
    # Nomad was not asked while plugind did not tell of its leases.
    asked = [round((when - scene.began) / APART) for when, what in node.said if what == "allocations"]
    assert asked == [1, 2, 3, 4, 5, 8, 9]
    assert node.released() == [(540.0, "release nomad-a")]
    assert [line.split(";")[0] for line in capsys.readouterr().err.splitlines()] == [
        "plugind: no lease ends: the answer is 500",
        "plugind: no lease ends: the answer is 403",
        "plugind: no lease ends: no daemon answers at /s (no such file)",
        "plugind: leases are compared with Nomad again",
        "plugind: the allocation x has ended: its lease nomad-a has ended, too",
    ]


async def test_a_failure_between_two_looks_does_not_begin_the_count_anew(autojump_clock: MockClock) -> None:
    node = Node([lease("nomad-a", "0")], [ended("x", "0")])
    async with trio.open_nursery() as nursery:
        scene = Scene(node, nursery, later=0.0)
        await scene.at(90.0)
        node.error = NomadError("the answer is 500")
        await scene.at(150.0)
        node.error = None
        await scene.at(200.0)
        nursery.cancel_scope.cancel()
    assert node.released() == [(180.0, "release nomad-a")]


async def test_without_leases_nomad_is_not_asked(autojump_clock: MockClock) -> None:
    node = Node([lease("job", "0"), lease("nomad-z", "1", pool="other")], [ended("x", "0")])
    async with trio.open_nursery() as nursery:
        scene = Scene(node, nursery, later=0.0)
        await scene.at(200.0)
        nursery.cancel_scope.cancel()
    assert [what for _, what in node.said] == ["leases"] * 3


async def test_a_lease_whose_allocation_is_not_shown_stays_and_is_named_once(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """A token that may not read a namespace gets the list without its allocations."""
    node = Node([lease("nomad-a", "0")], [])
    async with trio.open_nursery() as nursery:
        scene = Scene(node, nursery, later=0.0)
        await scene.at(400.0)
        nursery.cancel_scope.cancel()
    assert node.released() == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("plugind: the lease nomad-a stays: Nomad shows no allocation for it.")


@pytest.mark.parametrize(
    ("problem", "lines"),
    [
        (Problem.UNKNOWN, []),
        (Problem.FORBIDDEN, ["plugind: the lease nomad-a of a task that has ended stays: no"] * 2),
    ],
)
async def test_a_release_that_is_refused_is_tried_again(
    problem: Problem, lines: list[str], autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that is not there any more was given to another task in that moment."""
    node = Node([lease("nomad-a", "0")], [ended("x", "0")], refusal=LeaseFailedError(Failure(problem, "no")))
    async with trio.open_nursery() as nursery:
        scene = Scene(node, nursery, later=0.0)
        await scene.at(200.0)
        nursery.cancel_scope.cancel()
    assert node.released() == [(120.0, "release nomad-a"), (180.0, "release nomad-a")]
    assert capsys.readouterr().err.splitlines() == lines
