"""Which file lies at a path, so that two looks at one path can be told apart.

Device and inode number are not enough: a file system gives the number of a removed file to the next one, ext4 nearly
always. The change time does not help, since a chmod or a hard link changes it and two files may share one tick of the
clock. The *file handle* is exact: the kernel gives each inode one that is never used again. Where a file system has no
handles, the birth time takes its place; where it has neither, only the order of events helps (behaviour 13).
"""

from __future__ import annotations

from .values import value

#: What all looks at one file have in common.
Key = tuple[int, int, bytes | int | None]


@value
class Identity:
    """Which file lies at a path (behaviours 9 and 13)."""

    device: int
    inode: int
    #: The inode's change time in nanoseconds. It says that a file was touched, and never that it is another one.
    changed_ns: int
    #: The file handle with its type, where the file system has handles.
    handle: bytes | None = None
    #: The birth time in nanoseconds, where the file system has that and no handles.
    born_ns: int | None = None
    #: The user that the file belongs to, to be shown: anybody may be given a file, so it identifies nothing.
    owner: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether no other file ever has the same :attr:`key`."""
        return self.handle is not None

    @property
    def key(self) -> Key:
        """Device, inode and what tells this inode from a later one with its number, as far as that is known."""
        return self.device, self.inode, self.born_ns if self.handle is None else self.handle

    def is_same(self, other: Identity) -> bool:
        """Whether both are one file, as far as they can tell: a removal between the two looks may say otherwise."""
        return (
            self.inode == other.inode
            and self.handle == other.handle
            and self.device == other.device
            and self.born_ns == other.born_ns
        )

    def is_same_unwatched(self, other: Identity) -> bool:
        """Whether both are one file although a removal between the two looks may have gone unnoticed.

        Without a handle and a birth time, a file that was touched is taken for another one.
        """
        if self.handle is None and self.born_ns is None and self.changed_ns != other.changed_ns:
            return False
        return self.is_same(other)
