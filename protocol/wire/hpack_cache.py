"""Response header blocks: decoded once, then recognized by their bytes.

A plugin answers with the same few header blocks each time, and plugins of one gRPC library answer with similar blocks.
The meaning of a block depends only on its bytes and on the contents of HPACK's dynamic table. Each contents of the
table is a ``TableState``, which stores the meaning of the blocks seen in it and the state after each: one look-up per
block. An unknown block is decoded by the ``hpack`` library, with a decoder that is filled with the state's entries. No
connection keeps a decoder (RFC 7541 section 2.3.3, and section 4 for eviction).

The memory is bounded by a maximum number of blocks in all, after which everything is dropped, and a maximum number of
new blocks for each connection, so that a single hostile plugin cannot empty the cache for the others.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import attrs
from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

from .budgets import Budgets
from .errors import WireError, WireProblem, over_limit, shown
from .limits import DEFAULT_LIMITS

MAX_BLOCKS: Final = 512
MAX_BLOCK_BYTES: Final = 2048
#: How many lengths of prefixes one state stores: each costs a look-up for a new response.
MAX_PREFIX_SIZES: Final = 8
NEW_BLOCKS_PER_CONNECTION: Final = 8

_CONNECTION_FIELDS: Final = frozenset({"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"})

#: The header work of one table entry, since all entries are filled into a table for each decoded block.
ENTRY_BYTES: Final = 32

Entry = tuple[bytes, bytes]


@attrs.frozen
class ResponseBlock:
    """A decoded block of response headers or trailers. The fields that gRPC uses are attributes."""

    #: Names and values in order. Bytes that are not UTF-8 are replaced.
    fields: tuple[tuple[str, str], ...]
    #: The size of the list as RFC 7541 section 4.1 counts it, in bytes.
    size: int
    #: The value of ``:status``; None in trailers.
    http_status: int | None
    #: The broken rule of RFC 9113 section 8; empty if none.
    malformed: str
    content_type: str | None
    grpc_status: str | None
    #: As sent, percent-encoded.
    grpc_message: str | None
    #: True for usual response headers, which need no further check.
    plain: bool


def interpret(raw: Sequence[Entry], size: int) -> ResponseBlock:
    """Check a decoded header list, and look up the fields that gRPC uses (RFC 9113 sections 8.2 and 8.3)."""
    fields = tuple((n.decode("utf-8", "replace"), v.decode("utf-8", "replace")) for n, v in raw)
    by_name = dict(reversed(fields))
    malformed, status = _check(fields)
    kind, grpc_status = by_name.get("content-type"), by_name.get("grpc-status")
    plain = not malformed and status == 200 and kind == "application/grpc" and grpc_status is None
    return ResponseBlock(fields, size, status, malformed, kind, grpc_status, by_name.get("grpc-message"), plain)


def _check(fields: Iterable[tuple[str, str]]) -> tuple[str, int | None]:
    """Return the broken rule, or an empty string, and the HTTP status, if any."""
    status: int | None = None
    regular = False
    for name, value in fields:
        if name.startswith(":"):
            if name != ":status" or regular or status is not None:
                return f"misplaced pseudo-header field {shown(name.encode())}", status
            if not (len(value) == 3 and value.isascii() and value.isdigit() and value >= "100"):
                return f":status is {shown(value.encode())}", status
            status = int(value)
            continue
        regular = True
        problem = _field_problem(name, value)
        if problem:
            return problem, status
    return "", status


def _field_problem(name: str, value: str) -> str:
    if not name or name != name.lower() or not name.isascii() or any(c <= " " or c in ":\x7f" for c in name):
        return f"invalid field name {shown(name.encode())}"
    if name in _CONNECTION_FIELDS:
        return f"connection-specific field {name}"
    if "\0" in value or "\r" in value or "\n" in value:
        return f"control character in the value of {name}"
    return ""


@attrs.define(eq=False)
class TableState:
    """One contents of the dynamic table, and the blocks seen with it."""

    #: Newest first.
    entries: tuple[Entry, ...]
    max_size: int
    blocks: dict[bytes, tuple[ResponseBlock, "TableState"]] = attrs.field(factory=dict, init=False, repr=False)
    #: The responses seen in this state, by the bytes before the message; see ``protocol.wire.responses``.
    prefixes: dict[bytes, "ResponsePrefix"] = attrs.field(factory=dict, init=False, repr=False)
    #: The lengths of the keys of ``prefixes``, each once.
    prefix_sizes: tuple[int, ...] = attrs.field(default=(), init=False, repr=False)

    def forget(self) -> None:
        """Drop everything seen in this state."""
        self.blocks.clear()
        self.prefixes.clear()
        self.prefix_sizes = ()


@attrs.define(eq=False)
class ResponseSuffix:
    """The bytes after a message, and their meaning: trailers."""

    data: bytes
    trailers: ResponseBlock
    #: The table after the response.
    state: TableState
    #: The size of the larger header list of the response, in bytes.
    list_size: int


@attrs.define(eq=False)
class ResponsePrefix:
    """The bytes before a message, and their meaning: SETTINGS and acknowledgements, then plain response headers."""

    data: bytes
    size: int
    stream_id: int
    settings_frames: int
    #: The number of their entries together.
    settings_entries: int
    #: The payloads of the SETTINGS to apply.
    settings: tuple[bytes, ...]
    head: ResponseBlock
    #: The table before the trailers.
    state: TableState
    suffixes: dict[bytes, ResponseSuffix] = attrs.field(factory=dict, init=False, repr=False)


class _Table(Protocol):
    """The part of ``hpack.table.HeaderTable`` that is used here."""

    maxsize: int

    @property
    def dynamic_entries(self) -> Iterable[Entry]: ...

    def add(self, name: bytes, value: bytes) -> None: ...


class HeaderCache:
    """The blocks seen so far, by table state. The connections of a process share one cache."""

    __slots__ = ("_count", "_states", "root")

    def __init__(self) -> None:
        self.root = TableState((), HeaderTable.DEFAULT_SIZE)
        self._states: dict[tuple[tuple[Entry, ...], int], TableState] = {}
        self._count = 0
        self.clear()

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        """Drop every block. Open connections keep their table states and continue from them."""
        for state in self._states.values():
            state.forget()
        self.root.forget()
        self._states = {(self.root.entries, self.root.max_size): self.root}
        self._count = 0

    def learn(self, state: TableState, block: bytes, found: ResponseBlock, following: TableState) -> TableState:
        """Store the meaning of ``block`` in ``state``.

        Return the state to go on with: ``following``, or an equal earlier one.
        """
        if len(block) > MAX_BLOCK_BYTES:
            return following
        if self._count >= MAX_BLOCKS:
            self.clear()
        state = self._states.setdefault((state.entries, state.max_size), state)
        following = self._states.setdefault((following.entries, following.max_size), following)
        if block not in state.blocks:
            state.blocks[block] = (found, following)
            self._count += 1
        return following

    def learn_response(self, state: TableState, prefix: ResponsePrefix, suffix: ResponseSuffix) -> None:
        """Store a response that began in ``state``."""
        if self._count >= MAX_BLOCKS:
            self.clear()
        if self._states.get((state.entries, state.max_size)) is not state:
            # The state was dropped meanwhile, so the response would never be found in it.
            return
        if prefix.data not in state.prefixes:
            sizes = state.prefix_sizes
            if prefix.size not in sizes:
                if len(sizes) >= MAX_PREFIX_SIZES:
                    return
                state.prefix_sizes = (*sizes, prefix.size)
            state.prefixes[prefix.data] = prefix
            self._count += 1
        suffixes = state.prefixes[prefix.data].suffixes
        if suffix.data not in suffixes:
            suffixes[suffix.data] = suffix
            self._count += 1


CACHE: Final = HeaderCache()


class HeaderReader:
    """The receiving side of HPACK for one connection."""

    __slots__ = ("_budgets", "_cache", "_limit", "_may_learn", "state")

    def __init__(self, list_limit: int, cache: HeaderCache = CACHE, budgets: Budgets | None = None) -> None:
        self._limit = list_limit
        self._budgets = Budgets(DEFAULT_LIMITS) if budgets is None else budgets
        self._cache = cache
        self.state = cache.root
        self._may_learn = NEW_BLOCKS_PER_CONNECTION

    def read(self, block: bytes) -> ResponseBlock:
        """Decode the next header block of this connection.

        Raises:
            WireError: the block is not valid HPACK, its list is over the limit, or the header work of the call is over
              its budget; the connection must end.
        """
        budgets = self._budgets
        budgets.spend_header_bytes(len(block) + ENTRY_BYTES * len(self.state.entries))
        found = self._find(block)
        budgets.spend_header_bytes(found.size)
        return found

    def _find(self, block: bytes) -> ResponseBlock:
        hit = self.state.blocks.get(block)
        if hit is None:
            return self._decode(block)
        if hit[0].size > self._limit:
            raise over_limit(WireProblem.HEADER_LIST_BYTES, self._limit, "a header list")
        self.state = hit[1]
        return hit[0]

    def learn(self, state: TableState, prefix: ResponsePrefix, suffix: ResponseSuffix) -> None:
        """Store a whole response that began in ``state``."""
        self._cache.learn_response(state, prefix, suffix)

    def _decode(self, block: bytes) -> ResponseBlock:
        # Not more is decoded than the budget allows. A limit of 0 would mean none.
        limit = max(1, min(self._limit, self._budgets.header_bytes_left))
        decoder = Decoder(limit)
        table: _Table = decoder.header_table
        table.maxsize = self.state.max_size
        for name, value in reversed(self.state.entries):
            table.add(name, value)
        try:
            raw = [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
        except OversizedHeaderListError:
            self._budgets.spend_header_bytes(limit + 1)
            raise over_limit(WireProblem.HEADER_LIST_BYTES, self._limit, "a header list") from None
        except (HPACKError, IndexError, ValueError) as error:
            # For some truncated blocks the library raises IndexError, and its messages contain memory addresses.
            raise WireError(WireProblem.COMPRESSION, "the peer sent a header block that is no HPACK") from error
        found = interpret(raw, sum(len(name) + len(value) + 32 for name, value in raw))
        following = TableState(tuple(table.dynamic_entries), table.maxsize)
        if following.entries == self.state.entries and following.max_size == self.state.max_size:
            following = self.state
        if self._may_learn:
            self._may_learn -= 1
            following = self._cache.learn(self.state, block, found, following)
        self.state = following
        return found
