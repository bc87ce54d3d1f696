"""Handlers are checked when they are added; methods that are not ``async`` run in threads; what broke is logged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from plugind import Supervisor
from plugind.actors.handlers.calls import MAX_THREADS, CallConfig, HandlerCalls
from plugind.actors.handlers.handler import Handler, check_handler
from plugind.protocol.errors import PluginError
from plugind.protocol.logs.lines import Level
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import Ending, Outcome
from plugind.testing import Fails, FakeHandler, FakePlugin, SimulatedNode
from plugind.tests.actors.handlers.calling import OK, Lines, calling

SOCKET = "/reg/a.sock"


def plugin(name: str = "x") -> Plugin:
    return Plugin("T", name, SOCKET, ("1.0.0",), SOCKET, 1)


class Good:
    """A handler of ``def`` methods, which says in which thread each call ran."""

    follow = None

    def __init__(self) -> None:
        self.threads: list[int] = []

    def validate(self, plugin: Plugin) -> None:
        self.threads.append(threading.get_ident())
        if plugin.name == "refused":
            raise PluginError("not this one")
        if plugin.name == "broken":
            raise KeyError("room")

    def register(self, plugin: Plugin) -> None:
        self.threads.append(threading.get_ident())

    def deregister(self, plugin: Plugin) -> None:
        self.threads.append(threading.get_ident())


# --- the check --------------------------------------------------------------------------------------------------------


class WithoutDeregister:
    async def validate(self, plugin: Plugin) -> None:
        pass

    async def register(self, plugin: Plugin) -> None:
        pass


class NotCallable(Good):
    register = 3  # type: ignore[assignment]  # that is the fault


class TwoArguments(Good):
    def validate(self, plugin: Plugin, reason: str) -> None:  # type: ignore[override]  # that is the fault
        pass


class NoArguments(Good):
    async def deregister(self) -> None:  # type: ignore[override]  # that is the fault
        pass


class Yields(Good):
    def register(self, plugin: Plugin) -> Iterator[None]:  # type: ignore[override]  # that is the fault
        yield


class OddPolicy(Good):
    instances = "newest"


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (WithoutDeregister(), "WithoutDeregister.deregister is missing; define it with one parameter, the plugin"),
        (NotCallable(), "NotCallable.register is 3, which cannot be called; make it a method"),
        (TwoArguments(), "TwoArguments.validate cannot be called with one argument, the plugin: its parameters are"),
        (NoArguments(), "NoArguments.deregister cannot be called with one argument, the plugin: its parameters are ()"),
        (Yields(), "Yields.register is a generator, which does nothing when it is called; take the yield out"),
        (OddPolicy(), "OddPolicy.instances is 'newest'; make it an InstancePolicy"),
        (Good, "the handler for T is the class Good; add an instance of it: Good()"),
    ],
)
async def test_a_handler_that_cannot_work_is_refused_when_it_is_added(
    autojump_clock: MockClock, handler: object, text: str
) -> None:
    """Fault 81: with an error that names what is wrong, and not with the first plugin."""
    with pytest.raises(TypeError) as at_start:
        Supervisor(handlers={"T": cast("Handler", handler)})
    assert text in str(at_start.value)

    async with SimulatedNode() as node:
        with pytest.raises(TypeError) as later:
            await node.supervisor.add_handler("T", cast("Handler", handler))
        assert str(later.value) == str(at_start.value)


def test_what_can_be_called_with_a_plugin_is_accepted() -> None:
    class Optional(Good):
        def validate(self, plugin: Plugin, *, strict: bool = False) -> None:
            pass

        async def register(self, *plugins: Plugin) -> None:  # type: ignore[override]  # it takes one, too
            pass

    for handler in (Good(), FakeHandler(), Optional()):
        check_handler("T", handler)


# --- threads ----------------------------------------------------------------------------------------------------------


async def test_methods_that_are_not_async_run_in_threads_with_the_same_outcomes() -> None:
    """Faults 81 and 83: they may block without blocking the loop."""
    handler = Good()
    async with calling(handler) as caller:
        assert await caller.call("validate") == OK
        assert await caller.call("validate", "refused") == Ending(Outcome.REFUSED, "not this one")
        broken = await caller.call("validate", "broken")
    assert broken == Ending(Outcome.BROKEN, "the handler broke: KeyError: 'room'")
    assert threading.get_ident() not in handler.threads


class Stuck(Good):
    """A handler whose register of "x" blocks its thread until it is let go."""

    follow = None

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.calls: list[str] = []

    def register(self, plugin: Plugin) -> None:
        self.calls.append(f"register {plugin.name}")
        if plugin.name.startswith("x"):
            self.let_go.wait()
        self.calls.append(f"registered {plugin.name}")

    def deregister(self, plugin: Plugin) -> None:
        self.calls.append(f"deregister {plugin.name}")


async def test_a_thread_that_was_given_up_keeps_its_name_busy_until_it_returns_and_is_shown() -> None:
    """Fault 82: a thread cannot be cancelled, so nothing else is called for that name meanwhile."""
    handler = Stuck()
    async with calling(handler, timeout=0.05) as caller:
        given_up = await caller.call("register")
        caller.served.calls.give(60.0)
        await caller.ask("deregister")
        assert await caller.call("register", "y") == OK
        wrong = str(caller.served.read().wrong)
        assert "deregister x" not in handler.calls
        handler.let_go.set()

    assert given_up == Ending(Outcome.TIMED_OUT, "the handler did not finish in 0.05 s")
    assert wrong.startswith("register of x was given up ")
    assert wrong.endswith(" s ago, its thread still runs, and other calls for that name wait")
    assert [ending for _, _, ending in caller.endings] == [OK]
    assert caller.served.read().wrong is None
    assert handler.calls[-2:] == ["registered x", "deregister x"]


async def test_a_handler_has_a_limited_number_of_threads_and_the_reason_says_that_they_are_busy() -> None:
    """Fault 82: threads that were given up count, so that a broken handler does not fill the process with them."""
    handler = Stuck()
    async with calling(handler, timeout=0.05) as caller:
        async with trio.open_nursery() as nursery:
            for number in range(MAX_THREADS):
                nursery.start_soon(caller.call, "register", f"x{number}")
        answer = await caller.call("register", "y")
        handler.let_go.set()
    assert answer.error == f"all {MAX_THREADS} threads of the handler were busy for 0.05 s"
    assert "register y" not in handler.calls


class Cancelled(FakeHandler):
    """A handler that uses asyncio, and lets the end of a task of asyncio out."""

    async def register(self, plugin: Plugin) -> None:
        raise asyncio.CancelledError

    def deregister(self, plugin: Plugin) -> None:  # type: ignore[override]  # it runs in a thread
        raise asyncio.CancelledError


@pytest.mark.parametrize("ask", ["register", "deregister"])
async def test_a_cancellation_of_asyncio_is_an_error_of_the_handler(ask: str) -> None:
    """Fault 82: it is no ``Exception``, and would end the node, from a thread with a TrioInternalError."""
    async with calling(Cancelled()) as caller:
        assert await caller.call(ask) == Ending(Outcome.BROKEN, "the handler broke: CancelledError: ")


async def test_a_thread_that_returns_while_its_call_is_cancelled_was_not_given_up() -> None:
    """Fault 82: health would show it for ever."""
    handler = Stuck()
    calls = HandlerCalls(handler, CallConfig(30.0), "T")
    call = calls.prepare("register", plugin())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(calls.make, call)
        await trio.testing.wait_all_tasks_blocked()
        assert call.thread is not None
        call.scope.cancel()
        # The thread ends before the task of the call runs.
        call.thread.returned.set()
        await trio.testing.wait_all_tasks_blocked()
        assert calls.wrong is None
        handler.let_go.set()


async def test_a_function_that_returns_a_coroutine_is_awaited() -> None:
    """As the decorator of an ``async`` method may do."""

    class Decorated(FakeHandler):
        def validate(self, plugin: Plugin) -> Any:
            return FakeHandler.validate(self, plugin)

    handler = Decorated().script("validate", Fails(PluginError("no")))
    async with calling(handler) as caller:
        assert (await caller.call("validate")).error == "no"


async def test_a_simulated_node_calls_such_methods_in_line(autojump_clock: MockClock) -> None:
    handler = Good()
    async with SimulatedNode(handlers={"T": handler}) as node:
        node.plug("a.sock", FakePlugin("T", "x"))
        node.plug("b.sock", FakePlugin("T", "refused"))
        await node.settled()
        assert (node.state("a.sock"), node.state("b.sock")) == ("registered", "waiting")
    assert set(handler.threads) == {threading.get_ident()}


# --- refused or broken ------------------------------------------------------------------------------------------------


async def test_a_handler_that_broke_and_one_that_refused_are_told_shown_and_logged_apart(
    autojump_clock: MockClock,
) -> None:
    """Faults 81 and 84: the words of the reference stay around the error."""
    handler = FakeHandler()
    handler.always("register", Fails(PluginError("no room")), name="refused")
    handler.always("register", Fails(KeyError("room")), name="broken")
    handler.always("deregister", Fails(OSError("no disk")), name="broken")
    log = Lines()
    async with SimulatedNode(handlers={"T": handler}, log=log) as node:
        notified = {name: node.plug(f"{name}.sock", FakePlugin("T", name)) for name in ("refused", "broken")}
        await node.settled()
        reference = "RegisterPlugin error -- plugin registration failed with err: "
        assert notified["refused"].calls[-1].error == f"{reference}no room"
        assert notified["broken"].calls[-1].error == f"{reference}the handler broke: KeyError: 'room'"
        causes = {name: status.cause for name in notified if (status := node.status(f"{name}.sock")) is not None}

    assert causes == {
        "refused": "plugin registration failed: no room",
        "broken": "plugin registration failed: the handler broke: KeyError: 'room'",
    }
    broke = log.with_text("handler broke")
    assert {level for level, _ in broke} == {Level.ERROR}
    assert {(fields["name"], fields["call"]) for _, fields in broke} == {
        ("broken", "register"),
        ("broken", "deregister"),
    }
    (_, first), *_ = broke
    assert (first["type"], first["socket"], first["error"]) == ("T", "/plugins/broken.sock", "KeyError: 'room'")
    assert "KeyError: 'room'" in str(first["traceback"])
    assert "in _call" in str(first["traceback"])
    waiting = {fields["name"]: fields["cause"] for _, fields in log.with_text("plugin waiting")}
    assert waiting == causes
