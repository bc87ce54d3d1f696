from __future__ import annotations

import attrs
from trio.testing import MockClock

from plugind.protocol.logs.lines import Level
from plugind.protocol.messages.discovery import EntryIgnored
from plugind.protocol.messages.status import ActorRestarted, RootStatus, StateChanged
from plugind.protocol.plugins.status import Finished, Operation, Outcome, StateName, Watching
from plugind.protocol.trust import directories
from plugind.tests.actors.status.bench import ROOT, bench, changed, info


async def test_changes_that_matter_are_logged_once_and_repeats_are_not(autojump_clock: MockClock) -> None:
    """Kubernetes issue 94827: repeated failures must not fill the log."""

    def waiting(time: float, reason: str, attempt: int) -> StateChanged:
        return attrs.evolve(changed("a", StateName.WAITING, time), reason=reason, attempt=attempt, next_try=time + 0.5)

    async with bench(level=Level.INFO) as node:
        await node.take(
            changed("a", StateName.DIALING),
            waiting(1.0, "no answer", 1),
            changed("a", StateName.DIALING, 2.0),
            waiting(3.0, "no answer", 2),
            changed("a", StateName.DIALING, 4.0),
            waiting(5.0, "refused", 3),
            attrs.evolve(changed("a", StateName.REGISTERED, 6.0), info=info("a"), registered_in=6.0, attempt=4),
            changed("a", StateName.LEAVING, 7.0),
            attrs.evolve(changed("a", StateName.GONE, 7.0), reason="the socket was removed"),
        )
    logged = [(message, fields["cause"], fields["attempt"], fields["name"]) for _, message, fields in node.log.events]
    assert logged == [
        ("plugin waiting", "no answer", 1, None),
        ("plugin waiting", "refused", 3, None),
        ("plugin registered", None, 4, "a"),
        ("plugin gone", "the socket was removed", None, "a"),
    ]


async def test_with_the_level_warning_each_failure_is_shown_once_for_each_cause(autojump_clock: MockClock) -> None:
    """Kubernetes issue 94827: two causes that take turns are two lines.

    A success makes both news again, and so does a newer socket.
    """

    def failed(state: StateName, reason: str) -> StateChanged:
        return attrs.evolve(changed("a", state), reason=reason, attempt=1)

    hung = failed(StateName.WAITING, "no answer")
    refused = failed(StateName.WAITING, "refused")
    stale = failed(StateName.STALE, "nobody listens")
    parked = failed(StateName.PARKED, "no handler")
    dialing, registered = changed("a", StateName.DIALING), changed("a", StateName.REGISTERED)
    async with bench(level=Level.WARNING) as node:
        for change in (hung, refused, hung, refused, stale, hung, stale, parked, stale, parked):
            await node.take(dialing, change)
        await node.take(registered, dialing, hung, attrs.evolve(hung, generation=2), changed("a", StateName.GONE))
    logged = [(level, message, fields["cause"]) for level, message, fields in node.log.events]
    assert logged == [
        (Level.WARNING, "plugin waiting", "no answer"),
        (Level.WARNING, "plugin waiting", "refused"),
        (Level.WARNING, "plugin stale", "nobody listens"),
        (Level.WARNING, "plugin parked", "no handler"),
        (Level.WARNING, "plugin waiting", "no answer"),
        (Level.WARNING, "plugin waiting", "no answer"),
    ]


async def test_a_root_that_was_made_is_logged(autojump_clock: MockClock) -> None:
    """Behaviour 1."""
    async with bench() as node:
        made = RootStatus(ROOT, Watching.EVENTS, 0.0, ready=True, made=True)
        await node.take(made, attrs.evolve(made, made=False, scans=2))
    assert [event[:2] for event in node.log.events] == [
        (Level.INFO, "root was missing and was made"),
        (Level.INFO, "root is watched"),
    ]


async def test_what_only_looks_like_a_socket_is_logged_once(autojump_clock: MockClock) -> None:
    """Fault 6: a watcher that is restarted reports it again."""
    fifo, directory = EntryIgnored("/r/a.sock", ROOT), EntryIgnored("/r/b.sock", ROOT, directory=True)
    async with bench() as node:
        await node.take(fifo, directory, fifo, directory)
    assert [(level, message, fields["path"]) for level, message, fields in node.log.events] == [
        (Level.WARNING, "not a socket", "/r/a.sock"),
        (Level.WARNING, "a directory has the name of a socket", "/r/b.sock"),
    ]


