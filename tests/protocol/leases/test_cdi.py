"""The CDI document of a lease: what engines load, and what the container gets by it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.leases.cdi import CdiError, Hook, HostNode, document, name_of
from plugind.protocol.leases.values import Answer, ContainerOwner, Lease, LeaseState, Mount, Node, Request, Wanted
from plugind.tests.protocol.hypothesis_settings import examples
from plugind.tests.protocol.leases.cdi_schema import check_document

GPU = "vendor.com/gpu"
HOOK = Hook(("/usr/bin/python3", "-P", "-m", "plugind"), "/run/plugind/status.sock")


def lease(answer: Answer | None = None, **changes: Any) -> Lease:
    made = Lease(
        "job-7",
        0,
        Request((Wanted(GPU, 2),), container=True),
        ContainerOwner(),
        LeaseState.PENDING,
        1700000000.0,
        {GPU: ("GPU-0", "GPU-1"), "v.com/nic": ("eth1",)},
        answer,
        name_of(5),
    )
    return attrs.evolve(made, **changes)


def as_named(path: str) -> Sequence[HostNode]:
    return [HostNode(path, "", 0o600, 0, 44)]


def edits_of(answer: Answer | None, nodes_at: Any = as_named) -> dict[str, Any]:
    written = json.loads(json.dumps(document(lease(answer), nodes_at, HOOK)))
    check_document(written)
    (device,) = written["devices"]
    assert device["name"] == name_of(5)
    edits: dict[str, Any] = device["containerEdits"]
    return edits


def version_of(answer: Answer, nodes_at: Any = as_named) -> Any:
    return document(lease(answer), nodes_at, HOOK)["cdiVersion"]


def test_a_lease_of_which_the_plugin_says_nothing_still_has_edits() -> None:
    """Empty edits do not resolve."""
    for answer in (None, Answer()):
        edits = edits_of(answer)
        devices = "PLUGIND_DEVICES=vendor.com/gpu=GPU-0,GPU-1;v.com/nic=eth1"
        assert edits["env"] == ["PLUGIND_LEASE=job-7", devices, "PLUGIND_NODES="]
        assert set(edits) == {"env", "hooks"}


def test_the_plugins_environment_is_before_our_own() -> None:
    env = edits_of(Answer({"NVIDIA_VISIBLE_DEVICES": "GPU-0", "LINES": "a\nb=c"}))["env"]
    assert env[:2] == ["NVIDIA_VISIBLE_DEVICES=GPU-0", "LINES=a\nb=c"]
    assert env[2].startswith("PLUGIND_LEASE=")


def test_the_environment_names_the_nodes_as_they_are_inside() -> None:
    env = edits_of(Answer(nodes=(Node("/dev/gpu7", "/dev/gpu0"), Node("/dev/ctl", "/dev/ctl"))))["env"]
    assert env[-1] == "PLUGIND_NODES=/dev/gpu0,/dev/ctl"


def test_a_variable_that_no_program_can_get_fails_the_lease() -> None:
    with pytest.raises(CdiError, match="PLUGIND_DEVICES has a NUL"):
        document(lease(devices={GPU: ("a\0b",)}), as_named, HOOK)


def test_a_node_has_the_mode_and_owner_that_it_has_on_the_host() -> None:
    """An engine makes it with 0666 otherwise."""
    (node,) = edits_of(Answer(nodes=(Node("/dev/gpu0", "/dev/gpu0", "rw"),)))["deviceNodes"]
    assert node == {"path": "/dev/gpu0", "permissions": "rw", "fileMode": 0o600, "uid": 0, "gid": 44}


def test_the_lowest_version_that_serves_is_named() -> None:
    assert version_of(Answer()) == "0.3.0"
    assert version_of(Answer(mounts=(Mount("/usr/lib/a", "/lib/a"),))) == "0.3.0"
    assert version_of(Answer(nodes=(Node("/dev/a", "/dev/a"),))) == "0.3.0"
    assert version_of(Answer(nodes=(Node("/dev/a", "/dev/a"), Node("/dev/b7", "/dev/b")))) == "0.5.0"


def test_a_node_with_another_path_inside_is_named_by_both() -> None:
    (node,) = edits_of(Answer(nodes=(Node("/dev/gpu7", "/dev/gpu0"),)))["deviceNodes"]
    assert (node["path"], node["hostPath"]) == ("/dev/gpu0", "/dev/gpu7")


def test_a_node_with_another_path_inside_is_mounted_for_a_user_who_is_not_root() -> None:
    """runc without root mounts each node from its path inside."""
    answer = Answer(nodes=(Node("/dev/gpu7", "/dev/gpu0", "r"), Node("/dev/ctl", "/dev/ctl"), Node("/dev/a", "/dev/b")))
    written = json.loads(json.dumps(document(lease(answer, uid=1000), as_named, HOOK)))
    check_document(written)
    edits = written["devices"][0]["containerEdits"]
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/ctl"]
    assert edits["mounts"] == [
        {"hostPath": "/dev/gpu7", "containerPath": "/dev/gpu0", "options": ["rbind", "rprivate", "ro"]},
        {"hostPath": "/dev/a", "containerPath": "/dev/b", "options": ["rbind", "rprivate", "rw"]},
    ]
    assert written["cdiVersion"] == "0.3.0"


def test_a_symbolic_link_is_named_inside_as_the_plugin_names_it() -> None:
    def link(_: str) -> Sequence[HostNode]:
        return as_named("/dev/ttyUSB3")

    link_path = "/dev/serial/by-id/usb-1"
    (node,) = edits_of(Answer(nodes=(Node(link_path, link_path),)), link)["deviceNodes"]
    assert (node["path"], node["hostPath"]) == (link_path, "/dev/ttyUSB3")


def test_a_directory_of_nodes_is_all_of_its_nodes() -> None:
    def sound(path: str) -> Sequence[HostNode]:
        return [HostNode(f"{path}/{name}", f"/{name}", 0o660, 0, 29) for name in ("pcm", "by/timer")]

    nodes = edits_of(Answer(nodes=(Node("/dev/snd", "/dev/audio", "r"),)), sound)["deviceNodes"]
    assert [(node["path"], node["hostPath"]) for node in nodes] == [
        ("/dev/audio/pcm", "/dev/snd/pcm"),
        ("/dev/audio/by/timer", "/dev/snd/by/timer"),
    ]
    assert {node["permissions"] for node in nodes} == {"r"}


def test_a_node_that_is_not_there_fails_the_lease() -> None:
    def nothing(path: str) -> Sequence[HostNode]:
        raise CdiError(f"{path} is not there")

    for uid, inside in ((0, "/dev/a"), (1000, "/dev/a"), (1000, "/dev/b")):
        with pytest.raises(CdiError, match="/dev/a is not there"):
            document(lease(Answer(nodes=(Node("/dev/a", inside),)), uid=uid), nothing, HOOK)


@pytest.mark.parametrize(("read_only", "last"), [(True, "ro"), (False, "rw")])
def test_a_mount_is_made_with_what_is_mounted_below_it(read_only: bool, last: str) -> None:
    (mount,) = edits_of(Answer(mounts=(Mount("/usr/lib/gpu", "/gpu", read_only),)))["mounts"]
    assert mount == {"hostPath": "/usr/lib/gpu", "containerPath": "/gpu", "options": ["rbind", "rprivate", last]}


def test_the_hook_runs_before_the_container_does() -> None:
    (hook,) = edits_of(Answer())["hooks"]
    assert hook == {
        "hookName": "createRuntime",
        "path": "/usr/bin/python3",
        "args": [*HOOK.command, "lease-hook", "--status", "/run/plugind/status.sock", "job-7"],
        "timeout": 30,
    }


def test_annotations_and_cdi_names_of_plugins_are_not_written() -> None:
    """They can't be nested, and would unload the file."""
    edits = edits_of(Answer(annotations={"cdi.k8s.io/a": "v.com/gpu=0"}, cdi_devices=("v.com/gpu=0",)))
    assert set(edits) == {"env", "hooks"}


def test_a_name_is_a_letter_and_127_bits() -> None:
    names = {name_of(bits) for bits in (0, 1, (1 << 127) - 1, 1 << 126)}
    assert len(names) == 4
    assert all(re.fullmatch("l[0-7][0-9a-f]{31}", name) for name in names)


_PATHS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1).map("/{}".format)
_ANSWERS = st.builds(
    Answer,
    env=st.dictionaries(
        st.from_regex(r"\A[A-Za-z_]+\Z"), st.text(st.characters(codec="utf-8", exclude_characters="\0"))
    ),
    mounts=st.lists(st.builds(Mount, _PATHS, _PATHS, st.booleans())).map(tuple),
    nodes=st.lists(st.builds(Node, _PATHS, _PATHS, st.sampled_from(["r", "rw", "rwm"]))).map(tuple),
)


@examples(50)
@given(_ANSWERS, st.sampled_from([0, 1000]))
def test_whatever_a_plugin_answers_the_document_is_loaded(answer: Answer, uid: int) -> None:
    content = json.dumps(document(lease(answer, uid=uid), as_named, HOOK))
    assert content.isascii()
    check_document(json.loads(content))
