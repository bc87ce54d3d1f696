"""Who gets the next slot: first attempts before retries, the newest before the older, and nobody waits for ever."""

from __future__ import annotations

import pytest

from plugind.protocol.registration.dial_queue import STARVED, DialQueue


def order(requests: str, *, retries: bool = True, now: float = 0.0) -> str:
    """Return the order in which ``requests`` are taken: capital letters are first attempts, small ones are retries."""
    queue = DialQueue[str]()
    for request in requests:
        queue.add(request, 0.0, retry=request.islower())
    taken = ""
    while (waiter := queue.take(now, retries=retries)) is not None:
        taken += waiter
    return taken


@pytest.mark.parametrize(
    ("requests", "taken"),
    [
        ("", ""),
        ("A", "A"),
        ("ABC", "CBA"),
        ("ABCDEFGHI", "IHGAFEDBC"),
        ("abc", "abc"),
        ("abcA", "Aabc"),
        ("aAbBcCdDeE", "EDCABabcde"),
    ],
)
def test_first_attempts_go_before_retries_the_newest_first_and_every_fourth_is_the_oldest(
    requests: str, taken: str
) -> None:
    """Faults 32 and 47: a new plugin does not wait behind those that have failed, nor behind a burst."""
    assert order(requests) == taken


def test_without_a_slot_for_retries_only_first_attempts_are_taken() -> None:
    assert order("abAcB", retries=False) == "BA"


def test_a_retry_that_has_waited_for_long_has_a_part_in_every_fourth_place() -> None:
    """An endless burst of new sockets delays retries, and does not end them."""
    assert order("aAbBCDEFGH", now=STARVED - 0.1) == "HGFAEDCBab"
    queue = DialQueue[str]()
    for request in "ab":
        queue.add(request, 0.0, retry=True)
    for request in "ABCDEFGH":
        queue.add(request, 5.0, retry=False)
    assert [queue.take(STARVED, retries=True) for _ in range(10)] == list("HGFaEDCbBA")


def test_a_retry_that_has_waited_for_long_is_not_taken_without_a_slot_for_retries() -> None:
    assert order("aABCD", retries=False, now=STARVED) == "DCBA"


def test_a_request_that_is_given_up_is_not_taken() -> None:
    queue = DialQueue[str]()
    for request in "abAB":
        queue.add(request, 0.0, retry=request.islower())
    for request in "aB":
        queue.discard(request)
    queue.discard("unknown")
    assert len(queue) == 2
    assert [queue.take(0.0, retries=True) for _ in range(3)] == ["A", "b", None]


def test_who_is_before_a_new_request() -> None:
    queue = DialQueue[str]()
    assert not queue.is_before(retry=True)
    queue.add("a", 0.0, retry=True)
    assert queue.is_before(retry=True)
    assert not queue.is_before(retry=False)
    queue.add("A", 0.0, retry=False)
    assert queue.is_before(retry=False)


def test_those_that_are_removed_are_removed_in_the_order_of_their_requests() -> None:
    queue = DialQueue[str]()
    for request in "abAB":
        queue.add(request, 0.0, retry=request.islower())
    assert queue.remove(lambda waiter: waiter in "AaB") == ["A", "B", "a"]
    assert len(queue) == 1


def test_the_oldest_of_thousands_that_were_taken_from_both_ends_is_found_at_once() -> None:
    """Fault 48: a burst of 100,000 costs no more for each than one of ten; a quadratic queue would take minutes."""
    queue = DialQueue[int]()
    for number in range(100_000):
        queue.add(number, 0.0, retry=False)
    taken = [queue.take(0.0, retries=True) for _ in range(100_000)]
    assert taken[:8] == [99_999, 99_998, 99_997, 0, 99_996, 99_995, 99_994, 1]
    assert len(set(taken)) == 100_000