async def test_no_more_than_a_hundred_refused_entries_of_a_root_are_logged(autojump_clock: MockClock) -> None:
    """Fault 7: the hundred and first is only counted, in one line; its end is not logged either."""
    refused = [attrs.evolve(changed(f"link{number}", StateName.PARKED), cause="a link") for number in range(103)]
    report = RootStatus(ROOT, Watching.EVENTS, 0.0, ready=True)
    async with bench(level=Level.INFO) as node:
        await node.take(*refused, report, attrs.evolve(report, scans=2))
        said = [(message, fields.get("more")) for _, message, fields in node.log.events]
        assert said[:100] == [("plugin parked", None)] * 100
        assert sorted(said[100:], key=str) == [
            ("more entries are refused than are logged", 3),
            ("root is watched", None),
        ]
        node.log.events.clear()
        await node.take(*(attrs.evolve(entry, state=StateName.GONE, cause=None, time=1.0) for entry in refused[99:101]))
        assert [fields["socket"] for _, _, fields in node.log.events] == ["/r/link99.sock"]
        # Another root has a hundred lines of its own.
        await node.take(attrs.evolve(refused[0], socket="/s/link.sock", root="/s"))
        assert node.log.events[-1][1] == "plugin parked"


async def test_problems_of_a_root_and_crashes_are_warnings(autojump_clock: MockClock) -> None:
    async with bench(level=Level.INFO) as node:
        well = RootStatus(ROOT, Watching.EVENTS, 0.0, ready=True)
        await node.take(
            well,
            attrs.evolve(well, scans=2),
            attrs.evolve(well, watching=Watching.POLLING, reason="no watches left"),
            attrs.evolve(well, watching=Watching.UNAVAILABLE, reason="Permission denied", ready=False),
            ActorRestarted("registration /r/a.sock", "Traceback (most recent call last):\n  …\nKeyError: 1\n"),
        )
    assert [
        (level, message, fields.get("reason") or fields.get("error")) for level, message, fields in node.log.events
    ] == [
        (Level.INFO, "root is watched", None),
        (Level.WARNING, "root is polled", "no watches left"),
        (Level.WARNING, "root is unavailable", "Permission denied"),
        (Level.WARNING, "actor crashed and was restarted", "KeyError: 1"),
    ]


async def test_a_plugin_in_a_deprecated_root_is_registered_with_a_warning(autojump_clock: MockClock) -> None:
    """Behaviour 16: the help promised it, and the line was like any other."""
    old = attrs.evolve(changed("old", StateName.REGISTERED), deprecated=True)
    async with bench(level=Level.INFO) as node:
        await node.take(changed("a", StateName.REGISTERED), old, attrs.evolve(old, time=1.0))
    assert [(level, fields["socket"], fields["warning"]) for level, _, fields in node.log.events] == [
        (Level.INFO, "/r/a.sock", None),
        (Level.WARNING, "/r/old.sock", "the socket lies in a deprecated directory"),
    ]


async def test_a_socket_that_is_removed_during_a_dial_is_no_warning(autojump_clock: MockClock) -> None:
    """Only a deregistration that failed is one (fault 84)."""
    gone = changed("a", StateName.GONE)
    superseded = Finished(Operation.DIAL, Outcome.SUPERSEDED, 0.1)
    failed = Finished(Operation.DEREGISTER, Outcome.FAILED, 0.1)
    async with bench(level=Level.INFO) as node:
        for finished in (superseded, failed):
            await node.take(changed("a", StateName.DIALING), attrs.evolve(gone, finished=(finished,)))
    assert [(level, message, fields["outcome"]) for level, message, fields in node.log.events] == [
        (Level.INFO, "plugin gone", "dial superseded"),
        (Level.WARNING, "plugin gone", "deregister failed"),
    ]


async def test_each_change_of_a_directory_is_logged_once_and_an_insecure_root_as_a_root_alone(
    autojump_clock: MockClock,
) -> None:
    """Fault 3: the log said at each try that the root, which still was insecure, no longer was."""
    insecure = directories.DirectoryReport(ROOT, directories.DirectoryCondition.INSECURE, "everybody may write")
    of_group = directories.DirectoryReport(ROOT, directories.DirectoryCondition.GROUP_WRITABLE, "its group may write")
    well = RootStatus(ROOT, Watching.EVENTS, 0.0, ready=True)
    bad = attrs.evolve(
        well, watching=Watching.INSECURE, ready=False, reason="everybody may write", directories=(insecure,)
    )
    async with bench() as node:
        for report in well, bad, bad, bad, well, attrs.evolve(well, directories=(of_group,)):
            await node.take(report, attrs.evolve(report, time=1.0))
        await node.take(well)
    assert [(level, message, fields.get("reason")) for level, message, fields in node.log.events] == [
        (Level.INFO, "root is watched", None),
        (Level.WARNING, "root is insecure", "everybody may write"),
        (Level.INFO, "root is watched", None),
        (Level.WARNING, "directory is group-writable", "its group may write"),
        (Level.INFO, "directory is no longer group-writable", None),
    ]
