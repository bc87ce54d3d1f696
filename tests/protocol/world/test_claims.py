"""What the release of a claim means for other plugins of the same name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.messages.reconciler import Claimed
from plugind.protocol.plugins.info import InstancePolicy, PluginInfo
from plugind.protocol.world.claims import Claim, ClaimPhase, Freed, Name, rank_if, rank_of
from plugind.protocol.world.ranking import Rank
from plugind.tests.protocol.sockets import Nowhere

A, B = "/r/a", "/r/b"


def claim(path: str, phase: ClaimPhase = ClaimPhase.ADMITTED, generation: int = 1) -> Claim:
    return Claim(path, generation, PluginInfo("T", "x", path, ("1.0.0",)), Nowhere(), phase)


def claim_with(path: str, plugin_type: str, versions: tuple[str, ...]) -> Claim:
    info = PluginInfo(plugin_type, "x", path, versions)
    rank = rank_of(info, InstancePolicy.HIGHEST_VERSION, privileged=False)
    return Claim(path, 1, info, Nowhere(), ClaimPhase.REGISTERED, rank)


def active(name: Name) -> set[str]:
    return set(name.registered) - set(name.standby)


@pytest.mark.parametrize(
    ("phase", "was_taken"), [(ClaimPhase.ADMITTED, False), (ClaimPhase.REGISTERED, True), (ClaimPhase.LEAVING, True)]
)
def test_a_released_claim_leaves_nothing_and_says_whether_its_plugin_may_have_been_registered(
    phase: ClaimPhase, was_taken: bool
) -> None:
    """Behaviour 37: a plugin that was never registered has blocked no other."""
    name, only = Name(), claim(A, phase)
    if phase is ClaimPhase.REGISTERED:
        name.register(only)
    elif phase is ClaimPhase.ADMITTED:
        name.admit(only)
    else:
        name.leave(A)
    assert name.release(only) == Freed(stood_by=False, was_taken=was_taken)
    assert name.empty
    assert name.standby == {}


def test_the_release_of_one_instance_keeps_the_claims_of_the_others() -> None:
    """Behaviour 37, fault 78."""
    name = Name()
    name.line.add("/r/c", None, privileged=False)
    name.register(claim(A, ClaimPhase.REGISTERED))
    assert name.change_roles(InstancePolicy.NEWEST) == []
    name.register(claim(B, ClaimPhase.REGISTERED, 2))
    assert [changed.path for changed in name.change_roles(InstancePolicy.NEWEST)] == [A]
    assert name.release(name.registered[A]) == Freed(stood_by=True, was_taken=True)
    assert (set(name.registered), name.standby, len(name.line)) == ({B}, {}, 1)


@pytest.mark.parametrize(("plugin_type", "highest"), [("CSIPlugin", B), ("T", A)])
def test_versions_above_1_x_do_not_make_a_csi_driver_active(plugin_type: str, highest: str) -> None:
    """Behaviour 37, TestValidatePlugin: for CSI drivers, versions above 1.x are passed over."""
    name = Name()
    for path, versions in {A: ("1.0.0", "2.0.0"), B: ("1.5.0",)}.items():
        name.register(claim_with(path, plugin_type, versions))
        name.change_roles(InstancePolicy.HIGHEST_VERSION)

    assert active(name) == {highest}


def looked_at(registered: dict[str, Claim], policy: InstancePolicy) -> set[str]:
    """Return the active paths, found out by looking at all that is registered."""
    if policy is InstancePolicy.ALL or not registered:
        return set(registered)
    newest_first = list(reversed(registered.values()))
    return {max(newest_first, key=lambda claim: full_rank(claim, policy)).path}


def full_rank(claim: Claim, policy: InstancePolicy) -> Rank:
    return rank_if(rank_of(claim.info, policy, privileged=claim.privileged), usable=claim.usable)


@given(
    policy=st.sampled_from(InstancePolicy),
    acts=st.lists(
        st.tuples(
            st.sampled_from(["register", "leave", "release", "report"]),
            st.integers(0, 5),
            st.integers(0, 2),
            st.booleans(),
        ),
        max_size=40,
    ),
)
def test_the_active_instance_is_the_one_that_a_look_at_all_instances_finds(
    policy: InstancePolicy, acts: list[tuple[str, int, int, bool]]
) -> None:
    """Behaviour 37: although each change is decided without a look at all instances."""
    name = Name()
    claims: dict[str, Claim] = {}
    for act, number, minor, privileged in acts:
        path = f"/r/{number}"
        if act == "register" and path not in claims:
            info = PluginInfo("T", "x", path, (f"1.{minor}",))
            rank = rank_of(info, policy, privileged=privileged)
            claims[path] = Claim(path, 1, info, Nowhere(), ClaimPhase.REGISTERED, rank, privileged=privileged)
            name.register(claims[path])
        elif act == "leave" and path in name.registered:
            name.leave(path)
        elif act == "release" and path in claims:
            name.release(claims.pop(path))
        elif act == "report" and path in name.registered:
            claim = claims[path]
            claim.usable = bool(minor)
            claim.rank = rank_if(claim.rank, usable=claim.usable)
            name.rank_anew(claim)
        before = active(name)
        changed = {claim.path for claim in name.change_roles(policy)}
        assert active(name) == looked_at(name.registered, policy)
        assert changed == before ^ active(name)
        privileged_ones = [claim for claim in name.registered.values() if claim.privileged]
        assert name.count_against(privileged=True) == len(privileged_ones)
        assert name.count_against(privileged=False) == len(name.registered)
    for only in claims.values():
        name.release(only)
    assert name.empty
    assert not name.standby


def test_what_is_reported_counts_more_than_a_version_and_less_than_a_privilege() -> None:
    info = PluginInfo("CSIPlugin", "x", A, ("1.5.0",))
    policy = InstancePolicy.HIGHEST_VERSION
    high = rank_of(info, policy, privileged=False)
    low = rank_of(PluginInfo("CSIPlugin", "x", B, ("1.0.0",)), policy, privileged=False)
    assert rank_if(low, usable=True) > high > low > rank_if(high, usable=False)
    assert rank_if(rank_of(info, policy, privileged=True), usable=False) > rank_if(high, usable=True)


def test_claims_are_answered_in_the_order_in_which_they_came_and_not_while_a_plugin_is_busy() -> None:
    """Behaviours 20 and 21."""
    name, other = Name(), claim("/r/d", ClaimPhase.ADMITTED)
    alone = Claimed(other.path, 9, other.info)
    assert name.ask(alone) is alone
    name.admit(other)
    asked = [Claimed(path, number, claim(path).info) for number, path in enumerate((A, B, "/r/c"))]
    assert [name.ask(claimed) for claimed in asked] == [None, None, None]
    name.withdraw(B)

    name.release(other)
    last = Claimed("/r/e", 4, claim("/r/e").info)
    answered = [name.ask(last), name.next_to_answer(), name.next_to_answer()]

    assert answered == [asked[0], asked[2], last]
    assert name.next_to_answer() is None
    assert name.empty
