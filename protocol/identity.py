"""The identity of a file, which tells two looks at one path apart.

File systems reuse device and inode number, a chmod changes the change time, and two files may share one. The *file
handle* is exact, because no other inode ever gets it. Without handles the birth time takes its place; without both,
only the order of events helps (behaviour 13).
"""

from __future__ import annotations

from .values import value

#: What all looks at one file have in common.
Key = tuple[int, int, bytes | int | None]


@value
class Identity:
    """The identity of the file at a path (behaviours 9 and 13)."""

    device: int
    inode: int
    #: The change time in nanoseconds. A difference means that a file was touched, and never that it is another one.
    changed_ns: int
    #: The file handle with its type, if the file system has handles.
    handle: bytes | None = None
    #: The birth time in nanoseconds, if the file system has it and no handles.
    born_ns: int | None = None
    #: The owner, to be shown. It identifies nothing, since a file can be given to anybody.
    owner: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether no other file ever has the same :attr:`key`."""
        return self.handle is not None

    @property
    def key(self) -> Key:
        """Device, inode, and what is known to tell this inode from a later one with its number."""
        return self.device, self.inode, self.born_ns if self.handle is None else self.handle

    def is_same(self, other: Identity) -> bool:
        """Whether both are one file, unless there was a removal between the looks."""
        return (
            self.inode == other.inode
            and self.handle == other.handle
            and self.device == other.device
            and self.born_ns == other.born_ns
        )

    def is_same_unwatched(self, other: Identity) -> bool:
        """Whether both are one file, even if a removal between the looks may have gone unnoticed.

        Without handle and birth time, a touched file counts as another one.
        """
        if self.handle is None and self.born_ns is None and self.changed_ns != other.changed_ns:
            return False
        return self.is_same(other)
