"""The reports of a registration actor, message by message, without a node."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from plugind.actors.grpc.client.dial import Judge
from plugind.actors.grpc.client.registration_channel import RegistrationChannel
from plugind.actors.grpc.endpoints import Endpoints, RealEndpointFiles
from plugind.actors.registration import actor
from plugind.actors.registration.config import RegistrationConfig
from plugind.actors.registration.conversation import ConversationConfig
from plugind.actors.registration.dial_slots import DialSlots
from plugind.actors.registration.inbox import RegistrationInbox
from plugind.actors.registration.timers import TryTimers
from plugind.actors.simulation.faults import PoisonMessage
from plugind.protocol.backoff import Backoff
from plugind.protocol.errors import IllegalStepError
from plugind.protocol.identity import Identity
from plugind.protocol.messages.liveness import LivenessMessage, UnwatchLiveness, WatchLiveness
from plugind.protocol.messages.reconciler import ListenerChanged, ReconcilerMessage, ReportAsked
from plugind.protocol.messages.registration import ListenerFound
from plugind.protocol.messages.status import StateChanged, StatusMessage
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import Ending, Finished, Operation, Outcome, StateName
from plugind.protocol.registration.crashes import Crash
from plugind.protocol.registration.settings import RegistrationSettings
from plugind.protocol.wire.errors import DialError, DialFailure
from plugind.protocol.world.effects import PendingDeregistration
from plugind.tests.protocol.sockets import INFO, SOCKET, Nowhere, appeared, vanished


class Asked(Nowhere):
    """A handler that only deregisters; the test decides when and how that ends."""

    def __init__(self) -> None:
        self.answer, self._answered = trio.open_memory_channel[Ending](1)

    async def deregister(self, plugin: Plugin) -> Ending:
        return await self._answered.receive()


@attrs.frozen
class Rig:
    inbox: RegistrationInbox
    shown: trio.MemoryReceiveChannel[StatusMessage]
    watched: trio.MemoryReceiveChannel[LivenessMessage]
    reconciled: trio.MemoryReceiveChannel[ReconcilerMessage]

    def listeners(self) -> list[ReconcilerMessage]:
        """Return what the reconciler was told about who listens since the last call."""
        told = [self.reconciled.receive_nowait() for _ in range(self.reconciled.statistics().current_buffer_used)]
        return [message for message in told if isinstance(message, ListenerChanged)]

    def said(self) -> list[tuple[StateName, str | None, tuple[Finished, ...]]]:
        """Return what the actor has reported since the last call: state, reason, and the operation that ended."""
        said = []
        while self.shown.statistics().current_buffer_used:
            change = self.shown.receive_nowait()
            assert isinstance(change, StateChanged)
            said.append((change.state, change.reason, change.finished))
        return said


@asynccontextmanager
async def running(handler: Asked | None = None, failure: DialFailure = DialFailure.TIMED_OUT) -> AsyncIterator[Rig]:
    """Run an actor whose dials fail after two seconds; with a ``handler``, a deregistration is pending."""

    async def refuse(
        path: str, *, identity: Identity, root: str, timeout: float, refused_grace: float, judge: Judge
    ) -> RegistrationChannel:
        await trio.sleep(2)
        raise DialError(failure, path, "too slow")

    status, shown = trio.open_memory_channel[StatusMessage](math.inf)
    reconciler, reconciled = trio.open_memory_channel[ReconcilerMessage](math.inf)
    liveness, watched = trio.open_memory_channel[LivenessMessage](math.inf)
    timers = TryTimers()
    config = RegistrationConfig(
        ConversationConfig(refuse, DialSlots(), Endpoints(RealEndpointFiles(), ())),
        RegistrationSettings(backoff=Backoff(jitter=0.0)),
        0,
        reconciler,
        liveness,
        status,
        timers,
    )
    inbox = RegistrationInbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.serve)
        pending = None if handler is None else PendingDeregistration(INFO, 1, handler)
        crash = None if handler is None else Crash(1, "Oops")
        nursery.start_soon(actor.run, config, inbox, appeared(), pending, crash)
        yield Rig(inbox, shown, watched, reconciled)
        nursery.cancel_scope.cancel()


REFUSED = f"RegisterPlugin error -- dial failed at socket {SOCKET}, err: too slow"


async def test_the_wait_for_the_end_of_a_deregister_has_no_deadline(autojump_clock: MockClock) -> None:
    """Fault 84, seed 448: many calls of the same name may precede it, each with a deadline of its own."""
    handler = Asked()
    async with running(handler) as rig:
        await trio.sleep(10 * 120)
        assert rig.said() == [(StateName.LEAVING, "its actor crashed", ())]
        handler.answer.send_nowait(Ending(Outcome.FAILED, "no"))
        await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        waiting = (StateName.WAITING, "internal error: Oops", (Finished(Operation.DEREGISTER, Outcome.FAILED, 1200.0),))
        assert rig.said() == [waiting]


async def test_an_actor_that_is_asked_for_a_report_sends_its_last_one_without_the_operation_that_ended(
    autojump_clock: MockClock,
) -> None:
    """Fault 85: a restarted status actor asks for reports, and must not count an operation twice."""
    async with running() as rig:
        await trio.sleep(2.2)
        assert rig.said() == [
            (StateName.DIALING, None, ()),
            (StateName.WAITING, REFUSED, (Finished(Operation.DIAL, Outcome.TIMED_OUT, 2.0),)),
        ]
        rig.inbox.send_nowait(ReportAsked())
        await trio.testing.wait_all_tasks_blocked()
        assert rig.said() == [(StateName.WAITING, REFUSED, ())]
        await trio.sleep(0.4)
        assert rig.said() == [(StateName.DIALING, None, ())]


async def test_a_socket_is_watched_while_it_is_stale_and_no_longer_and_again_after_a_report(
    autojump_clock: MockClock,
) -> None:
    """Behaviour 15, fault 85: a liveness actor that starts again asks for the report."""
    async with running(failure=DialFailure.REFUSED) as rig:
        await trio.sleep(2.2)
        socket = appeared()
        stale = WatchLiveness(SOCKET, 1, rig.inbox, registered=False, identity=socket.identity, root=socket.root)
        assert rig.watched.receive_nowait() == stale
        # A life of the plugin ends with its listener (fault 49).
        assert rig.listeners() == [ListenerChanged(SOCKET, 1, listening=False)]
        rig.inbox.send_nowait(ReportAsked())
        await trio.testing.wait_all_tasks_blocked()
        assert rig.watched.receive_nowait() == stale
        # It is dialed by backoff, and refuses again: it is watched on.
        await trio.sleep(3.0)
        assert [state for state, _, _ in rig.said()][-3:] == [StateName.STALE, StateName.DIALING, StateName.STALE]
        assert rig.watched.statistics().current_buffer_used == 0
        # The look that woke it was the last one.
        rig.inbox.send_nowait(ListenerFound(SOCKET, 1))
        await trio.sleep(2.2)
        assert rig.watched.receive_nowait() == stale
        rig.inbox.send_nowait(vanished())
        await trio.testing.wait_all_tasks_blocked()
        assert rig.watched.receive_nowait() == UnwatchLiveness(SOCKET)
        with pytest.raises(trio.WouldBlock):
            rig.watched.receive_nowait()


async def test_a_socket_whose_registration_crashes_is_watched_no_more(autojump_clock: MockClock) -> None:
    """Fault 85: there may be no successor that would say so."""
    with pytest.RaisesGroup(pytest.RaisesExc(IllegalStepError, match="PoisonMessage")):
        async with running(failure=DialFailure.REFUSED) as rig:
            await trio.sleep(2.2)
            rig.watched.receive_nowait()
            rig.inbox.send_nowait(PoisonMessage())  # type: ignore[arg-type]  # as the test kit crashes it
            await trio.testing.wait_all_tasks_blocked()
    assert rig.watched.receive_nowait() == UnwatchLiveness(SOCKET)
