"""The configuration of the registration actors, and how long each of their commands may take.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import math
from typing import Protocol, assert_never

import trio

from ..protocol import messages as m
from ..protocol import states
from ..protocol.backoff import chance_of
from ..protocol.identity import Identity
from ..protocol.info_deadline import first_look
from ..protocol.plugins import Plugin
from ..protocol.registration_settings import RegistrationSettings
from ..protocol.values import value
from .conversation import ConversationConfig

#: The largest part of the time until an observed plugin is asked again by which that is earlier or later.
_JITTER = 0.2


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
    #: What follows plugins that are only observed; None if they are registered.
    observers: ObserverPort | None = None
    #: Seconds after which an observed plugin is asked again; None if it is not.
    observe_again: float | None = None


def seconds_for(
    command: states.WaitingCommand,
    settings: RegistrationSettings,
    config: RegistrationConfig,
    path: str,
    generation: int,
) -> float:
    """Return how long ``command`` may take, or for GetInfo until it is looked at.

    Jitter is drawn for this ``generation`` of the socket at ``path``.
    """
    match command:
        case states.ClaimName() | states.AskValidate() | states.AskRegister():
            # This is a safety net: twice the handler's deadline, since an earlier call for the same name may itself
            # take a full deadline. Giving up is safe: a claim is released, a Validate is withdrawn, and a Register is
            # undone by the Deregister that follows it in the lane of its name.
            return 2 * settings.timeouts.of_handler(command.info.type)
        case states.Dial():
            return math.inf  # The dialer has a deadline of its own, and reports what it waited for.
        case states.AskInfo():
            return first_look(settings.timeouts)
        case states.Notify():
            return settings.timeouts.notify
        case states.StartTimer() if command.not_before is not None:
            # With jitter as after a failure: plugins that crash together would otherwise be dialed together for ever.
            delay = settings.backoff.delay
            chance = chance_of(config.seed, path, generation, command.failures)
            jitter = delay(command.failures, chance) - delay(command.failures)
            return max(0.0, command.not_before - trio.current_time()) + jitter
        case states.StartTimer():
            chance = chance_of(config.seed, path, generation, command.failures)
            return settings.backoff.delay(command.failures, chance)
        case states.AskLater():
            if config.observe_again is None:
                return math.inf
            # All times of one generation are the same: those of several sockets are to differ.
            chance = chance_of(config.seed, path, generation, 0)
            return config.observe_again * (1 + _JITTER * (2 * chance - 1))
        case states.AskDeregister():
            # No deadline: the claim must keep the name until Deregister has run. It still ends, because the handler
            # actor answers each ask, also after a crash, each of its calls has a deadline, and at most as many calls
            # come before it as the name has instances.
            return math.inf
    assert_never(command)
