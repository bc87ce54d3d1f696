"""Real sockets that are replaced between the look that finds them and the dial, on the disk and in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from plugind import Config, Root, Supervisor
from plugind.actors.discovery.directory import Chunk, LeaveOut, RealDirectory, take_all
from plugind.actors.grpc.client.dial import Judge, dial_registration
from plugind.actors.grpc.client.registration_channel import RegistrationChannel
from plugind.actors.grpc.server.serve import serve_stream
from plugind.actors.io import exact_connect
from plugind.actors.io.unix_socket import UnixListener, listen
from plugind.actors.node.node import Node
from plugind.actors.node.ports import Ports
from plugind.actors.simulation.plugins import Call, FakePlugin, FakeRegistration
from plugind.actors.status.memory import StatusConfig
from plugind.protocol.identity import Identity
from plugind.protocol.logs.lines import SILENT
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.registration.failures import REPLACED
from plugind.protocol.wire.learning import KnownConversations
from plugind.supervisor import NodeSupervisor
from plugind.testing import FakeHandler

#: Dials as a node does.
DIAL = partial(dial_registration, conversations=KnownConversations())
#: What a plugin that is registered once hears.
ONCE = ["GetInfo", "NotifyRegistrationStatus"]


@attrs.define(eq=False)
class Process:
    """A plugin that serves at ``path``; each call of :meth:`start` is another process of it."""

    path: str
    nursery: trio.Nursery
    #: What each of its processes heard.
    heard: list[list[str]] = attrs.Factory(list)
    _scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    _listener: UnixListener | None = None

    def start(self) -> None:
        """End the process that runs, remove its socket, and bind, listen and serve anew; never waits."""
        self._scope.cancel()
        if self._listener is not None:
            # Closed first: as long as it is open, no other file gets its inode number.
            self._listener.close()
        self._scope, self._listener = trio.CancelScope(), listen(self.path)
        self.nursery.start_soon(self._serve, self._listener, self._scope)

    async def _serve(self, listener: UnixListener, scope: trio.CancelScope) -> None:
        calls: list[str] = []
        self.heard.append(calls)

        def note(call: Call) -> None:
            calls.append(call.method)

        services = [FakeRegistration(FakePlugin("Colour", "red"), note, scope.cancel)]
        with scope, listener:
            async with trio.open_nursery() as nursery:
                with suppress(trio.ClosedResourceError):
                    while True:
                        connection = trio.SocketStream(await listener.accept())
                        nursery.start_soon(partial(serve_stream, services, connection, report=lambda _: None))


@attrs.define(eq=False)
class Hook:
    """The real dial, before which something happens once."""

    happens: Callable[[], None]
    dials: int = 0

    async def __call__(
        self, path: str, *, identity: Identity, root: str, timeout: float, refused_grace: float, judge: Judge
    ) -> RegistrationChannel:
        self.dials += 1
        if self.dials == 1:
            self.happens()
        return await DIAL(path, identity=identity, root=root, timeout=timeout, refused_grace=refused_grace, judge=judge)


@asynccontextmanager
async def plugin(directory: Path) -> AsyncIterator[Process]:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            yield Process(str(directory / "a.sock"), nursery)
            nursery.cancel_scope.cancel()


def node(directory: Path, hook: Hook, handler: FakeHandler, *, follow: bool = False) -> Supervisor:
    config = Config(roots=(Root(str(directory)),), follow_symlinks_inside_root=follow, rescan=3600.0)
    ports = Ports(dial=hook, directory=lambda root: RealDirectory(root.path))
    return NodeSupervisor(Node(config, {"Colour": handler}, ports, StatusConfig(), SILENT))


async def no_event_left() -> None:
    """Wait until whatever would tell a plugin twice has had its time: inotify's events are there already."""
    await trio.testing.wait_all_tasks_blocked(0.05)


async def registered(supervisor: Supervisor) -> PluginStatus:
    return await supervisor.wait_for("red", type="Colour")


@pytest.mark.parametrize("proc", [True, False])
async def test_a_socket_that_is_replaced_between_look_and_dial_is_told_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch, proc: bool
) -> None:
    """Fault 41, behaviours 9 and 13: of ext4 the new socket gets the inode number of the old one."""
    if not proc:
        monkeypatch.setattr(exact_connect, "can_connect_to_descriptors", lambda: False)
    handler = FakeHandler()
    async with plugin(directory) as process:
        hook = Hook(process.start)
        process.start()
        async with node(directory, hook, handler) as supervisor:
            await registered(supervisor)
            await no_event_left()
            (status,) = (await supervisor.snapshot()).plugins
            assert hook.dials == 2
        assert [entry.reason for entry in status.history if entry.state is StateName.WAITING] == [REPLACED]
        assert [calls for calls in process.heard if calls] == [ONCE]
        assert process.heard[-1] == ONCE
    assert handler.asked() == ["validate", "register"]


async def test_sockets_that_are_recreated_while_the_node_starts_are_told_once(directory: Path) -> None:
    """Behaviour 9: the first scan finds the new socket, and the events of its replacement come after it."""

    class Racing(RealDirectory):
        """Replaces the socket after the root is watched and before it is listed."""

        raced = False

        def scan(
            self, path: str, known_sockets: Mapping[str, Identity | None], *, deep: bool, leave_out: LeaveOut = take_all
        ) -> Generator[Chunk, None, None]:
            if not Racing.raced:
                Racing.raced = True
                process.start()
            return super().scan(path, known_sockets, deep=deep, leave_out=leave_out)

    handler = FakeHandler()
    async with plugin(directory) as process:
        process.start()
        config = Config(roots=(Root(str(directory)),), rescan=3600.0)
        ports = Ports(dial=DIAL, directory=lambda root: Racing(root.path))
        async with NodeSupervisor(Node(config, {"Colour": handler}, ports, StatusConfig(), SILENT)) as supervisor:
            status = await registered(supervisor)
            await no_event_left()
            assert [entry.generation for entry in (await supervisor.snapshot()).plugins] == [status.generation]
        assert (Racing.raced, process.heard) == (True, [[], ONCE])
    assert handler.asked() == ["validate", "register"]
