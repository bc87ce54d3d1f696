"""The options of ``plugind run`` about leases."""

from __future__ import annotations

import argparse
import grp
import os
import pwd
from pathlib import Path

import pytest

from plugind.actors.console import run as daemon
from plugind.actors.node.wiring import lease_users_of
from plugind.protocol.errors import ConfigError
from plugind.protocol.leases.config import LeasesConfig, LeaseUsers
from plugind.protocol.leases.values import Pool
from plugind.protocol.settings.config import Config
from plugind.protocol.trust.users import Users
from plugind.supervisor import Supervisor

GPU = "vendor.com/gpu"
ME = pwd.getpwuid(os.geteuid()).pw_name


def parsed(*words: str) -> LeasesConfig:
    parser = argparse.ArgumentParser()
    daemon.add_arguments(parser)
    return daemon.read_configuration(parser.parse_args(words), {}, os.devnull).config.leases


def test_the_directory_of_container_engines_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parsed("--cdi-dir", "cdi").cdi_directory == f"{tmp_path}/cdi"
    assert parsed().cdi_directory == "/var/run/cdi"


def test_users_are_uids_ranges_and_names() -> None:
    users = parsed("--lease-uids", f"1000,2000-2002,{ME}", "--lease-uids", "7").users
    assert users == LeaseUsers(frozenset({1000, 2000, 2001, 2002, 7, os.geteuid()}))


def test_a_group_is_a_gid_or_a_name() -> None:
    assert parsed("--lease-group", "4711").users == LeaseUsers(group=4711)
    own = grp.getgrgid(os.getegid())
    assert parsed("--lease-group", own.gr_name).users.group == own.gr_gid


@pytest.mark.parametrize(
    ("word", "pool"),
    [
        ("lab=vendor.com/gpu", Pool("lab", GPU)),
        ("lab=vendor.com/gpu:GPU-0,GPU-1", Pool("lab", GPU, frozenset({"GPU-0", "GPU-1"}))),
        ("lab=vendor.com/gpu:0000:3b:00.0", Pool("lab", GPU, frozenset({"0000:3b:00.0"}))),
        ("lab=vendor.com/gpu@1000,1001", Pool("lab", GPU, uids=frozenset({1000, 1001}))),
        ("lab=vendor.com/gpu:a@b@1000", Pool("lab", GPU, frozenset({"a@b"}), frozenset({1000}))),
        ("lab=vendor.com/gpu:a@b@", Pool("lab", GPU, frozenset({"a@b"}))),
    ],
)
def test_a_pool_is_a_resource_or_some_devices_and_may_name_users(word: str, pool: Pool) -> None:
    assert parsed("--pool", word).pools == (pool,)


def test_a_device_in_two_pools_is_an_error_at_the_start() -> None:
    config = Config(leases=parsed("--pool", f"a={GPU}", "--pool", f"b={GPU}:GPU-0"))
    with pytest.raises(ConfigError, match=f"the pools a and b have devices of {GPU} in common: each device may be"):
        Supervisor(config)


def test_the_user_that_stands_for_many_leases_nothing() -> None:
    """In a user namespace the overflow uid may be anybody of the host."""
    config = Config(leases=LeasesConfig(LeaseUsers(frozenset({1000, 65534}))))
    assert lease_users_of(config, Users(overflow=65534)).uids == {1000}
    assert lease_users_of(config, Users()).uids == {1000, 65534}
