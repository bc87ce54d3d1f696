"""Lists of devices from bytes: what is accepted, how one differs from the one before, and what is refused.

``ListAndWatchResponse`` as protobuf's compiler generates it says what a message means.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.devices import lists as device_lists
from plugind.protocol.devices.lists import BLOCK, MAX_DEVICES, MAX_NODES, DeviceListError, DeviceListReader, ReadList
from plugind.protocol.plugins.devices import Device, DeviceList, Difference
from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as api
from plugind.tests.protocol.hypothesis_settings import examples


def message(*devices: Device) -> bytes:
    """Return the message that a plugin sends for ``devices``."""
    return api.ListAndWatchResponse(
        devices=[
            api.Device(
                ID=device.id,
                health=device.health,
                topology=api.TopologyInfo(nodes=[api.NUMANode(ID=node) for node in device.numa])
                if device.numa
                else None,
            )
            for device in devices
        ]
    ).SerializeToString()


def some(count: int, *unhealthy: int) -> list[Device]:
    return [
        Device(f"gpu-{number}", "Unhealthy" if number in unhealthy else "Healthy", (number % 2,))
        for number in range(count)
    ]


def parsed(sent: bytes) -> list[Device] | None:
    """Return what protobuf's own parser makes of a message; None if it is not valid."""
    try:
        response = api.ListAndWatchResponse.FromString(sent)
    except DecodeError:
        return None
    return [
        Device(device.ID, device.health, tuple(sorted({node.ID for node in device.topology.nodes if node.ID >= 0})))
        for device in response.devices
    ]


def is_allowed(devices: Sequence[Device]) -> bool:
    texts = [text for device in devices for text in (device.id, device.health)]
    return (
        len(devices) <= device_lists.MAX_DEVICES
        and all(device.id for device in devices)
        and all(len(text) <= device_lists.MAX_TEXT and text.isprintable() for text in texts)
        and all(len(device.numa) <= device_lists.MAX_NODES for device in devices)
    )


def check(reader: DeviceListReader, sent: bytes) -> bool:
    """Check that ``reader`` reads ``sent`` as protobuf does, and that the list is right about its difference."""
    before, expected = reader.newest, parsed(sent)
    try:
        read = reader.read(sent)
    except DeviceListError:
        assert expected is None or not is_allowed(expected)
        assert reader.newest is before
        return False
    assert expected is not None
    assert is_allowed(expected)
    assert read.devices == DeviceList(expected)
    assert read.devices.healthy == DeviceList(expected).healthy
    assert (read.warning is None) == (len(DeviceList(expected)) == len(expected))
    quick, plain = read.devices.compared(before.devices), DeviceList(expected).compared(before.devices)
    assert (set(quick.changed), set(quick.removed)) == (set(plain.changed), set(plain.removed))
    return True


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the ids of the devices that readers make from now on."""
    made: list[str] = []

    def make(name: str, health: str, numa: tuple[int, ...]) -> Device:
        made.append(name)
        return Device(name, health, numa)

    monkeypatch.setattr(device_lists, "Device", make)
    return made


# --- what differs little is read quickly ------------------------------------------------------------------------------


def test_a_device_that_turns_unhealthy_is_the_only_one_that_is_read_and_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = DeviceListReader()
    first = reader.read(message(*some(1000))).devices
    made = counted(monkeypatch)
    for unhealthy in ((500,), (500, 501), (), (0,), (999,)):
        before = reader.newest.devices
        made.clear()
        now = reader.read(message(*some(1000, *unhealthy))).devices
        assert len(made) <= 2 * BLOCK
        assert now.compared(before).removed == ()
        assert len(now.compared(before).changed) <= 2
    assert reader.newest.devices.compared(first) == Difference((Device("gpu-999", "Unhealthy", (1,)),))


def test_devices_that_turn_back_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where all of them turn with each list, as those of a driver do that fails and recovers."""
    reader = DeviceListReader()
    well, ill = message(*some(1000)), message(*some(1000, *range(1000)))
    first, second = reader.read(well).devices, reader.read(ill).devices
    made = counted(monkeypatch)
    for sent, expected in ((well, first), (ill, second), (well, first)):
        before = reader.newest.devices
        now = reader.read(sent).devices
        assert now == expected
        assert len(now.compared(before).changed) == 1000
    reader.read(message(*some(1000, 500)))
    assert reader.read(well).devices == first
    assert len(made) <= BLOCK


