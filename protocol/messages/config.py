"""Messages about reloads: changed settings, and requests to the reloader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from ..values import value
from .addresses import Address

if TYPE_CHECKING:
    # Commands that only ask a daemon load this module without the configuration.
    from ..backoff import Backoff
    from ..discovery.roots import Root
    from ..registration.settings import RegistrationSettings
    from ..trust.users import Trust, Users


@value
class SettingsChanged:
    """The settings of a registration actor have changed. What it has begun continues with the old settings."""

    settings: RegistrationSettings


@value
class WorldChanged:
    """The limits of the reconciler have changed."""

    #: How many plugins can be registered under one name.
    max_instances: int
    #: The delays after short lives, and how many seconds make a life long.
    backoff: Backoff
    stable_after: float


@value
class TrustChanged:
    """Other users are trusted from now on."""

    trust: Trust
    users: Users

    def __hash__(self) -> int:
        """Return the hash of the policy, because ``users`` has none."""
        return hash(self.trust)

    def trusts(self, uid: int) -> bool:
        """Whether plugins of this user may register."""
        return self.trust.includes(uid, self.users)

    def distrust(self, uid: int, pid: int) -> str | None:
        """Return why process ``pid`` of this user is not trusted, with advice; None if it is trusted (fault 40)."""
        return self.trust.refusal(uid, pid, self.users)


@value
class RootRemoved:
    """A root is no longer watched, and its watcher has ended: its plugins are deregistered."""

    root: str


@value
class RootsChanged:
    """The roots or the directories for endpoints have changed."""

    roots: tuple[Root, ...]
    #: All directories in which plugins have sockets: the roots, and the directory of device plugins.
    directories: tuple[str, ...]
    #: The directories for endpoints.
    endpoint_directories: tuple[str, ...]


@value
class PausesChanged:
    """The pauses before a follow is started again have changed."""

    pauses: Backoff


@value
class ExpectationChanged:
    """The expected plugins or devices, or the state that plugins must have, have changed."""

    expected: tuple[str, ...]
    #: Whether the plugins must be healthy, too, or only registered.
    healthy: bool
    #: The expected number of healthy devices, by resource.
    devices: Mapping[str, int] = attrs.field(factory=dict, hash=False)


@value
class ConfigurationRead:
    """The configuration was read again."""

    time: float
    #: Why the configuration is not used; None if it is used.
    refused: str | None = None


@value
class ConfigurationShown:
    """The settings in force, as the rows of ``plugind config -o json``."""

    #: The configuration files of the last reading.
    files: tuple[str, ...]
    settings: tuple[Mapping[str, object], ...]
    #: New values of settings that need a restart before they are in force.
    waiting: tuple[Mapping[str, object], ...] = ()


@value
class Reloaded:
    """The result of a reload."""

    #: The keys whose values have changed.
    changed: tuple[str, ...] = ()
    #: The keys whose new values count only after a restart.
    needs_restart: tuple[str, ...] = ()
    #: All problems. If there are any, nothing has changed.
    refused: tuple[str, ...] = ()


@value
class ReloadAsked:
    """Reload the configuration: read it, and use what needs no restart."""

    reply: Address[Reloaded]


@value
class ConfigurationAsked:
    """Return the settings in force."""

    reply: Address[ConfigurationShown]


ReloaderMessage = ReloadAsked | ConfigurationAsked
