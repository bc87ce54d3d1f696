"""A lease in the words of those that use it, and that a shell and systemd read the same from ``-o env``."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.leases import forms
from plugind.protocol.leases.forms import FormError
from plugind.protocol.leases.values import Answer, Lease, LeaseState, Mount, Node, NoOwner, Request
from plugind.tests.protocol.hypothesis_settings import examples

GPU, NIC = "vendor.com/gpu", "vendor.com/nic"
DEVICES = {GPU: ("gpu-0", "gpu-1"), NIC: ("eth7",)}


def lease(answer: Answer | None = None, *, cdi_name: str | None = None) -> Lease:
    return Lease(
        "a1b2", 1000, Request(()), NoOwner(), LeaseState.HELD, 0.0, DEVICES, answer or Answer(), cdi_name=cdi_name
    )


SAME = Answer(
    {"GPUS": "0,1"},
    (Mount("/opt/gpu", "/opt/gpu", read_only=True),),
    (Node("/dev/gpu0", "/dev/gpu0"), Node("/dev/gpu1", "/dev/gpu1")),
    {"vendor.com/note": "x"},
)
MOVED = Answer(nodes=(Node("/dev/ttyUSB3", "/dev/tty0", "rwm"),))
OWN = {
    "PLUGIND_LEASE": "a1b2",
    "PLUGIND_DEVICES": "vendor.com/gpu=gpu-0,gpu-1;vendor.com/nic=eth7",
    "PLUGIND_NODES": "/dev/gpu0,/dev/gpu1",
}


# --- the environment --------------------------------------------------------------------------------------------------


def test_a_process_gets_what_the_plugins_gave_and_which_devices_it_has() -> None:
    """A plugin for serial lines gives only nodes, and the process must learn which."""
    assert forms.environment(lease(SAME)) == {"GPUS": "0,1", **OWN}
    assert forms.environment(lease())["PLUGIND_NODES"] == ""


@pytest.mark.parametrize("answer", [MOVED, Answer(mounts=(Mount("/opt/gpu", "/gpu"),))])
def test_what_has_another_path_inside_is_for_containers_only(answer: Answer) -> None:
    for form in (forms.environment, forms.env_file):
        with pytest.raises(FormError) as caught:
            form(lease(answer))
        assert str(caught.value).endswith("use 'podman run' with -o podman, or -o cdi")


def test_an_id_with_a_nul_reaches_no_process() -> None:
    with pytest.raises(FormError, match="PLUGIND_DEVICES has a NUL, so no program can get it"):
        forms.environment(attrs.evolve(lease(), devices={GPU: ("a\0b",)}))


def test_the_lines_for_shells_and_systemd() -> None:
    hostile = lease(Answer({"A": 'say "hi" to $HOME', "B": "a`b`\\"}))
    assert forms.env_file(hostile).splitlines()[:2] == [r'A="say \"hi\" to \$HOME"', r'B="a\`b\`\\"']


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"A.B": "x"}, "A.B is no name of a variable for a shell: use -o json"),
        ({"1A": "x"}, "1A is no name of a variable for a shell: use -o json"),
        ({"A\u202e": "x"}, r"A\u202e is no name of a variable for a shell: use -o json"),
        ({"A": "x\ny"}, "A has a line end or another control character, which systemd refuses: use -o json"),
        ({"A": "x\ry"}, "A has a line end"),
        ({"A": "\x1b[2J"}, "A has a line end or another control character"),
    ],
)
def test_what_a_shell_or_systemd_would_not_take_is_refused(env: dict[str, str], text: str) -> None:
    with pytest.raises(FormError) as caught:
        forms.env_file(lease(Answer(env)))
    assert str(caught.value).startswith(text)
    assert forms.environment(lease(Answer(env)))[next(iter(env))]  # A process takes it.


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True).map("X_".__add__)
VALUES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=[chr(code) for code in (*range(32), 127) if code != 9])
) | st.text("\"'\\$`!;&|<>(){}[]*?~# \t=%abn")
VARIABLES = st.dictionaries(NAMES, VALUES, max_size=6)


@examples(60)
@given(VARIABLES)
def test_a_shell_reads_from_the_lines_what_was_written(env: dict[str, str]) -> None:
    """A real ``sh`` reads them with ``.``, and passes them on."""
    script = f"""set -a; . /dev/stdin; exec {shlex.quote(sys.executable)} -S -E -c '
import os, sys; sys.stdout.buffer.write(b"\\0".join(os.environb[n.encode()] for n in sys.argv[1:]))' "$@" """
    names = [*env, "PLUGIND_LEASE"]
    run = subprocess.run(
        ["/bin/sh", "-c", script, "sh", *names],
        input=forms.env_file(lease(Answer(env))).encode(),
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        check=True,
    )
    assert run.stdout.decode().split("\0") == [*env.values(), "a1b2"]


