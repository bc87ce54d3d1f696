"""Files that are there whole, or as they were before: each is written beside its place, and then renamed."""

from __future__ import annotations

import os
from contextlib import suppress


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
