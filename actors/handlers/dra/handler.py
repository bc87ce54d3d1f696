"""The handler of drivers for dynamic resource allocation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, NoReturn

import trio

from ....protocol.errors import ValidationError
from ....protocol.handlers.dra import DRAConfig, DriverGone, Drivers, Key, key_of
from ....protocol.handlers.dra_claims import check_known
from ....protocol.logs.lines import timestamp
from ....protocol.messages.consumers import CallEnded, CallsEnded, EventNoted, PluginEvent
from ....protocol.messages.status import StatusMessage
from ....protocol.plugins.info import InstancePolicy, Plugin, choose_dra_service
from ...messaging.mailbox import report
from ..instances import Instances
from ..link import Link

if TYPE_CHECKING:
    from .calls import DRADriver
    from .driver import DRAFollower

#: Seconds for which changes to report by the other instances of a driver are collected.
JOINED = 0.5
#: How many formatted times are cached.
_DATES = 4096


class DRAHandler:
    """Accepts DRA drivers that serve a service known to this node, and keeps a connection to each instance.

    Rolling updates run two instances of a driver at a time, each on its own endpoint. The newest connected instance is
    active, or the newest one if none is connected.
    """

    instances = InstancePolicy.NEWEST

    def __init__(
        self,
        config: DRAConfig | None = None,
        *,
        status: trio.MemorySendChannel[StatusMessage] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Report gone drivers and call durations to ``status``, the status actor; ``wall`` returns Unix time."""
        self._config = DRAConfig() if config is None else config
        self._status = status
        self._wall = wall
        self._clock = lru_cache(_DATES)(self._date)
        self.drivers = Instances()
        self._states = Drivers(self._config.gone_after)
        self._followers: dict[Key, DRAFollower] = {}
        #: The drivers whose number of connected instances has changed, and when their other instances report that.
        self._news: set[str] = set()
        self._report_at = math.inf
        #: Set when :meth:`serve` must wake up before ``_waits_until``.
        self._sooner = trio.Event()
        self._waits_until = 0.0

    # --- the methods of a handler ---

    async def validate(self, plugin: Plugin) -> None:
        """Choose the service, and check that the endpoint is the driver's own.

        Raises:
          ValidationError: if no known service is offered, or another instance has the same endpoint; the text is the
            kubelet's, and names the socket of the other instance.
        """
        try:
            choose_dra_service(plugin.versions)
        except ValidationError as error:
            raise ValidationError(
                f"invalid supported gRPC versions of DRA driver plugin {plugin.name} at endpoint {plugin.endpoint}: "
                f"{error}",
                cause=str(error),
            ) from error
        other = self.drivers.other_at_endpoint(plugin)
        if other is not None:
            raise ValidationError(
                f"endpoint {plugin.endpoint} already registered for DRA driver plugin {plugin.name} "
                f"(by the socket {other.socket})"
            )

    async def register(self, plugin: Plugin, link: Link) -> None:
        """Keep the instance as the newest of its driver. The connection is made in the background."""
        # The import is late: a node without DRA drivers does not load the module.
        from .driver import DRAFollower

        self.drivers.add(plugin)
        self._states.add(plugin, trio.current_time())
        services = self._config.health_services(plugin.versions)
        self._followers[key_of(plugin)] = DRAFollower(plugin, link, self._states, self._changed, self._clock, services)
        # Connected instances come first until this one is connected.
        link.role(usable=False)
        # The new instance may be the active one from now on.
        self._changed(plugin.name)

    async def follow(self, plugin: Plugin, link: Link) -> None:  # noqa: ARG002 - register was given the same link
        """Keep a connection to the instance, and report its health."""
        await self._followers[key_of(plugin)].run()

    async def deregister(self, plugin: Plugin) -> None:
        """Drop the instance; other instances of its driver stay."""
        self.drivers.remove(plugin)
        self._followers.pop(key_of(plugin), None)
        self._states.remove(plugin, trio.current_time())
        self._changed(plugin.name)

    async def observe(self, plugin: Plugin, link: Link) -> None:
        """Keep a connection to an instance that another consumer registers, and report whether there is one."""
        from .observer import DRAObserver

        await DRAObserver(plugin, link, self._clock).run()

    # --- calls ---

    def driver(self, name: str) -> DRADriver:
        """Return the driver of that name, to call it.

        Raises:
          DRADriverUnknownError: if no instance of it is registered.
        """
        from .calls import DRADriver

        self._used(name)
        return DRADriver(name, lambda: self._used(name), self._count)

    def _used(self, name: str) -> DRAFollower:
        used = self._states.active(name) if name else None
        check_known(name, is_known=used is not None)
        assert used is not None
        return self._followers[key_of(used)]

    async def _count(self, call: CallEnded) -> None:
        # A caller can keep a driver after the node has ended.
        with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
            await self._tell(CallsEnded((call,)))

    # --- drivers that are gone, and the facts that instances share ---

    async def serve(self) -> NoReturn:
        """Report drivers that are gone and numbers of connected instances, forever. It can be run again."""
        while True:
            self._sooner, self._waits_until = trio.Event(), self._next_time()
            with trio.move_on_at(self._waits_until):
                await self._sooner.wait()
            if self._report_at <= trio.current_time():
                self._report_news()
            for gone in self._states.take_gone(trio.current_time()):
                await self._tell(_event(gone, self._config.gone_after))

    def _next_time(self) -> float:
        return min(self._report_at, self._states.next_due)

    def _report_news(self) -> None:
        news, self._news, self._report_at = self._news, set(), math.inf
        for plugin in chain.from_iterable(map(self._states.instances, sorted(news))):
            self._followers[key_of(plugin)].report()

    def _changed(self, name: str) -> None:
        """Have the instances of a driver report the number of connected ones; joins changes that come together."""
        self._news.add(name)
        self._report_at = min(self._report_at, trio.current_time() + JOINED)
        self._look_at_times()

    def _look_at_times(self) -> None:
        if self._next_time() < self._waits_until:
            self._sooner.set()

    async def _tell(self, message: CallsEnded | EventNoted) -> None:
        if self._status is not None:
            await report(self._status, message)

    def _date(self, at: float) -> str:
        return timestamp(self._wall() - trio.current_time() + at)


def _event(gone: DriverGone, after: float) -> EventNoted:
    words = f"{gone.plugin.name} has had no connected instance for {after:g} s"
    text = f"{words} (registered instances: {gone.instances})"
    return EventNoted(gone.plugin, PluginEvent.DRIVER_GONE, text, gone.since + after)
