"""Calls of a handler. Whatever a call raises, only that call fails (behaviour 22).

``async def`` methods run in the loop; each of their steps is measured, so that the watchdog can name a handler that
blocks (fault 83). ``def`` methods run in threads. A simulated node, whose time is virtual, calls them in the loop,
because the order in which threads run cannot be reproduced.
"""

from __future__ import annotations

import inspect
import math
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from functools import partial
from typing import Any

import attrs
import trio
from grpclib.exceptions import GRPCError

from ...protocol.errors import HandlerAwayError, PluginError
from ...protocol.logs.lines import SILENT, Level, Logger
from ...protocol.messages.addresses import Address
from ...protocol.messages.status import StepBlocked
from ...protocol.plugins.info import Plugin
from ...protocol.plugins.status import Ending, Outcome
from ...protocol.values import record, value
from ...protocol.wire.outcomes import status_text
from ..io.clocks import time_is_virtual
from .errors import (
    MAX_ERROR,
    cause_of,
    closes_coroutine,
    is_cancelled,
    is_of_asyncio,
    log_failed_deregister,
    split,
    traceback_of,
    words_of,
)
from .handler import FOLLOW, METHODS, Handler, is_async, takes_link
from .link import Link


@types.coroutine
def measured(
    call: Coroutine[Any, Any, None], limit: float, blocked: Callable[[float], None]
) -> Generator[Any, Any, None]:
    """Await ``call``, and call ``blocked`` with the seconds of each step that took ``limit`` or longer."""
    value: Any = None
    error: BaseException | None = None
    while True:
        began = time.perf_counter()
        try:
            trap = call.send(value) if error is None else call.throw(error)
        except StopIteration:
            return
        finally:
            seconds = time.perf_counter() - began
            if seconds >= limit:
                blocked(seconds)
        try:
            value, error = (yield trap), None
        except BaseException as thrown:  # noqa: BLE001 - it is thrown into the call
            value, error = None, thrown


#: The prefix of the error that a plugin gets if the handler raised anything but a refusal.
BROKE = "the handler broke: "
#: The event of the log for it, which has the traceback.
HANDLER_BROKE = "handler broke"
#: What such an error says also if the handler waits for something of asyncio.
_NOT_ASYNCIO = " (a handler runs on Trio: use trio or anyio in the place of asyncio)"
#: Seconds that a cancelled call has to end before health and the log report it.
OVERDUE_AFTER = 5.0
MAX_THREADS = 16
#: A limiter of each handler counts its threads, including those that were given up.
_UNLIMITED = trio.CapacityLimiter(math.inf)
#: The scope of calls that end only with their task, such as each ``follow``. No task enters it.
_NEVER_CANCELLED = trio.CancelScope()


@value
class CallConfig:
    """The configuration of the calls of all handlers."""

    #: The default deadline of each call, in seconds, and the deadlines of handlers for certain types.
    timeout: float
    timeouts: Mapping[str, float] = attrs.field(factory=dict, kw_only=True)
    log: Logger = SILENT
    #: Receives a report of each step that took ``blocked_after`` seconds or longer; None for no reports.
    watchdog: Address[StepBlocked] | None = None
    blocked_after: float = 1.0
    #: Whether the program handles SIGINT itself, so that no KeyboardInterrupt comes from Ctrl-C.
    handles_sigint: bool = False

    def of_type(self, plugin_type: str) -> CallConfig:
        """Return the configuration of the calls of the handler for ``plugin_type``."""
        return attrs.evolve(self, timeout=self.timeouts.get(plugin_type, self.timeout))


_OK = Ending(Outcome.OK)


@record(eq=False)
class Thread:
    """A call of a ``def`` method, in a thread."""

    result: Any = None
    error: BaseException | None = None
    returned: trio.Event = attrs.Factory(trio.Event)
    #: Called when the thread returns, if the call ended earlier.
    when_returned: Callable[[], None] | None = None


@record(eq=False)
class MethodCall:
    """One call of a method of a handler."""

    plugin_type: str
    ask: str
    plugin: Plugin
    method: Callable[[Plugin], object]
    scope: trio.CancelScope
    is_async: bool
    #: The deadline, in seconds from the start of the call.
    timeout: float = math.inf
    thread: Thread | None = None

    def __str__(self) -> str:
        return f"{self.ask} of {self.plugin.name} ({self.plugin.socket}) in the handler for {self.plugin_type}"

    def when_over(self, action: Callable[[], None]) -> None:
        """Call ``action`` once the call and its thread have ended: now, or when a thread that was given up returns."""
        if self.thread is None or self.thread.returned.is_set():
            action()
        else:
            self.thread.when_returned = action


