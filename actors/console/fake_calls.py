"""A fake device plugin that registers by a call, like nearly all device plugins.

It listens in the directory of device plugins and calls Register on the ``kubelet.sock`` there. When its own socket file
is gone, it listens and registers again; when there is another ``kubelet.sock``, it registers again. A node that starts
causes the former for plugins that watch their own socket, and the latter for those that watch the node's.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import attrs
import trio
from grpclib.exceptions import GRPCError

from ...protocol.backoff import Backoff
from ...protocol.identity import Identity
from ...protocol.plugins.devices import DeviceOptions
from ...protocol.proto.deviceplugin_v1beta1_grpc import RegistrationStub
from ...protocol.proto.deviceplugin_v1beta1_pb2 import RegisterRequest
from ...protocol.wire.errors import DialError
from ..discovery.directory import describe
from ..grpc.client.dial import dial
from ..io.file_identity import identity_at
from ..io.file_watch import FileWatch
from ..io.unix_socket import UnixListener, listen
from ..simulation.device_plugins import options_message

#: Seconds between two looks at the directory without an event.
LOOK = 1.0
#: Seconds for the connection to ``kubelet.sock``, and for the answer to Register.
_DIAL, _ANSWER = 5.0, 20.0
#: The pauses before Register is called again after a failure.
_BACKOFF = Backoff(initial=1.0, cap=30.0, jitter=0.0)

#: Serves a listener, and closes it at the end; its task status reports the start.
Serve = Callable[..., Awaitable[None]]


@attrs.frozen
class Registered:
    """The answer to one call of Register."""

    #: Seconds of Trio's clock.
    time: float
    error: str


@attrs.frozen
class Announcement:
    """The contents of a device plugin's call, and the socket to call."""

    kubelet_socket: str
    version: str
    resource: str
    options: DeviceOptions

    def request(self, socket: str) -> RegisterRequest:
        """Return the message for a plugin that listens at ``socket``."""
        return RegisterRequest(
            version=self.version,
            endpoint=os.path.basename(socket),
            resource_name=self.resource,
            options=options_message(self.options),
        )


class Caller:
    """Plays a device plugin that calls Register."""

    def __init__(
        self, announcement: Announcement, say: Callable[[str], None], on_answer: Callable[[Registered], None]
    ) -> None:
        """Pass each line for a person to ``say``, and each answer to Register to ``on_answer``."""
        self._announcement = announcement
        self._say = say
        self._on_answer = on_answer
        #: The node's socket that was last called, whether that succeeded, and when to call again.
        self._called: Identity | None = None
        self._registered = False
        self._next = 0.0
        self._failures = 0

    async def play(
        self,
        listener: UnixListener,
        serve: Serve,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the ``listener``, and later ones at its path, until cancelled."""
        path = listener.path
        while True:
            async with trio.open_nursery() as nursery:
                await nursery.start(serve, listener)
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                await self._call_while_there(listener)
                nursery.cancel_scope.cancel()
            self._say("the file of its socket was removed or replaced: listening again")
            listener = await self._listen(path)
            self._called, self._registered = None, False

    async def _listen(self, path: str) -> UnixListener:
        said = ""
        while True:
            try:
                return listen(path, remove_stale=True)
            except OSError as error:
                if said != (said := describe(error)):
                    self._say(f"cannot listen: {said}")
                await trio.sleep(LOOK)

    async def _call_while_there(self, listener: UnixListener) -> None:
        """Call whenever that is due, until the socket file is gone or replaced."""
        said = False
        while True:
            with FileWatch(os.path.dirname(listener.path), names=True) as watch:
                if not listener.is_in_place():
                    return
                node = _look(self._announcement.kubelet_socket)
                if node is None and not said:
                    self._say(f"waiting for {self._announcement.kubelet_socket}")
                    said = True
                elif node is not None and self._is_due(node):
                    said = False
                    await self._call(node, listener.path)
                with trio.move_on_after(self._pause()):
                    await watch.wait()

    def _is_due(self, node: Identity) -> bool:
        if self._called is None or not node.is_same(self._called):
            self._failures = 0
            return True
        return not self._registered and trio.current_time() >= self._next

    def _pause(self) -> float:
        remaining = self._next - trio.current_time()
        return remaining if not self._registered and 0.0 < remaining < LOOK else LOOK

    async def _call(self, node: Identity, socket: str) -> None:
        where = self._announcement.kubelet_socket
        error = await self._register(socket)
        self._called, self._registered = node, error is None
        self._on_answer(Registered(trio.current_time(), error or ""))
        if error is None:
            self._say(f"registered with {where}")
            return
        self._failures += 1
        delay = _BACKOFF.delay(self._failures)
        self._next = trio.current_time() + delay
        self._say(f"not registered with {where}: {error}; the next try is in {delay:g} s")

    async def _register(self, socket: str) -> str | None:
        """Call Register; return the error, if any."""
        try:
            async with await dial(self._announcement.kubelet_socket, timeout=_DIAL) as channel:
                await channel.stub(RegistrationStub).Register(self._announcement.request(socket), timeout=_ANSWER)
        except DialError as error:
            return str(error)
        except GRPCError as error:
            return f"{error.status.name}: {error.message}"
        return None


def _look(path: str) -> Identity | None:
    """Return the identity of the file at ``path``; None if there is none, or it cannot be examined."""
    try:
        return identity_at(os.lstat(path), path)
    except OSError:
        return None
