"""When sockets are looked at, and what follows: the schedule without any I/O."""

from __future__ import annotations

import bisect
import collections
import itertools
import math

import attrs
import pytest

from plugind.protocol.discovery.endpoints import MISSING
from plugind.protocol.health import liveness
from plugind.protocol.health.liveness import ConnectAnswer, EndpointAnswer, Schedule, SocketOwners, Subject
from plugind.protocol.messages.liveness import WatchLiveness
from plugind.protocol.messages.registration import ListenerFound
from plugind.protocol.messages.status import ServingChanged
from plugind.tests.protocol.sockets import NOWHERE

RESCAN = 10.0


def registered(path: str, endpoint: str = "") -> WatchLiveness:
    return WatchLiveness(path, 1, NOWHERE, registered=True, endpoint=endpoint or path, pid=7)


def stale(path: str) -> WatchLiveness:
    return WatchLiveness(path, 1, NOWHERE, registered=False)


@attrs.define
class Looks:
    """Makes the looks of the schedule at their times; each costs ``cost`` seconds."""

    schedule: Schedule = attrs.Factory(lambda: Schedule(RESCAN))
    answers: dict[str, ConnectAnswer] = attrs.Factory(dict)
    cost: float = 0.0
    now: float = 0.0
    made: list[tuple[float, str]] = attrs.Factory(list)
    said: list[ServingChanged | ListenerFound] = attrs.Factory(list)

    def until(self, end: float) -> None:
        """Let time pass until ``end``."""
        while (due := self.schedule.next_time()) <= end:
            self.now = max(self.now, due)
            for subject in self.schedule.take(self.now):
                self.look(subject)
        self.now = end

    def look(self, subject: Subject) -> None:
        self.made.append((round(self.now, 3), subject.path))
        self.now += self.cost
        self.schedule.spent(subject, self.cost, self.now)
        answer = self.answers.get(subject.path, ConnectAnswer.REFUSED)
        endpoint = None if subject.other_endpoint is None else self.answers.get(subject.other_endpoint)
        looked_at = None if endpoint is None else EndpointAnswer(endpoint)
        found = self.schedule.judge(subject, answer, self.now, looked_at)
        if found is not None:
            self.said.append(found)

    def times(self, path: str) -> list[float]:
        return self.times_by_path()[path]

    def times_by_path(self) -> dict[str, list[float]]:
        times: dict[str, list[float]] = collections.defaultdict(list)
        for time, path in self.made:
            times[path].append(time)
        return times

    def most_within(self, seconds: float) -> int:
        """The largest number of looks that were made within so many seconds."""
        times = [time for time, _ in self.made]
        return max(bisect.bisect_left(times, start + seconds) - index for index, start in enumerate(times))


@pytest.mark.parametrize("process_is_watched", [True, False])
def test_plugins_that_serve_are_looked_at_four_a_second_in_all_at_most(process_is_watched: bool) -> None:
    """Fault 39: a look disturbs the plugin, so there are few; with more than 240 plugins each has its turn later."""
    paths = [str(number) for number in range(600)]
    looks = Looks(answers=dict.fromkeys(paths, ConnectAnswer.ACCEPTED))
    for path in paths:
        looks.schedule.watch(registered(path), 0.0, process_is_watched=process_is_watched)
    looks.until(400.0)
    assert looks.most_within(1.0) == 4
    made = looks.times_by_path()
    for path in paths:
        times = made[path]
        assert len(times) >= 2
        assert all(later - earlier >= 60.0 for earlier, later in itertools.pairwise(times))


def test_all_sockets_of_a_process_that_ended_are_looked_at_at_once() -> None:
    """Fault 39: the end of a process asks for a connect, and a batch never takes more than two milliseconds."""
    paths = [str(number) for number in range(1000)]
    looks = Looks(cost=20e-6)
    for path in paths:
        looks.schedule.watch(registered(path), 0.0, process_is_watched=True)
        looks.schedule.ask(path)
    assert len([*looks.schedule.take(0.0)]) == liveness.CHUNK
    looks.until(1.0)
    assert {path for _, path in looks.made} == {*paths[liveness.CHUNK :]}
    assert all(isinstance(said, ServingChanged) and not said.serving for said in looks.said)


