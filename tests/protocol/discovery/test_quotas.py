"""How many entries a directory may have beside the others."""

from __future__ import annotations

import random

import pytest

from plugind.protocol.discovery.quotas import Quota

ROOT = "/r"


def fill(quota: Quota, directory: str) -> int:
    """Add entries to ``directory`` until there is no room for more; return how many it has."""
    while quota.has_room(directory):
        quota.add(directory)
    return quota.used(directory)


def test_a_directory_that_is_filled_leaves_half_and_the_next_one_half_of_that() -> None:
    """Fault 48."""
    quota = Quota(ROOT, 1600)
    assert quota.limit(ROOT) == 800
    assert fill(quota, "/r/a") == 400, "half for it and all below it, and half of that for its own entries"
    assert fill(quota, "/r/a/b") == 100
    assert fill(quota, "/r/c") == 275
    assert fill(quota, ROOT) == 412


@pytest.mark.parametrize("root", ["/", "/r"])
@pytest.mark.parametrize("seed", range(5))
def test_however_many_directories_are_filled_there_is_room_for_another_and_never_more_than_all(
    root: str, seed: int
) -> None:
    """Fault 48: hostile directories beside each other, and in each other."""
    chance = random.Random(seed)
    quota = Quota(root, 10_000)
    base, paths = root.rstrip("/"), [root]
    for number in range(5):
        above = chance.choice(paths).rstrip("/")
        paths.append(f"{above}/{number}")
    used = [fill(quota, path) for path in paths]
    assert sum(used) < 10_000
    assert quota.has_room(f"{base}/new")
    for path, number in zip(paths, used, strict=True):
        quota.add(path, -number)
    assert quota.limit(root) == 5_000
    assert [quota.used(path) for path in paths] == [0] * len(paths)


def test_a_directory_beside_the_filled_one_in_the_same_directory_has_room() -> None:
    """Fault 48: it is not only the directories right below the root that are apart."""
    quota = Quota(ROOT, 1000)
    fill(quota, "/r/vendor/hog")
    assert quota.limit("/r/vendor/plugin") > 50
    assert quota.limit("/r/vendor") > 50
