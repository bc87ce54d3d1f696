"""What the asynchronous client needs of anyio, which takes long to import."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio

from ..http.backends import Tasks
from .errors import LeaseLostError
from .holding import Keeper

ANYIO: Final = Tasks(
    now=anyio.current_time,
    sleep=anyio.sleep,
    scope=anyio.CancelScope,
    readable=anyio.wait_readable,
    writable=anyio.wait_writable,
    closing=anyio.notify_closing,
    closed=anyio.ClosedResourceError,
)


@asynccontextmanager
async def cancelled_if_lost(keeper: Keeper) -> AsyncIterator[None]:
    """Keep a lease in a task beside the block, and cancel the block if the lease ends before.

    Raises:
      LeaseLostError: if the lease has ended before the block.
    """

    async def keep() -> None:
        await keeper.keep()
        group.cancel_scope.cancel()

    # The block's own error is raised as it is, not in a group.
    failure: BaseException | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(keep)
        try:
            yield
        except anyio.get_cancelled_exc_class():
            raise  # The scope that is cancelled takes it.
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failure = error
        group.cancel_scope.cancel()
    if keeper.held.lost is not None:
        raise LeaseLostError(keeper.held.lost) from failure
    if failure is not None:
        raise failure
