"""What ``deploy/`` has for fleets: the DaemonSet, the job of Nomad, and the roll-out by ssh.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from plugind.actors.console.configured import Configured
from plugind.actors.console.run import add_arguments, read_configuration
from plugind.protocol.endpoints import default_directories

DEPLOY = Path(__file__).parents[2] / "deploy"
DAEMON_SET = DEPLOY / "kubernetes" / "plugind-observe.yaml"
JOB = DEPLOY / "nomad" / "plugind.nomad.json"
ROLL_OUT = DEPLOY / "systemd" / "roll-out.sh"
needs_schemas = pytest.mark.skipif(find_spec("kubernetes_validate") is None, reason="kubernetes-validate is missing")


def configured(arguments: list[str]) -> Configured:
    """Return the configuration that ``plugind run`` makes of its arguments, without any file."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return read_configuration(parser.parse_args([*arguments, "--config", "/dev/null"]), {})


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def validate(path: Path) -> tuple[int, str]:
    """Validate an object against the schemas of the newest Kubernetes that is known; unknown fields are errors."""
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def daemon_set() -> dict[str, Any]:
    # PyYAML comes with kubernetes-validate, and publishes no types.
    convert = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)"
    command = [sys.executable, "-c", convert]
    done = subprocess.run(command, check=True, input=DAEMON_SET.read_text(), capture_output=True, text=True, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@needs_schemas
def test_the_daemon_set_is_valid() -> None:
    code, said = validate(DAEMON_SET)
    assert (code, "passed for resource daemonset/plugind-observe" in said) == (0, True), said


@needs_schemas
@pytest.mark.parametrize(
    ("field", "wrong"),
    [("readOnlyRootFilesystem:", "readonlyRootFilesystem:"), ("runAsUser: 0", "runAsUser: root")],
    ids=["unknown", "type"],
)
def test_a_field_that_is_unknown_or_of_another_type_is_found(field: str, wrong: str, tmp_path: Path) -> None:
    (path := tmp_path / "wrong.yaml").write_text(DAEMON_SET.read_text().replace(field, wrong, 1))
    code, said = validate(path)
    assert (code, "ERROR" in said) == (1, True), said


@needs_schemas
def test_the_pod_may_connect_to_sockets_of_root_and_nothing_else() -> None:
    pod = daemon_set()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    context = container["securityContext"]
    assert (context["runAsUser"], context["capabilities"]) == (0, {"drop": ["ALL"]})
    assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
    assert [pod.get(namespace, False) for namespace in ("hostPID", "hostNetwork", "hostIPC")] == [False] * 3
    host = {volume["name"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert host == {"registry", "plugins"}
    assert all(mounts[name]["readOnly"] for name in host)
    # A volume that is unmounted on the host must not stay mounted here.
    assert {mounts[name]["mountPropagation"] for name in host} == {"HostToContainer"}


@needs_schemas
def test_the_pod_observes_the_directories_that_it_mounts() -> None:
    pod = daemon_set()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    command, *arguments = container["args"]
    settings = configured(arguments)
    assert (command, settings.config.observe) == ("run", True)
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    roots = [root.path for root in settings.config.roots]
    assert mounted >= {*roots, "/var/lib/kubelet/plugins", os.path.dirname(settings.status)}
    assert "/var/lib/kubelet/plugins" in default_directories(roots)
    assert settings.config.metrics.address == f"0.0.0.0:{container['ports'][0]['containerPort']}"
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert all(
        mount["mountPath"] == paths[mount["name"]] for mount in container["volumeMounts"] if mount["name"] in paths
    )


# --- Nomad ------------------------------------------------------------------------------------------------------------

#: The fields of Nomad's JSON jobs that are used here, by the path of the object that has them.
FIELDS: Mapping[str, Mapping[str, type]] = {
    "Job": {
        "ID": str,
        "Name": str,
        "Type": str,
        "Priority": int,
        "Datacenters": list,
        "Constraints": list,
        "Update": dict,
        "TaskGroups": list,
    },
    "Job.Constraints": {"LTarget": str, "RTarget": str, "Operand": str},
    "Job.Update": {"Stagger": int, "MaxParallel": int},
    "Job.TaskGroups": {"Name": str, "Networks": list, "Services": list, "RestartPolicy": dict, "Tasks": list},
    "Job.TaskGroups.Networks": {"ReservedPorts": list},
    "Job.TaskGroups.Networks.ReservedPorts": {"Label": str, "Value": int},
    "Job.TaskGroups.Services": {"Name": str, "Provider": str, "PortLabel": str, "Tags": list, "Meta": dict},
    "Job.TaskGroups.RestartPolicy": {"Attempts": int, "Interval": int, "Delay": int, "Mode": str},
    "Job.TaskGroups.Tasks": {
        "Name": str,
        "Driver": str,
        "User": str,
        "Config": dict,
        "Resources": dict,
        "LogConfig": dict,
        "KillSignal": str,
        "KillTimeout": int,
    },
    "Job.TaskGroups.Tasks.Resources": {"CPU": int, "MemoryMB": int, "MemoryMaxMB": int},
    "Job.TaskGroups.Tasks.LogConfig": {"MaxFiles": int, "MaxFileSizeMB": int},
}
#: Objects whose fields are those of a driver, or of the user.
FREE = frozenset({"Job.TaskGroups.Tasks.Config", "Job.TaskGroups.Services.Meta"})


def problems(value: object, path: str) -> list[str]:
    """Return what is wrong with the fields of an object and of those in it."""
    if isinstance(value, list):
        return [problem for item in value for problem in problems(item, path)]
    if not isinstance(value, dict) or path in FREE:
        return []
    expected = FIELDS[path]
    wrong = [f"{path}.{name}" for name, item in value.items() if type(item) is not expected.get(name)]
    return wrong + [
        problem for name, item in value.items() if name in expected for problem in problems(item, f"{path}.{name}")
    ]


def test_the_job_of_nomad_has_fields_that_nomad_knows() -> None:
    content = json.loads(JOB.read_text())
    assert list(content) == ["Job"]
    assert problems(content["Job"], "Job") == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"KillTimeOut": 1}, "Job.TaskGroups.Tasks.KillTimeOut"),
        ({"KillTimeout": "25s"}, "Job.TaskGroups.Tasks.KillTimeout"),
    ],
    ids=["unknown", "type"],
)
def test_a_field_that_nomad_does_not_know_is_found(change: dict[str, object], found: str) -> None:
    job = json.loads(JOB.read_text())["Job"]
    job["TaskGroups"][0]["Tasks"][0].update(change)
    assert problems(job, "Job") == [found]


