"""The table of settings: no field of the configuration is without a key."""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs
import pytest

from plugind.protocol.config import Config, DevicePluginDirectory, Timeouts
from plugind.protocol.log_limits import LogLimits
from plugind.protocol.settings.table import NO_SETTINGS, PARTS, settings
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
        plain = list(setting.default) if isinstance(setting.default, tuple) else setting.default
        assert setting.from_toml(plain) == setting.default


def test_the_page_has_the_table_of_all_settings() -> None:
    """``python -m tests.tools.settings_table --write`` updates the page."""
    assert list(settings_table.undescribed()) == []
    page = settings_table.PAGE.path.read_text()
    assert page == settings_table.PAGE.filled(page)


def test_the_table_cites_no_rule_and_says_the_unit_of_each_time() -> None:
    """Who only has the page, or the manual, has no ``docs/rules.md``."""
    rows = settings_table.table().splitlines()
    assert [row for row in rows if re.search(r"\((?:fault|behaviour)s? \d", row)] == []
    times = [row for row in rows if row.startswith("| `timeouts.")]
    assert len(times) == len(attrs.fields(Timeouts))
    assert [row for row in times if "seconds" not in row] == []
