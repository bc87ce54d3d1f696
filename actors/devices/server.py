"""The device server, on which device plugins call Register, and which reports them to the reconciler.

Nearly all device plugins register by a call on ``kubelet.sock``, and do not wait to be discovered. A valid call becomes
a socket that appeared, with the call in it, and is then treated like every other plugin. The registration actor answers
the call when the handler has registered the plugin, or failed to.

The server is the watcher of its directory. It keeps plugins that were registered by a call, because no scan finds them,
and reports them and the calls under way to the next reconciler after a crash, if their sockets still exist. When the
server itself crashes, it makes its socket anew, and the plugins stay registered. If it crashes again before it has
served, it starts as the daemon does, and the plugins call again.

When another process, such as a kubelet, replaces the socket, the server yields: it serves nothing until the daemon is
started again, because two consumers of one directory take updates from each other.
"""

from __future__ import annotations

from typing import assert_never

import attrs
import trio

from ...protocol.backoff import Backoff
from ...protocol.discovery.device_directory import taken
from ...protocol.errors import ConfigError, leaves
from ...protocol.messages.discovery import ScanCompleted
from ...protocol.messages.status import RootStatus
from ...protocol.plugins.status import Watching
from ...protocol.registration.crashes import in_one_line
from ..discovery.directory import describe
from ..messaging.mailbox import report
from .directory import DeviceDirectory, DeviceSocket, KubeletSocket, SocketTakenError
from .register_calls import CallsConfig, RegisterCalls

#: Seconds between two looks at the directory without an event, and the least between two looks.
LOOK = 1.0
_LOOK_GAP = 0.05
#: Seconds until a removed ``kubelet.sock`` is made again.
REMAKE = 1.0
#: The reason, in the words of the kubelet, why nothing is served after a crash.
_FAILED = (
    "device plugin registration error: device plugin registration gRPC server failed and no device plugins can register"
)
#: The pauses between attempts to get the directory.
_BACKOFF = Backoff(initial=1.0, cap=30.0, jitter=0.0)


class DeviceServer:
    """The server of one directory. It lives as long as its node; :meth:`run` is called again after a crash."""

    def __init__(self, config: CallsConfig, directory: DeviceDirectory, *, heartbeat: float) -> None:
        """Report each change to the status actor, and the state every ``heartbeat`` seconds."""
        self._config = config
        self._directory = directory
        self._heartbeat = heartbeat
        self._calls = RegisterCalls(config, directory)
        #: The current socket, if there is one.
        self._serving: DeviceSocket | None = None
        #: Why nothing is served until the daemon is started again.
        self._taken: str | None = None
        self._failures = 0
        #: Whether it has served since its last crash.
        self._has_served = False
        self._report = RootStatus(config.path, Watching.UNAVAILABLE, 0.0)

    def hold(self) -> None:
        """Check and lock the directory before the node starts; see :meth:`DeviceDirectory.hold`."""
        self._directory.hold()

    def release(self) -> None:
        """Stop serving and unlock the directory, at the end of the node."""
        self._close()
        self._directory.release()

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await self._attend(nursery)
        except Exception as error:
            self._close()
            if not self._has_served:
                # The calls may be what causes the crash.
                self._calls.forget()
            self._has_served = False
            await self._show(Watching.UNAVAILABLE, f"{_FAILED}: {in_one_line(next(leaves(error)))}")
            raise

    def suspend(self) -> None:
        """Ignore answers to earlier reports, because the reconciler has crashed."""
        self._calls.suspend()

    async def report_again(self) -> None:
        """Report the registered plugins and the calls under way to a new reconciler."""
        await self._calls.report_again()

    def _close(self) -> None:
        if self._serving is not None:
            self._serving.close()
            self._serving = None

    async def _attend(self, nursery: trio.Nursery) -> None:
        """Do the next step, and wait until there is more to do."""
        if self._taken is not None:
            await self._show(Watching.TAKEN, self._taken)
            await trio.sleep(self._heartbeat)
        elif self._serving is None:
            await self._begin(nursery, delete_sockets=not self._calls.any_kept)
        else:
            # The watch is kept, because closing an inotify instance blocks for milliseconds.
            with self._directory.watch() as watch:
                while await self._look(nursery, self._serving):
                    with trio.move_on_after(LOOK):
                        await watch.wait()
                    await trio.sleep(_LOOK_GAP)

    async def _look(self, nursery: trio.Nursery, serving: DeviceSocket) -> bool:
        """Look at the directory; return whether nothing has changed."""
        place = serving.place()
        match place:
            case KubeletSocket.OURS:
                await self._calls.look()
                await self._show(Watching.SERVING)
                self._has_served = True
                return True
            case KubeletSocket.MISSING:
                await self._remake(nursery, serving)
            case KubeletSocket.ANOTHER:
                await self._yield(self._directory.who_serves())
            case _:
                assert_never(place)
        return False

    async def _begin(self, nursery: trio.Nursery, *, delete_sockets: bool) -> None:
        """Serve a new socket. It answers before it has its name, so that no client is refused."""
        try:
            self._directory.hold()
            serving = self._directory.listen()
        except SocketTakenError as error:
            await self._yield(error.pid)
            return
        except (OSError, ConfigError) as error:
            await self._fail(error)
            return
        try:
            await nursery.start(serving.serve, self._calls.register)
            if delete_sockets:
                # No earlier registration is left.
                await self._report_nothing()
            self._calls.deleted |= serving.publish(delete_sockets=delete_sockets)
        except OSError as error:
            serving.retire()
            await self._fail(error)
            return
        except BaseException:
            serving.close()
            raise
        if self._serving is not None:
            self._serving.retire()
        self._serving, self._failures = serving, 0

    async def _fail(self, error: OSError | ConfigError) -> None:
        """Report why the directory is not available, and wait until the next attempt."""
        reason = describe(error) if isinstance(error, OSError) else str(error)
        await self._show(Watching.UNAVAILABLE, reason)
        self._failures += 1
        await trio.sleep(_BACKOFF.delay(self._failures))

    async def _remake(self, nursery: trio.Nursery, serving: DeviceSocket) -> None:
        """Make the socket again after a pause, since plugins take a new socket for a restart."""
        await self._show(Watching.UNAVAILABLE, f"kubelet.sock was removed, and is made again after {REMAKE:g} s")
        await trio.sleep(REMAKE)
        if serving.place() is KubeletSocket.MISSING:
            self._report = attrs.evolve(self._report, remade=self._report.remade + 1)
            await self._begin(nursery, delete_sockets=False)

    async def _yield(self, pid: int | None) -> None:
        """Leave the directory to the process that has taken its socket."""
        self._taken = taken(self._config.path, pid)
        await self._calls.close(self._taken)
        # After a crash of the server, it does not know the earlier registrations.
        await self._report_nothing()
        if self._serving is not None:
            self._serving.retire()
            self._serving = None

    async def _report_nothing(self) -> None:
        """Report an empty directory, so that all its plugins are deregistered."""
        await report(self._config.reconciler, ScanCompleted(self._config.path, first=True, paths=frozenset()))

    async def _show(self, watching: str, reason: str | None = None) -> None:
        """Report the state of the directory if it has changed, or if the last report is old."""
        before, now = self._report, trio.current_time()
        same = (before.watching, before.reason, before.sockets) == (watching, reason, len(self._calls))
        if same and before.time and now - before.time < self._heartbeat:
            return
        self._report = attrs.evolve(
            before,
            watching=watching,
            reason=reason,
            time=now,
            ready=watching == Watching.SERVING,
            sockets=len(self._calls),
        )
        await report(self._config.status, self._report)
