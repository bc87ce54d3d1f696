from __future__ import annotations

import attrs

from plugind.protocol.messages.status import HealthReported, RootReported, ServingChanged, StateChanged
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.info import BUILT_IN_TYPES, PluginInfo
from plugind.protocol.plugins.status import Finished, Operation, Outcome, StateName, Watching
from plugind.protocol.registration.lives import reason
from plugind.protocol.status.metrics import (
    MAX_RESOURCES,
    ByResource,
    Metrics,
    causes,
    dra_instances,
    expected_useful,
    healths,
    watched,
    worlds,
)
from plugind.protocol.status.view import View


def changed(state: StateName, socket: str = "/r/a.sock", *, attempt: int = 1) -> StateChanged:
    return StateChanged(socket, "/r", 1, state, 1.0, attempt=attempt)


def test_an_operation_is_counted_once_under_its_type_and_outcome() -> None:
    view, metrics = View(), Metrics()
    info = PluginInfo("CSIPlugin", "csi", "/e", ())
    first = attrs.evolve(changed(StateName.ASKING_INFO), finished=(Finished(Operation.DIAL, Outcome.OK, 0.001),))
    second = attrs.evolve(
        changed(StateName.VALIDATING), info=info, finished=(Finished(Operation.GET_INFO, Outcome.OK, 0.3),)
    )
    # The third change does not repeat the type and the name, which the view keeps.
    third = attrs.evolve(changed(StateName.WAITING), finished=(Finished(Operation.VALIDATE, Outcome.TIMED_OUT, 120.0),))
    for change in (first, second, third):
        before, after = view.apply(change)
        metrics.count(change, after or before)
    assert {key: count for key, count in metrics.operations.items() if count} == {
        (Operation.DIAL, "unknown", Outcome.OK): 1,
        (Operation.GET_INFO, "CSIPlugin", Outcome.OK): 1,
        (Operation.VALIDATE, "CSIPlugin", Outcome.TIMED_OUT): 1,
    }
    assert metrics.durations[Operation.GET_INFO, "CSIPlugin"].total == 0.3


def test_a_bounded_number_of_resources_have_a_label() -> None:
    """Fault 92: the first 64 have one of their own; the others, and names that no resource can have, share one."""
    calls = ByResource()
    for number in range(70):
        calls.count(f"vendor.com/r{number}")
        calls.count("vendor.com/r0")
    calls.count(None)
    assert len(calls.counts) == MAX_RESOURCES + 1
    assert (calls.counts["vendor.com/r0"], calls.counts["vendor.com/r63"], calls.counts["other"]) == (71, 1, 7)


def test_resources_that_may_not_be_new_take_no_label() -> None:
    """Fault 92: names that were refused took all labels, so that resources that were registered had none."""
    calls = ByResource()
    for number in range(70):
        calls.count(f"flood.com/r{number}", may_be_new=False)
    calls.count("vendor.com/gpu", may_be_new=True)
    calls.count("vendor.com/gpu", may_be_new=False)
    assert calls.counts == {"other": 70, "vendor.com/gpu": 2}


def test_restarts_are_counted_by_the_kind_of_actor() -> None:
    """Faults 85 and 92: there is no series for each path."""
    metrics = Metrics()
    for name in ("registration /r/a.sock", "registration /r/b.sock", "watcher:/r", "reconciler", "dial slots"):
        metrics.count_restart(name)
    counts = {"registration": 2, "watcher": 1, "reconciler": 1, "dial slots": 1}
    assert metrics.restarts == counts, "the words of /healthz"


def test_each_socket_counts_once_in_each_world() -> None:
    """TestMetricCollection: one count per state; behaviour 39."""
    view = View()
    for number, (state, attempt) in enumerate(
        [
            (StateName.REGISTERED, 1),
            (StateName.NOTIFYING, 1),
            (StateName.WAITING, 2),
            (StateName.PARKED, 1),
            (StateName.PARKED, 0),
            (StateName.LEAVING, 1),
        ]
    ):
        view.apply(changed(state, f"/r/{number}", attempt=attempt))
    assert sorted(worlds(view.rows.values())) == [
        ("/r/0", "actual_state_of_world"),
        ("/r/0", "desired_state_of_world"),
        ("/r/1", "actual_state_of_world"),
        ("/r/1", "desired_state_of_world"),
        ("/r/2", "desired_state_of_world"),
        ("/r/3", "desired_state_of_world"),
    ]


def test_a_socket_that_is_gone_is_counted_in_no_state() -> None:
    assert {state for state, _ in Metrics().plugins([])} == set(StateName) - {StateName.GONE}


