"""Leases as hypothesis makes them."""

from __future__ import annotations

from hypothesis import strategies as st

from plugind.protocol.leases import values as v
from plugind.protocol.leases.rows import STATES

#: Anything that a plugin or a user may write, control characters included.
texts = st.text(st.characters(codec="utf-8"), max_size=8)
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
some = st.lists(texts, max_size=3).map(tuple)
mappings = st.dictionaries(texts, texts, max_size=3)
numbers = st.integers(min_value=0, max_value=2**62)

identities = st.builds(v.ProcessIdentity, numbers, numbers, texts)
owners: st.SearchStrategy[v.Owner] = st.one_of(
    st.builds(v.ProcessOwner, identities),
    st.builds(v.ContainerOwner, st.none() | identities, st.none() | st.floats(min_value=0, max_value=1e9)),
    st.builds(v.TimeOwner, st.floats(min_value=0, max_value=1e9), st.none() | numbers),
    st.builds(v.ConnectionOwner, texts),
    st.builds(v.NoOwner),
)
requests = st.builds(
    v.Request,
    wanted=st.lists(st.builds(v.Wanted, texts, numbers), max_size=3, unique_by=lambda wanted: wanted.resource).map(
        tuple
    ),
    ids=some,
    include=some,
    pool=st.none() | texts,
    labels=mappings.map(lambda labels: tuple(sorted(labels.items()))),
    container=st.booleans(),
    ignore_missing=st.booleans(),
    stop_on_unhealthy=st.booleans(),
    for_uid=st.none() | st.integers(0, 2**32 - 2),
)
answers = st.builds(
    v.Answer,
    env=mappings,
    mounts=st.lists(st.builds(v.Mount, texts, texts, st.booleans()), max_size=2).map(tuple),
    nodes=st.lists(st.builds(v.Node, texts, texts, texts), max_size=2).map(tuple),
    annotations=mappings,
    cdi_devices=some,
    access=mappings,
)
#: Those that are written.
leases = st.builds(
    v.Lease,
    id=words,
    uid=st.integers(min_value=0, max_value=2**32 - 1),
    request=requests,
    owner=owners,
    state=st.sampled_from(STATES),
    created=st.floats(min_value=0, max_value=1e11),
    devices=st.dictionaries(texts, st.lists(texts, min_size=1, max_size=3, unique=True).map(tuple), max_size=3),
    answer=st.none() | answers,
    cdi_name=st.none() | words,
    reason=st.none() | texts,
    warnings=some,
    longest_until=st.none() | numbers,
)
