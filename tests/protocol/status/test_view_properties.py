"""The view and the metrics, compared with models that keep every change."""

from __future__ import annotations

import itertools
import json
from typing import TypeVar

import attrs
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.messages.status import RootStatus, StateChanged
from plugind.protocol.plugins.info import BUILT_IN_TYPES, PluginInfo
from plugind.protocol.plugins.status import (
    Finished,
    HistoryEntry,
    Operation,
    Outcome,
    PluginStatus,
    StateName,
    Watching,
)
from plugind.protocol.status.histograms import BUCKETS, Histogram
from plugind.protocol.status.json import described_to_json
from plugind.protocol.status.metrics import (
    ACTUAL,
    ACTUAL_STATE,
    DESIRED_STATE,
    MAX_TYPES,
    OTHER,
    UNKNOWN,
    Metrics,
    worlds,
)
from plugind.protocol.status.view import DEPRECATED, View
from plugind.protocol.text import encodable, escaped
from plugind.protocol.words import Step
from plugind.tests.protocol.hypothesis_settings import examples

HISTORY_KEPT, GONE_KEPT = 5, 2
PATHS = st.sampled_from(["/r/a", "/r/b", "/r/\udcff\n"])
TYPES, NAMES = st.sampled_from(["CSIPlugin", "Odd", "Even"]), st.sampled_from(["x", "y"])
INFOS = st.builds(PluginInfo, TYPES, NAMES, st.just("/e"), st.just(("1",)))
MAYBE = st.none() | st.integers(0, 3)
SECONDS = st.floats(0, 200)
CHANGES = st.builds(
    StateChanged,
    socket=PATHS,
    root=st.just("/r"),
    generation=st.integers(1, 3),
    state=st.sampled_from([*StateName, StateName.REGISTERED, StateName.PARKED]),
    time=SECONDS,
    reason=st.sampled_from([None, "no answer"]),
    cause=st.sampled_from([None, "no answer"]),
    attempt=st.integers(0, 3),
    next_try=st.none() | SECONDS,
    info=st.none() | INFOS,
    registered_in=st.none() | SECONDS,
    deprecated=st.booleans(),
    uid=MAYBE,
    pid=MAYBE,
    finished=st.lists(
        st.builds(Finished, st.sampled_from(Operation), st.sampled_from(Outcome), SECONDS), max_size=6
    ).map(tuple),
)
ROLES = st.tuples(PATHS, st.integers(1, 3), st.booleans())
STORIES = st.lists(CHANGES | ROLES, max_size=30)
Role = tuple[str, int, bool]


@attrs.define
class Model:
    """Every accepted change of each socket, since it appeared."""

    lives: dict[str, list[StateChanged | Role]] = attrs.Factory(dict)
    gone: list[list[StateChanged | Role]] = attrs.Factory(list)

    def accepts(self, said: StateChanged | Role) -> bool:
        if isinstance(said, tuple):
            socket, generation, active = said
            life = self.lives.get(socket)
            return life is not None and last(life).generation == generation and role(life) is not active
        life = self.lives.get(said.socket)
        if life is None:
            return said.state is StateName.LEAVING or (said.state is not StateName.GONE and not self.is_overtaken(said))
        return said.generation >= last(life).generation

    def is_overtaken(self, said: StateChanged) -> bool:
        """Whether a newer entry of the path is among those that are kept of the ones that are gone."""
        ends = [last(life) for life in self.gone[-GONE_KEPT:]]
        return any(end.socket == said.socket and end.generation > said.generation for end in ends)

    def take(self, said: StateChanged | Role) -> bool:
        if not self.accepts(said):
            return False
        socket = said[0] if isinstance(said, tuple) else said.socket
        life = self.lives.setdefault(socket, [])
        life.append(said)
        if isinstance(said, StateChanged) and said.state is StateName.GONE:
            self.gone.append(self.lives.pop(socket))
        return True


def changes_of(life: list[StateChanged | Role]) -> list[StateChanged]:
    return [said for said in life if isinstance(said, StateChanged)]


