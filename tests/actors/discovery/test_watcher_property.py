"""For random operations and any delivery of events, the watcher finally reports exactly the sockets that exist."""

from __future__ import annotations

import contextlib

import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from plugind.actors.discovery.scanner import READ_GAP, TOUCH
from plugind.actors.simulation.directory import MemoryDirectory, Telling
from plugind.tests.actors.discovery.watching import ROOT, Stage, staged

# There are only a few names, so that each is used several times, for directories and for sockets.
NAMES = st.sampled_from(["a", "b", "c", "d/a", "d/e", "d"])
# Plugins act more often than faults happen; otherwise most examples would consist of faults.
OFTEN = ["bind", "unlink", "replace", "rename", "link", "mkdir", "settle"] * 4 + ["bind"] * 4
SELDOM = ["chmod", "remove", "write", "symlink", "tick", "delay", "release"] * 2
# Each of these causes a rescan, which would hide what the events missed.
RUIN = ["overflow", "lose_watch", "remove_root", "move_root"]
OPERATION = st.tuples(st.sampled_from(OFTEN + SELDOM), NAMES, NAMES)
STORY = st.lists(OPERATION, min_size=12, max_size=40)
RUINED = st.tuples(STORY, st.tuples(st.sampled_from(RUIN), NAMES, NAMES), STORY).map(lambda s: [*s[0], s[1], *s[2]])
LOSS = st.sampled_from(["drop", "resume"])
Operation = tuple[str, str, str]


def do(directory: MemoryDirectory, operation: Operation) -> None:
    """Perform one operation. An impossible one fails as on a real node."""
    verb, first, second = operation
    one, two = f"{ROOT}/{first}", f"{ROOT}/{second}"
    there = sorted(directory.sockets(ROOT))
    if verb in {"unlink", "replace", "chmod", "link", "rename"} and there and not directory.exists(one):
        one = there[len(first + second) % len(there)]
    match verb:
        case "bind":
            directory.mkdir(one.rpartition("/")[0])
            directory.bind(one)
        case "write":
            directory.write(one)
        case "unlink":
            directory.unlink(one)
        case "replace":
            directory.replace(one)
        case "chmod":
            directory.chmod(one)
        case "mkdir":
            directory.mkdir(one)
        case "remove":
            directory.remove_tree(one)
        case "rename":
            directory.rename(one, two)
        case "link":
            directory.link(one, two)
        case "symlink":
            directory.symlink(one, two)
        case "delay":
            directory.delay_events()
        case "release":
            directory.release_events()
        case "overflow":
            directory.overflow()
        case "lose_watch":
            directory.lose_watch(one)
        case "remove_root":
            directory.remove_tree(ROOT)
        case "move_root":
            directory.rename(ROOT, f"{ROOT}.{len(directory.names('/run'))}")
        case "drop":
            directory.drop_events()
        case "resume":
            directory.resume_events()
        case _:
            raise AssertionError(verb)


async def play(stage: Stage, operations: list[Operation]) -> None:
    for operation in operations:
        match operation[0]:
            case "settle":
                await stage.sent()
            case "tick":
                await trio.sleep(0.004)
            case _:
                with contextlib.suppress(OSError):
                    do(stage.directory, operation)


def agrees(stage: Stage) -> None:
    """Check that each existing socket is known under exactly one of its paths, and that no other socket is known."""
    there = stage.directory.sockets(ROOT)
    inodes = {path: there.get(path) for path in stage.sockets}
    assert None not in inodes.values(), f"known, but missing: {inodes}"
    assert sorted(set(there.values())) == sorted(inode for inode in inodes.values() if inode)
    assert stage.generations == sorted(set(stage.generations))


def run(operations: list[Operation], reuse_inodes: bool, telling: Telling, patience: float) -> None:
    async def main() -> None:
        directory = MemoryDirectory(reuse_inodes=reuse_inodes, telling=telling)
        async with staged(directory) as stage:
            await play(stage, operations)
            stage.directory.release_events()
            stage.directory.resume_events()
            await trio.sleep(patience)
            agrees(stage)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(STORY, RUINED), st.booleans(), st.sampled_from(Telling))
def test_events_alone_are_enough_unless_some_are_lost_without_an_overflow(
    operations: list[Operation], reuse: bool, telling: Telling
) -> None:
    """Behaviours 3, 4, 8 to 11, 13, faults 8 to 15 and 20: no rescan is due yet, and each generation is used once."""
    run(operations, reuse, telling, patience=1.0)


#: A new file with the number of the first one takes its place, unnoticed, and then has two names.
REPLACED_AND_LINKED = [
    *((verb, "a", "b") for verb in ("bind", "settle", "drop", "replace", "rename")),
    ("link", "b", "a"),
]
#: A new file takes the number and the path of the second one, and is linked to the path of the first one, whose number
#: another file takes.
BOTH_REPLACED_AND_LINKED = [
    ("bind", "b", "b"),
    *((verb, "c", "c") for verb in ("bind", "settle", "drop")),
    ("unlink", "b", "b"),
    ("replace", "c", "c"),
    ("bind", "a", "a"),
    ("link", "c", "b"),
]


@example(
    operations=[(verb, "a", "a") for verb in ("bind", "settle", "drop", "unlink", "mkdir")],
    reuse=True,
    telling=Telling.HANDLES,
)
@example(operations=REPLACED_AND_LINKED, reuse=True, telling=Telling.HANDLES)
@example(operations=BOTH_REPLACED_AND_LINKED, reuse=True, telling=Telling.HANDLES)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.one_of(OPERATION, st.tuples(LOSS, NAMES, NAMES)), min_size=12, max_size=40),
    st.booleans(),
    st.sampled_from(Telling),
)
def test_a_rescan_recovers_from_events_that_are_lost_without_an_overflow(
    operations: list[Operation], reuse: bool, telling: Telling
) -> None:
    """Behaviour 14."""
    run(operations, reuse, telling, patience=31.0)


@example(
    operations=[(verb, "a", "a") for verb in ("chmod", "replace", "chmod", "chmod", "delay", "replace")],
    telling=Telling.HANDLES,
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.sampled_from(["replace", "chmod", "settle", "tick", "delay", "release"]), st.just("a"), NAMES),
        max_size=20,
    ),
    st.sampled_from(Telling),
)
def test_a_recreated_socket_is_one_new_generation_for_each_batch_of_events(
    operations: list[Operation], telling: Telling
) -> None:
    """Behaviours 9 and 13, fault 11: inode and change time stay the same; a batch with a removal is one generation."""

    async def main() -> None:
        async with staged(MemoryDirectory(telling=telling)) as stage:
            stage.directory.bind(f"{ROOT}/a")
            await stage.sent()
            expected = 1
            removed = False
            for operation in [*operations, ("release", "a", "a"), ("settle", "a", "a")]:
                if operation[0] == "delay":
                    # A look at changed attributes that still waits would find what the delayed events are about.
                    await trio.sleep(TOUCH + READ_GAP)
                await play(stage, [operation, ("settle", "a", "a")])
                await trio.sleep(2 * READ_GAP)
                removed = removed or operation[0] == "replace"
                if removed and not stage.directory.delaying_events:
                    expected, removed = expected + 1, False
                assert stage.latest == {f"{ROOT}/a": expected}

    trio.run(main, clock=MockClock(autojump_threshold=0))
