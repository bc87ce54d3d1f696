"""The routes of the status socket about leases.

Each sends a message to the lease actor and waits for its answer. A request for a lease can wait as long as its client
stays; see :mod:`.allocations`. All others have a deadline, so that a lease actor that hangs costs one answer and
nothing else.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, TypeVar
from urllib.parse import unquote_to_bytes

import attrs
import trio

from ...protocol.leases import messages as m
from ...protocol.leases.asked_json import (
    OwnerWish,
    ProcessWish,
    RequestError,
    asked_from_json,
    drain_body_from_json,
    init_from_json,
    recovery_from_json,
    target_from_json,
    token_from_json,
    why_not_owner,
)
from ...protocol.leases.drains import Drain
from ...protocol.leases.forms import not_on_disk
from ...protocol.leases.leases_json import (
    drain_to_json,
    lease_to_json,
    lease_to_line,
    released_to_json,
    snapshot_to_json,
)
from ...protocol.leases.messages import LeasesMessage, LeasesViewMessage
from ...protocol.leases.replies import Failure, LeaseChanged, LeasesSnapshot, Problem, Released
from ...protocol.leases.values import ConnectionOwner, Lease, Owner, ProcessIdentity, ProcessOwner
from ...protocol.logs.lines import timestamp
from ...protocol.messages.addresses import Address
from ...protocol.text import encodable
from ..http.server import TEXT, HttpRequest, HttpResponse, json_response, problem, text_response, wrong_method
from ..io.owner_processes import may_run
from ..io.process_identity import identity_of
from ..io.unix_socket import Credentials
from .allocations import LeaseConnections, Told, failed, new_token, owner_by
from .streams import AnswerStream, OpenWatches, Reader, Unsent, Watched, first_message, listed, pause_of, send_pieces

T = TypeVar("T")

PATH: Final = "/v1/leases"
DRAINS: Final = ("/v1/drains", "/v1/drains/end")
#: Seconds for the lease actor's answer, below the deadline of the commands.
DEADLINE: Final = 3.0
#: The deadline if the lease actor writes to the disk first, for which it can take 5 s.
WRITING: Final = 8.0
#: How many changes can wait for a reader before it is dropped.
LAG: Final = 4096

#: Answers a request about the lease with this name, or about all leases.
Handler = Callable[[HttpRequest, str], Awaitable[HttpResponse]]


def _boottime() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class _NoAnswerError(Exception):
    """The lease actor has not answered in time."""


def is_about_leases(path: str) -> bool:
    """Whether a path is about leases."""
    return path == PATH or path.startswith(PATH + "/")


def is_allocation(request: HttpRequest) -> bool:
    """Whether a request can take as long as its client stays."""
    about = is_about_leases(request.path) and request.method == "POST"
    return about and (request.path == PATH or request.path.endswith("/resume"))


@attrs.define(eq=False)
class LeasesApi:
    """Answers requests about leases."""

    wall: Callable[[], float]
    #: None if this node has no lease actor.
    leases: Address[LeasesMessage] | None = None
    #: Returns the identity of a process by its pid; None if there is none.
    identity: Callable[[int], ProcessIdentity | None] = identity_of
    #: Returns whether a process that a client names runs, or cannot be examined.
    may_run: Callable[[ProcessIdentity], bool] = may_run
    #: ``CLOCK_BOOTTIME`` in nanoseconds.
    boottime: Callable[[], int] = _boottime
    unsent: Unsent = attrs.field(factory=Unsent)
    #: Set when the node begins to stop.
    stopping: trio.Event = attrs.field(factory=trio.Event)
    _allocations: LeaseConnections | None = attrs.field(init=False, default=None)
    _watches: OpenWatches = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._watches = OpenWatches(self.unsent)
        if self.leases is not None:
            self._allocations = LeaseConnections(self.leases, self.boottime, self.unsent, self.stopping)

    @property
    def _connections(self) -> LeaseConnections:
        assert self._allocations is not None, "a node without leases answers 404"
        return self._allocations

    def end_watches(self) -> None:
        """End the streams, and all waits for leases."""
        if self._allocations is not None:
            self._allocations.end()
        self._watches.end()

    async def snapshot(self, deadline: float = DEADLINE) -> LeasesSnapshot | None:
        """Return all leases; None if the lease actor does not answer in time."""
        if self.leases is None:
            return LeasesSnapshot(trio.current_time())
        try:
            return await self._answer(m.LeasesAsked, deadline)
        except _NoAnswerError:
            return None

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer a request that is about leases or drains."""
        if self.leases is None:
            return problem(404, "this node has no leases")
        # Bytes, because a client can send anything.
        parts = request.path.removeprefix("/v1/").split("/")
        names = [unquote_to_bytes(part).decode("utf-8", "surrogateescape") for part in parts]
        handlers = self._find(names)
        if handlers is None:
            return problem(404, f"there is no {encodable(request.path)}")
        handler = handlers.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            return wrong_method(", ".join(handlers))
        try:
            return await handler(request, names[1] if len(names) > 1 else "")
        except RequestError as error:
            return failed(Failure(Problem.USAGE, str(error)), self.boottime())
        except _NoAnswerError as error:
            return problem(503, str(error))

    def _find(self, names: list[str]) -> Mapping[str, Handler] | None:
        """Return the handlers of a path by method; None if there is no such path."""
        match names:
            case ["leases"]:
                return {"GET": self._list, "POST": self._ask}
            case ["leases", "watch"]:
                return {"GET": self._watch}
            case ["leases", "recover"]:
                return {"POST": self._recover}
            case ["leases", name] if name:
                return {"GET": self._show, "DELETE": self._release}
            case ["leases", name, "renew"] if name:
                return {"POST": self._renew}
            case ["leases", name, "bind"] if name:
                return {"POST": self._bind}
            case ["leases", name, "resume"] if name:
                return {"POST": self._resume}
            case ["drains"]:
                return {"POST": self._drain}
            case ["drains", "end"]:
                return {"POST": self._undrain}
            case _:
                return None

    async def _answer(self, ask: Callable[[Address[T]], LeasesMessage], deadline: float) -> T:
        reply, answers = trio.open_memory_channel[T](1)
        self._connections.leases.send_nowait(ask(reply))
        with trio.move_on_after(deadline), answers:
            return await answers.receive()
        raise _NoAnswerError(f"the lease actor has not answered within {deadline:g} s")

    # --- what is out of service ---------------------------------------------------------------------------------------

    async def _drain(self, request: HttpRequest, _: str) -> HttpResponse:
        """Take something out of service."""
        drain = drain_body_from_json(request.body, _peer_of(request).uid, self.wall())
        return self._one_drain(await self._answer(lambda reply: m.DrainAsked(drain, reply), WRITING))

    async def _undrain(self, request: HttpRequest, _: str) -> HttpResponse:
        """Let something be given again."""
        target, uid = target_from_json(request.body), _peer_of(request).uid
        return self._one_drain(await self._answer(lambda reply: m.UndrainAsked(target, uid, reply), WRITING))

    def _one_drain(self, answer: Drain | Failure) -> HttpResponse:
        if isinstance(answer, Failure):
            return failed(answer, self.boottime())
        return json_response(200, drain_to_json(answer))

    # --- to look ------------------------------------------------------------------------------------------------------

    async def _list(self, request: HttpRequest, _: str) -> HttpResponse:
        unknown = request.query.keys() - {"prefix"}
        if unknown:
            return problem(400, f"there is no parameter {encodable(min(unknown))}; {PATH} takes prefix")
        snapshot = await self._answer(m.LeasesAsked, DEADLINE)
        prefix = request.query.get("prefix", "")
        leases = tuple(lease for lease in snapshot.leases if lease.id.startswith(prefix))
        if request.plain:
            lines = (lease_to_line(lease).encode() for lease in leases)
            return HttpResponse(200, TEXT, write=self.unsent.counted(partial(send_pieces, lines)))
        shown = attrs.evolve(snapshot, leases=leases)
        return HttpResponse(200, "application/json", write=self.unsent.counted(partial(self._write_list, shown)))

    async def _write_list(self, snapshot: LeasesSnapshot, send: AnswerStream) -> None:
        unix, boottime = self.wall() - trio.current_time() + snapshot.time, self.boottime()
        head = json.dumps(snapshot_to_json(attrs.evolve(snapshot, leases=()), unix)).removesuffix("]}")
        await send_pieces(listed((lease_to_json(lease, boottime) for lease in snapshot.leases), head, "]}\n"), send)

    async def _show(self, _: HttpRequest, name: str) -> HttpResponse:
        return self._one_lease(await self._answer(lambda reply: m.ShowAsked(name, reply), DEADLINE))

    async def _watch(self, request: HttpRequest, _: str) -> HttpResponse:
        """Stream the leases: all of them first, then each that has changed."""
        leases = self._connections.leases
        return self._watches.answer(
            request,
            Watched(
                LeaseChanged,
                self._line,
                self._write_first,
                lambda writer: leases.send_nowait(m.LeasesSubscribed(writer)),
                lambda writer: leases.send_nowait(m.LeasesUnsubscribed(writer)),
            ),
        )

    async def _write_first(self, reader: Reader[LeasesViewMessage], send: AnswerStream) -> bool:
        first = await first_message(reader, send, DEADLINE, f"the lease actor has not answered within {DEADLINE:g} s")
        leases = first.leases if isinstance(first, LeasesSnapshot) else ()
        await send_pieces((self._line(LeaseChanged(trio.current_time(), lease)) for lease in leases), send)
        return first is not None

    def _line(self, changed: LeaseChanged) -> bytes:
        unix = self.wall() - trio.current_time() + changed.time
        content = {"time": timestamp(unix), **lease_to_json(changed.lease, self.boottime())}
        return json.dumps(content).encode() + b"\n"

    # --- to get and to keep -------------------------------------------------------------------------------------------

    async def _ask(self, request: HttpRequest, _: str) -> HttpResponse:
        pause = pause_of(request, "progress")
        if isinstance(pause, HttpResponse):
            return pause
        asked, peer = asked_from_json(request.body), _peer_of(request)
        token = new_token() if isinstance(asked.owner, ConnectionOwner) else ""
        owner = self._owner_of(asked.owner, peer, token)
        if isinstance(owner, Failure):
            return failed(owner, self.boottime())

        def ask(ticket: int, reply: Told, ended: Address[Lease] | None = None) -> LeasesMessage:
            deadline = None if asked.wait is None else trio.current_time() + asked.wait
            progress = reply if ended is None and "progress" in request.query and not request.plain else None
            return m.LeaseAsked(asked.request, owner, peer.uid, ticket, reply, asked.id, deadline, progress, ended)

        if isinstance(owner, ConnectionOwner):
            return self._connections.give_to_connection(ask, token, pause)
        if request.plain:
            return self._connections.wait_for_text(ask, keep=asked.id is not None)
        return self._connections.wait(ask)

    def _owner_of(self, wish: OwnerWish, peer: Credentials, token: str) -> Owner | Failure:
        match wish:
            case ProcessWish():
                return self._process_of(wish, peer)
            case ConnectionOwner():
                return owner_by(token)
            case _:
                return wish

    def _process_of(self, wish: ProcessWish, peer: Credentials) -> Owner | Failure:
        """Return the process that a client names by its pid."""
        if (why := why_not_owner(wish.client_pid, peer.pid)) is not None:
            return Failure(Problem.USAGE, why)
        try:
            process = self.identity(wish.pid)
        except OSError as error:
            text = f"plugind cannot find out which process {wish.pid} is: {error.strerror}; ask again, or use --ttl"
            return Failure(Problem.UNAVAILABLE, text)
        if process is None:
            return Failure(Problem.USAGE, f"there is no process {wish.pid}: name one that runs")
        return ProcessOwner(process)

    async def _resume(self, request: HttpRequest, name: str) -> HttpResponse:
        pause = pause_of(request)
        if isinstance(pause, HttpResponse):
            return pause
        token, uid = token_from_json(request.body), _peer_of(request).uid
        digest = owner_by(token).token_hash

        def ask(ticket: int, reply: Told, ended: Address[Lease]) -> LeasesMessage:
            return m.ResumeAsked(name, uid, digest, ticket, reply, ended)

        return self._connections.give_to_connection(ask, token, pause)

    async def _renew(self, request: HttpRequest, name: str) -> HttpResponse:
        uid = _peer_of(request).uid
        return self._one_lease(await self._answer(lambda reply: m.RenewAsked(name, uid, reply), WRITING))

    async def _bind(self, request: HttpRequest, name: str) -> HttpResponse:
        init, uid = init_from_json(request.body), _peer_of(request).uid
        if not self.may_run(init):
            # If the process were unknown, the lease would end while the container runs.
            text = (
                f"plugind sees no process {init.pid} of this start time: the container has ended, or its hook runs in"
                " another pid namespace than plugind; run both in the same one"
            )
            return self._failed(Problem.USAGE, text)
        return self._one_lease(await self._answer(lambda reply: m.BindAsked(name, uid, init, reply), WRITING))

    def _one_lease(self, answer: Lease | Failure) -> HttpResponse:
        if isinstance(answer, Failure):
            return failed(answer, self.boottime())
        return json_response(200, lease_to_json(answer, self.boottime()))

    async def _release(self, request: HttpRequest, name: str) -> HttpResponse:
        uid = _peer_of(request).uid

        def ask(reply: Address[Released | Failure]) -> LeasesMessage:
            return m.ReleaseAsked((name,), uid, reply)

        answer = await self._answer(ask, WRITING)
        match answer:
            case Failure():
                return failed(answer, self.boottime())
            case Released(unknown=(), unwritten=unwritten) if request.plain:
                return text_response(200, "" if unwritten is None else f"{not_on_disk(name, unwritten)}\n")
            case Released(unknown=()):
                return json_response(200, released_to_json(answer))
            case _:
                return self._failed(Problem.UNKNOWN, f"there is no lease {name}")

    async def _recover(self, request: HttpRequest, _: str) -> HttpResponse:
        recovery_from_json(request.body)
        uid = _peer_of(request).uid

        def ask(reply: Address[Failure | None]) -> LeasesMessage:
            return m.RecoverAsked(uid, reply)

        answer = await self._answer(ask, WRITING)
        return json_response(200, {"recovered": True}) if answer is None else failed(answer, self.boottime())

    def _failed(self, kind: Problem, text: str) -> HttpResponse:
        return failed(Failure(kind, text), self.boottime())


def _peer_of(request: HttpRequest) -> Credentials:
    """Return the process that asks; this process if the request did not come by a socket."""
    return request.peer or Credentials(os.getpid(), os.geteuid(), os.getegid())