def test_each_stale_socket_is_looked_at_once_in_a_rescans_period_spread_over_it() -> None:
    """Behaviour 15: reported within a rescan's period, and never thousands at once."""
    paths = [str(number) for number in range(3000)]
    looks = Looks(cost=15e-6)
    for path in paths:
        looks.schedule.watch(stale(path), 0.0, process_is_watched=False)
    looks.until(40.0)
    made = looks.times_by_path()
    for path in paths:
        times = [0.0, *made[path], 40.0]
        assert all(later - earlier <= RESCAN + 0.2 for earlier, later in itertools.pairwise(times))
    assert looks.most_within(0.1) <= liveness.CHUNK
    assert looks.most_within(1.0) <= 3000 / RESCAN + 2 * liveness.CHUNK


def test_stale_sockets_take_a_hundredth_of_a_core_at_most_however_many_there_are() -> None:
    looks = Looks(cost=20e-6)
    for number in range(20_000):
        looks.schedule.watch(stale(str(number)), 0.0, process_is_watched=False)
    looks.until(60.0)
    spent = len(looks.made) * looks.cost
    assert 0.009 * 60 < spent <= 0.01 * 60 + liveness.CHUNK * looks.cost  # the last batch may have just begun


def test_a_stale_socket_that_accepts_wakes_its_registration_once_and_is_watched_no_more() -> None:
    """Behaviour 15."""
    looks = Looks()
    looks.schedule.watch(stale("a"), 0.0, process_is_watched=False)
    looks.until(15.0)
    assert looks.said == []
    looks.answers["a"] = ConnectAnswer.ACCEPTED
    looks.until(100.0)
    assert looks.said == [ListenerFound("a", 1)]
    assert "a" not in looks.schedule


def test_a_plugin_that_refuses_and_serves_again_is_said_so_each_time_once() -> None:
    """Fault 39: as long as it refuses, it is looked at once in a rescan's period."""
    looks = Looks(answers={"a": ConnectAnswer.ACCEPTED})
    looks.schedule.watch(registered("a"), 0.0, process_is_watched=True)
    looks.until(65.0)
    looks.answers["a"] = ConnectAnswer.REFUSED
    looks.until(145.0)
    looks.answers["a"] = ConnectAnswer.ACCEPTED
    looks.until(165.0)
    assert [(said.time, said.serving, said.reason) for said in looks.said if isinstance(said, ServingChanged)] == [
        (60.0, True, None),
        (120.0, False, "nobody listens on its socket"),
        (pytest.approx(150.0, abs=RESCAN), True, None),
    ]
    assert len([time for time in looks.times("a") if 120.0 < time < 145.0]) in (2, 3)


