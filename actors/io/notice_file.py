"""The file that says which plugins were told that they are registered: ``notified.json`` in the state directory."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import partial
from typing import Any, Final

import attrs

from ...protocol.errors import StateError
from ...protocol.leases.json_values import WRONG_FORM, exactly, exactly_or_none, texts, words_of
from ...protocol.logs.lines import Level, Logger
from ...protocol.registration.notices import Notice, NoticesByPath
from .process_identity import known_boot_id
from .replacing import read_own_file, replace_file
from .worker_thread import WorkerThread

FILE_NAME: Final = "notified.json"
#: The version of the file's form. A file of another version says nothing.
_VERSION: Final = 1


class NoticeFile:
    """The notices in a file of ``directory``, the state directory; a thread makes each access."""

    def __init__(self, directory: str, log: Logger) -> None:
        self.path = os.path.join(directory, FILE_NAME)
        self._directory = directory
        self._log = log
        self._thread = WorkerThread("plugind notices")

    async def read(self) -> NoticesByPath:
        """Return the notices of this boot; none if they cannot be understood.

        Raises:
          StateError: if they cannot be read now.
        """
        try:
            return await self._thread.run(partial(_read, self.path))
        except OSError as error:
            raise StateError(f"{self.path} cannot be read: {error.strerror}") from error
        except WRONG_FORM as error:
            # Each plugin is notified, and the next write replaces the file.
            self._log.event(Level.WARNING, "the notifications of before are unknown", reason=words_of(error))
            return {}

    async def write(self, kept: NoticesByPath) -> None:
        """Replace the file, or remove it if there are no notices.

        Raises:
          StateError: if that is not possible now.
        """
        try:
            await self._thread.run(partial(_write, self._directory, dict(kept)))
        except OSError as error:
            raise StateError(f"{self.path} cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Let the thread end after the accesses that were requested."""
        self._thread.close()


def _read(path: str) -> NoticesByPath:
    try:
        content = exactly(dict, json.loads(read_own_file(path)))
    except FileNotFoundError:
        return {}
    if content["version"] != _VERSION:
        raise ValueError(f"{path} has version {content['version']!r}, and this plugind knows {_VERSION}")
    boot = known_boot_id()
    notices = {exactly(str, where): _notice(row) for where, row in exactly(dict, content["notified"]).items()}
    return {where: notice for where, notice in notices.items() if notice.boot_id == boot}


def _notice(row: Any) -> Notice:
    kind, name, endpoint, versions, uid, device, inode, changed, pid, ticks, boot = exactly(list, row)
    return Notice(
        exactly(str, kind),
        exactly(str, name),
        exactly(str, endpoint),
        texts(versions),
        exactly_or_none(int, uid),
        exactly(int, device),
        exactly(int, inode),
        exactly(int, changed),
        exactly(int, pid),
        exactly(int, ticks),
        exactly(str, boot),
    )


def _write(directory: str, notices: NoticesByPath) -> None:
    if not notices:
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(os.path.join(directory, FILE_NAME))
        return
    rows = {where: attrs.astuple(notice) for where, notice in notices.items()}
    content = json.dumps({"version": _VERSION, "notified": rows}).encode("ascii")
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        replace_file(descriptor, FILE_NAME, content, mode=0o600, temporary=f"{FILE_NAME}.new")
    finally:
        os.close(descriptor)
