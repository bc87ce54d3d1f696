"""The configuration is read again: what counts at once, what needs a restart, and what is refused (fault 89)."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from plugind.actors.console import reloading
from plugind.actors.console import run as daemon
from plugind.actors.console.configured import Configured
from plugind.actors.console.reloading import Reloader
from plugind.actors.logs.lines import Log
from plugind.protocol.errors import ConfigError
from plugind.protocol.leases.values import Pool
from plugind.protocol.logs.lines import Level
from plugind.protocol.messages.config import ConfigurationAsked, ConfigurationShown, Reloaded
from plugind.protocol.settings.config import Config, Root
from plugind.protocol.settings.reload import change_needs
from plugind.protocol.settings.table import Setting, settings
from plugind.protocol.trust.users import Trust


@attrs.define
class Node:
    """Stands for a node."""

    configs: list[Config] = attrs.field(factory=list)
    noted: list[str | None] = attrs.field(factory=list)
    error: Exception | None = None

    async def reconfigure(self, config: Config) -> None:
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        self.configs.append(config)

    async def note_reload(self, refused: str | None) -> None:
        await trio.lowlevel.checkpoint()
        self.noted.append(refused)


class Scene:
    """A configuration file, and the reloader of a daemon that it configures."""

    def __init__(self, directory: Path, text: str, *options: str, **environment: str) -> None:
        self.file = directory / "plugind.toml"
        self.write(text)
        parser = argparse.ArgumentParser()
        daemon.add_arguments(parser)
        args = parser.parse_args([f"--config={self.file}", *options])

        def read() -> Configured:
            return daemon.read_configuration(args, environment)

        self.output = os.open(directory / "log", os.O_RDWR | os.O_CREAT)
        self.log = Log(read().log_level, descriptor=self.output)
        self.reloader = Reloader(read(), read, self.log)
        self.node = Node()

    def write(self, text: str) -> None:
        self.file.write_text(text)
        self.file.chmod(0o644)

    async def reload(self, text: str | None = None) -> Reloaded:
        if text is not None:
            self.write(text)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.reloader.run, self.node)
            with trio.fail_after(60):
                answer = await self.reloader.ask()
            nursery.cancel_scope.cancel()
        return answer

    @property
    def logged(self) -> str:
        return os.pread(self.output, 100_000, 0).decode()


async def test_what_may_change_counts_at_once_and_the_rest_after_a_restart(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "rescan = 5\nexpected = ['a']\n")
    answer = await scene.reload("rescan = 6\nexpected = ['b']\nready_when = 'healthy'\nstrict = true\n")
    assert answer == Reloaded(("expected", "ready_when"), ("rescan", "strict"))
    (config,) = scene.node.configs
    assert (config.expected, config.ready_when, config.rescan, config.strict) == (("b",), "healthy", 5.0, False)
    assert "needs_restart" in scene.logged


async def shown(scene: Scene) -> ConfigurationShown:
    reply, answer = trio.open_memory_channel[ConfigurationShown](1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.reloader.run, scene.node)
        await scene.reloader.address.send(ConfigurationAsked(reply))
        with trio.fail_after(60):
            found = await answer.receive()
        nursery.cancel_scope.cancel()
    return found


def of(rows: Sequence[Mapping[str, Any]], *keys: str) -> list[tuple[object, ...]]:
    found = {row["key"]: (row["value"], row["source"]["kind"], row["source"]["line"]) for row in rows}
    return [found[key] for key in keys]


async def test_what_is_in_force_is_shown_with_what_waits_for_a_restart(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "rescan = 5\nexpected = ['a']\n", "--ready-when=healthy")
    await scene.reload("expected = ['b']\n\nrescan = 6\nstable_after = 1\n[timeouts]\nget_info = 2\n")
    answer = await shown(scene)
    assert answer.files == (str(scene.file),)
    assert of(answer.settings, "expected", "rescan", "ready_when", "stable_after", "timeouts.get_info") == [
        (["b"], "file", 1),
        (5.0, "file", 1),  # as at the start: that file was another one
        ("healthy", "flag", None),
        (1.0, "file", 4),
        (2.0, "file", 6),
    ]
    assert [row["key"] for row in answer.waiting] == ["rescan"]
    assert of(answer.waiting, "rescan") == [(6.0, "file", 3)]
    # A bad file changes nothing, and a good one may take back what waits.
    await scene.reload("rescan = 'x'\n")
    assert await shown(scene) == answer
    await scene.reload("rescan = 5\n")
    answer = await shown(scene)
    assert answer.waiting == ()
    assert of(answer.settings, "expected", "timeouts.get_info") == [([], "default", None), (1.0, "default", None)]


async def test_pools_and_limits_of_leases_change_and_who_may_lease_needs_a_restart(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "[[leases.pools]]\nname = 'lab'\nresource = 'v.com/gpu'\nids = ['a']\n")
    pool = "[[leases.pools]]\nname = 'lab'\nresource = 'v.com/gpu'\nids = ['a', 'b']\nusers = [7]\n"
    others = "[leases.limits]\ndevices = 5\n[leases.users]\nuids = [9]\n[leases]\noperators = [8]\n"
    answer = await scene.reload(pool + others)
    assert answer == Reloaded(("leases.pools", "leases.operators", "leases.limits.devices"), ("leases.users.uids",))
    (config,) = scene.node.configs
    assert config.leases.pools == (Pool("lab", "v.com/gpu", frozenset(("a", "b")), frozenset((7,))),)
    assert (config.leases.operators, config.leases.limits.devices) == (frozenset((8,)), 5)
    assert config.leases.users.uids == frozenset()
    settings = (await shown(scene)).settings
    assert of(settings, "leases.limits.devices") == [(5, "file", 7)]


async def test_trust_changes_but_where_device_plugins_call(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "")
    assert await scene.reload("[trust]\nuids = [1000]\n") == Reloaded(("trust.uids",))
    assert scene.node.configs[0].trust == Trust((1000,))
    called = f"[device_plugins]\ndirectory = '{tmp_path}/device-plugins'\n"
    scene = Scene(tmp_path, called)
    assert await scene.reload(called + "[trust]\nuids = [1000]\n") == Reloaded((), ("trust.uids",))
    assert scene.node.configs == []


async def test_a_bad_file_keeps_the_old_configuration_and_all_problems_are_told(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "expected = ['a']\nlog_level = 'info'\n")
    answer = await scene.reload("expected = ['b']\nlog_level = 'debug'\nrescan = nan\nx = 1\n")
    problems = (
        f"{scene.file}:3: rescan is nan: it must be a number from 0.01 to 86400",
        f"{scene.file}:4: unknown key x",
    )
    assert answer == Reloaded(refused=problems)
    assert (scene.node.configs, scene.node.noted) == ([], [problems[0]])
    assert not scene.log.enabled(Level.DEBUG)
    assert "the configuration is not used, and the one before it stays in force" in scene.logged
    # The next one that can be used counts from the one in force.
    assert await scene.reload("expected = ['b']\nlog_level = 'info'\n") == Reloaded(("expected",))
    assert scene.node.noted == [problems[0], None]


async def test_a_file_that_is_gone_or_of_others_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "expected = ['a']\n")
    scene.file.chmod(0o666)
    assert "others may write to it" in (await scene.reload()).refused[0]
    scene.file.unlink()
    assert (await scene.reload()).refused == (f"{scene.file}: cannot be read: No such file or directory",)
    assert scene.node.configs == []


async def test_a_working_directory_that_is_gone_ends_no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 89: paths of variables may be relative to it."""
    scene = Scene(tmp_path, "expected = ['a']\n", PLUGIND_RESCAN="30")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    said = "the working directory cannot be found: No such file or directory"
    assert await scene.reload("expected = ['b']\n") == Reloaded(refused=(said,))
    assert scene.node.configs == []


