"""What is refused of the answers to Allocate, and how the answers of several resources are joined."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest

from plugind.protocol.leases.answers import MAX_BYTES, MAX_ENTRIES, MAX_TEXT, AnswerError, check_count, checked, joined
from plugind.protocol.leases.values import Answer, Mount, Node

GPU, NIC = "vendor.com/gpu", "vendor.com/nic"


def refused(answer: Answer) -> str:
    with pytest.raises(AnswerError) as caught:
        checked(answer)
    return str(caught.value)


def node(host: str = "/dev/null", inside: str = "/dev/null", permissions: str = "rw") -> Node:
    return Node(host, inside, permissions)


FULL = Answer(
    {"key1": "val1", "EMPTY": "", "LINES": "a\nb"},
    (Mount("/home/r1lib1", "/usr/lib/r1lib1", read_only=True),),
    (node("/dev/r1", "/dev/r1", "mrw"),),
    {"annotations/key": "a\nvalue"},
    ("domain1.com/resource1=dev1", "nvidia.com/gpu=GPU-1:2"),
)


def test_what_a_plugin_answers_is_what_the_owner_gets() -> None:
    """TestGetDeviceRunContainerOptions: variables, mounts, devices, annotations and CDI names, as they were said."""
    assert checked(FULL) == FULL


def test_what_is_said_twice_is_there_once() -> None:
    """Each of two devices of one kind needs the same control node: NVIDIA's, and KVM's."""
    twice = Answer(nodes=(node(), node()), mounts=(Mount("/a", "/b"),) * 2, cdi_devices=("a.com/b=c",) * 2)
    assert checked(twice) == Answer(nodes=(node(),), mounts=(Mount("/a", "/b"),), cdi_devices=("a.com/b=c",))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "no containers return in allocation response: it is empty"),
        (2, "2 containers return in allocation response, and one was asked for"),
    ],
)
def test_there_is_one_answer_for_one_container(count: int, text: str) -> None:
    """Consumers B.6: the first text is the kubelet's."""
    check_count(1)
    with pytest.raises(AnswerError) as caught:
        check_count(count)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Answer(nodes=(node("dev/x"),)), 'the host path "dev/x" is not absolute'),
        (Answer(nodes=(node(inside="x"),)), 'the container path "x" is not absolute'),
        (Answer(mounts=(Mount("", "/x"),)), 'the host path "" is not absolute'),
        (Answer(mounts=(Mount("/a\nb", "/x"),)), r'the host path "/a\nb" has a control character'),
        (Answer(mounts=(Mount("/a", "/\x9b1m"),)), r'the container path "/\x9b1m" has a control character'),
        (Answer(nodes=(node("/\0"),)), r'the host path "/\x00" has a control character'),
        (Answer(nodes=(node(permissions=""),)), 'are "": they are some of r, w and m'),
        (Answer(nodes=(node(permissions="rx"),)), 'the permissions of "/dev/null" are "rx"'),
        (Answer(nodes=(node(permissions="rr"),)), 'the permissions of "/dev/null" are "rr"'),
        (Answer(nodes=(node("/dev/a", "/dev/x"), node("/dev/b", "/dev/x"))), 'different things at "/dev/x"'),
        (Answer(nodes=(node(), node(permissions="r"))), 'it puts different things at "/dev/null"'),
        (Answer(nodes=(node(),), mounts=(Mount("/dev/null", "/dev/null"),)), "it puts different things"),
        (Answer({"": "x"}), "the name of one variable is empty"),
        (Answer({"A=B": "x"}), 'the name of the variable "A=B" has a ='),
        (Answer({"A\0": "x"}), r'the name of the variable "A\x00" has a control character'),
        (Answer({"A\x1b[2J": "x"}), "has a control character"),
        (Answer({"A": "x\0y"}), 'the value of the variable "A" has a NUL'),
        (Answer({"PLUGIND_LEASE": "x"}), 'it sets the variable "PLUGIND_LEASE", and PLUGIND_* are plugind\'s own'),
        (Answer(annotations={"": "x"}), "the name of one annotation is empty"),
        (Answer(annotations={"k": "\0"}), 'the value of the annotation "k" has a NUL'),
        (Answer(cdi_devices=("gpu0",)), '"gpu0" is no name of a CDI device, such as vendor.com/gpu=0'),
        (Answer(cdi_devices=("a.com/b=c d",)), "is no name of a CDI device"),
        (Answer(cdi_devices=("a.com/b=$(reboot)",)), "is no name of a CDI device"),
        (Answer(cdi_devices=("a.com/b=c\n",)), "is no name of a CDI device"),
    ],
)
def test_an_answer_that_cannot_be_used_is_refused_with_the_reason(answer: Answer, text: str) -> None:
    assert text in refused(answer)


