"""The rule of generations, checked while a script is played: each conversation is with one generation of one socket."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
import trio

from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import PluginStatus


@attrs.define(eq=False)
class _Conversation:
    """A connection to a plugin."""

    #: The serial number of its file.
    socket: int
    #: Virtual seconds.
    began: float
    #: The plugin was asked for its info.
    asked: bool = False
    #: The handler was asked to validate, or the try has ended without that.
    over: bool = False


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
        #: The last conversation at each path, and the one before it.
        self._conversations: dict[str, _Conversation] = {}
        self._before: dict[str, _Conversation] = {}
        #: The paths whose plugins are seen when they are asked.
        self._seen: set[str] = set()
        #: When the reconciler has crashed last.
        self._crashed_at = -math.inf
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
        self._crashed, self._crashed_at = self._shown, trio.current_time()

    def _forget_sockets(self) -> None:
        self._sockets.clear()
        self._generations.clear()

    def shown(self, status: PluginStatus) -> None:
        """A state of rest is shown."""
        self._shown = max(self._shown, status.generation)
        for conversation in (self._before.get(status.socket), self._conversations.get(status.socket)):
            if conversation is not None and conversation.began <= status.since:
                conversation.over = True

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

    def _is_late(self, path: str, now: float) -> bool:
        """Whether the handler takes only now what it was asked of the socket before the one that was just dialed.

        It is late behind a call that has ended in this instant, in which the socket of a newer generation was dialed.
        """
        conversation, before = self._conversations[path], self._before.get(path)
        if conversation.began < now - EPSILON:
            return False
        if before is not None and before.asked and not before.over:
            before.over = True
            return True
        return path in self._seen and not conversation.asked

    def connected(self, path: str, socket: int) -> None:
        """The daemon has a connection to ``socket``, by the serial number of its file."""
        if path in self._conversations:
            self._before[path] = self._conversations[path]
        self._conversations[path] = _Conversation(socket, trio.current_time())

    def asked(self, path: str) -> None:
        """The plugin at ``path`` is asked for its info."""
        self._seen.add(path)
        if path in self._conversations:
            self._conversations[path].asked = True

    def validating(self, plugin: Plugin) -> None:
        """The handler is asked to validate what the socket that was dialed last said of itself."""
        path, generation = plugin.socket, plugin.generation
        if generation <= self._crashed or path not in self._conversations:
            return  # A handler that has crashed, too, takes what the reconciler asked it before.
        now, conversation = trio.current_time(), self._conversations[path]
        self._shown = max(self._shown, generation)
        if conversation.began <= self._crashed_at or self._is_late(path, now):
            return
        conversation.over, socket = True, conversation.socket
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
