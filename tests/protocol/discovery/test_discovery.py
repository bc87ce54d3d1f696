"""The rules for new generations: observations of paths, and the messages that follow."""

from __future__ import annotations

import itertools

import pytest

from plugind.protocol.discovery.sockets import ATTRIBUTES, LOOK, MAX_IGNORED, REMOVED, Discovery, EntryKind, Found
from plugind.protocol.identity import Identity
from plugind.protocol.messages.discovery import (
    EntryIgnored,
    EntryRefused,
    SocketAppeared,
    SocketTouched,
    SocketVanished,
)
from plugind.protocol.trust.directories import Access, DirectoryCondition

ROOT = "/r"
A, B, C = "/r/a.sock", "/r/b.sock", "/r/c.sock"


def found(
    inode: int,
    changed: int = 0,
    kind: EntryKind = EntryKind.SOCKET,
    device: int = 1,
    handle: bytes | None = None,
    born: int | None = None,
) -> Found:
    return Found(kind, Identity(device, inode, changed, handle, born))


def directory(inode: int) -> Found:
    return found(inode, kind=EntryKind.DIRECTORY)


def discovery(max_depth: int = 8, max_entries: int = 100) -> Discovery:
    made = Discovery(ROOT, itertools.count(1), max_depth=max_depth, max_entries=max_entries)
    made.observe(ROOT, directory(1), time=0.0)
    assert made.take().enter == [ROOT]
    return made


def appeared(path: str, generation: int, seen: Found, time: float = 0.0, first: bool = False) -> SocketAppeared:
    return SocketAppeared(path, generation, seen.identity, ROOT, time, first_scan=first)


NEW, TOUCHED, NOTHING = "new", "touched", "nothing"


@pytest.mark.parametrize(
    ("after", "marks", "trusted", "expected"),
    [
        (found(7, 5), 0, True, NOTHING),
        (found(7, 5), LOOK, True, NOTHING),  # behaviour 9: an event about an entry that a scan has found
        (found(7, 5), 0, False, NOTHING),
        (found(7, 5), LOOK | REMOVED, True, NEW),  # behaviour 13: inode and time are reused
        (found(7, 5), LOOK | REMOVED | ATTRIBUTES, True, NEW),
        (found(7, 6), LOOK | REMOVED, True, NEW),
        (found(8, 5), LOOK, True, NEW),  # fault 10: another socket was renamed over it
        (found(8, 5), 0, False, NEW),
        (found(7, 5, device=2), 0, True, NEW),
        (found(7, 5), LOOK | ATTRIBUTES, True, TOUCHED),  # a chmod within one tick
        (found(7, 6), LOOK | ATTRIBUTES, True, TOUCHED),  # behaviour 3
        (found(7, 6), 0, True, TOUCHED),  # a hard link was made
        (found(7, 6), 0, False, NEW),  # without inotify, or after an overflow
        (found(7, 6), LOOK | ATTRIBUTES, False, NEW),  # the chmod may belong to a recreated socket
    ],
)
def test_the_second_look_at_a_known_socket(after: Found, marks: int, trusted: bool, expected: str) -> None:
    """Behaviours 3, 9 and 13, faults 10 and 11."""
    tree = discovery()
    before = found(7, 5)
    tree.observe(A, before, time=1.0)
    assert tree.take().messages == [appeared(A, 1, before, 1.0)]
    tree.observe(A, after, marks, time=2.0, trusted=trusted)
    follows = {NEW: [appeared(A, 2, after, 2.0)], TOUCHED: [SocketTouched(A, 1, after.identity)], NOTHING: []}
    assert tree.take().messages == follows[expected]
    assert tree.sockets == 1
    tree.observe(A, after, time=3.0)
    assert tree.take().messages == []


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize(
    ("after", "marks", "expected"),
    [
        (found(7, 5, handle=b"h"), 0, NOTHING),
        (found(7, 5, handle=b"h"), LOOK, NOTHING),
        (found(7, 5, handle=b"h"), LOOK | REMOVED, NOTHING),  # the removal is that of the socket before
        (found(7, 5, handle=b"h"), LOOK | REMOVED | ATTRIBUTES, TOUCHED),
        (found(7, 6, handle=b"h"), LOOK | REMOVED, TOUCHED),  # a rename and back, or a hard link in its place
        (found(7, 6, handle=b"h"), LOOK | ATTRIBUTES, TOUCHED),  # a chmod
        (found(7, 6, handle=b"h"), 0, TOUCHED),  # a hard link
        (found(7, 5, handle=b"i"), 0, NEW),  # the inode number and the times of the old one
        (found(7, 5, handle=b"i"), LOOK | REMOVED, NEW),
        (found(7, 6, handle=b"i"), LOOK | ATTRIBUTES, NEW),
        (found(8, 5, handle=b"h"), 0, NEW),
        (found(7, 5, handle=b"h", device=2), 0, NEW),  # a mount
    ],
)
def test_with_a_file_handle_events_make_no_difference(after: Found, marks: int, trusted: bool, expected: str) -> None:
    """Behaviours 9 and 13: another handle is another socket, and the same handle is the same one, whatever was seen."""
    assert follows_upon(found(7, 5, handle=b"h"), after, marks, trusted=trusted) == expected