@pytest.mark.parametrize("size", [1, 110, 111, 112, 113, 127, 128, 200])
def test_devices_of_all_lengths_turn_one_by_one(size: int) -> None:
    """The size of a device takes one byte or two, and so does that of its id."""
    reader = DeviceListReader()
    devices = [Device(f"{number:03}".ljust(size, "x"), "Healthy", (0,)) for number in range(3 * BLOCK)]
    for number, device in enumerate(devices):
        assert check(reader, message(*devices))
        devices[number] = Device(device.id, "Unhealthy", (0,))
    assert check(reader, message(*devices))


@pytest.mark.parametrize("place", [0, 1, 15, 16, 500, 998, 999])
def test_a_device_that_goes_or_comes_leaves_the_others_unread(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = DeviceListReader()
    all_of_them = some(1000)
    reader.read(message(*all_of_them))
    made = counted(monkeypatch)
    without = [device for number, device in enumerate(all_of_them) if number != place]
    reader.read(message(*without))
    assert list(reader.newest.devices.devices.values()) == without
    reader.read(message(*all_of_them))
    assert list(reader.newest.devices.devices.values()) == all_of_them
    assert 0 < len(made) <= 4 * BLOCK


@examples(200)
@given(st.integers(0, 2**32))
def test_lists_that_follow_each_other_are_read_as_each_alone(seed: int) -> None:
    """Devices turn, come, go, and change their places; some messages are damaged."""
    chance = random.Random(seed)
    reader = DeviceListReader()
    devices = some(chance.choice((0, 1, 15, 16, 17, 60)))
    for _ in range(12):
        _change(devices, chance)
        sent = message(*devices)
        check(reader, _damaged(sent, chance) if chance.random() < 0.3 else sent)


def _change(devices: list[Device], chance: random.Random) -> None:
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        place = chance.randrange(len(devices) + 1)
        match chance.randrange(6):
            case 0:
                devices.insert(place, Device(f"new-{chance.randrange(9)}", chance.choice(("Healthy", "", "x" * 200))))
            case 1:
                del devices[place : place + chance.choice((1, 1, 20))]
            case 2:
                chance.shuffle(devices)
            case _:
                for number in range(place, min(len(devices), place + chance.choice((1, 1, 30)))):
                    was = devices[number]
                    devices[number] = Device(was.id, "Healthy" if not was.healthy else "Unhealthy", was.numa)


def _damaged(sent: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(sent)
    for _ in range(chance.choice((1, 1, 3))):
        place = chance.randrange(len(damaged) + 1)
        match chance.randrange(4):
            case 0:
                damaged[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                damaged[place:place] = chance.randbytes(chance.choice((1, 2, 5)))
            case 2:
                del damaged[place : place + chance.choice((1, 3, 20))]
            case _:
                damaged[place:place] = _unknown(chance)
    return bytes(damaged)


# --- what protobuf's parser accepts is accepted -----------------------------------------------------------------------


def _varint(number: int, *, longer: int = 0) -> bytes:
    parts = []
    while True:
        parts.append(number & 127)
        number >>= 7
        if not number:
            break
    parts += [0] * longer
    return bytes([part | 128 for part in parts[:-1]] + parts[-1:])


def _field(number: int, kind: int, value: bytes = b"") -> bytes:
    return _varint(number << 3 | kind) + (_varint(len(value)) if kind == 2 else b"") + value


def _unknown(chance: random.Random) -> bytes:
    number = chance.choice((0, 1, 2, 3, 4, 15, 16, 5000, 2**29 - 1, 2**29))
    match chance.randrange(8):
        case 0:
            return _field(
                number, 0, _varint(chance.choice((0, 127, 128, 2**63, 2**64 - 1)), longer=chance.choice((0, 0, 3)))
            )
        case 1:
            return _field(number, 1, chance.randbytes(8))
        case 2:
            return _field(number, 2, chance.randbytes(chance.choice((0, 3, 200))))
        case 3:
            inner = b"".join(_unknown(chance) for _ in range(chance.choice((0, 0, 1, 2))))
            return _field(number, 3) + inner + _field(chance.choice((number, number, 7)), 4)
        case 4:
            return _field(number, 5, chance.randbytes(4))
        case 5:
            return _field(number, chance.choice((4, 6, 7)))
        case 6:
            return (
                _varint(number << 3 | 2, longer=chance.choice((0, 1, 4)))
                + _varint(1, longer=chance.choice((1, 4, 9)))
                + b"x"
            )
        case _:
            return b"\xff" * chance.choice((4, 5, 9, 10)) + chance.choice((b"\x01", b"\x02", b"\x7f", b""))


def _odd_device(chance: random.Random) -> bytes:
    """Return the fields of a device in any order, any number, and with others between them."""
    texts = ("a", "b", "Healthy", "é", "", "x" * 127, "y" * 128, "z" * 257, "a\nb")
    parts = []
    for _ in range(chance.choice((0, 1, 2, 3, 6))):
        match chance.randrange(5):
            case 0 | 1:
                parts.append(_field(chance.choice((1, 2)), 2, chance.choice(texts).encode()))
            case 2:
                parts.append(
                    _field(chance.choice((1, 2)), 2, chance.choice((b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xe9")))
                )
            case 3:
                nodes = [_node(chance) for _ in range(chance.choice((0, 1, 2, 70)))]
                parts.append(_field(3, 2, b"".join(nodes)))
            case _:
                parts.append(_unknown(chance))
    if chance.random() < 0.9:  # Without an id, the whole list is refused.
        parts.insert(chance.randrange(len(parts) + 1), _field(1, 2, b"c"))
    return b"".join(parts)


def _node(chance: random.Random) -> bytes:
    number = chance.choice((0, 1, 1, 2, chance.randrange(100), 2**63, 2**64 - 1))
    extra = _unknown(chance) if chance.random() < 0.1 else b""
    return _field(1, 2, chance.choice((b"", _field(1, 0, _varint(number)))) + extra) + extra


@examples(400)
@given(st.integers(0, 2**32))
def test_odd_messages_mean_what_they_mean_to_protobufs_parser(seed: int) -> None:
    """Unknown fields, fields twice, in another order, of another wire type, and numbers in more bytes than needed."""
    chance = random.Random(seed)
    reader = DeviceListReader()
    for _ in range(4):
        parts = []
        for _ in range(chance.choice((1, 2, 5, 20))):
            tag = b"\x8a\x00" if chance.random() < 0.1 else b"\x0a"
            device = _odd_device(chance) if chance.random() < 0.5 else message(Device("plain"))[2:]
            parts.append(tag + _varint(len(device)) + device)
            if chance.random() < 0.1:
                parts.append(_unknown(chance))
        sent = b"".join(parts)
        check(reader, _damaged(sent, chance) if chance.random() < 0.3 else sent)


# --- limits -----------------------------------------------------------------------------------------------------------


def refusal(sent: bytes) -> str:
    with pytest.raises(DeviceListError) as caught:
        DeviceListReader().read(sent)
    return str(caught.value)


def test_the_reason_of_a_refusal_names_the_limit_or_the_fault() -> None:
    """Faults 51 and 73: sizes, counts and characters."""
    assert refusal(message(Device("x" * 257))) == ("the id of a device has 257 characters, at most 256 are allowed")
    assert refusal(message(Device("a\nb"))) == ('the id of a device holds characters that do not print: "a\\nb"')
    assert refusal(message(Device("a", "\x1b[2J"))) == (
        'the health of a device holds characters that do not print: "\\x1b[2J"'
    )
    assert refusal(message(Device("a", numa=tuple(range(MAX_NODES + 1))))) == (
        'the device "a" is near to more than 64 NUMA nodes'
    )
    assert refusal(message(*some(MAX_DEVICES + 1))) == "it has more than 10000 devices"
    assert refusal(b"\x0a\x03\x0a\x01\xff") == "the message is no valid ListAndWatchResponse: a text is not UTF-8"
    assert refusal(b"\x0a\x03") == ("the message is no valid ListAndWatchResponse: it ends in the middle of a field")
    assert refusal(_field(9, 0, b"\0") * 10_001) == (
        "the message is no valid ListAndWatchResponse: it has more than 10000 unknown fields"
    )


@pytest.mark.parametrize("first", [(), (Device("a"),)])
@pytest.mark.parametrize("sent", [b"\x0a\x00", message(Device("")), message(Device("", "", (1,))), b"\x0a\x02\x0a\x00"])
def test_a_device_without_an_id_is_refused(sent: bytes, first: tuple[Device, ...]) -> None:
    """Fault 73. No container could be given one: it was accepted, and shown as a dash."""
    reader = DeviceListReader()
    reader.read(message(*first))
    for _ in range(2):
        with pytest.raises(DeviceListError, match=r"^the id of a device is empty$"):
            reader.read(message(*first) + sent)


def test_ten_thousand_devices_are_accepted_and_one_more_is_refused_however_it_comes() -> None:
    reader = DeviceListReader()
    assert len(reader.read(message(*some(MAX_DEVICES))).devices) == MAX_DEVICES
    for more in (
        message(*some(MAX_DEVICES), Device("more")),
        message(Device("more"), *some(MAX_DEVICES)),
        message(*some(5000), Device("more"), *some(MAX_DEVICES)[5000:]),
    ):
        with pytest.raises(DeviceListError, match="more than 10000 devices"):
            reader.read(more)
    assert len(reader.newest.devices) == MAX_DEVICES


def test_of_two_devices_with_one_id_the_last_counts_with_a_warning() -> None:
    reader = DeviceListReader()
    read = reader.read(message(Device("a"), Device("b"), Device("a", "Unhealthy"), Device("b"), Device("b")))
    assert read == ReadList(
        DeviceList([Device("a", "Unhealthy"), Device("b")]), '3 devices have the id of another, such as "b"'
    )
    assert reader.read(message(Device("a"), Device("b"))).warning is None
    assert reader.read(message(Device("a"), Device("a"))).warning == '1 device has the id of another, such as "a"'


def test_a_node_minus_one_means_none() -> None:
    """The kernel's file ``numa_node`` says -1 on a machine without NUMA."""
    assert parsed(message(Device("a", numa=(-1,)))) == [Device("a")]
    assert DeviceListReader().read(message(Device("a", numa=(-1,)))).devices == DeviceList([Device("a")])


# --- lists of many fields ---------------------------------------------------------------------------------------------


def _near(name: str, nodes: bytes) -> bytes:
    """Return a device of a list, near to ``nodes``."""
    return _field(1, 2, _field(1, 2, name.encode()) + _field(3, 2, nodes))


@pytest.mark.parametrize("field", [_field(1, 2), _field(1, 2, _field(1, 0, b"\x01")), _field(5, 0, b"\x00")])
def test_a_device_of_too_many_fields_is_refused_however_few_nodes_they_name(field: bytes) -> None:
    with pytest.raises(DeviceListError, match=f"a device has more than {device_lists.MAX_FIELDS} fields"):
        DeviceListReader().read(_near("a", field * device_lists.MAX_FIELDS))


@pytest.mark.parametrize("field", [_field(1, 2), _field(2, 2), _field(3, 2)])
def test_a_device_that_repeats_its_texts_too_often_is_refused(field: bytes) -> None:
    with pytest.raises(DeviceListError, match=f"a device has more than {device_lists.MAX_FIELDS} fields"):
        DeviceListReader().read(_field(1, 2, field * (device_lists.MAX_FIELDS + 2)))


def test_a_list_of_many_fields_is_read_in_steps_and_counts_at_its_end() -> None:
    reader = DeviceListReader()
    before = reader.read(message(*some(3)))
    sent = b"".join(_near(str(number), _field(1, 2) * 400) for number in range(100))
    done = [0]
    for _ in reader.steps(sent):
        assert reader.newest is before
        done.append(reader.work)
    assert len(done) > 10
    most = device_lists.STEP + device_lists.MAX_FIELDS + 2
    assert all(later - earlier <= most for earlier, later in zip(done, [*done[1:], reader.work], strict=True))
    assert list(reader.newest.devices.devices) == [str(number) for number in range(100)]


def test_a_list_that_is_not_read_to_its_end_changes_nothing() -> None:
    reader = DeviceListReader()
    before = reader.read(message(*some(1000)))
    sent = message(*some(1000, *range(1000))) + b"".join(_near(str(n), _field(1, 2) * 400) for n in range(100))
    for _ in reader.steps(sent):
        break
    assert reader.newest is before
    assert check(reader, message(*some(1000, 7)))
