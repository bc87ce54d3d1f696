"""The options of ``plugind fake`` for device plugins, and the commands to them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from itertools import cycle

from ...protocol.discovery.device_directory import KUBELET_SOCKET
from ...protocol.plugins.devices import DeviceOptions
from ...protocol.plugins.info import DEVICE
from ...protocol.settings.config import DEFAULT_ROOT, device_plugins_beside
from ..simulation.device_plugins import AllocationCall
from ..simulation.file_devices import IDS, DeviceFile, FileDevices, UnknownDeviceError
from .ending import EXIT_USAGE, CommandError
from .fake_calls import Announcement
from .fake_control import REACTIONS

#: The default number of devices, and the default file of each.
_DEVICES = 4
_FILE = "/dev/null"
#: Options of device plugins, by their names in the parsed arguments.
ONLY_FOR_DEVICES = (
    "device",
    "devices",
    "numa",
    "env",
    "same_paths",
    "pre_start",
    "preferred",
    "device_plugins",
)
#: Options of the registration service, which a plugin that calls Register does not have.
_ONLY_BY_SOCKET = ("endpoint", "fail_get_info", "reject_notify")

#: The calls that allocate devices, by their names in commands.
_CALLS = {
    "allocate": AllocationCall.ALLOCATE,
    "preferred": AllocationCall.PREFERRED,
    "pre-start": AllocationCall.PRE_START,
}
_USAGE = (
    "the commands are: healthy ID..., unhealthy ID..., unplug ID..., plug ID[=PATH]...; all stands for all"
    f" devices; answer CALL, refuse CALL, hang CALL; CALL is {', '.join(_CALLS)}"
)
#: The most devices listed in a reply; of more, it has the number.
_NAMED = 8

DEVICES_EPILOG = """\
device plugins:
  A plugin of the type DevicePlugin serves v1beta1.DevicePlugin. Its devices are files: a container gets the file of
  each device that is allocated to it, as /dev/ID. It is found by its socket, as all plugins are, or it calls Register
  with --device-plugins. Its commands:
    unhealthy ID...   list these devices as unhealthy; "all" stands for all of them
    healthy ID...     list them as healthy again
    unplug ID...      list them no more, until they are healthy or unhealthy again
    plug ID[=PATH]... list these devices from now on, which can be new; the file is /dev/null by default
    hang CALL         never answer allocate, preferred or pre-start, which are the calls that lease devices
    refuse CALL       answer it with an error
    answer CALL       answer it again

  plugind fake --type DevicePlugin --name example.com/gpu --socket ./gpu.sock --control ./gpu.control
  echo unhealthy gpu-0 > ./gpu.control
  plugind fake --type DevicePlugin --name example.com/tape --device-plugins ./device-plugins --device t0=./file
"""


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that only device plugins have."""
    group = parser.add_argument_group("device plugins")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--device", action="append", type=_device, metavar="ID=PATH", help="a device and its file, repeatable"
    )
    which.add_argument(
        "--devices", type=_number, metavar="N", help=f"so many devices, all of {_FILE} (default: {_DEVICES})"
    )
    group.add_argument(
        "--numa", type=_numa, metavar="NODE,...", help="the NUMA nodes of the devices, in turn (default: none)"
    )
    group.add_argument(
        "--env",
        action="append",
        type=_variable,
        metavar="NAME=VALUE",
        help=f"what Allocate puts into the environment, repeatable; {IDS} in VALUE stands for the ids",
    )
    group.add_argument(
        "--same-paths",
        action="store_true",
        help="a container gets each file at its own path, not as /dev/ID, so that a process can use the devices, too",
    )
    group.add_argument("--pre-start", action="store_true", help="say that PreStartContainer is required")
    group.add_argument("--preferred", action="store_true", help="say that GetPreferredAllocation is available")
    group.add_argument(
        "--device-plugins",
        nargs="?",
        const="",
        metavar="DIR",
        help=f"register by a call on DIR/{KUBELET_SOCKET}, with a socket in DIR, as nearly all device plugins do; again"
        f" whenever the own socket is gone or {KUBELET_SOCKET} is a new one (without DIR:"
        f" {device_plugins_beside([DEFAULT_ROOT])})",
    )


def socket_of(args: argparse.Namespace) -> str:
    """Return the path of the plugin's socket.

    Raises:
      CommandError: if none is given, or a plugin that calls Register would listen in another directory.
    """
    given: str | None = args.socket
    if args.device_plugins is None:
        if given is None:
            also = ", or let it call Register with --device-plugins" if args.type == DEVICE else ""
            raise usage_error(f"the plugin has no socket: add --socket PATH{also}")
        return given
    directory = _directory(args)
    socket = os.path.join(directory, f"{args.name.replace('/', '_')}.sock") if given is None else given
    if os.path.abspath(os.path.dirname(socket)) != os.path.abspath(directory):
        raise usage_error(f"{given} is not in {directory}, where the sockets of device plugins are: leave out --socket")
    if os.path.basename(socket) == KUBELET_SOCKET:
        raise usage_error(
            f"{KUBELET_SOCKET} is the socket of the node: give the plugin another one, or leave out --socket"
        )
    return socket


