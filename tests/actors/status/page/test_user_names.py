"""The names of users, from a file of the form of /etc/passwd."""

from __future__ import annotations

import os
from pathlib import Path

from plugind.actors.status.page.daemon import UserNames


def test_a_user_has_the_first_name_in_the_file_and_lines_of_another_form_name_nobody(tmp_path: Path) -> None:
    users = tmp_path / "passwd"
    users.write_bytes(b"root:x:0:0::/:/bin/sh\ntoor:x:0:0::/:/bin/sh\n+\n:x:7:7\nb:x:-1:0\n# c:x:y\nd\xff:x:9:9\n")
    names = UserNames(users)
    assert [names.name_of(uid) for uid in (0, 7, -1, 8, "0", None)] == ["root", None, None, None, None, None]
    # A name that is no UTF-8 can be sent, too.
    (odd,) = [names.name_of(9)]
    assert odd is not None
    odd.encode()


def test_a_user_that_was_added_has_a_name_and_without_the_file_nobody_has(tmp_path: Path) -> None:
    users = tmp_path / "passwd"
    names = UserNames(users)
    assert names.name_of(0) is None
    users.write_text("root:x:0:0::/:/bin/sh\n")
    assert (names.name_of(0), names.name_of(5)) == ("root", None)
    # As tools do that change users: another file takes the place.
    (tmp_path / "new").write_text("admin:x:0:0::/:/bin/sh\nanna:x:5:5::/:/bin/sh\n")
    os.replace(tmp_path / "new", users)
    assert (names.name_of(0), names.name_of(5)) == ("admin", "anna")
    users.unlink()
    assert names.name_of(0) is None
