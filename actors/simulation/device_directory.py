"""The directory of device plugins in memory, and the calls of Register that scripts make there.

A call waits in the backlog of the socket until the server takes it. It is answered once: with the code and the text of
the server, or with :data:`LOST` if its connection ends first.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

import attrs
import trio

from ...protocol.devices.calls import CallRefusedError, RegisterCall
from ...protocol.discovery.device_directory import KUBELET_SOCKET, TEMPORARY_SOCKET, answered
from ...protocol.discovery.sockets import EntryKind
from ...protocol.identity import Identity
from ...protocol.logs.lines import Logger
from ...protocol.settings.config import DevicePluginDirectory
from ..devices.directory import KubeletSocket, Register, SocketTakenError
from .directory import MemoryDirectory
from .faults import InjectedError

#: The answer of a call whose connection ended.
LOST: Final = ("LOST", "the connection ended")


@attrs.define(eq=False)
class RegisterAttempt:
    """A script's call of Register, and its answer."""

    call: RegisterCall
    #: Virtual seconds.
    made: float
    #: The code and the text of each answer; more than one answer would be a bug.
    answers: list[tuple[str, str]] = attrs.field(factory=list)
    answered_at: float | None = None
    done: trio.Event = attrs.field(factory=trio.Event, repr=False)
    #: Called with each answer.
    on_answer: Callable[[], object] = attrs.field(default=lambda: None, repr=False)

    _connection: trio.CancelScope = attrs.field(factory=trio.CancelScope, repr=False)

    def leave(self) -> None:
        """Close the connection of the caller, which then gets no answer."""
        self._connection.cancel()

    async def make(self, register: Register) -> None:
        """Pass the call to the server, as long as the connection exists."""
        with self._connection:
            await self._make(register)

    async def _make(self, register: Register) -> None:
        try:
            await register(self.call)
        except CallRefusedError as error:
            self.answer(error.code.name, str(error))
        except BaseException:
            self.answer(*LOST)
            raise
        else:
            self.answer("OK")

    def answer(self, code: str, text: str = "") -> None:
        """Record an answer."""
        self.answers.append((code, text))
        self.answered_at = trio.current_time()
        self.done.set()
        self.on_answer()

    @property
    def code(self) -> str | None:
        """The code of the answer; None if there is none yet."""
        return self.answers[0][0] if self.answers else None


