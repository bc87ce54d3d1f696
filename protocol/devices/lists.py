"""The lists that a device plugin sends: from the bytes of a ListAndWatchResponse to checked devices.

Each message is a whole list, but successive lists differ little: often one device has changed its health, or none. So a
reader keeps the bytes of the last list, in blocks of a few devices. Blocks with the same bytes at the beginning, at the
end, or at the same place in the middle of the next message are not parsed again. The list of devices is then derived
from the last one. A device whose health changes mostly changes back, so each block keeps the block that it replaced:
when all devices alternate, no block is parsed again.

Messages are accepted as protobuf's parser accepts them, with the same result, except for what exceeds a limit.

A long list is read in steps, between which other tasks run. It counts when its last step is done.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from typing import Final

import attrs

from ..errors import ValidationError
from ..plugins.devices import Device, DeviceList
from ..text import quoted
from ..wire.protobuf_fields import FieldReader, InvalidMessageError, int64, span, tag_at, varint

#: How many devices a list can have.
MAX_DEVICES: Final = 10_000
#: Characters in the id and the health of a device. The API says 63, and the kubelet does not check.
MAX_TEXT: Final = 256
#: How many NUMA nodes a device can have.
MAX_NODES: Final = 64
#: How many fields a device can have, including those of its topology, in which nodes can be repeated.
MAX_FIELDS: Final = 512
#: How many unknown fields a list can have, because skipping them takes time.
MAX_UNKNOWN: Final = 10_000

#: Devices in a block, which is parsed as one. Comparing a block costs as much as parsing a tenth of a device.
BLOCK: Final = 8
#: How many fields are read in one step, which takes about a millisecond. The last device of a step can exceed that.
STEP: Final = 512
#: How many descriptions of devices without their ids are cached, and how long they can be. Most are alike.
_MAX_TAILS: Final = 1024
_MAX_TAIL: Final = 128

# Tags, which are the field number and the wire type: in a list, a device, its topology, and a node of the topology.
_DEVICE: Final = 0x0A
_ID, _HEALTH, _TOPOLOGY = 0x0A, 0x12, 0x1A
_NODE: Final = 0x0A
_NODE_ID: Final = 0x08
#: The start of a device: its tag and size, and the tag and size of its id.
_START: Final = struct.Struct("4B")


class DeviceListError(ValidationError):
    """A list of devices is refused; the text is the reason."""


@attrs.frozen
class ReadList:
    """A list of devices, and a warning about it."""

    devices: DeviceList
    warning: str | None = None


@attrs.define(eq=False)
class _Block:
    """Some successive devices of a message, and their bytes."""

    raw: bytes
    devices: tuple[Device, ...]
    #: The block that this one replaced. That block has no ``before``.
    before: _Block | None = None

    def take_place_of(self, block: _Block) -> _Block:
        """Keep ``block`` as the replaced one, and return this one."""
        block.before, self.before = None, block
        return self


@attrs.frozen(eq=False)
class _Changes:
    """The differences between the blocks of a list and those of the list before."""

    blocks: list[_Block]
    #: The devices that have changed; None if devices were added, removed or reordered.
    changed: list[Device] | None


class DeviceListReader:
    """Reads the lists of one plugin, one after another."""

    __slots__ = ("_blocks", "_fields", "_regular", "_step_ends", "_tails", "newest", "work")

    def __init__(self) -> None:
        self.newest = ReadList(DeviceList())
        #: The blocks of that list; empty if the next list must be read as a whole.
        self._blocks: list[_Block] = []
        #: The parsed rest of a device after its id, by its bytes.
        self._tails: dict[bytes, tuple[str, tuple[int, ...]]] = {}
        self._fields = FieldReader(MAX_UNKNOWN)
        #: Whether the list consists of devices only, each with the usual tag.
        self._regular = True
        #: How many fields of the current message were read, and when the step ends.
        self.work = 0
        self._step_ends = STEP

    def read(self, message: bytes) -> ReadList:
        """Return the devices in the bytes of a ListAndWatchResponse, reading all steps at once.

        An unchanged message gives the same list object.

        Raises:
          DeviceListError: if the message is not valid, or exceeds a limit; the next one can be good.
        """
        for _ in self.steps(message):
            pass
        return self.newest

    def steps(self, message: bytes) -> Iterator[None]:
        """Read the bytes of a ListAndWatchResponse, and yield after each step; then :attr:`newest` has the list.

        Raises:
          DeviceListError: if the message is not valid, or exceeds a limit; the next one can be good.
        """
        self._fields = FieldReader(MAX_UNKNOWN)
        self._regular = True
        self.work, self._step_ends = 0, STEP
        try:
            found = yield from self._find_changes(message)
        except (InvalidMessageError, UnicodeDecodeError) as error:
            why = error if isinstance(error, InvalidMessageError) else "a text is not UTF-8"
            raise DeviceListError(f"the message is no valid ListAndWatchResponse: {why}") from None
        if found.changed is None or self.newest.warning is not None:
            self.newest = _made(list(chain.from_iterable(block.devices for block in found.blocks)))
        elif found.changed:
            self.newest = ReadList(self.newest.devices.replacing(found.changed))
        # Added and removed devices would leave many small blocks.
        keep = self._regular and len(found.blocks) <= 2 * len(self.newest.devices) // BLOCK + 2
        self._blocks = found.blocks if keep else []

    def _find_changes(self, message: bytes) -> Generator[None, None, _Changes]:
        before, end = self._blocks, len(message)
        first, position = _equal_at_start(before, message)
        last, stop = _equal_at_end(before, message, first, position)
        read, position = yield from self._read_until(message, position, stop, before[first:last])
        changed = _changed(before[first:last], read)
        if position == stop:
            blocks = before[:first] + read + before[last:]
        else:
            # The bytes that matched the end of the list before belong to a longer device.
            more, _ = yield from self._read_until(message, position, end, ())
            blocks, changed = before[:first] + read + more, None
        if not before:
            changed = None
        _check_count(sum(len(block.devices) for block in blocks))
        return _Changes(blocks, changed)

    def _read_until(
        self, message: bytes, position: int, stop: int, before: Sequence[_Block]
    ) -> Generator[None, None, tuple[list[_Block], int]]:
        """Read blocks up to ``stop`` that replace those in ``before``; return them and their end."""
        blocks: list[_Block] = []
        for old in before:
            if position >= stop:
                break
            if message.startswith(old.raw, position, stop):
                block = old
            elif old.before is not None and message.startswith(old.before.raw, position, stop):
                block = old.before.take_place_of(old)
            else:
                block = self._read_again(message, position, stop, old).take_place_of(old)
            blocks.append(block)
            position += len(block.raw)
            yield from self._step()
        count = 0
        while position < stop:
            block = self._read_block(message, position, stop, BLOCK)
            blocks.append(block)
            position += len(block.raw)
            count += len(block.devices)
            _check_count(count)
            yield from self._step()
        return blocks, position

    def _step(self) -> Iterator[None]:
        """Count a block, and yield if the step is over."""
        self.work += 1
        if self.work >= self._step_ends:
            yield
            self._step_ends = self.work + STEP

    def _read_again(self, message: bytes, start: int, stop: int, before: _Block) -> _Block:
        """Read the block at the place of ``before``, of whose devices mostly a single one has changed."""
        same, at, after = _equal_devices(before, message, start, stop)
        if not same:
            return self._read_block(message, start, stop, len(before.devices))
        turned = self._read_block(message, start + at, stop, 1)
        position = start + at + len(turned.raw)
        rest = before.raw[after:]
        if message.startswith(rest, position, stop):
            others = before.devices[same + 1 :]
            position += len(rest)
        else:
            read = self._read_block(message, position, stop, len(before.devices) - same - 1)
            others = read.devices
            position += len(read.raw)
        return _Block(message[start:position], (*before.devices[:same], *turned.devices, *others))

    def _read_block(self, message: bytes, start: int, stop: int, most: int) -> _Block:
        """Read devices that begin between ``start`` and ``stop``: at most ``most``, and at most one step."""
        position, end, tails = start, len(message), self._tails
        devices: list[Device] = []
        while position < stop and len(devices) < most and not (devices and self.work >= self._step_ends):
            self.work += 1
            if position + 4 <= end:
                # Nearly all devices are short, begin with a short id, and otherwise equal an earlier one.
                tag, size, id_tag, id_size = _START.unpack_from(message, position)
                after, past = position + 4 + id_size, position + 2 + size
                usual = tag == _DEVICE and id_tag == _ID and size < 128 and id_size < 128 and after <= past <= end
                parsed = tails.get(message[after:past]) if usual else None
                if parsed is not None:
                    name = message[position + 4 : after].decode()
                    if not name or not name.isprintable():
                        _check_id(name)
                    devices.append(Device(name, *parsed))
                    position = past
                    continue
            begin, position = self._next_device(message, position, end)
            if begin is not None:
                devices.append(self._device(message, begin, position))
        return _Block(message[start:position], tuple(devices))

    def _next_device(self, message: bytes, position: int, end: int) -> tuple[int | None, int]:
        """Return the start and end of the device at ``position``; or None and the end, if the field is another one."""
        if message[position] == _DEVICE:
            position += 1
        else:
            self._regular = False
            tag, position = tag_at(message, position, end)
            if tag != _DEVICE:
                return None, self._fields.skip(message, position, end, tag)
        return span(message, position, end)

    def _device(self, message: bytes, start: int, stop: int) -> Device:
        """Return the device whose fields are from ``start`` to ``stop``; cache the rest after its id."""
        if stop - start < 2 or message[start] != _ID or message[start + 1] > 127:
            return self._parsed(message, start, stop)
        begin, after = start + 2, start + 2 + message[start + 1]
        if after > stop:
            return self._parsed(message, start, stop)
        name, tail = message[begin:after].decode(), message[after:stop]
        parsed = self._tails.get(tail)
        if parsed is None:
            device = self._parsed(message, after, stop, name)
            if device.id is name and len(tail) <= _MAX_TAIL and len(self._tails) < _MAX_TAILS:
                self._tails[tail] = device.health, device.numa
            return device
        if not name or len(name) > MAX_TEXT or not name.isprintable():
            _check_id(name)
        return Device(name, *parsed)

    def _parsed(self, message: bytes, position: int, stop: int, name: str = "") -> Device:
        """Return the device whose fields are from ``position`` to ``stop``; ``name`` is its id unless they have one."""
        health, nodes, last = "", set[int](), self.work + MAX_FIELDS
        while position < stop:
            tag, position = self._next_tag(message, position, stop, last)
            if tag not in (_ID, _HEALTH, _TOPOLOGY):
                position = self._fields.skip(message, position, stop, tag, depth=1)
                continue
            begin, position = span(message, position, stop)
            if tag == _ID:
                name = message[begin:position].decode()
            elif tag == _HEALTH:
                health = message[begin:position].decode()
            else:
                self._add_nodes(nodes, message, begin, position, last)
        _check_id(name)
        _check_text("health", health)
        if len(nodes) > MAX_NODES:
            raise DeviceListError(f"the device {quoted(name)} is near to more than {MAX_NODES} NUMA nodes")
        return Device(name, health, tuple(sorted(nodes)))

    def _next_tag(self, message: bytes, position: int, stop: int, last: int) -> tuple[int, int]:
        """Return the next tag of a device and the position after it; refuse tags after the field number ``last``."""
        self.work += 1
        if self.work > last:
            raise DeviceListError(f"a device has more than {MAX_FIELDS} fields")
        return tag_at(message, position, stop)

    def _add_nodes(self, nodes: set[int], message: bytes, position: int, stop: int, last: int) -> None:
        """Add the nodes of a topology. The kernel uses -1 for no node, which some plugins pass on."""
        while position < stop:
            tag, position = self._next_tag(message, position, stop, last)
            if tag == _NODE:
                begin, position = span(message, position, stop)
                node = self._node(message, begin, position, last)
                if node >= 0:
                    nodes.add(node)
            else:
                position = self._fields.skip(message, position, stop, tag, depth=2)

    def _node(self, message: bytes, position: int, stop: int, last: int) -> int:
        node = 0
        while position < stop:
            tag, position = self._next_tag(message, position, stop, last)
            if tag == _NODE_ID:
                number, position = varint(message, position, stop)
                node = int64(number)
            else:
                position = self._fields.skip(message, position, stop, tag, depth=3)
        return node


def _equal_at_start(blocks: Sequence[_Block], message: bytes) -> tuple[int, int]:
    """Return how many of ``blocks`` the message begins with, and where they end in it."""
    position = 0
    for count, block in enumerate(blocks):
        if not message.startswith(block.raw, position):
            return count, position
        position += len(block.raw)
    return len(blocks), position


def _equal_at_end(blocks: Sequence[_Block], message: bytes, first: int, position: int) -> tuple[int, int]:
    """Return which of ``blocks`` from ``first`` on end the message, and where they begin after ``position``."""
    last, stop = len(blocks), len(message)
    while last > first and message.endswith(blocks[last - 1].raw, position, stop):
        last -= 1
        stop -= len(blocks[last].raw)
    return last, stop


def _equal_devices(before: _Block, message: bytes, position: int, stop: int) -> tuple[int, int, int]:
    """Return how many devices of ``before`` the message has at ``position``, and the start and end of the next one.

    The start and end are those in the bytes of ``before``. At least one device of ``before`` is not in the message.
    """
    raw, count, at = before.raw, 0, 0
    while True:
        size = raw[at + 1]
        end = at + 2 + size if size < 128 else span(raw, at + 1, len(raw))[1]
        if end == len(raw) or not message.startswith(raw[at:end], position + at, stop):
            return count, at, end
        count, at = count + 1, end


def _changed(before: Sequence[_Block], now: Sequence[_Block]) -> list[Device] | None:
    """Return the devices of ``now`` that differ from ``before``; None if the ids or their order differ."""
    if len(before) != len(now):
        return None
    changed = []
    for old, new in zip(before, now, strict=True):
        if new is old:
            continue
        if len(new.devices) != len(old.devices):
            return None
        for was, device in zip(old.devices, new.devices, strict=True):
            if device is was:
                continue
            if device.id != was.id:
                return None
            if device.health != was.health or device.numa != was.numa:
                changed.append(device)
    return changed


def _made(devices: list[Device]) -> ReadList:
    """Return the list of ``devices``. Of devices with the same id the last counts."""
    made = DeviceList(devices)
    if len(made) == len(devices):
        return ReadList(made)
    repeated = Counter(device.id for device in devices).most_common(1)[0][0]
    more = len(devices) - len(made)
    counted = "1 device has" if more == 1 else f"{more} devices have"
    return ReadList(made, f"{counted} the id of another, such as {quoted(repeated)}")


def _check_count(count: int) -> None:
    if count > MAX_DEVICES:
        raise DeviceListError(f"it has more than {MAX_DEVICES} devices")


def _check_id(name: str) -> None:
    if not name:
        raise DeviceListError("the id of a device is empty")
    _check_text("id", name)


def _check_text(what: str, said: str) -> None:
    if len(said) > MAX_TEXT:
        raise DeviceListError(f"the {what} of a device has {len(said)} characters, at most {MAX_TEXT} are allowed")
    if not said.isprintable():
        raise DeviceListError(f"the {what} of a device holds characters that do not print: {quoted(said)}")
