"""The services of the DRA drivers of a script, which know what they have answered, and tell the health of devices."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio
from google.protobuf.message import Message

from plugind.actors.simulation.dra_drivers import USUAL_SERVICES, DRACall, FakeDRADriver
from plugind.protocol.handlers.dra_health import MAX_DEVICES, MAX_NAME, DeviceReport, DRADeviceHealth
from plugind.protocol.proto import dra_health_v1_pb2 as health_v1
from plugind.protocol.proto import dra_v1_pb2 as v1
from plugind.protocol.proto.health_v1_pb2 import HealthCheckRequest, HealthCheckResponse
from plugind.tests.fuzz.device_health_oracle import LIST, SERVICES, number_of
from plugind.tests.fuzz.health_oracle import AnsweredCheck

if TYPE_CHECKING:
    from grpclib.server import Stream

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

CHECKED: Final = "grpc.health.v1.Health"
#: A number that no version of gRPC's health service, or of that of devices, knows.
NONSENSE: Final = 99
#: Seconds for which a word of a driver holds: none named, and some. Those who repeat themselves do so more often.
_HOLDS: Final = (0.0, -1.0, 5.0, 12.0, 40.0, 3600.0)
_LASTS: Final = (0.0, -1.0, 25.0, 3600.0)
#: The health services that an instance announces, and those of them that it does not implement.
_KINDS: Final[tuple[tuple[tuple[str, ...], frozenset[str]], ...]] = (
    ((), frozenset()),
    (SERVICES[:1], frozenset()),
    (SERVICES[:1], frozenset()),
    (SERVICES[1:], frozenset()),
    (SERVICES, frozenset()),
    (SERVICES, frozenset(SERVICES[:1])),
    (SERVICES[1:], frozenset(SERVICES)),
)
#: How many kinds of nonsense there are.
KINDS: Final = 5
_POOLS: Final = ("pool-0", "pool-1")
_DEVICES: Final = 3


@attrs.frozen
class _Sent:
    """The newest list that was sent, and when."""

    number: int
    at: float


class ScriptedDRADriver(FakeDRADriver):
    """The services of one instance."""

    def __init__(self, services: Collection[str], announced: Collection[str] = ()) -> None:
        super().__init__(services)
        #: The services of health that it announces.
        self.announced = tuple(announced)
        #: The newest check of its health that it has answered.
        self._checked = AnsweredCheck()
        #: The claims that it has said that it has prepared, and the calls that it has answered wrongly.
        self.done: set[str] = set()
        self.misstated: set[tuple[DRACall, str]] = set()
        #: Whether its health service, and that of its devices, answer with a number that means nothing.
        self.babbles = self.babbles_of_devices = False
        #: The newest list that it has sent; None if that cannot be told from others.
        self.newest_sent: _Sent | None = None
        #: Whether it says the same again and again.
        self.repeats = False
        self._numbers = itertools.count(1)
        #: What it has told last, and what it has told last that can be.
        self._reported: tuple[DeviceReport, ...] = ()
        self._possible: tuple[DeviceReport, ...] = ()

    # --- its health, and claims ---------------------------------------------------------------------------------------

    async def answer(self, call: DRACall, service: str, stream: Stream[Q, A], make: Callable[[Q], A]) -> None:
        """See :class:`FakeDRADriver`."""
        asked_at = trio.current_time()
        await super().answer(call, service, stream, make)
        if call is DRACall.CHECK:
            self._checked = max(self._checked, AnsweredCheck(asked_at, trio.current_time(), self._serves))

    @property
    def _serves(self) -> bool:
        return self.serving and not self.babbles

    def serving_status(self, request: HealthCheckRequest) -> HealthCheckResponse:
        """See :class:`FakeDRADriver`."""
        if not self.babbles:
            return super().serving_status(request)
        return HealthCheckResponse.FromString(bytes((1 << 3, NONSENSE)))

    def prepare(self, request: v1.NodePrepareResourcesRequest) -> v1.NodePrepareResourcesResponse:
        """See :class:`FakeDRADriver`."""
        answer = super().prepare(request)
        self.done.update(uid for uid, said in answer.claims.items() if not said.error)
        self._judge(DRACall.PREPARE, request.claims, {uid: said.error for uid, said in answer.claims.items()})
        return answer

    def unprepare(self, request: v1.NodeUnprepareResourcesRequest) -> v1.NodeUnprepareResourcesResponse:
        """See :class:`FakeDRADriver`."""
        answer = super().unprepare(request)
        self._judge(DRACall.UNPREPARE, request.claims, {uid: said.error for uid, said in answer.claims.items()})
        return answer

    def _judge(self, call: DRACall, claims: Iterable[v1.Claim], errors: Mapping[str, str]) -> None:
        asked = {claim.uid for claim in claims}
        if errors.keys() != asked or any(errors.values()):
            self.misstated |= {(call, uid) for uid in asked}

    def passes(self, since: float, suspended_at: float = math.inf) -> bool | None:
        """See :class:`CheckedService`. Without a health service its connection counts, once it has said so."""
        return self._checked.passes(since, suspended_at) if CHECKED in self.services else None

    def behave(self) -> None:
        """Do what it is asked, at once."""
        for faults in (self.errors, self.hangs, self.delays, self.claim_errors, self.skips, self.adds):
            faults.clear()
        self.serving, self.babbles = True, False
        if self._reported is not self._possible:
            self.babbles_of_devices = False
            self.tell(self._possible)

    # --- the health of its devices ------------------------------------------------------------------------------------

    def health_message(self, reports: Iterable[DeviceReport]) -> health_v1.NodeWatchResourcesResponse:
        """See :class:`FakeDRADriver`."""
        message = super().health_message(reports)
        if self.babbles_of_devices and message.devices:
            message.devices[0].MergeFromString(bytes((2 << 3, NONSENSE)))
        return message

    def sent(self, reports: Sequence[DeviceReport]) -> None:
        """See :class:`FakeDRADriver`."""
        number = max((number_of(report.message) for report in reports), default=0)
        self.newest_sent = _Sent(number, trio.current_time()) if number else None

    def tell(self, reports: Iterable[DeviceReport]) -> None:
        """Tell the health of these devices, as the next list; its number is in each message."""
        self._possible = self._tell(reports)

    def _tell(self, reports: Iterable[DeviceReport]) -> tuple[DeviceReport, ...]:
        number, self._reported = next(self._numbers), tuple(reports)
        self.show(
            *(attrs.evolve(report, message=f"{LIST}{number} {report.message}".strip()) for report in self._reported)
        )
        return self._reported

    def repeat(self) -> None:
        """Tell once more what was told last."""
        self._tell(self._reported)

    def tell_anew(self, chance: random.Random, holds: Sequence[float] = _HOLDS) -> None:
        """Tell the health of some devices."""
        self.babbles_of_devices = False
        self.tell(_devices(chance, holds))

    def flood(self, chance: random.Random) -> None:
        """Tell more than anybody reads."""
        for _ in range(chance.choice((5, 80, 300))):
            self.tell_anew(chance)

    def tell_nonsense(self, chance: random.Random, kind: int) -> None:
        """Tell what cannot be, or what means nothing: one of :data:`KINDS`."""
        well, *_ = reports = [*_devices(chance, _HOLDS), DeviceReport("pool-0", "gpu-0", DRADeviceHealth.HEALTHY)]
        match kind:
            case 0:
                self.babbles_of_devices = True
                self._tell(reports)
            case 1:
                self._tell([*reports, attrs.evolve(well, device=chance.choice(("", "x" * (MAX_NAME + 1), "gpu\n0")))])
            case 2:
                self._tell([*reports, attrs.evolve(well, pool="")])
            case 3:
                self._tell([*reports, *(attrs.evolve(report, status=DRADeviceHealth.UNHEALTHY) for report in reports)])
            case _:
                self._tell(
                    DeviceReport("pool", f"gpu-{number}", DRADeviceHealth.HEALTHY) for number in range(MAX_DEVICES + 1)
                )


def new_service(chance: random.Random) -> ScriptedDRADriver:
    """Return the services of a new instance, which is well."""
    checked = [CHECKED] if chance.random() < 0.7 else []
    announced, refused = chance.choice(_KINDS)
    service = ScriptedDRADriver([*USUAL_SERVICES, *checked, *announced], announced)
    service.refused_services |= refused
    service.tell_anew(chance, _LASTS)
    return service


def telling() -> ScriptedDRADriver:
    """Return the services of a new instance that tells the health of its devices, by the older service only."""
    service = ScriptedDRADriver([*USUAL_SERVICES, *SERVICES], SERVICES)
    service.refused_services.add(SERVICES[0])
    return service


def _devices(chance: random.Random, holds: Sequence[float]) -> Iterator[DeviceReport]:
    for number, pool in itertools.product(range(_DEVICES), _POOLS):
        if chance.random() < 0.6:
            words = chance.choice(("", "ECC", "it is hot " * 200))
            yield DeviceReport(pool, f"gpu-{number}", chance.choice([*DRADeviceHealth]), words, chance.choice(holds))
