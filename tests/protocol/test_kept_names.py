"""Names that are kept for sockets which replaced those of registered plugins."""

from __future__ import annotations

from plugind.protocol.kept_names import NAME_KEPT, KeptNames

RED, BLUE = ("T", "red"), ("T", "blue")


def test_a_name_is_kept_for_each_socket_and_for_a_limited_time() -> None:
    """Fault 80."""
    kept = KeptNames()
    kept.keep("/r/a.sock", RED, 1000, 0.0)
    kept.keep("/r/b.sock", RED, 0, 5.0)
    assert list(kept.holders(RED, 5.0)) == [("/r/a.sock", 1000), ("/r/b.sock", 0)]
    assert list(kept.holders(BLUE, 5.0)) == []
    assert list(kept.holders(RED, NAME_KEPT)) == [("/r/b.sock", 0)]


def test_a_path_keeps_one_name_and_nothing_is_left_of_one_that_is_forgotten() -> None:
    """Fault 80: the record is as large as the number of sockets, however often they are replaced."""
    kept = KeptNames()
    kept.keep("/r/a.sock", RED, 1000, 0.0)
    kept.keep("/r/a.sock", BLUE, 1000, 1.0)
    assert (list(kept.holders(RED, 1.0)), list(kept.holders(BLUE, 1.0))) == ([], [("/r/a.sock", 1000)])
    assert len(kept) == 1
    kept.forget("/r/a.sock")
    kept.forget("/r/a.sock")
    assert list(kept.holders(BLUE, 1.0)) == []
    assert not kept
