"""The discovery compared with a model that reads the whole tree, and the watches with a list of pairs."""

from __future__ import annotations

import itertools

import attrs
from hypothesis import given
from hypothesis import strategies as st

from plugind.protocol.discovery import watches as mask
from plugind.protocol.discovery.sockets import ATTRIBUTES, LOOK, REMOVED, Discovery, EntryKind, Found, Message, below
from plugind.protocol.discovery.watches import Watches
from plugind.protocol.identity import Identity
from plugind.protocol.messages.discovery import (
    EntryIgnored,
    EntryRefused,
    SocketAppeared,
    SocketTouched,
    SocketVanished,
)
from plugind.tests.protocol.hypothesis_settings import examples

ROOT = "/r"
#: A few paths, so that operations collide; ``d`` and ``d/e`` are directories or sockets.
PATHS = st.sampled_from(["/r/a", "/r/b.sock", "/r/d", "/r/d/a.sock", "/r/d/e", "/r/d/e/a"])
VERBS = ["bind"] * 4 + ["unlink", "replace", "chmod", "link", "rename", "mkdir", "write", "symlink", "look", "scan"] * 2
STORIES = st.lists(st.tuples(st.sampled_from(VERBS), PATHS, PATHS), max_size=30)
ROOT_FOUND = Found(EntryKind.DIRECTORY, Identity(1, 1, 0))


def parent(path: str) -> str:
    return path.rpartition("/")[0]


@attrs.define(eq=False)
class Tree:
    """A file system that reuses inode numbers at once, with the marks that its events would leave."""

    there: dict[str, Found] = attrs.Factory(lambda: {ROOT: ROOT_FOUND})
    marks: dict[str, int] = attrs.Factory(dict)
    clock: int = 0

    def mark(self, path: str, bits: int) -> None:
        self.marks[path] = self.marks.get(path, 0) | LOOK | bits

    def put(self, path: str, kind: EntryKind) -> bool:
        holder = self.there.get(parent(path))
        if path in self.there or holder is None or holder.kind is not EntryKind.DIRECTORY:
            return False
        used = {found.identity.inode for found in self.there.values()}
        inode = next(number for number in itertools.count(2) if number not in used)
        self.there[path] = Found(kind, Identity(1, inode, self.clock))
        self.mark(path, 0)
        return True

    def remove(self, path: str) -> Found | None:
        found = self.there.get(path)
        if found is None or any(parent(other) == path for other in self.there):
            return None
        self.mark(path, REMOVED)
        return self.there.pop(path)

    def do(self, verb: str, path: str, other: str) -> None:
        found = self.there.get(path)
        match verb:
            case "bind" | "write" | "symlink" | "mkdir":
                kinds = {
                    "bind": EntryKind.SOCKET,
                    "write": EntryKind.OTHER,
                    "symlink": EntryKind.SYMLINK,
                    "mkdir": EntryKind.DIRECTORY,
                }
                self.put(path, kinds[verb])
            case "unlink":
                self.remove(path)
            case "replace" if found is not None and found.kind is EntryKind.SOCKET:
                self.remove(path)
                self.put(path, EntryKind.SOCKET)
            case "chmod" if found is not None and found.kind is EntryKind.SOCKET:
                self.clock += 1
                now = attrs.evolve(found, identity=attrs.evolve(found.identity, changed_ns=self.clock))
                for name, one in list(self.there.items()):
                    if one.identity.inode == now.identity.inode:
                        self.there[name] = now
                        if name == path:
                            self.mark(name, ATTRIBUTES)
            case "link" if found is not None and found.kind is EntryKind.SOCKET:
                if self.put(other, EntryKind.SOCKET):
                    self.there[other] = found
            case "rename" if found is not None and found.kind is EntryKind.SOCKET:
                self.remove(other) if self.there.get(other, ROOT_FOUND).kind is not EntryKind.DIRECTORY else None
                if self.put(other, EntryKind.SOCKET):
                    self.there[other] = self.there.pop(path)
                    self.mark(path, REMOVED)
            case _:
                pass


