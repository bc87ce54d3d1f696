"""Methods of a handler that never wait are called in the task that asks; all else is as if they were not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest.mock import AsyncMock

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from plugind.actors.asks import Asks
from plugind.actors.handlers import actor
from plugind.actors.handlers.actor import HandlerInbox
from plugind.actors.handlers.calls import CallConfig, Calls
from plugind.actors.handlers.handler import Handler
from plugind.actors.handlers.prompt import never_waits
from plugind.actors.registration.inbox import RegistrationInbox
from plugind.actors.watchdog import BlockedSteps
from plugind.protocol import messages as m
from plugind.protocol.backoff import Backoff
from plugind.protocol.config import Config
from plugind.protocol.errors import PluginError
from plugind.protocol.plugins import CSI, DEVICE, DRA, InstancePolicy, Plugin
from plugind.protocol.status import Outcome
from plugind.testing import Entry, FakePlugin, SimulatedNode

TIMEOUT = 120.0


def plugin(name: str = "x", socket: str = "/reg/a.sock") -> Plugin:
    return Plugin("T", name, socket, ("1.0.0",), socket, 1)


# --- which methods never wait -----------------------------------------------------------------------------------------


async def nothing(plugin: Plugin) -> None:
    pass


async def calls_much(plugin: Plugin) -> None:
    names = sorted({character for character in plugin.name if character != "x"}, key=lambda it: it)
    with suppress(OSError):
        for name in names:
            try:
                int(name)
            except ValueError:
                continue


async def waits(plugin: Plugin) -> None:
    await nothing(plugin)


async def waits_at_times(plugin: Plugin) -> None:
    if plugin.name == "slow":
        await trio.sleep(1)


async def waits_in_a_block(plugin: Plugin) -> None:
    async with trio.open_nursery():
        pass


async def waits_in_a_loop(plugin: Plugin) -> None:
    async for _ in trio.open_memory_channel[int](1)[1]:
        pass


async def waits_in_a_comprehension(plugin: Plugin) -> None:
    [_ async for _ in trio.open_memory_channel[int](1)[1]]


def in_a_thread(plugin: Plugin) -> None:
    pass


def returns_a_coroutine(plugin: Plugin) -> Any:
    return nothing(plugin)


class CallableObject:
    async def __call__(self, plugin: Plugin) -> None:
        pass


@pytest.mark.parametrize("method", [nothing, calls_much])
def test_a_method_without_an_await_never_waits(method: object) -> None:
    assert never_waits(method)


@pytest.mark.parametrize(
    "method",
    [
        waits,
        waits_at_times,
        waits_in_a_block,
        waits_in_a_loop,
        waits_in_a_comprehension,
        in_a_thread,
        returns_a_coroutine,
        CallableObject(),
        AsyncMock(),
        print,
        None,
    ],
)
def test_a_method_that_may_wait_or_whose_code_is_not_known_is_left_to_the_actor(method: object) -> None:
    assert not never_waits(method)


# --- calls ------------------------------------------------------------------------------------------------------------


@attrs.define(slots=False)
class Prompt:
    """A handler that never waits; it records its calls, and the task of each."""

    calls: list[str] = attrs.Factory(list)
    tasks: list[trio.lowlevel.Task] = attrs.Factory(list)
    raises: Callable[[], BaseException] | None = None

    async def validate(self, plugin: Plugin) -> None:
        self.note("validate", plugin)

    async def register(self, plugin: Plugin) -> None:
        self.note("register", plugin)

    async def deregister(self, plugin: Plugin) -> None:
        self.note("deregister", plugin)

    def note(self, call: str, plugin: Plugin) -> None:
        self.calls.append(f"{call} {plugin.name}")
        self.tasks.append(trio.lowlevel.current_task())
        if self.raises is not None:
            raise self.raises()


class SlowToRegister(Prompt):
    """It takes five seconds to register, and its other methods never wait."""

    async def register(self, plugin: Plugin) -> None:
        self.note("register", plugin)
        await trio.sleep(5)
        self.calls.append(f"registered {plugin.name}")


class Asker:
    """A registration that asks, and takes each answer before it asks again."""

    def __init__(self, handler: HandlerInbox) -> None:
        self.inbox = RegistrationInbox()
        self.asks = Asks(self.inbox)
        self.asks.handler = handler

    async def ask(self, ask: type[m.Validate | m.Register | m.Deregister], name: str = "x") -> m.HandlerAnswered:
        self.asks.ask_handler(ask, plugin(name))
        answer = await self.asks.call_handler() if self.asks.to_call is not None else None
        if answer is None:
            await self.inbox.arrival()
            message = self.inbox.receive_nowait()
            assert isinstance(message, m.HandlerAnswered)
            answer = message
        assert self.asks.is_answered_by(answer.ticket)
        return answer


async def keep(handler: Handler, inbox: HandlerInbox, pause: float = 0.0) -> None:
    """Run the actor, and start it again when it crashes, after a pause."""
    lanes: actor.Lanes = {}
    calls = Calls(handler, CallConfig(TIMEOUT), "T")
    while True:
        try:
            await actor.run(calls, inbox, lanes)
        except* AttributeError:
            await trio.sleep(pause)
        else:
            return


async def test_it_is_called_in_the_task_that_asks(autojump_clock: MockClock) -> None:
    handler, inbox = Prompt(), HandlerInbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, handler, inbox)
        await trio.testing.wait_all_tasks_blocked()
        asker = Asker(inbox)
        for ask in (m.Validate, m.Register, m.Deregister):
            assert (await asker.ask(ask)).outcome is Outcome.OK
        inbox.close()
    assert handler.calls == ["validate x", "register x", "deregister x"]
    assert handler.tasks == [trio.lowlevel.current_task()] * 3


async def test_it_waits_for_its_turn_while_another_call_of_the_name_is_under_way(autojump_clock: MockClock) -> None:
    """Behaviour 21: and for the calls that wait before it. Other names do not wait."""
    handler, inbox = SlowToRegister(), HandlerInbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, handler, inbox)
        await trio.testing.wait_all_tasks_blocked()
        for name, ask in (("x", m.Register), ("x", m.Deregister), ("x", m.Validate), ("y", m.Validate)):
            nursery.start_soon(Asker(inbox).ask, ask, name)
            await trio.testing.wait_all_tasks_blocked()
        assert handler.calls == ["register x", "validate y"]
        await trio.sleep(6)
        inbox.close()
    assert handler.calls[2:] == ["registered x", "deregister x", "validate x"]


async def test_it_does_not_overtake_an_ask_that_no_worker_has_taken_yet(autojump_clock: MockClock) -> None:
    """Behaviour 21."""
    handler, inbox = SlowToRegister(), HandlerInbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, handler, inbox)
        await trio.testing.wait_all_tasks_blocked()
        inbox.send_nowait(m.Register(plugin(), 1, RegistrationInbox()))
        await Asker(inbox).ask(m.Deregister)
        inbox.close()
    assert handler.calls == ["register x", "registered x", "deregister x"]


async def test_it_overtakes_asks_about_other_plugins(autojump_clock: MockClock) -> None:
    """In a storm some ask waits nearly always. If all others had to wait for that, each would cost two messages."""
    handler, inbox = SlowToRegister(), HandlerInbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, handler, inbox)
        await trio.testing.wait_all_tasks_blocked()
        inbox.send_nowait(m.Register(plugin("y"), 1, RegistrationInbox()))
        assert (await Asker(inbox).ask(m.Validate)).outcome is Outcome.OK
        assert handler.calls == ["validate x"]
        inbox.close()
    assert handler.calls == ["validate x", "register y", "registered y"]


async def test_it_does_not_overtake_the_last_of_several_asks_about_its_plugin(autojump_clock: MockClock) -> None:
    """Behaviour 21: neither before a worker takes the first of them nor after that."""
    handler, inbox = SlowToRegister(), HandlerInbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, handler, inbox)
        await trio.testing.wait_all_tasks_blocked()
        first, second = (m.Register(plugin(), ticket, RegistrationInbox()) for ticket in (1, 2))
        for message in (first, second):
            inbox.send_nowait(message)
        assert inbox.receive_nowait() is first
        assert inbox.call(m.Validate(plugin(), 3, RegistrationInbox())) is None
        assert inbox.receive_nowait() is second
        assert (await Asker(inbox).ask(m.Validate)).outcome is Outcome.OK
        inbox.close()
    assert handler.calls == ["validate x"]


async def test_it_is_not_called_while_the_actor_does_not_run(autojump_clock: MockClock) -> None:
    """Fault 85: after a crash all asks wait for the successor."""
    handler, inbox = Prompt(), HandlerInbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, handler, inbox, 3.0)
        await trio.testing.wait_all_tasks_blocked()
        inbox.send_nowait(object())  # type: ignore[arg-type]  # no actor sends it
        await trio.testing.wait_all_tasks_blocked()
        assert (await Asker(inbox).ask(m.Register)).outcome is Outcome.OK
        inbox.close()
    assert trio.current_time() == 3.0
    assert handler.tasks != [trio.lowlevel.current_task()]


async def test_a_method_that_a_program_has_replaced_may_wait(autojump_clock: MockClock) -> None:
    handler, inbox = Prompt(), HandlerInbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, handler, inbox)
        await trio.testing.wait_all_tasks_blocked()
        handler.validate = waits  # type: ignore[method-assign]
        asker = Asker(inbox)
        asker.asks.ask_handler(m.Validate, plugin())
        assert asker.asks.to_call is None
        inbox.close()


@pytest.mark.parametrize(
    ("error", "outcome", "text"),
    [
        (lambda: PluginError("too old"), Outcome.REFUSED, "too old"),
        (lambda: KeyError("x"), Outcome.BROKEN, "the handler broke: KeyError: 'x'"),
        (lambda: SystemExit(3), Outcome.BROKEN, "the handler broke: SystemExit: 3"),
        (lambda: GeneratorExit(), Outcome.BROKEN, "the handler broke: GeneratorExit: "),
        (lambda: KeyboardInterrupt(), Outcome.BROKEN, "the handler broke: KeyboardInterrupt: "),
        (lambda: trio.Cancelled._create(source="explicit"), Outcome.BROKEN, "the handler broke: Cancelled: "),
    ],
    ids=["refusal", "error", "exit", "generator exit", "interrupt", "cancelled"],
)
async def test_an_error_fails_only_the_plugin_of_the_call(
    error: Callable[[], BaseException], outcome: Outcome, text: str
) -> None:
    """Behaviour 22, faults 81 and 82."""
    calls = Calls(Prompt(raises=error), CallConfig(TIMEOUT, handles_sigint=True), "T")
    assert calls.is_prompt("register")
    ending = await calls.make_at_once("register", plugin())
    assert ending.outcome is outcome
    assert ending.error.startswith(text)


async def test_an_interrupt_ends_a_program_that_leaves_sigint_to_python() -> None:
    calls = Calls(Prompt(raises=KeyboardInterrupt), CallConfig(TIMEOUT), "T")
    with pytest.raises(KeyboardInterrupt):
        await calls.make_at_once("register", plugin())


async def test_one_that_blocks_is_named() -> None:
    """Fault 83."""

    class Blocks(Prompt):
        async def register(self, plugin: Plugin) -> None:
            threading.Event().wait(0.02)

    steps = BlockedSteps()
    calls = Calls(Blocks(), CallConfig(TIMEOUT, watchdog=steps, blocked_after=0.01), "T")
    await calls.make_at_once("validate", plugin())
    assert steps.take() is None
    await calls.make_at_once("register", plugin())
    step = steps.take()
    assert step is not None
    assert (step.type, step.call, step.plugin) == ("T", "register", plugin())
    assert step.seconds >= 0.02


# --- a node -----------------------------------------------------------------------------------------------------------


class Judge:
    """A handler that refuses some plugins; it never waits."""

    instances = InstancePolicy.NEWEST

    def __init__(self) -> None:
        self.calls: list[tuple[float, str, str, int]] = []
        self._failed: set[str] = set()

    async def validate(self, plugin: Plugin) -> None:
        self.judge("validate", plugin)

    async def register(self, plugin: Plugin) -> None:
        self.judge("register", plugin)

    async def deregister(self, plugin: Plugin) -> None:
        self.judge("deregister", plugin)

    def judge(self, call: str, plugin: Plugin) -> None:
        self.calls.append((round(trio.current_time(), 6), call, plugin.name, plugin.generation))
        if plugin.name == f"no-{call}":
            raise PluginError("no room")
        if plugin.name == "once" and call not in self._failed:
            self._failed.add(call)
            raise ValueError("a bug, once")
        if plugin.name == f"bad-{call}":
            raise ValueError("a bug")


class LeftToTheActor(Judge):
    """The same handler, whose methods are called by the actor."""

    async def validate(self, plugin: Plugin) -> None:
        await super().validate(plugin)

    async def register(self, plugin: Plugin) -> None:
        await super().register(plugin)

    async def deregister(self, plugin: Plugin) -> None:
        await super().deregister(plugin)


async def play(judge: Judge) -> tuple[list[object], dict[str, tuple[Entry, ...]]]:
    """Return what a node does with a few plugins: the calls of its handler, and the history of each socket."""
    async with SimulatedNode(Config(backoff=Backoff(jitter=0.0)), handlers={"T": judge}) as node:
        calls = ("validate", "register", "deregister")
        names = ["x", "x", "y", "once", *(f"{how}-{call}" for how in ("no", "bad") for call in calls)]
        plugged = [node.plug(f"{number}.sock", FakePlugin("T", name)) for number, name in enumerate(names)]
        await node.settled()
        await trio.sleep(5)
        for one in plugged[1::2]:
            one.stop()
        node.crash("handler", "T")
        await node.settled()
        await node.supervisor.retry("no-register")
        for one in plugged[::2]:
            one.stop()
        await trio.sleep(60)
        await node.settled()
        return sorted(judge.calls, key=str), {path: node.history(path) for path in sorted(node.statuses)}


def test_a_node_does_the_same_as_with_calls_that_the_actor_makes() -> None:
    """Behaviours 21, 22 and 36: the same calls at the same times, and the same histories."""
    calls, histories = trio.run(play, Judge(), clock=MockClock(autojump_threshold=0))
    calls_of_actor, histories_of_actor = trio.run(play, LeftToTheActor(), clock=MockClock(autojump_threshold=0))
    assert calls == calls_of_actor
    assert {path: len(entries) for path, entries in histories.items()} == {
        path: len(entries) for path, entries in histories_of_actor.items()
    }
    for path, entries in histories.items():
        assert entries == histories_of_actor[path]


def test_the_built_in_handlers_judge_without_waiting() -> None:
    from plugind.actors.handlers.registry import built_in_handlers

    handlers = built_in_handlers()
    assert all(Calls(handlers[it], CallConfig(TIMEOUT), it).is_prompt("validate") for it in (CSI, DEVICE, DRA))
