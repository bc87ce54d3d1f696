"""Conversations in which the plugin reads nothing: they delay no newcomer, and go first when descriptors run short."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio
from trio.testing import MockClock

from plugind.actors.registration.dial_slots import PAUSE, DialSlot, DialSlots
from plugind.protocol.backoff import Backoff
from plugind.protocol.registration.info_deadline import FIRST_LOOK

_DIAL = 10.0
_BACKOFF = Backoff(jitter=0.0)


@attrs.define(eq=False)
class Conversation:
    """A conversation with a plugin that reads nothing, unless ``idle`` is made false."""

    name: str = ""
    idle: bool = True
    closed: trio.Event = attrs.Factory(trio.Event)
    #: Called when it is closed.
    ended: Callable[[], None] = lambda: None

    def close_idle(self) -> None:
        self.closed.set()
        self.ended()


async def begun(slots: DialSlots, name: str, *, retry: bool = False) -> tuple[DialSlot, Conversation]:
    """Return the slot and the conversation of a plugin that is found to read nothing."""
    slot, conversation = await slots.acquire(retry=retry), Conversation(name)
    slot.expire()
    slot.note_idle(conversation)
    return slot, conversation


def closed(*conversations: Conversation) -> str:
    return " ".join(conversation.name for conversation in conversations if conversation.closed.is_set())


@attrs.define
class Sockets:
    """Sockets whose processes listen and never read, dialed as registrations dial them."""

    slots: DialSlots
    open: int = 0
    most_open: int = 0
    closed: int = 0

    async def dial(self, number: int) -> None:
        attempt = 0
        while True:
            slot, conversation = await self.slots.acquire(retry=attempt > 0), Conversation(ended=self.end)
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            await trio.sleep(FIRST_LOOK)
            slot.expire()
            slot.note_idle(conversation)
            with trio.move_on_after(_DIAL - FIRST_LOOK):
                await conversation.closed.wait()
            if conversation.closed.is_set():
                self.closed += 1
            else:
                self.end()
            slot.release()
            attempt += 1
            # A different moment for each, as jitter has it.
            await trio.sleep(_BACKOFF.delay(attempt) + number / 100_000)

    def end(self) -> None:
        self.open -= 1


async def seconds_to_dial(slots: DialSlots) -> float:
    began = trio.current_time()
    (await slots.acquire()).release()
    return round(trio.current_time() - began, 6)


async def test_a_newcomer_among_5000_sockets_that_are_never_read_waits_a_tenth_of_a_second_at_most(
    autojump_clock: MockClock,
) -> None:
    """Faults 32 and 47: also while fewer conversations may be open than there are sockets."""
    slots = DialSlots(most_open=lambda: 2000)
    sockets, delays = Sockets(slots), list[float]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.run)
        for number in range(5000):
            nursery.start_soon(sockets.dial, number)
        for _ in range(150):
            await trio.sleep(0.137)
            delays.append(await seconds_to_dial(slots))
        nursery.cancel_scope.cancel()
    assert max(delays) <= 0.1
    assert sockets.closed > 3000
    assert sockets.most_open <= 2000


async def test_the_idle_conversations_of_retries_are_closed_first_and_of_each_kind_the_oldest() -> None:
    slots = DialSlots(most_open=lambda: 8)
    a, b = [(await begun(slots, name))[1] for name in "ab"]
    c, d = [(await begun(slots, name, retry=True))[1] for name in "cd"]
    order = list[str]()
    while slots.close_idle():
        order.append(closed(a, b, c, d))
    assert order == ["c", "c d", "a c d", "a b c d"]


async def test_a_conversation_that_goes_on_is_not_closed() -> None:
    """What was read since the last look, was said, or is over counts."""
    slots = DialSlots()
    _, has_read = await begun(slots, "has read")
    has_read.idle = False
    heard_slot, _ = await begun(slots, "heard")
    heard_slot.forget_idle()
    over, _ = await begun(slots, "over")
    over.release()
    over.note_idle(Conversation("too late"))
    assert not slots.close_idle()


async def test_a_conversation_in_which_nothing_is_read_is_closed_for_one_that_has_no_place(
    autojump_clock: MockClock,
) -> None:
    slots = DialSlots(limit=1, most_open=lambda: 2)
    first, a = await begun(slots, "a")
    _, b = await begun(slots, "b")
    await slots.acquire()
    assert (closed(a, b), first.released) == ("a", True)
    # Nothing is counted twice when the end of it is noticed.
    first.release()
    with trio.move_on_after(1.0) as waiting:
        await slots.acquire()
    assert waiting.cancelled_caught, "the third one is not idle, and its slot did not expire"


async def test_who_waits_for_a_place_gets_that_of_a_conversation_that_is_found_idle(
    autojump_clock: MockClock,
) -> None:
    slots = DialSlots(limit=2, most_open=lambda: 2)
    slot = await slots.acquire()
    await slots.acquire()
    conversation = Conversation("a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.acquire)
        await trio.sleep(1.0)
        assert slots.read().waiting == 1
        slot.expire()
        slot.note_idle(conversation)
    assert closed(conversation) == "a"


async def test_a_pause_of_dials_ends_when_an_idle_conversation_is_found(autojump_clock: MockClock) -> None:
    """Fault 46: its descriptor is the one that is missing."""
    conversation = Conversation("a")
    slots = DialSlots(count_descriptors=lambda most: int(conversation.closed.is_set()))
    idle = await slots.acquire()
    (await slots.acquire()).pause()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slots.run)
        with trio.move_on_after(1.0) as paused:
            await slots.acquire()
        assert paused.cancelled_caught
        idle.note_idle(conversation)
        began = trio.current_time()
        await slots.acquire()
        assert trio.current_time() - began <= PAUSE
        nursery.cancel_scope.cancel()
    assert closed(conversation) == "a"
