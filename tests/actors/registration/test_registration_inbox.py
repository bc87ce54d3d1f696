"""The inbox of a registration: its rule serves messages in the sender's task, and the others keep their order."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.registration.inbox import RegistrationInbox
from plugind.protocol.messages.discovery import SocketVanished
from plugind.protocol.messages.registration import NameFreed, RegistrationMessage

VANISHED = SocketVanished("/reg/a.sock", 1)
FREED = NameFreed()


async def test_a_message_that_the_rule_serves_is_served_in_the_task_of_its_sender_and_wakes_nobody() -> None:
    inbox, served = RegistrationInbox(), list[tuple[trio.lowlevel.Task, RegistrationMessage]]()

    def rule(message: RegistrationMessage) -> bool:
        served.append((trio.lowlevel.current_task(), message))
        return isinstance(message, NameFreed)

    async def read() -> None:
        await inbox.arrival()

    inbox.rule = rule
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        inbox.send_nowait(FREED)
        await wait_all_tasks_blocked()
        assert (len(nursery.child_tasks), inbox.waiting) == (1, 0)
        inbox.send_nowait(VANISHED)
    own = trio.lowlevel.current_task()
    assert served == [(own, FREED), (own, VANISHED)]
    assert inbox.receive_nowait() is VANISHED


async def test_a_rule_may_cancel_what_the_actor_does_and_leave_the_message_in_the_inbox() -> None:
    inbox = RegistrationInbox()
    with trio.CancelScope() as scope:

        def rule(message: RegistrationMessage) -> bool:
            scope.cancel()
            return False

        inbox.rule = rule
        inbox.send_nowait(VANISHED)
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert inbox.receive_nowait() is VANISHED


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
