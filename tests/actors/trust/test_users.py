"""What the system says about users: the overflow uid, and the uids of names."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plugind.actors.trust.users import overflow_uid, users_of
from plugind.protocol.errors import ConfigError
from plugind.protocol.trust.users import Trust

ALL = "         0          0 4294967295\n"


@pytest.mark.parametrize(
    ("uid_map", "overflow"),
    [
        (ALL, None),
        ("0 0 1000\n1000 1000 4294966295\n", None),
        ("", 65533),
        ("0 1000 1\n", 65533),
        ("0 0 4294967294\n", 65533),
    ],
    ids=["initial", "two-pieces", "nothing-mapped", "one-user", "all-but-one"],
)
def test_the_overflow_uid_counts_unless_the_whole_range_is_mapped(
    tmp_path: Path, uid_map: str, overflow: int | None
) -> None:
    """Fault 40."""
    (tmp_path / "map").write_text(uid_map)
    (tmp_path / "number").write_text("65533\n")
    assert overflow_uid(str(tmp_path / "number"), str(tmp_path / "map")) == overflow


def test_the_usual_overflow_uid_counts_where_proc_cannot_be_read(tmp_path: Path) -> None:
    """Fault 40: what cannot be found out is not trusted."""
    (tmp_path / "map").write_text("0 1000 1\n")
    assert overflow_uid(str(tmp_path / "none"), str(tmp_path / "map")) == 65534
    assert overflow_uid(str(tmp_path / "none"), str(tmp_path / "none")) == 65534


def test_names_are_those_of_the_system() -> None:
    """Fault 40."""
    nobody = pwd.getpwnam("nobody").pw_uid
    users = users_of(Trust((7, "nobody")))
    assert (users.own, users.by_name) == (os.geteuid(), {"nobody": nobody})


def test_a_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="no user is called 'no-such-user': trust another one, or give the uid"):
        users_of(Trust(("no-such-user",)))


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare of the package util-linux")
def test_in_a_user_namespace_the_overflow_uid_is_not_trusted() -> None:
    """Fault 40: it is its own root there, and whoever is not mapped appears as 65534."""
    code = (
        "from plugind.actors.trust.users import users_of; from plugind.protocol.trust.users import Trust;"
        "users = users_of(Trust()); print(users.own, users.overflow, users.is_privileged(users.own))"
    )
    for mapped, said in ((["--map-root-user"], "0 65534 True"), ([], "65534 65534 False")):
        done = subprocess.run(
            ["unshare", "--user", *mapped, sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        if done.returncode and done.stderr.startswith("unshare: "):
            pytest.skip("the system lets nobody make a user namespace")
        assert done.stdout.strip() == said, done.stderr
