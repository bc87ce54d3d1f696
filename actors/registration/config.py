"""The configuration of the registration actors.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import Protocol

import trio

from ...protocol import messages as m
from ...protocol.identity import Identity
from ...protocol.plugins import Plugin
from ...protocol.registration_settings import RegistrationSettings
from ...protocol.values import value
from .conversation import ConversationConfig
from .late_reports import LateReports


class ObserverPort(Protocol):
    """What follows plugins in observe mode."""

    def begin(self, plugin: Plugin, file: Identity | None) -> None:
        """Follow a plugin whose socket is ``file``."""

    def end(self, plugin: Plugin) -> None:
        """Follow a plugin no more."""


@value
class RegistrationConfig:
    """The configuration of all registration actors of a node."""

    conversation: ConversationConfig
    #: Those with which an actor begins.
    settings: RegistrationSettings
    #: The seed of all jitter.
    seed: int
    reconciler: trio.MemorySendChannel[m.ReconcilerMessage]
    liveness: trio.MemorySendChannel[m.LivenessMessage]
    status: trio.MemorySendChannel[m.StatusMessage]
    #: What asks for reports of first tries that take long.
    late_reports: LateReports
    #: What follows plugins that are only observed; None if they are registered.
    observers: ObserverPort | None = None
    #: Seconds after which an observed plugin is asked again; None if it is not.
    observe_again: float | None = None
