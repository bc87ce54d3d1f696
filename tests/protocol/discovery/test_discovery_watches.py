"""The path to which an event refers, and the marks that it leaves."""

from __future__ import annotations

import pytest

from plugind.protocol.discovery import watches as mask
from plugind.protocol.discovery.sockets import ATTRIBUTES, LOOK, REMOVED
from plugind.protocol.discovery.watches import Watches


def watched() -> Watches:
    watches = Watches("/p/r")
    watches.add_parent(1)
    watches.add("/p/r", 2)
    watches.add("/p/r/x", 3)
    watches.trust("/p/r")
    watches.trust("/p/r/x")
    return watches


@pytest.mark.parametrize(
    ("notice", "marks"),
    [
        ((2, mask.CREATE, "a.sock"), {"/p/r/a.sock": LOOK}),
        ((2, mask.MOVED_TO, "a.sock"), {"/p/r/a.sock": LOOK}),
        ((3, mask.DELETE, "a.sock"), {"/p/r/x/a.sock": LOOK | REMOVED}),
        ((3, mask.MOVED_FROM, "a.sock"), {"/p/r/x/a.sock": LOOK | REMOVED}),
        ((2, mask.ATTRIB, "a.sock"), {"/p/r/a.sock": LOOK | ATTRIBUTES}),
        ((2, mask.CREATE, ".a.sock"), {}),
        ((3, mask.DELETE_SELF, ""), {"/p/r/x": LOOK | REMOVED}),
        ((3, mask.MOVE_SELF, ""), {"/p/r/x": LOOK}),
        ((2, mask.UNMOUNT, ""), {"/p/r": LOOK}),
        ((1, mask.DELETE | mask.ISDIR, "r"), {"/p/r": LOOK | REMOVED}),
        ((1, mask.CREATE, "other"), {}),
        ((9, mask.CREATE, "a.sock"), {}),
    ],
)
def test_an_event_marks_the_path_to_which_it_refers(notice: mask.Notice, marks: dict[str, int]) -> None:
    """Behaviours 3, 6 and 11."""
    watches = watched()
    watches.note(notice)
    assert watches.take() == marks
    assert watches.take() == {}


def test_marks_accumulate_until_they_are_taken() -> None:
    watches = watched()
    for bits in (mask.DELETE, mask.CREATE, mask.ATTRIB):
        watches.note((2, bits, "a.sock"))
    taken = watches.take()
    watches.note((2, mask.CREATE, "b.sock"))
    watches.put_back(taken)
    assert watches.take() == {"/p/r/a.sock": LOOK | REMOVED | ATTRIBUTES, "/p/r/b.sock": LOOK}


#: Twice the same: the attributes of a socket have changed.
TOUCH = (2, mask.ATTRIB, "a.sock")
TOUCHED = {"/p/r/a.sock": LOOK | ATTRIBUTES}


def touched_again() -> Watches:
    watches = watched()
    watches.note(TOUCH)
    assert watches.take() == TOUCHED, "the first time it does not wait"
    watches.note(TOUCH)
    return watches


def test_attributes_that_change_again_wait_for_the_release_whatever_else_happens() -> None:
    """Fault 48."""
    watches = touched_again()
    watches.note((2, mask.CREATE, "b.sock"))
    assert (watches.take(), watches.holds) == ({"/p/r/b.sock": LOOK}, True)
    watches.release()
    assert (watches.take(), watches.holds, watches.touched) == (TOUCHED, False, 1)
    watches.note(TOUCH)
    assert not watches.pending
    watches.release()
    watches.take()
    watches.release()
    assert watches.touched == 0
    watches.note(TOUCH)
    assert watches.take() == TOUCHED


def test_what_changes_its_attributes_waits_once_there_are_many_others() -> None:
    watches = watched()
    for number in range(mask.MOST_TOUCHED + 1):
        watches.note((2, mask.ATTRIB, f"{number}.sock"))
    assert (len(watches.take()), watches.holds) == (mask.MOST_TOUCHED, True)


