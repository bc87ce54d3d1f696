"""What a client waits for: a plugin that is registered, or devices that are healthy. Nothing here waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

import attrs

from ...protocol.client.status_values import plugin_from_json
from ...protocol.plugins.devices import ResourceState
from ...protocol.plugins.status import PluginStatus, StateName
from ...protocol.text import escaped, first_few
from .calls import ClientRequest, understood
from .errors import ClientError, NotReadyError

#: Seconds between attempts to reach a daemon that does not run yet.
RECONNECT: Final = 0.2
#: Seconds for what only explains why something is missing.
EXPLAIN: Final = 1.0
#: Why a resource is not there.
NOT_REGISTERED: Final = (
    "neither a device plugin nor the configuration offers it; 'plugind ls' shows plugins that are on their way"
)


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

    def explanations(self) -> tuple[ClientRequest[None], ...]:
        """Return what to ask at the end of the wait about those that are not there."""


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

    def explanations(self) -> tuple[ClientRequest[None], ...]:
        """Return what to ask when the time is over."""
        return () if self._failure is not None else self.awaited.explanations()

    def error(self, timeout: float) -> ClientError:
        """Return what to raise when the time is over."""
        if self._failure is not None:
            return self._failure
        missing = "; ".join(self.awaited.missing())
        why = "" if self._has_list else ", and the daemon has not sent its whole list"
        return NotReadyError(f"within {timeout:g} s: {missing}{why}")


@attrs.define
class AwaitedPlugin:
    """A plugin that is to be registered."""

    name: str
    type: str | None
    path: str = "/watch"
    _plugins: dict[str, PluginStatus] = attrs.field(factory=dict)

    def clear(self) -> None:
        """See :class:`Awaited`."""
        self._plugins.clear()

    def note(self, text: bytes) -> None:
        """See :class:`Awaited`."""
        plugin = understood(plugin_from_json, text)
        if plugin.state is not StateName.GONE and plugin.name == self.name and self.type in (None, plugin.type):
            self._plugins[plugin.socket] = plugin
        else:
            self._plugins.pop(plugin.socket, None)  # The next plugin at a path may have another name, or none yet.

    @property
    def registered(self) -> PluginStatus | None:
        """Its status, once it is registered."""
        return next((plugin for plugin in self._plugins.values() if plugin.state in _IN_USE), None)

    def missing(self) -> Iterator[str]:
        """See :class:`Awaited`."""
        if self.registered is None:
            yield f"{escaped(self.name)} {self._state}"

    @property
    def _state(self) -> str:
        if not self._plugins:
            also = "" if self.type is None else f" and the type {escaped(self.type)}"
            return f"is not known: no socket has given this name{also}"
        last = max(self._plugins.values(), key=lambda plugin: plugin.since)
        why = last.cause or last.reason
        return f"is {last.state}" + (f" ({escaped(why)})" if why else "")

    def explanations(self) -> tuple[()]:
        """See :class:`Awaited`."""
        return ()


#: In observe mode another consumer registers plugins.
_IN_USE = (StateName.REGISTERED, StateName.OBSERVED)


@attrs.define
class AwaitedDevices:
    """Resources that are to have so many healthy devices each."""

    wanted: Mapping[str, int]
    path: str = "/v1/devices/watch"
    _resources: dict[str, Mapping[str, object]] = attrs.field(factory=dict)
    #: What is said of the last Register call for a resource, if it was refused.
    _refused: Mapping[str, str] = attrs.field(factory=dict)
    _unhealthy: Mapping[str, str] = attrs.field(factory=dict)

    def clear(self) -> None:
        """See :class:`Awaited`."""
        self._resources.clear()

    def note(self, text: bytes) -> None:
        """See :class:`Awaited`."""
        name, resource = understood(_named, text)
        if resource["state"] == ResourceState.GONE:
            self._resources.pop(name, None)
        else:
            self._resources[name] = resource

    def missing(self) -> Iterator[str]:
        """See :class:`Awaited`."""
        for name, number in self.wanted.items():
            resource = self._resources.get(name)
            if healthy_of(resource) < number:
                refused = f"; {self._refused[name]}" if name in self._refused else ""
                yield f"{too_few(name, number, resource, unhealthy=self._unhealthy.get(name))}{refused}"

    def explanations(self) -> tuple[ClientRequest[None], ...]:
        """See :class:`Awaited`."""
        return (
            ClientRequest("GET", "/v1/devices/refused", self._note_refused),
            ClientRequest("GET", "/v1/devices", self._note_devices),
        )

    def _note_refused(self, content: object) -> None:
        self._refused = refused_calls(content)

    def _note_devices(self, content: object) -> None:
        self._unhealthy = unhealthy_devices(content.get("resources") if isinstance(content, dict) else None)


def _named(content: Any) -> tuple[str, Mapping[str, object]]:
    match content:
        case {"resource": str(name), "state": str(), "allocatable": int()}:
            return name, content
        case _:
            raise ValueError("it is no resource that this version of plugind knows")


def healthy_of(resource: Mapping[str, object] | None) -> int:
    """Return how many healthy devices a resource has, as the watch of devices shows it; None is one that is not."""
    number = (resource or {}).get("allocatable")
    return number if isinstance(number, int) else 0


def too_few(
    name: str, wanted: int, resource: Mapping[str, object] | None, *also: str, unhealthy: str | None = None
) -> str:
    """Return why a resource has too few healthy devices; ``also`` are more reasons if no plugin has registered.

    ``unhealthy`` names devices that are not healthy.
    """
    healthy = healthy_of(resource)
    if resource is None:
        why = "; ".join([NOT_REGISTERED, *also])
    elif resource.get("state") != ResourceState.LISTED:
        reason = resource.get("reason")
        why = f"it is {escaped(str(resource.get('state')))}" + (f": {escaped(str(reason))}" if reason else "")
    elif reason := resource.get("reason"):
        why = escaped(str(reason))
    else:
        verb = "is" if healthy == 1 else "are"
        why = f"it lists {counted(resource.get('capacity'), 'device')}, of which {healthy} {verb} healthy"
        why += f", and not {unhealthy}" if unhealthy else ""
    return f"{escaped(name)} has {healthy} of {counted(wanted, 'healthy device')}: {why}"


def counted(number: object, what: str) -> str:
    """Return a number of things."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def unhealthy_devices(resources: object) -> dict[str, str]:
    """Return the names and the health of the devices that are not healthy, by resource."""
    found = resources if isinstance(resources, list) else []
    return {str(each.get("resource")): _unhealthy(each.get("devices")) for each in found if isinstance(each, dict)}


def _unhealthy(devices: object) -> str:
    found = [each for each in devices if isinstance(each, dict)] if isinstance(devices, list) else []
    names = [f"{each.get('id')} ({each.get('health')})" for each in found if each.get("healthy") is False]
    return escaped(first_few(names))


def refused_calls(content: object) -> dict[str, str]:
    """Return the words for each resource whose last Register call was refused."""
    calls = content if isinstance(content, list) else []
    return {str(call.get("resource")): _refusal(call) for call in calls if isinstance(call, dict)}


def _refusal(call: Mapping[str, object]) -> str:
    from ...protocol.devices.refused_calls import in_words  # Its module takes long to import.

    age = call.get("age")
    return escaped(in_words(call.get("reason"), call.get("pid"), age if isinstance(age, int | float) else 0.0))
