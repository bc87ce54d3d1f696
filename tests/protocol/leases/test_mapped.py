"""Mapped variables: what is made of a device plugin's, and what happens without them."""

from __future__ import annotations

import attrs
import pytest

from plugind.protocol.errors import ConfigError
from plugind.protocol.leases.answers import AnswerError
from plugind.protocol.leases.mapped import BUILT_IN, ResourceConfig, mapped
from plugind.protocol.leases.values import Answer, Node

NVIDIA = BUILT_IN["nvidia.com/gpu"]
CUDA, VISIBLE = "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"
UUIDS = "GPU-6f7c1b4e-0a2d-4c11-9d0e-1f2a3b4c5d6e,MIG-0a1b2c3d-0a2d-4c11-9d0e-1f2a3b4c5d6e"


@pytest.mark.parametrize(
    ("resource", "env", "more"),
    [
        (NVIDIA, {VISIBLE: UUIDS}, {CUDA: UUIDS}),
        (NVIDIA, {VISIBLE: UUIDS, CUDA: "GPU-1"}, {}),
        (NVIDIA, {CUDA: "0"}, {}),
        (ResourceConfig({"X": "{A}-{B}", "Y": "{{", "Z": ""}), {"A": "1", "B": "2"}, {"X": "1-2", "Y": "{", "Z": ""}),
        (ResourceConfig(), {"A": "1"}, {}),
    ],
)
@pytest.mark.parametrize("container", [False, True])
def test_what_a_plugin_does_not_set_is_made_of_what_it_sets(
    resource: ResourceConfig, env: dict[str, str], more: dict[str, str], container: bool
) -> None:
    answer = Answer(env, identities={"a": "b"})
    assert mapped(answer, resource, container=container) == attrs.evolve(answer, env={**env, **more})


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({}, f"it does not set {VISIBLE}, of which {CUDA} is made"),
        ({VISIBLE: "0,1"}, f'{CUDA} would be "0,1", and takes UUIDs such as GPU-…, no indices'),
        ({VISIBLE: "all"}, f'{CUDA} would be "all"'),
        ({VISIBLE: ""}, f'{CUDA} would be ""'),
        ({VISIBLE: "/var/run/nvidia-container-devices"}, f'{CUDA} would be "/var/run'),
    ],
)
def test_without_it_a_process_gets_no_lease_since_it_would_see_all_devices(env: dict[str, str], why: str) -> None:
    answer = Answer(env)
    with pytest.raises(AnswerError) as caught:
        mapped(answer, NVIDIA, container=False)
    assert str(caught.value).startswith(why)
    assert mapped(answer, NVIDIA, container=True) == answer
    moved = attrs.evolve(answer, nodes=(Node("/dev/a", "/dev/b"),))
    assert mapped(moved, NVIDIA, container=False) == moved


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"PLUGIND_LEASE": "x"}, '"PLUGIND_LEASE" cannot be the name of a variable'),
        ({"A=B": "x"}, '"A=B" cannot be the name of a variable'),
        ({"A": "{B.c}"}, 'the variable A is "{B.c}": between braces there must be the name of a variable'),
        ({"A": "{}"}, "between braces there must be the name of a variable"),
        ({"A": "{B!r}"}, "between braces there must be the name of a variable"),
        ({"A": "{B"}, 'the variable A is "{B": '),
    ],
)
def test_a_mapping_that_cannot_work_is_refused(env: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ResourceConfig(env)
    assert why in str(caught.value)