def test_a_mark_that_waits_belongs_to_the_next_look_at_its_path() -> None:
    """An event from before a look never counts as a later change."""
    for again, also in [((2, mask.DELETE, "a.sock"), REMOVED), ((2, mask.CREATE, "a.sock"), 0)]:
        watches = touched_again()
        watches.note(again)
        assert (watches.take(), watches.holds) == ({"/p/r/a.sock": LOOK | ATTRIBUTES | also}, False)
    watches = touched_again()
    assert (watches.take_path("/p/r/a.sock"), watches.holds) == (LOOK | ATTRIBUTES, False)
    watches = touched_again()
    assert (watches.take_beside("/p/r"), watches.holds) == (TOUCHED, False)
    watches = touched_again()
    watches.put_back_beside("/p/r", {"/p/r/a.sock": LOOK})
    assert (watches.take(), watches.holds) == (TOUCHED, False)


def test_a_directory_whose_attributes_change_again_does_not_wait_once_something_happens_in_it() -> None:
    """Fault 3: others may write to it by then. The root never waits."""
    watches, changed = watched(), LOOK | ATTRIBUTES
    for taken in ({"/p/r": changed, "/p/r/x": changed}, {"/p/r": changed}):
        watches.note((2, mask.ATTRIB | mask.ISDIR, "x"))
        watches.note((3, mask.ATTRIB, ""))
        watches.note((2, mask.ATTRIB, ""))
        assert watches.take() == taken
    assert watches.holds
    watches.note((3, mask.CREATE, "a.sock"))
    assert (watches.take(), watches.holds) == ({"/p/r/x/a.sock": LOOK, "/p/r/x": changed}, False)


def test_after_an_overflow_no_directory_is_trusted() -> None:
    """Fault 19."""
    watches = watched()
    watches.note((-1, mask.Q_OVERFLOW, ""))
    assert watches.overflowed
    assert not watches.trusts("/p/r")
    watches.trust("/p/r")
    assert not watches.trusts("/p/r")
    watches.clear_overflow()
    assert not watches.overflowed
    watches.trust("/p/r")
    assert watches.trusts("/p/r")


def test_a_watch_that_the_kernel_ended_marks_its_path() -> None:
    """Fault 20."""
    watches = watched()
    watches.note((3, mask.IGNORED, ""))
    assert not watches.has("/p/r/x")
    assert not watches.trusts("/p/r/x")
    assert watches.take() == {"/p/r/x": LOOK}
    watches.note((1, mask.IGNORED, ""))
    assert watches.take() == {"/p/r": LOOK}


def test_one_descriptor_may_stand_for_several_paths() -> None:
    """Fault 15: a moved directory keeps its watch descriptor, under both paths, until the old path is removed."""
    watches = watched()
    watches.add("/p/r/y", 3)
    watches.note((3, mask.CREATE, "a.sock"))
    assert watches.take() == {"/p/r/x/a.sock": LOOK, "/p/r/y/a.sock": LOOK}
    assert watches.drop("/p/r/x") is None
    assert watches.drop("/p/r/y") == 3
    assert watches.drop("/p/r/y") is None
    watches.note((3, mask.CREATE, "a.sock"))
    assert watches.take() == {}


def test_the_watch_of_the_parent_is_not_removed_with_a_path_that_shares_it() -> None:
    """A root that is bind-mounted on its own parent shares the descriptor."""
    watches = watched()
    watches.add("/p/r/up", 1)
    assert watches.drop("/p/r/up") is None


def test_events_of_a_parent_whose_watch_ended_are_ignored() -> None:
    """Fault 20."""
    watches = watched()
    watches.note((1, mask.IGNORED, ""))
    watches.take()
    watches.note((1, mask.CREATE, "r"))
    assert watches.take() == {}


