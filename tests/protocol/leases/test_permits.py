"""What a plugin of a user who is trusted with a resource may put into the leases of others."""

from __future__ import annotations

import attrs
import pytest

from plugind.protocol.errors import ConfigError
from plugind.protocol.leases.answers import AnswerError, from_daemon, permitted
from plugind.protocol.leases.config import LeasesConfig
from plugind.protocol.leases.values import Answer, Lease, LeaseState, Mount, Node, NoOwner
from plugind.tests.protocol.leases.script import GPU, request

NODE = Node("/dev/null", "/dev/null")
HARMFUL = {"PATH": "/tmp/evil", "LD_PRELOAD": "/tmp/evil.so", "GPUS": "0"}
MORE = {
    "mounts": Answer(mounts=(Mount("/", "/"),)),
    "cdi": Answer(cdi_devices=("vendor.com/gpu=0",)),
    "annotations": Answer(annotations={"cdi.k8s.io/x": "vendor.com/gpu=0"}),
}


def test_only_variables_that_are_permitted_for_the_resource_are_taken() -> None:
    answer = Answer(HARMFUL, nodes=(NODE,))
    assert permitted(answer, GPU, ()) == (Answer(nodes=(NODE,)), tuple(HARMFUL))
    permits = (f"{GPU}:env=GPUS", "other.com/gpu:env=PATH")
    assert permitted(answer, GPU, permits) == (Answer({"GPUS": "0"}, nodes=(NODE,)), ("PATH", "LD_PRELOAD"))


@pytest.mark.parametrize("kind", MORE)
def test_what_changes_more_of_a_container_is_refused_unless_it_is_permitted_for_the_resource(kind: str) -> None:
    for permits in ((), (f"other.com/gpu:{kind}",), (f"{GPU}:env={kind}",)):
        with pytest.raises(AnswerError, match=f"leases.permitted does not have {GPU}:{kind}$"):
            permitted(MORE[kind], GPU, permits)
    assert permitted(MORE[kind], GPU, (f"{GPU}:{kind}",)) == (MORE[kind], ())


@pytest.mark.parametrize(
    "permit",
    ["", GPU, f"{GPU}:", f"{GPU}:env=", f"{GPU}:env=A=B", f"{GPU}:nodes", ":mounts", f'["{GPU}:mounts"]', "gpu:mounts"],
)
def test_a_permit_that_is_none_is_an_error(permit: str) -> None:
    with pytest.raises(ConfigError, match="is no permit: give RESOURCE:env=NAME"):
        LeasesConfig(permitted=(permit,))


def test_of_the_daemon_of_another_user_only_devices_are_taken() -> None:
    lease = Lease("x", 0, request((GPU, 1)), NoOwner(), LeaseState.HELD, 0.0, answer=Answer(HARMFUL, nodes=(NODE,)))
    taken = from_daemon(lease, 1000)
    assert (taken.answer, len(taken.warnings)) == (Answer(nodes=(NODE,)), 1)
    for answer in MORE.values():
        with pytest.raises(AnswerError, match="the daemon runs as user 1000, who is neither root nor you"):
            from_daemon(attrs.evolve(lease, answer=answer), 1000)
