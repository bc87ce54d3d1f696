"""The gRPC libraries that drivers use answer in few forms, so that most calls of registrations are made by bytes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio

from plugind.actors.grpc.client.dial import dial_registration
from plugind.protocol.proto.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from plugind.protocol.wire.learning import KnownConversations
from plugind.tests.end_to_end.csi_drivers import ALL, NODE, CSIDriverProgram
from plugind.tests.end_to_end.processes import plugin_process
from plugind.tests.tools.known_streams import GET_INFO, NOTIFY

CONVERSATIONS = 60


@pytest.mark.parametrize("driver", ALL, ids=lambda driver: driver.label)
async def test_nearly_all_calls_are_made_by_their_bytes(driver: CSIDriverProgram, tmp_path: Path) -> None:
    """Whatever the library sends besides, such as SETTINGS, WINDOW_UPDATE and PING, and in however many segments."""
    path = str(tmp_path / "a-reg.sock")
    conversations, calls, began = KnownConversations(), Counter[bool](), trio.current_time()
    command = driver.command(Path(path), "a.example.com", tmp_path / "a.sock")
    with trio.fail_after(120):
        async with plugin_process(command) as program:
            await program.line(listening=path)
            for _ in range(CONVERSATIONS):
                channel = await dial_registration(path, timeout=60, conversations=conversations)
                info = await channel.unary(GET_INFO[0], InfoRequest(), PluginInfo)
                assert info.name == "a.example.com"
                calls[channel.is_known] += 1
                verdict = RegistrationStatus(plugin_registered=True)
                await channel.unary(NOTIFY[0], verdict, RegistrationStatusResponse)
                calls[channel.is_known] += 1
                channel.close()
    # A frame may come in pieces on a busy machine. And grpc-js says what time it is: each second makes another form.
    seconds = trio.current_time() - began if driver is NODE else 0
    assert calls[False] <= 2 * (4 + seconds)
