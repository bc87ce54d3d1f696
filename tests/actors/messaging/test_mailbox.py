"""Reports are never lost."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from plugind.actors.messaging.mailbox import report


async def test_a_report_to_a_full_inbox_waits_and_is_not_lost(nursery: trio.Nursery) -> None:
    """Fault 86."""
    send, receive = trio.open_memory_channel[int](1)
    await report(send, 1)
    nursery.start_soon(report, send, 2)
    await wait_all_tasks_blocked()

    assert [await receive.receive(), await receive.receive()] == [1, 2]
