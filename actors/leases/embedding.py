"""Leases for the program that embeds a node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import TypeVar

import trio

from ...protocol.leases import messages as m
from ...protocol.leases.asked_json import Fields, RequestError, drain_of, target_to_json
from ...protocol.leases.drains import Drain, DrainTarget
from ...protocol.leases.messages import Failure, LeasesSnapshot, Problem, Released, new_ticket
from ...protocol.leases.replies import LeaseFailedError
from ...protocol.leases.values import Lease, ProcessOwner, Request
from ..messaging.callers import Callers, NodeEndedError
from ..messaging.mailbox import send
from .unit import LeaseUnit

T = TypeVar("T")

#: Seconds that the release at the end of a block may take.
RELEASE_TIMEOUT = 5.0


class LeaseCalls:
    """The calls of the program that embeds a node, for which this process is the owner."""

    def __init__(self, leases: LeaseUnit, callers: Callers, uid: int) -> None:
        """Ask ``leases`` in the name of the user ``uid``."""
        self._leases = leases
        self._send = partial(send, leases.inbox)
        self._callers = callers
        self._uid = uid

    @asynccontextmanager
    async def allocate(self, request: Request, name: str | None, wait: float | None) -> AsyncIterator[Lease]:
        """See :meth:`plugind.Supervisor.allocate`."""
        lease = await self._ask(request, name, wait)
        try:
            yield lease
        finally:
            with trio.move_on_after(RELEASE_TIMEOUT, shield=True), suppress(NodeEndedError):
                await self.release([lease.id])

    async def _ask(self, request: Request, name: str | None, wait: float | None) -> Lease:
        reply, answer = trio.open_memory_channel[Lease | Failure](1)
        ticket = new_ticket()
        deadline = None if wait is None else trio.current_time() + wait
        try:
            with self._callers.asking("gave no lease"):
                owner = ProcessOwner(self._leases.own_process)
                self._leases.inbox.send_nowait(m.LeaseAsked(request, owner, self._uid, ticket, reply, name, deadline))
                return _checked(await answer.receive())
        except BaseException:
            # Whether or not the answer is under way: a lease that nobody has taken ends.
            self._leases.inbox.send_nowait(m.AskerLeft(ticket))
            raise

    async def release(self, ids: Sequence[str]) -> Released:
        """End leases, whoever has them."""
        question = partial(m.ReleaseAsked, tuple(ids), self._uid)
        answer: Released | Failure = await self._callers.ask(self._send, question, "released no lease")
        return _checked(answer)

    async def renew(self, lease: str) -> Lease:
        """See :meth:`plugind.Supervisor.renew`."""
        question = partial(m.RenewAsked, lease, self._uid)
        answer: Lease | Failure = await self._callers.ask(self._send, question, "renewed no lease")
        return _checked(answer)

    async def drain(self, target: DrainTarget, reason: str, until: float | None) -> Drain:
        """See :meth:`plugind.Supervisor.drain`."""
        fields = Fields({**target_to_json(target), "reason": reason, "until_unix": until})
        try:
            drain = drain_of(fields, self._uid, 0.0)
        except RequestError as error:
            raise LeaseFailedError(Failure(Problem.USAGE, str(error))) from error
        answer: Drain | Failure = await self._callers.ask(self._send, partial(m.DrainAsked, drain), "drained nothing")
        return _checked(answer)

    async def undrain(self, target: DrainTarget) -> Drain:
        """See :meth:`plugind.Supervisor.undrain`."""
        question = partial(m.UndrainAsked, target, self._uid)
        answer: Drain | Failure = await self._callers.ask(self._send, question, "undrained nothing")
        return _checked(answer)

    async def snapshot(self) -> LeasesSnapshot:
        """Return all leases."""
        return await self._callers.ask(self._send, m.LeasesAsked, "has no leases to show")

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[LeasesSnapshot | m.LeaseChanged]]:
        """Open a stream: first all leases, then each change."""
        return self._callers.stream(self._send, m.LeasesSubscribed, m.LeasesUnsubscribed, "has no leases to show")


def _checked(answer: T | Failure) -> T:
    if isinstance(answer, Failure):
        raise LeaseFailedError(answer)
    return answer