@pytest.mark.parametrize(
    ("after", "marks", "trusted", "expected"),
    [
        (found(7, 5, born=5), LOOK, True, NOTHING),
        (found(7, 5, born=5), LOOK | REMOVED, True, NEW),  # two sockets may share one tick of the clock
        (found(7, 6, born=6), 0, True, NEW),
        (found(7, 6, born=6), 0, False, NEW),
        (found(7, 6, born=5), 0, True, TOUCHED),
        (found(7, 6, born=5), 0, False, TOUCHED),  # polling alone: a chmod
    ],
)
def test_a_birth_time_replaces_a_missing_handle(after: Found, marks: int, trusted: bool, expected: str) -> None:
    """Behaviour 13: overlayfs before Linux 6.6, for example, has no handles."""
    assert follows_upon(found(7, 5, born=5), after, marks, trusted=trusted) == expected


def follows_upon(before: Found, after: Found, marks: int, *, trusted: bool) -> str:
    tree = discovery()
    tree.observe(A, before, time=1.0)
    tree.take()
    tree.observe(A, after, marks, time=2.0, trusted=trusted)
    match tree.take().messages:
        case [SocketAppeared()]:
            return NEW
        case [SocketTouched()]:
            return TOUCHED
        case []:
            return NOTHING
        case messages:
            raise AssertionError(messages)


def test_two_sockets_that_share_an_inode_number_are_no_hard_links() -> None:
    """Fault 8: the number was used again, and the removal of the first socket, which is looked for, is not seen yet."""
    tree = discovery()
    tree.observe(A, found(7, handle=b"h"), time=0.0)
    assert tree.hard_link_of(B, found(7, handle=b"i")) == A
    tree.observe(B, found(7, handle=b"i"), time=0.0)
    changes = tree.take()
    assert changes.messages[1:] == [appeared(B, 2, found(7, handle=b"i"))]
    assert changes.again == [A]


@pytest.mark.parametrize(("handle", "new"), [(b"h", False), (b"i", True), (None, True)])
def test_a_directory_with_the_same_handle_is_kept_whatever_the_events_say(handle: bytes | None, new: bool) -> None:
    """Behaviour 9, for directories: else every socket in one that is made again around the start appears twice."""
    tree = discovery()
    before = found(2, kind=EntryKind.DIRECTORY, handle=None if handle is None else b"h")
    tree.observe("/r/x", before, time=0.0)
    tree.take()
    tree.observe("/r/x", found(2, kind=EntryKind.DIRECTORY, handle=handle), LOOK | REMOVED, time=0.0)
    changes = tree.take()
    assert (changes.leave, changes.enter) == (["/r/x"] * new, ["/r/x"] * new)


@pytest.mark.parametrize(("handle", "first"), [(b"h", True), (None, False)])
def test_a_removal_before_the_first_scan_of_a_restarted_watcher_is_that_of_an_earlier_socket(
    handle: bytes | None, first: bool
) -> None:
    """Behaviour 9: the reconciler compares the handle with that of the socket that it knows."""
    tree = discovery()
    tree.observe(A, found(7, handle=handle), LOOK | REMOVED, time=0.0, first=True)
    assert tree.take().messages == [appeared(A, 1, found(7, handle=handle), first=first)]


def test_the_removal_of_an_unknown_entry_is_ignored() -> None:
    """Behaviour 8."""
    tree = discovery()
    tree.observe(A, None, LOOK | REMOVED, time=0.0)
    tree.observe(B, found(3, kind=EntryKind.OTHER), LOOK | REMOVED, time=0.0)
    assert tree.take().messages == [EntryIgnored(B, ROOT)]
    tree.observe(A, found(7), time=0.0)
    tree.observe(A, None, LOOK | REMOVED, time=0.0)
    tree.observe(A, None, LOOK | REMOVED, time=0.0)
    assert tree.take().messages == [appeared(A, 1, found(7)), SocketVanished(A, 1)]
    assert tree.paths() == frozenset()


def test_a_socket_that_becomes_a_plain_file_vanishes() -> None:
    """Behaviour 5."""
    tree = discovery()
    tree.observe(A, found(7), time=0.0)
    tree.take()
    tree.observe(A, found(8, kind=EntryKind.OTHER), LOOK, time=0.0)
    assert tree.take().messages == [SocketVanished(A, 1), EntryIgnored(A, ROOT)]


