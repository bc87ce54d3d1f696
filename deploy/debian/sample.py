"""``/etc/plugind/plugind.toml``: all settings with what they are by default, as comments."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Final

from plugind.protocol.settings.table import Setting, settings
from plugind.protocol.settings.writing import to_json, to_toml
from plugind.tests.tools.settings_table import DEFAULTS, about_plainly, needed

_HEAD: Final = """\
# The configuration of plugind: plugind.toml(5) tells more of it.
#
# Each setting is shown with what it is by default. To change one, take the "#" away from it, and from the name in
# brackets above it. "plugind config check" says what is wrong, "plugind config --running" what is in force.
# Each says whether a change of it needs a reload (systemctl reload plugind) or a restart (systemctl restart plugind).
#
# An upgrade of the package asks before it replaces this file. Files in /etc/plugind/plugind.toml.d count more.
"""
#: What the settings are for the service whose default depends on something else.
_OF_SERVICE: Final[Mapping[str, str]] = {
    "roots": '["/var/lib/kubelet/plugins_registry"]',
    "optional_roots": "false",
    "status": '"/run/plugind/status.sock"',
    "endpoint_directories": '["default"]',
    "state": '"/var/lib/plugind"',
    "timeouts.handlers": "{ CSIPlugin = 175.0 }",
}
_WIDTH: Final = 110


def sample() -> str:
    """Return the file."""
    lines = [_HEAD]
    section = ""
    for setting in settings().values():
        above, _, name = setting.key.rpartition(".")
        if above != section:
            section = above
            lines.append(f"\n#[{section}]\n")
        lines += [*_comment(setting), f"#{name} = {_default(setting)}\n"]
    return "".join(lines)


def _comment(setting: Setting) -> Iterator[str]:
    said = f"{about_plainly(setting)} It is {setting.kind.words}. A change needs {needed(setting)}."
    text = said.replace("`", "")
    yield "\n"
    yield from (f"# {line}\n" for line in textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False))


def _default(setting: Setting) -> str:
    if setting.key in DEFAULTS:
        return _OF_SERVICE[setting.key]
    return to_toml(to_json(setting.default))
