"""Opens files beneath a root, without following symbolic links on the way.

Whoever may write to a directory below a root can swap it with a link at any time, even between two of our system calls.
A look or a dial by path would then reach the target of the link with the rights of the daemon: for example, a socket in
a directory that only root may enter. So names are resolved from a descriptor of the root, by the kernel (openat2(2)
with ``RESOLVE_BENEATH`` and ``RESOLVE_NO_SYMLINKS``) or else step by step.

The descriptor of the root is closed each time. A directory that is kept open causes no ``DELETE_SELF`` when it is
removed, and its watch does not end (fault 14).
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Iterable
from typing import Final

#: For an ``O_PATH`` descriptor, of a link itself and not of its target.
PATH_FLAGS: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
DIRECTORY_FLAGS: Final = PATH_FLAGS | os.O_DIRECTORY

# The kernel's constants (include/uapi/linux/openat2.h; nearly all machines use the same number for the call).
_OPENAT2: Final = 437
_NO_SYMLINKS: Final = 0x04
_BENEATH: Final = 0x08

_SYSCALL = ctypes.CDLL(None, use_errno=True).syscall
_SYSCALL.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_SYSCALL.restype = ctypes.c_long


class _How(ctypes.Structure):
    """``struct open_how``."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@functools.cache
def _open_how(flags: int) -> _How:
    return _How(flags, 0, _BENEATH | _NO_SYMLINKS)


def root_of(path: str, roots: Iterable[str]) -> str | None:
    """Return the one of ``roots`` below which ``path`` lies; None if there is none."""
    for root in roots:
        if path.startswith(root) and (root.endswith("/") or path.startswith("/", len(root))):
            return root
    return None


def open_beneath(root: str, path: str, flags: int = PATH_FLAGS) -> int:
    """Open ``path``, which is ``root`` or lies below it. ``flags`` must have ``O_NOFOLLOW``, for a link at the end.

    Raises:
      NotADirectoryError: if a link or a file is in the place of a directory.
      OSError: EXDEV if the path leads out of the root, and any error of open(2).
    """
    name = path[len(root) :].lstrip("/")
    try:
        return _open_from(os.open(root, DIRECTORY_FLAGS), name, flags) if name else os.open(root, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotADirectoryError(errno.ENOTDIR, "a symbolic link is in the way", path) from error
        raise


def resolve(root: str, link: str) -> str:
    """Return the path below ``root`` of the present target of the symbolic link ``link``.

    Raises:
      OSError: EXDEV if it is outside, ELOOP if links are circular, ENOENT if one is dangling.
    """
    target, top = os.path.realpath(link, strict=True), os.path.realpath(root)
    if root_of(target, [top]) is None:
        raise OSError(errno.EXDEV, "the link leads out of the root", link)
    return root.rstrip("/") + "/" + target[len(top) :].lstrip("/")


@functools.cache
def has_openat2() -> bool:
    """Whether openat2(2) can be used: Linux 5.6 has it, and a filter of system calls may forbid it."""
    try:
        os.close(_openat2(-1, ".", DIRECTORY_FLAGS))
    except OSError as error:
        return error.errno == errno.EBADF
    return True


def _open_from(directory: int, name: str, flags: int) -> int:
    """Open ``name`` beneath ``directory``, and close that. At most two descriptors are open at once."""
    try:
        # A single name needs no resolution, and costs less without openat2.
        if "/" in name and has_openat2():
            return _openat2(directory, name, flags)
        *parents, last = name.split("/")
        if ".." in parents or last == "..":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
        for parent in parents:
            below = os.open(parent, DIRECTORY_FLAGS, dir_fd=directory)
            os.close(directory)
            directory = below
        return os.open(last, flags, dir_fd=directory)
    finally:
        os.close(directory)


def _openat2(directory: int, name: str, flags: int) -> int:
    how = _open_how(flags)
    descriptor = int(_SYSCALL(_OPENAT2, directory, os.fsencode(name), ctypes.addressof(how), ctypes.sizeof(how)))
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return descriptor
