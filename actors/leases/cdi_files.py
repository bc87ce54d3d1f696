"""The files from which container engines learn of leases: one for each lease that has a CDI device.

An engine reads all files of the directory whose names end in ``.json`` or ``.yaml``. So a file is written under another
name, and renamed when it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Final

import trio

from ...protocol.leases.cdi import CdiError, Hook, HostNode, NodesAt, document
from ...protocol.leases.values import Lease
from ..io.replacing import replace_file
from ..trust.directories import access_of, who_may_replace

#: Where every engine looks for the files of running programs; it is emptied by a boot.
DIRECTORY: Final = "/var/run/cdi"
#: How many nodes a directory of nodes may have, and how many entries all such directories of a lease.
MOST_NODES: Final = 1024
MOST_ENTRIES: Final = 4096
#: Seconds that the look at the nodes of a lease may take, and how many looks may hang at once.
LOOK: Final = 2.0
MOST_LOOKS: Final = 16
#: All of what a name of ours is made of, so that no instance takes the file of another for its own.
_WORD: Final = "[A-Za-z0-9]+"


def hook_command() -> tuple[str, ...]:
    """Return the command ``plugind`` as a container engine can run it, whatever its environment and directory are."""
    script = os.path.abspath(sys.argv[0])
    if sys.flags.isolated and os.path.basename(script) == "plugind" and os.access(script, os.X_OK):
        # The script of a Debian package. It finds plugind in a directory of its own, which no other Python searches.
        return (script,)
    return (sys.executable, "-E", "-P", "-m", "plugind")


class CdiFiles:
    """The files of one daemon. Each access is made in a worker thread, one at a time and in order."""

    def __init__(
        self, instance: str, hook: Hook, *, directory: str = DIRECTORY, nodes_at: NodesAt | None = None
    ) -> None:
        """Write files that are told from those of other daemons by the word ``instance``."""
        if re.fullmatch(_WORD, instance) is None:
            raise ValueError(f"{instance!r} is not a word of letters and digits")
        self._instance = instance
        self._hook = hook
        self._directory = directory
        self._nodes_at = nodes_at
        # The nodes are looked for outside of the order of the files: a plugin says where, and that may hang.
        self._looks = trio.CapacityLimiter(MOST_LOOKS)
        #: What is looked for now, and what took too long, with what is set once that look has ended: see :func:`_keys`.
        self._looking: frozenset[str] = frozenset()
        self._hung: dict[str, threading.Event] = {}
        #: Set, and replaced, when a look is over.
        self._over = trio.Event()
        # A thread that is left behind keeps its token until it ends, so that a removal never overtakes a write.
        self._one_at_a_time = trio.CapacityLimiter(1)

    async def clean(self, keep: Collection[str]) -> None:
        """Remove all files of this daemon but those of the CDI devices ``keep``, and what a killed one left half done.

        Raises:
          CdiError: if the directory cannot be written, or others may write to it.
        """
        await self._in_thread(partial(self._clean, frozenset(keep)))

    async def write(self, lease: Lease) -> None:
        """Write the file of ``lease``, in the place of what was written of it before.

        Raises:
          CdiError: if the directory cannot be written, or others may write to it, or a node is not there.
        """
        content = await self._described(lease)
        await self._in_thread(partial(self._write, lease, content))

    async def _described(self, lease: Lease) -> bytes:
        """Return the content of the file of ``lease``; a look that hangs fails it, and others with its resources."""
        keys = _keys(lease)
        nodes = f"the device nodes that the plugins of {', '.join(sorted(lease.devices))} give"
        cure = "have them name nodes on a file system that answers"
        while not keys.isdisjoint(self._looking):
            await self._over.wait()
        self._hung = {key: ended for key, ended in self._hung.items() if not ended.is_set()}
        if not keys.isdisjoint(self._hung):
            raise CdiError(f"an earlier look at {nodes} has not ended yet, so no new one is made: {cure}")
        if self._looks.available_tokens < 1:
            raise CdiError(
                f"no look at {nodes} is made, since {MOST_LOOKS} others have not ended, of {sorted(self._hung)}"
            )
        ended = threading.Event()

        def look() -> bytes:
            try:
                return self._content(lease)
            finally:
                ended.set()

        self._looking |= keys
        try:
            with trio.move_on_after(LOOK):
                return await trio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=self._looks)
            self._hung |= dict.fromkeys(keys, ended)
        finally:
            self._looking -= keys
            self._over.set()
            self._over = trio.Event()
        raise CdiError(f"the look at {nodes} has not ended within {LOOK:g} s: {cure}")

    async def remove(self, name: str) -> None:
        """Remove the file of a CDI device, if there is one.

        Raises:
          CdiError: if the directory cannot be written, or others may write to it.
        """
        await self._in_thread(partial(self._remove, name))

    def path_of(self, name: str) -> str:
        """Return the path of the file of a CDI device."""
        return os.path.join(self._directory, self._file_of(name))

    def _file_of(self, name: str) -> str:
        return f"plugind-{self._instance}-{name}.json"

    async def _in_thread(self, call: Callable[[], None]) -> None:
        await trio.to_thread.run_sync(
            partial(self._translated, call), abandon_on_cancel=True, limiter=self._one_at_a_time
        )

    # --- in a thread --------------------------------------------------------------------------------------------------

    def _translated(self, call: Callable[[], None]) -> None:
        try:
            call()
        except OSError as error:
            raise CdiError(f"{self._directory} cannot be written: {_cause(error)}") from error

    def _clean(self, keep: frozenset[str]) -> None:
        ours = re.compile(rf"\.?plugind-{self._instance}-({_WORD})(\.json)?")
        if not os.path.lexists(self._directory):
            return
        with self._opened() as directory:
            for file in os.listdir(directory):
                found = ours.fullmatch(file)
                if found is not None and not (found[1] in keep and file == self._file_of(found[1])):
                    os.unlink(file, dir_fd=directory)

    def _content(self, lease: Lease) -> bytes:
        return json.dumps(document(lease, self._nodes_at or Search().nodes_at, self._hook)).encode("ascii")

    def _write(self, lease: Lease, content: bytes) -> None:
        file = self._file_of(lease.cdi_name or "")
        # It ends in neither .json nor .yaml, so no engine reads it.
        temporary = f".{file.removesuffix('.json')}"
        with self._opened() as directory:
            replace_file(directory, file, content, mode=0o644, temporary=temporary)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path_of(name))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the directory, which is made if it is missing, for the block.

        Raises:
          CdiError: if others may write to it: their files would be loaded, or ours be replaced.
        """
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._directory)
            # Whatever the umask is: engines of other users read it.
            os.chmod(self._directory, 0o755)
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._check(os.fstat(directory))
            yield directory
        finally:
            os.close(directory)

    def _check(self, status: os.stat_result) -> None:
        access = access_of(status)
        if not access.is_trusted or access.mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise CdiError(
                f"others may write to {self._directory}, and so change what containers get: take that right from them"
                f" with chmod go-w and chown"
            )
        replaced = who_may_replace(self._directory)
        if replaced is not None:
            above, problem = replaced
            raise CdiError(f"others may replace {self._directory}, because of {above}: {problem}")


