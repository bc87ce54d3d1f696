"""How many entries each directory may have beside the others, as arithmetic (fault 48).

A number of entries is there for a whole tree. Each directory may take half of what everything beside it leaves: its
subdirectories do, each with all that lies below it, and so do the entries directly in it, which are one share. So a
directory that is filled without end takes half, the next such one a quarter, and there is always room for others.
"""

from __future__ import annotations

from ..values import record


@record(eq=False)
class _Use:
    """The entries of one directory: those directly in it, and all below it, with these."""

    direct: int = 0
    below: int = 0


class Quota:
    """The entries of one kind below a root, by directory; at most ``most`` in all."""

    def __init__(self, root: str, most: int) -> None:
        self._root = root
        self._most = most
        self._uses: dict[str, _Use] = {}

    def limit(self, directory: str) -> int:
        """Return how many entries may lie directly in ``directory`` as long as nothing changes beside it."""
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
        """Whether one more entry may be taken directly in ``directory``."""
        return self.used(directory) < self.limit(directory)

    def add(self, directory: str, number: int = 1) -> None:
        """Count ``number`` more entries directly in ``directory``, or fewer if it is negative."""
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
        """Return the directories from the root to ``directory``, both included."""
        chain, top = [self._root], self._root.rstrip("/")
        for name in directory[len(top) :].strip("/").split("/"):
            if name:
                chain.append(f"{chain[-1].rstrip('/')}/{name}")
        return chain


_NOTHING = _Use()
