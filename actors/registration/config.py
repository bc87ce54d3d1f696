"""The configuration of the registration actors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from ...protocol.identity import Identity
from ...protocol.leases.values import ProcessIdentity
from ...protocol.messages.liveness import LivenessMessage
from ...protocol.messages.reconciler import ReconcilerMessage
from ...protocol.messages.status import StatusMessage
from ...protocol.plugins.info import Plugin
from ...protocol.registration.settings import RegistrationSettings
from ...protocol.values import value
from ..io.process_identity import identity_of
from .conversation import ConversationConfig
from .notices import Notices
from .timers import TryTimers


class ObserverPort(Protocol):
    """Follows plugins in observe mode."""

    def begin(self, plugin: Plugin, file: Identity | None) -> None:
        """Follow a plugin whose socket is ``file``."""

    def end(self, plugin: Plugin) -> None:
        """Stop following a plugin."""


@value
class RegistrationConfig:
    """The configuration of all registration actors of a node."""

    conversation: ConversationConfig
    settings: RegistrationSettings
    seed: int
    reconciler: trio.MemorySendChannel[ReconcilerMessage]
    liveness: trio.MemorySendChannel[LivenessMessage]
    status: trio.MemorySendChannel[StatusMessage]
    #: Look at tries that take long.
    timers: TryTimers
    #: What was told to which plugins; None if it is not kept.
    notices: Notices | None = None
    #: Finds out which process has a pid now.
    process_of: Callable[[int], ProcessIdentity | None] = identity_of
    #: Follow plugins in observe mode; None if plugins are registered.
    observers: ObserverPort | None = None
    #: Seconds after which an observed plugin is asked again; None for never.
    observe_again: float | None = None
