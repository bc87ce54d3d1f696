"""Configuration files as bytes: values of all types, and what is wrong with them, with the line."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from plugind.protocol.leases.mapped import BUILT_IN, ResourceConfig
from plugind.protocol.leases.values import UserLimits
from plugind.protocol.settings.files import MOST_DOTS, MOST_PROBLEMS, parse
from plugind.protocol.settings.given import Given, Source, merged
from plugind.protocol.settings.pools import PoolGiven


def values(text: str) -> dict[str, Any]:
    parsed = parse("c.toml", text.encode())
    assert parsed.problems == ()
    return {given.key: given.value for given in parsed.given}


def wrong(text: str | bytes) -> list[str]:
    raw = text if isinstance(text, bytes) else text.encode()
    return [str(problem) for problem in parse("c.toml", raw).problems]


def test_values_have_the_types_of_their_settings() -> None:
    text = """
        roots = ["/a/", "/b", "/a"]
        rescan = 5
        strict = true
        blocked_after = "off"
        expected = ["csi.example.com"]
        endpoint_directories = ["default", "/run/csi"]
        [trust]
        uids = [1000, "2000-2999", "csi"]
        [timeouts]
        get_info = 2.5
        handlers = { CSIPlugin = 240, "a.b" = 5.5 }
        [leases.users]
        group = "video"
        [[leases.pools]]
        name = "lab"
        resource = "vendor.com/gpu"
        ids = ["GPU-0"]
        users = ["alice", 7]
        longest_lease = 90
        stop_at_longest = true
        [resources."vendor.com/gpu"]
        devices_per_user = 2
        longest_lease = "8h"
        longest_wait = "0s"
        [resources."nvidia.com/gpu"]
        devices_per_user = 1
        [resources."nvidia.com/gpu.shared"]
        env = {}
    """
    of_lab = UserLimits(longest_lease=90.0, stop_at_longest=True)
    of_gpus = UserLimits(devices_per_user=2, longest_lease=8 * 3600.0, longest_wait=0.0)
    assert values(text) == {
        "roots": ("/a", "/b"),
        "rescan": 5.0,
        "strict": True,
        "blocked_after": None,
        "expected": ("csi.example.com",),
        "endpoint_directories": ("default", "/run/csi"),
        "trust.uids": (1000, (2000, 2999), "csi"),
        "timeouts.get_info": 2.5,
        "timeouts.handlers": {"CSIPlugin": 240.0, "a.b": 5.5},
        "leases.users.group": "video",
        "leases.pools": (PoolGiven("lab", "vendor.com/gpu", ("GPU-0",), ("alice", 7), of_lab),),
        "resources": {
            "vendor.com/gpu": ResourceConfig(limits=of_gpus),
            # Limits leave the variables that are built in.
            "nvidia.com/gpu": attrs.evolve(BUILT_IN["nvidia.com/gpu"], limits=UserLimits(devices_per_user=1)),
            "nvidia.com/gpu.shared": ResourceConfig(),
        },
    }


def test_an_unknown_key_names_the_one_that_is_meant() -> None:
    text = "rescan = 5\n[timeouts]\n# a comment\ngetinfo = 2\n[timeout]\nx = 1\n[trust]\nexpected = []\n[zzz]\n"
    text += "[timeouts.rots]\n[helth_checks]\nperiod = 1\n[backoff]\nfoo = 1\n"
    assert wrong(text) == [
        "c.toml:4: unknown key timeouts.getinfo: did you mean timeouts.get_info?",
        "c.toml:10: unknown key timeouts.rots: did you mean roots?",
        "c.toml:5: unknown key timeout: did you mean timeouts?",
        "c.toml:8: unknown key trust.expected: did you mean expected?",
        "c.toml:9: unknown key zzz",
        "c.toml:11: unknown key helth_checks: did you mean health_checks?",
        "c.toml:14: unknown key backoff.foo: did you mean backoff.factor?",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rescan = true", "rescan is true: it must be a number from 0.01 to 86400"),
        ('rescan = "5"', 'rescan is "5": it must be a number from 0.01 to 86400'),
        ("rescan = nan", "rescan is nan: it must be a number from 0.01 to 86400"),
        ("rescan = 0", "rescan is 0: it must be a number from 0.01 to 86400"),
        (f"rescan = 1{'0' * 400}", "rescan is so large a number: it must be a number from 0.01 to 86400"),
        ("timeouts.dial = 0", "timeouts.dial is 0.0: it must be a finite number above 0"),
        ("strict = 1", "strict is 1: it must be true or false"),
        ("max_instances = 1.0", "max_instances is 1.0: it must be a whole number"),
        ("max_instances = 0", "max_instances is 0: it must be a finite number, 1 or more"),
        ("seed = 9223372036854775808", "seed is 9223372036854775808: it must be a whole number"),
        ('roots = "abc"', 'roots is "abc": it must be a list, of which each is an absolute path'),
        ('roots = ["abc"]', 'roots is "abc": it must be an absolute path'),
        ('roots = ["/a\\u0000"]', 'roots is "/a\\x00": it must be an absolute path'),
        ("roots = {}", "roots is a table: it must be a list, of which each is an absolute path"),
        ("roots = [[]]", "roots is a list: it must be an absolute path"),
        ("log_level = 'loud'", 'log_level is "loud": it must be "debug" or "info" or "warning" or "error"'),
        ("timeouts = 5", "timeouts is 5: it must be a table, [timeouts]"),
        ("timeouts.handlers = 5", "timeouts.handlers is 5: it must be a table, in which each plugin type has"),
        ("timeouts.handlers.X = true", 'timeouts.handlers: the value of "X" is true: it must be a number from 0.1'),
        ("timeouts.handlers.'' = 1", "timeouts.handlers: the name of a plugin type is empty"),
        (
            "expected_devices = ['v.com/a']",
            "expected_devices is a list: it must be a table, in which each resource has",
        ),
        (
            "expected_devices = {'v.com/a' = 0}",
            'expected_devices: the value of "v.com/a" is 0: it must be a whole number, 1 or more',
        ),
        ("hung_after = 'never'", 'hung_after is "never": it must be a number, or "off"'),
        ("expected = ['']", 'expected is "": it must be a string that is not empty'),
        ("trust.uids = ['9-8']", "trust.uids: 9-8 is no range of uids from 0 to 4294967294"),
        ("trust.uids = [-1]", "trust.uids: -1 is no uid from 0 to 4294967294"),
        ("leases.users.group = 4294967295", "leases.users.group: 4294967295 is no gid"),
        ("wire_limits.stream_window = 4", "wire_limits.stream_window must be from 65535 to 2147483647, not 4"),
        ("csi.refresh = 9", "csi.refresh is 9: it must be a number from 10 to 86400"),
        ("health_checks.jitter = 1", "health_checks.jitter is 1.0: it must be a part of the period"),
        ("leases.pools = [1]", "leases.pools is 1: it must be a table with a name, a resource"),
        (
            "leases.pools = [{name = 'a', resource = 'v.com/g', size = 1}]",
            'leases.pools: the pool "a" has no "size": it is a table',
        ),
        (
            "leases.pools = [{name = 'a b', resource = 'v.com/g'}]",
            'leases.pools: the pool "a b": name is "a b": it must have letters',
        ),
        (
            "leases.pools = [{name = 'a', resource = 'gpu'}]",
            "leases.pools: the pool \"a\": resource: 'gpu' does not name a resource",
        ),
        (
            "leases.pools = [{name = 'a'}]",
            'leases.pools: the pool "a": resource is missing: it must be the name of a resource',
        ),
        (
            "leases.pools = [{name = 'a', resource = 'v.com/g', devices_per_usr = 1}]",
            'leases.pools: the pool "a" has no "devices_per_usr": did you mean devices_per_user?',
        ),
        (
            "leases.pools = [{name = 'a', resource = 'v.com/g', longest_wait = 'long'}]",
            'leases.pools: the pool "a": longest_wait is "long": it must be seconds, or a time such as "30m"',
        ),
        *(
            (
                f"resources = {{ 'v.com/g' = {{ longest_lease = {value} }} }}",
                f'resources: the resource "v.com/g": longest_lease is {value}: it must be seconds above 0',
            )
            for value in ("0", '"8 hours"', "true", "-1")
        ),
        (
            "resources = { 'v.com/g' = { devices_per_user = -1 } }",
            'resources: the resource "v.com/g": devices_per_user is -1: it must be a whole number, 0 or more',
        ),
        (
            "resources = { 'v.com/g' = { most = 1 } }",
            'resources: the resource "v.com/g": there is no "most": it has env, devices_per_user, longest_lease,',
        ),
        ("'timeouts.dial' = 5", "unknown key 'timeouts.dial': did you mean timeouts.dial?"),
    ],
)
def test_a_wrong_value_says_what_it_must_be(text: str, said: str) -> None:
    """``true`` is no 1.0, and a string is no list of its characters."""
    (problem,) = wrong(f"# first line\n{text}\n")
    assert problem.startswith(f"c.toml:2: {said}")


def test_a_mistake_in_one_table_of_a_list_has_the_line_of_that_table() -> None:
    text = "[[leases.pools]]\nnane = 'a'\n[[leases.pools]]\nname = 'b'\nresource = 'gpu'\nids = ['', 7]\n"
    pools, nameless = 'leases.pools: the pool "b"', "leases.pools: a pool without a name"
    begins = [
        f'c.toml:2: {nameless} has no "nane": did you mean name?',
        f"c.toml:1: {nameless}: name is missing",
        f"c.toml:1: {nameless}: resource is missing",
        f"c.toml:5: {pools}: resource: 'gpu' does not name a resource",
        f'c.toml:6: {pools}: ids is "": it must be',
        f"c.toml:6: {pools}: ids is 7: it must be",
    ]
    said = wrong(text)
    assert [problem[: len(begin)] for problem, begin in zip(said, begins, strict=True)] == begins


def test_a_list_with_more_mistakes_than_are_told_ends_the_list_of_problems() -> None:
    assert len(wrong(f"trust.uids = {list(range(-MOST_PROBLEMS - 5, 0))}\nrescan = true")) == MOST_PROBLEMS


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"a = 1\nb = \xff\n", "c.toml:2: it is not UTF-8"),
        (b"a = 1\nb = [\n\n", "c.toml:2: it is not TOML: Invalid value (at the end)"),
        (b"a = 1\nrescan 5\n", "c.toml:2: it is not TOML: Expected '=' after a key in a key/value pair (column 8)"),
        (b"rescan = 1\nrescan = 2\n", "c.toml:2: it is not TOML: Cannot overwrite a value (column 11)"),
        (b"\xef\xbb\xbfrescan = 1\n", "c.toml:1: it begins with a byte order mark, which TOML does not have"),
        (b"a = \0", "c.toml:1: it is not TOML: Invalid value (column 5)"),
        (b"a = " + b"[" * 50_000, "c.toml: lists or tables in it are nested too deeply"),
        (b"seed = " + b"9" * 5000, "c.toml: it is not TOML: Exceeds the limit"),
        (b"rescan = 1\n" + b"a." * 60_000 + b"a = 1", f"c.toml:2: the line has more than {MOST_DOTS} dots"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_one_problem(raw: bytes, said: str) -> None:
    """A dotted key of 60,000 parts took gigabytes of memory."""
    (problem,) = wrong(raw)
    assert problem.startswith(said)


def test_of_thousands_of_problems_the_first_are_told() -> None:
    problems = wrong("".join(f"k{number} = 1\n" for number in range(20_000)))
    assert (len(problems), problems[-1]) == (MOST_PROBLEMS, "c.toml:20: unknown key k19")


def test_a_key_of_another_file_cannot_write_to_a_terminal() -> None:
    assert wrong('"\\u001b[2J" = 1') == ["c.toml: unknown key \\x1b[2J"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("timeouts.dial = 5", 1),
        ("timeouts . dial = 5", 1),
        ('"timeouts"."dial" = 5', 1),
        ("[timeouts]\n\ndial = 5", 3),
        ("[ timeouts ] # here\ndial=5", 2),
        ("rescan = 1\ntimeouts = { dial = 5 }", 2),
        ("[timeouts]\nnotify = 1\n  'dial' = 5", 3),
        ('expected = ["""\n[timeouts]\n"""]\n[timeouts]\ndial = 5', 5),
    ],
)
def test_a_value_has_the_line_of_its_key(text: str, line: int) -> None:
    (given,) = (given for given in parse("c.toml", text.encode()).given if given.key == "timeouts.dial")
    assert given.source == Source("file", "c.toml", line)


def test_the_last_value_is_in_force_and_tables_are_joined() -> None:
    first, second = Source("file", "a"), Source("variable", "B")
    layers = (
        (Given("rescan", 1.0, first), Given("expected", ("a",), first), Given("timeouts.handlers", {"X": 1.0}, first)),
        (Given("expected", ("b",), second), Given("timeouts.handlers", {"Y": 2.0}, second)),
    )
    assert merged(layers) == {
        "rescan": Given("rescan", 1.0, first),
        "expected": Given("expected", ("b",), second),
        "timeouts.handlers": Given("timeouts.handlers", {"X": 1.0, "Y": 2.0}, second),
    }
