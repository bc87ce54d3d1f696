"""Claims to names: per (type, name), who is registered, who is on the way, who waits, and who is active.

A plugin claims its name before it is validated. :class:`Name` holds what is known of one name;
``plugind.protocol.world`` decides whom to admit.
"""

from __future__ import annotations

import enum
from typing import assert_never

import attrs

from . import messages as m
from .plugins import InstancePolicy, PluginInfo, Version, highest_version


class Phase(enum.Enum):
    """How far a claim is."""

    ADMITTED = "admitted"
    REGISTERED = "registered"
    LEAVING = "leaving"


@attrs.define
class Claim:
    """What a registration actor holds of the actual world."""

    path: str
    generation: int
    info: PluginInfo
    handler: m.Address[m.HandlerMessage]
    phase: Phase = Phase.ADMITTED


#: Paths in the order of their coming. A node keeps several for each plugin, most of them empty, and an empty set
#: takes three times the memory of an empty dictionary.
Paths = dict[str, None]


@attrs.define
class Name:
    """All that bear one (type, name)."""

    registered: dict[str, Claim] = attrs.Factory(dict)
    #: Paths between claim and registration, or leaving: while there is one, nobody else is admitted.
    busy: Paths = attrs.Factory(dict)
    waiting: list[m.Claimed] = attrs.Factory(list)
    #: Paths that were not registered under this name, perhaps because of another; told when one goes.
    blocked: Paths = attrs.Factory(dict)
    standby: Paths = attrs.Factory(dict)

    @property
    def empty(self) -> bool:
        """Nobody bears or wants the name."""
        return not (self.registered or self.busy or self.waiting or self.blocked)

    def change_roles(self, policy: InstancePolicy) -> list[Claim]:
        """Note who of the registered is active and who stands by; return those whose role changed (behaviour 37)."""
        if len(self.registered) < 2 and not self.standby:
            return []
        active = _active(self.registered, policy)
        changed = [claim for path, claim in self.registered.items() if (path in active) == (path in self.standby)]
        for claim in changed:
            if claim.path in active:
                del self.standby[claim.path]
            else:
                self.standby[claim.path] = None
        return changed


def key_of(info: PluginInfo) -> tuple[str, str]:
    """Return what names are told apart by."""
    return info.type, info.name


def taken(info: PluginInfo, name: Name) -> str:
    """Return the reason for which ``info`` cannot have its name."""
    return f"{info.type} {info.name!r} is registered already, by the socket {next(iter(name.registered))}"


def _active(registered: dict[str, Claim], policy: InstancePolicy) -> set[str]:
    """Return the paths that are active; ``registered`` is in the order of registration."""
    match policy:
        case InstancePolicy.ALL | InstancePolicy.REJECT:
            return set(registered)
        case InstancePolicy.NEWEST:
            return set(list(registered)[-1:])
        case InstancePolicy.HIGHEST_VERSION:
            # max() keeps the first of equals, so the newest comes first.
            ranked = reversed(registered.values())
            best = max(ranked, key=lambda claim: _version(claim.info).key, default=None)
            return set() if best is None else {best.path}
    assert_never(policy)


def _version(info: PluginInfo) -> Version:
    # What names no version number at all ranks below all that do.
    return highest_version(info.versions) or Version((-1,))
