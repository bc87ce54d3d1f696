"""The device nodes of the machine: which match, what they are, and whether they can be trusted.

Sysfs tells what a node is. ``/run/udev/data`` tells whether udev has finished with the device: until then its links may
be missing and its permissions may change. No library of udev is used, since a monitor of udev hears nothing in the
network namespace of a service.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final, Protocol, Self

import attrs

from ...protocol.devices.access import (
    ADVICE,
    ATTRIBUTE,
    Acl,
    acl_of_mode,
    decoded,
    encoded,
    users_of,
    why_open,
    with_users,
)
from ...protocol.devices.static import MAX_DEVICES, FoundNode
from ...protocol.plugins.static_devices import StaticResource
from ..trust.directories import who_may_replace
from .file_watch import FileWatch

#: Bytes of an attribute in sysfs that are read.
_MOST: Final = 256
#: Bytes of what udev knows of a device that are read.
_MOST_OF_UDEV: Final = 1024 * 1024
#: Directories of a device and of the devices above it in which its attributes are looked for.
_LEVELS: Final = 16
_LINKS: Final = 40
_WILD: Final = frozenset("*?[")
#: The files with the attributes of USB and of PCI devices; PCI has ``0x`` before its values.
_OF_USB: Final = {"vendor": "idVendor", "product": "idProduct", "serial": "serial"}
_OF_PCI: Final = {"vendor": "vendor", "product": "device"}
#: The number of NVIDIA's driver, whose nodes sysfs does not have; and the bytes that are read of what it says of a GPU.
_NVIDIA: Final = 195
_MOST_OF_NVIDIA: Final = 4096
NOT_FINISHED: Final = "udev has not finished with it"
_HIDDEN: Final = (
    "plugind sees only standard nodes in /dev (PrivateDevices=): let the service see all with the drop-in of"
    " 'plugind install-unit --devices'"
)


class NodeWatch(Protocol):
    """A context manager that watches directories for names that come and go."""

    def __enter__(self) -> Self:
        """Return the watch."""

    def __exit__(self, *_: object) -> None:
        """Stop watching."""

    async def wait(self) -> None:
        """Wait until a name has come or gone; wait forever if no directory can be watched."""


class NodePort(Protocol):
    """Where static devices are looked for."""

    def find(self, resource: StaticResource) -> Iterable[FoundNode]:
        """Return the nodes that match now, in any order."""

    def look(self, path: str) -> FoundNode | None:
        """Return what the node at ``path``, or the one to which it leads, is now; None if there is none."""

    def why_hidden(self) -> str | None:
        """Return why plugind cannot see the nodes in ``/dev``, and what to do; None if it sees them."""

    def watch(self, resources: Iterable[StaticResource]) -> NodeWatch:
        """Watch the directories in which nodes of these resources can come and go.

        Where access goes by leases, a change of their permissions counts, too.
        """

    def admit(self, node: FoundNode, users: Mapping[int, int], *, only: bool) -> str | None:
        """Let ``users`` open a node, each as far as it says, and with ``only`` no other user.

        Return why the node stays as it is: it is another one by now, others may open it anyway, or it cannot be
        changed.
        """


@attrs.frozen
class DeviceNodes:
    """The nodes of this machine; tests have another place for each of its parts."""

    dev: str = "/dev"
    sysfs: str = "/sys"
    udev: str = "/run/udev"
    nvidia: str = "/proc/driver/nvidia/gpus"

    def find(self, resource: StaticResource) -> Iterable[FoundNode]:
        """See :class:`NodePort`."""
        found = self._by_paths(resource) if resource.paths else self._by_attributes(resource.match)
        return islice(found, MAX_DEVICES)

    def _by_paths(self, resource: StaticResource) -> Iterator[FoundNode]:
        for pattern in resource.paths:
            for path in glob.iglob(pattern):
                node = self.look(path)
                # In a directory there can be other files; whoever names one file means that.
                if node is not None and (node.number or not _WILD & set(pattern)):
                    yield node

    def _by_attributes(self, match: Mapping[str, str]) -> Iterator[FoundNode]:
        subsystem = match["subsystem"]
        for directory in (f"{self.sysfs}/class/{subsystem}", f"{self.sysfs}/bus/{subsystem}/devices"):
            names = list[str]()
            with suppress(OSError):
                names = os.listdir(directory)
            for name in names:
                place = os.path.realpath(os.path.join(directory, name))
                device = _device_name(place)
                if device is not None and (node := self.look(os.path.join(self.dev, device))) is not None:
                    attributes = {**node.attributes, "subsystem": subsystem}
                    has = {**attributes, "name": os.path.basename(device)}
                    if all(fnmatch.fnmatchcase(has.get(key, ""), wanted) for key, wanted in match.items()):
                        yield attrs.evolve(node, attributes=attributes)

    def look(self, path: str) -> FoundNode | None:
        """See :class:`NodePort`."""
        try:
            node = os.path.realpath(path, strict=True)
            status = os.stat(node, follow_symlinks=False)
        except OSError:
            return None
        if (number := _number(status)) is None:
            return FoundNode(path, node, "", problem="it is neither a character nor a block device")
        kind, device = "char" if number[0] == "c" else "block", number[1:]
        place = os.path.realpath(f"{self.sysfs}/dev/{kind}/{device}")
        uuid = dict[str, str]()
        if kind == "char" and os.major(status.st_rdev) == _NVIDIA:
            place, uuid = self._of_nvidia(os.minor(status.st_rdev))
        if not os.path.isdir(place):
            place = ""
        return FoundNode(
            path,
            node,
            number,
            place.removeprefix(self.sysfs),
            (_attributes(place) if place else {}) | uuid,
            why_replaceable(path) or self._unfinished(number),
        )

    def _of_nvidia(self, minor: int) -> tuple[str, dict[str, str]]:
        """Return the place in sysfs of the GPU of NVIDIA with this minor number, and its UUID if that is known.

        The number of a node is no index of CUDA, but the driver says which GPU has it.
        """
        for file in glob.iglob(f"{self.nvidia}/*/information"):
            lines = (line.partition(":") for line in _read(file, _MOST_OF_NVIDIA).splitlines())
            has = {key.strip(): text.strip() for key, _, text in lines}
            if has.get("Device Minor") == str(minor):
                uuid, bus = has.get("GPU UUID", ""), os.path.basename(os.path.dirname(file))
                # Before a program has used the GPU, the UUID has question marks.
                known = {"uuid": uuid} if uuid.startswith("GPU-") and "?" not in uuid else {}
                return os.path.realpath(f"{self.sysfs}/bus/pci/devices/{bus}"), known
        return "", {}

    def _unfinished(self, number: str) -> str | None:
        if not os.path.exists(f"{self.udev}/control"):  # There is no udev here.
            return None
        if not os.path.exists(f"{self.sysfs}/dev/{'char' if number[0] == 'c' else 'block'}/{number[1:]}"):
            # udev never hears of a node that is not the kernel's: that of NVIDIA's driver, or one that mknod made.
            return None
        return None if os.path.exists(f"{self.udev}/data/{number}") else NOT_FINISHED

    def why_hidden(self) -> str | None:
        """See :class:`NodePort`. The ``/dev`` that systemd makes for a service is read-only; no other one is."""
        return _HIDDEN if os.statvfs(self.dev).f_flag & os.ST_RDONLY else None

    def watch(self, resources: Iterable[StaticResource]) -> FileWatch:
        """See :class:`NodePort`."""
        directories = dict[str, None]()
        resources = tuple(resources)
        for resource in resources:
            for pattern in (*resource.paths, *resource.nodes):
                directories.update(dict.fromkeys(_directories(pattern)))
            if resource.match:
                directories[self.dev] = None
        by_leases = any(resource.access is not None for resource in resources)
        return FileWatch(*directories, names=True, attributes=by_leases)

    def admit(self, node: FoundNode, users: Mapping[int, int], *, only: bool) -> str | None:
        """See :class:`NodePort`. The node is never opened, since that alone can change a device."""
        try:
            descriptor = os.open(node.node, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            return f"its access cannot be changed: {error.strerror}"
        try:
            status = os.fstat(descriptor)
            if _number(status) != node.number:
                return "it is another device by now"
            path = f"/proc/self/fd/{descriptor}"
            before = _acl_of(path, status.st_mode)
            why = why_open(before, status.st_uid, status.st_gid, os.geteuid()) or self._why_tagged(node.number)
            if why is not None:
                return f"{why}: {ADVICE}"
            after = with_users(before, users if only else {**users_of(before), **users})
            if after != before:
                os.setxattr(path, ATTRIBUTE, encoded(after))
        except (OSError, ValueError) as error:
            return f"its access cannot be changed: {getattr(error, 'strerror', error)}"
        finally:
            os.close(descriptor)
        return None

    def _why_tagged(self, number: str) -> str | None:
        lines = _read(f"{self.udev}/data/{number}", _MOST_OF_UDEV).splitlines()
        # A tag that a rule has taken away remains as G; versions of udev without Q have no V either.
        kind = "Q" if any(line.startswith("V:") for line in lines) else "G"
        return "udev lets whoever sits at the machine open it (uaccess)" if f"{kind}:uaccess" in lines else None


def _number(status: os.stat_result) -> str | None:
    """Return the kind and the number of a device node; None for any other file."""
    kind = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}.get(stat.S_IFMT(status.st_mode))
    return None if kind is None else f"{kind}{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"


def _acl_of(path: str, mode: int) -> Acl:
    try:
        return decoded(os.getxattr(path, ATTRIBUTE))
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        return acl_of_mode(mode)


def _directories(pattern: str) -> Iterator[str]:
    """Yield the directories of what matches, and the first above them that exists; and where its links lead to."""
    above = os.path.dirname(pattern)
    found = list(islice(glob.iglob(above), MAX_DEVICES)) if _WILD & set(above) else [above]
    yield from (path for path in found if os.path.isdir(path))
    while above != "/" and (_WILD & set(above) or not os.path.isdir(above)):
        above = os.path.dirname(above)
    yield above
    for path in islice(glob.iglob(pattern), MAX_DEVICES):
        if os.path.islink(path):
            yield os.path.dirname(os.path.realpath(path))


def why_replaceable(path: str) -> str | None:
    """Return why others can replace a node, or a link on the way to it; None if they cannot.

    Of a pattern, only the directories above its first part with a wildcard are judged.
    """
    for _ in range(_LINKS):
        try:
            if (found := who_may_replace(path)) is not None:
                return f"{found[1]}, and so others may replace it"
            path = os.path.join(os.path.dirname(path), os.readlink(path))
        except OSError:  # It is no link.
            break
    return None


def _device_name(place: str) -> str | None:
    """Return the name in ``/dev`` of the device with this directory in sysfs; None if it has no node."""
    for line in _read(f"{place}/uevent").splitlines():
        key, _, name = line.partition("=")
        if key == "DEVNAME":
            return name
    return None


def _attributes(place: str) -> dict[str, str]:
    """Return the attributes of a device: its own, and those of the nearest USB or PCI device above it."""
    found = dict[str, str]()
    with suppress(OSError):
        found["subsystem"] = os.path.basename(os.readlink(f"{place}/subsystem"))
    here = place
    for _ in range(_LEVELS):
        if "interface" not in found and (interface := _read(f"{here}/bInterfaceNumber")):
            found["interface"] = interface
        names = _OF_USB if _read(f"{here}/idVendor") else _OF_PCI
        if values := {key: value for key, name in names.items() if (value := _read(f"{here}/{name}"))}:
            # A hub above it has a serial number, too, which is not that of the device.
            return found | {key: value.removeprefix("0x") for key, value in values.items()}
        here = os.path.dirname(here)
    return found


def _read(path: str, most: int = _MOST) -> str:
    """Return the text of a file of the kernel; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(most).decode("utf-8", "replace").strip()
    except OSError:
        return ""
