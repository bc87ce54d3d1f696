"""The options of ``plugind fake`` for DRA drivers, and the commands to them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from ...protocol.handlers.dra import HEALTH_SERVICES
from ...protocol.handlers.dra_health import DeviceReport, DRADeviceHealth
from ...protocol.plugins.info import DRA, DRA_SERVICES
from ..simulation.dra_drivers import USUAL_SERVICES, DRACall, FakeDRADriver
from ..simulation.plugins import Call, now, pid_of
from ..simulation.reactions import Reaction
from .fake_control import DRIVER_REACTIONS, react_to

#: Options of DRA drivers, by their names in the parsed arguments.
ONLY_FOR_DRA = ("serve",)
#: The services that a driver can serve in addition.
_MORE_SERVICES = (*HEALTH_SERVICES, "grpc.health.v1.Health")
#: The calls by their names in commands.
_CALLS = {
    "prepare": DRACall.PREPARE,
    "unprepare": DRACall.UNPREPARE,
    "watch": DRACall.WATCH,
    "check": DRACall.CHECK,
}
_STATUSES = {status.lower(): status for status in DRADeviceHealth}
_USAGE = (
    "the commands are: healthy POOL/DEVICE, unhealthy POOL/DEVICE [TEXT], unknown POOL/DEVICE, gone POOL/DEVICE,"
    f" serving, not-serving, answer CALL, refuse CALL, lack CALL, hang CALL; CALL is all or {', '.join(_CALLS)}"
)

DRA_EPILOG = f"""
DRA drivers:
  A plugin of the type DRAPlugin serves {" and ".join(USUAL_SERVICES)}: at its endpoint, unless another
  process listens there, or with --registrar-only. It prepares any claim. Its commands:
    healthy POOL/DEVICE, unhealthy POOL/DEVICE [TEXT], unknown POOL/DEVICE
                      report this device so from now on, in NodeWatchResources
    gone POOL/DEVICE  do not report it any more
    serving, not-serving
                      say so in the health service of gRPC
    hang CALL         never answer prepare, unprepare, watch or check, or "all"
    refuse CALL       answer it with an error
    lack CALL         answer it as a driver that does not implement it
    answer CALL       answer it again

  plugind fake --type DRAPlugin --name gpu.example.com --socket ./gpu.sock --serve v1.DRAResourceHealth
"""


class CommandedDRADriver(FakeDRADriver):
    """A DRA driver that passes each call to ``record``."""

    #: Gets each call before the answer; assign to change it.
    record: Callable[[Call], None] = staticmethod(lambda _: None)

    def __init__(self, services: Sequence[str]) -> None:
        super().__init__(services)
        #: The report about each device, by pool and name.
        self.reports: dict[str, DeviceReport] = {}

    def note(self, call: DRACall, peer: object, how: Reaction) -> None:
        """Record a call."""
        self.record(Call(now(), str(call), reaction=how, peer_pid=pid_of(peer)))


def add_dra_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that only DRA drivers have."""
    group = parser.add_argument_group("DRA drivers")
    group.add_argument(
        "--serve",
        action="append",
        choices=_MORE_SERVICES,
        help="serve this, too, and announce it unless --version is given; repeatable",
    )


def dra_driver_from(args: argparse.Namespace) -> CommandedDRADriver | None:
    """Return the DRA driver for the arguments; None if the plugin is of another type."""
    return CommandedDRADriver([*USUAL_SERVICES, *(args.serve or ())]) if args.type == DRA else None


def usual_dra_versions(args: argparse.Namespace) -> list[str]:
    """Return the versions that a DRA driver announces: the services that it serves."""
    return [DRA_SERVICES[0], *(service for service in args.serve or () if service in HEALTH_SERVICES)]


def obey(line: str, driver: CommandedDRADriver) -> str:
    """Execute a command, and return the text of the reply."""
    match line.split():
        case ["serving" | "not-serving" as said]:
            driver.serving = said == "serving"
            return f"the driver is {said.replace('-', ' ')}"
        case [word, name, *rest] if word in _STATUSES and "/" in name:
            pool, _, device = name.partition("/")
            driver.reports[name] = DeviceReport(pool, device, _STATUSES[word], " ".join(rest))
            driver.show(*driver.reports.values())
            return f"{name} is {word}"
        case ["gone", name] if name in driver.reports:
            del driver.reports[name]
            driver.show(*driver.reports.values())
            return f"{name} is not reported any more"
        case [how, call] if how in DRIVER_REACTIONS and call in (*_CALLS, "all"):
            return react_to(how, call, _CALLS, hangs=driver.hangs, errors=driver.errors)
        case _:
            return f"unknown command {line.strip()!r}: {_USAGE}"
