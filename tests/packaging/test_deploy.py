"""What ``deploy/`` has for fleets: the DaemonSet, and the roll-out by ssh."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import pytest

from plugind.actors.console.configured import Configured
from plugind.actors.console.run import add_arguments, read_configuration
from plugind.protocol.discovery.endpoints import default_directories
from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import finish

pytestmark = pytest.mark.extended

DEPLOY = Path(__file__).parents[2] / "deploy"
DAEMON_SET = DEPLOY / "kubernetes" / "plugind-observe.yaml"
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
    done = finish(command)
    return done.returncode, done.stdout + done.stderr


def daemon_set() -> dict[str, Any]:
    # PyYAML comes with kubernetes-validate, and publishes no types.
    convert = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)"
    command = [sys.executable, "-c", convert]
    done = finish(command, stdin=DAEMON_SET.read_text(), check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@needs_schemas
def test_the_daemon_set_is_valid() -> None:
    code, said = validate(DAEMON_SET)
    assert (code, "passed for resource daemonset/plugind-observe" in said) == (0, True), said


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


# --- systemd ----------------------------------------------------------------------------------------------------------

#: Stands for ssh: a directory for each host has the answers, and a log of the commands.
SSH = """#!/bin/sh
name=${1#root@}
host=$FLEET/$name
echo "$name: $2" >>"$FLEET/log"
case $2 in
  *"plugind ls"*) cat "$host/listed" ;;
  *apt-get*)
    # As apt-get does without anybody to ask, where the configuration was edited.
    [ ! -e "$host/edited" ] || case $2 in *--force-confold*) ;; *) exit 100 ;; esac
    cp "$host/after" "$host/listed" ;;
  *"config check"*) [ ! -e "$host/refused" ] || exit 78 ;;
  *systemctl*) if [ -e "$host/broken" ]; then rm "$host/listed"; exit 1; fi ;;
