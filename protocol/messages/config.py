"""Messages about the configuration of a node that runs: it is read again, and what holds from then on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from ..values import value
from .addresses import Address

if TYPE_CHECKING:
    # The commands that only ask a daemon load this module, and need no configuration.
    from ..backoff import Backoff
    from ..discovery.roots import Root
    from ..registration.settings import RegistrationSettings
    from ..trust.users import Trust, Users


@value
class SettingsChanged:
    """A registration actor goes by other settings from now on; what it has begun goes on by those before."""

    settings: RegistrationSettings


@value
class WorldChanged:
    """The reconciler goes by other limits from now on."""

    #: How many plugins may be registered under one name.
    max_instances: int
    #: The delays after short lives, and how many seconds a life has to last that is not short.
    backoff: Backoff
    stable_after: float


@value
class TrustChanged:
    """Other users are trusted from now on."""

    trust: Trust
    users: Users

    def __hash__(self) -> int:
        """Return the hash of the policy, since what the system says about users has none."""
        return hash(self.trust)

    def trusts(self, uid: int) -> bool:
        """Whether plugins of this user may register."""
        return self.trust.includes(uid, self.users)

    def distrust(self, uid: int, pid: int) -> str | None:
        """Return why process ``pid`` of this user is not trusted, and what to do; None if it is (fault 40)."""
        return self.trust.refusal(uid, pid, self.users)


@value
class RootRemoved:
    """A root is watched no more, and its watcher has ended: its plugins are deregistered."""

    root: str


@value
class RootsChanged:
    """There are other roots, or endpoints may be in other directories, from now on."""

    roots: tuple[Root, ...]
    #: All directories in which plugins have sockets: the roots, and where device plugins call.
    directories: tuple[str, ...]
    #: Where endpoints may be.
    endpoint_directories: tuple[str, ...]


@value
class PausesChanged:
    """The pauses before a follow is started again are others from now on."""

    pauses: Backoff


@value
class ExpectationChanged:
    """Other plugins or devices are expected from now on, or the plugins have to be in another state."""

    expected: tuple[str, ...]
    #: Whether they have to be healthy, too, or only registered.
    healthy: bool
    #: How many healthy devices there have to be, by resource.
    devices: Mapping[str, int] = attrs.field(factory=dict, hash=False)


@value
class ConfigurationRead:
    """The configuration was read again."""

    #: ``trio.current_time()``.
    time: float
    #: Why it is not used; None if it is.
    refused: str | None = None


@value
class ConfigurationShown:
    """The settings that are in force, as the rows of ``plugind config -o json``."""

    #: The configuration files that were read last.
    files: tuple[str, ...]
    settings: tuple[Mapping[str, object], ...]
    #: What was given to settings that need a restart, and is not in force until then.
    waiting: tuple[Mapping[str, object], ...] = ()


@value
class Reloaded:
    """What followed when the configuration was read again."""

    #: The keys that have other values now.
    changed: tuple[str, ...] = ()
    #: The keys whose new values count only after a restart.
    needs_restart: tuple[str, ...] = ()
    #: All that is wrong. Then nothing has changed, and the configuration before it stays in force.
    refused: tuple[str, ...] = ()


@value
class ReloadAsked:
    """Read the configuration again, and use what needs no restart."""

    reply: Address[Reloaded]


@value
class ConfigurationAsked:
    """Say which settings are in force."""

    reply: Address[ConfigurationShown]


ReloaderMessage = ReloadAsked | ConfigurationAsked
