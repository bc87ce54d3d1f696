"""Reports are never lost, a message interrupts the right call, and a wait ends at its deadline."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.mailbox import RegistrationInbox, Wait, report
from plugind.protocol import messages as m

VANISHED = m.SocketVanished("/reg/a.sock", 1)
FREED = m.NameFreed()


def vanishes(message: m.RegistrationMessage) -> bool:
    return isinstance(message, m.SocketVanished)


async def answer() -> str:
    """Return at once."""
    return "answer"


async def last(seconds: float) -> None:
    """Take ``seconds``."""
    await trio.sleep(seconds)


async def send_after(seconds: float, inbox: RegistrationInbox, message: m.RegistrationMessage) -> None:
    await trio.sleep(seconds)
    inbox.send_nowait(message)


async def test_a_report_to_a_full_inbox_waits_and_is_not_lost(nursery: trio.Nursery) -> None:
    """Fault 86."""
    send, receive = trio.open_memory_channel[int](1)
    await report(send, 1)
    nursery.start_soon(report, send, 2)
    await wait_all_tasks_blocked()

    assert [await receive.receive(), await receive.receive()] == [1, 2]


# --- the inbox --------------------------------------------------------------------------------------------------------


async def test_a_message_that_interrupts_cancels_the_call_and_stays_in_the_inbox(autojump_clock: MockClock) -> None:
    inbox = RegistrationInbox()
    with trio.CancelScope() as scope:
        inbox.interrupt_on(vanishes, scope)
        inbox.send_nowait(VANISHED)
        await trio.sleep_forever()

    assert scope.cancelled_caught
    assert inbox.interrupt_off()
    assert inbox.receive_nowait() == VANISHED
    with pytest.raises(trio.WouldBlock):
        inbox.receive_nowait()


async def test_a_message_that_does_not_match_the_rule_cancels_nothing(autojump_clock: MockClock) -> None:
    inbox = RegistrationInbox()
    with trio.CancelScope() as scope:
        inbox.interrupt_on(vanishes, scope)
        inbox.send_nowait(FREED)
        await trio.sleep(1)

    assert not scope.cancel_called
    assert not inbox.interrupt_off()
    assert inbox.receive_nowait() == FREED


async def test_a_message_cancels_nothing_before_interrupts_are_on_and_after_they_are_off() -> None:
    inbox = RegistrationInbox()
    inbox.send_nowait(VANISHED)
    scope = trio.CancelScope()
    inbox.interrupt_on(vanishes, scope)
    assert not inbox.interrupt_off()
    inbox.send_nowait(VANISHED)

    assert not scope.cancel_called
    assert [inbox.receive_nowait(), inbox.receive_nowait()] == [VANISHED, VANISHED]


async def test_the_inbox_counts_its_messages() -> None:
    inbox = RegistrationInbox()
    assert inbox.waiting == 0
    counts: list[int] = []
    for _ in range(3):
        inbox.send_nowait(FREED)
        counts.append(inbox.waiting)
    inbox.receive_nowait()
    counts.append(inbox.waiting)
    await inbox.arrival()
    counts.append(inbox.waiting)
    inbox.receive_nowait()
    inbox.receive_nowait()
    counts.append(inbox.waiting)
    assert counts == [1, 2, 3, 2, 2, 0]

    with pytest.raises(trio.WouldBlock):
        inbox.receive_nowait()
    assert inbox.waiting == 0


async def test_messages_that_come_before_their_reader_runs_wake_it_once_and_keep_their_order() -> None:
    inbox = RegistrationInbox()
    woken = 0

    async def read() -> None:
        nonlocal woken
        await inbox.arrival()
        woken += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        inbox.send_nowait(VANISHED)
        inbox.send_nowait(FREED)
        assert woken == 0
    assert (woken, inbox.waiting) == (1, 2)
    assert [inbox.receive_nowait(), inbox.receive_nowait()] == [VANISHED, FREED]


async def test_a_wait_for_a_message_that_was_cancelled_is_woken_by_none(autojump_clock: MockClock) -> None:
    inbox = RegistrationInbox()
    with trio.move_on_after(1) as scope:
        await inbox.arrival()
    assert scope.cancelled_caught
    inbox.send_nowait(FREED)
    # A wake-up that came too late would end this sleep.
    before = trio.current_time()
    await trio.sleep(5)
    assert trio.current_time() - before == 5
    assert inbox.receive_nowait() == FREED


async def test_a_wait_for_a_message_that_is_there_lets_others_run_and_can_be_cancelled() -> None:
    inbox = RegistrationInbox()
    inbox.send_nowait(FREED)
    with trio.CancelScope() as scope:
        scope.cancel()
        await inbox.arrival()
    assert scope.cancelled_caught
    await inbox.arrival()
    assert inbox.waiting == 1


# --- a wait -----------------------------------------------------------------------------------------------------------


async def test_a_wait_for_a_message_ends_at_its_deadline(autojump_clock: MockClock) -> None:
    wait = Wait(RegistrationInbox())
    wait.deadline = trio.current_time() + 5
    with wait.renew() as scope:
        await wait.for_message()

    assert scope.cancelled_caught
    assert trio.current_time() == wait.deadline
    assert wait.timed_out()


async def test_a_message_before_the_deadline_ends_the_wait_and_not_the_scope(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    inbox = RegistrationInbox()
    wait = Wait(inbox)
    wait.deadline = trio.current_time() + 5
    nursery.start_soon(send_after, 4.0, inbox, FREED)
    with wait.renew() as scope:
        assert await wait.for_message() == FREED

    assert not scope.cancel_called
    assert not wait.timed_out()


async def test_a_call_ends_at_its_deadline(autojump_clock: MockClock) -> None:
    wait = Wait(RegistrationInbox())
    wait.deadline = trio.current_time() + 5
    with wait.renew() as scope:
        await wait.for_call(last(math.inf), vanishes)

    assert scope.cancelled_caught
    assert trio.current_time() == wait.deadline
    assert wait.timed_out()


async def test_a_message_that_interrupts_ends_the_call_before_its_deadline(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    inbox = RegistrationInbox()
    wait = Wait(inbox)
    began = trio.current_time()
    wait.deadline = began + 5
    nursery.start_soon(send_after, 1.0, inbox, FREED)
    nursery.start_soon(send_after, 2.0, inbox, VANISHED)
    with wait.renew() as scope:
        await wait.for_call(last(math.inf), vanishes)

    assert scope.cancelled_caught
    assert trio.current_time() == began + 2
    assert not wait.timed_out()
    with wait.renew():
        assert [await wait.for_message(), await wait.for_message()] == [FREED, VANISHED]


async def test_an_interrupt_while_the_call_returns_uses_up_the_scope(autojump_clock: MockClock) -> None:
    """The outcome of the call is kept, and the next wait uses a fresh scope."""
    inbox = RegistrationInbox()
    wait = Wait(inbox)

    async def answer_late() -> str:
        inbox.send_nowait(VANISHED)
        return "answer"

    with wait.renew():
        assert not wait.is_used_up(trio.current_time())
        assert await wait.for_call(answer_late(), vanishes) == "answer"
        assert wait.is_used_up(trio.current_time())
    with wait.renew() as scope:
        assert not wait.is_used_up(trio.current_time())
        assert await wait.for_message() == VANISHED
    assert not scope.cancel_called


async def test_a_message_after_the_call_does_not_interrupt(autojump_clock: MockClock) -> None:
    inbox = RegistrationInbox()
    wait = Wait(inbox)
    with wait.renew() as scope:
        assert await wait.for_call(answer(), vanishes) == "answer"
        inbox.send_nowait(VANISHED)
        assert not wait.is_used_up(trio.current_time())
        assert await wait.for_message() == VANISHED
    assert not scope.cancel_called


async def test_a_scope_is_used_up_once_its_deadline_has_passed() -> None:
    wait = Wait(RegistrationInbox())
    with wait.renew():
        wait.deadline = trio.current_time() + 5
        await wait.for_call(answer(), vanishes)
        assert not wait.is_used_up(wait.deadline - 0.001)
        assert wait.is_used_up(wait.deadline)


async def test_one_scope_serves_many_waits_each_with_its_own_deadline(autojump_clock: MockClock) -> None:
    wait = Wait(RegistrationInbox())
    began = trio.current_time()
    with wait.renew() as scope:
        wait.deadline = began + 10
        await wait.for_call(last(1), vanishes)
        wait.deadline = began + 20
        await wait.for_call(last(11), vanishes)
        wait.deadline = began + 15
        await wait.for_message()

    assert scope.cancelled_caught
    assert trio.current_time() == began + 15
    assert wait.timed_out()


async def test_the_old_deadline_of_a_call_does_not_end_a_wait(autojump_clock: MockClock) -> None:
    """It ends the scope too early, and the wait continues in a new one."""
    wait = Wait(RegistrationInbox())
    began = trio.current_time()
    with wait.renew() as scope:
        wait.deadline = began + 1
        await wait.for_call(answer(), vanishes)
        wait.deadline = began + 10
        await wait.for_message()
    assert scope.cancelled_caught
    assert trio.current_time() == began + 1
    assert not wait.timed_out()

    with wait.renew():
        await wait.for_message()
    assert trio.current_time() == began + 10
    assert wait.timed_out()


async def test_a_wait_without_a_deadline_gets_no_spurious_wake_up(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Even the old deadline of a call on the same scope does not wake it."""
    inbox = RegistrationInbox()
    wait = Wait(inbox)
    nursery.start_soon(send_after, 100.0, inbox, FREED)
    with wait.renew() as scope:
        wait.deadline = trio.current_time() + 1
        await wait.for_call(answer(), vanishes)
        wait.deadline = math.inf
        assert await wait.for_message() == FREED
    assert not scope.cancel_called


