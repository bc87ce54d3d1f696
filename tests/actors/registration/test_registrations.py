"""The tasks of the registration actors by themselves: the test simulates the actors, and nothing else runs."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.registration.inbox import RegistrationInbox
from plugind.actors.registration.registrations import Registrations
from plugind.protocol.identity import Identity
from plugind.protocol.messages.discovery import SocketAppeared
from plugind.protocol.messages.reconciler import (
    HandlerPort,
    ReconcilerMessage,
    RegistrationEnded,
    RetryAnswered,
    StopAsked,
)
from plugind.protocol.messages.registration import TryNow
from plugind.protocol.plugins.info import PluginInfo
from plugind.protocol.world.effects import PendingDeregistration, RegistrationCrashedError, StartRegistration

A, B = "/r/a", "/r/b"
#: The handler of plugins that these tests only pass on.
NO_HANDLER = cast("HandlerPort", None)
DEREGISTER = StopAsked(deregister=True, anew=True)


def start_of(path: str, generation: int = 1) -> StartRegistration:
    return StartRegistration(SocketAppeared(path, generation, Identity(1, 1, 1), "/r", 0.0))


@attrs.define
class Bench:
    """Registrations whose actors wait until the test ends them."""

    registrations: Registrations = attrs.field(init=False)
    #: Paths and generations, in the order in which their actors began.
    begun: list[tuple[str, int]] = attrs.Factory(list)
    crashed: list[str] = attrs.Factory(list)
    _ends: dict[tuple[str, int], trio.Event] = attrs.Factory(dict)
    _bugs: dict[tuple[str, int], Exception] = attrs.Factory(dict)
    _reports: trio.MemoryReceiveChannel[ReconcilerMessage] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        send, self._reports = trio.open_memory_channel[ReconcilerMessage](math.inf)
        self.registrations = Registrations(self._run, send, lambda name, _: self.crashed.append(name))

    async def _run(self, start: StartRegistration, inbox: RegistrationInbox) -> None:
        key = start.appeared.path, start.appeared.generation
        self.begun.append(key)
        self._ends[key] = trio.Event()
        await self._ends[key].wait()
        if key in self._bugs:
            raise self._bugs[key]

    async def start(self, path: str, generation: int = 1) -> None:
        self.registrations.start(start_of(path, generation))
        await wait_all_tasks_blocked()

    async def end(self, path: str, generation: int = 1, bug: Exception | None = None) -> None:
        """End an actor, or crash it with ``bug``."""
        if bug is not None:
            self._bugs[path, generation] = bug
        self._ends[path, generation].set()
        await wait_all_tasks_blocked()

    def reported(self) -> list[ReconcilerMessage]:
        found: list[ReconcilerMessage] = []
        while self._reports.statistics().current_buffer_used:
            found.append(self._reports.receive_nowait())
        return found

    async def crash_node(self) -> None:
        """Do what the supervisor does when the reconciler crashes and no actor ends within the grace."""
        self.registrations.let_go()
        self.registrations.detach()
        await wait_all_tasks_blocked()


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.registrations.serve)
        await made.registrations.wait_started()
        yield made
        nursery.cancel_scope.cancel()


async def test_a_crash_is_counted_and_reported_and_the_other_actors_go_on(autojump_clock: MockClock) -> None:
    """Fault 85."""
    async with bench() as made:
        await made.start(A)
        await made.start(B)
        await made.end(A, bug=ZeroDivisionError())
        assert made.crashed == ["registration /r/a"]
        assert made.reported() == [RegistrationEnded(A, crashed=True, error="ZeroDivisionError")]
        assert made.registrations.paths == {B}


async def test_let_go_asks_each_current_actor_to_deregister_and_still_reports_its_end(
    autojump_clock: MockClock,
) -> None:
    """Fault 85: the reports of ending actors are read before the next reconciler starts."""
    async with bench() as made:
        await made.start(A)
        inbox = made.registrations.current(A)
        assert inbox is not None
        made.registrations.let_go()
        assert inbox.receive_nowait() == DEREGISTER
        await made.end(A)
        assert made.reported() == [RegistrationEnded(A, crashed=False)]
        assert not made.registrations.any_current


async def test_what_a_crash_left_is_kept_until_the_reconciler_has_handled_it(autojump_clock: MockClock) -> None:
    """Fault 85: until then, a crash of the reconciler has it deregistered; after that nothing is kept of the path."""
    pending = PendingDeregistration(PluginInfo("T", "x", A, ()), 1, NO_HANDLER)
    for handled in (False, True):
        async with bench() as made:
            await made.start(A)
            bug = RegistrationCrashedError(pending)
            bug.__cause__ = ZeroDivisionError()
            await made.end(A, bug=bug)
            assert made.reported() == [RegistrationEnded(A, crashed=True, error="ZeroDivisionError", owed=True)]
            if handled:
                made.registrations.end_handled(A)
            made.registrations.let_go()
            await wait_all_tasks_blocked()
            assert made.registrations.any_current is not handled
            assert made.begun == ([(A, 1)] if handled else [(A, 1), (A, 1)])
            assert not made.registrations._unsettled


@pytest.mark.parametrize("bug", [None, ZeroDivisionError()], ids=["ends", "crashes"])
async def test_a_detached_actor_keeps_its_path_and_its_end_is_not_reported(
    autojump_clock: MockClock, bug: Exception | None
) -> None:
    """Fault 85, behaviour 20: its successor begins when it has ended, and other paths do not wait."""
    async with bench() as made:
        await made.start(A)
        await made.crash_node()
        assert (made.registrations.detached, made.registrations.any_current) == ({A}, False)
        assert made.registrations.paths == {A}
        await made.start(A, 2)
        await made.start(B, 3)
        assert made.begun == [(A, 1), (B, 3)]
        assert made.registrations.paths == {A, B}
        await made.end(A, bug=bug)
        assert made.begun == [(A, 1), (B, 3), (A, 2)]
        assert made.reported() == []
        assert made.crashed == ([] if bug is None else ["registration /r/a"])
        assert made.registrations.detached == set()
        await made.end(A, 2)
        assert made.reported() == [RegistrationEnded(A, crashed=False)]


async def test_an_actor_that_waits_for_a_detached_one_never_begins_after_the_next_crash(
    autojump_clock: MockClock,
) -> None:
    """Fault 85, seed 3664: it has nothing to deregister, and its successor owns the path."""
    async with bench() as made:
        await made.start(A)
        await made.crash_node()
        await made.start(A, 2)
        await made.crash_node()
        assert (made.registrations.detached, made.registrations.any_current) == ({A}, False)
        await made.start(A, 3)
        await made.end(A)
        assert made.begun == [(A, 1), (A, 3)]
        assert made.reported() == []


async def test_actions_run_when_the_last_detached_actor_has_ended(autojump_clock: MockClock) -> None:
    """Fault 85: the handlers that were removed retire then."""
    done: list[str] = []
    async with bench() as made:
        made.registrations.when_none_is_detached([lambda: done.append("at once")])
        assert done == ["at once"]
        await made.start(A)
        await made.start(B)
        await made.crash_node()
        made.registrations.when_none_is_detached([lambda: done.append("later")])
        await made.end(A)
        assert done == ["at once"]
        await made.end(B)
        assert done == ["at once", "later"]
        # Each action runs once.
        await made.start(A, 2)
        await made.crash_node()
        await made.end(A, 2)
        assert done == ["at once", "later"]


async def test_a_retry_is_answered_also_while_no_actor_reads_it(autojump_clock: MockClock) -> None:
    """One actor waits for a detached one, one has crashed, one has ended: no caller waits for any of them."""
    paths = (A, B, "/r/c")
    async with bench() as made:
        await made.start(A)
        await made.crash_node()
        for path, generation in zip(paths, (2, 3, 4), strict=True):
            await made.start(path, generation)
        inboxes = [made.registrations.current(path) for path in paths]
        before = ask_retry(inboxes[2])
        await made.end(B, 3, bug=ZeroDivisionError())
        await made.end("/r/c", 4)
        replies = [ask_retry(inbox) for inbox in inboxes]
        answers = [answer for reply in (*replies, before) for answer in reply.receive_nowait().answers]
    assert [(answer.socket, answer.tried, answer.why.split(",")[0]) for answer in answers] == [
        (A, True, "the plugin before it is being deregistered"),
        (B, True, "its actor has crashed"),
        ("/r/c", False, "it has left: plugind stops"),
        ("/r/c", False, "it has left: plugind stops"),
    ]


async def test_a_reconciler_that_crashes_while_the_daemon_is_cancelled_starts_nothing(
    autojump_clock: MockClock,
) -> None:
    """Seed 788: what a crash had left was to be deregistered after the actors had ended, which was one more crash."""
    bug = RegistrationCrashedError(PendingDeregistration(PluginInfo("T", "x", A, ()), 1, NO_HANDLER))
    bug.__cause__ = ZeroDivisionError()
    async with bench() as made:
        await made.start(A)
        await made.end(A, bug=bug)
    made.registrations.let_go()
    assert made.begun == [(A, 1)]


def ask_retry(inbox: RegistrationInbox | None) -> trio.MemoryReceiveChannel[RetryAnswered]:
    reply, answer = trio.open_memory_channel[RetryAnswered](1)
    assert inbox is not None
    inbox.send_nowait(TryNow(reply))
    return answer
