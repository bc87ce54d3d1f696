"""The pieces of answers: what streams hold for clients that do not read is bounded in bytes, of each and of all."""

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.http.server import HttpRequest, Send
from plugind.actors.messaging.mailbox import Audience
from plugind.actors.status.leases_api import LeasesApi
from plugind.actors.status.streams import Backlog, Unsent
from plugind.protocol.leases.messages import (
    LeasesAsked,
    LeasesMessage,
    LeasesSubscribed,
    LeasesUnsubscribed,
    LeasesViewMessage,
)
from plugind.protocol.leases.replies import LeaseChanged, LeasesSnapshot
from plugind.protocol.leases.values import Lease, LeaseState, NoOwner, Request, Wanted
from plugind.protocol.logs.lines import SILENT
from plugind.protocol.messages.status import Lagged

LONG = Request((Wanted("v.com/a", 1),), labels=(("k", "x" * 60_000),))


@attrs.define
class LeaseActor:
    """Answers watches and lists."""

    leases: list[Lease] = attrs.field(factory=list)
    audience: Audience[LeasesViewMessage] = attrs.field(factory=lambda: Audience[LeasesViewMessage](Lagged()))

    def send_nowait(self, message: LeasesMessage, /) -> None:
        snapshot = LeasesSnapshot(trio.current_time(), tuple(self.leases))
        match message:
            case LeasesSubscribed():
                self.audience.add(message.subscriber, snapshot)
            case LeasesUnsubscribed():
                self.audience.remove(message.subscriber)
            case LeasesAsked():
                message.reply.send_nowait(snapshot)
            case _:
                raise AssertionError(message)

    def waiting(self) -> int:
        """Return how many messages wait for watches."""
        channels = [subscriber._writer for subscriber in self.audience.subscribers if isinstance(subscriber, Backlog)]
        return sum(channel.statistics().current_buffer_used for channel in channels)


async def test_all_streams_together_hold_a_bounded_number_of_bytes_and_who_reads_loses_nothing(
    autojump_clock: MockClock,
) -> None:
    """Half of 40 clients who never read watch changes of 60 KB each; the other half list leases of 60 KB."""
    lease = Lease("l", 0, LONG, NoOwner(), LeaseState.HELD, 0.0)
    actor, unsent = LeaseActor([lease] * 3), Unsent(1_000_000)
    api = LeasesApi(lambda: 0.0, actor, unsent=unsent)
    hanging = ended = most = 0
    read = bytearray()

    async def hang(piece: bytes) -> None:
        nonlocal hanging
        hanging += len(piece)
        try:
            await trio.sleep_forever()
        finally:
            hanging -= len(piece)

    async def take(piece: bytes) -> None:
        read.extend(piece)

    async def ask(path: str, send: Send) -> None:
        nonlocal ended
        response = await api.answer(HttpRequest("GET", path, {}, b""))
        assert response.write is not None
        with pytest.raises(trio.BrokenResourceError, match="too slowly"):
            await response.write(send)
        ended += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "/v1/leases/watch", take)
        for _ in range(20):
            nursery.start_soon(ask, "/v1/leases/watch", hang)
            nursery.start_soon(ask, "/v1/leases", hang)
            await wait_all_tasks_blocked()
            most = max(most, hanging)
        for _ in range(100):
            actor.audience.tell(LeaseChanged(trio.current_time(), lease), SILENT)
            await wait_all_tasks_blocked()
            most = max(most, hanging + actor.waiting() * 60_000)
        nursery.cancel_scope.cancel()
    assert 500_000 < most <= 1_000_000
    assert ended > 20
    assert read.count(b"\n") == 103
    assert unsent.total == 0
