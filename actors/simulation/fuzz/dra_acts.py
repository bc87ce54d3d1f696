"""The DRA drivers of a script: their services, and the calls that are made to them.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, cast

import attrs
import trio
from google.protobuf.message import Message
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ....protocol import messages as m
from ....protocol.consumer_messages import EventNoted, PluginEvent
from ....protocol.dra_claims import CALL_TIMEOUT, DRAClaim, DRAError
from ....protocol.plugins import DRA, Plugin
from ....protocol.proto import dra_v1_pb2 as v1
from ....protocol.status import PluginStatus
from ...handlers.dra import DRAHandler
from ...handlers.link import Link
from ..dra_drivers import USUAL_SERVICES, DRACall, FakeDRADriver
from ..scheduling import EPSILON
from .dra_oracle import DRAOracle
from .drivers import Driver, Drivers
from .health_oracle import DEADLINE
from .sentinels import RECONCILER_RECOVERY

if TYPE_CHECKING:
    from grpclib.server import Stream

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

#: Seconds until an endpoint is connected to again that listens again.
RECONNECTED: Final = 40.0
#: Seconds until an instance is registered, and what has happened to a connection is shown.
REGISTERED: Final = 5.0
_HEALTH: Final = "grpc.health.v1.Health"


class ScriptedDRADriver(FakeDRADriver):
    """The services of one instance, which knows what it has answered."""

    def __init__(self, services: Collection[str]) -> None:
        super().__init__(services)
        #: When it was asked for its health that it has answered last, when it did so, and whether it serves by that.
        self._checked: tuple[float, float, bool] = (-math.inf, -math.inf, False)
        #: The claims that it has said that it has prepared.
        self.done: set[str] = set()

    async def answer(self, call: DRACall, service: str, stream: Stream[Q, A], make: Callable[[Q], A]) -> None:
        """See :class:`FakeDRADriver`."""
        asked_at, serves = trio.current_time(), self.serving
        await super().answer(call, service, stream, make)
        if call is DRACall.CHECK:
            self._checked = asked_at, trio.current_time(), serves and self.serving

    def prepare(self, request: v1.NodePrepareResourcesRequest) -> v1.NodePrepareResourcesResponse:
        """See :class:`FakeDRADriver`."""
        answer = super().prepare(request)
        self.done.update(uid for uid, said in answer.claims.items() if not said.error)
        return answer

    def passes(self, since: float) -> bool | None:
        """Return whether it has passed a check since then; None if that is not known."""
        if _HEALTH not in self.services:
            # Its connection counts, once it has said so.
            return None
        asked_at, answered_at, serves = self._checked
        if asked_at >= since and answered_at > since + DEADLINE - EPSILON:
            return None
        return asked_at >= since and serves

    def behave(self) -> None:
        """Do what it is asked, at once."""
        for faults in (self.errors, self.hangs, self.delays, self.claim_errors, self.skips, self.adds):
            faults.clear()
        self.serving = True


class _Handler(DRAHandler):
    """The handler, whose checks and instances oracles see, and whose follows a script can crash."""

    def __init__(self, drivers: DRADrivers) -> None:
        super().__init__(status=cast("trio.MemorySendChannel[m.StatusMessage]", _Tap(drivers)), wall=trio.current_time)
        self._of = drivers
        self._crashes = drivers.crashes

    async def register(self, plugin: Plugin, link: Link) -> None:
        """See :class:`DRAHandler`."""
        await super().register(plugin, self._of.watched(plugin, link))
        self._of.oracle.registered(plugin)

    async def follow(self, plugin: Plugin, link: Link) -> None:
        """See :class:`DRAHandler`."""
        await self._crashes.run(plugin.socket, partial(super().follow, plugin, link))

    async def deregister(self, plugin: Plugin) -> None:
        """See :class:`DRAHandler`."""
        self._of.leaving(plugin)
        self._of.oracle.left(plugin)
        await super().deregister(plugin)


@attrs.frozen
class _Tap:
    """Passes on what the handler tells the status actor, and tells the oracle which drivers are gone."""

    _drivers: DRADrivers

    def send_nowait(self, message: m.StatusMessage, /) -> None:
        """Take a message."""
        if isinstance(message, EventNoted) and message.event is PluginEvent.DRIVER_GONE:
            self._drivers.oracle.gone((message.socket, message.generation))
        self._drivers.node.supervisor.internals.status.send_nowait(message)


@attrs.define(eq=False)
class DRADrivers(Drivers[ScriptedDRADriver]):
    """The DRA drivers of one script."""

    oracle: DRAOracle = attrs.field(init=False)
    _handler: _Handler = attrs.field(init=False)
    _serving: trio.CancelScope = attrs.field(init=False, factory=trio.CancelScope)
    _ended: bool = attrs.field(init=False, default=False)
    _claims: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(1))

    plugin_type: ClassVar[str] = DRA
    names: ClassVar[tuple[str, ...]] = ("gpu.lab.com", "nic.lab.com")
    found: ClassVar[str] = "/registry"
    directory: ClassVar[str] = "/claims"

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.oracle = DRAOracle(self._trace.violated)
        self._handler = _Handler(self)

    @property
    def handler(self) -> DRAHandler:
        """See :class:`Drivers`."""
        return self._handler

    async def serve(self) -> None:
        """Let the handler of each daemon tell which drivers are gone."""
        while not self._ended:
            with self._serving:
                await self._handler.serve()
            self._serving = trio.CancelScope()

    def end(self) -> None:
        """Tell no more which drivers are gone: the script is over."""
        self._ended = True
        self._serving.cancel()

    def before_start(self) -> None:
        """See :class:`Drivers`."""
        super().before_start()
        self.oracle.forget()
        self._handler = _Handler(self)
        self._serving.cancel()

    def watched(self, plugin: Plugin, link: Link) -> Link:
        """Return ``link``, whose connections and checks oracles see."""

        def passes(since: float) -> bool | None:
            driver = self.drivers.get(plugin.socket)
            process = None if driver is None else driver.process.process
            is_same = driver is not None and process is not None and process.started < since
            return driver.service.passes(since) if driver is not None and is_same else None

        return self.health.watched(plugin, link, passes, self.oracle.connected, self.oracle.disconnected)

    # --- the services -------------------------------------------------------------------------------------------------

    def new_service(self, name: str, chance: random.Random) -> ScriptedDRADriver:  # noqa: ARG002
        """See :class:`Drivers`."""
        return ScriptedDRADriver([*USUAL_SERVICES, *([_HEALTH] if chance.random() < 0.7 else [])])

    def versions(self, number: int) -> tuple[str, ...]:
        """See :class:`Drivers`."""
        return USUAL_SERVICES[number % 2 :]

    def misbehave(self, driver: Driver[ScriptedDRADriver], chance: random.Random) -> None:
        """See :class:`Drivers`."""
        service, call = (
            driver.service,
            chance.choice((DRACall.PREPARE, DRACall.UNPREPARE, DRACall.CHECK, DRACall.CHECK)),
        )
        match chance.randrange(7):
            case 0:
                service.serving = not service.serving
            case 1:
                service.hangs.add(call)
            case 2:
                service.errors[call] = GRPCError(chance.choice((Status.INTERNAL, Status.UNAVAILABLE)), "not now")
            case 3 | 4:
                service.delays[call] = chance.choice((0.5, 1.0, 2.5, 3.5, 8.0, 44.0, 46.0))
            case 5:
                service.skips.add(self._newest_claim())
            case _:
                service.claim_errors[self._newest_claim()] = "no such device"

    def _newest_claim(self) -> str:
        number = next(self._claims)
        self._claims = itertools.chain((number,), self._claims)
        return f"claim-{number}"

    def behave(self, driver: Driver[ScriptedDRADriver]) -> None:
        """See :class:`Drivers`."""
        driver.service.behave()

    def is_asked(self, driver: Driver[ScriptedDRADriver]) -> bool:
        """See :class:`Drivers`."""
        return _HEALTH in driver.service.services

    async def check_at_rest(self, name: str, chance: random.Random) -> None:
        """See :class:`Drivers`."""
        await self._check_second(name, chance)
        await self._check_gone(name, chance)
        await self._check_call(name)

    async def _check_second(self, name: str, chance: random.Random) -> None:
        """A second instance registers though its endpoint is late; another one is used while it is not connected."""
        second = self.start(name, chance, late=20.0)
        await self.let_pass(REGISTERED)
        if not self.is_registered(second):
            self._trace.violated("drivers", f"{second.path} is not registered, and only its endpoint is late")
        await self.let_pass(RECONNECTED)
        await self._prepare(name, [DRAClaim("lab", f"claim-{next(self._claims)}", "one")], undone=True)
        second.process.close_listener()
        await self.let_pass(REGISTERED)
        second.process.listen()
        await self.let_pass(RECONNECTED)

    async def _check_gone(self, name: str, chance: random.Random) -> None:
        """A driver is gone when no instance was connected for 30 s, though it registers anew: the oracle knows when."""
        for seconds in (chance.choice((1.0, 20.0, 29.0)), chance.choice((31.0, 70.0))):
            for driver in self.of(name):
                driver.process.close_listener()
            await self.let_pass(seconds / 2)
            for driver in self.of(name):
                if driver.process is not driver.registrar:
                    driver.registrar.restart()
            await self.let_pass(seconds / 2)
            for driver in self.of(name):
                driver.process.listen()
            await self.let_pass(RECONNECTED)

    async def _check_call(self, name: str) -> None:
        """A call that hangs ends at its deadline."""
        for driver in self.of(name):
            driver.service.hangs.add(DRACall.PREPARE)
        await self._prepare(name, [DRAClaim("lab", "a claim at rest", "one")], undone=False)
        for driver in self.of(name):
            self.behave(driver)

    # --- calls --------------------------------------------------------------------------------------------------------

    def ask(self, driver: Driver[ScriptedDRADriver], chance: random.Random) -> None:
        """Let somebody have claims prepared, or have that undone."""
        claims = [DRAClaim("lab", f"claim-{next(self._claims)}", "one") for _ in range(chance.choice((1, 1, 2)))]
        self.background.start_soon(partial(self._prepare, driver.name, claims, undone=chance.random() < 0.5))

    async def _prepare(self, name: str, claims: list[DRAClaim], undone: bool) -> None:
        uids, used = {claim.uid for claim in claims}, self.oracle.active(name)
        prepared = await self._within_limit(uids, lambda: self._handler.driver(name).prepare(claims))
        if prepared is None:
            return
        by = {driver.path for driver in self._all if uids <= driver.service.done}
        if prepared.keys() != uids or len(by) != 1 or (used is not None and used[0] not in by):
            self._trace.violated("claims", f"{sorted(uids)} are prepared: {prepared}; by {sorted(by)}, used is {used}")
        if undone:
            await self._within_limit(uids, lambda: self._handler.driver(name).unprepare(claims))

    async def _within_limit(self, uids: set[str], call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call; return None if it is refused, in time and with a text."""
        answer = None
        with trio.move_on_after(CALL_TIMEOUT + EPSILON) as scope:
            try:
                answer = await call()
            except DRAError as error:
                self._trace.line("claims", sorted(uids), "refused", error)
        if scope.cancelled_caught:
            self._trace.violated("claims", f"the call about {sorted(uids)} has no answer in {CALL_TIMEOUT:g} s")
        return answer

    # --- what is shown ------------------------------------------------------------------------------------------------

    def judge(self, status: PluginStatus, time: float) -> None:
        """See :class:`Drivers`."""

    def compare(self) -> None:
        """See :class:`Drivers`."""
        self.oracle.look()
        if self.crashed_within(RECONCILER_RECOVERY):
            return
        displaced = self.displaced()
        for status in self.statuses.values():
            self.oracle.compare(status, has_role=status.name not in displaced)
