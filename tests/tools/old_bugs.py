"""Bugs that plugind had. Each context manager puts one back by taking out its fix.

``python -m tests.fuzz`` found them (docs/simulation.md), and ``plugind.tests.tools.planted_bugs`` checks that it would
find them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import trio

from plugind.actors.handlers.served import Served
from plugind.actors.node import supervision
from plugind.actors.registration.registrations import Registrations
from plugind.protocol.discovery.sockets import Discovery
from plugind.protocol.discovery.watches import Watches
from plugind.protocol.messages.reconciler import ReconcilerMessage, RegistrationEnded
from plugind.protocol.messages.status import StateChanged
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import Ending, Outcome, StateName
from plugind.protocol.world.effects import Effect, Show
from plugind.tests.tools.seams import reconciler_effects, shown_states


@contextmanager
def look_again_without_a_pause() -> Iterator[None]:
    """The marks of a root that cannot be read cause the next rescan at once (seed 5)."""
    postpone = Watches.postpone

    def restless(self: Watches, path: str, marks: int) -> None:
        if path == self.root and marks:
            self.put_back({path: marks})
        else:
            postpone(self, path, marks)

    with patch.object(Watches, "postpone", restless):
        yield


@contextmanager
def show_sockets_gone_during_a_restart() -> Iterator[None]:
    """A socket that vanishes while the reconciler restarts is shown for ever (seed 10)."""
    with shown_states(lambda change: change.state is StateName.GONE and change.reason == "started anew"):
        yield


@contextmanager
def crash_while_cancelled() -> Iterator[None]:
    """A child with a nursery that crashes while it is cancelled ends its supervisor too (seed 14)."""
    with patch.object(supervision, "BaseExceptionGroup", _NeverCaught, create=True):
        yield


class _AnyGroup(type):
    """Metaclass of a class that ``isinstance`` matches with every group and that ``except`` matches with none."""

    def __instancecheck__(cls, error: object) -> bool:
        return isinstance(error, BaseExceptionGroup)


class _NeverCaught(BaseException, metaclass=_AnyGroup):
    pass


@contextmanager
def abandon_a_deregistration() -> Iterator[None]:
    """A registration stops waiting for its deregistration after twice the deadline of a call (seed 448)."""
    deregister = Served.deregister

    async def impatient(self: Served, plugin: Plugin) -> Ending:
        with trio.move_on_after(2 * self.calls.config.timeout):
            return await deregister(self, plugin)
        return Ending(Outcome.TIMED_OUT, "no answer")

    with patch.object(Served, "deregister", impatient):
        yield


@contextmanager
def keep_a_superseded_validation() -> Iterator[None]:
    """A superseded Validate continues, and blocks its name for as long as it hangs (seed 448)."""
    validate = Served.validate

    async def stubborn(self: Served, plugin: Plugin) -> Ending:
        with trio.CancelScope(shield=True):
            return await validate(self, plugin)
        raise AssertionError("nobody cancels the scope")

    with patch.object(Served, "validate", stubborn):
        yield


@contextmanager
def accept_a_socket_without_its_directory() -> Iterator[None]:
    """A socket in an unknown directory is accepted, and its removal is not noticed (seed 3195)."""
    with patch.object(Discovery, "has_parent", lambda self, path: True):
        yield


@contextmanager
def reuse_a_path_before_its_deregistration() -> Iterator[None]:
    """After a crash of the reconciler no actor waits for one whose handler hangs (seeds 1610 and 2420)."""
    with patch.object(Registrations, "end_to_wait_for", lambda self, path: None):
        yield


@contextmanager
def show_a_crashed_registration_for_ever() -> Iterator[None]:
    """A registration that crashes after its socket was removed is shown for ever (seed 1191)."""

    def silent(message: ReconcilerMessage, effects: list[Effect]) -> list[Effect]:
        if isinstance(message, RegistrationEnded) and message.crashed:
            return [effect for effect in effects if not _shows_gone(effect)]
        return effects

    with reconciler_effects(silent):
        yield


def _shows_gone(effect: Effect) -> bool:
    if not isinstance(effect, Show) or not isinstance(effect.message, StateChanged):
        return False
    return effect.message.state is StateName.GONE