@attrs.define(eq=False)
class Sent:
    """The state that follows from the messages. It checks that each message is consistent with the earlier ones."""

    sockets: dict[str, SocketAppeared] = attrs.Factory(dict)
    refused: dict[str, EntryRefused] = attrs.Factory(dict)
    touches: list[str] = attrs.Factory(list)
    ignored: set[str] = attrs.Factory(set)
    newest: int = 0

    def take(self, message: Message) -> None:
        path = message.path
        match message:
            case SocketAppeared():
                assert path not in self.refused, "a refused entry must vanish before a socket appears at its path"
                assert message.generation > self.newest
                self.newest, self.sockets[path] = message.generation, message
            case EntryRefused():
                assert path not in self.refused
                assert path not in self.sockets, "a socket must vanish before an entry at its path is refused"
                assert message.generation > self.newest
                self.newest, self.refused[path] = message.generation, message
            case SocketVanished():
                previous = self.sockets.pop(path, None) or self.refused.pop(path)
                assert previous.generation == message.generation
            case SocketTouched():
                assert self.sockets[path].generation == message.generation
                self.touches.append(path)
            case EntryIgnored():
                assert path not in self.sockets, "a socket must vanish before an entry at its path is ignored"
                assert path not in self.ignored, "it is reported once"
                self.ignored.add(path)


@attrs.define(eq=False)
class Watcher:
    """A watcher that observes paths as the scanner does, without events and without waiting."""

    tree: Tree = attrs.Factory(Tree)
    sent: Sent = attrs.Factory(Sent)
    discovery: Discovery = attrs.Factory(lambda: Discovery(ROOT, itertools.count(1)))

    def look(self, path: str) -> None:
        found, marks = self.tree.there.get(path), self.tree.marks.pop(path, 0)
        other = None if found is None else self.discovery.hard_link_of(path, found)
        if other is not None:
            self.look(other)
        self.discovery.observe(path, found, marks, time=0.0)
        changes = self.discovery.take()
        for message in changes.messages:
            self.sent.take(message)
        for again in changes.again:
            self.look(again)
        for directory in changes.enter:
            self.list(directory)

    def list(self, path: str) -> None:
        children = sorted(child for child in self.tree.there if parent(child) == path)
        names = {child.rpartition("/")[2] for child in children}
        for child in self.discovery.missing(path, names):
            self.look(child)
        for child in children:
            self.look(child)
            if self.discovery.knows_directory(child):
                self.list(child)

    def scan(self) -> None:
        self.look(ROOT)
        self.list(ROOT)
        self.tree.marks.clear()


@examples(100)
@given(STORIES)
def test_the_messages_agree_with_a_scan_of_the_whole_tree(story: list[tuple[str, str, str]]) -> None:
    """Behaviours 7, 9 and 13, faults 6 to 15: inode numbers are reused at once, names are linked and renamed."""
    watcher = Watcher()
    watcher.scan()
    tree, sent = watcher.tree, watcher.sent
    for verb, path, other in story:
        if verb == "look":
            watcher.look(path) if tree.there.get(parent(path), ROOT_FOUND).kind is EntryKind.DIRECTORY else None
        elif verb == "scan":
            check_scan(watcher)
        else:
            tree.do(verb, path, other)
    check_scan(watcher)
    for path in list(tree.there):
        if path != ROOT:
            del tree.there[path]
    watcher.scan()
    assert (sent.sockets, sent.refused, watcher.discovery.paths()) == ({}, {}, frozenset())
    assert (watcher.discovery.sockets, dict(watcher.discovery.children(ROOT))) == (0, {})


def check_scan(watcher: Watcher) -> None:
    tree, sent = watcher.tree, watcher.sent
    before, touched = dict(sent.sockets), len(sent.touches)
    marks = dict(tree.marks)
    watcher.scan()
    sockets = {path: found for path, found in tree.there.items() if found.kind is EntryKind.SOCKET}
    links = {path for path, found in tree.there.items() if found.kind is EntryKind.SYMLINK}
    # For each inode, one name is accepted and the others are refused.
    assert {found.identity.inode for found in sockets.values()} == {
        tree.there[path].identity.inode for path in sent.sockets
    }
    assert len({tree.there[path].identity.inode for path in sent.sockets}) == len(sent.sockets)
    assert sent.sockets.keys() | sent.refused.keys() == sockets.keys() | links
    assert not sent.sockets.keys() & sent.refused.keys()
    assert watcher.discovery.paths() == sockets.keys() | links
    assert watcher.discovery.sockets == len(sent.sockets)
    for path, appeared in sent.sockets.items():
        was = before.get(path)
        if was is None:
            continue
        if marks.get(path, 0) & REMOVED:
            assert appeared.generation > was.generation, (
                "the socket was made again, with the inode and the time of the old one"
            )
        elif appeared.identity.inode == was.identity.inode and not marks:
            assert appeared.generation == was.generation, "nothing happened"
            assert path not in sent.touches[touched:]
        if appeared.generation == was.generation and marks.get(path, 0) & ATTRIBUTES:
            assert path in sent.touches[touched:], "its attributes changed"
    counted = sent.newest
    watcher.scan()
    assert sent.newest == counted, "a second look finds nothing new"