@pytest.mark.parametrize(
    ("notice", "needed"),
    [
        ((2, mask.CREATE, "a.sock"), False),
        ((3, mask.DELETE_SELF, ""), False),
        ((2, mask.ATTRIB, ""), True),
        ((1, mask.MOVED_FROM, "r"), True),
        ((-1, mask.Q_OVERFLOW, ""), True),
    ],
)
def test_an_overflow_and_a_change_of_the_root_need_a_rescan(notice: mask.Notice, needed: bool) -> None:
    """Faults 14, 15 and 19."""
    watches = watched()
    watches.note(notice)
    assert watches.need_rescan == needed


def test_postponed_marks_are_combined_and_return_with_the_next_rescan() -> None:
    """Seed 982: a name whose stat fails must neither be forgotten nor be tried again in a loop."""
    watches = watched()
    watches.note((2, mask.DELETE, "a.sock"))
    watches.postpone("/p/r/a.sock", watches.take_path("/p/r/a.sock"))
    watches.note((2, mask.ATTRIB, "a.sock"))
    watches.postpone("/p/r/a.sock", watches.take_path("/p/r/a.sock"))
    assert not watches.pending
    watches.note((2, mask.CREATE, "a.sock"))
    watches.begin_rescan()
    assert watches.take() == {"/p/r/a.sock": LOOK | REMOVED | ATTRIBUTES}
    watches.begin_rescan()
    assert not watches.pending


def test_marks_elsewhere_are_those_neither_at_nor_above_nor_below_a_directory() -> None:
    """Fault 48: while a large directory is scanned, what happens in others is looked at."""
    watches = Watches("/r")
    watches.put_back(dict.fromkeys(("/r", "/r/big", "/r/big/a", "/r/big/b/c", "/r/bigger", "/r/x.sock"), LOOK))
    assert watches.take_elsewhere("/r/big", few=3) == {"/r/bigger": LOOK, "/r/x.sock": LOOK}
    assert [*watches.take()] == ["/r", "/r/big", "/r/big/a", "/r/big/b/c"]


def test_the_marks_that_came_first_are_taken_first() -> None:
    """Fault 27: thousands of events are looked at in parts."""
    watches = Watches("/r")
    watches.put_back(dict.fromkeys(("/r/a", "/r/b", "/r/c"), LOOK))
    assert [[*watches.take(2)] for _ in range(3)] == [["/r/a", "/r/b"], ["/r/c"], []]


def test_each_directory_has_its_share_of_the_marks_that_are_taken() -> None:
    """Fault 48: thousands of events in one directory do not delay what happens in another."""
    watches = Watches("/r")
    watches.put_back({f"/r/big/{number}": LOOK for number in range(9)} | {"/r/x.sock": LOOK, "/r/y/a": LOOK})
    taken = [[*watches.take(6)] for _ in range(4)]
    assert taken[0] == ["/r/big/0", "/r/big/1", "/r/x.sock", "/r/y/a"]
    assert taken[1:] == [[f"/r/big/{number}" for number in range(2, 8)], ["/r/big/8"], []]
    assert not watches.pending


def test_the_marks_of_directories_with_few_are_taken_alone() -> None:
    watches = Watches("/r")
    watches.put_back({f"/r/big/{number}": LOOK for number in range(9)} | {"/r/x.sock": LOOK, "/r/y/a": LOOK})
    assert watches.take_where_few(2) == {"/r/x.sock": LOOK, "/r/y/a": LOOK}
    assert len(watches.take_beside("/r/big")) == 9
    assert not watches.pending


def test_marks_that_are_put_back_beside_newer_ones_come_first() -> None:
    watches = Watches("/r")
    watches.put_back({"/r/a": LOOK, "/r/b": LOOK})
    earlier = watches.take_beside("/r")
    watches.put_back({"/r/c": LOOK, "/r/a": REMOVED})
    watches.put_back_beside("/r", earlier)
    assert [*watches.take().items()] == [("/r/a", LOOK | REMOVED), ("/r/b", LOOK), ("/r/c", LOOK)]
    watches.put_back_beside("/r", {})
    assert not watches.pending
