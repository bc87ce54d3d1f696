"""Names that are kept for the sockets which replaced those of registered plugins (fault 80).

While a plugin is replaced, nobody has its name for a moment. Another user could take it then, and the plugin whose name
it is would be refused. So the name is kept for the new socket, against other users and for a limited time.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

#: Seconds for which a name is kept.
NAME_KEPT = 15.0


@attrs.frozen
class _Kept:
    #: The (type, name), and the user of the plugin that had it.
    key: tuple[str, str]
    uid: int | None
    until: float


@attrs.define(eq=False)
class KeptNames:
    """The names that are kept, at most one for each path. Times are ``trio.current_time()`` in seconds."""

    _by_path: dict[str, _Kept] = attrs.field(init=False, factory=dict)
    _paths: dict[tuple[str, str], dict[str, None]] = attrs.field(init=False, factory=dict)

    def __len__(self) -> int:
        return len(self._by_path)

    def keep(self, path: str, key: tuple[str, str], uid: int | None, now: float) -> None:
        """Keep the name ``key`` of a plugin of user ``uid`` for the new socket at ``path``."""
        self.forget(path)
        self._by_path[path] = _Kept(key, uid, now + NAME_KEPT)
        self._paths.setdefault(key, {})[path] = None

    def forget(self, path: str) -> None:
        """Keep no name for ``path``: its plugin claims one, or its socket is gone or replaced again."""
        kept = self._by_path.pop(path, None)
        if kept is not None:
            del self._paths[kept.key][path]
            if not self._paths[kept.key]:
                del self._paths[kept.key]

    def holders(self, key: tuple[str, str], now: float) -> Iterator[tuple[str, int | None]]:
        """Yield the sockets for which the name ``key`` is kept, and their users."""
        for path in self._paths.get(key, ()):
            kept = self._by_path[path]
            if kept.until > now:
                yield path, kept.uid
