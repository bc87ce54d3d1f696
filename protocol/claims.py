"""Claims to names: for each (type, name), which plugins have it, want it, or could not get it, and which is active.

A plugin claims its name before it is validated. :class:`Name` records the claims of one name, and
``plugind.protocol.world`` decides which of them to admit.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import enum
import math
from typing import assert_never

import attrs

from . import messages as m
from .plugins import CSI, CSI_BELOW, InstancePolicy, PluginInfo, Version, highest_version
from .values import value


class Phase(enum.Enum):
    """How far the plugin of a claim has come."""

    #: The handler validates or registers it.
    ADMITTED = "admitted"
    #: The handler has it.
    REGISTERED = "registered"
    #: The handler deregisters it, or will do so next.
    LEAVING = "leaving"


@attrs.define
class Claim:
    """The right of one plugin to its name, from its admission until its registration actor releases it."""

    path: str
    generation: int
    info: PluginInfo
    handler: m.Address[m.HandlerMessage]
    phase: Phase = Phase.ADMITTED


#: Paths in the order in which they were added. There are several of these for each plugin, most of them empty, and an
#: empty set takes three times the memory of an empty dictionary.
Paths = dict[str, None]


@value
class Freed:
    """What the release of a claim means for the other plugins of its name."""

    #: The plugin was shown as standing by.
    stood_by: bool
    #: The plugin was registered, or may have been: others may have failed because of it.
    was_taken: bool


@attrs.define
class Name:
    """The claims to one (type, name)."""

    #: The claims of registered plugins by path, in the order of registration.
    registered: dict[str, Claim] = attrs.Factory(dict)
    #: Paths between admission and registration, or leaving. While there is one, no other claim is admitted.
    busy: Paths = attrs.Factory(dict)
    #: The claims that are not answered yet, in the order in which they came.
    queue: list[m.Claimed] = attrs.Factory(list)
    #: Paths whose plugin was refused under this name, perhaps because of another one. They are notified when one goes.
    blocked: Paths = attrs.Factory(dict)
    #: Registered paths that are not active.
    standby: Paths = attrs.Factory(dict)

    @property
    def empty(self) -> bool:
        """Whether no plugin has the name or wants it."""
        return not (self.registered or self.busy or self.queue or self.blocked)

    def release(self, claim: Claim) -> Freed:
        """Forget a claim that was admitted, and return what that means for the others."""
        path = claim.path
        freed = Freed(
            stood_by=path in self.standby,
            was_taken=path in self.registered or claim.phase is Phase.LEAVING,
        )
        for paths in (self.busy, self.standby, self.registered):
            paths.pop(path, None)
        return freed

    def change_roles(self, policy: InstancePolicy) -> list[Claim]:
        """Decide which registered plugins are active and which stand by; return those that changed (behaviour 37)."""
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
    """Return the (type, name) of a plugin, by which claims are ordered."""
    return info.type, info.name


def taken(info: PluginInfo, socket: str) -> str:
    """Return the reason why ``info`` cannot have its name: the plugin at ``socket`` has it."""
    return f"{info.type} {info.name!r} is registered already, by the socket {socket}"


def _active(registered: dict[str, Claim], policy: InstancePolicy) -> set[str]:
    """Return the paths that are active; ``registered`` is in the order of registration."""
    match policy:
        case InstancePolicy.ALL | InstancePolicy.REJECT:
            return set(registered)
        case InstancePolicy.NEWEST:
            return set(list(registered)[-1:])
        case InstancePolicy.HIGHEST_VERSION:
            # The newest first, because max() keeps the first of equals.
            ranked = reversed(registered.values())
            best = max(ranked, key=lambda claim: _rank(claim.info), default=None)
            return set() if best is None else {best.path}
    assert_never(policy)


#: Below all versions, which begin with 0 at least.
_NO_VERSION = Version((-1,))


def _rank(info: PluginInfo) -> Version:
    below = CSI_BELOW if info.type == CSI else math.inf
    return highest_version(info.versions, below=below) or _NO_VERSION
