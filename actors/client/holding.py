"""A lease that a connection of this program owns, as both clients hold it.

The stream of such a lease ends with the lease, and then says so. If it ends in another way, plugind was stopped or
killed, and another connection may own the lease within a minute after its next start.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Final

import attrs

from ...protocol.leases.leases_json import lease_from_json
from ...protocol.leases.replies import Problem
from ...protocol.leases.values import Lease, LeaseState
from ...protocol.text import escaped
from ..http.backends import Backend
from ..http.client import Reply
from ..io.silence import PATIENCE
from .awaited import RECONNECT
from .calls import ClientRequest, understood
from .errors import ClientError, DaemonError, LeaseFailedError
from .lease_calls import judged, resumption
from .transport import lines

#: How the daemon answers if the lease does not belong to this program any more.
_LOST: Final = (Problem.UNKNOWN, Problem.FORBIDDEN)


@attrs.define(eq=False)
class HeldLease:
    """A lease that belongs to a connection of this program."""

    #: The lease as the daemon has shown it last.
    lease: Lease
    #: Why it has ended before its block; None as long as it is held.
    lost: str | None = None


@attrs.define(eq=False)
class Keeper:
    """Holds one lease of the daemon at ``path``: what has taken it calls :meth:`keep` beside its block."""

    _backend: Backend
    _path: str
    #: How many seconds the daemon may be silent when it is asked for the lease again.
    _timeout: float
    #: The lease, and what the daemon says of it.
    held: HeldLease = attrs.field(init=False)
    _token: str = attrs.field(init=False)
    #: Whether the block has ended: what the daemon says of the end of the lease is no news then.
    _is_over: bool = attrs.field(init=False, default=False)
    _stream: Reply = attrs.field(init=False)
    _opened: AsyncExitStack = attrs.field(init=False)

    async def take(self, call: ClientRequest[Lease], seconds: float) -> None:
        """Ask for the lease, which may take so many ``seconds``.

        Raises:
          ClientError: if there is no lease.
        """
        await self._open(call, seconds, self._begin)

    async def keep(self) -> None:
        """Follow the lease until it has ended or its block has, by another connection if one is interrupted."""
        try:
            while not self._has_ended():
                with suppress(ClientError):  # It was interrupted.
                    async for line in self._stream:
                        self._note(line)
                await self._opened.aclose()
                # There is no event for the start of a daemon.
                while not (self._has_ended() or await self._resumed()):
                    await self._backend.sleep(RECONNECT)
        finally:
            await self._opened.aclose()

    def end(self) -> bool:
        """End the block; return whether the lease is still held."""
        self._is_over = True
        return self.held.lost is None

    def hang_up(self) -> None:
        """End the connection, and the lease with it."""
        self._stream.hang_up()

    async def _open(self, call: ClientRequest[Lease], seconds: float, read: Callable[[bytes], None]) -> None:
        """Open another stream in the place of the one before, and have its first line read."""
        async with AsyncExitStack() as opened:
            asking = lines(self._backend, self._path, call, timeout=seconds, patience=PATIENCE)
            self._stream = await opened.enter_async_context(asking)
            read(await anext(self._stream, b""))
            self._stream.wait_for_ever()
            self._opened = opened.pop_all()

    def _begin(self, line: bytes) -> None:
        if not line:
            raise DaemonError("the daemon's answer cannot be understood: it has no lease", 201)
        lease = understood(lease_from_json, line)
        token = json.loads(line).get("token")
        if not isinstance(token, str):
            raise DaemonError("the daemon's answer cannot be understood: the lease has no token", 201)
        self.held, self._token = HeldLease(judged(lease, self._stream.uid)), token

    def _note(self, line: bytes) -> None:
        """Take a line of the stream; an empty one says nothing."""
        if not line:
            return
        lease = self.held.lease = judged(understood(lease_from_json, line), self._stream.uid)
        if lease.state is LeaseState.GONE:
            self._lose(escaped(lease.reason or "plugind does not say why"))

    async def _resumed(self) -> bool:
        """Own the lease by another connection; return whether that has succeeded."""
        try:
            await self._open(resumption(self.held.lease.id, self._token), self._timeout, self._note)
        except ClientError as error:
            if isinstance(error, LeaseFailedError) and error.problem in _LOST:
                self._lose(f"its connection came back too late ({error})")
            return False
        return True

    def _lose(self, why: str) -> None:
        if not self._is_over:
            self.held.lost = f"the lease {escaped(self.held.lease.id)} has ended: {why}"

    def _has_ended(self) -> bool:
        return self._is_over or self.held.lost is not None
