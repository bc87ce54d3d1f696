"""Files that are there whole, or as they were before: each is written beside its place, and then renamed."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import Final

#: The most bytes of a file that are read.
_MOST: Final = 1 << 26


def read_own_file(path: str) -> bytes:
    """Return the content of a file of root or of this user.

    Raises:
      OSError: if it cannot be read.
      ValueError: if it is another user's, or no file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()):
            raise ValueError("it is no file of this user")
        return file.read(_MOST)


def replace_file(directory: int, name: str, content: bytes, *, mode: int, temporary: str) -> None:
    """Put a file into the open ``directory``, and wait until it is on the disk; what a killed one left is replaced.

    Raises:
      OSError: if it cannot be written; then nothing is left beside what was there before.
    """
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, 0o600, dir_fd=directory), "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise
    os.fsync(directory)
