"""What must hold of the health of the devices of DRA drivers, by the rules of Kubernetes 1.37.

The oracle is given what the node takes from each stream, and works out for itself how each device is: as its driver has
said last, for as long as that holds, and unknown afterwards, and when nothing is heard of the driver any more. What is
shown must be that, a moment later at most.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

import attrs
import trio
from google.protobuf.message import DecodeError

from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.proto import dra_health_v1_pb2 as api
from plugind.protocol.text import cut
from plugind.tests.fuzz.health_oracle import LAG, Key

#: The services by which a driver may tell it, the preferred one first.
SERVICES: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
#: Seconds for which a word of a driver holds that names no time.
HOLDS: Final = 30.0
#: Seconds until a stream that has ended is opened again.
AGAIN: Final = 5.0
#: Seconds until what has happened is shown: the instances of a driver join their reports, and then waits each report.
SHOWN: Final = LAG + 0.5 + 0.1
#: Seconds until a message that was sent has been taken: of several that come soon after each other, the newest.
TAKEN: Final = 2.0

_MOST_DEVICES: Final = 4096
_LONGEST_NAME: Final = 253
_LONGEST, _CUT = 1024, "..."
_LONGEST_SHOWN: Final = 160
_WORDS: Final = {api.HEALTHY: "Healthy", api.UNHEALTHY: "Unhealthy"}
_UNKNOWN: Final = "Unknown"
_SHOWN: Final = re.compile(r"(\w+)(?:: (.*))? \(since (\S+)\)", re.DOTALL)
_FACT: Final = "device."

P = TypeVar("P")

#: The pool and the name of a device.
Device = tuple[str, str]


@attrs.frozen
class _Health:
    """How a device was from some time on."""

    at: float
    status: str
    message: str
    #: Since when it had this status, and until when this held.
    since: float
    expires: float


@attrs.define
class _Devices:
    """The devices of one instance, with all that they were."""

    _past: dict[Device, list[_Health]] = attrs.Factory(dict)

    def __iter__(self) -> Iterator[tuple[Device, list[_Health]]]:
        self.expire(trio.current_time())
        for past in self._past.values():
            _forget_old(past, lambda health: health.at)
        return iter(self._past.items())

    def take(self, said: api.NodeWatchResourcesResponse) -> None:
        """Take a message that counts."""
        now = trio.current_time()
        self.expire(now)
        for one in {_name(one): one for one in said.devices}.values():
            holds = one.health_check_timeout_seconds
            message = one.message if len(one.message) <= _LONGEST else one.message[: _LONGEST - len(_CUT)] + _CUT
            self._put(_name(one), _WORDS.get(one.health, _UNKNOWN), message, now, now + (holds if holds > 0 else HOLDS))

    def expire(self, now: float) -> None:
        """Let those be unknown of which nothing was heard in their time."""
        for device, past in self._past.items():
            if past[-1].expires <= now:
                self._put(device, _UNKNOWN, "", past[-1].expires, math.inf)

    def lose(self) -> None:
        """Let all be unknown: nothing is heard of the driver any more."""
        now = trio.current_time()
        self.expire(now)
        for device, past in self._past.items():
            if past[-1].expires < math.inf or past[-1].message:
                self._put(device, _UNKNOWN, "", now, math.inf)

    def _put(self, device: Device, status: str, message: str, at: float, expires: float) -> None:
        past = self._past.setdefault(device, [])
        since = past[-1].since if past and past[-1].status == status else at
        past.append(_Health(at, status, message, since, expires))
        _forget_old(past, lambda health: health.at)


@attrs.define
class _Instance:
    name: str
    #: The services that it has announced, without those that it does not implement.
    services: list[str]
    announced: bool
    devices: _Devices = attrs.Factory(_Devices)
    #: Whether there is a connection, and a task that follows it; and since when both hold.
    connected: bool = False
    followed: bool = False
    ready_since: float = 0.0
    #: The service of the stream that is open, and since when.
    stream: str | None = None
    opened_at: float = 0.0
    #: Whether what came last over that stream cannot be: then the node ends it.
    is_refused: bool = False
    #: When the next stream may be opened.
    next_at: float = 0.0
    #: The newest list that was taken.
    newest: int = 0
    #: What is said of the stream, from when on.
    states: list[tuple[float, str]] = attrs.Factory(lambda: [(-math.inf, "")])

    def say(self, state: str) -> None:
        """Note what is said of the stream from now on."""
        self.states.append((trio.current_time(), state))


class DeviceHealthOracle:
    """What is shown of the devices of a driver is what the instance that is used has said of them."""

    def __init__(self, violated: Callable[[str, str], None], may_show: Callable[[str, float, float], bool]) -> None:
        """Report to ``violated``; ``may_show`` says whether a text is the date of a moment between two times."""
        self._violated = violated
        self._may_show = may_show
        self._instances: dict[Key, _Instance] = {}

    def forget(self) -> None:
        """The daemon ended."""
        self._instances.clear()

    # --- what happens -------------------------------------------------------------------------------------------------

    def registered(self, plugin: Plugin) -> None:
        """An instance was registered."""
        services: list[str] = [service for service in SERVICES if service in plugin.versions]
        self._instances[plugin.socket, plugin.generation] = _Instance(plugin.name, services, bool(services))

    def left(self, plugin: Plugin) -> None:
        """An instance was deregistered."""
        self._instances.pop((plugin.socket, plugin.generation), None)

    def connected(self, key: Key) -> None:
        """There is a connection to an instance."""
        if (instance := self._instances.get(key)) is not None:
            instance.connected = True
            self._begin(instance)

    def disconnected(self, key: Key) -> None:
        """The connection to an instance has ended."""
        if (instance := self._instances.get(key)) is not None:
            instance.connected = False
            self._lose(instance)

    def followed(self, key: Key) -> None:
        """A task follows an instance."""
        if (instance := self._instances.get(key)) is not None:
            instance.followed = True
            self._begin(instance)

    def unfollowed(self, key: Key) -> None:
        """The task that follows an instance has ended."""
        if (instance := self._instances.get(key)) is not None:
            instance.followed = False
            self._lose(instance)

    def _begin(self, instance: _Instance) -> None:
        instance.ready_since = instance.next_at = trio.current_time()

    def _lose(self, instance: _Instance) -> None:
        instance.devices.lose()
        if instance.services:
            instance.say("")

    # --- streams ------------------------------------------------------------------------------------------------------

    def opened(self, key: Key, service: str) -> None:
        """A stream is opened."""
        instance, now = self._instances[key], trio.current_time()
        if instance.stream is not None:
            self._wrong(key, f"is asked by {service} while it is asked by {instance.stream}")
        if [service] != instance.services[:1]:
            self._wrong(key, f"is asked by {service}, and may be asked by {instance.services}, the first of them")
        if now < instance.next_at - EPSILON:
            self._wrong(key, f"is asked by {service} again at {now:g}, and not after {instance.next_at:g}")
        instance.stream, instance.opened_at, instance.is_refused = service, now, False

    def took(self, key: Key, message: bytes) -> None:
        """A message was taken from the stream."""
        instance = self._instances[key]
        try:
            said = api.NodeWatchResourcesResponse.FromString(message)
        except DecodeError:
            said = None
        if said is None or not _counts(said):
            instance.is_refused = True
            instance.say(f"{instance.stream} is refused: ")
            return
        instance.devices.take(said)
        instance.say(str(instance.stream))
        instance.newest = max((number_of(one.message) for one in said.devices), default=instance.newest)

    def ended(self, key: Key, *, unimplemented: bool, failed: bool) -> None:
        """The stream has ended, because the driver does not implement it, or in another way; or failed with all."""
        instance = self._instances.get(key)
        if instance is None:
            return
        service, instance.stream = instance.stream, None
        if failed:
            return
        instance.next_at = trio.current_time() + AGAIN
        if unimplemented:
            instance.services.remove(str(service))
            instance.next_at = trio.current_time()
            instance.say("not implemented")
        elif not instance.is_refused:
            instance.say(f"{service} has ended")

    # --- what is shown ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """See that instances are asked that are to be asked."""
        now = trio.current_time()
        for key, instance in self._instances.items():
            due = max(instance.ready_since, instance.next_at)
            is_ready = instance.connected and instance.followed and instance.services
            if is_ready and instance.stream is None and now > due + TAKEN:
                self._wrong(key, f"is not asked for the health of its devices, and should be since {due:g}")

    def compare_taken(self, key: Key, newest: int, sent_at: float) -> None:
        """Compare what was taken with the ``newest`` list that an instance that runs has sent."""
        instance, now = self._instances.get(key), trio.current_time()
        if instance is None or instance.stream is None or sent_at < instance.opened_at or now <= sent_at + TAKEN:
            return
        if instance.newest != newest:
            self._wrong(key, f"has sent list {newest} at {sent_at:g}, and list {instance.newest} was taken last")

    def compare(self, status: PluginStatus, *, is_used: bool | None) -> None:
        """Compare what is shown of an instance; whether it is used is None if that has just changed."""
        key = status.socket, status.generation
        instance = self._instances.get(key)
        if instance is None or status.state is not StateName.REGISTERED or is_used is None:
            return
        facts = dict(status.facts)
        self._compare_state(key, instance, facts.get("device-health", ""))
        shown = {name.removeprefix(_FACT): text for name, text in facts.items() if name.startswith(_FACT)}
        if not is_used:
            if shown:
                self._wrong(key, f"is not used, and its devices are shown: {shown}")
            return
        self._compare_devices(key, instance, shown)

    def _compare_state(self, key: Key, instance: _Instance, shown: str) -> None:
        _forget_old(instance.states, lambda state: state[0])
        said = [state for _, state in instance.states]
        if not any(shown == state or (state.endswith((" ended", ": ")) and shown.startswith(state)) for state in said):
            self._wrong(key, f"is shown to be asked by {shown!r}, and not as {said}")

    def _compare_devices(self, key: Key, instance: _Instance, shown: Mapping[str, str]) -> None:
        expected = {"/".join(device): past for device, past in instance.devices}
        for name, text in shown.items():
            if name not in expected or not any(self._matches(text, health) for health in expected[name]):
                self._wrong(key, f"has a device {name} that is shown as {text!r}, and was {expected.get(name)}")
        now = trio.current_time()
        for name, past in expected.items():
            if name not in shown and past[0].at < now - SHOWN:
                self._wrong(key, f"has a device {name} that is not shown, and is {past[-1]}")

    def _matches(self, text: str, health: _Health) -> bool:
        parts = _SHOWN.fullmatch(text)
        if parts is None:
            return False
        said = cut(health.message, _LONGEST_SHOWN)
        is_same = (parts[1], parts[2] or "") == (health.status, said)
        return is_same and self._may_show(parts[3], health.since, health.since)

    def _wrong(self, key: Key, words: str) -> None:
        self._violated("device-health", f"{key[0]} generation {key[1]} {words}")


def _forget_old(past: list[P], at: Callable[[P], float]) -> None:
    """Forget what was long ago, and is shown no more: all but what began lately, and what held then."""
    while len(past) > 1 and at(past[1]) < trio.current_time() - SHOWN:
        del past[0]


def _name(one: api.DeviceHealth) -> Device:
    return one.device.pool_name, one.device.device_name


def _counts(said: api.NodeWatchResourcesResponse) -> bool:
    """Whether a message counts: one with too many devices or an impossible name does not."""
    names = {name for one in said.devices for name in _name(one)}
    return len(said.devices) <= _MOST_DEVICES and all(
        0 < len(name) <= _LONGEST_NAME and name.isprintable() for name in names
    )


#: What a script has drivers say of a device, with the number of the list.
LIST: Final = "list "


def number_of(message: str) -> int:
    """Return the number of the list that the message of a device names; 0 if it names none."""
    digits = message.removeprefix(LIST).partition(" ")[0]
    return int(digits) if message.startswith(LIST) and digits.isdigit() else 0
