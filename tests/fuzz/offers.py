"""Device plugins of a script that are consumed as in life: by a call or by their socket, over real streams of lists.

While the script is played, everything may happen at once; ``offer_checks`` has what happens at rest.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import ClassVar, Final, Literal, assert_never

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.handlers.link import Link
from plugind.actors.simulation.device_directory import MemoryDeviceDirectory
from plugind.actors.simulation.faults import Actor
from plugind.actors.simulation.node import SimulatedNode
from plugind.actors.simulation.plugins import FakePlugin
from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.devices.messages import DevicesSubscribed, DevicesViewMessage, InstanceMessage, ResourceChanged
from plugind.protocol.messages.status import PluginChanged
from plugind.protocol.plugins.devices import DevicesSnapshot
from plugind.protocol.plugins.info import DEVICE, Plugin
from plugind.protocol.plugins.status import StateName
from plugind.tests.fuzz.call_oracle import CallOracle
from plugind.tests.fuzz.crashing_handler import CrashingHandler
from plugind.tests.fuzz.health_oracle import DEADLINE, HealthOracle
from plugind.tests.fuzz.offer_oracle import Offer, OfferedDevices, OfferOracle
from plugind.tests.fuzz.plugs import has_stayed
from plugind.tests.fuzz.script import Fault
from plugind.tests.fuzz.sentinels import RECONCILER_RECOVERY
from plugind.tests.fuzz.trace import Trace

#: Where these plugins call, and the root in which the others of them are found.
DIRECTORY: Final = "/dp"
FOUND: Final = "/found"
RESOURCES: Final = ("maker.com/disk", "maker.com/port")
#: How many changes of resources may wait to be read.
_ROOM: Final = 100_000
#: How many lists come in a flood, and devices in a list.
_FLOOD: Final = 300
_MOST: Final = 4
#: How many plugins a resource has at once, at most.
_AT_ONCE: Final = 3
Way = Literal["call", "socket"]
#: What may happen to the health of a plugin.
_Disturbance = Literal["suspend", "resume", "slow", "refuse", "answer"]
_WAYS: Final[tuple[_Disturbance, ...]] = ("suspend", "suspend", "resume", "slow", "slow", "refuse", "answer", "answer")
#: Seconds after which nothing is to come of what has happened to a plugin: a rescan, and what follows it.
UNDISTURBED: Final = 90.0
#: Seconds until it is known that an actor has crashed: what it leaves is deregistered before.
CRASH_SEEN: Final = 30.0


@attrs.define(eq=False)
class Offers:
    """The device plugins of one script."""

    plugin_type: ClassVar[str] = DEVICE
    _trace: Trace
    _faults: Collection[Fault]
    #: Set before the script is played.
    node: SimulatedNode = attrs.field(init=False)
    #: Returns when an actor crashed last.
    crashed_at: Callable[[], float] = attrs.field(init=False)
    #: Returns when events that were kept back arrived last.
    released_at: Callable[[], float] = attrs.field(init=False)
    oracle: OfferOracle = attrs.field(init=False)
    calls: CallOracle = attrs.field(init=False)
    health: HealthOracle = attrs.field(init=False)
    handler: CrashingHandler = attrs.field(init=False)
    plugins: dict[str, Offer] = attrs.field(init=False, factory=dict)
    #: What is shown of the plugins, by path: the state and the generation.
    states: dict[str, tuple[str, int]] = attrs.field(init=False, factory=dict)
    _changes: trio.MemoryReceiveChannel[DevicesViewMessage] | None = attrs.field(init=False, default=None)
    #: The plugins of which nothing may be shown as changed now.
    untouchable: frozenset[str] = attrs.field(init=False, default=frozenset())
    #: When plugins were deregistered that had only missed checks, as far as was known then.
    _suspects: deque[tuple[float, str]] = attrs.field(init=False, factory=deque)
    _pids: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(2_000_000))

    def __attrs_post_init__(self) -> None:
        self.oracle, self.calls = OfferOracle(self._trace.violated), CallOracle(self._trace.violated)
        self.health = HealthOracle(self._trace.violated, lambda: self._crashed_within(RECONCILER_RECOVERY))
        self.handler = self._new_handler()

    def _new_handler(self) -> CrashingHandler:
        return CrashingHandler(self, self._watch, self._leaving)

    def send_nowait(self, message: InstanceMessage, /) -> None:
        """Pass a message of the handler on to the devices actor of the daemon that runs."""
        self.node.supervisor.internals.devices.inbox.send_nowait(message)

    @property
    def directory(self) -> MemoryDeviceDirectory:
        """The directory in which they call."""
        assert self.node.device_directory is not None, "the script has such a directory"
        return self.node.device_directory

    def shown(self, change: PluginChanged) -> None:
        """A change of a plugin is shown."""
        status = change.plugin
        self.health.shown(status, change.time)
        now = (status.state.value, status.generation)
        before = self.states.get(status.socket)
        if status.socket in self.untouchable and now != before:
            self._trace.violated("follow", f"{status.socket} was {before}, and is {now}, because of another plugin")
        self.states[status.socket] = now

    def look(self) -> None:
        """Read what is shown of resources, and let the oracles judge it."""
        self.health.look()
        self._judge_suspects()
        if self._changes is None:
            writer, self._changes = trio.open_memory_channel[DevicesViewMessage](_ROOM)
            self.node.supervisor.internals.devices.inbox.send_nowait(DevicesSubscribed(writer))
        while self._changes.statistics().current_buffer_used:
            message = self._changes.receive_nowait()
            if isinstance(message, DevicesSnapshot | ResourceChanged):
                resources = message.resources if isinstance(message, DevicesSnapshot) else (message.resource,)
                for resource in resources:
                    if resource.name in RESOURCES:
                        self._trace.line("resource", resource.name, resource.state, [*resource.devices()])
                        self.oracle.look(resource, message.time)

    # --- what happens while the script is played ----------------------------------------------------------------------

    def act(self, chance: random.Random) -> None:
        """Let something happen to a device plugin, to its streams, to the socket on which it calls, or to actors."""
        self.look()
        name = chance.choice(RESOURCES)
        present = self.of(name)
        if not present or (len(present) == 1 and chance.random() < 0.25):
            self.start(name, chance, count=chance.randint(1, _MOST))
            return
        offer = chance.choice(present)
        acts: dict[Callable[[Offer, random.Random], None], int] = {
            self._list_some: 22,
            self._end_stream: 12,
            self._break: 10,
            self._update: 12,
            self._slow: 10,
            self.stop: 8,
            self._call_twice: 8,
            self._disturb_socket: 7,
            self._crash: 15,
        }
        (act,) = chance.choices([*acts], [*acts.values()])
        self._trace.line("offer", act.__name__.strip("_"), offer.path)
        act(offer, chance)

    def start(
        self, resource: str, chance: random.Random, *, count: int, way: Way | None = None, well: bool = False
    ) -> Offer:
        """Let a plugin of ``resource`` start that lists so many devices; one that is ``well`` is never slow."""
        name = resource.rpartition("/")[2]
        way = way or chance.choice(("call", "socket"))
        places = [os.path.join(DIRECTORY if way == "call" else FOUND, f"{name}-{letter}.sock") for letter in "abcd"]
        path = next(place for place in places if place not in self.plugins)
        service = OfferedDevices()
        if not well:
            service.list_delay = chance.choice((0.0, 0.0, 0.0, 1.0, 4.0, 12.0))
            service.options_delay = chance.choice((0.0, 0.0, 0.0, 2.0, 7.0))
        if self.node.directory.exists(path):
            self.node.directory.unlink(path)
        pid = next(self._pids)
        plugged = self.node.plug(path, FakePlugin(DEVICE, resource, ("v1beta1",), serves=[service]), pid=pid)
        offer = self.plugins[path] = Offer(resource, way == "call", pid, plugged, service)
        self.oracle.send_list(offer, chance, count=count, well=well)
        self.call(offer)
        return offer

    def call(self, offer: Offer) -> None:
        """Let a plugin call Register, if it is one that does."""
        if offer.called:
            endpoint = os.path.basename(offer.path)
            identity = self.directory.identify(endpoint)
            self._trace.line("call", offer.path)
            offer.called_at = trio.current_time()
            self.calls.made(self.node.register(endpoint, offer.resource, pid=offer.pid), identity)

    def _list_some(self, offer: Offer, chance: random.Random) -> None:
        """A list, a few, or a flood of them."""
        for _ in range(chance.choice((1, 1, 2, 3, _FLOOD))):
            self.oracle.send_list(offer, chance, count=chance.randint(1, _MOST))

    def _end_stream(self, offer: Offer, chance: random.Random) -> None:
        """The stream ends, now and then between two lists that come at once; or a new one ends at once."""
        service, before = offer.service, chance.random() < 0.5
        error = chance.choice((None, GRPCError(Status.UNAVAILABLE, "no"), GRPCError(Status.INTERNAL, "broken")))
        if before:
            self.oracle.send_list(offer, chance, count=chance.randint(1, _MOST))
        service.end(error)
        service.stream_error = error if chance.random() < 0.3 else None
        if chance.random() < 0.5:
            self.oracle.send_list(offer, chance, count=chance.randint(1, _MOST))

    def _break(self, offer: Offer, chance: random.Random) -> None:
        """Break the connections, in the middle of a list now and then; or close the listener, or open it again."""
        if not offer.plugged.alive:
            self._revive(offer)
            return
        offer.plugged.seconds_per_byte = chance.choice((0.0, 0.0, 0.01))
        offer.trickles = offer.trickles or offer.plugged.seconds_per_byte > 0
        match chance.randrange(4):
            case 0:
                self.oracle.send_list(offer, chance, count=_MOST)
                offer.plugged.reset()
            case 1:
                offer.plugged.half_close()
            case 2:
                offer.plugged.close_listener()
            case _:
                offer.plugged.crash()

    def _revive(self, offer: Offer) -> None:
        if self.node.directory.exists(offer.path):
            offer.plugged.listen()
        else:
            offer.plugged.restart()

    def _update(self, offer: Offer, chance: random.Random) -> None:
        """A plugin comes, with other devices: in the place of another one, or beside it, as in an update."""
        beside = chance.random() < 0.5 and len(self.of(offer.resource)) < _AT_ONCE
        if not beside:
            self.stop(offer, chance)
        self._trace.line("offer", "surge" if beside else "replace", offer.resource)
        self.start(offer.resource, chance, count=chance.randint(1, _MOST))

    def _slow(self, offer: Offer, chance: random.Random) -> None:
        """Its options are slow or an error from now on, its lists come late; and it registers anew."""
        service = offer.service
        service.options_delay, service.list_delay = chance.choice((0.0, 3.0, 6.0)), chance.choice((0.0, 3.0, 12.0))
        service.options_error = chance.choice((None, None, GRPCError(Status.UNKNOWN, "no options")))
        offer.plugged.restart()
        self.call(offer)

    def stop(self, offer: Offer, _chance: random.Random) -> None:
        """Let a plugin stop, and remove its socket."""
        del self.plugins[offer.path]
        offer.plugged.stop()

    def _call_twice(self, offer: Offer, chance: random.Random) -> None:
        """It calls again, also while a call is open; now and then with another socket than before."""
        self.call(offer)
        if chance.random() < 0.5:
            offer.plugged.restart()
        self.call(offer)

    def _disturb_socket(self, _offer: Offer, chance: random.Random) -> None:
        if chance.random() < 0.1:
            self.take()
        else:
            self.directory.remove_socket()

    def _crash(self, offer: Offer, chance: random.Random) -> None:
        """Crash a follow, or the actors on the way of this plugin, one or two at once."""
        self.handler.crash(offer.path)
        if Fault.CRASHES not in self._faults:
            return
        actors: tuple[Actor | Literal["server"], ...] = ("registration", "reconciler", "status", "server")
        for actor in chance.sample(actors, chance.randint(0, 2)):
            self.crash_actor(actor, offer.path)

    def crash_actor(self, actor: Actor | Literal["server"], path: str) -> None:
        """Crash an actor on the way of the plugin at ``path``."""
        if actor == "server":
            self.directory.crash()
        else:
            self.node.crash(actor, path)

    # --- health -------------------------------------------------------------------------------------------------------

    async def disturb_health(self, chance: random.Random) -> None:
        """Let the process of a plugin be suspended or run on, or its checks be slow or refused; and let time pass."""
        self.look()
        if self.plugins:
            offer = chance.choice([*self.plugins.values()])
            service, how = offer.service, chance.choice(_WAYS)
            self._trace.line("health", how, offer.path)
            match how:
                case "suspend":
                    offer.plugged.suspend()
                case "resume":
                    offer.plugged.resume()
                case "slow":
                    service.options_delay = chance.choice((0.0, 1.0, 2.5, 3.5, 8.0))
                case "refuse":
                    service.options_error = GRPCError(chance.choice((Status.INTERNAL, Status.UNIMPLEMENTED)), "no")
                case "answer":
                    service.options_error, service.options_delay = None, 0.0
                case _:
                    assert_never(how)
        for _ in range(chance.choice((0, 0, 1, 2, 5, 12))):
            await trio.sleep(chance.choice((3.0, 4.5, 5.5)))
            self.look()

    def _watch(self, plugin: Plugin, link: Link) -> Link:
        def answered(since: float) -> bool | None:
            """Whether the plugin has answered since.

            An answer at the last moment, or byte by byte, may be too late; that of a process which is suspended may not
            be sent.
            """
            offer = self.plugins.get(plugin.socket)
            process = None if offer is None else offer.plugged.process
            if offer is None or process is None or process.started >= since:
                return None
            service = offer.service
            said = service.asked_at >= since
            late = service.answered_at > since + DEADLINE - EPSILON
            return None if said and (late or offer.trickles or offer.plugged.suspended) else said

        return self.health.watched(plugin, link, answered)

    def _leaving(self, plugin: Plugin) -> None:
        """A plugin is deregistered: not because of its health."""
        offer = self.plugins.get(plugin.socket)
        if offer is not None and self.health.misses(plugin) and self._is_undisturbed(offer, plugin):
            self._suspects.append((trio.current_time(), plugin.socket))

    def _judge_suspects(self) -> None:
        """A crash is known once those have been deregistered that it concerns."""
        while self._suspects and trio.current_time() > self._suspects[0][0] + CRASH_SEEN:
            time, socket = self._suspects.popleft()
            if self.crashed_at() < time - EPSILON:
                self._trace.violated("health", f"{socket} was deregistered at {time:g}, and only missed checks")

    def _is_undisturbed(self, offer: Offer, plugin: Plugin) -> bool:
        """Whether a plugin is registered, and nothing has happened for long that may deregister it."""
        long_ago = trio.current_time() - UNDISTURBED
        return (
            self.states.get(plugin.socket) == (StateName.REGISTERED.value, plugin.generation)
            and not self._crashed_within(UNDISTURBED)
            and self.released_at() < long_ago
            and offer.called_at < long_ago
            and (not offer.called or self.calls.taken is None)
            and has_stayed(offer.plugged, self.node.directory, offer.path, long_ago)
        )

    def _crashed_within(self, seconds: float) -> bool:
        return trio.current_time() - self.crashed_at() < seconds

    def take(self) -> None:
        """Let another process take ``kubelet.sock``."""
        self.directory.take(4711)
        self.calls.took()

    def before_start(self) -> None:
        """The daemon starts again, which it would not on a socket of another process."""
        self.directory.give_back()
        self.calls.taken = None
        self.handler = self._new_handler()
        self.health.forget()
        self._suspects.clear()
        self.states.clear()
        self.oracle.forget(trio.current_time())
        if self._changes is not None:
            self._changes.close()
            self._changes = None

    def of(self, resource: str) -> list[Offer]:
        """Return the plugins of a resource, the first one first."""
        return [offer for offer in self.plugins.values() if offer.resource == resource]
