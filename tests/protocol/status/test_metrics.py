from __future__ import annotations

import attrs
import pytest

from plugind.protocol.messages.status import HealthReported, RootStatus, ServingChanged, StateChanged
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


def test_the_type_of_a_socket_is_unknown_only_before_its_info_arrives() -> None:
    unknown = {operation for operation, label, _ in Metrics().operations if label == "unknown"}
    assert unknown == {Operation.DIAL, Operation.GET_INFO}


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


LATE = failing(StateName.WAITING, Operation.GET_INFO, Outcome.TIMED_OUT)
AGAIN = attrs.evolve(changed(StateName.ASKING_INFO), finished=(Finished(Operation.DIAL, Outcome.OK, 0.1),))
NOTIFIED = failing(StateName.WAITING, Operation.NOTIFY, Outcome.OK)
UNREACHABLE = failing(StateName.WAITING, Operation.DIAL, Outcome.FAILED)
REGISTERED = failing(StateName.REGISTERED, Operation.NOTIFY, Outcome.OK)
#: Its type has no handler, or another plugin has the name: that is decided between two steps, of which none fails.
UNCLAIMED = (
    attrs.evolve(failing(StateName.NOTIFYING, Operation.GET_INFO, Outcome.OK), info=CSI),
    failing(StateName.PARKED, Operation.NOTIFY, Outcome.OK),
)
#: Fault 49.
LOOP = attrs.evolve(changed(StateName.WAITING, attempt=0), last_known=CSI, reason=reason(7))


def all_steps(*outcomes: tuple[Operation, Outcome]) -> StateChanged:
    """Return the end of a try that is told in one report."""
    finished = tuple(Finished(step, outcome, 0.1) for step, outcome in outcomes)
    return attrs.evolve(changed(StateName.WAITING), info=CSI, finished=finished)


@pytest.mark.parametrize(
    ("changes", "label", "cause"),
    [
        ((changed(StateName.DIALING),), "", None),
        ((LATE,), "unknown", "get-info-timed-out"),
        ((LATE, AGAIN), "unknown", "get-info-timed-out"),
        ((LATE, AGAIN, REFUSED, NOTIFIED), "CSIPlugin", "validate-refused"),
        (
            (all_steps((Operation.VALIDATE, Outcome.REFUSED), (Operation.NOTIFY, Outcome.OK)),),
            "CSIPlugin",
            "validate-refused",
        ),
        ((all_steps((Operation.DIAL, Outcome.OK), (Operation.NOTIFY, Outcome.OK)),), "CSIPlugin", "claim-refused"),
        ((REFUSED, UNREACHABLE), "CSIPlugin", "validate-refused"),
        ((UNREACHABLE, REFUSED), "CSIPlugin", "validate-refused"),
        (
            (UNREACHABLE, failing(StateName.STALE, Operation.DIAL, Outcome.TIMED_OUT)),
            "unknown",
            "dial-timed-out",
        ),
        (
            (REFUSED, failing(StateName.DIALING, Operation.REGISTER, Outcome.SUPERSEDED)),
            "CSIPlugin",
            "validate-refused",
        ),
        ((REFUSED, REGISTERED), "", None),
        ((REFUSED, REGISTERED, changed(StateName.DIALING)), "", None),
        ((REFUSED, changed(StateName.GONE)), "", None),
        ((REFUSED, attrs.evolve(changed(StateName.DIALING), generation=2)), "", None),
        (UNCLAIMED, "CSIPlugin", "claim-refused"),
        (
            (*UNCLAIMED, failing(StateName.STALE, Operation.DIAL, Outcome.FAILED)),
            "CSIPlugin",
            "claim-refused",
        ),
        ((*UNCLAIMED, REFUSED, UNCLAIMED[1]), "CSIPlugin", "validate-refused"),
        ((*UNCLAIMED, REGISTERED), "", None),
        ((changed(StateName.PARKED, attempt=0),), "unknown", "entry-refused"),
        ((attrs.evolve(changed(StateName.WAITING), last_known=CSI),), "CSIPlugin", "other"),
        ((attrs.evolve(REFUSED, info=attrs.evolve(CSI, type="Odd")),), "other", "validate-refused"),
        ((LOOP,), "CSIPlugin", "crash-loop"),
        ((attrs.evolve(LOOP, last_known=None),), "unknown", "crash-loop"),
        ((LOOP, changed(StateName.DIALING)), "", None),
        ((LOOP, UNREACHABLE), "unknown", "dial-failed"),
        ((LOOP, REGISTERED), "", None),
        # A plugin cannot say that it is in a crash loop.
        (
            (attrs.evolve(failing(StateName.WAITING, Operation.GET_INFO, Outcome.FAILED), reason=reason(7)),),
            "unknown",
            "get-info-failed",
        ),
    ],
)
def test_a_plugin_that_is_not_registered_counts_under_the_cause_of_that(
    changes: tuple[StateChanged, ...], label: str, cause: str | None
) -> None:
    """That of the step that failed last, until it is registered or gone; it does not vanish while it is tried again."""
    assert after(*changes) == ({} if cause is None else {(label, cause): 1})


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
    roots = [RootStatus(f"/{number}", watching, 1.0) for number, watching in enumerate(ways)]
    others = dict.fromkeys(("polling", "insecure", "serving", "absent", "unavailable"), 0)
    assert watched(roots) == {"events": 2, "taken": 1} | others
