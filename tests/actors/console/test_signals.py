"""What SIGUSR1 logs."""

from __future__ import annotations

import attrs

from plugind.actors.console.signals import log_states
from plugind.protocol.messages.status import RootStatus, Snapshot
from plugind.protocol.plugins.status import PluginStatus, StateName, Watching
from plugind.tests.actors.status.bench import RecordingLogger

SERVING = PluginStatus("/r/a.sock", "/r", 1, StateName.REGISTERED, 0.0, serving=True)
DEAD = attrs.evolve(SERVING, socket="/r/b.sock", serving=False, not_serving="nobody listens")
WAITING = PluginStatus("/r/c.sock", "/r", 1, StateName.WAITING, 0.0, cause="no answer")


async def test_the_line_of_a_root_counts_the_sockets_that_are_known_now() -> None:
    """The watcher counts them when it scans, and most appear between two scans."""
    log = RecordingLogger()
    roots = (RootStatus("/r", Watching.EVENTS, 0.0, sockets=0), RootStatus("/s", Watching.EVENTS, 0.0, sockets=7))
    await log_states(Snapshot(1.0, (SERVING, DEAD), roots, ()), log)
    assert [(fields["root"], fields["sockets"]) for _, message, fields in log.events if message == "root"] == [
        ("/r", 2),
        ("/s", 0),
    ]


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
