"""The inbox of the devices actor, which also keeps what each device plugin has said last.

Followers send without waiting, so the inbox is bounded by a rule: of each kind of message of an instance only the
newest waits. An actor that is slower than the plugins misses lists that are out of date, and nothing else.

When the actor has crashed, the next one is sent again what is the case: the message that crashed it may be lost.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import collections
from collections.abc import Callable

import trio

from ...protocol.device_messages import (
    DevicesAsked,
    DevicesMessage,
    DevicesSubscribed,
    DevicesUnsubscribed,
    InstanceAdded,
    InstanceMessage,
    InstanceRemoved,
    ListLost,
    ListReceived,
)
from ...protocol.health import Reading
from ...protocol.resources import Key

#: The newest message of each kind, in the order in which they came.
_Said = dict[type[InstanceMessage], InstanceMessage]
_Reader = DevicesAsked | DevicesSubscribed | DevicesUnsubscribed


class DevicesInbox:
    """The inbox; it outlives the actor. Senders see ``send_nowait`` alone."""

    def __init__(self) -> None:
        self._queue: collections.deque[Key | _Reader] = collections.deque()
        self._waiting: dict[Key, _Said] = {}
        #: What each instance that is there has said last.
        self._present: dict[Key, _Said] = {}
        self._lot = trio.lowlevel.ParkingLot()
        self._taken = 0
        #: Says what is wrong although the actor takes its messages.
        self.problem: Callable[[], str | None] = lambda: None

    def send_nowait(self, message: DevicesMessage, /) -> None:
        """Put ``message`` in; never waits."""
        if isinstance(message, InstanceMessage):
            key = _key(message)
            self._remember(key, message)
            if key not in self._waiting:
                self._waiting[key] = {}
                self._queue.append(key)
            _say(self._waiting[key], message)
        else:
            self._queue.append(message)
        self._lot.unpark()

    def _remember(self, key: Key, message: InstanceMessage) -> None:
        if isinstance(message, InstanceRemoved):
            self._present.pop(key, None)
        elif isinstance(message, InstanceAdded):
            self._present[key] = {InstanceAdded: message}
        elif key in self._present:
            if isinstance(message, ListReceived):
                self._present[key].pop(ListLost, None)
            _say(self._present[key], message)

    def start_again(self) -> frozenset[Key]:
        """Let everything wait again that is the case; return the instances of which something waits.

        Any other instance has left, and the message that said so is lost.
        """
        readers = [entry for entry in self._queue if not isinstance(entry, tuple)]
        removed = {key: said for key, said in self._waiting.items() if key not in self._present}
        self._waiting = removed | {key: dict(said) for key, said in self._present.items()}
        self._queue = collections.deque([*self._waiting, *readers])
        self._lot.unpark_all()
        return frozenset(self._waiting)

    async def receive(self) -> DevicesMessage:
        """Return the next message, once there is one."""
        while not self._queue:
            await self._lot.park()
        return self.receive_nowait()

    def receive_nowait(self) -> DevicesMessage:
        """Return the next message.

        Raises:
          trio.WouldBlock: if there is none.
        """
        if not self._queue:
            raise trio.WouldBlock
        self._taken += 1
        entry = self._queue[0]
        if not isinstance(entry, tuple):
            self._queue.popleft()
            return entry
        said = self._waiting[entry]
        message = said.pop(next(iter(said)))
        if not said:
            self._queue.popleft()
            del self._waiting[entry]
        return message

    def read(self) -> Reading:
        """Return how much waits, and how much was taken."""
        return Reading(len(self._queue), self._taken, wrong=self.problem())


def _key(message: InstanceMessage) -> Key:
    if isinstance(message, InstanceAdded):
        return message.plugin.socket, message.plugin.generation
    return message.socket, message.generation


def _say(said: _Said, message: InstanceMessage) -> None:
    """Put ``message`` last, in the place of an older one of its kind."""
    said.pop(type(message), None)
    said[type(message)] = message
