"""The files that say what is out of service.

Drains outlive what ends leases: a reboot, and the loss of the state's database. So they have a file of their own beside
the database. A copy in the place of the lease markers also outlives the loss of the whole state directory, until the
machine is started again. At a start the drains of both files count.

A file that cannot be understood is set aside and named until somebody drains something and removes it, since what it
said may be given out.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from ...protocol.errors import StateError
from ...protocol.leases.drains import Drain, Drains, DrainTarget, sorted_drains
from ...protocol.leases.json_values import WRONG_FORM, every, exactly, words_of
from ...protocol.leases.leases_json import drain_from_json, drain_to_json
from .replacing import read_own_file, replace_file

FILE_NAME: Final = "drains.json"


class DrainFiles:
    """The file beside a state's database, and its copy."""

    def __init__(self, directory: str, markers: str | None) -> None:
        """The copy is in the directory ``markers``, and is named by that of the state; with None there is none."""
        where = os.path.abspath(directory)
        self._paths = [os.path.join(where, FILE_NAME)]
        if markers is not None:
            self._paths.append(f"{markers}/drains-{zlib.crc32(os.fsencode(where)):08x}.json")
        #: What each file says, as far as that is known.
        self._written: dict[str, Drains] = {}
        #: Why drains may be lost, and what to do; None if none are.
        self.problem: str | None = None

    def read(self) -> dict[DrainTarget, Drain]:
        """Return the drains of all files; one that is damaged is set aside.

        Raises:
          StateError: if one cannot be read now.
        """
        for path in self._paths:
            try:
                self._written[path] = _read(path)
            except OSError as error:
                raise StateError(f"{path} cannot be read, which says what is drained: {error.strerror}") from error
            except WRONG_FORM as error:
                _set_aside(path)
                self._written.pop(path, None)
                self._report(path, words_of(error))
            if self.problem is None and os.path.lexists(f"{path}.bad"):
                self._report(path, "it was damaged")
        # What the file beside the database says is newer, if a write was cut off between the two.
        return {
            target: drain for path in reversed(self._paths) for target, drain in self._written.get(path, {}).items()
        }

    def write(self, drains: Mapping[DrainTarget, Drain]) -> None:
        """Let each file say ``drains``.

        Raises:
          StateError: if one cannot be written.
        """
        for path in self._paths:
            if self._written.get(path) == drains:
                continue
            self._written.pop(path, None)
            try:
                _write(path, drains)
            except OSError as error:
                raise StateError(
                    f"{path} cannot be written, which says what is drained: {error.strerror}; make its directory"
                    f" writable for uid {os.geteuid()}, with room"
                ) from error
            self._written[path] = {**drains}

    def _report(self, path: str, why: str) -> None:
        self.problem = (
            f"{path} was set aside ({why}): what it drained is given out, unless another file says it as well; look at"
            f" 'plugind devices', drain again what has to be, and remove {path}.bad"
        )


def _read(path: str) -> Drains:
    try:
        content = json.loads(read_own_file(path))
    except FileNotFoundError:
        return {}
    drains = every(drain_from_json, exactly(dict, content)["drains"])
    return {drain.target: drain for drain in drains}


def _set_aside(path: str) -> None:
    with suppress(OSError):  # It is named in any case, and the next write replaces it.
        os.replace(path, f"{path}.bad")


def _write(path: str, drains: Drains) -> None:
    """Replace the file, or remove it if nothing is drained, and wait until that is on the disk."""
    directory, name = os.path.split(path)
    if drains:
        os.makedirs(directory, 0o755, exist_ok=True)
    else:
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if drains:
            content = json.dumps({"drains": [drain_to_json(drain) for drain in sorted_drains(drains)]}, indent=1)
            replace_file(descriptor, name, content.encode("ascii"), mode=0o600, temporary=f"{name}.new")
        else:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