async def test_what_the_node_does_not_take_is_refused_and_stays_a_difference(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "expected = ['a']\nlog_level = 'info'\n")
    scene.node.error = ConfigError("no")
    assert await scene.reload("expected = ['b']\nlog_level = 'debug'\n") == Reloaded(refused=("no",))
    assert not scene.log.enabled(Level.DEBUG)
    scene.node.error = None
    assert await scene.reload() == Reloaded(("log_level", "expected"))


async def test_the_service_manager_is_told_of_a_reload_only_once_the_daemon_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """READY=1 after a reload would otherwise say that a daemon is ready which has scanned nothing yet."""
    scene = Scene(tmp_path, "expected = ['a']\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        await scene.reload("expected = []\n")
        with pytest.raises(BlockingIOError):
            manager.recv(100)
        scene.reloader.is_announced = True
        await scene.reload("x = 1\n")
        assert [manager.recv(100).partition(b"\n")[0] for _ in range(2)] == [b"RELOADING=1", b"READY=1"]


async def test_a_reload_leaves_no_thread_that_could_take_a_signal_at_the_end(tmp_path: Path) -> None:
    """A signal ended a daemon that had stopped, in a thread in which it was not blocked."""
    scene, blocked = Scene(tmp_path, ""), list[set[signal.Signals]]()
    read = scene.reloader._read

    def look() -> Configured:
        blocked.append({signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())})
        return read()

    scene.reloader._read = look
    before = threading.active_count()
    await scene.reload()
    assert blocked[0] >= {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}
    with trio.fail_after(60):
        while threading.active_count() > before:  # noqa: ASYNC110 - no event of the interpreter tells of that
            await trio.sleep(0.01)


async def test_a_disk_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, "expected = ['a']\n")
    monkeypatch.setattr(reloading, "READ_DEADLINE", 0.05)
    monkeypatch.setattr(scene.reloader, "_read", lambda: time.sleep(1.0))
    assert await scene.reload() == Reloaded(refused=("the configuration could not be read within 0.05 s",))


