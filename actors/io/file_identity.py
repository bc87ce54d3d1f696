"""File handles and birth times, which tell a file from a later one with its inode number (behaviour 13).

``os`` has neither name_to_handle_at(2) nor statx(2), so this module calls them through ctypes. A handle is only
compared and never opened, which needs no privilege. Each thread has one buffer for each call, so a look allocates
nothing but its result.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Callable
from typing import Final

from ...protocol.identity import Identity

# The kernel's constants (include/uapi/linux/fcntl.h, stat.h; MAX_HANDLE_SZ of fs/fhandle.c).
AT_FDCWD: Final = -100
_AT_SYMLINK_NOFOLLOW: Final = 0x100
_AT_EMPTY_PATH: Final = 0x1000
_AT_HANDLE_FID: Final = 0x200
_STATX_BTIME: Final = 0x800
_MAX_HANDLE: Final = 128

#: The type of the identifiers of overlayfs (include/linux/exportfs.h: OVL_FILEID_V1).
_OVERLAY: Final = 0xF8

#: The file system has no handles, or the kernel or a seccomp filter forbids the call.
_UNAVAILABLE: Final = frozenset({errno.EOPNOTSUPP, errno.EOVERFLOW, errno.ENOSYS, errno.EPERM, errno.EINVAL})
#: ``struct file_handle`` begins with the number of bytes and the type; ``struct statx`` has the birth time at 80.
_HANDLE_START: Final = 8
_STATX_BYTES: Final = 256
_BIRTH: Final = struct.Struct("=qI")
_BIRTH_START: Final = 80

_LIBC = ctypes.CDLL(None, use_errno=True)


def _call(
    name: str, *types: type[ctypes.c_int | ctypes.c_uint | ctypes.c_char_p | ctypes.c_void_p]
) -> Callable[..., int]:
    """Return the function ``name`` of the C library, or one that fails with ENOSYS if the library lacks it."""
    function = getattr(_LIBC, name, None)
    if function is None:
        return _missing
    function.argtypes = types
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]  # ctypes does not type its functions.


def _missing(*_arguments: object) -> int:
    ctypes.set_errno(errno.ENOSYS)
    return -1


_name_to_handle_at = _call(
    "name_to_handle_at", ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int
)
_statx = _call("statx", ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)


class _Buffers(threading.local):
    """The buffers for the kernel's answers, for one thread."""

    def __init__(self) -> None:
        self.handle = memoryview(bytearray(_HANDLE_START + _MAX_HANDLE))
        self.handle_bytes = self.handle.cast("I")
        self.handle_address = ctypes.addressof(ctypes.c_char.from_buffer(self.handle))
        self.mount = ctypes.c_int()
        self.mount_address = ctypes.addressof(self.mount)
        self.statx = memoryview(bytearray(_STATX_BYTES))
        self.statx_mask = self.statx.cast("I")
        self.statx_address = ctypes.addressof(ctypes.c_char.from_buffer(self.statx))


_BUFFERS = _Buffers()


def identity_at(status: os.stat_result, name: str, directory: int = AT_FDCWD) -> Identity:
    """Return the identity of the file at ``name``, relative to the descriptor ``directory``; ``status`` is its lstat.

    If the file is replaced between lstat and this call, the identity matches no file, so the next look or dial finds
    that another file is there.

    Raises:
      OSError: if the file is gone, or the file system fails.
    """
    return _identity(status, directory, os.fsencode(name), 0)


def identity_of(descriptor: int) -> Identity:
    """Return the identity of an open file, which may be opened with ``O_PATH``. Raises OSError."""
    return _identity(os.fstat(descriptor), descriptor, b"", _AT_EMPTY_PATH)


def _identity(status: os.stat_result, directory: int, name: bytes, flags: int) -> Identity:
    handle = _handle(directory, name, flags)
    born = _birth(directory, name, flags) if handle is None else None
    return Identity(status.st_dev, status.st_ino, status.st_ctime_ns, handle, born, status.st_uid)


def _handle(directory: int, name: bytes, flags: int) -> bytes | None:
    buffers = _BUFFERS
    buffers.handle_bytes[0] = _MAX_HANDLE
    if _name_to_handle_at(directory, name, buffers.handle_address, buffers.mount_address, flags) == 0:
        # Includes the type, since handles of two types may have the same bytes.
        return bytes(buffers.handle[4 : _HANDLE_START + buffers.handle_bytes[0]])
    _raise_unless_unavailable(name)
    return None if flags & _AT_HANDLE_FID else _overlay_handle(directory, name, flags)


def _overlay_handle(directory: int, name: bytes, flags: int) -> bytes | None:
    """Return overlayfs's identifier since Linux 6.6. It identifies a file, but cannot be opened.

    For file systems without handles the same call returns an inode number and perhaps a generation, which is not exact
    and does not count.
    """
    handle = _handle(directory, name, flags | _AT_HANDLE_FID)
    return handle if handle is not None and handle[0] == _OVERLAY else None


def _birth(directory: int, name: bytes, flags: int) -> int | None:
    buffers = _BUFFERS
    if _statx(directory, name, flags | _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, buffers.statx_address) != 0:
        _raise_unless_unavailable(name)
        return None
    if not buffers.statx_mask[0] & _STATX_BTIME:
        return None
    seconds, nanoseconds = _BIRTH.unpack_from(buffers.statx, _BIRTH_START)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


def _raise_unless_unavailable(name: bytes) -> None:
    error = ctypes.get_errno()
    if error not in _UNAVAILABLE:
        raise OSError(error, os.strerror(error), name)