def last(life: list[StateChanged | Role]) -> StateChanged:
    return changes_of(life)[-1]


def generation_of(life: list[StateChanged | Role]) -> list[StateChanged]:
    """The changes of the last generation."""
    return [change for change in changes_of(life) if change.generation == last(life).generation]


def role(life: list[StateChanged | Role]) -> bool | None:
    roles = [said[2] for said in life if isinstance(said, tuple) and said[1] == last(life).generation]
    return roles[-1] if roles else None


T = TypeVar("T")


def latest(values: list[T | None]) -> T | None:
    return next((value for value in reversed(values) if value is not None), None)


def info_of(life: list[StateChanged | Role]) -> PluginInfo | None:
    return latest([change.info for change in generation_of(life)])


def expected(life: list[StateChanged | Role]) -> PluginStatus:
    now, changes = last(life), generation_of(life)
    info = info_of(life)
    since = now.time
    for change in reversed(changes):
        if change.state is not now.state:
            break
        since = change.time
    registered = now.state is StateName.REGISTERED
    history = [HistoryEntry(c.time, c.state, c.reason, c.attempt, c.cause) for c in changes_of(life)]
    return PluginStatus(
        socket=now.socket,
        root=now.root,
        generation=now.generation,
        state=now.state,
        since=since,
        reason=now.reason,
        cause=now.cause,
        attempt=now.attempt,
        next_try=now.next_try,
        type=None if info is None else info.type,
        name=None if info is None else info.name,
        endpoint=None if info is None else info.endpoint,
        versions=None if info is None else info.versions,
        registered_in=latest([change.registered_in for change in changes]) if registered else None,
        active=role(life) is not False if registered else None,
        warnings=(DEPRECATED,) if now.deprecated else (),
        uid=latest([change.uid for change in changes]),
        pid=latest([change.pid for change in changes]),
        history=tuple(history[-HISTORY_KEPT:]),
        serving=True if registered else None,
        steps=steps_of(changes),
    )


def steps_of(changes: list[StateChanged]) -> tuple[tuple[Step, float], ...]:
    """Each change in these stories is that of a pause or a rest, after which a try begins anew; a leave is no end."""
    names = {"get-info": "info"}
    last: list[Finished] = []
    for before, change in itertools.pairwise([None, *changes]):
        assert change is not None
        leaves = change.state is StateName.LEAVING
        goes_on = before is not None and (before.state is StateName.LEAVING or not (leaves or change.finished))
        last = [*(last if goes_on else ()), *change.finished]
    seconds: dict[Step, float] = {}
    for finished in last:
        if finished.operation is not Operation.DEREGISTER:
            step = Step(names.get(finished.operation, finished.operation))
            seconds[step] = seconds.get(step, 0.0) + finished.seconds
    return tuple(seconds.items())


def replayed(story: list[StateChanged | Role]) -> tuple[View, Model, Metrics, list[StateChanged]]:
    view, model, metrics = View(HISTORY_KEPT, GONE_KEPT), Model(), Metrics()
    counted = []
    for said in story:
        news = model.accepts(said)
        if isinstance(said, tuple):
            socket, generation, active = said
            assert (view.set_active(socket, generation, active=active) is not None) == news
            model.take(said)
            continue
        life = model.lives.get(said.socket)
        was = None if life is None else expected(life)
        before, after = view.apply(said)
        assert (before and before.status) == (was and attrs.evolve(was, history=()))
        assert (after is not None) == news
        model.take(said)
        if after is not None:
            metrics.count(said, after)
            counted.append(said)
    return view, model, metrics, counted