def check_arguments(args: argparse.Namespace) -> None:
    """Check that the options fit together.

    Raises:
      CommandError: if they do not.
    """
    if args.device_plugins is None:
        return
    option = first_option(args, _ONLY_BY_SOCKET) or (
        f"--hang {args.hang}" if args.hang not in (None, "accept") else None
    )
    if option:
        raise usage_error(f"{option} is for plugins that are found by their socket: leave it out, or --device-plugins")
    if len(args.version or ()) > 1:
        raise usage_error("a call of Register has one version: give one --version")


def devices_from(args: argparse.Namespace) -> FileDevices | None:
    """Return the devices for the arguments; None if the plugin is no device plugin.

    Raises:
      CommandError: if a device is named twice, or has no file.
    """
    if args.type != DEVICE:
        return None
    named: Sequence[tuple[str, str]] = args.device or _numbered(args.name, args.devices)
    nodes = cycle(args.numa or [None])
    files = [
        DeviceFile(name, path, () if node is None else (node,), args.same_paths)
        for (name, path), node in zip(named, nodes, strict=False)
    ]
    _check_files(files)
    return FileDevices(files, DeviceOptions(args.pre_start, args.preferred), dict(args.env or ()))


def obey(line: str, devices: FileDevices) -> str:
    """Execute a command, and return the text of the reply."""
    match line.split():
        case ["healthy" | "unhealthy" | "unplug" as how, *ids] if ids:
            chosen = devices.ids if ids == ["all"] else ids
            try:
                if how == "unplug":
                    devices.unplug(chosen)
                else:
                    devices.turn(chosen, healthy=how == "healthy")
            except UnknownDeviceError as error:
                return str(error)
            named = ", ".join(chosen) if len(chosen) <= _NAMED else f"{len(chosen)} devices"
            health = "unplugged" if how == "unplug" else how
            return f"{named} {'is' if len(chosen) == 1 else 'are'} {health}"
        case ["plug", *given] if given:
            try:
                files = [_plugged(word) for word in given]
                _check_files(files)
            except (argparse.ArgumentTypeError, CommandError) as error:
                return str(error.args[0])
            devices.plug(files)
            return f"{', '.join(file.id for file in files)} {'is' if len(files) == 1 else 'are'} plugged in"
        case [how, call] if how in REACTIONS and call in _CALLS:
            reaction, words = REACTIONS[how]
            devices.react(_CALLS[call], reaction)
            return f"{_CALLS[call]} is {words} from now on"
        case _:
            return f"unknown command {line.strip()!r}: {_USAGE}"


def _plugged(word: str) -> DeviceFile:
    return DeviceFile(*_device(word if "=" in word else f"{word}={_FILE}"))


def announcement_from(args: argparse.Namespace, version: str, devices: FileDevices | None) -> Announcement | None:
    """Return the contents of the plugin's call of Register; None if it does not call."""
    if args.device_plugins is None or devices is None:
        return None
    return Announcement(os.path.join(_directory(args), KUBELET_SOCKET), version, args.name, devices.options)


def _directory(args: argparse.Namespace) -> str:
    return args.device_plugins or device_plugins_beside([DEFAULT_ROOT])


def _numbered(name: str, count: int | None) -> list[tuple[str, str]]:
    short = name.rpartition("/")[2]
    return [(f"{short}-{number}", _FILE) for number in range(_DEVICES if count is None else count)]


def _check_files(files: Sequence[DeviceFile]) -> None:
    seen: set[str] = set()
    for file in files:
        if file.id in seen:
            raise usage_error(f"the device {file.id} is named twice: give each its own ID")
        seen.add(file.id)
        try:
            os.stat(file.path)
        except OSError as error:
            raise usage_error(f"the file of device {file.id} cannot be used: {file.path}: {error.strerror}") from error


def first_option(args: argparse.Namespace, names: Sequence[str]) -> str | None:
    """Return the first of these options that is given, in its form on the command line."""
    for name in names:
        value: object = getattr(args, name)
        if value is not None and value is not False:
            return "--" + name.replace("_", "-")
    return None


def usage_error(text: str) -> CommandError:
    """Return a usage error with ``text``."""
    return CommandError(text, EXIT_USAGE)


def _device(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=PATH")
    if "/" in name or not name.isprintable() or " " in name:
        raise argparse.ArgumentTypeError(f"{name!r} is no ID: it has a slash, a space or a control character")
    return name, path


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of devices")
    return int(text)


def _numa(text: str) -> list[int]:
    nodes = text.split(",")
    if not all(node.isascii() and node.isdecimal() for node in nodes):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of NUMA nodes, as 0,1")
    return list(map(int, nodes))


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
