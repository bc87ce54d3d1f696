"""plugind and the kubelet's own plugin manager see the same, and do the same."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from plugind.tests.differential.acts import Act, Plugin, Script, script
from plugind.tests.differential.compare import Difference, compare_all, differences
from plugind.tests.differential.play import Played, Step, play
from plugind.tests.differential.programs import Programs
from plugind.tests.differential.world import World
from plugind.tests.end_to_end.go_programs import peer

pytestmark = pytest.mark.extended

A = Plugin("a.example.com")
START = Act("start", "a.sock", plugin=A)


async def test_twenty_random_scripts_differ_only_where_a_rule_allows_it() -> None:
    """Python -m tests.tools.differential plays more."""
    found: list[tuple[int, Difference]] = []
    ended: list[int] = []

    def collect(played: Script, differing: list[Difference]) -> None:
        ended.append(played.seed)
        found.extend((played.seed, one) for one in differing if one.rule is None)

    await compare_all(map(script, range(20)), peer("kubelet-pm"), collect)
    assert sorted(ended) == list(range(20))
    assert not found, "\n".join(f"seed {seed}: {one}" for seed, one in found)


async def test_the_kubelet_keeps_the_old_path_of_a_socket_that_is_renamed() -> None:
    """Behaviour 4."""
    acts = (START, Act("rename", "a.sock", to="b.sock"), Act("stop", "b.sock"))
    played = await play(Script(0, True, (), acts), peer("kubelet-pm"))
    old = "a.example.com at a.sock"
    assert differences(played) == [
        Difference(old, 2, ["registered 1.0.0", "deregistered"], ["registered 1.0.0"], "behaviour 4")
    ]
    assert (played.held_by_ours, played.held_by_theirs) == (set(), {old})


async def test_the_kubelet_registers_a_frozen_plugin_whose_socket_is_gone_once_it_is_thawed() -> None:
    """Fault 38."""
    freeze, thaw = Act("freeze", "a.sock"), Act("thaw", "a.sock")
    played = await play(Script(0, True, (START, freeze), (Act("unlink", "a.sock"), thaw)), peer("kubelet-pm"))
    there = "a.example.com at a.sock"
    assert differences(played) == [
        Difference(there, 2, [], ["registered 1.0.0", "deregistered"], "fault 38"),
        Difference("process 0", 2, [], ["registered"], "fault 38"),
    ]


# --- what no rule allows ---


def played(*, paced: bool, ours: bool, theirs: bool, answers: bool = True) -> Played:
    """Return a script in which a plugin starts, as it would be if these managers had registered it."""
    seen = {"a.example.com at a.sock": ["registered 1.0.0"]}
    step = Step(START, seen if ours else {}, seen if theirs else {})
    held = {"a.example.com at a.sock"}
    there = {"a.sock": A}
    return Played(
        Script(0, paced, (), (START,)),
        [Step(None, {}, {}), step],
        held if ours else set(),
        held if theirs else set(),
        there,
        there if answers else {},
    )


@pytest.mark.parametrize("paced", [True, False])
def test_a_plugin_that_one_manager_alone_registers_is_a_difference(*, paced: bool) -> None:
    for ours, theirs in ((True, False), (False, True)):
        [found] = differences(played(paced=paced, ours=ours, theirs=theirs))
        assert found.rule is None
    assert not differences(played(paced=paced, ours=True, theirs=True))


def test_at_the_end_of_an_unpaced_script_a_plugin_that_answers_is_registered_by_both() -> None:
    [found] = differences(played(paced=False, ours=False, theirs=False))
    assert found.rule is None
    assert not differences(played(paced=False, ours=False, theirs=True, answers=False)), "it may have come in time"


def test_the_kubelet_may_keep_the_path_at_which_a_socket_was_made_that_replaces_another() -> None:
    """Behaviour 4, seed 5087."""
    replace = attrs.evolve(START, kind="replace")
    made = attrs.evolve(
        played(paced=False, ours=True, theirs=True),
        script=Script(0, False, (), (replace,)),
        held_by_theirs={"a.example.com at a.sock", "a.example.com at a.sock.tmp"},
    )
    assert [found.rule for found in differences(made)] == ["behaviour 4"]
    kept = {"a.example.com at a.sock.tmp": ["registered 1.0.0"]}
    made = Played(Script(2, True, (), (replace,)), [Step(None, {}, {}), Step(replace, {}, kept)], set(), set(), {}, {})
    assert [found.rule for found in differences(made)] == ["behaviour 4"]
    made = attrs.evolve(made, steps=[Step(None, {}, {}), Step(replace, kept, {})])
    assert [found.rule for found in differences(made)] == [None]


def test_the_kubelet_may_register_what_is_below_a_link_to_a_directory() -> None:
    """Behaviour 7, seed 5703."""
    made = attrs.evolve(
        played(paced=False, ours=True, theirs=True),
        script=Script(0, False, (), (START, Act("link", "c.sock", to="."))),
        held_by_theirs={"a.example.com at a.sock", "a.example.com at c.sock/a.sock"},
    )
    assert [found.rule for found in differences(made)] == ["behaviour 7"]


def test_plugins_are_processes_that_are_stopped_continued_and_killed(tmp_path: Path) -> None:
    with Programs() as programs:
        world = World(tmp_path, programs)
        for act, there, answers in (
            (START, True, True),
            (Act("freeze", "a.sock"), True, False),
            (Act("thaw", "a.sock"), True, True),
            (Act("freeze", "a.sock"), True, False),
            (Act("kill", "a.sock"), True, False),
            (Act("unlink", "a.sock"), False, False),
        ):
            world.perform(act)
            found = [world.there(answering=answering) for answering in (False, True)]
            assert found == [{"a.sock": A} if yes else {} for yes in (there, answers)], act
