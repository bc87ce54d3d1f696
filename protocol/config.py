"""What a node can be told: every default of plugind in one place. Times are seconds."""

from __future__ import annotations

import itertools

import attrs

from .backoff import Backoff, RestartIntensity
from .errors import ConfigError
from .plugins import InfoLimits
from .wire.limits import DEFAULT_LIMITS, Limits

DEFAULT_ROOT = "/var/lib/kubelet/plugins_registry"


@attrs.frozen
class Timeouts:
    """How long each step may take in all; one byte a second stretches none of them (behaviour 26, fault 63)."""

    dial: float = 10.0
    #: How long a socket that refuses connections may still be on its way from bind to listen (behaviour 12).
    refused_grace: float = 1.0
    get_info: float = 1.0
    notify: float = 5.0
    #: One call of a handler: validate, register or deregister.
    handler: float = 120.0
    #: From the request to stop until what is in flight is cut off; half of it passes before a roll-back begins.
    stop_grace: float = 10.0


@attrs.frozen
class Root:
    """A directory to discover plugins in; ``deprecated`` ones are for plugins of old (behaviour 16)."""

    path: str
    deprecated: bool = False


@attrs.frozen
class Config:
    """A node's configuration."""

    roots: tuple[Root, ...] = (Root(DEFAULT_ROOT),)
    #: Seconds between rescans, jittered by a tenth (behaviour 14).
    rescan: float = 10.0
    timeouts: Timeouts = attrs.field(factory=Timeouts)
    backoff: Backoff = attrs.field(factory=Backoff)
    intensity: RestartIntensity = attrs.field(factory=RestartIntensity)
    info_limits: InfoLimits = attrs.field(factory=InfoLimits)
    #: How much a plugin may ask of a connection: sizes, frames, bytes (faults 50 to 65).
    wire_limits: Limits = DEFAULT_LIMITS
    #: Deregister what is registered when the node stops (behaviour 42).
    deregister_at_stop: bool = False
    #: Take symbolic links that resolve to a socket inside their root (behaviour 7).
    follow_symlinks_inside_root: bool = False
    #: Names of plugins without which the node is not ready (behaviour 40).
    expected: tuple[str, ...] = ()
    #: Seed of all chance: jitter of backoff and of rescans. None takes one from the system.
    seed: int | None = None


def check_roots(roots: tuple[Root, ...]) -> None:
    """Check that a node can have these ``roots``.

    Raises:
      ConfigError: if there is none, one is not an absolute path, or one lies in another.
    """
    if not roots:
        raise ConfigError("there is no root to discover plugins in: name one with --root")
    for root in roots:
        if not root.path.startswith("/"):
            raise ConfigError(f"the root {root.path!r} is not an absolute path")
    for root, other in itertools.permutations(roots, 2):
        if (other.path.rstrip("/") + "/").startswith(root.path.rstrip("/") + "/"):
            raise ConfigError(f"the roots {root.path} and {other.path} lie in each other: name one of them")
