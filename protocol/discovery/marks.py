"""Marks of events on paths, until the scanner looks there.

A program may cause thousands of events in one directory, each with another name. Marks are kept by directory, so that
those of other directories can be taken without a look at these.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from .sockets import below


def _directory_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class Marks:
    """Marks on paths, by the directory of each path."""

    __slots__ = ("_by_directory", "_number")

    def __init__(self) -> None:
        self._by_directory: dict[str, dict[str, int]] = {}
        self._number = 0

    def __len__(self) -> int:
        return self._number

    def __contains__(self, path: str) -> bool:
        return path in self._by_directory.get(_directory_of(path), ())

    def add(self, path: str, marks: int) -> None:
        """Add ``marks`` to those of ``path``."""
        beside = self._by_directory.setdefault(_directory_of(path), {})
        self._number += path not in beside
        beside[path] = beside.get(path, 0) | marks

    def add_all(self, marks: Mapping[str, int]) -> None:
        """Add the marks of many paths."""
        for path, bits in marks.items():
            self.add(path, bits)

    def add_beside(self, directory: str, marks: dict[str, int]) -> None:
        """Add marks in ``directory`` that are older than its present ones. The caller must not use ``marks`` again."""
        newer = self._by_directory.pop(directory, {})
        self._number += len(marks) - len(newer)
        if marks:
            self._by_directory[directory] = marks
        # A scan does this for each chunk: there are few newer ones.
        self.add_all(newer)

    def take(self) -> dict[str, int]:
        """Remove and return all marks."""
        taken = {path: bits for beside in self._by_directory.values() for path, bits in beside.items()}
        self.clear()
        return taken

    def take_in_turn(self, most: int) -> dict[str, int]:
        """Remove and return about ``most`` marks: the first ones of each directory, equally."""
        if self._number <= most:
            return self.take()
        share = max(1, most // len(self._by_directory))
        taken: dict[str, int] = {}
        for directory, beside in [*itertools.islice(self._by_directory.items(), most)]:
            if len(beside) <= share:
                taken |= self.take_beside(directory)
            else:
                taken |= {path: beside.pop(path) for path in [*itertools.islice(beside, share)]}
                self._number -= share
        return taken

    def take_where_few(self, few: int) -> dict[str, int]:
        """Remove and return the marks in the directories that have no more than a ``few``."""
        found = [directory for directory, beside in self._by_directory.items() if len(beside) <= few]
        return {path: bits for directory in found for path, bits in self.take_beside(directory).items()}

    def take_elsewhere(self, directory: str, few: int) -> dict[str, int]:
        """Do the same, except for the marks on ``directory``, above it and below it."""
        taken, beneath = self.take_where_few(few), below(directory, "")
        for path in [*taken]:
            if path == directory or path.startswith(beneath) or beneath.startswith(below(path, "")):
                self.add(path, taken.pop(path))
        return taken

    def take_beside(self, directory: str) -> dict[str, int]:
        """Remove and return the marks of the paths directly in ``directory``."""
        taken = self._by_directory.pop(directory, {})
        self._number -= len(taken)
        return taken

    def take_path(self, path: str) -> int:
        """Remove and return the marks of ``path``; 0 if there are none."""
        directory = _directory_of(path)
        beside = self._by_directory.get(directory)
        if beside is None or path not in beside:
            return 0
        self._number -= 1
        bits = beside.pop(path)
        if not beside:
            del self._by_directory[directory]
        return bits

    def clear(self) -> None:
        """Remove all marks."""
        self._by_directory, self._number = {}, 0
