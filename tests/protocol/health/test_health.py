"""How an actor is, judged by readings of its inbox."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.health.progress import ActorHealth, Condition, Progress, Reading

OK, DEGRADED, FAILED = Condition.OK, Condition.DEGRADED, Condition.FAILED


def judged(*readings: tuple[float, Reading]) -> list[ActorHealth]:
    progress = Progress("reconciler", 10.0)
    return [progress.judge(reading, now) for now, reading in readings]


def conditions(*readings: tuple[float, Reading]) -> list[Condition]:
    return [health.condition for health in judged(*readings)]


def test_an_actor_that_takes_nothing_while_messages_wait_hangs_once_the_patience_is_over() -> None:
    """The reconciler hung for 70 s, and health said ok and ready."""
    readings = [(0.0, Reading(1, 7)), (9.9, Reading(3, 7)), (10.0, Reading(3, 7)), (70.0, Reading(5, 7))]
    assert conditions(*readings) == [OK, OK, FAILED, FAILED]
    assert judged(*readings)[-1] == ActorHealth(
        "reconciler", FAILED, "it hangs: it has taken no message for 70 s, and 5 wait", 5, 70.0
    )


def test_an_actor_without_messages_does_not_hang() -> None:
    assert conditions((0.0, Reading(0, 7)), (1000.0, Reading(0, 7)), (1005.0, Reading(1, 7))) == [OK, OK, OK]


def test_an_actor_that_takes_one_message_in_time_goes_on_however_many_wait() -> None:
    readings = [(8.0 * number, Reading(4000, number)) for number in range(20)]
    assert set(conditions(*readings)) == {OK}
    assert judged(*readings)[-1].oldest_wait == 8.0 * 19, "the message before which all of these came waits"


def test_an_actor_that_is_held_up_is_degraded_and_does_not_hang_just_after() -> None:
    held_up = Reading(3, 0, "no descriptors left")
    readings = [(0.0, Reading(3, 0)), (5.0, held_up), (90.0, held_up), (91.0, Reading(3, 0)), (101.0, Reading(3, 0))]
    assert conditions(*readings) == [OK, DEGRADED, DEGRADED, OK, FAILED]
    assert judged(*readings)[2].reason == "no descriptors left; 3 wait"
    assert conditions((0.0, Reading(0, 0, "no descriptors left"))) == [OK]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8)), max_size=300))
def test_the_oldest_wait_is_the_age_of_the_oldest_message_as_far_as_it_was_seen(moves: list[tuple[int, int]]) -> None:
    """A model that keeps when each message was first seen; it remembers as little as the judge does."""
    progress = Progress("reconciler", 10.0)
    seen_at: list[float] = []
    taken = 0
    for now, (come, take) in enumerate(moves):
        taken = min(taken + take, len(seen_at))
        seen_at += [float(now)] * come
        health = progress.judge(Reading(len(seen_at) - taken, taken), float(now))
        expected = now - seen_at[taken] if taken < len(seen_at) else 0.0
        assert health.oldest_wait <= expected
        if now < 64:
            assert health.oldest_wait == expected