# --- containers -------------------------------------------------------------------------------------------------------


def test_podman_is_told_our_device_and_what_the_plugins_named() -> None:
    """A plugin's CDI names and annotations cannot be nested in ours."""
    answer = Answer(annotations={"a/b": "c"}, cdi_devices=("vendor.com/gpu=0",))
    assert forms.podman(lease(answer, cdi_name="l7")) == (
        "--device plugind/lease=l7 --device vendor.com/gpu=0 --annotation a/b=c\n"
    )
    assert forms.cdi(lease(answer, cdi_name="l7")) == "plugind/lease=l7\nvendor.com/gpu=0\n"


@pytest.mark.parametrize("form", [forms.podman, forms.cdi])
def test_a_lease_of_a_process_is_none_for_a_container(form: forms.Form) -> None:
    with pytest.raises(FormError, match="the lease a1b2 was not made for a container: ask for it with -o cdi"):
        form(lease(SAME))


def test_docker_is_told_each_node_mount_and_variable() -> None:
    answer = Answer({"GPUS": "0"}, (Mount("/opt", "/o", read_only=True), Mount("/a", "/a")), MOVED.nodes)
    assert forms.docker(lease(answer)).split() == [
        *("--device", "/dev/ttyUSB3:/dev/tty0:rwm"),
        *("-v", "/opt:/o:ro"),
        *("-v", "/a:/a:rw"),
        *("-e", "GPUS=0"),
        *("-e", "PLUGIND_LEASE=a1b2"),
        *("-e", f"PLUGIND_DEVICES={OWN['PLUGIND_DEVICES']}"),
        *("-e", "PLUGIND_NODES=/dev/tty0"),
    ]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Answer(cdi_devices=("vendor.com/gpu=0",)), "a plugin has named CDI devices, which Docker's plain options"),
        (Answer(annotations={"cdi.k8s.io/gpu": "vendor.com/gpu=0"}), "a plugin has named CDI devices"),
        (Answer({"A": "b c"}), "a shell would change -e A=b c: use -o json"),
        (Answer({"A": "b\tc"}), r"a shell would change -e A=b\tc: use -o json"),
        (Answer({"A": "*"}), "a shell would change -e A=*: use -o json"),
        (Answer(nodes=(Node("/dev/pci-0000:00", "/dev/x"),)), "/dev/pci-0000:00 has a colon, at which Docker would"),
        (Answer(mounts=(Mount("/a", "/b:c"),)), "/b:c has a colon, at which Docker would split it: use -o podman"),
    ],
)
def test_what_docker_would_take_for_something_else_is_refused(answer: Answer, text: str) -> None:
    with pytest.raises(FormError) as caught:
        forms.docker(lease(answer))
    assert str(caught.value).startswith(text)


@examples(40)
@given(st.dictionaries(NAMES, st.text("\"'$`!;&|<>(){}]~#=%:,abn") | VALUES, min_size=1, max_size=3))
def test_the_words_of_docker_survive_a_shell(env: dict[str, str]) -> None:
    """``docker run $(plugind allocate … -o docker)``, in a directory with files; or they are refused."""
    try:
        line = forms.docker(lease(Answer(env)))
    except FormError:
        return
    run = subprocess.run(
        ["/bin/sh", "-c", 'for word in $(cat); do printf "%s\\0" "$word"; done'],
        input=line.encode(),
        cwd="/",
        capture_output=True,
        check=True,
    )
    assert run.stdout.decode().split("\0")[:-1] == line.split()
    assert [f"{name}={text}" for name, text in env.items()] == line.split()[1 : 2 * len(env) : 2]


# --- people -----------------------------------------------------------------------------------------------------------


def test_people_read_all_of_a_lease() -> None:
    answer = attrs.evolve(SAME, nodes=(*SAME.nodes, *MOVED.nodes), cdi_devices=("vendor.com/gpu=0",))
    assert forms.text(lease(answer, cdi_name="l7")) == (
        "lease       a1b2\n"
        "devices     vendor.com/gpu: gpu-0, gpu-1\n"
        "devices     vendor.com/nic: eth7\n"
        "node        /dev/gpu0 (rw)\n"
        "node        /dev/gpu1 (rw)\n"
        "node        /dev/ttyUSB3 -> /dev/tty0 (rwm)\n"
        "mount       /opt/gpu (ro)\n"
        "variable    GPUS=0,1\n"
        "annotation  vendor.com/note=x\n"
        "cdi         plugind/lease=l7\n"
        "cdi         vendor.com/gpu=0\n"
    )


def test_nothing_of_a_plugin_reaches_the_terminal_as_it_is() -> None:
    assert r"A=\x1b[2J\n" in forms.text(lease(Answer({"A": "\x1b[2J\n"})))