class _Sleep:
    """A watch on names that reports no events, so that the server looks periodically."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def wait(self) -> None:
        await trio.sleep_forever()


class MemoryServing:
    """See :class:`~plugind.actors.devices.directory.DeviceSocket`."""

    def __init__(self, path: str, directory: MemoryDirectory) -> None:
        self._path = path
        self._files = directory
        directory.bind(os.path.join(path, TEMPORARY_SOCKET))
        self._inode = directory.inode(os.path.join(path, TEMPORARY_SOCKET))
        self._identity = directory.identity(self._inode)
        self._name = TEMPORARY_SOCKET
        self._backlog: list[RegisterAttempt] = []
        self._arrived = trio.Event()
        self._retired = False
        self.closed = False
        #: Whether the accept loop must end with an error when it next runs.
        self.crashes = False

    async def serve(self, register: Register, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See :class:`~plugind.actors.devices.directory.DeviceSocket`."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            while not self._retired:
                if self.crashes:
                    raise InjectedError
                backlog, self._backlog = self._backlog, []
                for attempt in backlog:
                    nursery.start_soon(attempt.make, register)
                await self._arrived.wait()
                self._arrived = trio.Event()
        self.close()

    def connect(self, attempt: RegisterAttempt) -> None:
        """Connect the caller of ``attempt``."""
        self._backlog.append(attempt)
        self.wake()

    def wake(self) -> None:
        """Wake the accept loop."""
        self._arrived.set()

    def publish(self, *, delete_sockets: bool) -> set[str]:
        """See :class:`~plugind.actors.devices.directory.DeviceSocket`."""
        deleted: set[str] = set()
        if delete_sockets:
            for name, child in [*self._files.inode(self._path).children.items()]:
                if child.kind is EntryKind.SOCKET and name != TEMPORARY_SOCKET:
                    self._files.unlink(os.path.join(self._path, name))
                    deleted.add(name)
        self._files.link(os.path.join(self._path, TEMPORARY_SOCKET), os.path.join(self._path, KUBELET_SOCKET))
        self._files.unlink(os.path.join(self._path, TEMPORARY_SOCKET))
        self._name = KUBELET_SOCKET
        return deleted

    def place(self) -> KubeletSocket:
        """See :class:`~plugind.actors.devices.directory.DeviceSocket`."""
        try:
            inode = self._files.inode(os.path.join(self._path, self._name))
        except FileNotFoundError:
            return KubeletSocket.MISSING
        return KubeletSocket.OURS if inode is self._inode else KubeletSocket.ANOTHER

    def retire(self) -> None:
        """See :class:`~plugind.actors.devices.directory.DeviceSocket`."""
        self._retired = True
        self.wake()

    def close(self) -> None:
        """See :class:`~plugind.actors.devices.directory.DeviceSocket`."""
        if self.closed:
            return
        self.closed = True
        if self.place() is KubeletSocket.OURS:
            self._files.unlink(os.path.join(self._path, self._name))
        for attempt in self._backlog:
            attempt.answer(*LOST)
        self._backlog.clear()


class MemoryDeviceDirectory:
    """See :class:`~plugind.actors.devices.directory.DeviceDirectory`; its faults are attributes and methods."""

    def __init__(self, path: str, directory: MemoryDirectory, on_answer: Callable[[], object]) -> None:
        self.path = path
        self._files = directory
        self._on_answer = on_answer
        #: The present socket, even if nobody takes its calls.
        self.serving: MemoryServing | None = None
        #: The error with which the directory cannot be used.
        self.error: Exception | None = None
        #: The process whose socket has replaced ours.
        self.taken_by: int | None = None
        #: All calls so far.
        self.attempts: list[RegisterAttempt] = []

    def open(self, config: DevicePluginDirectory, others: bool, log: Logger) -> MemoryDeviceDirectory:
        """Return itself, for ``Ports.device_directory``. All users can call, and nothing is logged."""
        del others, log
        assert config.directory == self.path, "a node has one such directory"
        return self

    # --- the port -----------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """See :class:`~plugind.actors.devices.directory.DeviceDirectory`."""
        if self.error is not None:
            raise self.error
        self._files.mkdir(self.path)
        pid = self.who_serves()
        if pid is not None:
            raise SocketTakenError(answered(self.path, pid), pid)

    def listen(self) -> MemoryServing:
        """See :class:`~plugind.actors.devices.directory.DeviceDirectory`."""
        with suppress(FileNotFoundError):
            self._files.unlink(os.path.join(self.path, TEMPORARY_SOCKET))
        self.serving = MemoryServing(self.path, self._files)
        return self.serving

    def who_serves(self) -> int | None:
        """See :class:`~plugind.actors.devices.directory.DeviceDirectory`."""
        return self.taken_by

    def identify(self, name: str) -> Identity | None:
        """See :class:`~plugind.actors.devices.directory.DeviceDirectory`."""
        try:
            inode = self._files.inode(os.path.join(self.path, name))
        except FileNotFoundError:
            return None
        return self._files.identity(inode) if inode.kind is EntryKind.SOCKET else None

    def watch(self) -> _Sleep:
        """See :class:`~plugind.actors.devices.directory.DeviceDirectory`."""
        return _Sleep()

    def release(self) -> None:
        """See :class:`~plugind.actors.devices.directory.DeviceDirectory`."""

    # --- the script ---------------------------------------------------------------------------------------------------

    def call(self, call: RegisterCall) -> RegisterAttempt:
        """Call Register as a plugin does that sees ``kubelet.sock``; without that socket, the call is lost."""
        attempt = RegisterAttempt(call, trio.current_time(), on_answer=self._on_answer)
        self.attempts.append(attempt)
        serving = self.serving
        if serving is None or serving.closed or serving.place() is not KubeletSocket.OURS or self.taken_by is not None:
            attempt.answer(*LOST)
        else:
            serving.connect(attempt)
        return attempt

    def remove_socket(self) -> None:
        """Remove ``kubelet.sock``, if it is there."""
        with suppress(FileNotFoundError):
            self._files.unlink(os.path.join(self.path, KUBELET_SOCKET))

    def take(self, pid: int) -> None:
        """Replace ``kubelet.sock`` by a socket of another process."""
        self.remove_socket()
        self._files.bind(os.path.join(self.path, KUBELET_SOCKET))
        self.taken_by = pid

    def give_back(self) -> None:
        """End that process and remove its socket."""
        self.remove_socket()
        self.taken_by = None

    def crash(self) -> bool:
        """End the accept loop with an error; return False if there is none."""
        if self.serving is None or self.serving.closed:
            return False
        self.serving.crashes = True
        self.serving.wake()
        return True
