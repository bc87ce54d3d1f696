"""Generates the table of all settings in ``docs/configuration.md``.

    python -m tests.tools.settings_table           print the current table
    python -m tests.tools.settings_table --write   write it into the page

What a setting does is the first sentence of the comment above the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from plugind.actors.console.settings import OPTIONS
from plugind.protocol.settings.config import Config, DevicePluginDirectory
from plugind.protocol.settings.reload import change_needs
from plugind.protocol.settings.table import PARTS, Setting, settings
from plugind.protocol.settings.writing import to_json, to_toml
from plugind.tests.tools.api_page import class_comments, markdown
from plugind.tests.tools.table_page import TablePage

_RULE = re.compile(r" \((?:fault|behaviour)s? \d[^)]*\)")
#: The settings that are no field of the configuration, and those whose comment is for programs.
OTHERS = {
    "roots": "The directories in which plugins are discovered.",
    "deprecated_roots": "Roots in a deprecated place: their plugins are registered with a warning.",
    "insecure_roots": "Whether others may write to the roots, and so register plugins.",
    "optional_roots": "Whether the roots that are not deprecated may be missing.",
    "status": "The status socket.",
    "status_group": "The members of this group may ask the status socket for everything that changes nothing.",
    "metrics_path_labels": "Whether `plugin_manager_total_plugins` is labelled by socket path, as by the kubelet.",
    "log_format": "The format of log lines.",
    "log_level": "What is logged.",
    "trust.uids": 'Who is trusted besides root and the user that runs plugind: uids, ranges such as `"1000-1999"`, and'
    " names of users.",
    "device_plugins.directory": "Where device plugins may also register by a call, as nearly all do.",
    "dra.health": "Of which DRA drivers the health of devices is watched: of those that announce a service, or of all.",
    "health_checks.off": 'The plugin types that are not checked; with `"*"`, none is but those of `periods`.',
    "leases.users.uids": "These users may see and lease devices over the status socket.",
    "leases.users.group": "The members of this group may see and lease devices over the status socket.",
    "log_limits.enabled": "Whether the log has limits at all.",
}
#: What holds by default where that depends on something else.
DEFAULTS = {
    "roots": "`/var/lib/kubelet/plugins_registry`",
    "optional_roots": "true only without `roots` and with device plugins or static devices",
    "status": "depends on the user",
    "endpoint_directories": '`["default"]`, the directories beside the roots',
    "state": "depends on the user; off without device plugins and static devices",
    "timeouts.handlers": "`CSIPlugin` has 175 s",
}


def table() -> str:
    """Return the table, with a line for each setting."""
    rows = ["| key | value | default | option | a change needs | what it is |", "|---|---|---|---|---|---|"]
    return "\n".join([*rows, *map(_row, settings().values())])


def _row(setting: Setting) -> str:
    option = OPTIONS.get(setting.key)
    of_option = f"`{option}`" if option else ""
    what = _RULE.sub("", about(setting))
    cells = (f"`{setting.key}`", setting.kind.words, default(setting), of_option, needed(setting), what)
    return f"| {' | '.join(cells)} |"


def default(setting: Setting) -> str:
    """Return what a setting is if nobody gives a value."""
    return DEFAULTS.get(setting.key) or f"`{to_toml(to_json(setting.default))}`"


def needed(setting: Setting) -> str:
    """Return what it takes for another value to count while a daemon runs."""
    usual = change_needs(setting.key, Config())
    beside = change_needs(setting.key, Config(device_plugins=DevicePluginDirectory("/d")))
    return f"a {usual}" if usual == beside else f"a {usual}; with device plugins a {beside}"


def about(setting: Setting) -> str:
    """Return what a setting does, in a sentence."""
    if setting.key in OTHERS:
        return OTHERS[setting.key]
    part, _, name = setting.key.rpartition(".")
    sentence = re.match(r".*?\.(?= |$)", " ".join(_comments(part)[name].split()))
    assert sentence is not None, f"the comment of {setting.key} has no sentence"
    unit = " In seconds." if part == "timeouts" else ""
    return markdown(sentence[0]).strip().replace("|", "\\|") + unit


def about_plainly(setting: Setting) -> str:
    """Return what a setting does, without the rules that it follows: for those who have no ``docs/rules.md``."""
    return _RULE.sub("", about(setting).replace("\\|", "|"))


@cache
def _comments(part: str) -> dict[str, str]:
    return class_comments(PARTS[part] if part else Config)


def undescribed() -> Iterator[str]:
    """Yield the keys without a description."""
    for setting in settings().values():
        part, _, name = setting.key.rpartition(".")
        if setting.key not in OTHERS and name not in _comments(part):
            yield setting.key


PAGE = TablePage("configuration.md", "settings_table", table)


if __name__ == "__main__":
    PAGE.main(__doc__)