def test_a_look_that_found_no_descriptor_is_made_again_in_the_next_rounds() -> None:
    """Faults 39 and 46: a process that ended meanwhile is not left to the look of the next minute."""
    looks = Looks(answers={"a": ConnectAnswer.EXHAUSTED})
    looks.schedule.watch(registered("a"), 0.0, process_is_watched=True)
    looks.schedule.ask("a")
    looks.until(5.5)
    assert looks.times("a") == [0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    looks.answers["a"] = ConnectAnswer.REFUSED
    looks.until(6.5)
    assert [(said.time, said.serving) for said in looks.said if isinstance(said, ServingChanged)] == [(6.0, False)]


@pytest.mark.parametrize("answer", [ConnectAnswer.REPLACED, ConnectAnswer.EXHAUSTED, ConnectAnswer.UNKNOWN])
def test_an_error_without_evidence_of_a_listener_changes_nothing(answer: ConnectAnswer) -> None:
    """The watcher handles a file that was replaced; without descriptors or permission nothing is known."""
    looks = Looks(answers={"a": answer, "b": answer})
    looks.schedule.watch(registered("a"), 0.0, process_is_watched=False)
    looks.schedule.watch(stale("b"), 0.0, process_is_watched=False)
    looks.until(100.0)
    assert looks.said == []
    assert looks.times("a")
    assert looks.times("b")


GONE = "its socket file is gone, so nobody can reach it"


def test_a_plugin_whose_file_is_gone_does_not_serve_once_a_second_look_confirms_it() -> None:
    """Faults 3 and 39: in an insecure directory it stays registered, and nobody can reach it."""
    looks = Looks(answers={"a": ConnectAnswer.MISSING, "b": ConnectAnswer.MISSING})
    looks.schedule.watch(registered("a"), 0.0, process_is_watched=True)
    looks.schedule.watch(stale("b"), 0.0, process_is_watched=False)
    looks.schedule.ask("a")
    looks.until(0.9)
    assert looks.said == []
    looks.until(50.0)
    assert looks.said == [ServingChanged("a", 1, False, 1.0, GONE)]
    looks.answers["a"] = ConnectAnswer.REFUSED
    looks.until(70.0)
    assert [(change.serving, change.reason) for change in looks.said[1:] if isinstance(change, ServingChanged)] == [
        (False, "nobody listens on its socket")
    ]
    looks.answers["a"] = ConnectAnswer.ACCEPTED
    looks.until(90.0)
    assert [change.serving for change in looks.said[2:] if isinstance(change, ServingChanged)] == [True]


def test_a_plugin_that_is_unwatched_when_its_file_goes_is_not_looked_at_again() -> None:
    """Fault 39: a plugin that ends in order removes its file, and the watcher says so; nothing is said of it here."""
    looks = Looks(answers={"a": ConnectAnswer.MISSING})
    looks.schedule.watch(registered("a"), 0.0, process_is_watched=True)
    looks.schedule.ask("a")
    looks.until(0.1)
    looks.schedule.unwatch("a")
    looks.until(100.0)
    assert looks.times("a") == [0.0]
    assert (looks.said, looks.schedule.next_time()) == ([], math.inf)


def test_a_file_that_is_back_at_the_second_look_was_never_shown_as_gone() -> None:
    looks = Looks(answers={"a": ConnectAnswer.MISSING})
    looks.schedule.watch(registered("a"), 0.0, process_is_watched=True)
    looks.schedule.ask("a")
    looks.until(0.5)
    looks.answers["a"] = ConnectAnswer.ACCEPTED
    looks.until(30.0)
    assert [change.serving for change in looks.said if isinstance(change, ServingChanged)] == [True]
    assert looks.times("a") == [0.0, 1.0]


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [(ConnectAnswer.ACCEPTED, "but somebody listens"), (ConnectAnswer.REFUSED, "and nobody listens")],
)
def test_the_endpoint_of_a_plugin_whose_file_is_gone_is_judged_too(endpoint: ConnectAnswer, words: str) -> None:
    """Fault 39."""
    looks = Looks(answers={"a": ConnectAnswer.MISSING, "/run/csi.sock": endpoint})
    looks.schedule.watch(registered("a", "unix:///run/csi.sock"), 0.0, process_is_watched=False)
    looks.until(1.0)
    serves = endpoint is ConnectAnswer.ACCEPTED
    reason = f"{GONE}, {words} on its endpoint /run/csi.sock"
    assert looks.said == [ServingChanged("a", 1, False, 1.0, reason, endpoint_serves=serves)]


