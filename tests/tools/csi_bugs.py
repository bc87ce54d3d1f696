"""Bugs of CSI drivers, put in on purpose; see ``plugind.tests.tools.planted_bugs``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import trio
from grpclib.exceptions import GRPCError

from plugind.actors.grpc.client.channel import Channel
from plugind.actors.handlers.csi import driver as csi_driver
from plugind.actors.handlers.csi import follower as csi_follower
from plugind.actors.handlers.csi import handler as csi
from plugind.actors.handlers.csi.driver import DriverCalls, Said
from plugind.protocol.errors import PluginError
from plugind.protocol.handlers.csi import NO_NODE_INFO, NodeInfo
from plugind.protocol.handlers.csi_topology import Topologies, Topology
from plugind.protocol.messages.discovery import SocketVanished
from plugind.protocol.messages.reconciler import Claimed, ReconcilerMessage
from plugind.protocol.plugins.info import CSI, Plugin
from plugind.protocol.proto.csi_v1_pb2 import NodeGetInfoResponse
from plugind.protocol.world.effects import Effect
from plugind.protocol.world.worlds import World


@contextmanager
def register_a_driver_that_does_not_say_where_it_runs() -> Iterator[None]:
    """A driver whose NodeGetInfo fails is registered as one that does not implement it."""
    judge = DriverCalls.node_info

    def be_content(self: DriverCalls, said: NodeGetInfoResponse | GRPCError) -> NodeInfo:
        try:
            return judge(self, said)
        except PluginError:
            return NO_NODE_INFO

    with patch.object(DriverCalls, "node_info", be_content):
        yield


@contextmanager
def register_a_driver_with_another_name() -> Iterator[None]:
    """A driver that calls itself otherwise than its registrar is registered."""
    with patch.object(csi_driver, "check_driver_name", lambda *_: None):
        yield


@contextmanager
def wait_for_a_driver_that_has_left() -> Iterator[None]:
    """The calls of Register go on though the socket of the plugin has gone, and keep the next driver waiting."""
    ask = DriverCalls.ask

    async def insist(self: DriverCalls, channel: Channel) -> Said:
        try:
            return await ask(self, channel)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await trio.sleep(100.0)
            raise

    with patch.object(DriverCalls, "ask", insist):
        yield


@contextmanager
def let_the_newer_driver_replace_the_older_at_once() -> Iterator[None]:
    """An older driver is deregistered when a newer one of its name comes, and not once that has answered."""
    claimed: dict[str, Claimed] = {}
    handle = World.handle

    def hasty(self: World, message: ReconcilerMessage, now: float) -> list[Effect]:
        effects = handle(self, message, now)
        if isinstance(message, Claimed) and message.info.type == CSI:
            for path, other in claimed.items():
                if other.info.name == message.info.name and path != message.path:
                    effects += handle(self, SocketVanished(path, other.generation), now)
            claimed[message.path] = message
        return effects

    with patch.object(World, "handle", hasty):
        yield


@contextmanager
def show_the_first_facts_for_ever() -> Iterator[None]:
    """What a driver says of the node later is not shown."""
    judge, answers = DriverCalls.node_info, dict[tuple[str, int], NodeInfo]()

    def remember(self: DriverCalls, said: NodeGetInfoResponse | GRPCError) -> NodeInfo:
        return answers.setdefault((self.plugin.socket, self.plugin.generation), judge(self, said))

    with patch.object(DriverCalls, "node_info", remember):
        yield


@contextmanager
def let_drivers_contradict_each_other() -> Iterator[None]:
    """Two drivers may give a key of their topologies different values."""

    def none(self: Topologies, plugin: Plugin, topology: Topology) -> str | None:
        return None

    with patch.object(Topologies, "collision", none):
        yield


@contextmanager
def start_for_ever() -> Iterator[None]:
    """A driver that is not ready is starting, however long ago it was registered."""
    with patch.object(csi_follower, "STARTING_FOR", 1e9):
        yield


@contextmanager
def wait_for_no_endpoint() -> Iterator[None]:
    """A driver whose endpoint is later than its registrar is refused at once."""
    with patch.object(csi, "CONNECT_TIMEOUT", 0.2):
        yield
