"""What the release of a claim means for other plugins of the same name."""

from __future__ import annotations

import pytest

from plugind.protocol.claims import Claim, Freed, Name, Phase
from plugind.protocol.plugins import InstancePolicy, PluginInfo
from plugind.tests.protocol.playbook import Nowhere

A, B = "/r/a", "/r/b"


def claim(path: str, phase: Phase, generation: int = 1) -> Claim:
    return Claim(path, generation, PluginInfo("T", "x", path, ("1.0.0",)), Nowhere(), phase)


@pytest.mark.parametrize(
    ("phase", "was_taken"), [(Phase.ADMITTED, False), (Phase.REGISTERED, True), (Phase.LEAVING, True)]
)
def test_a_released_claim_leaves_nothing_and_says_whether_its_plugin_may_have_been_registered(
    phase: Phase, was_taken: bool
) -> None:
    """Behaviour 37: a plugin that was never registered has blocked no other."""
    name, only = Name(), claim(A, phase)
    if phase is Phase.REGISTERED:
        name.registered[A] = only
    else:
        name.busy[A] = None
    assert name.release(only) == Freed(stood_by=False, was_taken=was_taken)
    assert name.empty
    assert name == Name()


def test_the_release_of_one_instance_keeps_the_claims_of_the_others() -> None:
    """Behaviour 37, fault 78."""
    name = Name()
    name.registered = {A: claim(A, Phase.REGISTERED), B: claim(B, Phase.REGISTERED, 2)}
    name.blocked["/r/c"] = None
    assert [changed.path for changed in name.change_roles(InstancePolicy.NEWEST)] == [A]
    assert name.release(name.registered[A]) == Freed(stood_by=True, was_taken=True)
    assert (set(name.registered), name.standby, name.blocked) == ({B}, {}, {"/r/c": None})


@pytest.mark.parametrize(("plugin_type", "active"), [("CSIPlugin", B), ("T", A)])
def test_versions_above_1_x_do_not_make_a_csi_driver_active(plugin_type: str, active: str) -> None:
    """Behaviour 37, TestValidatePlugin: for CSI drivers, versions above 1.x are passed over."""
    offered = {A: ("1.0.0", "2.0.0"), B: ("1.5.0",)}
    name = Name()
    for path, versions in offered.items():
        info = PluginInfo(plugin_type, "x", path, versions)
        name.registered[path] = Claim(path, 1, info, Nowhere(), Phase.REGISTERED)

    name.change_roles(InstancePolicy.HIGHEST_VERSION)

    assert set(name.registered) - set(name.standby) == {active}


def test_any_version_ranks_above_none() -> None:
    """Behaviour 37: 0.0 is a version, and 1 is none."""
    name = Name()
    for path, version in ((A, "0.0"), (B, "1")):
        name.registered[path] = Claim(path, 1, PluginInfo("T", "x", path, (version,)), Nowhere(), Phase.REGISTERED)

    name.change_roles(InstancePolicy.HIGHEST_VERSION)

    assert set(name.standby) == {B}
