"""Messages about the configuration of a node that runs: it is read again, and what holds from then on.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from .values import value


@value
class ExpectationChanged:
    """Other plugins are expected from now on, or have to be in another state."""

    expected: tuple[str, ...]
    #: Whether they have to be healthy, too, or only registered.
    healthy: bool


@value
class ConfigurationRead:
    """The configuration was read again."""

    #: ``trio.current_time()``.
    time: float
    #: Why it is not used; None if it is.
    refused: str | None = None


@value
class Reloaded:
    """What followed when the configuration was read again."""

    #: The keys that have other values now.
    changed: tuple[str, ...] = ()
    #: The keys whose new values count only after a restart.
    needs_restart: tuple[str, ...] = ()
    #: All that is wrong. Then nothing has changed, and the configuration before it stays in force.
    refused: tuple[str, ...] = ()
