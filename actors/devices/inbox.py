"""The inbox of the devices actor, which also keeps what each device plugin has said last.

Followers send without waiting, so the inbox is bounded by a rule: of each kind of message of an instance only the
newest waits. An actor that is slower than the plugins misses lists that are out of date, and nothing else.

When the actor has crashed, the next one is sent again what is the case: the message that crashed it may be lost.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from typing import TypeVar

import trio

from ...protocol.device_messages import (
    DevicesMessage,
    InstanceAdded,
    InstanceMessage,
    InstanceRemoved,
    ListLost,
    ListReceived,
)
from ...protocol.devices import Key
from ...protocol.health import Reading

#: The newest message of each kind, in the order in which they came.
_Said = dict[type[InstanceMessage], InstanceMessage]
K = TypeVar("K")
V = TypeVar("V")


class DevicesInbox:
    """The inbox; it outlives the actor. Senders see ``send_nowait`` alone."""

    def __init__(self) -> None:
        #: What waits, in the order in which it came: the messages of an instance by its key and their kind.
        self._queue: OrderedDict[object, DevicesMessage] = OrderedDict()
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
            _put_last(self._queue, (key, type(message)), message)
        else:
            self._queue[object()] = message
        self._lot.unpark()

    def _remember(self, key: Key, message: InstanceMessage) -> None:
        if isinstance(message, InstanceRemoved):
            self._present.pop(key, None)
        elif isinstance(message, InstanceAdded):
            self._present[key] = {InstanceAdded: message}
        elif key in self._present:
            if isinstance(message, ListReceived):
                self._present[key].pop(ListLost, None)
            _put_last(self._present[key], type(message), message)

    def start_again(self) -> frozenset[Key]:
        """Let everything wait again that is the case; return the instances of which something waits.

        Any other instance has left, and the message that said so is lost.
        """
        waiting = [message for message in self._queue.values() if isinstance(message, InstanceMessage)]
        readers = [message for message in self._queue.values() if not isinstance(message, InstanceMessage)]
        left = [message for message in waiting if _key(message) not in self._present]
        present = [message for said in self._present.values() for message in said.values()]
        self._queue = OrderedDict(((_key(message), type(message)), message) for message in (*left, *present))
        self._queue.update((object(), message) for message in readers)
        self._lot.unpark_all()
        return frozenset(map(_key, (*left, *present)))

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
        return self._queue.popitem(last=False)[1]

    def read(self) -> Reading:
        """Return how much waits, and how much was taken."""
        return Reading(len(self._queue), self._taken, wrong=self.problem())


def _key(message: InstanceMessage) -> Key:
    if isinstance(message, InstanceAdded):
        return message.plugin.socket, message.plugin.generation
    return message.socket, message.generation


def _put_last(messages: MutableMapping[K, V], key: K, message: V) -> None:
    """Put ``message`` last, in the place of an older one with its key."""
    messages.pop(key, None)
    messages[key] = message
