"""The quota of each directory below a root, as arithmetic (fault 48).

The whole tree has a limit of entries. Each directory may take half of what everything beside it leaves. That goes for
each subdirectory with all that lies below it, and for the direct entries of a directory, as one share. So a directory
that is filled without end takes half, the next one a quarter, and there is always room for others.
"""

from __future__ import annotations

from ..values import record


@record(eq=False)
class _Use:
    """The number of entries of one directory: directly in it, and including all below it."""

    direct: int = 0
    below: int = 0


class Quota:
    """The entries of one kind below a root, by directory; at most ``most`` in total."""

    def __init__(self, root: str, most: int) -> None:
        self._root = root
        self._most = most
        self._uses: dict[str, _Use] = {}

    def limit(self, directory: str) -> int:
        """Return how many entries may lie directly in ``directory`` while nothing changes beside it."""
        room, use = self._most, self._use(self._root)
        for path in self._chain(directory)[1:]:
            part = self._use(path)
            room = (room - (use.below - part.below)) // 2
            use = part
        return (room - (use.below - use.direct)) // 2

    def used(self, directory: str) -> int:
        """Return how many entries lie directly in ``directory``."""
        return self._use(directory).direct

    def has_room(self, directory: str) -> bool:
        """Whether ``directory`` may have one more direct entry."""
        return self.used(directory) < self.limit(directory)

    def add(self, directory: str, number: int = 1) -> None:
        """Count ``number`` more entries directly in ``directory``; it can be negative."""
        chain = self._chain(directory)
        for path in chain:
            use = self._uses.setdefault(path, _Use())
            use.below += number
        self._uses[chain[-1]].direct += number
        for path in chain:
            if not self._uses[path].below:
                del self._uses[path]

    def _use(self, directory: str) -> _Use:
        return self._uses.get(directory, _NOTHING)

    def _chain(self, directory: str) -> list[str]:
        """Return the directories from the root to ``directory``, including both."""
        chain, top = [self._root], self._root.rstrip("/")
        for name in directory[len(top) :].strip("/").split("/"):
            if name:
                chain.append(f"{chain[-1].rstrip('/')}/{name}")
        return chain


_NOTHING = _Use()