def test_entries_that_only_look_like_sockets_are_reported_once_and_up_to_a_limit() -> None:
    """Fault 6: nothing opens them."""
    tree = discovery()
    for number in (1, 1, *range(2, MAX_IGNORED + 5)):
        tree.ignore(f"{ROOT}/{number}.sock")
    for other in (f"{ROOT}/notes.txt", f"{ROOT}/unknown/a.sock", ROOT):
        tree.ignore(other)
    numbers = range(1, MAX_IGNORED + 1)
    assert tree.take().messages == [EntryIgnored(f"{ROOT}/{number}.sock", ROOT) for number in numbers]
    assert tree.paths() == frozenset()


@pytest.mark.parametrize("other", [directory(9), found(9, kind=EntryKind.SYMLINK)])
def test_a_socket_that_is_replaced_by_another_kind_of_entry_vanishes_first(other: Found) -> None:
    tree = discovery()
    tree.observe(A, found(7), time=0.0)
    tree.take()
    tree.observe(A, other, LOOK, time=0.0)
    changes = tree.take()
    assert changes.messages[0] == SocketVanished(A, 1)
    assert tree.sockets == 0
    if other.kind is EntryKind.DIRECTORY:
        assert changes.messages[1:] == [EntryIgnored(A, ROOT, directory=True)]
        assert changes.enter == [A]
        tree.observe(A, found(7), LOOK, time=0.0)
        changes = tree.take()
        assert changes.leave == [A]
        assert changes.messages == [appeared(A, 2, found(7))]
    else:
        reason = "a symbolic link, and links are not followed"
        assert changes.messages[1:] == [EntryRefused(A, 2, ROOT, reason, 0.0)]
        tree.observe(A, found(7), LOOK, time=0.0)
        assert tree.take().messages == [SocketVanished(A, 2), appeared(A, 3, found(7))]
    assert tree.sockets == 1


def test_a_removed_directory_removes_everything_below_it() -> None:
    """Behaviour 10, for any directory."""
    tree = discovery()
    for path, seen in {
        "/r/x": directory(2),
        "/r/x/y": directory(3),
        "/r/x/y/b.sock": found(8),
        "/r/x/a.sock": found(7),
        "/r/xa.sock": found(9),
    }.items():
        tree.observe(path, seen, time=0.0)
    assert tree.take().enter == ["/r/x", "/r/x/y"]
    assert tree.subdirectories(ROOT) == ["/r/x"]
    tree.observe("/r/x", None, LOOK | REMOVED, time=0.0)
    changes = tree.take()
    assert changes.messages == [SocketVanished("/r/x/a.sock", 2), SocketVanished("/r/x/y/b.sock", 1)]
    assert changes.leave == ["/r/x", "/r/x/y"]
    assert tree.paths() == {"/r/xa.sock"}


@pytest.mark.parametrize(("inode", "marks"), [(2, LOOK | REMOVED), (5, 0)])
def test_a_replaced_directory_is_entered_again(inode: int, marks: int) -> None:
    """Faults 14 to 16, for any directory: its entries are new, even if their identity is unchanged."""
    tree = discovery()
    tree.observe("/r/x", directory(2), time=0.0)
    tree.observe("/r/x/a.sock", found(7), time=0.0)
    tree.take()
    tree.observe("/r/x", directory(inode), marks, time=0.0)
    changes = tree.take()
    assert (changes.leave, changes.messages, changes.enter) == (["/r/x"], [SocketVanished("/r/x/a.sock", 1)], ["/r/x"])
    tree.observe("/r/x/a.sock", found(7), time=0.0)
    assert tree.take().messages == [appeared("/r/x/a.sock", 2, found(7))]


def test_an_entry_in_an_unknown_directory_is_ignored() -> None:
    """Seed 3195: a late event of a removed directory led to a socket in the new one, which was not scanned yet."""
    tree = discovery()
    tree.observe("/r/x/a.sock", found(7), LOOK | REMOVED, time=0.0)
    tree.observe("/r/x/y", directory(3), LOOK, time=0.0)
    tree.observe("/r/x/l", found(9, kind=EntryKind.SYMLINK), LOOK, time=0.0)
    changes = tree.take()
    assert (changes.messages, changes.enter, tree.paths(), tree.sockets) == ([], [], frozenset(), 0)
    tree.observe("/r/x", directory(2), time=0.0)
    tree.observe("/r/x/a.sock", found(7), time=0.0)
    assert tree.take().messages == [appeared("/r/x/a.sock", 1, found(7))]
    assert tree.missing("/r/x", set()) == ["/r/x/a.sock"]


