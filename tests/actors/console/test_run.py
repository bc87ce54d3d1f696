"""The configuration from the command line and the environment, and the notifications of a service manager."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plugind.actors.console import run as daemon
from plugind.protocol.errors import ConfigError
from plugind.protocol.handlers.csi import CSIConfig
from plugind.protocol.health.checks import HealthChecks
from plugind.protocol.settings.config import DEFAULT_ROOT, Config, DevicePluginDirectory, Root
from plugind.protocol.trust.users import Trust


def configured(*arguments: str, **environment: str) -> Config:
    parser = argparse.ArgumentParser()
    daemon.add_arguments(parser)
    return daemon.read_configuration(parser.parse_args(arguments), environment, os.devnull).config


KUBELET = Root(DEFAULT_ROOT)
#: Where device plugins call unless the root says another directory.
BESIDE = "/var/lib/kubelet/device-plugins"


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("", "roots", (KUBELET,)),
        ("--root /c --root /d --root /c", "roots", (Root("/c"), Root("/d"))),
        ("--deprecated-root /old", "roots", (KUBELET, Root("/old", deprecated=True))),
        # The default root is a kubelet's, and so need not be there. One that was named has to be.
        ("--device-plugins=/dp", "roots", (Root(DEFAULT_ROOT, optional=True),)),
        ("--device-plugins=/dp --root /c", "roots", (Root("/c"),)),
        ("", "device_plugins", None),
        ("--device-plugins=/dp", "device_plugins", DevicePluginDirectory("/dp")),
        ("--device-plugins /dp/", "device_plugins", DevicePluginDirectory("/dp")),
        ("--device-plugins", "device_plugins", DevicePluginDirectory(BESIDE)),
        ("--root=/a/plugins_registry --device-plugins", "device_plugins", DevicePluginDirectory("/a/device-plugins")),
        ("--root=/plugins --device-plugins", "device_plugins", DevicePluginDirectory(BESIDE)),
        ("", "stable_after", 10),
        ("--stable-after=30", "stable_after", 30),
        ("--stable-after=0", "stable_after", 0),
        ("", "strict", False),
        ("--strict", "strict", True),
        ("", "max_instances", 64),
        ("--max-instances 500", "max_instances", 500),
        ("", "blocked_after", 1.0),
        ("--blocked-after 2.5", "blocked_after", 2.5),
        ("", "trust", Trust()),
        ("--trust-uid 1000 --trust-uid 2000-2999 --trust-uid www", "trust", Trust((1000, (2000, 2999), "www"))),
        ("", "csi", CSIConfig()),
        ("--csi-refresh 60 --csi-topology warn", "csi", CSIConfig(60.0, "warn")),
    ],
)
def test_an_option_is_a_field_of_the_configuration(words: str, field: str, value: object) -> None:
    """Behaviours 1 and 16, faults 40, 48, 49 and 83: a limit that stops a plugin can be raised."""
    assert getattr(configured(*words.split()), field) == value


@pytest.mark.parametrize("insecure", [False, True])
def test_all_roots_may_be_insecure_if_that_is_asked_for(insecure: bool) -> None:
    """Fault 3: by default none may be."""
    flags = ["--insecure-root"] * insecure
    config = configured("--root", "/a", "--deprecated-root", "/b", *flags)
    assert [root.insecure for root in config.roots] == [insecure] * 2


def test_device_plugins_may_not_call_unless_that_is_asked_for() -> None:
    """Two consumers on one directory break some device plugins (consumers B.3)."""
    assert configured().device_plugins is None
    with pytest.raises(ConfigError, match="add --device-plugins"):
        configured("--take-over-kubelet")
    taken = configured("--device-plugins=/dp", "--take-over-kubelet", "--insecure-root").device_plugins
    assert taken == DevicePluginDirectory("/dp", take_over_kubelet=True, insecure=True)


def test_directories_for_endpoints_are_added_to_the_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fault 43: the drivers in the usual directories stay registered when others are allowed."""
    monkeypatch.chdir(tmp_path)
    config = configured("--root", "/k/plugins_registry", "--endpoint-dir", "drivers/", "--endpoint-dir", "/run/csi")
    assert config.endpoint_directories == (
        "/k/plugins_registry",
        "/k/plugins",
        "/k/csi-plugins",
        "/k/device-plugins",
        f"{tmp_path}/drivers",
        "/run/csi",
    )


def test_the_state_is_kept_where_it_is_told_to_or_where_programs_of_the_user_keep_theirs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A daemon without device plugins keeps one only if it is asked to: it leases no device otherwise."""
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    daemon.add_arguments(parser)

    def state(*words: str, **environment: str) -> str | None:
        return daemon.read_configuration(parser.parse_args(words), environment, os.devnull).config.state

    assert state(PLUGIND_STATE="/s") is None
    assert state("--device-plugins", "--state", "here") == f"{tmp_path}/here"
    assert state("--device-plugins", PLUGIND_STATE="/s") == "/s"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert state("--device-plugins") == "/var/lib/plugind"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert state("--device-plugins", XDG_STATE_HOME="/home/me/state") == "/home/me/state/plugind"
    assert state("--state", "here") == f"{tmp_path}/here"
    with pytest.raises(ConfigError, match="the path of the state is empty"):
        state("--device-plugins", "--state", "")


def test_checks_of_health_can_be_left_out_or_be_rarer_for_all_types_or_for_one() -> None:
    checks = configured("--health", "DevicePlugin=off", "--health", "CSIPlugin=120").health_checks
    assert [checks.checks(name) for name in ("DevicePlugin", "CSIPlugin", "DRAPlugin")] == [False, True, True]
    assert [checks.of_type(name).period for name in ("CSIPlugin", "DRAPlugin")] == [120.0, 30.0]
    checks = configured("--health", "off", "--health", "CSIPlugin=60").health_checks
    assert [checks.checks(name) for name in ("DevicePlugin", "CSIPlugin")] == [False, True]
    assert configured("--health", "off", "--health", "15").health_checks == HealthChecks(15.0)
    assert configured().health_checks == HealthChecks()


#: Runs a daemon that stops itself once it listens, and then prints how many objects the garbage collector looks at.
_STOPPING = """
import gc, os, signal, sys, threading, time
from plugind.actors.console.commands import main

def stop(status: str) -> None:
    while not os.path.exists(status):
        time.sleep(0.01)
    kept.extend([] for _ in range(20_000))
    os.kill(os.getpid(), signal.SIGTERM)

kept: list[list[None]] = []
threading.Thread(target=stop, args=(sys.argv[2],), daemon=True).start()
code = main(["run", "--root", sys.argv[1], "--status", sys.argv[2]])
print(code, len(gc.get_objects()) < 20_000)
"""


def test_at_the_end_of_a_daemon_the_interpreter_does_not_collect_what_is_left_of_its_plugins(tmp_path: Path) -> None:
    """With 10,000 plugins the collections at the end take as much CPU as the stop."""
    root = tmp_path / "root"
    root.mkdir(mode=0o755)
    command = [sys.executable, "-P", "-c", _STOPPING, str(root), str(tmp_path / "status.sock")]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120.0, check=True)
    assert ended.stdout == "0 True\n"