def test_plugins_are_counted_by_the_health_that_their_handlers_report() -> None:
    """Fault 92: types without a handler share a label, and those of which nothing is reported do not count."""
    metrics, view = Metrics(), View()
    for number, health in enumerate((Health.HEALTHY, Health.HEALTHY, Health.UNHEALTHY, None)):
        socket = f"/r/{number}.sock"
        view.apply(attrs.evolve(changed(StateName.REGISTERED, socket), info=PluginInfo("CSIPlugin", "x", socket, ())))
        if health is not None:
            view.set_health(HealthReported(socket, 1, health, "", (), 0.0))
    counts = healths(metrics, view.rows.values())
    assert {key: count for key, count in counts.items() if count} == {
        ("CSIPlugin", Health.HEALTHY): 2,
        ("CSIPlugin", Health.UNHEALTHY): 1,
    }
    assert len(counts) == len(BUILT_IN_TYPES) * len(Health)


def test_instances_of_dra_drivers_are_counted_by_whether_they_are_connected() -> None:
    view = View()
    for number, health in enumerate((*Health, None)):
        socket = f"/r/{number}.sock"
        view.apply(attrs.evolve(changed(StateName.REGISTERED, socket), info=PluginInfo("DRAPlugin", "x", socket, ())))
        if health is not None:
            view.set_health(HealthReported(socket, 1, health, "", (), 0.0))
    view.apply(attrs.evolve(changed(StateName.WAITING, "/r/w.sock"), info=PluginInfo("DRAPlugin", "x", "/e", ())))
    view.apply(attrs.evolve(changed(StateName.REGISTERED, "/r/c.sock"), info=PluginInfo("CSIPlugin", "x", "/e", ())))
    # Healthy and unhealthy ones are; those that are unknown, starting or disconnected, and one without a report, not.
    assert dra_instances(view.rows.values()) == {True: 2, False: 4}


def test_restarts_of_follows_are_counted_by_type() -> None:
    """Fault 92."""
    metrics = Metrics()
    metrics.learn_types(["Colour"])
    for plugin_type in ("Colour", "Colour", "DevicePlugin", "Unknown"):
        metrics.count_link_restart(plugin_type)
    counted = {label: count for label, count in metrics.link_restarts.items() if count}
    assert counted == {"Colour": 2, "DevicePlugin": 1, "other": 1}


def after(*changes: StateChanged) -> dict[tuple[str, str], int]:
    """Return the causes that are counted after these changes."""
    view = View()
    for change in changes:
        view.apply(change)
    return causes(Metrics(), view.rows.values())


def failing(state: StateName, operation: Operation, outcome: Outcome, socket: str = "/r/a.sock") -> StateChanged:
    return attrs.evolve(changed(state, socket), finished=(Finished(operation, outcome, 0.1),))


CSI = PluginInfo("CSIPlugin", "csi", "/e", ())
REFUSED = attrs.evolve(failing(StateName.NOTIFYING, Operation.VALIDATE, Outcome.REFUSED), info=CSI)


def test_a_plugin_that_is_not_registered_counts_under_the_step_that_failed_last() -> None:
    late = failing(StateName.WAITING, Operation.GET_INFO, Outcome.TIMED_OUT)
    assert after(changed(StateName.DIALING)) == {}
    assert after(late) == {("unknown", "get-info-timed-out"): 1}
    again = attrs.evolve(changed(StateName.ASKING_INFO), finished=(Finished(Operation.DIAL, Outcome.OK, 0.1),))
    assert after(late, again) == {("unknown", "get-info-timed-out"): 1}, "it does not vanish while it is tried again"
    notified = failing(StateName.WAITING, Operation.NOTIFY, Outcome.OK)
    assert after(late, again, REFUSED, notified) == {("CSIPlugin", "validate-refused"): 1}


def test_a_refusal_counts_under_its_step_although_the_plugin_was_notified_of_it_in_the_same_report() -> None:
    steps = ((Operation.DIAL, Outcome.OK), (Operation.VALIDATE, Outcome.REFUSED), (Operation.NOTIFY, Outcome.OK))
    finished = tuple(Finished(step, outcome, 0.1) for step, outcome in steps)
    waiting = attrs.evolve(changed(StateName.WAITING), info=CSI, finished=finished)
    assert after(waiting) == {("CSIPlugin", "validate-refused"): 1}
    no_name = attrs.evolve(waiting, finished=(finished[0], finished[2]))
    assert after(no_name) == {("CSIPlugin", "claim-refused"): 1}


def test_a_plugin_that_leaves_after_it_was_refused_keeps_that_cause() -> None:
    gone = failing(StateName.WAITING, Operation.DIAL, Outcome.FAILED)
    assert after(REFUSED, gone) == {("CSIPlugin", "validate-refused"): 1}
    assert after(gone, REFUSED) == {("CSIPlugin", "validate-refused"): 1}
    assert after(gone, failing(StateName.STALE, Operation.DIAL, Outcome.TIMED_OUT)) == {
        ("unknown", "dial-timed-out"): 1
    }
    superseded = failing(StateName.DIALING, Operation.REGISTER, Outcome.SUPERSEDED)
    assert after(REFUSED, superseded) == {("CSIPlugin", "validate-refused"): 1}


