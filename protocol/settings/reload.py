"""Which settings can change while a node runs, and how two configurations differ."""

from __future__ import annotations

from typing import Final, Literal

import attrs

from .config import Config

#: Parts and single fields of the configuration that can change while a node runs. All others need a restart.
_PARTS: Final = ("backoff", "info_limits", "intensity", "timeouts")
_OF_LEASES: Final = ("limits", "operators", "permitted", "pools")
_FIELDS: Final = (
    "deregister_at_stop",
    "devices",
    "expected",
    "expected_devices",
    "max_instances",
    "ready_when",
    "resources",
    "stable_after",
)
#: The settings of roots, and the directories for endpoints, whose default depends on the roots.
_OF_ROOTS: Final = frozenset({"roots", "deprecated_roots", "insecure_roots", "optional_roots", "endpoint_directories"})
#: The settings that decide how a root is watched, which is fixed for each root.
_OF_EACH_ROOT: Final = frozenset({"insecure_roots", "optional_roots"})
#: Settings of the daemon that are no fields of the configuration.
OF_DAEMON: Final = frozenset({"log_level"})


def changed_while_running(old: Config, new: Config) -> Config:
    """Return ``old`` with those values of ``new`` that can change while a node runs."""
    trust = new.trust if _takes_trust(old) else old.trust
    where = new if _takes_roots(old, new) else old
    leases = attrs.evolve(old.leases, **{name: getattr(new.leases, name) for name in _OF_LEASES})
    return attrs.evolve(
        old,
        roots=where.roots,
        endpoint_directories=where.endpoint_directories,
        leases=leases,
        trust=trust,
        **{name: getattr(new, name) for name in (*_PARTS, *_FIELDS)},
    )


def fixed_fields(old: Config, new: Config) -> list[str]:
    """Return the fields of ``new`` that a node with ``old`` does not take while it runs, each as ``Config.field``."""
    taken = changed_while_running(old, new)
    return [
        f"Config.{field.name}"
        for field in attrs.fields(Config)
        if getattr(taken, field.name) != getattr(new, field.name)
    ]


def _takes_trust(config: Config) -> bool:
    # The mode of kubelet.sock depends on who is trusted when it is made.
    return config.device_plugins is None


def _takes_roots(old: Config, new: Config) -> bool:
    """Whether a node takes the roots of ``new``: no present root may be watched in another way."""
    before = {root.path: root for root in old.roots}
    return all(before.get(root.path, root) == root for root in new.roots)


def may_change(key: str, old: Config, new: Config) -> bool:
    """Whether a daemon with ``old`` takes the value of the setting ``key`` in ``new`` while it runs."""
    part, _, name = key.partition(".")
    if part == "trust":
        return _takes_trust(old)
    if key in _OF_ROOTS:
        return _takes_roots(old, new)
    if part == "leases":
        return name.partition(".")[0] in _OF_LEASES
    return key in _FIELDS or key in OF_DAEMON or part in _PARTS


def change_needs(key: str, config: Config) -> Literal["reload", "restart"]:
    """Return what a daemon with ``config`` needs in order to use another value of the setting ``key``.

    This holds for a change of that setting alone. Changing a root that stays between deprecated and not needs a
    restart, too.
    """
    takes_it = key not in _OF_EACH_ROOT and may_change(key, config, config)
    return "reload" if takes_it else "restart"
