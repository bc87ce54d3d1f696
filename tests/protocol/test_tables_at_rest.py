"""What is kept of paths and names that came and went: next to nothing, however many they were (fault 48)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sized

import attrs

from plugind.protocol.discovery import watches as mask
from plugind.protocol.discovery.quotas import Quota
from plugind.protocol.discovery.sockets import LOOK, MAX_IGNORED, Discovery, EntryKind, Found
from plugind.protocol.discovery.watches import Watches
from plugind.protocol.health.liveness import ConnectAnswer, Schedule
from plugind.protocol.identity import Identity
from plugind.protocol.logs.limits import MAX_COUNTED, LineCounts, LogLimits, LogLine
from plugind.protocol.logs.lines import Level
from plugind.protocol.messages.discovery import ScanCompleted, SocketVanished
from plugind.protocol.messages.liveness import WatchLiveness
from plugind.protocol.messages.reconciler import (
    Claimed,
    ClaimReleased,
    HandlerAdded,
    PluginRegistered,
    RegistrationEnded,
)
from plugind.protocol.messages.status import Holder, StateChanged
from plugind.protocol.plugins.info import InstancePolicy, PluginInfo
from plugind.protocol.plugins.status import Finished, Operation, Outcome, StateName
from plugind.protocol.status.metrics import MAX_TYPES, Metrics
from plugind.protocol.status.view import GONE_KEPT, View
from plugind.protocol.world.kept_names import MOST_FORMER, NAME_KEPT, FormerHolders, KeptNames
from plugind.protocol.world.worlds import World
from plugind.tests.protocol.sockets import NOWHERE, Nowhere, appeared

MANY = 100_000
ROOT = "/reg"


def sizes(of: object) -> dict[str, int]:
    """Return the sizes of the tables of an object that have anything in them."""
    names = [name for kind in type(of).__mro__ for name in getattr(kind, "__slots__", ())]
    tables = {name: getattr(of, name) for name in (*names, *getattr(of, "__dict__", ()))}
    return {name: len(table) for name, table in tables.items() if isinstance(table, Sized) and len(table)}


def sockets(many: int = MANY) -> Iterator[str]:
    return (f"{ROOT}/{number}.sock" for number in range(many))


def found(kind: EntryKind, inode: int) -> Found:
    return Found(kind, Identity(1, inode, 0))


def test_a_root_forgets_the_entries_and_directories_that_are_gone() -> None:
    discovery = Discovery(ROOT, itertools.count(1))
    discovery.observe(ROOT, found(EntryKind.DIRECTORY, 1), time=0.0)
    before = sizes(discovery)
    for number in range(MANY // 10):
        directory = f"{ROOT}/{number}"
        discovery.observe(directory, found(EntryKind.DIRECTORY, 2), time=0.0)
        for kind, inode in ((EntryKind.SOCKET, 3), (EntryKind.SYMLINK, 4), (EntryKind.OTHER, 5)):
            discovery.observe(f"{directory}/{inode}.sock", found(kind, inode), time=0.0)
        discovery.observe(directory, None, time=0.0)
        discovery.take()
    assert sizes(discovery) == before | {"_ignored": MAX_IGNORED}
    assert all(sizes(quota) == {"_root": len(ROOT)} for quota in discovery._quotas.values())


def test_a_quota_forgets_directories_without_entries() -> None:
    quota = Quota(ROOT, 1000)
    for number in range(MANY):
        quota.add(f"{ROOT}/{number}")
        quota.add(f"{ROOT}/{number}", -1)
    assert sizes(quota) == {"_root": len(ROOT)}


def test_the_watches_of_directories_that_are_gone_are_forgotten() -> None:
    watches = Watches(ROOT)
    before = sizes(watches)
    for number in range(MANY):
        path = f"{ROOT}/{number}"
        watches.add(path, number)
        watches.trust(path)
        watches.note((number, mask.CREATE, "a.sock"))
        watches.note((number, mask.IGNORED, ""))
        watches.take()
    watches.postpone(f"{ROOT}/x", LOOK)
    watches.begin_rescan()
    watches.take()
    assert sizes(watches) == before


def test_the_world_forgets_plugins_that_left_once_a_scan_is_over() -> None:
    """Their names are kept for their users for a while, which needs no timer if nobody waits."""
    world = World([HandlerAdded("T", Nowhere(), InstancePolicy.NEWEST)])
    before = sizes(world)
    many = MANY // 10
    for number, path in enumerate(sockets(many)):
        info, now = PluginInfo("T", f"n{number}", path, (), uid=1001), number / 1000
        world.handle(appeared(1, path), now)
        world.handle(Claimed(path, 1, info), now)
        world.handle(PluginRegistered(path, 1), now)
        world.handle(SocketVanished(path, 1), now)
        world.handle(ClaimReleased(path, 1), now)
        world.handle(RegistrationEnded(path, crashed=False), now)
    world.handle(ScanCompleted(ROOT, first=False), many / 1000 + NAME_KEPT)
    left = {name: size for name, size in sizes(world).items() if name not in before and name != "_effects"}
    assert left == {"_former": MOST_FORMER}


def test_names_that_are_kept_are_forgotten_in_time_that_is_linear() -> None:
    kept = KeptNames()
    for number in range(MANY):
        kept.keep(("Colour", str(number)), 1001, now=0.0)
    kept.forget_old(NAME_KEPT / 2)
    assert len(kept) == MANY
    kept.forget_old(NAME_KEPT)
    assert len(kept) == 0
    assert kept.next_end == math.inf


def test_former_holders_of_names_are_a_thousand() -> None:
    former = FormerHolders()
    for path in sockets():
        former.add(("Colour", path), Holder(1001, path))
    assert len(former) == MOST_FORMER


def test_the_view_keeps_the_last_sockets_that_are_gone() -> None:
    view = View()
    for path in sockets():
        for state in (StateName.DIALING, StateName.GONE):
            view.apply(StateChanged(path, ROOT, 1, state, 1.0))
    assert {name: size for name, size in sizes(view).items() if name != "_history"} == {"_gone": GONE_KEPT}


def test_liveness_forgets_what_is_watched_no_more() -> None:
    schedule = Schedule(10.0)
    before = sizes(schedule)
    for number, path in enumerate(sockets(MANY // 4)):
        asked = WatchLiveness(path, 1, NOWHERE, registered=number % 2 == 0, endpoint=f"/e/{number}", pid=number)
        schedule.watch(asked, float(number), process_is_watched=False)
        schedule.ask(path)
        for subject in schedule.take(float(number)):
            schedule.judge(subject, ConnectAnswer.REFUSED, float(number))
        schedule.unwatch(path)
    assert sizes(schedule) == before


def test_the_windows_of_the_log_are_few_and_their_summaries_are_taken() -> None:
    counts = LineCounts(LogLimits(same=1, total=2 * MANY))
    for number, path in enumerate(sockets(MANY // 2)):
        line = LogLine(Level.WARNING, "plugin waiting", {"socket": path, "cause": "refused"})
        assert [counts.leaves_out(line, number / 1000) for _ in range(2)] == [False, True]
        counts.take_summaries(number / 1000)
    assert len(counts._windows) <= MAX_COUNTED
    assert len(counts._ends) <= MAX_COUNTED
    counts.take_summaries(math.inf)
    assert sizes(counts) == {}


def test_metrics_have_as_many_labels_as_before() -> None:
    metrics, done = Metrics(), Finished(Operation.REGISTER, Outcome.OK, 0.1)
    change = StateChanged("/reg/a.sock", ROOT, 1, StateName.REGISTERED, 1.0, finished=(done,))
    metrics.learn_types(f"T{number}" for number in range(MAX_TYPES))
    for number in range(MANY // 4):
        metrics.count(attrs.evolve(change, info=PluginInfo(f"T{number}", f"n{number}", "/e", ())), None)
        metrics.count_restart(f"registration /reg/{number}.sock")
    assert len(metrics.durations) <= MAX_TYPES + 1
    assert len(metrics.operations) <= len(Metrics().operations) + MAX_TYPES + 1
    assert list(metrics.restarts) == ["registration"]
