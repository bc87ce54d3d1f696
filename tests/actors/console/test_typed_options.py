"""Plugin types that options name and nothing handles are warned of."""

from __future__ import annotations

from pathlib import Path

from plugind.actors.console.typed_options import warn_of_types
from plugind.protocol.health.checks import ALL_TYPES, HealthChecks
from plugind.protocol.logs.lines import Field, Level
from plugind.protocol.settings.config import Config, Timeouts
from plugind.tests.end_to_end.processes import daemon

HANDLED = {"DevicePlugin", "CSIPlugin"}
WARNING = "a setting names a plugin type without a handler"


class Log:
    """Keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[Level, str, dict[str, Field]]] = []

    def enabled(self, level: Level) -> bool:
        return level >= Level.INFO

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        self.lines.append((level, message, fields))


def warned(config: Config) -> list[Field]:
    log = Log()
    warn_of_types(config, HANDLED, log)
    assert all(line[:2] == (Level.WARNING, WARNING) for line in log.lines)
    assert all(line[2]["handlers"] == "CSIPlugin, DevicePlugin" for line in log.lines)
    return [f"{line[2]['setting']}: {line[2]['plugin_type']}" for line in log.lines]


def test_a_type_without_a_handler_is_warned_of_with_its_setting_and_the_types_that_have_one() -> None:
    """``--health DevicePlugins=off`` had no effect, and nothing said so."""
    timeouts = Timeouts(handlers={"CSIPlugin": 1.0, "Nope": 5.0})
    checks = HealthChecks(off={"DevicePlugins", "DevicePlugin"}, periods={"CsiPlugin": 60.0})
    assert warned(Config(timeouts=timeouts, health_checks=checks)) == [
        "timeouts.handlers (--handler-timeout): Nope",
        "health_checks.off (--health): DevicePlugins",
        "health_checks.periods (--health): CsiPlugin",
    ]


def test_types_that_have_a_handler_and_all_types_together_are_not_warned_of() -> None:
    assert warned(Config(health_checks=HealthChecks(off={ALL_TYPES, "DevicePlugin"}))) == []
    assert warned(Config()) == []


async def test_the_daemon_warns_at_its_start_and_runs(tmp_path: Path) -> None:
    with daemon(tmp_path, "--health", "DevicePlugins=off", "--health", "DevicePlugin=off") as node:
        await node.ready()
        (line,) = await node.logged(WARNING)
    assert (line["level"], line["setting"]) == ("warning", "health_checks.off (--health)")
    assert line["plugin_type"] == "DevicePlugins"
    assert line["handlers"] == "CSIPlugin, DRAPlugin, DevicePlugin"
