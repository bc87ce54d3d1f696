"""The rule of generations, checked while a script is played: each conversation is with one generation of one socket.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable

from ....protocol.plugins import Plugin


class GenerationOracle:
    """A generation speaks with one socket, and a socket is spoken with in one generation (fault 41, behaviour 9).

    The handler is asked to validate while the conversation is open, so the socket that was dialed last is the one that
    gave the info. This holds on file systems with handles; elsewhere a socket may look like the one before it.
    """

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        self._violated = violated
        #: The socket of each path and generation, and the generation of each path and socket.
        self._sockets: dict[tuple[str, int], int] = {}
        self._generations: dict[tuple[str, int], int] = {}

    def forget(self) -> None:
        """Forget all: the daemon or its reconciler ended, and the next one counts anew."""
        self._sockets.clear()
        self._generations.clear()

    def moved(self, path: str) -> None:
        """The socket at ``path`` is renamed: when it comes back, that is another appearance (behaviour 4)."""
        for known in [known for known in self._generations if known[0] == path]:
            del self._generations[known]

    def validating(self, plugin: Plugin, socket: int) -> None:
        """The handler is asked to validate what ``socket`` said of itself, by the serial number of its file."""
        path, generation = plugin.socket, plugin.generation
        if self._sockets.setdefault((path, generation), socket) != socket:
            self._violated("generation", f"generation {generation} of {path} speaks with a second socket")
        first = self._generations.setdefault((path, socket), generation)
        if first != generation:
            self._violated("generation", f"the socket of generation {first} of {path} is told again as {generation}")
