"""A conversation with a plugin that floods."""

from __future__ import annotations

import math
import struct

import pytest
import trio
import trio.testing

from plugind.actors.grpc.client.registration_channel import RegistrationChannel
from plugind.actors.grpc.endpoints import Endpoints, RealEndpointFiles
from plugind.actors.registration.conversation import Conversation, ConversationConfig
from plugind.actors.registration.dial_slots import DialSlots
from plugind.actors.simulation.streams import memory_connection
from plugind.protocol.identity import Identity
from plugind.protocol.plugins.status import Outcome
from plugind.protocol.registration.failures import Retry, StepFailedError
from plugind.protocol.registration.settings import RegistrationSettings
from plugind.protocol.wire.learning import KnownConversations
from plugind.protocol.wire.limits import REGISTRATION_LIMITS
from plugind.tests.wire.hostile import HELLO, data, headers


async def test_a_flooder_gives_its_slot_back_fails_and_is_tried_again_later() -> None:
    """Fault 56: the next conversation begins while the flooder waits for its turns; the reason names the budget."""
    slots, made, ended = DialSlots(limit=1, expire_after=math.inf), memory_connection(), list[str]()
    await made.server.send_all(HELLO + headers(1) + data(1, struct.pack(">BI", 0, 60_000)) + data(1, b"x") * 1000)

    async def dial(path: str, **_: object) -> RegistrationChannel:
        return RegistrationChannel(made.client, KnownConversations(REGISTRATION_LIMITS))

    async def next_one() -> None:
        (await slots.acquire()).release()
        ended.append("next")

    endpoints = Endpoints(RealEndpointFiles(), ())
    flooder = Conversation(ConversationConfig(dial, slots, endpoints), "/a.sock", RegistrationSettings())
    assert await flooder.dial(Identity(1, 2, 3), "/", lambda _: None, patient=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(next_one)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(StepFailedError) as failed:
            await flooder.get_info(lambda: None)
        ended.append("flooder")
        flooder.hang_up()
    assert ended == ["next", "flooder"]
    failure = failed.value
    assert (failure.retry, failure.outcome) == (Retry.BACKOFF, Outcome.FAILED)
    assert failure.reason.endswith("frames for one call over the limit of 256 (limit call_frames)")
