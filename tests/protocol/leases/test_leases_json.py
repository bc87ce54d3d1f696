"""The JSON of leases: what is written is read again, what is asked is read strictly, and errors say what to give."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.leases import asked_json
from plugind.protocol.leases import values as v
from plugind.protocol.leases.asked_json import (
    MAX_SECONDS,
    MAX_TEXT,
    LeaseBody,
    ProcessWish,
    RequestError,
    asked_from_json,
    asked_to_json,
    init_from_json,
    init_to_json,
    recovery_from_json,
    token_from_json,
)
from plugind.protocol.leases.leases_json import (
    LeaseJsonError,
    failure_from_json,
    failure_to_json,
    lease_from_json,
    lease_to_json,
    released_from_json,
    released_to_json,
    snapshot_from_json,
    snapshot_to_json,
)
from plugind.protocol.leases.replies import Failure, LeasesSnapshot, LimitMet, Problem, Released
from plugind.tests.protocol.hypothesis_settings import examples
from plugind.tests.protocol.leases.strategies import leases, texts, words

GPU = "vendor.com/gpu"
BODY: dict[str, Any] = {"resources": {GPU: 1}, "owner": {"kind": "none"}}

_some = st.lists(words, max_size=3).map(tuple)
_wishes = st.one_of(
    st.builds(ProcessWish, st.integers(1, 2**31 - 1), st.integers(1, 2**31 - 1)),
    st.builds(v.TimeOwner, st.floats(0, MAX_SECONDS, exclude_min=True)),
    st.builds(v.ContainerOwner, start_within=st.none() | st.floats(0, MAX_SECONDS, exclude_min=True)),
    st.sampled_from([v.ConnectionOwner(), v.NoOwner()]),
)
_requests = st.builds(
    v.Request,
    wanted=st.lists(
        st.builds(v.Wanted, words, st.integers(1, 1_000_000)),
        min_size=1,
        max_size=3,
        unique_by=lambda wanted: wanted.resource,
    ).map(tuple),
    ids=_some,
    include=_some,
    pool=st.none() | words,
    labels=st.dictionaries(words, texts, max_size=3).map(lambda labels: tuple(sorted(labels.items()))),
    container=st.booleans(),
    ignore_missing=st.booleans(),
    stop_on_unhealthy=st.booleans(),
    for_uid=st.none() | st.integers(0, 2**32 - 2),
)
#: Without the two ids that are other paths of the status socket.
_ids = words.filter(lambda word: word not in ("watch", "recover"))
asked = st.builds(LeaseBody, _requests, _wishes, st.none() | _ids, st.none() | st.floats(0, MAX_SECONDS))
_shown = leases.map(
    lambda lease: (
        attrs.evolve(lease, owner=v.ConnectionOwner()) if isinstance(lease.owner, v.ConnectionOwner) else lease
    )
)
_failures = st.builds(
    Failure,
    st.sampled_from(Problem),
    texts,
    st.lists(_shown.map(lambda lease: attrs.evolve(lease, answer=None)), max_size=2).map(tuple),
    st.none() | st.builds(LimitMet, words, st.integers(0, 9) | st.floats(0, 1e9), words, st.none() | words, texts),
)


def _body(**changes: object) -> bytes:
    return json.dumps(BODY | changes).encode()


def _sent(content: object) -> Any:
    return json.loads(json.dumps(content))


@examples(100)
@given(asked)
def test_what_is_asked_is_read_again(asked: LeaseBody) -> None:
    assert asked_from_json(json.dumps(asked_to_json(asked)).encode()) == asked


@examples(100)
@given(_shown, st.none() | st.integers(0, 2**62))
def test_a_lease_is_read_again(lease: v.Lease, boottime: int | None) -> None:
    assert lease_from_json(_sent(lease_to_json(lease, boottime))) == lease


@examples(50)
@given(_failures)
def test_a_failure_is_read_again(failure: Failure) -> None:
    """With the holders, but for what their plugins have answered, which is nobody else's business."""
    assert failure_from_json(_sent(failure_to_json(failure))) == failure