# --- watches ----------------------------------------------------------------------------------------------------------

WATCHED = st.sampled_from(["/p/r", "/p/r/x", "/p/r/y"])
NUMBERS = st.integers(1, 4)
BITS = st.sampled_from(
    [mask.ATTRIB, mask.MOVED_FROM, mask.MOVED_TO, mask.CREATE, mask.DELETE, mask.DELETE_SELF, mask.MOVE_SELF]
)
STEPS = st.one_of(
    st.tuples(st.just("add"), WATCHED, NUMBERS),
    st.tuples(st.just("parent"), WATCHED, NUMBERS),
    st.tuples(st.just("drop"), WATCHED, NUMBERS),
    st.tuples(st.just("trust"), WATCHED, NUMBERS),
    st.tuples(st.just("ignored"), WATCHED, NUMBERS),
    st.tuples(st.sampled_from(["overflow", "recover", "take"]), WATCHED, NUMBERS),
)
NOTICES = st.tuples(NUMBERS, BITS, st.sampled_from(["", "a", "r", "x", ".a"]))


@attrs.define
class Pairs:
    """A model of the watches: a list of pairs, and the marks that the events left on each path."""

    pairs: list[tuple[str, int]] = attrs.Factory(list)
    parent: int | None = None
    trusted: set[str] = attrs.Factory(set)
    marks: dict[str, int] = attrs.Factory(dict)
    overflowed: bool = False

    def of(self, descriptor: int) -> list[str]:
        return [path for path, number in self.pairs if number == descriptor]

    def has(self, path: str) -> bool:
        return any(path == watched for watched, _ in self.pairs)

    def mark(self, path: str, bits: int) -> None:
        self.marks[path] = self.marks.get(path, 0) | LOOK | bits

    def note(self, descriptor: int, bits: int, name: str) -> None:
        gone = bits in (mask.DELETE, mask.MOVED_FROM, mask.DELETE_SELF)
        meant = (REMOVED if gone else 0) | (ATTRIBUTES if bits == mask.ATTRIB else 0)
        if descriptor == self.parent and name == "r":
            self.mark("/p/r", meant)
        for path in self.of(descriptor):
            if not name.startswith("."):
                self.mark(below(path, name) if name else path, meant)

    def forget(self, descriptor: int) -> None:
        if descriptor == self.parent:
            self.parent = None
            self.mark("/p/r", 0)
        for path in self.of(descriptor):
            self.trusted.discard(path)
            self.mark(path, 0)
        self.pairs = [pair for pair in self.pairs if pair[1] != descriptor]


@examples(100)
@given(st.lists(STEPS | NOTICES, max_size=25))
def test_watches_agree_with_a_list_of_pairs(steps: list[tuple[str, str, int] | tuple[int, int, str]]) -> None:
    """Faults 15, 19, 20 and 24."""
    watches, model = Watches("/p/r"), Pairs()
    for step in steps:
        match step:
            case (int() as descriptor, int() as bits, str() as name):
                watches.note((descriptor, bits, name))
                model.note(descriptor, bits, name)
            case ("add", str() as path, int() as descriptor) if not model.has(path):
                watches.add(path, descriptor)
                model.pairs.append((path, descriptor))
            case ("parent", _, int() as descriptor) if model.parent is None:
                watches.add_parent(descriptor)
                model.parent = descriptor
            case ("drop", str() as path, _):
                descriptors = [number for watched, number in model.pairs if watched == path]
                model.pairs = [pair for pair in model.pairs if pair[0] != path]
                model.trusted.discard(path)
                last = [number for number in descriptors if not model.of(number) and number != model.parent]
                assert watches.drop(path) == (last[0] if last else None)
            case ("trust", str() as path, _):
                watches.trust(path)
                if model.has(path) and not model.overflowed:
                    model.trusted.add(path)
            case ("ignored", _, int() as descriptor):
                watches.note((descriptor, mask.IGNORED, ""))
                model.forget(descriptor)
            case ("overflow", _, _):
                watches.note((-1, mask.Q_OVERFLOW, ""))
                model.overflowed = True
                model.trusted.clear()
            case ("recover", _, _):
                watches.clear_overflow()
                model.overflowed = False
            case ("take", _, _):
                watches.release()
                taken = watches.take()
                assert taken == model.marks
                model.marks = {}
            case _:
                pass
        assert watches.overflowed == model.overflowed
        for path in ("/p/r", "/p/r/x", "/p/r/y"):
            assert watches.has(path) == model.has(path)
            assert watches.trusts(path) == (path in model.trusted)
    watches.release()
    assert watches.take() == model.marks
