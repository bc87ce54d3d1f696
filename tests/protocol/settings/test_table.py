"""The table of settings: no field of the configuration is without a key."""

from __future__ import annotations

import json
from collections.abc import Iterator

import attrs
import pytest

from plugind.protocol.logs.limits import LogLimits
from plugind.protocol.settings.config import Config, DevicePluginDirectory
from plugind.protocol.settings.files import parse
from plugind.protocol.settings.kinds import ByType, ListOf, WrongValueError
from plugind.protocol.settings.table import NO_SETTINGS, PARTS, settings
from plugind.protocol.settings.writing import to_json
from plugind.tests.tools import settings_table


def fields(prefix: str, part: attrs.AttrsInstance) -> Iterator[str]:
    """Yield every field of a configuration, those of its parts included."""
    for attribute in attrs.fields(type(part)):
        value = getattr(part, attribute.name)
        if attrs.has(type(value)):
            yield from fields(f"{prefix}{attribute.name}.", value)
        elif attribute.init:
            yield prefix + attribute.name


def test_every_field_of_the_configuration_and_of_its_parts_is_a_setting() -> None:
    config = Config(device_plugins=DevicePluginDirectory("/dp"), log_limits=LogLimits())
    found = set(fields("", config))
    assert found - set(settings()) == NO_SETTINGS - {"roots"}
    assert {key for key in settings() if "." in key} - found == {"log_limits.enabled"}


def test_every_part_that_is_a_class_is_a_section_of_its_own() -> None:
    """A new part would be one setting, whose value no file can have."""
    config = Config(device_plugins=DevicePluginDirectory("/dp"))
    names = {key.rpartition(".")[0] for key in fields("", config)} - {""}
    assert names == set(PARTS)


def test_no_two_settings_have_the_same_variable_and_none_has_one_of_another_purpose() -> None:
    variables = [setting.variable for setting in settings().values()]
    assert len(set(variables)) == len(variables)
    assert {"PLUGIND_ROOT", "PLUGIND_STATE", "PLUGIND_STATUS", "PLUGIND_TIMEOUTS_GET_INFO"} <= set(variables)
    # These are for the commands that have leased devices, and for the path of the file itself.
    assert {"PLUGIND_LEASE", "PLUGIND_DEVICES", "PLUGIND_NODES", "PLUGIND_CONFIG"}.isdisjoint(variables)


@pytest.mark.parametrize("key", sorted(settings()))
def test_the_default_of_a_setting_is_a_value_that_it_may_have(key: str) -> None:
    setting = settings()[key]
    if setting.default is not None and key != "timeouts.handlers":
        assert setting.from_toml(to_json(setting.default)) == setting.default


#: Values of which each list takes some; a list of TOML is nearly one of JSON.
VALUES = (
    "vendor.com/gpu",
    "/a",
    "/b",
    7,
    "1000-1999",
    "gpu-0.example",
    "v.com/gpu:mounts",
    "v.com/gpu:env=A",
    "default",
)
POOL = '{ name = "lab", resource = "v.com/gpu", ids = ["a,b", "c"], users = [7] }'


def toml(value: object) -> str:
    return value if value == POOL else json.dumps(value)


@pytest.mark.parametrize("key", [key for key, setting in settings().items() if isinstance(setting.kind, ListOf)])
def test_every_list_can_be_written_in_text_as_in_a_file(key: str) -> None:
    """So ``--set 'x=["a", "b"]'`` means what a file does that has this line."""

    def in_file(*given: str) -> tuple[object, ...]:
        parsed = parse("c.toml", f"{key} = [{', '.join(given)}]".encode())
        return tuple(setting.value for setting in parsed.given) if not parsed.problems else ()

    taken = [word for word in map(toml, (*VALUES, POOL)) if in_file(word)]
    assert taken, "the test knows no value of this list"
    for given in ([], taken[:1], taken):
        assert (settings()[key].from_text(f" [{', '.join(given)}]", "/"),) == in_file(*given)


@pytest.mark.parametrize("key", [key for key, setting in settings().items() if isinstance(setting.kind, ByType)])
def test_every_table_can_be_written_in_text_as_in_a_file(key: str) -> None:
    kind = settings()[key].kind
    assert isinstance(kind, ByType)
    eight, nine = ((8,), (9,)) if isinstance(kind.kind, ListOf) else (8, 9)
    text = f'{{ "v.com/gpu" = {[*eight] if isinstance(eight, tuple) else eight}, b = {nine} }}'.replace("(9,)", "[9]")
    (given,) = parse("c.toml", f"{key} = {text}".encode()).given
    assert settings()[key].from_text(text, "/") == given.value == {"v.com/gpu": eight, "b": nine}


@pytest.mark.parametrize("text", ["[a]", '["a"', '["a"], ["b"]', '["a"]\nrescan = 5', "[" * 9999, '["a", 7]'])
def test_text_in_brackets_that_is_no_list_of_names_is_refused(text: str) -> None:
    with pytest.raises(WrongValueError, match=r"in brackets must be one of TOML|is 7: it must be"):
        settings()["expected"].from_text(text, "/")


def test_the_page_has_the_table_of_all_settings() -> None:
    """``python -m tests.tools.settings_table --write`` updates the page."""
    assert list(settings_table.undescribed()) == []
    page = settings_table.PAGE.path.read_text()
    assert page == settings_table.PAGE.filled(page)