@attrs.define(eq=False)
class HandlerCalls:
    """Makes the calls of one handler."""

    handler: Handler
    config: CallConfig
    plugin_type: str
    _threads: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(MAX_THREADS))
    #: The methods that run in the loop. Finding that out for each call would take a microsecond.
    _async: frozenset[str] = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: _async_methods(self.handler), takes_self=True),
    )
    #: Whether ``register`` takes a link, and whether there is a method ``follow``.
    _register_takes_link: bool = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: takes_link(getattr(self.handler, "register", None)), takes_self=True),
    )
    follows: bool = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: getattr(self.handler, FOLLOW, None) is not None, takes_self=True),
    )
    #: The calls whose thread was given up and has not returned, each with the time when it was given up.
    _given_up: dict[MethodCall, float] = attrs.field(factory=dict)
    #: The calls that have not ended, oldest first. A call that was given up counts as ended.
    under_way: dict[MethodCall, None] = attrs.field(factory=dict)

    @property
    def wrong(self) -> str | None:
        """Describe the calls that go on although they should have ended; None if there are none."""
        if not self._given_up:
            return self._overdue
        call, since = next(iter(self._given_up.items()))
        more = f", and {len(self._given_up) - 1} more" if len(self._given_up) > 1 else ""
        return (
            f"{call.ask} of {call.plugin.name} was given up {trio.current_time() - since:.0f} s ago, its thread still "
            f"runs, and other calls for that name wait{more}"
        )

    @property
    def _overdue(self) -> str | None:
        """Describe the calls in the loop that go on after their deadlines (fault 82)."""
        now = trio.current_time()
        late = [call for call in self.under_way if call.scope.deadline + OVERDUE_AFTER <= now]
        if not late:
            return None
        call, more = late[0], f", and {len(late) - 1} more" if len(late) > 1 else ""
        return (
            f"{call.ask} of {call.plugin.name} was cancelled {now - call.scope.deadline:.0f} s ago and goes on, since"
            f" the handler keeps the cancellation to itself, and other calls for that name wait{more}"
        )

    @property
    def has_links(self) -> bool:
        """Whether the handler uses links, in ``follow`` or in ``register``."""
        return self.follows or self._register_takes_link

    def prepare(self, ask: str, plugin: Plugin, link: Link | None = None) -> MethodCall:
        """Return the call of the method named ``ask``; :meth:`make` makes it at once."""
        timeout = self.config.timeout
        scope = trio.CancelScope(deadline=trio.current_time() + timeout)
        method = getattr(self.handler, ask)
        if link is not None and self._register_takes_link:
            method = _with_link(method, link)
        return MethodCall(self.plugin_type, ask, plugin, method, scope, ask in self._async, timeout)

    def give(self, seconds: float) -> None:
        """Set the deadline of the calls that begin from now on, in seconds."""
        self.config = attrs.evolve(self.config, timeout=seconds)

    async def follow(self, plugin: Plugin, link: Link) -> str | None:
        """Call ``follow``, which has no deadline; return its error, or None if it returned."""
        method = _with_link(getattr(self.handler, FOLLOW), link)
        call = MethodCall(self.plugin_type, FOLLOW, plugin, method, _NEVER_CANCELLED, is_async=True)
        try:
            await self._run(call)
        except BaseException as error:  # noqa: BLE001 - see there
            ending = self._failed(call, error)
            return (ending.cause or ending.error)[:MAX_ERROR]
        return None

    async def make(self, call: MethodCall) -> Ending:
        """Make the call, which can be cancelled by its scope; return how it ended."""
        self.under_way[call] = None
        try:
            return await self._make(call)
        finally:
            del self.under_way[call]

    async def _make(self, call: MethodCall) -> Ending:
        scope = call.scope
        try:
            # Inside of the ``try``: a handler with a nursery can raise a group of its errors and this deadline's
            # Cancelled.
            with scope:
                await self._run(call)
        except BaseException as error:  # noqa: BLE001 - see there
            return self._failed(call, error)
        if scope.cancelled_caught:
            return Ending(Outcome.TIMED_OUT, self._timed_out(call))
        return _OK

    def _failed(self, call: MethodCall, error: BaseException) -> Ending:
        """Return the ending for an error that concerns only this plugin; raise any other error."""
        if isinstance(error, PluginError | GRPCError):
            return self._refused(call, error)
        if isinstance(error, Exception):
            return self._broken(call, error)
        if closes_coroutine(error):
            raise error
        return self._end_badly(call, error)

    def _refused(self, call: MethodCall, error: PluginError | GRPCError) -> Ending:
        if isinstance(error, PluginError):
            away = isinstance(error, HandlerAwayError)
            ending = Ending(Outcome.FAILED if away else Outcome.REFUSED, words_of(error), cause_of(error), away)
        else:
            # Usually this is the plugin's answer to a call that the handler made.
            ending = Ending(Outcome.FAILED, status_text(error))
        if call.ask == "deregister" and not ending.away:
            plugin = call.plugin
            log_failed_deregister(self.config.log, plugin.type, plugin.name, plugin.socket, ending.error)
        return ending

    def _end_badly(self, call: MethodCall, error: BaseException) -> Ending:
        """Return the ending for an error that would end a task or a program; raise it if the handler is not its source.

        A Cancelled is the handler's if no scope around the call is cancelled: the handler kept it, or left its scope
        open.
        """
        if is_cancelled():
            cancelled, own = split(error, trio.Cancelled)
            if cancelled is not None:
                if own is not None:
                    self._broken(call, own)
                raise cancelled
        if self._may_be_ctrl_c(call) and split(error, KeyboardInterrupt)[0] is not None:
            self._log(call, "handler interrupted", error)
            raise error
        return self._broken(call, error)

    def _may_be_ctrl_c(self, call: MethodCall) -> bool:
        """Whether a KeyboardInterrupt may come from Python, which raises it only in the main thread."""
        in_thread = call.thread is not None and call.thread.error is not None
        return not self.config.handles_sigint and not in_thread

    async def _run(self, call: MethodCall) -> None:
        result: Any
        if call.is_async:
            result = call.method(call.plugin)
        elif time_is_virtual():
            await trio.lowlevel.checkpoint()
            result = call.method(call.plugin)
        else:
            result = await self._run_in_thread(call)
        # A ``def`` function can return a coroutine, for example if a decorator wraps an ``async def``.
        if inspect.iscoroutine(result):
            await self._measured(call, result)
        elif inspect.isawaitable(result):
            await result

    def _measured(self, call: MethodCall, coroutine: Coroutine[Any, Any, None]) -> Awaitable[None]:
        if self.config.watchdog is None:
            return coroutine
        return measured(coroutine, self.config.blocked_after, partial(self._report_blocked, call.ask, call.plugin))

    def _report_blocked(self, ask: str, plugin: Plugin, seconds: float) -> None:
        if self.config.watchdog is not None:
            self.config.watchdog.send_nowait(StepBlocked(self.plugin_type, ask, plugin, seconds))

    async def _run_in_thread(self, call: MethodCall) -> Any:
        await self._threads.acquire_on_behalf_of(call)
        thread = call.thread = Thread()
        # The task is separate, so that it goes on when the call is given up.
        trio.lowlevel.spawn_system_task(self._serve_thread, call, thread)
        try:
            await thread.returned.wait()
        except trio.Cancelled:
            # The thread can return after the cancellation.
            if not thread.returned.is_set():
                self._given_up[call] = trio.current_time()
            raise
        if thread.error is not None:
            raise thread.error
        return thread.result

    async def _serve_thread(self, call: MethodCall, thread: Thread) -> None:
        def run() -> None:
            try:
                # The result is not returned, because Trio refuses a coroutine, which a decorated method can return.
                thread.result = call.method(call.plugin)
            except BaseException as error:  # noqa: BLE001 - the call raises it; here it would end the whole program
                thread.error = error

        try:
            await trio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=_UNLIMITED)
        except Exception as error:  # noqa: BLE001 - the call raises it
            thread.error = error  # No thread could be started.
        finally:
            self._threads.release_on_behalf_of(call)
            self._given_up.pop(call, None)
            thread.returned.set()
            if thread.when_returned is not None:
                thread.when_returned()

    def _timed_out(self, call: MethodCall) -> str:
        if call.thread is None and not call.is_async and self._given_up:
            return f"all {MAX_THREADS} threads of the handler were busy for {call.timeout:g} s"
        return f"the handler did not finish in {call.timeout:g} s"

    def _broken(self, call: MethodCall, error: BaseException) -> Ending:
        return Ending(Outcome.BROKEN, f"{BROKE}{self._log(call, HANDLER_BROKE, error)}")

    def _log(self, call: MethodCall, message: str, error: BaseException) -> str:
        """Log an error with its call; return its text."""
        words = f"{type(error).__name__}: {words_of(error)}"
        if is_of_asyncio(error):
            words += _NOT_ASYNCIO
        self.config.log.event(
            Level.ERROR,
            message,
            type=call.plugin_type,
            name=call.plugin.name,
            socket=call.plugin.socket,
            call=call.ask,
            error=words[:MAX_ERROR],
            traceback=traceback_of(error),
        )
        return words


def _with_link(method: Callable[..., object], link: Link) -> Callable[[Plugin], object]:
    return lambda plugin: method(plugin, link)


def _async_methods(handler: Handler) -> frozenset[str]:
    return frozenset(name for name in METHODS if is_async(getattr(handler, name, None)))
