"""The configuration of a node: every value is either accepted or refused with an error message of one line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from plugind.protocol.backoff import Backoff, RestartIntensity
from plugind.protocol.errors import ConfigError
from plugind.protocol.health.checks import HealthChecks
from plugind.protocol.leases.config import LeasesConfig
from plugind.protocol.plugins.info import InfoLimits
from plugind.protocol.plugins.static_devices import StaticResource
from plugind.protocol.settings.config import DEFAULT_ROOT, Config, Root, Timeouts, check_roots
from plugind.protocol.status.metrics_config import MetricsConfig
from plugind.protocol.trust.users import Trust


def problem(*paths: str) -> str | None:
    try:
        check_roots(tuple(map(Root, paths)))
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("roots", "/a", "'/a': it must be a collection, such as (Root('/a'),)"),
        ("roots", Root("/a"), f"{Root('/a')}: it must be a tuple, each of which is a Root"),
        ("expected", "red", "'red': it must be a collection, such as ('red',)"),
        ("endpoint_directories", "/a", "'/a': it must be a collection, such as ('/a',)"),
        ("roots", ("/a",), "'/a': it must be a Root"),
        ("trust", None, "None: it must be a Trust"),
        ("device_plugins", "/a", "'/a': it must be a DevicePluginDirectory"),
        ("log_limits", 3, "3: it must be a LogLimits"),
    ],
)
def test_a_field_of_another_type_is_refused_before_a_node_fails_on_it(field: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^Config.{field} is {re.escape(said)}$"):
        attrs.evolve(Config(), **{field: value})


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Trust(uids="csi"), "Trust.uids"),  # type: ignore[arg-type]
        (lambda: HealthChecks(off="CSIPlugin"), "HealthChecks.off"),
        (lambda: StaticResource(paths="/dev/x"), "StaticResource.paths"),  # type: ignore[arg-type]
        (lambda: LeasesConfig(operators="1000"), "LeasesConfig.operators"),  # type: ignore[arg-type]
        (lambda: MetricsConfig(hosts="bench"), "MetricsConfig.hosts"),
    ],
)
def test_a_text_is_no_collection_of_its_characters(make: Callable[[], object], field: str) -> None:
    """A node trusted the users c, s and i."""
    with pytest.raises(ConfigError, match=f"^{field} is '(.*)': it must be a collection, such as \\('\\1',\\)$"):
        make()


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        ((), "there is no root to discover plugins in: name one with --root"),
        (("r",), "the root 'r' is not an absolute path"),
        (("/a", ""), "the root '' is not an absolute path"),
        (("/a", "/a"), "the root /a is named twice: name it once"),
        (("/a", "/a/"), "the root /a is named twice: name it once"),
        (("/a/b", "/a"), "the root /a/b lies in the root /a: name one of them"),
        (("/a", "/"), "the root /a lies in the root /: name one of them"),
        (("/a", "/ab"), None),
        (("/",), None),
    ],
)
def test_roots_must_be_absolute_and_must_not_contain_each_other(paths: tuple[str, ...], said: str | None) -> None:
    assert problem(*paths) == said


@pytest.mark.parametrize("name", ["", "x" * 11, "a\nb", "\udcff"])
def test_a_name_that_no_plugin_can_have_is_not_expected(name: str) -> None:
    """Behaviour 40: such a node was never ready."""
    with pytest.raises(ConfigError) as error:
        Config(expected=("a", name), info_limits=InfoLimits(max_string=10))
    assert str(error.value).startswith(f"no plugin can have the expected name {name!a}")
    assert "\n" not in str(error.value)


def test_the_defaults_are_those_of_the_kubelet() -> None:
    """Behaviours 14, 16, 23, 26 and 42."""
    config = Config()
    check_roots(config.roots)
    assert [(root.path, root.deprecated) for root in config.roots] == [(DEFAULT_ROOT, False)]
    assert DEFAULT_ROOT == "/var/lib/kubelet/plugins_registry"
    times = config.timeouts
    assert (times.dial, times.refused_grace, times.get_info, times.notify) == (10.0, 1.0, 1.0, 5.0)
    assert (times.handler, times.stop_grace, config.rescan) == (60.0, 10.0, 10.0)
    assert [times.of_handler(name) for name in ("CSIPlugin", "DevicePlugin", "Colour")] == [175.0, 60.0, 60.0]
    assert (config.deregister_at_stop, config.follow_symlinks_inside_root) == (False, False)
    assert (config.expected, config.seed) == ((), None)


@pytest.mark.parametrize("path", [Path("/a/b"), "/a/b", "/a/b/", "/a/b//"])
def test_a_root_is_a_path_or_text_and_ends_without_a_slash(path: Path | str) -> None:
    """The paths of its sockets begin with the root and one slash."""
    assert Root(path).path == "/a/b"
    assert (Root(Path("/")).path, Root("//").path) == ("/", "/")


POSITIVE = "a finite number above 0"
NOT_NEGATIVE = "a finite number, 0 or more"
NO_NUMBERS = (-1, math.nan, math.inf, -math.inf, "10")


@pytest.mark.parametrize(
    ("make", "field", "allowed", "also_bad"),
    [
        (lambda bad: Config(rescan=bad), "Config.rescan", POSITIVE, 0),
        (lambda bad: Config(hung_after=bad), "Config.hung_after", POSITIVE, 0),
        (lambda bad: Timeouts(dial=bad), "Timeouts.dial", POSITIVE, 0),
        (lambda bad: Timeouts(refused_grace=bad), "Timeouts.refused_grace", NOT_NEGATIVE, -0.1),
        (lambda bad: Timeouts(get_info=bad), "Timeouts.get_info", POSITIVE, 0),
        (lambda bad: Timeouts(notify=bad), "Timeouts.notify", POSITIVE, 0.0),
        (lambda bad: Timeouts(handler=bad), "Timeouts.handler", POSITIVE, 0),
        (lambda bad: Timeouts(handlers={"Colour": bad}), "Timeouts.handlers", POSITIVE, 0),
        (lambda bad: Timeouts(stop_grace=bad), "Timeouts.stop_grace", NOT_NEGATIVE, -1e-9),
        (lambda bad: Backoff(initial=bad), "Backoff.initial", POSITIVE, 0),
        (lambda bad: Backoff(factor=bad), "Backoff.factor", "a finite number, 1 or more", 0.5),
        (lambda bad: Backoff(cap=bad), "Backoff.cap", POSITIVE, 0),
        (lambda bad: Backoff(jitter=bad), "Backoff.jitter", NOT_NEGATIVE, -0.1),
        (lambda bad: RestartIntensity(restarts=bad), "RestartIntensity.restarts", NOT_NEGATIVE, -1),
        (lambda bad: RestartIntensity(period=bad), "RestartIntensity.period", POSITIVE, 0),
        (lambda bad: InfoLimits(max_string=bad), "InfoLimits.max_string", "a finite number, 1 or more", 0),
        (lambda bad: InfoLimits(max_endpoint=bad), "InfoLimits.max_endpoint", "a finite number, 1 or more", 0),
        (lambda bad: InfoLimits(max_versions=bad), "InfoLimits.max_versions", "a finite number, 1 or more", 0),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)
def test_a_number_out_of_range_is_a_configuration_error_that_names_the_field_and_what_is_allowed(
    make: Callable[[object], object], field: str, allowed: str, also_bad: float
) -> None:
    for bad in (*NO_NUMBERS, also_bad):
        with pytest.raises(ConfigError) as error:
            make(bad)
        assert str(error.value) == f"{field} is {bad!r}: it must be {allowed}"


def test_the_least_number_that_is_allowed_is_accepted() -> None:
    assert Backoff(factor=1, jitter=0).delay(9) == 0.5
    assert InfoLimits(max_string=1, max_endpoint=1, max_versions=1).max_versions == 1
    assert RestartIntensity(restarts=0).admit((), 0.0) is None
    timeouts = Timeouts(refused_grace=0, stop_grace=0)
    assert (timeouts.refused_grace, timeouts.stop_grace) == (0, 0)


def test_csi_drivers_have_more_time_unless_another_is_named() -> None:
    """Who gives a handler of another type a deadline must not shorten that of CSI drivers, which would not start."""
    assert Timeouts(handlers={"Colour": 5.0}).handlers == {"Colour": 5.0, "CSIPlugin": 175.0}
    assert Timeouts(handlers={"Colour": 5.0}).of_handler("Colour") == 5
    assert Timeouts(handlers={"CSIPlugin": 200.0}).of_handler("CSIPlugin") == 200
    assert Timeouts(handler=70.0).of_handler("Other") == 70


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (
            {"gpu": 1},
            "no resource can have the name of expected devices 'gpu': it is not of the form vendor.domain/name",
        ),
        ({"v.com/gpu": 0}, "0 devices of v.com/gpu are expected: it must be 1 or more"),
    ],
)
def test_devices_are_expected_of_resources_alone(numbers: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(expected_devices=numbers)
    assert str(caught.value) == said


def test_a_node_that_only_observes_expects_no_devices() -> None:
    with pytest.raises(ConfigError, match="leave out --expect-devices"):
        Config(observe=True, expected_devices={"v.com/gpu": 1})


def test_another_word_for_when_plugins_count_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Config\.ready_when is 'always': it must be 'registered' or 'healthy'"):
        Config(ready_when="always")  # type: ignore[arg-type] # the error of an operator