@examples(30)
@given(st.lists(_shown, max_size=2).map(tuple), st.none() | texts, st.none() | texts)
def test_all_leases_are_read_again(found: tuple[v.Lease, ...], withheld: str | None, problem: str | None) -> None:
    snapshot = LeasesSnapshot(7.0, found, withheld, problem)
    assert snapshot_from_json(_sent(snapshot_to_json(snapshot, 1_700_000_000.0)), 7.0) == snapshot


@examples(30)
@given(st.builds(v.ProcessIdentity, st.integers(1, 2**31 - 1), st.integers(1, 2**63 - 1), words))
def test_a_container_is_read_again(init: v.ProcessIdentity) -> None:
    assert init_from_json(json.dumps(init_to_json(init)).encode()) == init


def test_what_was_released_is_read_again() -> None:
    released = Released(("a", "b"), ("c",), "the disk is full")
    assert released_from_json(_sent(released_to_json(released))) == released
    earlier = {"released": ["a"], "unknown": []}
    assert released_from_json(earlier) == Released(("a",))


def test_only_the_resources_and_the_owner_are_needed() -> None:
    assert asked_from_json(_body()) == LeaseBody(v.Request((v.Wanted(GPU, 1),)), v.NoOwner())


def test_a_lease_shows_no_token_and_when_it_ends() -> None:
    lease = v.Lease("a", 0, v.Request(()), v.ConnectionOwner("f00"), v.LeaseState.HELD, 0.0)
    assert "f00" not in json.dumps(lease_to_json(lease))
    ending = attrs.evolve(lease, owner=v.TimeOwner(60.0, 5_000_000_000))
    assert _sent(lease_to_json(ending, 2_000_000_000))["owner"]["ends_in"] == 3.0
    assert _sent(lease_to_json(ending))["owner"]["ends_in"] is None


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "the body is no JSON object: give one such as {"),
        (b"[]", "the body is no JSON object: give one"),
        (b"\xff\xfe", "the body is no JSON object: give one"),
        (b'{"wait": NaN}', "the body is no JSON object"),
        (b"[" * 60_000, "the body is no JSON object"),
        (b'{"a":' + b"9" * 5000 + b"}", "the body is no JSON object"),
        (b'{"resources": {"a": 1, "a": 2}}', '"a" stands twice in an object: give each key once'),
        (b"{}", "there is no resources: give an object of 1 to 64 resources with numbers from 1 to 1000000, such as"),
        (_body(resources={}), "resources is an empty object: give an object of 1 to 64"),
        (_body(resources=3), "resources is 3: give"),
        (_body(resources={GPU: True}), "resources is an object: give"),
        (_body(resources={GPU: 0}), "resources is an object: give"),
        (_body(resources={"": 1}), "resources is an object: give"),
        (
            _body(resources={str(number): 1 for number in range(asked_json.MAX_RESOURCES + 1)}),
            "resources is an object: give",
        ),
        (_body(ids="GPU-0"), r'ids is "GPU-0": give a list of ids of devices, such as \["GPU-0"\]'),
        (_body(include=[1]), "include is a list: give a list of ids"),
        (_body(pool=""), 'pool is "": give the name of a pool, or null'),
        (_body(labels={"job": 7}), "labels is an object: give an object of at most 64 texts"),
        (_body(labels={str(number): "" for number in range(65)}), "labels is an object: give"),
        (_body(labels={"job": "7" * (MAX_TEXT + 1)}), "labels is an object: give"),
        (_body(container=1), "container is 1: give true or false"),
        (_body(ignore_missing="yes"), 'ignore_missing is "yes": give true or false'),
        (_body(id="\ud800"), r'id is "\\ud800": give another name for the lease than watch'),
        (_body(id="watch"), 'id is "watch": give another name for the lease than watch and recover, or null'),
        (_body(wait=-1), "wait is -1: give seconds from 0 to 2147483648, or null to fail at once"),
        (_body(wait=1e300), "wait is 1e\\+300: give seconds"),
        (_body(wait=True), "wait is true: give seconds"),
        (b'{"resources": {"gpu": 1}}', "there is no owner: give an object that has a kind"),
        (_body(owner="none"), 'owner is "none": give an object that has a kind: "process"'),
        (_body(owner={}), "there is no owner.kind: give"),
        (_body(owner={"kind": "me"}), 'owner.kind is "me": give "process" .with pid., "container"'),
        (_body(owner={"kind": "none", "pid": 1}), "owner.pid is not known here: there is owner.kind"),
        (_body(owner={"kind": "process"}), "there is no owner.pid: give the pid of a process"),
        (_body(owner={"kind": "process", "pid": 1}), r"there is no client_pid: give the client's own pid"),
        (_body(owner={"kind": "process", "pid": 2**31}), "owner.pid is 2147483648: give"),
        (_body(owner={"kind": "time", "seconds": 0}), "owner.seconds is 0: give how long the lease lasts"),
        (_body(owner={"kind": "time"}), "there is no owner.seconds: give how long"),
        (_body(resource={GPU: 1}), "resource is not known here: there is resources, ids, include"),
        (_body(client_pid=7), "client_pid is not known here"),
    ],
)
def test_what_is_asked_wrongly_is_refused_with_what_to_give_instead(body: bytes, why: str) -> None:
    with pytest.raises(RequestError, match=f"^{why}"):
        asked_from_json(body)