def test_missing_names_are_known_and_not_in_the_listing() -> None:
    """Behaviour 14."""
    tree = discovery()
    tree.observe(A, found(7), time=0.0)
    tree.observe(B, found(8), time=0.0)
    tree.observe("/r/x", directory(2), time=0.0)
    assert tree.missing(ROOT, {"b.sock", "new.sock"}) == [A, "/r/x"]
    assert tree.children(ROOT) == {"a.sock": found(7).identity, "b.sock": found(8).identity, "x": None}
    assert tree.missing("/r/unknown", {"a"}) == []


def test_entries_beyond_the_depth_or_over_the_limit_are_ignored() -> None:
    """Faults 13 and 48."""
    tree = Discovery(ROOT, itertools.count(1), max_depth=1, max_entries=3, max_directories=2)
    tree.observe(ROOT, directory(1), time=0.0)
    tree.take()
    tree.observe("/r/x", directory(2), time=0.0)
    tree.observe("/r/x/y", directory(3), time=0.0)
    reason = "a directory more than 1 levels below the root"
    assert tree.take().messages == [EntryRefused("/r/x/y", 1, ROOT, reason, 0.0)]
    tree.observe("/r/b.sock", found(8), time=0.0)
    tree.take()
    tree.observe(A, found(7), time=0.0)
    tree.observe("/r/z", directory(4), time=0.0)
    assert tree.take().messages == []
    assert tree.over_limit == 2
    tree.observe("/r/b.sock", None, time=0.0)
    tree.observe(A, found(7), time=0.0)
    assert tree.take().messages == [SocketVanished("/r/b.sock", 2), appeared(A, 3, found(7))]


def limited() -> Discovery:
    tree = Discovery(ROOT, itertools.count(1), max_entries=80, max_directories=80, max_refused=80)
    for number, path in enumerate((ROOT, "/r/hog", "/r/good"), 1):
        tree.observe(path, directory(number), time=0.0)
    tree.take()
    return tree


def full(tree: Discovery) -> dict[str, DirectoryCondition]:
    return {report.path: report.condition for report in tree.conditions()}


@pytest.mark.parametrize("kind", [EntryKind.SOCKET, EntryKind.SYMLINK, EntryKind.DIRECTORY])
def test_a_directory_that_is_filled_without_end_shuts_out_no_other(kind: EntryKind) -> None:
    """Fault 48: links, sockets or directories, each of which would have an inotify watch."""
    tree = limited()
    for number in range(1000):
        tree.observe(f"/r/hog/{number}", found(100 + number, kind=kind), time=0.0)
    changes = tree.take()
    assert len(changes.messages) + len(changes.enter) == (19 if kind is EntryKind.DIRECTORY else 20)
    assert full(tree) == {"/r/hog": DirectoryCondition.FULL}
    for path in ("/r/good/a.sock", "/r/hog.sock", "/r/hog/a.sock"):
        tree.observe(path, found(hash(path)), time=0.0)
        assert len(tree.take().messages) == (0 if (path, kind) == ("/r/hog/a.sock", EntryKind.SOCKET) else 1)
    tree.observe("/r/good/x", directory(5000), time=0.0)
    tree.observe("/r/good/link.sock", found(5001, kind=EntryKind.SYMLINK), time=0.0)
    changes = tree.take()
    assert (changes.enter, len(changes.messages)) == (["/r/good/x"], 1)
    tree.begin_rescan()
    tree.observe("/r/hog", None, time=0.0)
    assert full(tree) == {}


def test_a_full_directory_to_which_others_may_write_now_is_shown_as_insecure() -> None:
    """Faults 3 and 48: nothing new below it is taken, which is worse than that some entries are not."""
    tree = limited()
    for number in range(100):
        tree.observe(f"/r/hog/{number}", found(100 + number), time=0.0)
    assert not tree.allows("/r/hog", Access(mode=0o777, owner=0, ours=True))
    assert full(tree) == {"/r/hog": DirectoryCondition.INSECURE}


def test_a_socket_that_becomes_a_link_does_not_get_round_the_quota() -> None:
    """Fault 48."""
    tree = limited()
    for number in range(1000):
        tree.observe("/r/hog/a.sock", found(100 + number), time=0.0)
        tree.observe("/r/hog/a.sock", found(2000 + number, kind=EntryKind.SYMLINK), time=0.0)
        tree.observe(f"/r/hog/{number}", None, time=0.0)
        tree.observe(f"/r/hog/{number}", found(4000 + number), time=0.0)
        tree.observe(f"/r/hog/{number}", found(6000 + number, kind=EntryKind.SYMLINK), time=0.0)
    assert len(tree.paths()) <= 40
    assert full(tree) == {"/r/hog": DirectoryCondition.FULL}