async def test_a_report_to_a_full_inbox_outlives_the_deadline_of_the_last_wait(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Fault 86."""
    send, receive = trio.open_memory_channel[int](0)
    wait = Wait(RegistrationInbox())
    received: list[int] = []

    async def receive_late() -> None:
        await trio.sleep(5)
        received.extend((await receive.receive(), await receive.receive()))

    nursery.start_soon(receive_late)
    with wait.renew() as scope:
        wait.deadline = trio.current_time() + 1
        await wait.for_call(answer(), vanishes)
        wait.send(send, 1)
        wait.send(send, 2)
        await wait.until_sent()
        await wait_all_tasks_blocked()
    assert not scope.cancel_called
    assert received == [1, 2]
    assert not wait.unsent


async def test_a_report_does_not_overtake_one_that_found_no_room(autojump_clock: MockClock) -> None:
    send, receive = trio.open_memory_channel[int](2)
    wait = Wait(RegistrationInbox())
    with wait.renew():
        for number in (1, 2, 3):
            wait.send(send, number)
        assert [receive.receive_nowait(), receive.receive_nowait()] == [1, 2]
        wait.send(send, 4)
        assert wait.unsent
        await wait.until_sent()
    assert not wait.unsent
    assert [receive.receive_nowait(), receive.receive_nowait()] == [3, 4]
