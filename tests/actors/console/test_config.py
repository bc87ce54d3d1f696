"""``plugind config``, and which of an option, a variable and a file counts."""

from __future__ import annotations

import argparse
import json
import socket
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from plugind.actors.console import commands, reload
from plugind.actors.console import run as daemon
from plugind.actors.console import settings as console_settings
from plugind.actors.console.configured import Configured
from plugind.actors.console.settings import name_status
from plugind.actors.io.device_nodes import why_replaceable
from plugind.protocol.errors import ConfigError
from plugind.protocol.health.checks import HealthChecks
from plugind.protocol.leases.leases_json import snapshot_to_json
from plugind.protocol.leases.replies import LeasesSnapshot
from plugind.protocol.leases.values import Answer, Lease, LeaseState, Node, NoOwner, Pool, Request, Wanted
from plugind.protocol.logs.lines import Format, Level
from plugind.protocol.settings.config import Config, Root, Timeouts
from plugind.protocol.settings.table import settings
from plugind.protocol.settings.variables import NAMES
from plugind.tests.actors.console.lease_server import answer, lease_server


class Scene:
    """A directory with a configuration file, and what a daemon makes of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "plugind.toml"

    def write(self, text: str, *, drop_in: str | None = None) -> Path:
        path = self.file if drop_in is None else self.directory / "plugind.toml.d" / drop_in
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)
        return path

    def read(self, *arguments: str, **environment: str) -> Configured:
        parser = argparse.ArgumentParser()
        daemon.add_arguments(parser)
        return daemon.read_configuration(parser.parse_args(arguments), environment, str(self.file))

    def config(self, *arguments: str, **environment: str) -> Config:
        return self.read(*arguments, **environment).config

    def refused(self, *arguments: str, **environment: str) -> str:
        with pytest.raises(ConfigError) as error:
            self.read(*arguments, **environment)
        return str(error.value)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_without_a_file_a_daemon_has_the_defaults(scene: Scene) -> None:
    usual = Config(
        handles_sigint=True,
        endpoint_directories=scene.config().endpoint_directories,
        leases=attrs.evolve(Config().leases, without_state=False),
    )
    assert scene.config() == usual
    assert scene.read().files == ()


def test_an_option_counts_before_a_variable_and_that_before_a_file(scene: Scene) -> None:
    scene.write("rescan = 3\nmax_instances = 3\nstable_after = 3\nhung_after = 3\n")
    scene.write("max_instances = 4\nstable_after = 4\nhung_after = 4\n", drop_in="10.toml")
    scene.write("stable_after = 5\nhung_after = 5\n", drop_in="20.toml")
    given = scene.read("--set", "hung_after=8", PLUGIND_HUNG_AFTER="6", PLUGIND_STABLE_AFTER="6").given
    beside = f"{scene.file}.d"
    assert {key: (setting.value, str(setting.source)) for key, setting in given.items()} == {
        "rescan": (3.0, f"{scene.file}:1"),
        "max_instances": (4, f"{beside}/10.toml:1"),
        "stable_after": (6.0, "PLUGIND_STABLE_AFTER"),
        "hung_after": (8.0, "--set"),
    }
    assert scene.config("--stable-after=9", PLUGIND_STABLE_AFTER="6").stable_after == 9
    assert scene.config("--stable-after=9", "--set=stable_after=10").stable_after == 10


def test_every_option_counts_before_the_file(scene: Scene) -> None:
    scene.write(
        """
        roots = ["/f"]
        deprecated_roots = ["/fd"]
        expected = ["f"]
        expected_devices = { "v.com/a" = 1, "v.com/b" = 2 }
        ready_when = "healthy"
        strict = true
        log_level = "error"
        log_format = "json"
        [trust]
        uids = [1]
        [csi]
        refresh = 99
        topology_collisions = "warn"
        [dra]
        health = "try"
        [timeouts]
        handler = 7
        handlers = { A = 1, B = 2 }
        [health_checks]
        period = 77
        off = ["A", "B"]
        [leases.users]
        uids = [5]
        [[leases.pools]]
        name = "f"
        resource = "vendor.com/gpu"
        """
    )
    read = scene.read()
    assert read.config.roots == (Root("/f"), Root("/fd", deprecated=True))
    assert (read.log_level, read.log_format, read.config.csi.refresh) == (Level.ERROR, Format.JSON, 99.0)
    options = ["--root=/o", "--deprecated-root=/od", "--expect=o", "--ready-when=registered", "--trust-uid=2"]
    options += ["--csi-refresh=50", "--csi-topology=refuse", "--dra-health=advertised", "--log-level=debug"]
    options += ["--log-format=text", "--lease-uids=6", "--pool=o=vendor.com/gpu", "--set=strict=false"]
    options += ["--handler-timeout=8", "--handler-timeout=B=3", "--health=A=60", "--health=C=off"]
    options += ["--expect-devices=v.com/b=8", "--expect-devices=v.com/c=3"]
    read = scene.read(*options)
    config = read.config
    assert config.roots == (Root("/o"), Root("/od", deprecated=True))
    assert (config.expected, config.ready_when, config.trust.uids) == (("o",), "registered", (2,))
    assert config.expected_devices == {"v.com/a": 1, "v.com/b": 8, "v.com/c": 3}
    assert (config.csi.refresh, config.csi.topology_collisions, config.dra.health) == (50.0, "refuse", "advertised")
    assert (read.log_level, read.log_format, config.strict) == (Level.DEBUG, Format.TEXT, False)
    assert (config.leases.users.uids, config.leases.pools) == (frozenset({6}), (Pool("o", "vendor.com/gpu"),))
    assert config.timeouts == Timeouts(handler=8.0, handlers={"A": 1.0, "B": 3.0})
    assert config.health_checks == HealthChecks(77.0, periods={"A": 60.0}, off={"B", "C"})


def test_variables_are_text_with_the_types_of_their_settings(scene: Scene) -> None:
    config = scene.config(
        PLUGIND_ROOT="/a:/b",
        PLUGIND_EXPECTED="x,y",
        PLUGIND_EXPECTED_DEVICES="v.com/gpu=8,v.com/nic=2",
        PLUGIND_STRICT="true",
        PLUGIND_HUNG_AFTER="off",
        PLUGIND_TIMEOUTS_GET_INFO="2.5",
        PLUGIND_TIMEOUTS_HANDLERS="CSIPlugin=9,X=5",
        PLUGIND_TRUST_UIDS="1000,2000-2999,csi",
        PLUGIND_LEASES_POOLS="lab=vendor.com/gpu:a,b@7;other=vendor.com/nic",
        PLUGIND_RESCAN="",
        PLUGIND_OF_SOMEBODY="else",
    )
    assert config.roots == (Root("/a"), Root("/b"))
    assert (config.expected, config.strict, config.hung_after, config.rescan) == (("x", "y"), True, None, 10.0)
    assert config.expected_devices == {"v.com/gpu": 8, "v.com/nic": 2}
    assert config.timeouts == Timeouts(get_info=2.5, handlers={"CSIPlugin": 9.0, "X": 5.0})
    assert config.trust.uids == (1000, (2000, 2999), "csi")
    pools = (
        Pool("lab", "vendor.com/gpu", frozenset({"a", "b"}), frozenset({7})),
        Pool("other", "vendor.com/nic"),
    )
    assert config.leases.pools == pools


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("PLUGIND_RESCAN", "soon", 'it is "soon": it must be a number from 0.01 to 86400'),
        ("PLUGIND_RESCAN", "nan", 'it is "nan": it must be a number from 0.01 to 86400'),
        ("PLUGIND_STRICT", "yes", 'it is "yes": it must be true or false'),
        ("PLUGIND_TIMEOUTS_HANDLERS", "5", 'it is "5": it must be TYPE=NUMBER,…'),
        ("PLUGIND_BACKOFF_FACTOR", "0.5", "it is 0.5: it must be a finite number, 1 or more"),
        ("PLUGIND_MAX_INSTANCES", "1.0", 'it is "1.0": it must be a whole number'),
    ],
)
def test_a_wrong_variable_is_named(variable: str, text: str, said: str, scene: Scene) -> None:
    assert scene.refused(**{variable: text}) == f"{variable}: {said}"


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("PLUGIND_ROOTS", "PLUGIND_ROOT"),
        ("PLUGIND_TIMEOUT_GET_INFO", "PLUGIND_TIMEOUTS_GET_INFO"),
        ("PLUGIND_LOGLEVEL", "PLUGIND_LOG_LEVEL"),
        ("PLUGIND_strict", "PLUGIND_STRICT"),
        ("PLUGIND_CONFIGS", "PLUGIND_CONFIG"),
        ("PLUGIND_SED", "PLUGIND_SEED"),
    ],
)
def test_a_variable_that_is_nearly_the_name_of_a_setting_is_a_mistake(variable: str, meant: str, scene: Scene) -> None:
    said = f"{variable}: there is no such setting: did you mean {meant}?"
    assert scene.refused(**{variable: "1"}) == said
    # It is one problem among others, and one that is empty is none.
    both = scene.refused(**{variable: "1", "PLUGIND_RESCAN": "soon"})
    assert both == f"{said} (and 1 more: see 'plugind config check')"
    assert scene.config(**{variable: ""}).strict is False


@pytest.mark.parametrize(
    "variable",
    [
        *("PLUGIND_OPTIONS", "PLUGIND_DEVICES", "PLUGIND_LEASE", "PLUGIND_NODES", "PLUGIND_HOME", "PLUGIND_VERSION"),
        # Kubernetes sets these in each container, for services that are called plugind and plugind-metrics.
        *("PLUGIND_PORT", "PLUGIND_PORT_9100_TCP_ADDR", "PLUGIND_SERVICE_HOST", "PLUGIND_METRICS_SERVICE_PORT_HTTP"),
        *("PLUGIND_METRICS_PORT", "PLUGIND_\x00", "PLUGIND_" + "x" * 100_000),
    ],
)
def test_a_variable_of_somebody_else_counts_for_nothing(variable: str, scene: Scene) -> None:
    assert scene.read(**{variable: "tcp://10.0.0.1:80"}).given == {}


def test_the_names_of_all_variables_are_known_without_the_table_of_settings() -> None:
    assert {setting.variable for setting in settings().values()} == NAMES


def test_a_file_that_is_named_takes_the_place_of_the_default_one(scene: Scene, tmp_path: Path) -> None:
    scene.write("rescan = 3\n")
    scene.write("rescan = 4\n", drop_in="1.toml")
    other = tmp_path / "other.toml"
    other.write_text("max_instances = 7\n")
    other.chmod(0o644)
    for read in (scene.read(f"--config={other}"), scene.read(PLUGIND_CONFIG=str(other))):
        assert (read.config.rescan, read.config.max_instances, read.files) == (10.0, 7, (str(other),))
    assert scene.config("--config=/dev/null").rescan == 10.0
    assert scene.config(f"--config={scene.file}", PLUGIND_CONFIG=str(other)).rescan == 4.0
    assert scene.refused("--config=") == "the path of the configuration file is empty: name one with --config"
    assert scene.refused("--config=/nowhere.toml") == "/nowhere.toml: cannot be read: No such file or directory"


def test_one_problem_is_told_with_its_place_and_the_others_are_counted(scene: Scene) -> None:
    scene.write("strict = 1\nrescan = nan\n")
    beside = scene.write("a = 1\n", drop_in="1.toml")
    assert scene.refused() == (
        f"{scene.file}:1: strict is 1: it must be true or false (and 2 more: see 'plugind config check')"
    )
    scene.write("")
    assert scene.refused() == f"{beside}:1: unknown key a"
    beside.write_text("a = 1\nb = 2\n")
    assert scene.refused() == f"{beside}:1: unknown key a (and 1 more: see 'plugind config check {beside}')"


# --- the socket of a daemon ---


def named(scene: Scene, words: Sequence[str], **environment: str) -> str | None:
    """Return the socket that 'plugind reload' asks with these options."""
    parser = argparse.ArgumentParser()
    reload.add_arguments(parser)
    args = parser.parse_args(words)
    name_status(args, environment, str(scene.file))
    status: str | None = args.status
    return status


@contextmanager
def listening(path: str) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        yield


@pytest.fixture
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The default socket, at which somebody listens."""
    path = str(tmp_path / "usual.sock")
    monkeypatch.setattr(console_settings, "default_status_path", lambda: path)
    with listening(path):
        yield path