@examples(100)
@given(STORIES)
def test_the_view_agrees_with_a_model_that_keeps_every_change(story: list[StateChanged | Role]) -> None:
    """Behaviours 37 and 38: each socket has its last generation, the latest values and a bounded history.

    Test_DSW_AddOrUpdatePlugin_Positive_NewPlugin, Test_DSW_AddOrUpdatePlugin_Positive_ExistingPlugin,
    Test_ASW_PluginExistsWithCorrectUUID_Negative_WrongUUID, Test_DSW_RemovePlugin_Positive,
    Test_ASW_RemovePlugin_Positive, TestPluginRegistrationSameName.
    """
    view, model, _, _ = replayed(story)
    assert {path: row.status_with_history for path, row in view.rows.items()} == {
        path: expected(life) for path, life in model.lives.items()
    }
    gone = [expected(life) for life in reversed(model.gone[-GONE_KEPT:])]
    for target in ("/r/a", "/r/b", "x", "y", encodable("/r/\udcff\n"), escaped("/r/\udcff\n"), "nobody", ""):
        live = [expected(life) for life in model.lives.values()]
        at = [plugin for plugin in live if plugin.socket == target]
        named = [plugin for plugin in live if goes_by(plugin, target)]
        late = [plugin for plugin in gone if plugin.socket == target or goes_by(plugin, target)]
        assert [row.status_with_history for row in view.find(target)] == (at or named or late)


