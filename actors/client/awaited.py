"""What a client waits for: plugins that are registered, or devices that are healthy. Nothing here waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

import attrs

from ...protocol.client.status_values import plugin_from_json
from ...protocol.plugins.devices import ResourceState
from ...protocol.plugins.status import PluginStatus, StateName
from ...protocol.text import escaped
from .calls import understood
from .errors import ClientError, NotReadyError

#: Seconds between attempts to reach a daemon that does not run yet.
RECONNECT: Final = 0.2


class Awaited(Protocol):
    """What is waited for, and what the daemon has said of it."""

    #: The stream that tells.
    path: str

    def clear(self) -> None:
        """Forget what an earlier stream has said."""

    def note(self, text: bytes, /) -> None:
        """Take a line of the stream.

        Raises:
          DaemonError: if it cannot be understood.
        """

    def missing(self) -> Iterator[str]:
        """Yield, for each that is not there, a text that says so."""


@attrs.define
class Following:
    """One wait, over as many streams as it takes."""

    awaited: Awaited
    #: Until when, by a clock of the client.
    deadline: float
    clock: Callable[[], float]
    #: Why the last stream has ended, or could not begin, but by the end of the wait.
    _failure: ClientError | None = None
    #: Whether a stream has named all that the daemon knows.
    _has_list: bool = False

    def begin(self) -> None:
        """Begin another stream."""
        self.awaited.clear()
        self._failure, self._has_list = None, False

    def ended(self, failure: ClientError) -> None:
        """Note why a stream has ended; that the wait is over tells less than what was said before."""
        if self.left or not (self._has_list or self._failure):
            self._failure = failure

    @property
    def left(self) -> float:
        """How many seconds are left of the wait."""
        return max(0.0, self.deadline - self.clock())

    def note(self, text: bytes) -> bool:
        """Take a line; return whether all is there."""
        if text:
            self.awaited.note(text)
        else:
            self._has_list = True  # A heartbeat: the first one follows the list.
        return self.done

    @property
    def done(self) -> bool:
        """Whether all is there."""
        return next(self.awaited.missing(), None) is None

    def error(self, timeout: float) -> ClientError:
        """Return what to raise when the time is over."""
        if self._failure is not None:
            return self._failure
        missing = "; ".join(self.awaited.missing())
        why = "" if self._has_list else ", and the daemon has not sent its whole list"
        return NotReadyError(f"within {timeout:g} s: {missing}{why}")


@attrs.define
class AwaitedPlugins:
    """Plugins that are to be registered, by name."""

    names: tuple[str, ...]
    path: str = "/watch"
    _plugins: dict[str, PluginStatus] = attrs.field(factory=dict)

    def clear(self) -> None:
        """See :class:`Awaited`."""
        self._plugins.clear()

    def note(self, text: bytes) -> None:
        """See :class:`Awaited`."""
        plugin = understood(plugin_from_json, text)
        if plugin.state is StateName.GONE:
            self._plugins.pop(plugin.socket, None)
        else:
            self._plugins[plugin.socket] = plugin

    def missing(self) -> Iterator[str]:
        """See :class:`Awaited`."""
        for name in self.names:
            found = [plugin for plugin in self._plugins.values() if plugin.name == name]
            if not any(plugin.state in _IN_USE for plugin in found):
                yield f"{escaped(name)} {_state_of(found)}"


#: In observe mode another consumer registers plugins.
_IN_USE = (StateName.REGISTERED, StateName.OBSERVED)


def _state_of(found: list[PluginStatus]) -> str:
    if not found:
        return "is not known: no socket has given this name"
    last = max(found, key=lambda plugin: plugin.since)
    why = last.cause or last.reason
    return f"is {last.state}" + (f" ({escaped(why)})" if why else "")


def _counted(content: object) -> tuple[str, str, int]:
    match content:
        case {"resource": str(name), "state": str(state), "allocatable": int(healthy)}:
            return name, state, healthy
        case _:
            raise ValueError("it is no resource that this version of plugind knows")


@attrs.define
class AwaitedDevices:
    """Resources that are to have so many healthy devices each."""

    wanted: Mapping[str, int]
    path: str = "/v1/devices/watch"
    #: The state of each resource, and how many healthy devices it has.
    _resources: dict[str, tuple[str, int]] = attrs.field(factory=dict)

    def clear(self) -> None:
        """See :class:`Awaited`."""
        self._resources.clear()

    def note(self, text: bytes) -> None:
        """See :class:`Awaited`."""
        name, state, healthy = understood(_counted, text)
        self._resources[name] = state, healthy

    def missing(self) -> Iterator[str]:
        """See :class:`Awaited`."""
        for name, number in self.wanted.items():
            state, healthy = self._resources.get(name, (ResourceState.GONE.value, 0))
            if healthy < number:
                why = "no device plugin has registered for it" if state == ResourceState.GONE else f"it is {state}"
                yield f"{escaped(name)} has {healthy} of {number} healthy devices: {why}"
