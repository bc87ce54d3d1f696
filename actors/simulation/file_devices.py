"""A fake device plugin whose devices are files of this machine: its answers to Allocate, and a record of its calls."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import attrs
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...protocol.plugins.devices import HEALTHY, UNHEALTHY, Device, DeviceOptions
from ...protocol.proto import deviceplugin_v1beta1_pb2 as api
from ...protocol.text import first_few
from .device_plugins import AllocationCall, FakeDevices
from .plugins import Call, now, pid_of
from .reactions import Reaction, react

if TYPE_CHECKING:
    from grpclib.server import Stream

#: The placeholder for the ids of the allocated devices in the value of an environment variable.
IDS = "{ids}"


@attrs.frozen
class DeviceFile:
    """One device, and the file of this machine that a container gets for it."""

    id: str
    path: str
    numa: tuple[int, ...] = ()
    #: Whether the container gets the file at the same path as on this machine, and not as ``/dev/ID``.
    same_path: bool = False

    def add_to(self, answer: api.ContainerAllocateResponse) -> None:
        """Add the file to the answer: as a device node, or as a mount if it is another file."""
        mode = os.stat(self.path).st_mode
        outside = os.path.abspath(self.path)
        inside = outside if self.same_path else f"/dev/{self.id}"
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            answer.devices.append(api.DeviceSpec(container_path=inside, host_path=outside, permissions="rw"))
        else:
            answer.mounts.append(api.Mount(container_path=inside, host_path=outside))


class UnknownDeviceError(Exception):
    """A command names a device that the plugin does not have; the text lists the devices."""


class FileDevices(FakeDevices):
    """The service of a device plugin with these ``files``, which can be made unhealthy and unplugged."""

    def __init__(
        self, files: Iterable[DeviceFile], options: DeviceOptions | None = None, envs: Mapping[str, str] | None = None
    ) -> None:
        """Use the ``options``, and the environment ``envs`` of a container, in which ``{ids}`` stands for the ids."""
        self._files = {file.id: file for file in files}
        self._envs = dict(envs or {})
        self._unhealthy: set[str] = set()
        self._unplugged: set[str] = set()
        #: Gets each call before its answer; assign to change it.
        self.record: Callable[[Call], None] = lambda _: None
        super().__init__(self.devices, options)

    @property
    def devices(self) -> list[Device]:
        """The devices as they are listed."""
        return [
            Device(file.id, UNHEALTHY if file.id in self._unhealthy else HEALTHY, file.numa)
            for file in self._files.values()
            if file.id not in self._unplugged
        ]

    def turn(self, ids: Collection[str], *, healthy: bool) -> None:
        """Make devices healthy or unhealthy, and list all devices on each open stream, without waiting.

        Raises:
          UnknownDeviceError: if it has no such device; then nothing changes.
        """
        self._check(ids)
        self._unplugged.difference_update(ids)
        if healthy:
            self._unhealthy.difference_update(ids)
        else:
            self._unhealthy.update(ids)
        self.show(*self.devices)

    def unplug(self, ids: Collection[str]) -> None:
        """Stop listing devices until they are made healthy or unhealthy, without waiting.

        Raises:
          UnknownDeviceError: if it has no such device; then nothing changes.
        """
        self._check(ids)
        self._unplugged.update(ids)
        self.show(*self.devices)

    def plug(self, files: Collection[DeviceFile]) -> None:
        """List new devices, too; one that it had is listed again with this file and its health, without waiting."""
        self._files.update({file.id: file for file in files})
        self._unplugged.difference_update(file.id for file in files)
        self.show(*self.devices)

    def _check(self, ids: Iterable[str]) -> None:
        for name in ids:
            if name not in self._files:
                raise UnknownDeviceError(f"there is no device {name!r}: the devices are {self._some_ids()}")

    def react(self, call: AllocationCall, how: Reaction) -> None:
        """Answer calls from now on, refuse them, or leave them without an answer."""
        react(call, how, hangs=self.hangs, errors=self.errors)

    @property
    def ids(self) -> list[str]:
        """The ids of all devices."""
        return list(self._files)

    def _some_ids(self) -> str:
        return first_few([*map(repr, self.ids)])

    # --- the service --------------------------------------------------------------------------------------------------

    async def GetDevicePluginOptions(self, stream: Stream[api.Empty, api.DevicePluginOptions]) -> None:  # noqa: N802
        """Answer with the options."""
        self.note("GetDevicePluginOptions", stream.peer)
        await super().GetDevicePluginOptions(stream)

    async def ListAndWatch(self, stream: Stream[api.Empty, api.ListAndWatchResponse]) -> None:  # noqa: N802
        """Send the list, and each list that is shown later."""
        self.note("ListAndWatch", stream.peer)
        await super().ListAndWatch(stream)

    def allocate(self, ids: list[str]) -> api.ContainerAllocateResponse:
        """Answer with the files of the devices; refuse unknown devices."""
        envs = {name: text.replace(IDS, ",".join(ids)) for name, text in self._envs.items()}
        answer = api.ContainerAllocateResponse(envs=envs)
        for name in ids:
            if name not in self._files:
                raise GRPCError(Status.INVALID_ARGUMENT, f"there is no device {name!r}")
            try:
                self._files[name].add_to(answer)
            except OSError as error:
                text = f"the file of device {name!r} cannot be used: {error.filename}: {error.strerror}"
                raise GRPCError(Status.FAILED_PRECONDITION, text) from error
        return answer

    def note(self, method: str, peer: object, ids: tuple[str, ...] = (), how: Reaction = Reaction.ANSWERED) -> None:
        """Record a call."""
        self.record(Call(now(), str(method), devices=ids, reaction=how, peer_pid=pid_of(peer)))
