"""The handler actor: one per plugin type, between registrations and a handler that a user may have written.

Per plugin name it makes one call at a time, in the order asked (behaviour 21); different names run side by side. A
call that raises, hangs or is slow is that plugin's failure alone (behaviour 22, faults 81 and 82): every ask is
answered, at the deadline at the latest.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol, assert_never

import trio

from plugind.protocol import messages as m
from plugind.protocol.errors import PluginError
from plugind.protocol.plugins import InstancePolicy, Plugin
from plugind.protocol.status import Outcome

#: Characters of a handler's error that are kept (fault 94).
MAX_ERROR = 1024


class Handler(Protocol):
    """The consumer of one plugin type. Write a class with these three methods; that is all that is needed.

    For each instance (``plugin.socket``, ``plugin.generation``) the calls come in the order validate, register,
    deregister; deregister comes exactly once for each register that was called, even one that raised. Per name one
    call runs at a time. Each has a deadline (``Timeouts.handler``), at which it is cancelled.

    A class may also have an attribute ``instances``, an :class:`~plugind.protocol.plugins.InstancePolicy`: what holds
    when several sockets bring one name. Without it, all are registered and the newest is active.
    """

    async def validate(self, plugin: Plugin) -> None:
        """Raise if the plugin is not acceptable; the text of the error is told to the plugin."""

    async def register(self, plugin: Plugin) -> None:
        """Take the plugin into service; an error is told to the plugin, and deregister follows."""

    async def deregister(self, plugin: Plugin) -> None:
        """Let the plugin go; its socket is gone, or a newer one is in its place."""


def policy_of(handler: Handler) -> InstancePolicy:
    """Return the policy that ``handler`` names, or the default."""
    policy = getattr(handler, "instances", InstancePolicy.NEWEST)
    if not isinstance(policy, InstancePolicy):
        raise TypeError(f"{type(handler).__name__}.instances is {policy!r}; make it an InstancePolicy")
    return policy


async def run(handler: Handler, inbox: trio.MemoryReceiveChannel[m.HandlerMessage], timeout: float) -> None:
    """Serve asks until the inbox is closed; ``timeout`` is the deadline of each call, in seconds."""
    lanes: dict[str, deque[m.HandlerMessage]] = {}
    async with trio.open_nursery() as nursery:
        async for ask in inbox:
            lane = lanes.get(ask.plugin.name)
            if lane is None:
                lanes[ask.plugin.name] = deque([ask])
                nursery.start_soon(_serve, handler, lanes, ask.plugin.name, timeout)
            else:
                lane.append(ask)


async def _serve(handler: Handler, lanes: dict[str, deque[m.HandlerMessage]], name: str, timeout: float) -> None:
    lane = lanes[name]
    while lane:
        ask = lane[0]
        outcome, error = await _contain(handler, ask, timeout)
        ask.reply.send_nowait(m.HandlerAnswered(ask.ticket, outcome, error[:MAX_ERROR]))
        lane.popleft()
    del lanes[name]


async def _call(handler: Handler, ask: m.HandlerMessage) -> None:
    match ask:
        case m.Validate():
            await handler.validate(ask.plugin)
        case m.Register():
            await handler.register(ask.plugin)
        case m.Deregister():
            await handler.deregister(ask.plugin)
        case _:
            assert_never(ask)


async def _contain(handler: Handler, ask: m.HandlerMessage, timeout: float) -> tuple[Outcome, str]:
    """The one place where code that we did not write may fail as it likes."""
    try:
        # Inside: a handler with a nursery may end in a group of errors and of the Cancelled of this deadline.
        with trio.move_on_after(timeout) as scope:
            await _call(handler, ask)
    except PluginError as error:
        return Outcome.REFUSED, str(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a handler's error is its plugin's failure alone
        return Outcome.FAILED, f"{type(error).__name__}: {error}"
    except BaseExceptionGroup as group:
        if group.subgroup((trio.Cancelled, KeyboardInterrupt)) is not None:
            raise
        return Outcome.FAILED, f"{type(group).__name__}: {group}"
    if scope.cancelled_caught:
        return Outcome.TIMED_OUT, f"the handler did not finish in {timeout:g} s"
    return Outcome.OK, ""
