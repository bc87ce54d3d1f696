"""Bugs of a registration's own code, put in on purpose; see ``plugind.tests.tools.planted_bugs``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import attrs

from plugind.actors.handlers.served import NameTurns, Served
from plugind.actors.registration.actor import _Registration
from plugind.protocol.identity import Identity
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import Ending
from plugind.protocol.registration import following
from plugind.protocol.registration.failures import Cause, PluginRefusedError
from plugind.protocol.registration.following import End, Next, Pause
from plugind.protocol.registration.phases import Phase


@contextmanager
def skip_a_deregistration() -> Iterator[None]:
    """A socket that vanishes while it is registered ends without a Deregister."""
    leave = _Registration._leave

    async def skipping(self: _Registration, then: Next) -> Next:
        if self._phase is Phase.REGISTERED and isinstance(then, End) and not then.stopped:
            self._owed = None
            return then
        return await leave(self, then)

    with patch.object(_Registration, "_leave", skipping):
        yield


@contextmanager
def reuse_a_backoff() -> Iterator[None]:
    """Every delay is the first one, since consecutive failures are not counted."""
    wait = following.wait

    def reusing(reason: str, attempt: int, cause: Cause | None = None) -> Pause:
        return attrs.evolve(wait(reason, attempt, cause), failures=1)

    with patch.object(following, "wait", reusing):
        yield


@contextmanager
def count_dials_that_find_another_socket() -> Iterator[None]:
    """A dial that finds another socket counts as a failed try."""
    pause_until_looked_at = _Registration._pause_until_looked_at

    def counting(self: _Registration, attempt: int, notify_try: int | None = None) -> Pause:
        pause = pause_until_looked_at(self, attempt, notify_try)
        return attrs.evolve(pause, attempt=attempt + 1, failures=attempt + 1)

    with patch.object(_Registration, "_pause_until_looked_at", counting):
        yield


@contextmanager
def undo_nothing_when_a_notification_is_interrupted() -> Iterator[None]:
    """A message that ends the notification of success ends the try without a Deregister."""
    interrupted = _Registration._interrupted

    def forgetful(self: _Registration) -> Next:
        if self._phase is Phase.NOTIFY:
            self._owed = None
        return interrupted(self)

    with patch.object(_Registration, "_interrupted", forgetful):
        yield


@contextmanager
def owe_once_register_has_ended() -> Iterator[None]:
    """Deregister is owed only once Register has ended, and not for one that was cancelled."""
    register = Served.register

    async def late(self: Served, plugin: Plugin, file: Identity | None, begins: Callable[[], bool]) -> Ending:
        ending = await register(self, plugin, file, lambda: False)
        begins()
        return ending

    with patch.object(Served, "register", late):
        yield


@contextmanager
def keep_the_name_of_a_refused_plugin() -> Iterator[None]:
    """A plugin that its handler does not accept does not release its name."""
    refuse = _Registration._refuse

    async def keeping(self: _Registration, failure: PluginRefusedError) -> Next:
        if self._phase is Phase.VALIDATE:
            self._claims = False
        return await refuse(self, failure)

    with patch.object(_Registration, "_refuse", keeping):
        yield


@contextmanager
def release_a_name_before_deregister() -> Iterator[None]:
    """A name is free for another plugin while the one before it is being deregistered."""
    leave = _Registration._leave

    async def early(self: _Registration, then: Next) -> Next:
        self._release()
        return await leave(self, then)

    with patch.object(_Registration, "_leave", early):
        yield


@contextmanager
def pass_no_turn_on() -> Iterator[None]:
    """A call whose turn comes after another's waits for ever."""
    pass_on = NameTurns.pass_on

    def keeping(self: NameTurns, name: str) -> None:
        if not self._taken[name]:
            pass_on(self, name)

    with patch.object(NameTurns, "pass_on", keeping):
        yield