@pytest.mark.parametrize(
    ("answer", "most", "text"),
    [
        (lambda n: Answer({f"A{k}": "" for k in range(n)}), MAX_ENTRIES, "it has more than 1024 variables"),
        (lambda n: Answer(nodes=tuple(node(inside=f"/{k}") for k in range(n))), MAX_ENTRIES, "more than 1024 devices"),
        (lambda n: Answer(mounts=tuple(Mount("/", f"/{k}") for k in range(n))), MAX_ENTRIES, "more than 1024 mounts"),
        (lambda n: Answer(cdi_devices=tuple(f"a.com/b={k}" for k in range(n))), MAX_ENTRIES, "than 1024 CDI devices"),
        (lambda n: Answer(annotations={"a": "x" * n}), MAX_BYTES - 1, "have 262145 bytes, and 262144 are allowed"),
        (lambda n: Answer({"A": "x" * n}), MAX_TEXT - 2, 'the variable "A" is longer than'),
        (lambda n: Answer(nodes=(node("/" + "x" * n),)), 4094, "longer than 4095 bytes"),
    ],
)
def test_what_an_answer_may_have_is_bounded(answer: Callable[[int], Answer], most: int, text: str) -> None:
    assert checked(answer(most)) == answer(most)
    assert text in refused(answer(most + 1))


def test_a_variable_of_the_greatest_length_reaches_a_program() -> None:
    """The limit is the kernel's: one byte more, and no program starts."""
    longest = {"A": "x" * (MAX_TEXT - 2)}
    checked(Answer(longest))
    subprocess.run(["/bin/true"], env=os.environ | longest, check=True)
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["/bin/true"], env=os.environ | {"A": longest["A"] + "x"}, check=True)


# --- several resources ------------------------------------------------------------------------------------------------


def test_the_answers_of_several_resources_are_joined() -> None:
    """TestDeviceRunContainerOptions: what all say is there, and what two say alike is there once."""
    other = Answer(
        {"key2": "val2", "key1": "val1"},
        (Mount("/home/r1lib1", "/usr/lib/r1lib1", read_only=True), Mount("/home/r2", "/usr/r2")),
        (node("/dev/r2", "/dev/r2"),),
        {"annotations/key": "a\nvalue", "annotations/key2": ""},
        ("nvidia.com/gpu=GPU-1:2", "domain2.com/resource2=dev1"),
    )
    assert joined({GPU: FULL, NIC: other}) == Answer(
        {**FULL.env, "key2": "val2"},
        (*FULL.mounts, Mount("/home/r2", "/usr/r2")),
        (*FULL.nodes, node("/dev/r2", "/dev/r2")),
        {**FULL.annotations, "annotations/key2": ""},
        ("domain1.com/resource1=dev1", "nvidia.com/gpu=GPU-1:2", "domain2.com/resource2=dev1"),
    )


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (Answer({"A": "1"}), Answer({"A": "2"}), f"{GPU} and {NIC} set A to different values"),
        (
            Answer(annotations={"A": "1"}),
            Answer(annotations={"A": ""}),
            f"{GPU} and {NIC} set the annotation A to different values",
        ),
        (
            Answer(nodes=(node("/dev/a", "/dev/x"),)),
            Answer(nodes=(node("/dev/b", "/dev/x"),)),
            f'{GPU} and {NIC} put different things at "/dev/x"',
        ),
        (
            Answer(mounts=(Mount("/a", "/x"),)),
            Answer(mounts=(Mount("/a", "/x", read_only=True),)),
            f'{GPU} and {NIC} put different things at "/x"',
        ),
    ],
)
def test_answers_that_contradict_each_other_are_an_error(first: Answer, second: Answer, text: str) -> None:
    """TestDeviceRunContainerOptions, where the kubelet takes the first one and only logs that."""
    with pytest.raises(AnswerError) as caught:
        joined({GPU: first, NIC: second})
    assert str(caught.value) == text
