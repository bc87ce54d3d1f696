"""Callers of the status socket who wait for a lease, and connections that own a lease.

A caller can wait without limit. If it leaves before it has the answer, the lease actor ends the lease, unless the
caller gave it a name.

The answer to a connection that will own the lease is a stream: the lease with a token in the first line, and then
nothing, or empty lines as heartbeats. The lease ends when the client closes the connection. If it ends before that, the
last line has the reason. If plugind has closed the connection, for example for a restart, the client has a minute to
present the token on another connection.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from typing import Final, assert_never

import attrs
import trio

from ...protocol.leases.forms import FormError, env_file, useless
from ...protocol.leases.leases_json import failure_to_json, lease_to_json, place_to_json
from ...protocol.leases.messages import AskerLeft, LeasesMessage, new_ticket
from ...protocol.leases.replies import Failure, InLine, Problem
from ...protocol.leases.values import ConnectionOwner, Lease
from ...protocol.messages.addresses import Address
from ...protocol.status.json import Json
from ..http.places import Place
from ..http.server import HttpResponse, LateResponse, Send, busy, json_response, problem, text_response
from .streams import JSON_LINES, Unsent, heartbeat_headers

#: The HTTP status of the answer to a request that failed.
STATUSES: Final = {
    Problem.UNAVAILABLE: 409,
    Problem.USAGE: 400,
    Problem.REFUSED: 502,
    Problem.TIMEOUT: 504,
    Problem.FORBIDDEN: 403,
    Problem.UNKNOWN: 404,
    Problem.STORAGE: 507,
    Problem.LIMIT: 429,
}
_STOPPING: Final = "plugind is about to stop: ask again"

#: Returns the message to the lease actor, with the ticket and the address of the answer.
Ask = Callable[[int, "Told"], LeasesMessage]
#: The same for a connection that will own the lease, with the address that gets the ended lease.
AskToOwn = Callable[[int, "Told", Address[Lease]], LeasesMessage]


def failed(failure: Failure, boottime: int) -> HttpResponse:
    """Return the answer for a request that failed."""
    return json_response(STATUSES[failure.problem], failure_to_json(failure, boottime), error=failure.text)


def no_place(place: Place, why: str) -> HttpResponse:
    """Answer a request beyond the limits of the status socket; a request for a lease gets the text of a lease limit."""
    if place is not Place.LEASE:
        return busy(place, why)
    text = f"{why}: these callers wait for devices, or own a lease by their connection; ask again later"
    return failed(Failure(Problem.LIMIT, text), 0)


def new_token() -> str:
    """Return a token for a connection that will own a lease."""
    import secrets  # It brings OpenSSL, which nothing else of a daemon needs.

    return secrets.token_urlsafe(24)


def owner_by(token: str) -> ConnectionOwner:
    """Return the owner with this token."""
    import hashlib  # As above.

    return ConnectionOwner(hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest())


@attrs.define(eq=False)
class LeaseConnections:
    """All callers who wait for leases, and all connections that own leases."""

    leases: Address[LeasesMessage]
    #: ``CLOCK_BOOTTIME`` in nanoseconds.
    boottime: Callable[[], int]
    unsent: Unsent
    #: Set when the node begins to stop: plugins are not asked from then on, and the next daemon can ask them.
    stopping: trio.Event
    _replies: set[Told] = attrs.field(factory=set)
    _owned: set[_Owned] = attrs.field(factory=set)
    _ending: trio.Event = attrs.field(factory=trio.Event)

    def end(self) -> None:
        """End all waits and streams. Leases that belong to connections stay."""
        self._ending.set()
        for reply in self._replies:
            reply.close()
        for owned in self._owned:
            owned.to_end.close()

    def wait(self, ask: Ask) -> HttpResponse:
        """Answer with the lease when it is held; before that with its places in line, if the lease actor tells some."""
        return self._late(ask, lambda lease: json_response(201, lease_to_json(lease, self.boottime())))

    def wait_for_text(self, ask: Ask, *, keep: bool) -> HttpResponse:
        """Answer with the variables of the lease when it is held; one without such a form ends, unless to ``keep``."""

        def variables(lease: Lease) -> HttpResponse:
            try:
                return text_response(201, env_file(lease))
            except FormError as error:
                return failed(Failure(Problem.REFUSED, useless(lease, error, kept=keep)), self.boottime())

        return self._late(ask, variables)

    async def _write_places(self, said: InLine | Lease | Failure, told: Told, send: Send) -> None:
        self._replies.add(told)
        try:
            while isinstance(said, InLine):
                await send(json.dumps(place_to_json(said, self.boottime())).encode() + b"\n")
                said = await told.receive()
        except trio.EndOfChannel:
            await send(json.dumps({"error": _STOPPING}).encode() + b"\n")
            raise trio.BrokenResourceError(_STOPPING) from None
        finally:
            self._replies.discard(told)
        if isinstance(said, Lease):
            await send(self._line(said))
        elif self._is_of_stop(said):
            await send(json.dumps({"error": _STOPPING}).encode() + b"\n")
        else:
            await send(json.dumps(failure_to_json(said, self.boottime())).encode() + b"\n")

    def give_to_connection(self, ask: AskToOwn, token: str, pause: float | None) -> HttpResponse:
        """Answer with the lease, then with heartbeats every ``pause`` seconds, and with the ended lease."""
        to_end, end = trio.open_memory_channel[Lease](1)

        def stream(lease: Lease) -> HttpResponse:
            write = partial(self._write_owned, _Owned(lease, token, to_end, end), pause)
            return HttpResponse(201, JSON_LINES, write=write, endless=True, headers=heartbeat_headers(pause))

        return self._late(lambda ticket, reply: ask(ticket, reply, to_end), stream)

    def _late(self, ask: Ask, answer: Callable[[Lease], HttpResponse]) -> HttpResponse:
        ticket = new_ticket()
        return LateResponse(
            make=partial(self._make, ticket, ask, answer),
            undelivered=lambda left: self.leases.send_nowait(AskerLeft(ticket, cut=not left)),
        )

    async def _make(self, ticket: int, ask: Ask, answer: Callable[[Lease], HttpResponse]) -> HttpResponse:
        if self._ending.is_set() or self.stopping.is_set():
            return problem(503, _STOPPING)
        told = Told()
        self._replies.add(told)
        self.leases.send_nowait(ask(ticket, told))
        try:
            first = await told.receive()
        except trio.EndOfChannel:
            self.leases.send_nowait(AskerLeft(ticket))
            return problem(503, _STOPPING)
        finally:
            self._replies.discard(told)
        match first:
            case InLine():
                write = self.unsent.counted(partial(self._write_places, first, told))
                return HttpResponse(202, JSON_LINES, write=write, endless=True)
            case Failure() if self._is_of_stop(first):
                return problem(503, _STOPPING)
            case Failure():
                return failed(first, self.boottime())
            case Lease():
                answered = answer(first)
                if answered.error is not None:
                    self.leases.send_nowait(AskerLeft(ticket))
                return answered
            case _:
                assert_never(first)

    def _is_of_stop(self, failure: Failure) -> bool:
        """Whether a plugin may not have been asked because the node stops."""
        return failure.problem is Problem.REFUSED and self.stopping.is_set()

    async def _write_owned(self, owned: _Owned, pause: float | None, send: Send) -> None:
        self._owned.add(owned)
        try:
            await send(self._line(owned.lease, token=owned.token))
            while not self._ending.is_set():
                end = await owned.next_end(pause)
                await send(b"\n" if end is None else self._line(end))
                if end is not None:
                    return
        except trio.EndOfChannel:
            return  # plugind stops, and the lease stays.
        finally:
            self._owned.discard(owned)

    def _line(self, lease: Lease, **more: Json) -> bytes:
        return json.dumps({**lease_to_json(lease, self.boottime()), **more}).encode() + b"\n"


@attrs.define(eq=False)
class Told:
    """What a caller is told: a place in line takes the place of the one before, and the answer that of both."""

    _newest: Lease | Failure | InLine | None = None
    _is_closed: bool = False
    _changed: trio.Event = attrs.field(factory=trio.Event)

    def send_nowait(self, newest: Lease | Failure | InLine, /) -> None:
        """Tell what replaces all before."""
        self._newest = newest
        self._changed.set()

    def close(self) -> None:
        """Tell that nothing more comes."""
        self._is_closed = True
        self._changed.set()

    async def receive(self) -> Lease | Failure | InLine:
        """Wait for what is newer than the last.

        Raises:
          trio.EndOfChannel: if nothing more comes, since plugind stops.
        """
        await self._changed.wait()
        newest, self._newest = self._newest, None
        if newest is None:
            raise trio.EndOfChannel
        if not self._is_closed:
            self._changed = trio.Event()
        return newest


@attrs.define(eq=False)
class _Owned:
    """A lease owned by a connection."""

    lease: Lease
    token: str
    to_end: trio.MemorySendChannel[Lease]
    end: trio.MemoryReceiveChannel[Lease]

    async def next_end(self, pause: float | None) -> Lease | None:
        """Return the lease when it has ended, or None after ``pause`` seconds.

        Raises:
          trio.EndOfChannel: if plugind stops.
        """
        with trio.move_on_after(math.inf if pause is None else pause):
            return await self.end.receive()
        return None
