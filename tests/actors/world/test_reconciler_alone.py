"""The task of the reconciler by itself: its first report, what it forgets, and when it ends."""

from __future__ import annotations

import math
from typing import cast

import attrs
import trio

from plugind.actors.world import reconciler
from plugind.protocol.identity import Identity
from plugind.protocol.messages.discovery import SocketAppeared
from plugind.protocol.messages.reconciler import (
    HandlerAdded,
    HandlerPort,
    ReconcilerMessage,
    RegistrationEnded,
    StopAsked,
)
from plugind.protocol.messages.status import HandlersChanged, StatusMessage
from plugind.protocol.plugins.info import InstancePolicy
from plugind.protocol.world import worlds as world


@attrs.define(eq=False)
class Sink:
    """An address that records its messages."""

    got: list[object] = attrs.Factory(list)

    def send_nowait(self, message: object, /) -> None:
        self.got.append(message)


def retire(_: world.HandlerRetired) -> None:
    """Do nothing: no handler is removed in these tests."""


def appeared(path: str) -> SocketAppeared:
    return SocketAppeared(path, 1, Identity(1, 1, 1), "/r", 0.0)


async def test_the_reconciler_reports_its_handlers_first_and_ends_with_the_last_registration() -> None:
    """Behaviour 42, fault 85: a restarted reconciler reports its handlers again."""
    send, inbox = trio.open_memory_channel[ReconcilerMessage](math.inf)
    status, shown = trio.open_memory_channel[StatusMessage](math.inf)
    actor, handler = Sink(), cast("HandlerPort", Sink())
    spawned: list[world.StartRegistration] = []

    def spawn(start: world.StartRegistration) -> Sink:
        spawned.append(start)
        return actor

    added = HandlerAdded("T", handler, InstancePolicy.ALL)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                await reconciler.run(inbox, status, spawn, retire, {}, (added,))

            nursery.start_soon(run)
            assert await shown.receive() == HandlersChanged(("T",))
            send.send_nowait(appeared("/r/a"))
            await trio.testing.wait_all_tasks_blocked()
            send.send_nowait(StopAsked())
            await trio.testing.wait_all_tasks_blocked()
            assert ([start.appeared for start in spawned], actor.got) == ([appeared("/r/a")], [StopAsked()])
            send.send_nowait(RegistrationEnded("/r/a", crashed=False))
    assert shown.statistics().current_buffer_used == 0