def test_a_new_view_keeps_thirty_two_history_entries_of_each_socket() -> None:
    """Behaviour 38: of all generations together."""
    view = View()
    for number in range(40):
        view.apply(StateChanged("/r/a\n", "/r", 1 + number // 35, StateName.WAITING, float(number)))
    (row,) = view.find("/r/a\\n")
    assert [entry.time for entry in row.status_with_history.history] == [float(number) for number in range(8, 40)]


def test_a_socket_that_is_parked_without_a_try_counts_as_refused() -> None:
    """Behaviour 7; a plugin that is parked after a try does not."""
    for attempt in (0, 1):
        view = View()
        _, row = view.apply(StateChanged("/r/a", "/r", 1, StateName.PARKED, 0.0, "a link", attempt))
        assert row is not None
        assert row.refused is (attempt == 0)
        assert list(worlds([row])) == ([] if attempt == 0 else [("/r/a", DESIRED_STATE)])


def goes_by(plugin: PluginStatus, target: str) -> bool:
    return plugin.name == target or (
        "\udcff" in plugin.socket and target in (encodable(plugin.socket), escaped(plugin.socket))
    )


@examples(40)
@given(STORIES, SECONDS)
def test_any_view_becomes_json_without_a_negative_time(story: list[StateChanged | Role], now: float) -> None:
    """Faults 21 and 91: the JSON has the values that were written."""
    view, _, _, _ = replayed(story)
    for row in view.rows.values():
        plugin = row.status_with_history
        shown = described_to_json(plugin, now, 1_700_000_000.0)
        assert json.loads(json.dumps(shown)) == shown
        assert shown["age"] == round(max(0.0, now - plugin.since), 6)
        wait = None if plugin.next_try is None else round(max(0.0, plugin.next_try - now), 6)
        assert shown["next_try_in"] == wait
        assert shown["socket"] == encodable(plugin.socket)
        history = shown["history"]
        assert isinstance(history, list)
        assert len(history) == len(plugin.history)


@examples(40)
@given(STORIES)
def test_the_counters_add_up(story: list[StateChanged | Role]) -> None:
    """Behaviour 39, fault 92: no operation is lost or counted twice, under labels of a bounded number."""
    view, model, metrics, counted = replayed(story)
    ended = [finished for change in counted for finished in change.finished]
    assert sum(metrics.operations.values()) == len(ended)
    for operation in Operation:
        for outcome in Outcome:
            of_it = [finished for finished in ended if (finished.operation, finished.outcome) == (operation, outcome)]
            told_of_it = sum(n for (op, _, out), n in metrics.operations.items() if (op, out) == (operation, outcome))
            assert told_of_it == len(of_it)
        taken = [finished.seconds for finished in ended if finished.operation is operation]
        measured = [histogram for (op, _), histogram in metrics.durations.items() if op is operation]
        assert sum(sum(histogram.counts) for histogram in measured) == len(taken)
        assert abs(sum(histogram.total for histogram in measured) - sum(taken)) < 1e-6
    done = [c for c in counted if c.registered_in is not None and c.state is StateName.REGISTERED]
    assert sum(metrics.registration.counts) == len(done)
    assert {label for _, label, _ in metrics.operations} <= {*BUILT_IN_TYPES, UNKNOWN, OTHER}
    # The gauges show the present states.
    rows = list(view.rows.values())
    plugins = metrics.plugins(rows)
    assert sum(plugins.values()) == len(model.lives)
    for state in StateName:
        assert sum(n for (of, _), n in plugins.items() if of is state) == sum(
            last(life).state is state for life in model.lives.values()
        )
    for plugin_type in BUILT_IN_TYPES:
        assert sum(n for (_, of), n in plugins.items() if of == plugin_type) == sum(
            expected(life).type == plugin_type for life in model.lives.values()
        )
    listed = list(worlds(rows))
    assert len(listed) == len(set(listed))
    assert {path for path, world in listed if world == ACTUAL_STATE} == {
        path for path, life in model.lives.items() if last(life).state in ACTUAL
    }
    assert {path for path, world in listed if world == DESIRED_STATE} == {
        path
        for path, life in model.lives.items()
        if last(life).state is not StateName.LEAVING
        and not (last(life).state is StateName.PARKED and last(life).attempt == 0)
    }


@examples(40)
@given(st.lists(SECONDS | st.sampled_from(BUCKETS), max_size=30))
def test_a_histogram_counts_values_up_to_and_including_each_bound(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    shown = histogram.cumulative()
    assert [bound for bound, _ in shown] == [*map(str, BUCKETS), "+Inf"]
    for bound, count in shown:
        assert count == sum(value <= float(bound) for value in values)
    assert abs(histogram.total - sum(values)) < 1e-6


@examples(40)
@given(st.lists(st.lists(st.text(max_size=3), max_size=20), max_size=4), st.text(max_size=3) | st.none())
def test_the_number_of_labels_is_bounded_for_any_types(learnt: list[list[str]], asked: str | None) -> None:
    """Fault 92: once a type has a label, it keeps it."""
    metrics = Metrics()
    seen: dict[str, str] = {}
    for types in learnt:
        metrics.learn_types(types)
        for plugin_type in types:
            label = metrics.label(plugin_type)
            assert label in (plugin_type, OTHER)
            if seen.get(plugin_type) == plugin_type:
                assert label == plugin_type
            seen[plugin_type] = label
    assert all(metrics.label(plugin_type) == plugin_type for plugin_type in BUILT_IN_TYPES)
    apart = [plugin_type for plugin_type in {*seen, *BUILT_IN_TYPES} if metrics.label(plugin_type) == plugin_type]
    assert len(apart) <= MAX_TYPES + (OTHER in seen)
    assert metrics.label(asked) in {UNKNOWN, OTHER, *BUILT_IN_TYPES, *seen}
    assert (metrics.label(asked) == UNKNOWN) == (asked is None or (asked == UNKNOWN and asked in apart))


STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=10)


@examples(40)
@given(st.lists(st.tuples(st.sampled_from(["/a", "/b"]), STEPS), max_size=4))
def test_counters_of_watchers_add_up_across_restarts(
    lives: list[tuple[str, list[tuple[int, int, int, bool]]]],
) -> None:
    """Each watcher counts from zero; the daemon adds them up, and counts a repeated report once."""
    metrics = Metrics()
    expected = [0, 0, 0]
    for root, steps in lives:
        # The first report of a new watcher has no scan, which distinguishes it from the previous watcher.
        report = RootStatus(root, Watching.EVENTS, 0.0)
        metrics.count_root(report)
        for scans, failures, overflows, twice in steps:
            report = attrs.evolve(
                report,
                scans=report.scans + scans + 1,
                scan_failures=report.scan_failures + failures,
                overflows=report.overflows + overflows,
            )
            expected = [expected[0] + scans + 1, expected[1] + failures, expected[2] + overflows]
            metrics.count_root(report)
            if twice:
                metrics.count_root(report)
    assert [metrics.roots.scans, metrics.roots.failures, metrics.roots.overflows] == expected
