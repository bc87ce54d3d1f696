"""When a plugin's answer to GetInfo is given up, checked while a script is played."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import attrs
import trio

from plugind.actors.simulation.scheduling import EPSILON
from plugind.actors.simulation.streams import ClientEnd
from plugind.protocol.identity import Identity
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.registration.info_deadline import FIRST_LOOK, NEEDED
from plugind.protocol.settings.config import Timeouts

#: Conversations of a path that are remembered: what is shown may lag, or be shown again.
_REMEMBERED = 32
_GET_INFO = "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket "


@attrs.frozen
class _Conversation:
    """A connection that was made to ask a plugin for its info."""

    #: Virtual seconds: of the first attempt to connect, and of the call.
    dialed: float
    asked: float
    end: ClientEnd

    def begun(self, now: float) -> float | None:
        """Return when the peer had said something or read all, if that was not after ``now``."""
        times = (self.end.heard_at, self.end.progress.read_at)
        return min((time for time in times if time is not None and time <= now + EPSILON), default=None)


class PatienceOracle:
    """GetInfo's second begins with the first byte, or once the request is read; until then the time of the dial counts.

    A plugin that listens and does not serve yet is therefore not hung up on, and not dialed a second time. One that
    reads and stays silent is given up no later than a second after the look that could find that.
    """

    def __init__(self, violated: Callable[[str, str], None], timeouts: Timeouts) -> None:
        self._violated = violated
        self._timeouts = timeouts
        self._conversations: dict[str, deque[_Conversation]] = {}
        #: Which socket's dials found a full backlog, and when the first of them began.
        self._full: dict[str, tuple[Identity | None, float]] = {}
        #: What was checked last of each path: when it failed.
        self._checked: dict[str, float] = {}

    def forget(self) -> None:
        """Forget all conversations: the daemon ended."""
        self._conversations.clear()
        self._full.clear()
        self._checked.clear()

    def found_full(self, path: str, identity: Identity | None, began: float) -> None:
        """A dial of this socket that began then has found a full backlog: the next one is part of it.

        If it is the last one for which there was time, the next one is a dial of its own.
        """
        first = self._first(path, identity, began)
        if began < first + self._timeouts.dial - EPSILON:
            self._full[path] = identity, first

    def failed(self, path: str) -> None:
        """A dial has failed for another reason, or the actor that dials has crashed."""
        self._full.pop(path, None)

    def _first(self, path: str, identity: Identity | None, began: float) -> float:
        """Return when the dial began of which this attempt to connect is a part. Another socket has its own dial."""
        other, first = self._full.pop(path, (identity, began))
        return first if other == identity else began

    def connected(self, path: str, identity: Identity | None, began: float, end: ClientEnd) -> None:
        """A dial of this socket that began then has connected."""
        began = self._first(path, identity, began)
        conversations = self._conversations.setdefault(path, deque(maxlen=_REMEMBERED))
        conversations.append(_Conversation(began, trio.current_time(), end))

    def shown(self, status: PluginStatus) -> None:
        """A state is shown."""
        reason = status.reason or ""
        if status.state is not StateName.WAITING or not reason.startswith(_GET_INFO):
            return
        if self._checked.get(status.socket) == status.since:
            return
        self._checked[status.socket] = status.since
        conversation = self._conversation(status)
        if conversation is not None:
            for problem in self._problems(conversation, reason.partition(", err: ")[2], status.since):
                self._violated("patience", f"{status.socket} fails at {status.since:.6f}: {problem}")

    def _conversation(self, status: PluginStatus) -> _Conversation | None:
        """Return the conversation that has ended with what is shown. The next one may have begun in that instant."""
        latest = status.since - FIRST_LOOK + EPSILON
        return next(
            (
                conversation
                for conversation in reversed(self._conversations.get(status.socket, ()))
                if conversation.asked <= latest
            ),
            None,
        )

    def _problems(self, conversation: _Conversation, error: str, now: float) -> Iterator[str]:
        begun = conversation.begun(now)
        if error.startswith("no answer in "):
            if begun is None:
                yield f"it had neither read nor said anything since {conversation.asked:.6f}"
            else:
                earliest, latest = self._bounds(conversation, begun, now)
                if not earliest - EPSILON <= now <= latest + EPSILON:
                    yield f"its second began at {begun:.6f}, and ends from {earliest:.6f} to {latest:.6f}"
        elif error.startswith("its process listens, "):
            due = max(conversation.asked + self._timeouts.get_info, conversation.dialed + self._timeouts.dial)
            if begun is not None and begun < now - EPSILON:
                yield f"it had read or said something at {begun:.6f}"
            if abs(now - due) > EPSILON:
                yield f"it had time until {due:.6f}"
        elif error == NEEDED and begun is not None and begun < now - EPSILON:
            yield f"it had read or said something at {begun:.6f}, and its connection was closed for another"

    def _bounds(self, conversation: _Conversation, begun: float, now: float) -> tuple[float, float]:
        """Return when the second of a plugin that has not answered ends at the earliest and at the latest."""
        second, heard = self._timeouts.get_info, conversation.end.heard_at
        if heard is not None and heard > now + EPSILON:
            heard = None
        if heard is not None and heard <= begun:
            return heard + second, heard + second
        first_look = conversation.asked + FIRST_LOOK
        # A look in the same instant may find the request read, or not.
        earliest = conversation.asked if begun <= first_look + EPSILON else begun
        if begun < first_look - EPSILON:
            latest = conversation.asked if heard is None or heard > first_look + EPSILON else heard
        else:
            last_look = max(conversation.asked + second, conversation.dialed + self._timeouts.dial)
            latest = min(conversation.asked + max(second, 2 * (begun - conversation.asked)), last_look)
            latest = latest if heard is None else min(latest, heard)
        return earliest + second, latest + second
