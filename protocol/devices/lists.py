"""The lists that a device plugin sends: from the bytes of a ListAndWatchResponse to the devices, checked.

Each message is the whole list, though two that follow each other differ little: one device turns unhealthy, or none
does and the plugin only repeats itself. So a reader keeps the bytes of the list before, in blocks of a few devices.
Blocks whose bytes are the same at the beginning or at the end of the next message, or in the same place in between,
are not parsed again. The list of devices is then made from the one before, which costs its reader little too. A device
that turns mostly turns back, so each block remembers the one whose place it took: where all devices turn with each
list, none is parsed again.

What protobuf's parser accepts is accepted here, with the same result, except for what exceeds a limit.

A list of many fields is read in steps, between which others run. It counts when its last step is done.
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

#: How many devices a list may have.
MAX_DEVICES: Final = 10_000
#: Characters in the id of a device, and in the word for its health. The API says 63 and the kubelet checks nothing.
MAX_TEXT: Final = 256
#: How many NUMA nodes a device may be near to.
MAX_NODES: Final = 64
#: How many fields a device may have, with those of its topology: a node that is named again is a field, too.
MAX_FIELDS: Final = 512
#: How many fields of a list may be none that the API defines, since each takes time to skip.
MAX_UNKNOWN: Final = 10_000

#: Devices in a block that is parsed as one. To compare one costs as much as to parse a tenth of a device.
BLOCK: Final = 8
#: How many fields are read in one step: about a millisecond. The last device of a step may exceed that.
STEP: Final = 512
#: How many descriptions of devices without their ids are remembered, and of how many bytes each: most are alike.
_MAX_TAILS: Final = 1024
_MAX_TAIL: Final = 128

# Tags: the number of the field and its wire type. In a list, in a device, in its topology, and in a node of that.
_DEVICE: Final = 0x0A
_ID, _HEALTH, _TOPOLOGY = 0x0A, 0x12, 0x1A
_NODE: Final = 0x0A
_NODE_ID: Final = 0x08
#: How a device begins: its tag and its size, then the tag and the size of its id.
_START: Final = struct.Struct("4B")


class DeviceListError(ValidationError):
    """A list of devices is refused; the text says why."""


@attrs.frozen
class ReadList:
    """A list of devices, and what is wrong with it though it is used."""

    devices: DeviceList
    warning: str | None = None


@attrs.define(eq=False)
class _Block:
    """Some devices that follow each other in a message, and their bytes."""

    raw: bytes
    devices: tuple[Device, ...]
    #: The block whose place it took, which has none itself.
    before: _Block | None = None

    def take_place_of(self, block: _Block) -> _Block:
        """Remember ``block``, and return this one."""
        block.before, self.before = None, block
        return self


@attrs.frozen(eq=False)
class _Changes:
    """How the blocks of a list differ from those of the list before."""

    blocks: list[_Block]
    #: The devices that are not as they were; None if others have come or gone, or stand in another order.
    changed: list[Device] | None


class DeviceListReader:
    """Reads the lists of one plugin, one after another."""

    __slots__ = ("_blocks", "_fields", "_regular", "_step_ends", "_tails", "newest", "work")

    def __init__(self) -> None:
        #: The list that was read last.
        self.newest = ReadList(DeviceList())
        #: Its bytes; empty if the next list is to be read as a whole.
        self._blocks: list[_Block] = []
        #: What has been parsed of a device after its id, by its bytes.
        self._tails: dict[bytes, tuple[str, tuple[int, ...]]] = {}
        self._fields = FieldReader(MAX_UNKNOWN)
        #: Whether the list consists of devices only, each with the usual tag before it.
        self._regular = True
        #: How many fields of the message that is read were looked at, and when the step ends.
        self.work = 0
        self._step_ends = STEP

    def read(self, message: bytes) -> ReadList:
        """Return the devices that the bytes of a ListAndWatchResponse list, all steps at once.

        It is the very list from before if the message is.

        Raises:
          DeviceListError: if the message is not valid, or exceeds a limit; the next one may be good.
        """
        for _ in self.steps(message):
            pass
        return self.newest

    def steps(self, message: bytes) -> Iterator[None]:
        """Read the bytes of a ListAndWatchResponse, and yield after each step; :attr:`newest` has the list at the end.

        Raises:
          DeviceListError: if the message is not valid, or exceeds a limit; the next one may be good.
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
        # Devices that come and go would leave many small blocks.
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
            # What looked like the end of the list before belongs to a device that is longer.
            more, _ = yield from self._read_until(message, position, end, ())
            blocks, changed = before[:first] + read + more, None
        if not before:
            changed = None
        _check_count(sum(len(block.devices) for block in blocks))
        return _Changes(blocks, changed)

    def _read_until(
        self, message: bytes, position: int, stop: int, before: Sequence[_Block]
    ) -> Generator[None, None, tuple[list[_Block], int]]:
        """Read blocks up to ``stop``, which take the place of those in ``before``; return them and where they end."""
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
        """Yield if the step is over, after a block of devices."""
        self.work += 1
        if self.work >= self._step_ends:
            yield
            self._step_ends = self.work + STEP

    def _read_again(self, message: bytes, start: int, stop: int, before: _Block) -> _Block:
        """Read what is in the place of ``before``: of the devices there, mostly a single one has turned."""
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
        """Read devices that begin from ``start`` to ``stop``: at most ``most``, and those of one step."""
        position, end, tails = start, len(message), self._tails
        devices: list[Device] = []
        while position < stop and len(devices) < most and not (devices and self.work >= self._step_ends):
            self.work += 1
            if position + 4 <= end:
                # Nearly all devices are short, begin with a short id, and go on as another one did.
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
        """Return where the device at ``position`` begins and ends; or None, and where a field of another kind ends."""
        if message[position] == _DEVICE:
            position += 1
        else:
            self._regular = False
            tag, position = tag_at(message, position, end)
            if tag != _DEVICE:
                return None, self._fields.skip(message, position, end, tag)
        return span(message, position, end)

    def _device(self, message: bytes, start: int, stop: int) -> Device:
        """Return the device whose fields are from ``start`` to ``stop``; remember what comes after its id."""
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
        """Return the device whose fields are from ``position`` to ``stop``; ``name`` is its id unless they say it."""
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
        """Return the next tag of a device, which may not be one after ``last``, and the position after it."""
        self.work += 1
        if self.work > last:
            raise DeviceListError(f"a device has more than {MAX_FIELDS} fields")
        return tag_at(message, position, stop)

    def _add_nodes(self, nodes: set[int], message: bytes, position: int, stop: int, last: int) -> None:
        """Add the nodes of a topology. The kernel calls a node -1 where there is none, and some plugins repeat that."""
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
    """Return which of ``blocks`` from ``first`` on the message ends with, and where they begin after ``position``."""
    last, stop = len(blocks), len(message)
    while last > first and message.endswith(blocks[last - 1].raw, position, stop):
        last -= 1
        stop -= len(blocks[last].raw)
    return last, stop


def _equal_devices(before: _Block, message: bytes, position: int, stop: int) -> tuple[int, int, int]:
    """Return with how many devices of ``before`` the message goes on at ``position``, and where the next one is there.

    That is where it begins and ends in the bytes of ``before``, which has one that is not in the message.
    """
    raw, count, at = before.raw, 0, 0
    while True:
        size = raw[at + 1]
        end = at + 2 + size if size < 128 else span(raw, at + 1, len(raw))[1]
        if end == len(raw) or not message.startswith(raw[at:end], position + at, stop):
            return count, at, end
        count, at = count + 1, end


def _changed(before: Sequence[_Block], now: Sequence[_Block]) -> list[Device] | None:
    """Return the devices of ``now`` that are not as in ``before``; None if their ids or the order are others."""
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
    """Return the list of ``devices``: of two with one id the last counts."""
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