def test_a_plugin_that_is_registered_or_gone_or_another_has_no_cause_any_more() -> None:
    registered = failing(StateName.REGISTERED, Operation.NOTIFY, Outcome.OK)
    assert after(REFUSED, registered) == {}
    assert after(REFUSED, registered, changed(StateName.DIALING)) == {}
    assert after(REFUSED, changed(StateName.GONE)) == {}
    assert after(REFUSED, attrs.evolve(changed(StateName.DIALING), generation=2)) == {}


def test_a_plugin_that_was_refused_although_no_step_failed_was_refused_its_name() -> None:
    """Its type has no handler, or another plugin has the name: that is decided between two steps."""
    info = attrs.evolve(failing(StateName.NOTIFYING, Operation.GET_INFO, Outcome.OK), info=CSI)
    refusal = failing(StateName.PARKED, Operation.NOTIFY, Outcome.OK)
    assert after(info, refusal) == {("CSIPlugin", "claim-refused"): 1}
    assert after(info, refusal, failing(StateName.STALE, Operation.DIAL, Outcome.FAILED)) == {
        ("CSIPlugin", "claim-refused"): 1
    }
    assert after(info, refusal, REFUSED, refusal) == {("CSIPlugin", "validate-refused"): 1}
    assert after(info, refusal, failing(StateName.REGISTERED, Operation.NOTIFY, Outcome.OK)) == {}


def test_what_no_step_explains_has_words_of_its_own() -> None:
    entry = changed(StateName.PARKED, "/r/b.sock", attempt=0)
    nothing_known = attrs.evolve(changed(StateName.WAITING, "/r/c.sock"), last_known=CSI)
    odd = attrs.evolve(REFUSED, socket="/r/d.sock", info=attrs.evolve(CSI, type="Odd"))
    assert after(entry, nothing_known, odd) == {
        ("unknown", "entry-refused"): 1,
        ("CSIPlugin", "other"): 1,
        ("other", "validate-refused"): 1,
    }


def test_a_plugin_counts_as_crashing_in_a_loop_only_while_it_waits_because_of_that() -> None:
    """Fault 49."""
    loop = attrs.evolve(changed(StateName.WAITING, attempt=0), last_known=CSI, reason=reason(7))
    unnamed = attrs.evolve(changed(StateName.WAITING, "/r/b.sock", attempt=0), reason=reason(1))
    other = attrs.evolve(loop, socket="/r/c.sock")
    assert after(loop, unnamed, other) == {("CSIPlugin", "crash-loop"): 2, ("unknown", "crash-loop"): 1}
    assert after(loop, changed(StateName.DIALING)) == {}
    assert after(loop, failing(StateName.WAITING, Operation.DIAL, Outcome.FAILED)) == {("unknown", "dial-failed"): 1}
    assert after(loop, failing(StateName.REGISTERED, Operation.NOTIFY, Outcome.OK)) == {}
    assert after(loop, changed(StateName.GONE)) == {}


def test_a_plugin_cannot_say_that_it_is_in_a_crash_loop() -> None:
    said = attrs.evolve(failing(StateName.WAITING, Operation.GET_INFO, Outcome.FAILED), reason=reason(7))
    assert after(said) == {("unknown", "get-info-failed"): 1}


def test_an_expected_plugin_is_of_use_while_one_of_its_name_is_registered_and_served() -> None:
    view = View()

    def useful(*, healthy: bool = False) -> dict[str, bool]:
        return expected_useful(("csi", "no"), view.rows.values(), healthy=healthy)

    assert useful() == {"csi": False, "no": False}
    view.apply(attrs.evolve(changed(StateName.REGISTERED), info=CSI))
    view.apply(attrs.evolve(changed(StateName.WAITING, "/r/b.sock"), info=CSI))
    assert useful() == {"csi": True, "no": False}
    assert useful(healthy=True) == {"csi": False, "no": False}
    view.set_health(HealthReported("/r/a.sock", 1, Health.HEALTHY, "", (), 2.0))
    assert useful(healthy=True) == {"csi": True, "no": False}
    view.set_serving(ServingChanged("/r/a.sock", 1, False, 3.0, "nobody listens"))
    assert useful() == useful(healthy=True) == {"csi": False, "no": False}
    assert expected_useful((), view.rows.values(), healthy=False) == {}


def test_every_way_to_watch_a_root_has_a_number() -> None:
    ways = [Watching.EVENTS, Watching.EVENTS, Watching.TAKEN]
    roots = [RootReported(f"/{number}", watching, 1.0) for number, watching in enumerate(ways)]
    others = dict.fromkeys(("polling", "insecure", "serving", "absent", "unavailable"), 0)
    assert watched(roots) == {"events": 2, "taken": 1} | others