esac
"""
SCP = """#!/bin/sh
name=${3#root@}
echo "${name%%:*}: scp $3" >>"$FLEET/log"
"""
PACKAGE = "plugind_1-1_amd64.deb"
CHECK = "plugind config check"
LISTING = "plugind ls --state registered -o name"
INSTALL = (
    "DEBIAN_FRONTEND=noninteractive apt-get install -y -qq"
    " -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold"
    f" /var/tmp/{PACKAGE} && rm /var/tmp/{PACKAGE}"
)


@attrs.define
class Fleet:
    """Hosts of a directory."""

    directory: Path

    def host(self, name: str, before: str | None, after: str | None = None, *, marks: Iterable[str] = ()) -> None:
        """Add a host with the plugins before the upgrade, and after it; ``marks`` say what is odd about it."""
        (host := self.directory / name).mkdir()
        if before is not None:
            (host / "listed").write_text(before)
        (host / "after").write_text(after or before or "")
        for mark in marks:
            (host / mark).touch()

    def roll_out(self, *hosts: str, **settings: str) -> tuple[int, str]:
        """Run the script; return its exit code and output."""
        (programs := self.directory / "bin").mkdir(exist_ok=True)
        for name, text in (("ssh", SSH), ("scp", SCP)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        quick = {"PATH": path, "FLEET": str(self.directory), "PATIENCE": "0", "SOAK": "0"}
        done = finish(
            ["sh", str(ROLL_OUT), f"/tmp/{PACKAGE}", *hosts],
            cwd=self.directory,
            env={**os.environ, **quick, **settings},
        )
        return done.returncode, done.stdout + done.stderr

    def asked(self, host: str) -> list[str]:
        """Return the commands for a host since the last look."""
        log = self.directory / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.removeprefix(f"{host}: ") for line in lines if line.startswith(f"{host}: ")]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_a_roll_out_begins_with_one_host_and_goes_on_in_batches(fleet: Fleet) -> None:
    plugins = "red.example.com\nblue.example.com\n"
    for name in "abcdef":
        fleet.host(name, plugins if name != "b" else "", f"{plugins}new.example.com\n")
    code, said = fleet.roll_out(*"abcdef", BATCH="2")
    assert code == 0, said
    lines = said.splitlines()
    assert lines[:2] == [f"a: installing {PACKAGE}", "a: done"]
    assert [sorted(line[0] for line in lines[at : at + 4]) for at in (2, 6)] == [list("bbcc"), list("ddee")]
    for host in "abcdef":
        copied = f"scp root@{host}:/var/tmp/{PACKAGE}"
        assert fleet.asked(host) == [LISTING, copied, INSTALL, CHECK, "systemctl restart plugind", LISTING]


def test_a_roll_out_keeps_a_configuration_that_was_edited(fleet: Fleet) -> None:
    """It ended with 100 at the question about that file, and the package was half installed."""
    fleet.host("a", "red\n", marks=["edited"])
    code, said = fleet.roll_out("a")
    assert (code, said.splitlines()[-1]) == (0, "a: done")


def test_a_roll_out_restarts_no_daemon_whose_configuration_is_refused(fleet: Fleet) -> None:
    fleet.host("a", "red\n", marks=["refused"])
    code, said = fleet.roll_out("a")
    assert (code, "a: the new version refuses the configuration" in said, fleet.asked("a")[-1]) == (1, True, CHECK)


def test_a_canary_is_looked_at_again_before_the_others_are_changed(fleet: Fleet) -> None:
    fleet.host("a", "red\n")
    fleet.host("b", "red\n")
    code, said = fleet.roll_out("a", "b", SOAK="1")
    assert (code, fleet.asked("a").count(LISTING), fleet.asked("b").count(LISTING)) == (0, 3, 2), said


def test_a_roll_out_stops_after_the_batch_of_a_host_whose_plugins_do_not_come_back_and_goes_on_there(
    fleet: Fleet,
) -> None:
    """What was registered before the first call counts, also for a host that the first call has broken."""
    fleet.host("a", "red\n")
    fleet.host("b", "red\nblue\n", "red\n")
    fleet.host("c", "red\n", marks=["broken"])
    fleet.host("d", "red\n")
    code, said = fleet.roll_out("a", "b", "c", "d", BATCH="2")
    assert (code, fleet.asked("d")) == (1, [])
    assert "b: after 0 s these plugins are not registered again: blue" in said
    assert "c: the service does not start" in said
    assert said.splitlines()[-1] == "2 of these hosts have failed, so others are left as they are: b c"
    asked_of_a = fleet.asked("a")
    code, said = fleet.roll_out("a", "b", "c", "d", BATCH="2")
    assert (code, "blue" in said, fleet.asked("a"), fleet.asked("d")) == (1, True, asked_of_a, [])
    (fleet.directory / "b" / "after").write_text("red\nblue\n")
    (fleet.directory / "c" / "broken").unlink()
    code, said = fleet.roll_out("a", "b", "c", "d", BATCH="2")
    assert (code, fleet.asked("a"), fleet.asked("d") != []) == (0, asked_of_a, True), said
    assert fleet.roll_out("a", "b", "c", "d") == (0, "")


def test_a_roll_out_stops_at_a_canary_that_does_not_answer_or_start(fleet: Fleet) -> None:
    fleet.host("a", None)
    fleet.host("b", "red\n", marks=["broken"])
    code, said = fleet.roll_out("a", "b")
    assert (code, fleet.asked("a"), fleet.asked("b")) == (1, [LISTING], [])
    assert "a: plugind does not answer there, so nothing is changed" in said
    code, said = fleet.roll_out("b", "a")
    assert (code, "b: done" in said, fleet.asked("a")) == (1, False, [LISTING])


def test_the_name_of_a_plugin_is_part_of_no_command(fleet: Fleet) -> None:
    name = "$(touch here)`touch there`;touch too\n"
    fleet.host("a", name)
    assert fleet.roll_out("a")[0] == 0
    fleet.host("b", f"{name}*\n", "other\n")
    assert "not registered again: $(touch here)`touch there`;touch too *" in fleet.roll_out("b")[1].replace(
        "* $(", "$("
    )
    assert not any("touch" in line for host in "ab" for line in fleet.asked(host))
    assert not any((fleet.directory / file).exists() for file in ("here", "there", "too"))


def test_shellcheck_finds_nothing_wrong_with_the_roll_out() -> None:
    done = finish([program("shellcheck"), str(ROLL_OUT)])
    assert (done.returncode, done.stdout) == (0, "")