def test_the_socket_of_the_file_is_asked_unless_another_one_is_named(scene: Scene, usual: str) -> None:
    assert named(scene, []) is None
    other = str(scene.directory / "other.sock")
    scene.write(f"status = '{other}'\n")
    with listening(other):
        assert named(scene, []) == other
        assert named(scene, ["--status", usual]) == usual
        assert named(scene, [], PLUGIND_STATUS=usual) is None


@pytest.mark.parametrize("left", [False, True])
def test_a_daemon_that_still_listens_at_the_default_socket_is_asked_there(
    left: bool, scene: Scene, usual: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file of the service names another socket since the daemon was started; a socket may be left there."""
    other = str(scene.directory / "other.sock")
    if left:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(other)
    scene.write(f"rescan = 5\nstatus = '{other}'\n")
    assert named(scene, []) == usual
    assert capsys.readouterr().err == (
        f"plugind: no daemon answers at {other}, which {scene.file}:2 names: asking the one at {usual}, since 'status'"
        " needs a restart\n"
    )


def test_where_a_file_was_named_or_nobody_listens_its_socket_is_asked(
    scene: Scene, usual: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The daemon at the default socket is that of another configuration then."""
    other = str(scene.directory / "other.sock")
    scene.write(f"status = '{other}'\n")
    assert named(scene, ["--config", str(scene.file)]) == other
    assert named(scene, [], PLUGIND_CONFIG=str(scene.file)) == other
    monkeypatch.setattr(console_settings, "default_status_path", lambda: str(scene.directory / "nobody.sock"))
    assert named(scene, []) == other
    assert capsys.readouterr().err == ""


# --- the command ---


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert commands.main(["config", *words]) == 0
    done = capsys.readouterr()
    assert done.err == ""
    return done.out


def test_what_is_printed_is_a_file_that_means_the_same(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.write(
        """
        roots = ["/a"]
        expected = ["ü \\u007f \\\\ \\"q\\""]
        [trust]
        uids = ["1-2", 7]
        [timeouts]
        handlers = { "a.b c" = 5 }
        [log_limits]
        enabled = false
        [[leases.pools]]
        name = "lab"
        resource = "vendor.com/gpu"
        ids = ["a", "b"]
        users = [5, "7-9"]
        longest_lease = "8h"
        [resources."vendor.com/gpu"]
        devices_per_user = 2
        stop_at_longest = true
        """.replace("\\u007f ", "")
    )
    first = printed(
        capsys, f"--config={scene.file}", "--device-plugins=/dp", "--set=hung_after=off", "--log-level=debug"
    )
    values = tomllib.loads(first)
    assert values["leases"]["pools"] == [
        {"name": "lab", "resource": "vendor.com/gpu", "ids": ["a", "b"], "users": [5, "7-9"], "longest_lease": 28800.0}
    ]
    gpus = {"env": {}, "devices_per_user": 2, "stop_at_longest": True}
    assert values["resources"]["vendor.com/gpu"] == gpus
    copy = Scene(scene.directory / "copy")
    before = scene.read("--device-plugins=/dp", "--set=hung_after=off", "--log-level=debug")
    copy.write(first)
    after = copy.read()
    assert without_sources(after.config) == without_sources(before.config)
    assert (after.log_level, after.status_path) == (before.log_level, before.status_path)


def without_sources(config: Config) -> Config:
    """Return a configuration whose limits do not say in which file they are."""
    pools = tuple(attrs.evolve(pool, limits=attrs.evolve(pool.limits, source="")) for pool in config.leases.pools)
    resources = {
        name: attrs.evolve(each, limits=attrs.evolve(each.limits, source="")) for name, each in config.resources.items()
    }
    return attrs.evolve(config, leases=attrs.evolve(config.leases, pools=pools), resources=resources)


def test_a_limit_of_users_has_the_file_and_the_line_of_its_table(scene: Scene) -> None:
    scene.write('[resources."v.com/a"]\ndevices_per_user = 1\n[resources."v.com/b"]\ndevices_per_user = 2\n')
    scene.write(
        '[resources."v.com/b"]\ndevices_per_user = 3\n'
        '[[leases.pools]]\nname = "x"\nresource = "v.com/a"\nids = ["1"]\n'
        '[[leases.pools]]\nname = "y"\nresource = "v.com/a"\nids = ["2"]\nlongest_lease = 5\n',
        drop_in="10.toml",
    )
    config, beside = scene.config("--set", "resources={ 'v.com/c' = { longest_wait = 5 } }"), f"{scene.file}.d"
    found = {name: (each.limits.devices_per_user, each.limits.source) for name, each in config.resources.items()}
    assert {name: each for name, each in found.items() if name.startswith("v.com")} == {
        "v.com/a": (1, f"{scene.file}:1"),
        "v.com/b": (3, f"{beside}/10.toml:1"),
        "v.com/c": (None, "--set"),
    }
    assert [pool.limits.source for pool in config.leases.pools] == ["", f"{beside}/10.toml:7"]


def test_the_comment_behind_each_value_says_where_it_comes_from(
    scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.write("\nrescan = 3\n")
    monkeypatch.setenv("PLUGIND_STRICT", "true")
    lines = printed(capsys, f"--config={scene.file}", "--max-instances=5").splitlines()
    assert lines[0] == f"# {scene.file}"
    words = {line.split(" = ")[0]: line.split() for line in lines if " = " in line}
    assert words["rescan"][2:] == ["3.0", "#", f"{scene.file}:2"]
    assert words["strict"][2:] == ["true", "#", "PLUGIND_STRICT"]
    assert words["max_instances"][2:] == ["5", "#", "--max-instances"]
    assert words["stable_after"][2:] == ["10.0", "#", "default"]


def test_programs_read_json(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.write("\nrescan = 3\n[csi]\nrefresh = 'off'\n")
    report = json.loads(printed(capsys, f"--config={scene.file}", "-o", "json", "--expect=a"))
    assert report["files"] == [str(scene.file)]
    rows: dict[str, Any] = {row["key"]: row for row in report["settings"]}
    assert rows["rescan"] == {
        "key": "rescan",
        "value": 3.0,
        "source": {"kind": "file", "name": str(scene.file), "line": 2},
        "option": "--rescan",
        "variable": "PLUGIND_RESCAN",
        "change_needs": "restart",
    }
    assert rows["expected"]["change_needs"] == "reload"
    assert rows["expected"]["value"] == ["a"]
    assert rows["csi.refresh"]["value"] is None
    assert rows["seed"]["source"] == {"kind": "default", "name": None, "line": None}


def test_a_check_says_all_that_is_wrong_and_nothing_else(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.write("rescan = nan\n[timeouts]\ngetinfo = 1\n")
    assert commands.main(["config", "check", str(scene.file)]) == 78
    assert capsys.readouterr() == (
        "",
        f"plugind: {scene.file}:1: rescan is nan: it must be a number from 0.01 to 86400\n"
        f"plugind: {scene.file}:3: unknown key timeouts.getinfo: did you mean timeouts.get_info?\n",
    )
    scene.write("rescan = 1\n")
    assert commands.main(["config", "check", str(scene.file)]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_check_warns_of_devices_that_a_daemon_would_not_lease(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which devices are there is no matter of the file."""
    theirs = scene.directory / "theirs"
    theirs.mkdir()
    theirs.chmod(0o777)
    scene.write(
        f"""
        status = "{scene.directory}/status.sock"
        [devices]
        "lab/a" = {{ paths = ["/dev/nul*"] }}
        "lab/b" = {{ paths = ["/dev/null", "{scene.directory}/missing/*"], nodes = ["{theirs}/x"] }}
        "lab/c" = {{ paths = ["/dev/zero"] }}
        """
    )
    warnings = [
        f"{theirs}/x of lab/b cannot be leased: {why_replaceable(f'{theirs}/x')}",
        "/dev/null of lab/b is also /dev/null of lab/a, which gets the device",
    ]
    assert commands.main(["config", "check", str(scene.file), "-o", "json"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("".join(f"plugind: warning: {warning}\n" for warning in warnings)), said.err
    note = "devices are not compared with the nodes that plugins have given: "
    assert f"plugind: note: {note}" in said.err
    found = json.loads(said.out)
    assert found["not_compared"].startswith(note)
    assert (found["usable"], found["problems"], found["warnings"]) == (True, [], warnings)
    given = Answer(nodes=(Node("/dev/zero", "/dev/zero"),))
    request = Request((Wanted("vendor.com/gpu", 1),))
    lease = Lease("a1b2", 0, request, NoOwner(), LeaseState.HELD, 0.0, {"vendor.com/gpu": ("0",)}, given)
    snapshot = snapshot_to_json(LeasesSnapshot(0.0, (lease,)), 0.0)
    with lease_server(scene.directory, answer(200, snapshot)):
        assert commands.main(["config", "check", str(scene.file)]) == 0
    warnings.append(
        "/dev/zero of lab/c is also /dev/zero of vendor.com/gpu, whose plugin has given it to the lease a1b2"
    )
    assert capsys.readouterr().err == "".join(f"plugind: warning: {warning}\n" for warning in warnings)


def test_a_check_names_all_problems_of_a_resource(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.write(
        """
        [devices."lab/a"]
        paths = ["dev/x", "/dev/y"]
        id = "{path}"
        permissions = "q"
        shared = "two"
        colour = 1
        [devices."lab/b"]
        nodes = ["n"]
        """
    )
    assert commands.main(["config", "check", str(scene.file)]) == 78
    of_a, of_b = ('devices: the devices of "lab/a": ', 'devices: the devices of "lab/b": ')
    fields = "{interface}, {name}, {product}, {serial}, {subsystem}, {uuid}, {vendor}"
    assert capsys.readouterr().err == "".join(
        f"plugind: {scene.file}:{text}\n"
        for text in (
            f'3: {of_a}paths is "dev/x": it must be an absolute path',
            f'6: {of_a}shared is "two": it must be a whole number, 1 or more',
            f'7: {of_a}there is no "colour": it has paths, match, id, nodes, env, permissions, shared, access',
            f'4: {of_a}id is "{{path}}": there is no {{path}}, but {fields}',
            f'5: {of_a}the permissions are "q": they are some of r, w and m',
            f'9: {of_b}nodes is "n": it must be an absolute path',
        )
    )


def test_a_check_without_a_file_reads_those_of_a_daemon(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.write("rescan = 1\n")
    beside = scene.write("strict = 1\n", drop_in="1.toml")
    for words in ([f"--config={scene.file}", "check"], ["check", "--config", str(scene.file)]):
        assert commands.main(["config", *words]) == 78
        assert capsys.readouterr().err == f"plugind: {beside}:1: strict is 1: it must be true or false\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("roots = ['/a', '/a/b']", "the root /a/b lies in the root /a: name one of them"),
        ("trust.uids = ['no-such-user']", "1: trust.uids: no user is called 'no-such-user': name another one, or give"),
        ("expected = ['a\\tb']", "no plugin can have the expected name"),
        ("device_plugins.take_over_kubelet = true", "--take-over-kubelet is for the directory of device plugins"),
        (
            "leases.pools = [{name='a',resource='v.com/g'},{name='b',resource='v.com/g',ids=['1']}]",
            "1: leases.pools: the pools a and b have devices of v.com/g in common",
        ),
        (
            "leases.pools = [{name='a',resource='v.com/g'},{name='a',resource='v.com/g'}]",
            "1: leases.pools: two pools of v.com/g are called a",
        ),
        (
            "leases.pools = [{name='a',resource='v.com/g',ids=['1']},{name='a',resource='v.com/g',ids=['2']}]",
            "1: leases.pools: two pools of v.com/g are called a",
        ),
        (
            "timeouts.handler = 20",
            "a call of the handler for DevicePlugin may wait for 15 s, and is ended after 20 s: ",
        ),
        ("roots = ['/a']\nstatus = '/a/s.sock'", "2: status: the status socket /a/s.sock lies in the root /a"),
    ],
)
def test_a_check_finds_what_only_all_settings_together_show(
    text: str, said: str, scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.write(text.replace("'a\\tb'", '"a\\tb"'))
    assert commands.main(["config", "check", str(scene.file)]) == 78
    assert capsys.readouterr().err.startswith(f"plugind: {scene.file}:{said if said[0].isdigit() else ' ' + said}")


def test_a_daemon_does_not_start_with_a_wrong_file(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.write("[timeouts]\nget_info = true\n")
    assert commands.main(["run", f"--config={scene.file}"]) == 78
    assert capsys.readouterr().err == f"plugind: {scene.file}:2: timeouts.get_info is true: it must be a number\n"
