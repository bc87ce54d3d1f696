"""Reports wait rather than get lost, and the bell of a registration actor rings for what it was armed for."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.mailbox import RegistrationInbox, report
from plugind.protocol import messages as m

VANISHED = m.SocketVanished("/reg/a.sock", 1)
FREED = m.NameFreed()


def vanishes(message: m.RegistrationMessage) -> bool:
    return isinstance(message, m.SocketVanished)


async def test_a_report_to_a_full_inbox_waits_and_is_not_lost(nursery: trio.Nursery) -> None:
    """Fault 86."""
    send, receive = trio.open_memory_channel[int](1)
    await report(send, 1)
    nursery.start_soon(report, send, 2)
    await wait_all_tasks_blocked()

    assert [await receive.receive(), await receive.receive()] == [1, 2]


async def test_the_bell_ends_the_call_under_way_and_the_message_is_still_to_be_read(autojump_clock: MockClock) -> None:
    inbox = RegistrationInbox()
    with trio.CancelScope() as scope:
        inbox.arm(scope, vanishes)
        inbox.send_nowait(VANISHED)
        await trio.sleep_forever()

    assert scope.cancelled_caught
    assert await inbox.receive() == VANISHED
    with pytest.raises(trio.WouldBlock):
        inbox.receive_nowait()


async def test_a_message_that_the_rule_does_not_name_ends_nothing(autojump_clock: MockClock) -> None:
    inbox = RegistrationInbox()
    with trio.CancelScope() as scope:
        inbox.arm(scope, vanishes)
        inbox.send_nowait(FREED)
        await trio.sleep(1)

    assert not scope.cancel_called
    assert inbox.receive_nowait() == FREED


async def test_a_bell_that_was_disarmed_or_never_armed_does_not_ring() -> None:
    inbox = RegistrationInbox()
    inbox.send_nowait(FREED)
    scope = trio.CancelScope()
    inbox.arm(scope, vanishes)
    inbox.disarm()
    inbox.send_nowait(VANISHED)

    assert not scope.cancel_called
    assert [inbox.receive_nowait(), inbox.receive_nowait()] == [FREED, VANISHED]
