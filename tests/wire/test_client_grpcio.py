"""Our client against grpcio's server."""

import os
from pathlib import Path

import trio

from plugind.actors.io.dialling import dial
from plugind.protocol.proto.pluginregistration_grpc import RegistrationStub
from plugind.protocol.proto.pluginregistration_pb2 import InfoRequest, RegistrationStatus, RegistrationStatusResponse
from plugind.protocol.wire_errors import Peer
from plugind.tests.wire.grpcio_server import INFO, grpcio_server


async def test_a_whole_conversation_goes_through_generated_stubs(tmp_path: Path) -> None:
    """GetInfo and NotifyRegistrationStatus, on one connection, with the listener's credentials known."""
    path = str(tmp_path / "a.sock")
    with grpcio_server(path), trio.fail_after(10):
        async with await dial(path, timeout=1) as channel:
            stub = channel.stub(RegistrationStub)
            info = await stub.GetInfo(InfoRequest(), timeout=1)
            reply = await stub.NotifyRegistrationStatus(RegistrationStatus(plugin_registered=True), timeout=5)
    assert info == INFO
    assert reply == RegistrationStatusResponse()
    assert channel.peer == Peer(os.getpid(), os.getuid(), os.getgid())
