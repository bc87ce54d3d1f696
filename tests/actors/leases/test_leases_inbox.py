"""The inbox of the lease actor: bounded by rules, and the offers outlive a crash of the actor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from plugind.actors.leases.inbox import LeasesInbox
from plugind.protocol.leases.messages import (
    AskerLeft,
    Kept,
    LeasesMessage,
    LeasesRead,
    OfferChanged,
    OfferEnded,
    OwnerEnded,
)
from plugind.protocol.leases.values import NoOwner
from plugind.tests.protocol.leases.script import GPU, NIC, offer

GPUS, MORE_GPUS, NICS = (OfferChanged(offer(*listed)) for listed in ((["a"], GPU), (["a", "b"], GPU), (["n"], NIC)))
ASKER, OWNER = AskerLeft(1), OwnerEnded("a", NoOwner())


def holding(*messages: LeasesMessage) -> LeasesInbox:
    inbox = LeasesInbox()
    for message in messages:
        inbox.send_nowait(message)
    return inbox


def taken(inbox: LeasesInbox) -> Iterator[LeasesMessage]:
    while inbox.read().waiting:
        yield inbox.receive_nowait()
    with pytest.raises(trio.WouldBlock):
        inbox.receive_nowait()


def test_of_the_offers_of_a_resource_the_newest_waits_where_the_first_one_did() -> None:
    """What came after the first one finds devices at least as new."""
    assert list(taken(holding(GPUS, ASKER, NICS, MORE_GPUS))) == [MORE_GPUS, ASKER, NICS]
    ended = OfferEnded(GPU)
    assert list(taken(holding(GPUS, ASKER, ended))) == [ended, ASKER]


def test_other_messages_are_taken_in_order_even_if_they_are_equal() -> None:
    assert list(taken(holding(ASKER, OWNER, ASKER))) == [ASKER, OWNER, ASKER]


def test_after_a_crash_all_offers_come_again_first() -> None:
    """The message that crashed the actor may have been one; what the store has said is returned."""
    inbox = holding(GPUS, NICS, MORE_GPUS)
    assert list(taken(inbox)) == [MORE_GPUS, NICS]
    for message in (ASKER, LeasesRead(Kept()), OWNER, OfferEnded(NIC)):
        inbox.send_nowait(message)
    assert inbox.start_again() == [LeasesRead(Kept())]
    assert list(taken(inbox)) == [MORE_GPUS, ASKER, OWNER]


async def test_an_actor_that_waits_is_woken() -> None:
    inbox, got = LeasesInbox(), list[LeasesMessage]()

    async def wait() -> None:
        got.append(await inbox.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        inbox.send_nowait(ASKER)
    assert got == [ASKER]
    assert (inbox.read().waiting, inbox.read().taken) == (0, 1)


def test_what_is_wrong_beside_the_inbox_is_read_with_it() -> None:
    inbox = LeasesInbox()
    inbox.problem = lambda: "the disk is full"
    assert inbox.read().wrong == "the disk is full"
