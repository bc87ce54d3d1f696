"""How :class:`Client` holds a lease by a connection: a task waits for its end beside the block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TypeVar

import anyio
import attrs

from ...protocol.leases.values import Lease
from ..io.silence import PATIENCE
from .async_transport import Lines, lines
from .awaited import RECONNECT
from .calls import ClientRequest
from .errors import ClientError, LeaseLostError
from .holding import Holding, holding_of

T = TypeVar("T")


@attrs.define(eq=False)
class Keeper:
    """Holds one lease of the daemon at ``path``."""

    _path: str
    #: How many seconds the daemon may be silent when it is asked for the lease again.
    _timeout: float
    _opened: AsyncExitStack = attrs.field(init=False)
    _found: Lines = attrs.field(init=False)

    @asynccontextmanager
    async def holding(self, call: ClientRequest[Lease], seconds: float) -> AsyncIterator[Holding]:
        """Ask for the lease, which may take so many ``seconds``, and hold it for the block.

        If the lease ends before the block, the block is cancelled.

        Raises:
          LeaseLostError: if the lease has ended before the block.
          ClientError: if there is no lease.
        """
        holding = await self._open(call, seconds, holding_of)
        # The block's own error is raised as it is, not in a group.
        failure: BaseException | None = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._keep, holding, group.cancel_scope)
                try:
                    yield holding
                except anyio.get_cancelled_exc_class():
                    raise  # The scope that is cancelled takes it.
                except BaseException as error:  # noqa: BLE001 - it is raised below
                    failure = error
                group.cancel_scope.cancel()
        finally:
            await self._opened.aclose()
        if holding.held.lost is not None:
            raise LeaseLostError(holding.held.lost) from failure
        if failure is not None:
            raise failure

    async def _open(self, call: ClientRequest[Lease], seconds: float, read: Callable[[bytes, int], T]) -> T:
        """Open another stream in the place of the one before, and return what ``read`` makes of its first line."""
        async with AsyncExitStack() as opened:
            found = await opened.enter_async_context(lines(self._path, call, timeout=seconds, patience=PATIENCE))
            said = read(await anext(found, b""), found.uid)
            found.wait_for_ever()
            self._found, self._opened = found, opened.pop_all()
        return said

    async def _keep(self, holding: Holding, block: anyio.CancelScope) -> None:
        while holding.is_held():
            with suppress(ClientError):  # It was interrupted.
                async for line in self._found:
                    holding.note(line, self._found.uid)
            await self._opened.aclose()
            # There is no event for the start of a daemon.
            while holding.is_held() and not await self._resumed(holding):  # noqa: ASYNC110
                await anyio.sleep(RECONNECT)
        block.cancel()

    async def _resumed(self, holding: Holding) -> bool:
        """Own the lease by another connection; return whether that has succeeded."""
        try:
            await self._open(holding.resumption(), self._timeout, holding.note)
        except ClientError as error:
            holding.not_resumed(error)
            return False
        return True
