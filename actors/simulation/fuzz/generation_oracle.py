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
        #: The socket that was dialed last at each path, and when.
        self._dialed: dict[str, tuple[int, float]] = {}
        #: What is shown of each path.
        self._statuses: dict[str, PluginStatus] = {}
        #: What was shown of it when its plugin was reached, until the conversation has gone on or has failed.
        self._reached: dict[str, PluginStatus] = {}
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
        self._reached.clear()

    def shown(self, status: PluginStatus) -> None:
        """A state is shown."""
        self._shown = max(self._shown, status.generation)
        self._statuses[status.socket] = status
        if status.state not in (StateName.ASKING_INFO, StateName.VALIDATING):
            self._reached.pop(status.socket, None)
        elif not self._is_reached(status.socket, status.generation):
            self._reached[status.socket] = status

    def _is_reached(self, path: str, generation: int) -> bool:
        return path in self._reached and self._reached[path].generation == generation

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

    def _is_late(self, path: str, generation: int, dialed: float, now: float) -> bool:
        """Whether the handler takes only now what it was asked of the socket before the one that was ``dialed``.

        It is late behind a call that has ended in this instant, in which the socket of a newer generation was dialed.
        """
        if dialed < now - EPSILON:
            return False
        status = self._statuses.get(path)
        if status is not None and status.generation > generation:
            return status.since >= now - EPSILON
        return self._is_reached(path, generation) and self._reached[path].since < now - EPSILON

    def connected(self, path: str, socket: int) -> None:
        """The daemon has a connection to ``socket``, by the serial number of its file."""
        self._dialed[path] = socket, trio.current_time()

    def validating(self, plugin: Plugin) -> None:
        """The handler is asked to validate what the socket that was dialed last said of itself."""
        path, generation = plugin.socket, plugin.generation
        if generation <= self._crashed or path not in self._dialed:
            return  # A handler that has crashed, too, takes what the reconciler asked it before.
        now, (socket, dialed) = trio.current_time(), self._dialed[path]
        if self._is_late(path, generation, dialed, now):
            return
        if self._sockets.setdefault((path, generation), socket) != socket:
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
