from __future__ import annotations

import attrs

from plugind.protocol.messages.status import HealthReported, PluginDisplaced, StateChanged
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.info import PluginInfo
from plugind.protocol.plugins.status import Finished, Operation, Outcome, PluginStatus, StateName
from plugind.protocol.status.view import View
from plugind.protocol.words import Step

INFO = PluginInfo("CSIPlugin", "csi.example.com", "/r/a.sock", ("1.0.0",))


def change(state: StateName, time: float = 1.0, *, socket: str = "/r/a.sock", generation: int = 1) -> StateChanged:
    return StateChanged(socket, "/r", generation, state, time)


def only(view: View) -> PluginStatus:
    (row,) = view.rows.values()
    return row.status


def test_the_health_of_a_plugin_stays_while_it_is_notified_again_and_goes_when_it_leaves() -> None:
    """Behaviour 33: a plugin that is notified again is dialed, and its handler has it all the time (seed 319)."""
    view = View()
    view.apply(change(StateName.NOTIFYING, 1.0))
    view.apply(change(StateName.WAITING, 2.0))
    assert view.set_health(HealthReported("/r/a.sock", 1, Health.HEALTHY, "", (), 2.5)) is not None
    view.apply(change(StateName.DIALING, 3.0))
    view.apply(change(StateName.REGISTERED, 4.0))
    assert only(view).health is Health.HEALTHY
    view.apply(change(StateName.LEAVING, 5.0))
    assert view.set_health(HealthReported("/r/a.sock", 1, Health.UNHEALTHY, "", (), 5.5)) is None
    view.apply(change(StateName.DIALING, 6.0))
    assert only(view).health is None


def test_a_socket_that_waits_after_short_lives_is_found_by_the_last_known_name() -> None:
    """Fault 49: what the plugin says itself counts for more; nothing but type and name is taken from the last one."""
    view = View()
    waiting = attrs.evolve(change(StateName.WAITING, generation=2), last_known=INFO)
    view.apply(waiting)
    assert [row.last.generation for row in view.find("csi.example.com")] == [2]
    expected = PluginStatus("/r/a.sock", "/r", 2, StateName.WAITING, 1.0, type="CSIPlugin", name="csi.example.com")
    assert only(view) == attrs.evolve(expected, last_known=True)
    other = PluginInfo("CSIPlugin", "other.example.com", "/r/a.sock", ("1.0.0",))
    view.apply(attrs.evolve(waiting, state=StateName.VALIDATING, info=other))
    # A change without an info does not forget it.
    view.apply(attrs.evolve(waiting, state=StateName.REGISTERING))
    assert (only(view).name, only(view).versions, only(view).last_known) == ("other.example.com", ("1.0.0",), False)
    assert view.find("csi.example.com") == []


def test_a_late_change_of_an_older_generation_than_one_that_is_gone_is_ignored() -> None:
    """A refused entry took the place of a socket and is gone; what that socket's registration did last comes late.

    Its end would be logged twice otherwise (seed 2700031).
    """
    view = View()
    view.apply(attrs.evolve(change(StateName.PARKED, 1.0, generation=1), attempt=1))
    view.apply(attrs.evolve(change(StateName.PARKED, 2.0, generation=3), attempt=0, reason="a hard link"))
    view.apply(change(StateName.GONE, 2.0, generation=3))
    for late in (StateName.DIALING, StateName.WAITING, StateName.GONE):
        assert view.apply(change(late, 2.0, generation=1)) == (None, None)
    assert view.rows == {}
    view.apply(change(StateName.LEAVING, 2.0, generation=1))
    assert only(view).state is StateName.LEAVING
    view.apply(change(StateName.GONE, 12.0, generation=1))
    view.apply(change(StateName.DIALING, 12.0, generation=4))
    assert only(view).generation == 4


def test_a_file_name_is_enough_if_one_socket_has_it() -> None:
    view = View()
    view.apply(change(StateName.STALE))
    assert [row.last.socket for row in view.find("a.sock")] == ["/r/a.sock"]
    assert view.find("sock") == []
    view.apply(change(StateName.STALE, socket="/q/a.sock"))
    assert view.find("a.sock") == []
    assert len(view.with_file_name("a.sock")) == 2


def test_the_steps_are_those_of_the_last_try_alone() -> None:
    """Also if the first report of a try says that it has begun, and that nothing of it has ended."""

    def ended(operation: Operation, seconds: float) -> tuple[Finished, ...]:
        return (Finished(operation, Outcome.OK, seconds),)

    view = View()
    view.apply(attrs.evolve(change(StateName.WAITING), finished=ended(Operation.DIAL, 8.0)))
    view.apply(attrs.evolve(change(StateName.DIALING), step=Step.DIAL))
    assert only(view).steps == ()
    view.apply(attrs.evolve(change(StateName.ASKING_INFO), step=Step.INFO, finished=ended(Operation.DIAL, 0.5)))
    view.apply(attrs.evolve(change(StateName.REGISTERED), finished=ended(Operation.GET_INFO, 0.25)))
    steps = ((Step.DIAL, 0.5), (Step.INFO, 0.25))
    assert only(view).steps == steps
    # The status actor asked for the report again after its crash.
    view.apply(change(StateName.REGISTERED))
    assert only(view).steps == steps


def test_a_remark_is_an_entry_of_the_history_and_no_change_of_state() -> None:
    """Fault 80: it counts among the entries that are kept."""
    view = View(history=2)
    view.apply(change(StateName.REGISTERED, 1.0))
    view.add_remark("/r/a.sock", 0, 2.0, "of an earlier generation")
    view.add_remark("/r/other.sock", 1, 2.0, "of another socket")
    view.add_remark("/r/a.sock", 1, 2.0, "passed")
    view.add_remark("/r/a.sock", 1, 3.0, "passed again")
    (row,) = view.rows.values()
    assert [(entry.time, entry.state, entry.reason) for entry in row.status_with_history.history] == [
        (2.0, StateName.REGISTERED, "passed"),
        (3.0, StateName.REGISTERED, "passed again"),
    ]
    assert (only(view).reason, only(view).since) == (None, 1.0)


def test_a_plugin_whose_endpoint_another_one_has_is_not_active_until_it_gets_that_back() -> None:
    """Fault 79."""
    view = View()
    view.apply(change(StateName.VALIDATING, 1.0))
    assert view.set_displaced(PluginDisplaced("/r/a.sock", 1, "taken")) is not None
    assert view.set_displaced(PluginDisplaced("/r/a.sock", 1, "taken")) is None
    view.apply(change(StateName.REGISTERED, 2.0))
    assert (only(view).active, only(view).warnings) == (False, ("taken",))
    assert view.set_displaced(PluginDisplaced("/r/a.sock", 0, None)) is None
    assert view.set_displaced(PluginDisplaced("/r/a.sock", 1, None)) is not None
    assert (only(view).active, only(view).warnings) == (True, ())
    view.set_displaced(PluginDisplaced("/r/a.sock", 1, "taken"))
    view.apply(change(StateName.REGISTERED, 3.0, generation=2))
    assert only(view).active
