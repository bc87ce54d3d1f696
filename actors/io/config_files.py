"""Reads configuration files, if the daemon may trust them.

Whoever can write to such a file can let any user register plugins. So each file must belong to root or to the user of
the daemon, and nobody else may write to it. The open file is checked, so that nothing can change in between. Links are
followed, and the file at their end is checked. The directory of drop-ins is checked too, because a link in it could
lead to any file of root's. On a read-only mount nobody can write, whatever the mode is: a volume of Kubernetes has mode
0777.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from ...protocol.settings.given import SettingProblem, SettingsError, Source
from ...protocol.values import value
from ..trust.directories import access_of

#: The file that a daemon reads by default.
DEFAULT_FILE: Final = "/etc/plugind/plugind.toml"
MAX_BYTES: Final = 256 * 1024
MAX_DROP_INS: Final = 64
_SUFFIX: Final = ".toml"


@value
class ConfigFile:
    """A file that was read."""

    path: str
    content: bytes


def read_files(path: str, *, required: bool) -> tuple[ConfigFile, ...]:
    """Return the file at ``path`` and those in the directory ``path.d``, in the order of their names.

    The null device stands for no files at all. The first file may be missing unless it is ``required``.

    Raises:
      SettingsError: if a file cannot be read, or others may write to it.
    """
    if path == os.devnull:
        return ()
    first = _read(path, required=required)
    others = [_read(f"{path}.d/{name}", required=True) for name in _drop_ins(f"{path}.d")]
    return tuple(file for file in (first, *others) if file is not None)


def read_file(path: str) -> ConfigFile:
    """Return one file.

    Raises:
      SettingsError: if it cannot be read, or others may write to it.
    """
    file = _read(path, required=True)
    assert file is not None
    return file


def _drop_ins(directory: str) -> list[str]:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _error(directory, f"cannot be read: {error.strerror}") from None
    try:
        wrong = _open_to_others(os.fstat(descriptor))
        if wrong is not None and not os.fstatvfs(descriptor).f_flag & os.ST_RDONLY:
            raise _error(directory, wrong)
        names = sorted(name for name in os.listdir(descriptor) if name.endswith(_SUFFIX) and not name.startswith("."))
    except OSError as error:
        raise _error(directory, f"cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if len(names) > MAX_DROP_INS:
        raise _error(directory, f"has {len(names)} files that end with {_SUFFIX}: at most {MAX_DROP_INS} are read")
    return names


def _read(path: str, *, required: bool) -> ConfigFile | None:
    try:
        # Opening a pipe must not block the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENOENT and not required:
            return None
        raise _error(path, f"cannot be read: {error.strerror}") from None
    try:
        wrong = _wrong_with(os.fstat(descriptor))
        if wrong is not None:
            raise _error(path, wrong)
        return ConfigFile(path, _content(path, descriptor))
    finally:
        os.close(descriptor)


def _wrong_with(status: os.stat_result) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "it is no regular file"
    return _open_to_others(status)


def _open_to_others(status: os.stat_result) -> str | None:
    """Return why users other than root and this one may write to a file or directory."""
    access = access_of(status)
    if not access.is_trusted:
        return f"user {access.owner} owns it: give it to root, or to the user that runs plugind"
    if access.mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (mode {access.mode:04o}): chmod go-w"
    return None


def _content(path: str, descriptor: int) -> bytes:
    content = b""
    try:
        while len(content) <= MAX_BYTES and (piece := os.read(descriptor, MAX_BYTES + 1 - len(content))):
            content += piece
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise _error(path, f"it has more than {MAX_BYTES} bytes: put a part of it into {path}.d")
    return content


def _error(path: str, text: str) -> SettingsError:
    return SettingsError((SettingProblem(Source("file", path), text),))
