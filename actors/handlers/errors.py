"""Reading of the errors that handlers raise. A user's exception class may raise errors itself."""

from __future__ import annotations

import math
import traceback

import trio

from ...protocol.errors import PluginError, leaves
from ...protocol.logs.lines import Level, Logger

#: Characters of a handler's error that are kept (fault 94).
MAX_ERROR = 1024
#: Characters of a traceback that are logged. The end names the place of the error.
_MAX_TRACEBACK = 1000


def is_cancelled() -> bool:
    """Whether a scope around this place is cancelled."""
    return trio.current_effective_deadline() == -math.inf


def closes_coroutine(error: BaseException) -> bool:
    """Whether Python threw ``error`` into a coroutine that will not be resumed."""
    return isinstance(error, GeneratorExit) and not trio.lowlevel.in_trio_task()


def split(error: BaseException, kind: type[BaseException]) -> tuple[BaseException | None, BaseException | None]:
    """Split ``error``, which can be a group, into the part of this ``kind`` and the rest."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(kind)
    return (error, None) if isinstance(error, kind) else (None, error)


def traceback_of(error: BaseException) -> str:
    """Return the end of the traceback of an error."""
    return "".join(traceback.format_exception(error))[-_MAX_TRACEBACK:]


def is_of_asyncio(error: BaseException) -> bool:
    """Whether ``error``, or one of its group, comes from code that waits for something of asyncio under Trio."""
    return any(
        # asyncio raises it without its loop.
        (isinstance(leaf, RuntimeError) and "no running event loop" in words_of(leaf))
        # Trio raises it for what asyncio's loop would wait for.
        or (isinstance(leaf, TypeError) and "asyncio" in words_of(leaf))
        # Queues and locks of asyncio take None for their loop.
        or (isinstance(leaf, AttributeError) and "create_future" in words_of(leaf))
        for leaf in leaves(error)
    )


def cause_of(error: PluginError) -> str | None:
    """Return the short cause of a refusal, if the handler gave one."""
    # A user's class may use this attribute for something else, and may raise.
    try:
        cause = error.cause
    except BaseException:  # noqa: BLE001 - it runs no task, so it raises no Cancelled
        return None
    return cause[:MAX_ERROR] if isinstance(cause, str) else None


def log_failed_deregister(log: Logger, plugin_type: str, name: str, socket: str, error: str) -> None:
    """Log what a handler says instead of deregistering a plugin; nothing else shows the text (fault 84)."""
    error = error[:MAX_ERROR]
    log.event(Level.WARNING, "deregister failed", type=plugin_type, name=name, socket=socket, error=error)


def words_of(error: BaseException) -> str:
    """Return the text of an error, also if the ``__str__`` of a user's class raises."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - see above; it runs no task, so it raises no Cancelled
        return "no words"
