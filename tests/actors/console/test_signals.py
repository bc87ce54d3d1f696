"""What SIGUSR1 logs."""

from __future__ import annotations

import attrs

from plugind.actors.console.signals import log_states
from plugind.protocol.messages import Snapshot
from plugind.protocol.status import PluginStatus, StateName
from plugind.tests.actors.status.test_status import RecordingLogger

SERVING = PluginStatus("/r/a.sock", "/r", 1, StateName.REGISTERED, 0.0, serving=True)
DEAD = attrs.evolve(SERVING, socket="/r/b.sock", serving=False, not_serving="nobody listens")
WAITING = PluginStatus("/r/c.sock", "/r", 1, StateName.WAITING, 0.0, cause="no answer")


async def test_registered_plugins_that_do_not_serve_are_shown_and_counted() -> None:
    """Fault 39: they were like the others."""
    log = RecordingLogger()
    await log_states(Snapshot(1.0, (SERVING, DEAD, WAITING), (), ()), log)
    *lines, (_, _, summary) = log.events
    assert [(fields["socket"], fields["serving"], fields["cause"]) for _, _, fields in lines] == [
        ("/r/b.sock", False, "nobody listens"),
        ("/r/c.sock", None, "no answer"),
        ("/r/a.sock", None, None),
    ]
    assert summary["by_state"] == "1 waiting, 2 registered, 1 of them not serving"
    log = RecordingLogger()
    await log_states(Snapshot(1.0, (SERVING, WAITING), (), ()), log)
    assert log.events[-1][2]["by_state"] == "1 waiting, 1 registered"
