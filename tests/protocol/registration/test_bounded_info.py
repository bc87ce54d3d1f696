"""How many versions a PluginInfo has is bounded before the message is parsed (fault 51)."""

from __future__ import annotations

import contextlib

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.proto.pluginregistration_pb2 import PluginInfo
from plugind.protocol.registration.bounded_info import MOST_OTHERS, first_versions
from plugind.protocol.wire.protobuf_fields import TooManyFieldsError

EMPTY_VERSION = b"\x22\0"


def test_of_32768_empty_versions_one_more_than_is_allowed_is_parsed() -> None:
    """Fault 51: that is all that 64 KiB have room for."""
    message = PluginInfo(type="CSIPlugin", name="a.example.com").SerializeToString() + EMPTY_VERSION * 32_000
    cut = first_versions(message, 128)
    assert len(cut) == len(message) - (32_000 - 129) * len(EMPTY_VERSION)
    info = PluginInfo.FromString(cut)
    assert (info.type, info.name, len(info.supported_versions)) == ("CSIPlugin", "a.example.com", 129)


#: Texts whose length takes one byte in a message, or two.
TEXTS = st.builds(str.__mul__, st.sampled_from("aé€"), st.integers(0, 150))


@given(TEXTS, TEXTS, st.lists(TEXTS, max_size=20), st.integers(1, 20))
def test_a_message_within_the_bound_stays_as_it_is(name: str, endpoint: str, versions: list[str], most: int) -> None:
    """And one beyond it loses its last versions alone."""
    info = PluginInfo(type="CSIPlugin", name=name, endpoint=endpoint, supported_versions=versions)
    message = info.SerializeToString()
    cut = PluginInfo.FromString(first_versions(message, most))
    assert (cut.name, cut.endpoint) == (name, endpoint)
    if len(versions) <= most:
        assert first_versions(message, most) == message
    else:
        assert list(cut.supported_versions)[:most] == versions[:most]
        assert most < len(cut.supported_versions) <= len(versions)


@pytest.mark.parametrize(
    "field",
    [b"\x78\x01", b"\x7a\0", b"\x79" + bytes(8), b"\x7d" + bytes(4), b"\x7b\x7c", b"\x0a\0"],
    ids=["varint", "bytes", "fixed64", "fixed32", "group", "type again"],
)
def test_other_fields_are_bounded_too(field: bytes) -> None:
    """Fault 51: versions are not the only field that can be repeated."""
    few = PluginInfo(name="a").SerializeToString() + field * 20
    assert PluginInfo.FromString(first_versions(few, 1)) == PluginInfo.FromString(few)
    with pytest.raises(TooManyFieldsError, match=f"more than {MOST_OTHERS} fields besides versions"):
        first_versions(field * 1000, 128)


@given(st.binary(max_size=400))
def test_random_bytes_are_left_to_the_parser(data: bytes) -> None:
    """No other error than that of too many fields, and what is cut off was too much."""
    try:
        cut = first_versions(data, 3)
    except TooManyFieldsError:
        return
    if cut != data:
        assert data.startswith(cut)
        with contextlib.suppress(DecodeError):
            assert len(PluginInfo.FromString(cut).supported_versions) <= 4


@pytest.mark.parametrize(
    "data", [EMPTY_VERSION * 100 + b"\x22", b"\xff" * 300, b"\x22\xff\xff" * 100, b"\x0a\x7f" * 70]
)
def test_a_message_that_ends_too_early_is_left_to_the_parser(data: bytes) -> None:
    """Fault 72: the parser says what is wrong with it."""
    assert first_versions(data, 200) == data
