"""The devices actor, which owns the resources of the node and the state of each device.

It takes the messages of followers and readers, and waits for nothing else: a
:class:`~plugind.actors.devices.state.ResourceWriter` stores what must survive a restart. The decisions are in
``plugind.protocol.devices.resources``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import assert_never

import attrs
import trio

from ...protocol.devices import resources as r
from ...protocol.devices.messages import (
    DevicesAsked,
    DevicesMessage,
    DevicesSubscribed,
    DevicesUnsubscribed,
    DevicesViewMessage,
    ResourceChanged,
    ResourcesRead,
)
from ...protocol.devices.shortfalls import Shortfall, Shortfalls
from ...protocol.logs.lines import Level, Logger
from ...protocol.messages.config import ExpectationChanged
from ...protocol.messages.status import Lagged
from ...protocol.plugins.devices import DevicesSnapshot, Key, ResourceState, ResourceStatus
from ...protocol.status.metrics import ByResource, ResourceLabels
from ...protocol.text import first_few
from ...protocol.values import record
from ..messaging.mailbox import Audience, offer
from .inbox import DevicesInbox
from .offers import Offers
from .state import ResourceWriter

#: How many messages are taken before other tasks run.
BATCH = 64
_MISSING_ADVICE = "see whether the device is in the machine, and the log of its plugin if it has one"
_SHORT_ADVICE = "see 'plugind devices', and the log of a plugin; or change expected_devices if they were taken out"


@record
class DevicesMemory:
    """What survives a crash of the actor."""

    #: Empty until :func:`read` has read the store.
    resources: r.Resources = attrs.field(factory=r.Resources)
    labels: ResourceLabels = attrs.field(factory=ResourceLabels)
    #: How often the streams of plugins have ended.
    streams_ended: ByResource = attrs.field(
        default=attrs.Factory(lambda self: ByResource(self.labels), takes_self=True)
    )
    audience: Audience[DevicesViewMessage] = attrs.field(factory=lambda: Audience[DevicesViewMessage](Lagged()))
    #: The changes that were not sent to the subscribers: the last status of a resource that is gone, or None.
    changed: dict[str, ResourceStatus | None] = attrs.field(factory=dict)
    offers: Offers = attrs.field(factory=Offers)
    #: The resources with fewer healthy devices than expected.
    shortfalls: Shortfalls = attrs.field(factory=Shortfalls)


async def read(writer: ResourceWriter, memory: DevicesMemory) -> None:
    """Read the resources that a restarted daemon waits for.

    Raises:
      ConfigError: if the store is another daemon's.
    """
    memory.resources = r.Resources(await writer.open(), now=trio.current_time())


async def run(inbox: DevicesInbox, writer: ResourceWriter, memory: DevicesMemory, log: Logger) -> None:
    """Own the resources until cancelled. The store must have been opened before."""
    inbox.problem = lambda: writer.problem
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run, lambda resources: inbox.send_nowait(ResourcesRead(tuple(resources))))
        actor = _Devices(memory.resources, memory, writer, log)
        actor.start(inbox.start_again())
        await _take_all(actor, inbox)


async def _take_all(actor: _Devices, inbox: DevicesInbox) -> None:
    while True:
        actor.publish()
        with trio.move_on_at(actor.next_end):
            actor.take(await inbox.receive())
        for _ in range(BATCH):
            try:
                actor.take(inbox.receive_nowait())
            except trio.WouldBlock:
                break
        actor.pass_time()


class _Devices:
    def __init__(self, resources: r.Resources, memory: DevicesMemory, writer: ResourceWriter, log: Logger) -> None:
        self._resources = resources
        self._memory = memory
        self._writer = writer
        self._log = log

    @property
    def next_end(self) -> float:
        return min(self._resources.next_end, self._memory.shortfalls.next_end)

    def start(self, present: Iterable[Key]) -> None:
        """Begin with the plugins that are ``present``; remove others, which left during a crash."""
        self.carry_out(self._resources.keep_only(present, trio.current_time()))
        self._memory.offers.tell_all(self._resources)

    def take(self, message: DevicesMessage) -> None:
        match message:
            case DevicesAsked():
                offer(message.reply, self._snapshot())
            case DevicesSubscribed():
                self.publish()  # The snapshot includes these changes, so they must not be sent after it.
                self._memory.audience.add(message.subscriber, self._snapshot())
            case DevicesUnsubscribed():
                self._memory.audience.remove(message.subscriber)
            case ExpectationChanged():
                self._memory.shortfalls.expect(message.devices)
            case ResourcesRead():
                self.carry_out(self._resources.expect(message.resources, trio.current_time()))
            case _:
                self.carry_out(self._resources.handle(message, trio.current_time()))

    def pass_time(self) -> None:
        if self._resources.next_end <= trio.current_time():
            self.carry_out(self._resources.pass_time(trio.current_time()))
        for found in self._memory.shortfalls.judge(self._resources.healthy, trio.current_time()):
            self._note_shortfall(found)

    def carry_out(self, effects: Iterable[r.Effect]) -> None:
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: r.Effect) -> None:
        match effect:
            case r.Changed():
                self._memory.changed[effect.name] = None
            case r.Remember() | r.Forget():
                self._writer.keep(effect)
            case r.Gone():
                self._memory.changed[effect.name] = ResourceStatus(
                    effect.name, ResourceState.GONE, trio.current_time(), effect.reason
                )
                self._log.event(Level.WARNING, "resource is gone", name=effect.name, reason=effect.reason)
            case r.StreamEnded():
                self._memory.streams_ended.count(effect.name)
                self._warn("device plugin is lost", effect)
            case r.OptionsDiffer():
                self._warn("device plugin names other options", effect)
            case r.Refused():
                self._warn("device plugin is not followed", effect)
            case r.Serves():
                self._note_serves(effect)
            case r.DevicesTurned():
                self._note_turned(effect)
            case _:
                assert_never(effect)

    def _warn(self, text: str, effect: r.OptionsDiffer | r.StreamEnded | r.Refused) -> None:
        self._log.event(Level.WARNING, text, name=effect.name, socket=effect.socket, reason=effect.reason)

    def _note_serves(self, effect: r.Serves) -> None:
        note = partial(self._log.event, name=effect.name, socket=effect.socket, capacity=effect.capacity)
        note(Level.INFO, "devices are listed", allocatable=effect.allocatable)
        if effect.had is not None:
            text = "fewer devices are listed than before the restart"
            note(Level.WARNING, text, before=effect.had, advice=_MISSING_ADVICE)

    def _note_turned(self, effect: r.DevicesTurned) -> None:
        turned = effect.turned
        note = partial(self._log.event, name=effect.name, socket=effect.socket)
        if turned.unhealthy:
            note(Level.WARNING, "devices turned unhealthy", devices=first_few(turned.unhealthy))
        if turned.healthy:
            note(Level.INFO, "devices turned healthy", devices=first_few(turned.healthy))
        if turned.removed:
            text = "devices are no longer listed"
            note(Level.WARNING, text, devices=first_few(turned.removed), advice=_MISSING_ADVICE)
        if turned.added:
            note(Level.INFO, "more devices are listed", devices=first_few(turned.added))

    def _note_shortfall(self, found: Shortfall) -> None:
        note = partial(self._log.event, name=found.name, expected=found.expected, healthy=found.healthy)
        if found.is_over:
            note(Level.INFO, "expected devices are there again")
            return
        status = self._resources.status(found.name)
        sick = () if status is None else tuple(device.id for device in status.devices() if not device.healthy)
        note(
            Level.WARNING,
            "expected devices are missing",
            socket=None if status is None else status.socket,
            listed=0 if status is None else status.capacity,
            unhealthy=first_few(sick) or None,
            reason="there is no such resource" if status is None else status.reason,
            advice=_SHORT_ADVICE,
        )

    def _snapshot(self) -> DevicesSnapshot:
        counts: dict[str, tuple[int, int]] = {}
        for name, (healthy, unhealthy) in self._resources.counts().items():
            label = self._memory.labels.label(name)
            before = counts.get(label, (0, 0))
            counts[label] = before[0] + healthy, before[1] + unhealthy
        return DevicesSnapshot(
            trio.current_time(),
            tuple(self._resources.shown()),
            self._writer.problem,
            self._writer.failures,
            counts,
            dict(self._memory.streams_ended.counts),
        )

    def publish(self) -> None:
        """Send the changes to the subscribers, and a last message to those that lag too far behind."""
        changed, self._memory.changed = self._memory.changed, {}
        self._memory.offers.tell(changed, self._resources)
        audience = self._memory.audience
        if audience.subscribers:
            for name, last in changed.items():
                status = self._resources.status(name) or last
                if status is not None:
                    audience.tell(ResourceChanged(trio.current_time(), status), self._log)
        audience.tell_lagging()
