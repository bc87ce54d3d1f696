"""The inbox of the devices actor, which also keeps the last messages about each device plugin.

Followers send without waiting, so the inbox is bounded by a rule: of each kind of message of an instance only the
newest waits. An actor that is slower than the plugins misses only outdated lists.

After a crash of the actor, the next one gets the last messages again, since the message that crashed it may be lost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import MutableMapping
from typing import TypeVar

from ...protocol.devices.messages import (
    DevicesMessage,
    InstanceAdded,
    InstanceMessage,
    InstanceRemoved,
    ListLost,
    ListReceived,
)
from ...protocol.plugins.devices import Key
from ..messaging.queued import Queued

#: The newest message of each kind, in the order of arrival.
_Said = dict[type[InstanceMessage], InstanceMessage]
K = TypeVar("K")
V = TypeVar("V")


class DevicesInbox(Queued[DevicesMessage]):
    """The inbox. It outlives the actor."""

    def __init__(self) -> None:
        super().__init__()
        #: The last messages about each present instance.
        self._present: dict[Key, _Said] = {}

    def send_nowait(self, message: DevicesMessage, /) -> None:
        """Add ``message``; never wait."""
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
        """Queue the last messages of all present instances again; return the instances in the queue.

        All other instances have left, even if the message about that was lost.
        """
        waiting = [message for message in self._queue.values() if isinstance(message, InstanceMessage)]
        readers = [message for message in self._queue.values() if not isinstance(message, InstanceMessage)]
        left = [message for message in waiting if _key(message) not in self._present]
        present = [message for said in self._present.values() for message in said.values()]
        self._queue = OrderedDict(((_key(message), type(message)), message) for message in (*left, *present))
        self._queue.update((object(), message) for message in readers)
        self._lot.unpark_all()
        return frozenset(map(_key, (*left, *present)))


def _key(message: InstanceMessage) -> Key:
    if isinstance(message, InstanceAdded):
        return message.plugin.socket, message.plugin.generation
    return message.socket, message.generation


def _put_last(messages: MutableMapping[K, V], key: K, message: V) -> None:
    """Put ``message`` last, and remove an older one with its key."""
    messages.pop(key, None)
    messages[key] = message
