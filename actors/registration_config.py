"""The configuration of the registration actors, and how long each of their commands may take.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import math
import random
from typing import assert_never

import attrs
import trio

from ..protocol import messages as m
from ..protocol import states
from ..protocol.backoff import Backoff
from ..protocol.config import Timeouts
from ..protocol.info_deadline import first_look
from .conversation import ConversationConfig


@attrs.frozen
class RegistrationConfig:
    """The configuration of all registration actors of a node."""

    conversation: ConversationConfig
    timeouts: Timeouts
    backoff: Backoff
    rng: random.Random
    reconciler: trio.MemorySendChannel[m.ReconcilerMessage]
    liveness: trio.MemorySendChannel[m.LivenessMessage]
    status: trio.MemorySendChannel[m.StatusMessage]


def seconds_for(command: states.WaitingCommand, config: RegistrationConfig) -> float:
    """Return how long ``command`` may take, or for GetInfo until it is looked at."""
    match command:
        case states.ClaimName() | states.AskValidate() | states.AskRegister():
            # This is a safety net: twice the handler's deadline, since an earlier call for the same name may itself
            # take a full deadline. Giving up is safe: a claim is released, a Validate is withdrawn, and a Register is
            # undone by the Deregister that follows it in the lane of its name.
            return 2 * config.timeouts.of_handler(command.info.type)
        case states.Dial():
            return math.inf  # The dialer has a deadline of its own, and reports what it waited for.
        case states.AskInfo():
            return first_look(config.timeouts)
        case states.Notify():
            return config.timeouts.notify
        case states.StartTimer() if command.not_before is not None:
            # With jitter as after a failure: plugins that crash together would otherwise be dialed together for ever.
            jitter = config.backoff.delay(command.failures, config.rng.random()) - config.backoff.delay(
                command.failures
            )
            return max(0.0, command.not_before - trio.current_time()) + jitter
        case states.StartTimer():
            return config.backoff.delay(command.failures, config.rng.random())
        case states.AskDeregister():
            # No deadline: the claim must keep the name until Deregister has run. It still ends, because the handler
            # actor answers each ask, also after a crash, each of its calls has a deadline, and at most as many calls
            # come before it as the name has instances.
            return math.inf
    assert_never(command)