@pytest.mark.parametrize(
    ("endpoint", "serves", "words"),
    [
        (ConnectAnswer.ACCEPTED, True, "but somebody listens"),
        (ConnectAnswer.UNKNOWN, True, "but somebody listens"),
        (ConnectAnswer.EXHAUSTED, True, "but somebody listens"),
        (ConnectAnswer.REFUSED, False, "nor"),
        (ConnectAnswer.MISSING, False, "nor"),
    ],
)
def test_a_plugin_whose_endpoint_is_another_socket_is_judged_by_both(
    endpoint: ConnectAnswer, serves: bool, words: str
) -> None:
    """Fault 39: a dead registrar does not mean a dead driver."""
    looks = Looks(answers={"/run/csi.sock": endpoint})
    looks.schedule.watch(registered("a", "unix:///run/csi.sock"), 0.0, process_is_watched=False)
    looks.until(0.0)
    reason = f"nobody listens on its socket, {words} on its endpoint /run/csi.sock"
    assert looks.said == [ServingChanged("a", 1, False, 0.0, reason, endpoint_serves=serves)]


def test_another_socket_takes_the_place_of_the_one_before_it() -> None:
    looks = Looks()
    looks.schedule.watch(registered("a"), 0.0, process_is_watched=False)
    looks.schedule.watch(stale("a"), 1.0, process_is_watched=False)
    looks.until(30.0)
    assert looks.said == []
    looks.schedule.unwatch("a")
    looks.schedule.unwatch("a")
    assert looks.schedule.next_time() == math.inf


def test_a_process_with_many_sockets_is_forgotten_with_the_last_of_them() -> None:
    """Fault 39: one descriptor for a process, however many sockets it has."""
    owners = SocketOwners()
    owners.add("a", 1, pid=7)
    owners.add("b", 1, pid=7)
    assert owners.of_pid(7) == 1
    assert owners.remove("a") is None
    assert owners.remove("a") is None
    assert owners.remove("b") == 1
    assert owners.of_pid(7) is None


def test_the_sockets_of_a_process_that_ended_belong_to_none_and_its_pid_may_be_used_again() -> None:
    owners = SocketOwners()
    for path in ("b", "a"):
        owners.add(path, 1, pid=7)
    owners.add("c", 2)
    assert owners.end(1) == ["a", "b"]
    assert owners.end(1) == []
    assert (owners.of_path("a"), owners.of_path("c"), owners.of_pid(7)) == (None, 2, None)
    owners.add("a", 3, pid=7)
    assert owners.of_pid(7) == 3


# --- awaited endpoints ------------------------------------------------------------------------------------------------


def awaited(*answers: ConnectAnswer) -> list[str | None]:
    """Return what is said of an endpoint that did not exist, after one such answer in each period."""
    schedule = Schedule(RESCAN)
    missing = attrs.evolve(registered("/r/a.sock", "/drivers/a.sock"), endpoint_missing=True)
    schedule.watch(missing, 0.0, process_is_watched=True)
    said: list[str | None] = []
    for turn, answer in enumerate(answers):
        now = turn * RESCAN
        for subject in schedule.take_awaited(now):
            change = schedule.judge_endpoint(subject, EndpointAnswer(answer), now)
            said += [] if change is None else [change.problem]
    return said


def test_an_endpoint_stays_awaited_if_no_descriptor_is_left_for_a_look_at_it() -> None:
    """Seed 21861: it was shown as missing from then on."""
    assert awaited(ConnectAnswer.MISSING, ConnectAnswer.EXHAUSTED, ConnectAnswer.ACCEPTED) == [MISSING, None]


def test_the_first_look_at_an_awaited_endpoint_is_told_whatever_was_found() -> None:
    """Seed 21861: after a crash of the status actor nobody here knows what is shown of it."""
    assert awaited(ConnectAnswer.EXHAUSTED, ConnectAnswer.ACCEPTED, ConnectAnswer.MISSING) == [None]
    assert awaited(ConnectAnswer.MISSING, ConnectAnswer.MISSING, ConnectAnswer.REFUSED) == [
        MISSING,
        "nobody listens on its endpoint",
    ]