async def test_roots_are_added_and_removed_and_those_that_stay_keep_their_options(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 'roots = ["/a", "/b"]\n')
    answer = await scene.reload('roots = ["/b"]\ndeprecated_roots = ["/c"]\n')
    # Where endpoints may be follows from the roots.
    assert answer == Reloaded(("roots", "deprecated_roots", "endpoint_directories"), ())
    (config,) = scene.node.configs
    assert config.roots == (Root("/b"), Root("/c", deprecated=True))
    assert config.endpoint_directories == ("/b", "/c")
    # None of this is used, since it watches a root in another way.
    answer = await scene.reload('roots = ["/c", "/d"]\ndeprecated_roots = ["/b"]\nstable_after = 3\n')
    assert answer == Reloaded(("stable_after",), ("roots", "deprecated_roots", "endpoint_directories"))
    assert scene.node.configs[1:] == [attrs.evolve(config, stable_after=3.0)]
    answer = await scene.reload('roots = ["/b"]\ndeprecated_roots = ["/c"]\ninsecure_roots = true\n')
    assert answer == Reloaded(("stable_after",), ("insecure_roots",))
    # Roots of which there was none before may have any options.
    answer = await scene.reload('roots = ["/e"]\ninsecure_roots = true\n')
    assert answer.needs_restart == ()
    assert scene.node.configs[-1].roots == (Root("/e", insecure=True),)


#: Other values of the settings that are neither numbers nor switches.
OTHER_VALUES = {
    "roots": "['/r', '/other']",
    "deprecated_roots": "['/other']",
    "status": "'/run/other.sock'",
    "status_group": "7",
    "log_format": "'json'",
    "log_level": "'debug'",
    "observe_again": "70",
    "endpoint_directories": "['/other']",
    "devices": "{ 'v.com/serial' = { paths = ['/dev/ttyS*'] } }",
    "resources": "{ 'v.com/gpu' = { env = { A = '{B}' } } }",
    "expected": "['a']",
    "expected_devices": "{ 'v.com/gpu' = 8 }",
    "ready_when": "'healthy'",
    "hung_after": "20",
    "blocked_after": "2",
    "state": "'/other'",
    "seed": "7",
    "trust.uids": "[7]",
    "timeouts.handlers": "{ A = 70 }",
    "handler_uids": "{ A = [7] }",
    "handler_grace": "{ A = 70 }",
    "wire_limits.small_data": "70",
    "wire_limits.total_bytes": "7000000",
    "wire_limits.call_frames": "300",
    "wire_limits.call_header_bytes": "40000",
    "wire_limits.call_bytes": "300000",
    "device_plugins.directory": "'/d'",
    "health_checks.periods": "{ A = 70 }",
    "health_checks.off": "['A']",
    "dra.health": "'try'",
    "csi.refresh": "70",
    "csi.topology_collisions": "'warn'",
    "leases.pools": "[{ name = 'a', resource = 'v.com/gpu' }]",
    "leases.operators": "[7]",
    "leases.permitted": "['v.com/gpu:env=GPUS']",
    "leases.cdi_directory": "'/other'",
    "leases.users.uids": "[7]",
    "leases.users.group": "7",
    "metrics.address": "'9000'",
    "metrics.hosts": "['a']",
}


def other_value(setting: Setting) -> str:
    """Return another value than the default, as a file has it."""
    if setting.key in OTHER_VALUES:
        return OTHER_VALUES[setting.key]
    if isinstance(setting.default, bool):
        return "false" if setting.default else "true"
    assert isinstance(setting.default, int | float), setting
    return str(setting.default + 1) if isinstance(setting.default, int) else f"{setting.default * 1.05:.3f}"


@pytest.mark.parametrize("key", settings())
async def test_a_change_of_a_setting_needs_what_is_said_of_it(key: str, tmp_path: Path) -> None:
    base = "roots = ['/r']\n" + {
        "device_plugins.take_over_kubelet": "device_plugins.directory = '/var/lib/kubelet/device-plugins'\n",
        "device_plugins.insecure": "device_plugins.directory = '/d'\n",
        "metrics.hosts": "metrics.address = '9000'\n",
        "renotify": "state = '/state'\n",
    }.get(key, "")
    scene = Scene(tmp_path, base)
    changed = f"{key} = {other_value(settings()[key])}\n"
    answer = await scene.reload(changed if key == "roots" else base + changed)
    assert answer.refused == ()
    assert (key in answer.changed, key in answer.needs_restart) == (
        (True, False) if change_needs(key, Config()) == "reload" else (False, True)
    )
    # What is said of the daemon as it runs is the same.
    assert [row["change_needs"] for row in (await shown(scene)).settings if row["key"] == key] == [
        "reload" if key in answer.changed else "restart"
    ]
