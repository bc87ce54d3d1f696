"""The calls of Register in the directory of device plugins: calls under way, and the plugins registered by them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import attrs
import trio
from grpclib.const import Status

from ...protocol.devices.calls import (
    CallCounter,
    CallLimits,
    CallRefusedError,
    RegisterCall,
    check_call,
    check_caller,
    check_owner,
    refusal_of,
)
from ...protocol.identity import Identity
from ...protocol.messages.discovery import CallAnswered, Called, SocketAppeared
from ...protocol.messages.reconciler import PluginGone, ReconcilerMessage
from ...protocol.messages.status import RegisterCalled, RegisterRefused, StatusMessage
from ...protocol.plugins.info import PluginInfo, wrong_with_resource
from ...protocol.plugins.status import Outcome
from ...protocol.settings.rules import Rules
from ...protocol.text import cut
from ..discovery.directory import describe
from ..messaging.mailbox import offer, report
from .directory import DeviceDirectory

#: Characters of a refused caller's names that are logged.
MAX_NAMED = 256
#: Seconds between two looks for the socket that a call names.
_SOCKET_LOOK = 0.1
_CALLED_AGAIN = "the plugin has called Register again"


@attrs.frozen
class CallsConfig:
    """The rules for calls of Register, and the inboxes for reports."""

    #: The path of the directory.
    path: str
    rules: Rules
    #: Numbers sockets; the watchers use the same iterator.
    generations: Iterator[int]
    reconciler: trio.MemorySendChannel[ReconcilerMessage]
    status: trio.MemorySendChannel[StatusMessage]
    limits: CallLimits = attrs.field(factory=CallLimits)


@attrs.define(eq=False)
class _CalledRegistration:
    """One registration by a call. Several calls can wait for its answer."""

    info: PluginInfo
    identity: Identity
    call: RegisterCall
    #: The number of the call, in order of arrival.
    number: int
    generation: int
    calls: RegisterCalls
    answer: CallAnswered | None = None
    answered: trio.Event = attrs.field(factory=trio.Event)

    def take(self, answer: CallAnswered) -> None:
        """Set the answer; only the first counts."""
        if self.answer is None:
            self.answer = answer
            self.calls.note_answer(self, answer)
            self.answered.set()

    def says(self, info: PluginInfo, identity: Identity) -> bool:
        """Whether a call has the same info and the same socket."""
        return self.info == info and self.identity.is_same(identity)

    def appeared(self, root: str) -> SocketAppeared:
        """Return the report for the reconciler."""
        call = Called(self.info, self.call.uid, self.call.pid, _Reply(self, self.generation), self.call.options)
        call = call if self.answer is None else call.as_answered()
        path, now = self.info.endpoint, trio.current_time()
        return SocketAppeared(path, self.generation, self.identity, root, now, call=call)


@attrs.frozen(eq=False)
class _Reply:
    """Receives the answer to one report of a registration."""

    registration: _CalledRegistration
    generation: int

    def send_nowait(self, answer: CallAnswered, /) -> None:
        """Pass the answer on, unless the registration was reported again since."""
        if self.registration.generation == self.generation:
            self.registration.take(answer)


def _called(call: RegisterCall, *, registered: bool) -> RegisterCalled:
    """Return the count of a call."""
    return RegisterCalled(call.resource if wrong_with_resource(call.resource) is None else None, registered)


class RegisterCalls:
    """All calls in one directory. Registered plugins are kept as long as the node lives, even if the reconciler
    crashes.
    """

    def __init__(self, config: CallsConfig, directory: DeviceDirectory) -> None:
        self._config = config
        self._directory = directory
        self._counter = CallCounter(config.limits)
        self._numbers = itertools.count(1)
        #: By the path of the socket: registrations without an answer, successful ones, and refused ones that are still
        #: shown.
        self._under_way: dict[str, _CalledRegistration] = {}
        self._registered: dict[str, _CalledRegistration] = {}
        self._refused: dict[str, _CalledRegistration] = {}
        #: The names of sockets that plugind deleted at its start, and that were not made again.
        self.deleted: set[str] = set()
        #: Why no calls are accepted.
        self._closed: str | None = None

    def __len__(self) -> int:
        return len(self._registered)

    @property
    def any_kept(self) -> bool:
        """Whether any plugin is registered, or about to be."""
        return bool(self._kept())

    async def register(self, call: RegisterCall) -> None:
        """Register the device plugin that calls; return once it is registered.

        Raises:
          CallRefusedError: if it is refused.
        """
        try:
            await self._register_counted(call)
        except trio.Cancelled:
            # The caller has left, so the report must not wait.
            offer(self._config.status, _called(call, registered=False))
            raise
        except CallRefusedError as refusal:
            await report(self._config.status, _called(call, registered=False))
            root, named = self._config.path, (cut(call.resource, MAX_NAMED), cut(call.endpoint, MAX_NAMED))
            refused = RegisterRefused(root, *named, call.uid, call.pid, str(refusal))
            await report(self._config.status, refused)
            raise
        await report(self._config.status, _called(call, registered=True))

    async def _register_counted(self, call: RegisterCall) -> None:
        self._counter.begin(call.pid)
        try:
            check_caller(call, self._config.rules)
            await self._register(check_call(call, self._config.path), call)
        finally:
            self._counter.end(call.pid)

    async def _register(self, info: PluginInfo, call: RegisterCall) -> None:
        limit, registration, number = self._config.limits.answer, None, next(self._numbers)
        with trio.move_on_after(limit):
            identity = await self._find_socket(info.endpoint)
            check_owner(info, identity.owner, self._config.rules)
            registration = await self._ask(info, identity, call, number)
            await registration.answered.wait()
        if registration is None or registration.answer is None:
            text = f"the registration took longer than {limit:g} s"
            if registration is not None:
                await self._give_up(registration, text, Outcome.TIMED_OUT)
            raise CallRefusedError(Status.DEADLINE_EXCEEDED, text)
        if (refusal := refusal_of(registration.answer)) is not None:
            raise refusal

    async def _find_socket(self, path: str) -> Identity:
        """Wait until a socket is at ``path``, and return its identity. Some plugins call before they listen."""
        with trio.move_on_after(self._config.limits.socket):
            # Polling, because closing an inotify instance blocks for milliseconds.
            while (identity := self._look_at(path)) is None:  # noqa: ASYNC110 - another process makes it
                await trio.sleep(_SOCKET_LOOK)
            self.deleted.discard(os.path.basename(path))
            return identity
        waited = f"no socket at {path} after {self._config.limits.socket:g} s"
        if os.path.basename(path) in self.deleted:
            waited += "; plugind has deleted the one that was there when it started: restart the plugin"
        raise CallRefusedError(Status.UNAVAILABLE, f"failed to dial device plugin: {waited}")

    def _look_at(self, path: str) -> Identity | None:
        try:
            return self._directory.identify(os.path.basename(path))
        except OSError as error:
            text = f"failed to dial device plugin: cannot look at {path}: {describe(error)}"
            raise CallRefusedError(Status.UNAVAILABLE, text) from error

    async def _ask(self, info: PluginInfo, identity: Identity, call: RegisterCall, number: int) -> _CalledRegistration:
        """Report the call to the reconciler; return its registration, or the equal one that is under way."""
        path = info.endpoint
        before = self._under_way.get(path)
        if before is not None and before.says(info, identity):
            return before
        self._check_room(path)
        if (later := self._latest(path)) is not None and later.number > number:
            if later.says(info, identity):
                return later
            # A later call has found the socket for which this call waited.
            raise CallRefusedError(Status.UNAVAILABLE, _CALLED_AGAIN)
        if before is not None:
            before.take(CallAnswered(_CALLED_AGAIN, Outcome.SUPERSEDED))
        registration = _CalledRegistration(info, identity, call, number, next(self._config.generations), self)
        self._under_way[path] = registration
        self._refused.pop(path, None)
        await report(self._config.reconciler, registration.appeared(self._config.path))
        return registration

    def _latest(self, path: str) -> _CalledRegistration | None:
        """Return the registration of the latest call that named the path, if there is one."""
        return self._under_way.get(path) or self._refused.get(path) or self._registered.get(path)

    def _check_room(self, path: str) -> None:
        """Check that one more registration can be kept; drop registrations whose socket is gone if there is no room."""
        if self._closed is not None:
            raise CallRefusedError(Status.UNAVAILABLE, self._closed)
        if path not in self._registered and not self._has_room():
            self._registered = {
                path: registration for path, registration in self._registered.items() if self._is_there(registration)
            }
            if not self._has_room():
                limit = self._config.limits.kept
                raise CallRefusedError(Status.RESOURCE_EXHAUSTED, f"{limit} device plugins have called already")

    def _has_room(self) -> bool:
        kept = len(self._registered) + len(self._under_way) + len(self._refused)
        return kept < self._config.limits.kept

    def note_answer(self, registration: _CalledRegistration, answer: CallAnswered) -> None:
        """Move a registration to the registered or refused ones, in place of earlier ones at its path."""
        path = registration.info.endpoint
        if self._under_way.get(path) is not registration:
            return
        del self._under_way[path]
        self._registered.pop(path, None)
        if answer.error is None:
            registration.generation = answer.generation or registration.generation
            self._registered[path] = registration
        else:
            self._refused[path] = registration

    # --- what the server asks for -------------------------------------------------------------------------------------

    async def look(self) -> None:
        """End the registrations whose socket is gone or was replaced."""
        gone = [registration for registration in self._under_way.values() if not self._is_there(registration)]
        for registration in gone:
            text = f"{registration.info.endpoint} was removed before the plugin was registered"
            await self._give_up(registration, text, Outcome.FAILED)
        gone = [registration for registration in self._refused.values() if not self._is_there(registration)]
        for registration in gone:
            await self._give_up(registration, "the socket was removed", Outcome.FAILED)

    def suspend(self) -> None:
        """Ignore answers to earlier reports, because the reconciler has crashed and all registrations end."""
        self._refused.clear()
        for registration in self._kept():
            registration.generation = next(self._config.generations)

    async def report_again(self) -> None:
        """Report all registrations whose sockets still exist to a new reconciler; their callers keep waiting."""
        there = [registration for registration in self._kept() if self._is_there(registration)]
        self._registered = {
            registration.info.endpoint: registration
            for registration in self._registered.values()
            if registration in there
        }
        for registration in there:
            if registration in self._kept():
                await report(self._config.reconciler, registration.appeared(self._config.path))

    def _kept(self) -> list[_CalledRegistration]:
        """Return the registered and unanswered registrations. One of the latter can replace one of the former."""
        return [*self._registered.values(), *self._under_way.values()]

    async def close(self, reason: str) -> None:
        """Refuse all calls from now on, and have all plugins of this directory deregistered."""
        self._closed = reason
        everything = (*self._registered.values(), *self._under_way.values(), *self._refused.values())
        for registration in everything:
            await self._give_up(registration, reason, Outcome.FAILED)
        self._registered.clear()

    def forget(self) -> None:
        """Drop all registrations, so that the plugins must call again."""
        self._registered.clear()
        self._under_way.clear()
        self._refused.clear()

    async def _give_up(self, registration: _CalledRegistration, reason: str, outcome: Outcome) -> None:
        registration.take(CallAnswered(reason, outcome))
        self._refused.pop(registration.info.endpoint, None)
        gone = PluginGone(registration.info.endpoint, registration.generation, reason)
        await report(self._config.reconciler, gone)

    def _is_there(self, registration: _CalledRegistration) -> bool:
        try:
            identity = self._directory.identify(os.path.basename(registration.info.endpoint))
        except OSError:
            return True  # It cannot be examined, so it counts as there.
        return identity is not None and identity.is_same(registration.identity)
