"""The options of ``plugind fake`` for CSI drivers, and the commands to them."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ...protocol.plugins.info import CSI
from ..simulation.csi_drivers import CSICall, FakeCSIDriver
from ..simulation.plugins import Call, now, pid_of
from ..simulation.reactions import Reaction
from .fake_control import DRIVER_REACTIONS, react_to

#: Options of CSI drivers, by their names in the parsed arguments.
ONLY_FOR_CSI = ("node_id", "max_volumes", "topology", "vendor_version")
#: The calls by their names in commands.
_CALLS = {
    "plugin-info": CSICall.PLUGIN_INFO,
    "plugin-capabilities": CSICall.PLUGIN_CAPABILITIES,
    "probe": CSICall.PROBE,
    "node-capabilities": CSICall.NODE_CAPABILITIES,
    "node-info": CSICall.NODE_INFO,
}
_USAGE = (
    "the commands are: ready, not-ready, node-id [ID], max-volumes N, topology [KEY=VALUE...], answer CALL,"
    f" refuse CALL, lack CALL, hang CALL; CALL is all or {', '.join(_CALLS)}"
)

DRIVERS_EPILOG = """
CSI drivers:
  A plugin of the type CSIPlugin serves csi.v1.Identity and csi.v1.Node: at its endpoint, unless another process listens
  there, or with --registrar-only. Its commands:
    not-ready, ready  say so when Probe is called
    node-id [ID]      say another id of the node, or none, when NodeGetInfo is called
    max-volumes N     say another number of volumes at most
    topology [KEY=VALUE...]
                      say another topology
    hang CALL         never answer plugin-info, plugin-capabilities, probe, node-capabilities or node-info, or "all"
    refuse CALL       answer it with an error
    lack CALL         answer it as a driver that does not implement it
    answer CALL       answer it again

  plugind fake --type CSIPlugin --name csi.example.com --socket ./csi.sock --node-id node-7 --control ./csi.control
  echo not-ready > ./csi.control
"""


class CommandedDriver(FakeCSIDriver):
    """A CSI driver that passes each call to ``record``."""

    #: Gets each call before the answer; assign to change it.
    record: Callable[[Call], None] = staticmethod(lambda _: None)

    def note(self, call: CSICall, peer: object, how: Reaction) -> None:
        """Record a call."""
        self.record(Call(now(), str(call), reaction=how, peer_pid=pid_of(peer)))


def add_driver_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that only CSI drivers have."""
    group = parser.add_argument_group("CSI drivers")
    group.add_argument("--node-id", metavar="ID", help="what it calls the node (default: node-1)")
    group.add_argument("--max-volumes", type=int, metavar="N", help="volumes that the node takes; 0 sets no limit")
    group.add_argument(
        "--topology", action="append", metavar="KEY=VALUE", type=_segment, help="where the node is, repeatable"
    )
    group.add_argument("--vendor-version", metavar="V", help="the driver's own version (default: 1.0.0)")


def driver_from(args: argparse.Namespace) -> CommandedDriver | None:
    """Return the CSI driver for the arguments; None if the plugin is of another type."""
    if args.type != CSI:
        return None
    driver = CommandedDriver(args.name, max_volumes=args.max_volumes or 0, topology=dict(args.topology or ()))
    driver.node_id = driver.node_id if args.node_id is None else args.node_id
    driver.vendor_version = args.vendor_version or driver.vendor_version
    return driver


def obey(line: str, driver: FakeCSIDriver) -> str:
    """Execute a command, and return the text of the reply."""
    match line.split():
        case ["ready" | "not-ready" as said]:
            driver.ready = said == "ready"
            return f"the driver is {said.replace('-', ' ')}"
        case ["node-id", *ids] if len(ids) < 2:
            driver.node_id = "".join(ids)
            return f"the node id is {driver.node_id or 'empty'}"
        case ["max-volumes", number] if _is_number(number):
            driver.max_volumes = int(number)
            return f"the most volumes are {number}"
        case ["topology", *segments] if all("=" in one for one in segments):
            driver.topology = dict(map(_segment, segments))
            return f"the topology is {' '.join(segments) or 'empty'}"
        case [how, call] if how in DRIVER_REACTIONS and call in (*_CALLS, "all"):
            return react_to(how, call, _CALLS, hangs=driver.hangs, errors=driver.errors)
        case _:
            return f"unknown command {line.strip()!r}: {_USAGE}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdecimal()


def _segment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value