@pytest.mark.parametrize(
    ("read", "body", "why"),
    [
        (init_from_json, b"{}", "there is no pid: give the pid of a process"),
        (init_from_json, b'{"pid": 1, "start_ticks": "4"}', 'start_ticks is "4": give field 22 of /proc/PID/stat'),
        (init_from_json, b'{"pid": 1, "start_ticks": 4}', "there is no boot_id: give what /proc/sys"),
        (token_from_json, b'{"token": null}', "token is null: give the token that came with the lease"),
        (token_from_json, b'{"token": "t", "id": "a"}', "id is not known here: there is token"),
        (recovery_from_json, b"", 'the body is no JSON object: give one such as {"none_held": true}'),
        (recovery_from_json, b'{"none_held": 1}', "none_held is 1: give true if no leased device is in use"),
    ],
)
def test_other_bodies_are_read_as_strictly(read: Any, body: bytes, why: str) -> None:
    with pytest.raises(RequestError, match=f"^{why}"):
        read(body)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["resources", "kind", "pid", "a"]), inner)
    ),
    max_leaves=6,
)
_bodies = st.one_of(
    st.binary(max_size=20),
    _json.map(json.dumps).map(str.encode),
    st.dictionaries(
        st.sampled_from([*asked_to_json(LeaseBody(v.Request(()), ProcessWish(1, 1))), "token", "pid", "boot_id", "b"]),
        _json | st.sampled_from([{GPU: 1}, {"kind": "process", "pid": 1}, 1, "a"]),
        max_size=5,
    )
    .map(json.dumps)
    .map(str.encode),
)


@examples(200)
@given(_bodies)
def test_whatever_is_asked_no_other_error_is_raised(body: bytes) -> None:
    for read in (asked_from_json, init_from_json, token_from_json, recovery_from_json):
        with suppress(RequestError):
            read(body)


@examples(100)
@given(leases, st.data())
def test_whatever_is_answered_no_other_error_is_raised(lease: v.Lease, data: st.DataObject) -> None:
    """A key of the answer is missing, or has something else."""
    content = _sent(lease_to_json(lease))
    key = data.draw(st.sampled_from([*content]))
    content[key] = data.draw(_json)
    if data.draw(st.booleans()):
        del content[key]
    for read in (lease_from_json, failure_from_json, released_from_json, lambda shown: snapshot_from_json(shown, 0.0)):
        with suppress(LeaseJsonError):
            read(content)


def test_an_answer_that_says_more_is_still_read() -> None:
    lease = v.Lease("a", 0, v.Request(()), v.NoOwner(), v.LeaseState.HELD, 0.0)
    assert lease_from_json({**lease_to_json(lease), "colour": "red"}) == lease
    with pytest.raises(LeaseJsonError, match="it is no lease that this version of plugind knows: there is no 'uid'"):
        lease_from_json({"id": "a"})
