"""The rule of generations, checked while a script is played: each conversation is with one generation of one socket.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from ....protocol.plugins import Plugin
from ....protocol.status import PluginStatus, StateName
from ..scheduling import EPSILON


class GenerationOracle:
    """A generation speaks with one socket, and a socket is spoken with in one generation (fault 41, behaviour 9).

    The handler is asked to validate while the conversation is open, so the socket that was dialed last is the one that
    gave the info. This holds on file systems with handles; elsewhere a socket may look like the one before it.

    One exception is allowed: the entries of a directory that was removed and made again are new once more when that is
    noticed (faults 14 to 16), which may be after the sockets in it were found.
    """

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        self._violated = violated
        #: The socket of each path and generation, and the generation of each path and socket with the time of that.
        self._sockets: dict[tuple[str, int], int] = {}
        self._generations: dict[tuple[str, int], tuple[int, float]] = {}
        #: Directories that were removed, with the sockets below that were told again since.
        self._removed: dict[str, set[str]] = {}
        #: What is shown of each path.
        self._statuses: dict[str, PluginStatus] = {}
        #: The highest generation that was shown, and the highest one of reconcilers that have crashed.
        self._shown = 0
        self._crashed = 0

    def forget(self) -> None:
        """Forget all: the daemon ended, and the next one counts anew."""
        self._forget_sockets()
        self._shown = self._crashed = 0

    def crashed(self) -> None:
        """The reconciler has crashed: the next one counts on, and its sockets are told again."""
        self._forget_sockets()
        self._crashed = self._shown

    def _forget_sockets(self) -> None:
        self._sockets.clear()
        self._generations.clear()
        self._statuses.clear()

    def shown(self, status: PluginStatus) -> None:
        """A state is shown."""
        self._shown = max(self._shown, status.generation)
        self._statuses[status.socket] = status

    def moved(self, path: str) -> None:
        """The socket at ``path`` is renamed: when it comes back, that is another appearance (behaviour 4)."""
        for key in [key for key in self._generations if key[0] == path]:
            del self._generations[key]

    def removed(self, directory: str) -> None:
        """The directory is removed, and perhaps made again: each socket below may be told once more."""
        self._removed[directory] = set()

    def _is_allowed(self, path: str) -> bool:
        for directory, told_again in self._removed.items():
            if path.startswith(f"{directory}/") and path not in told_again:
                told_again.add(path)
                return True
        return False

    def _was_asked_before(self, path: str, generation: int, now: float) -> bool:
        """Whether the handler was asked before this instant, and is late: behind a call that has ended only now.

        The socket of a newer generation was dialed in this instant, then.
        """
        status = self._statuses.get(path)
        if status is None:
            return False
        if status.generation == generation:
            return status.state is StateName.VALIDATING and status.since < now - EPSILON
        return status.generation > generation and status.since >= now - EPSILON

    def validating(self, plugin: Plugin, socket: int) -> None:
        """The handler is asked to validate what ``socket`` said of itself, by the serial number of its file."""
        path, generation = plugin.socket, plugin.generation
        if generation <= self._crashed:
            return  # A handler that has crashed, too, takes what the reconciler asked it before.
        now = trio.current_time()
        if self._sockets.setdefault((path, generation), socket) != socket:
            if self._was_asked_before(path, generation, now):
                return
            self._violated("generation", f"generation {generation} of {path} speaks with a second socket")
        first, since = self._generations.setdefault((path, socket), (generation, now))
        if first == generation:
            return
        # An ask for the socket before it may have had its turn in the instant in which this one was dialed: behind a
        # call that was cancelled then, or of a handler that was started again.
        is_late = first < generation and now < since + EPSILON
        if is_late or self._is_allowed(path):
            self._generations[path, socket] = (generation, now)
        else:
            self._violated("generation", f"the socket of generation {first} of {path} is told again as {generation}")
