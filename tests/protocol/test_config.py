"""The configuration of a node: every value is either accepted or refused with an error message of one line."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.config import DEFAULT_ROOT, Config, Root, check_roots
from plugind.protocol.errors import ConfigError
from plugind.tests.protocol.hypothesis_settings import examples


def problem(*paths: str) -> str | None:
    try:
        check_roots(tuple(map(Root, paths)))
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        ((), "there is no root to discover plugins in: name one with --root"),
        (("r",), "the root 'r' is not an absolute path"),
        (("/a", ""), "the root '' is not an absolute path"),
        (("/a", "/a"), "the roots /a and /a lie in each other: name one of them"),
        (("/a", "/a/"), "the roots /a and /a/ lie in each other: name one of them"),
        (("/a/b", "/a"), "the roots /a and /a/b lie in each other: name one of them"),
        (("/a", "/"), "the roots / and /a lie in each other: name one of them"),
        (("/a", "/ab"), None),
        (("/",), None),
    ],
)
def test_roots_must_be_absolute_and_must_not_contain_each_other(paths: tuple[str, ...], said: str | None) -> None:
    assert problem(*paths) == said


def test_a_root_that_is_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="lie in each other"):
        check_roots((Root("/a"),) * 2)


PARTS = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=3)
PATHS = st.builds(lambda parts, start, end: start + "/".join(parts) + end * bool(parts), PARTS, st.sampled_from(["/", "/", ""]), st.sampled_from(["", "/"]))  # fmt: skip  # noqa: E501


@examples(100)
@given(st.lists(PATHS, max_size=3))
def test_any_roots_are_accepted_or_refused_as_their_paths_require(paths: list[str]) -> None:
    pure = [PurePosixPath(path) for path in paths]
    nested = any(
        one.is_relative_to(other) for number, one in enumerate(pure) for at, other in enumerate(pure) if number != at
    )
    relative = any(not path.is_absolute() for path in pure)
    said = problem(*paths)
    assert (said is None) == (bool(paths) and not relative and not nested)
    assert said is None or "\n" not in said


def test_the_defaults_are_those_of_the_kubelet() -> None:
    """Behaviours 14, 16, 23, 26 and 42."""
    config = Config()
    check_roots(config.roots)
    assert [(root.path, root.deprecated) for root in config.roots] == [(DEFAULT_ROOT, False)]
    assert DEFAULT_ROOT == "/var/lib/kubelet/plugins_registry"
    times = config.timeouts
    assert (times.dial, times.refused_grace, times.get_info, times.notify) == (10.0, 1.0, 1.0, 5.0)
    assert (times.handler, times.stop_grace, config.rescan) == (120.0, 10.0, 10.0)
    assert (config.deregister_at_stop, config.follow_symlinks_inside_root) == (False, False)
    assert (config.expected, config.seed) == ((), None)