def _keys(lease: Lease) -> frozenset[str]:
    """Return what one look at a time is for: each resource by itself, and once more for all leases that have others
    too. So a resource that hangs has two looks that hang, and no lease of another one alone fails with it.
    """
    names = lease.devices
    return frozenset(names if len(names) == 1 else (f"{name} beside others" for name in names))


def _cause(error: OSError) -> str:
    """Return what is wrong, and what to do."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"{error.strerror}; free space on its file system"
        case errno.EROFS:
            return f"{error.strerror}; mount it with rw"
        case errno.EACCES | errno.EPERM:
            return f"{error.strerror}; uid {os.geteuid()} may not write there, so run plugind as root"
        case _:
            return error.strerror or str(error)


# --- device nodes -----------------------------------------------------------------------------------------------------


class Search:
    """Looks for the device nodes of one lease, for a bounded time, and among a bounded number of entries."""

    def __init__(self) -> None:
        self._entries = 0
        self._ends = time.monotonic() + LOOK

    def nodes_at(self, path: str) -> Sequence[HostNode]:
        """Return the device node at ``path``, or all nodes below it; symbolic links below it are left out.

        Raises:
          CdiError: if there is none, or too many.
        """
        try:
            real = os.path.realpath(path, strict=True)
            if os.path.isdir(real):
                return self._nodes_below(path, real)
            node = _node(real, "")
        except OSError as error:
            text = f"the plugin gives the device node {path!r}, and it cannot be used: {error.strerror}"
            raise CdiError(text) from error
        if node is None:
            raise CdiError(f"the plugin gives the device node {path!r}, and it is no device node")
        return [node]

    def _nodes_below(self, path: str, real: str) -> Sequence[HostNode]:
        nodes: list[HostNode] = []
        directories = [real]
        while directories:
            with os.scandir(directories.pop()) as entries:
                for entry in entries:
                    self._count(path)
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(entry.path)
                    elif (node := _node(entry.path, real)) is not None:
                        nodes.append(node)
            if len(nodes) > MOST_NODES:
                raise CdiError(f"the plugin gives the directory {path!r} with more than {MOST_NODES} device nodes")
        if not nodes:
            raise CdiError(f"the plugin gives the directory {path!r}, and no device node is in it")
        return sorted(nodes, key=lambda node: node.path)

    def _count(self, path: str) -> None:
        self._entries += 1
        if self._entries > MOST_ENTRIES or time.monotonic() > self._ends:
            raise CdiError(
                f"the plugin gives directories of device nodes, such as {path!r}, that have more than {MOST_ENTRIES}"
                f" entries, or take more than {LOOK:g} s to read: have it name the nodes themselves"
            )


def _node(path: str, base: str) -> HostNode | None:
    status = os.lstat(path)
    if not (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
        return None
    below = path.removeprefix(base) if base else ""
    return HostNode(path, below, stat.S_IMODE(status.st_mode) & 0o777, status.st_uid, status.st_gid)