def test_the_job_runs_on_each_node_and_gives_the_daemon_its_time_to_stop() -> None:
    job = json.loads(JOB.read_text())["Job"]
    (group,) = job["TaskGroups"]
    (task,) = group["Tasks"]
    assert (job["Type"], job["ID"], task["User"]) == ("system", job["Name"], "root")
    (port,) = group["Networks"][0]["ReservedPorts"]
    assert group["Services"][0]["PortLabel"] == port["Label"]
    command, *arguments = task["Config"]["args"]
    address = "${NOMAD_ADDR_metrics}"
    assert (command, f"--metrics={address}" in arguments) == ("run", True)
    settings = configured([word.replace(address, f"192.0.2.7:{port['Value']}") for word in arguments])
    # The daemon ends within twice its grace, by force if need be.
    assert task["KillTimeout"] / 1e9 > 2 * settings.config.timeouts.stop_grace + 1


# --- systemd ----------------------------------------------------------------------------------------------------------

#: Stands for ssh: a directory for each host has the answers, and a log of the commands.
SSH = """#!/bin/sh
host=$FLEET/${1#root@}
echo "$2" >>"$FLEET/log"
case $2 in
  *"plugind ls"*) cat "$host/listed" ;;
  *apt-get*) cp "$host/after" "$host/listed" ;;
  *systemctl*) [ ! -e "$host/broken" ] ;;
esac
"""
SCP = """#!/bin/sh
echo "scp $3" >>"$FLEET/log"
"""


def roll_out(directory: Path, hosts: Mapping[str, tuple[str | None, str]], *, broken: str = "") -> tuple[int, str, str]:
    """Run the script for hosts, each with the plugins before and after; return its exit code, output and commands."""
    (programs := directory / "bin").mkdir()
    for name, text in (("ssh", SSH), ("scp", SCP)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    for host, (before, after) in hosts.items():
        (directory / host).mkdir()
        if before is not None:
            (directory / host / "listed").write_text(before)
        (directory / host / "after").write_text(after)
        if host == broken:
            (directory / host / "broken").touch()
    (directory / "log").touch()
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "FLEET": str(directory), "PATIENCE": "0"}
    done = subprocess.run(
        ["sh", str(ROLL_OUT), "/tmp/plugind_1_all.deb", *hosts],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        cwd=directory,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr, (directory / "log").read_text()


def test_a_roll_out_goes_from_host_to_host(tmp_path: Path) -> None:
    plugins = "red.example.com\nblue.example.com\n"
    code, said, log = roll_out(tmp_path, {"a": (plugins, plugins), "b": ("", "new.example.com\n")})
    assert (code, said) == (
        0,
        "a: installing plugind_1_all.deb\na: done\nb: installing plugind_1_all.deb\nb: done\n",
    )
    listing = "plugind ls --state registered -o name"
    install = "DEBIAN_FRONTEND=noninteractive apt-get install -y -qq /var/tmp/plugind_1_all.deb"
    of_host = [listing, "scp {}", f"{install} && rm /var/tmp/plugind_1_all.deb", "systemctl restart plugind", listing]
    expected = [line.format(f"root@{host}:/var/tmp/plugind_1_all.deb") for host in "ab" for line in of_host]
    assert log.splitlines() == expected


def test_a_roll_out_stops_at_the_first_host_whose_plugins_do_not_come_back(tmp_path: Path) -> None:
    hosts = {"a": ("red\n", "red\n"), "b": ("red\nblue\n", "red\n"), "c": ("red\n", "red\n")}
    code, said, log = roll_out(tmp_path, hosts)
    assert (code, said.splitlines()[-1]) == (1, "blue")
    assert "b: after 0 s these plugins are not registered again" in said
    assert "root@c" not in log


def test_a_roll_out_stops_where_the_service_does_not_start_or_does_not_answer(tmp_path: Path) -> None:
    code, said, log = roll_out(tmp_path, {"a": ("red\n", "red\n"), "b": ("red\n", "red\n")}, broken="a")
    assert (code, "a: done" in said, "root@b" in log) == (1, False, False)
    (other := tmp_path / "other").mkdir()
    code, said, log = roll_out(other, {"a": (None, "red\n")})
    assert (code, "scp" in log) == (1, False)
    assert "a: plugind does not answer there, so nothing is changed" in said


def test_the_name_of_a_plugin_is_part_of_no_command(tmp_path: Path) -> None:
    name = "$(touch here)`touch there`;touch too\n"
    code, _, log = roll_out(tmp_path, {"a": (name, name)})
    assert (code, "touch" in log) == (0, False)
    assert not any((tmp_path / file).exists() for file in ("here", "there", "too"))
