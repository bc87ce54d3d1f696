"""The handler actor calls code that we did not write, and contains its errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar, cast

import attrs
import pytest
import trio
import trio.testing
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.handlers import actor
from plugind.actors.handlers.calls import CallConfig, Calls
from plugind.actors.handlers.handler import Handler, policy_of
from plugind.actors.handlers.link import Link, LinkPort
from plugind.protocol import messages as m
from plugind.protocol.errors import PluginError, ValidationError
from plugind.protocol.plugins import InstancePolicy, Plugin
from plugind.protocol.status import Outcome

TIMEOUT = 120.0
Call = Callable[[Plugin], Awaitable[None]]
A = TypeVar("A", bound=m.Ask)


def plugin(name: str = "x", socket: str = "/reg/a.sock") -> Plugin:
    return Plugin("T", name, socket, ("1.0.0",), socket, 1)


async def nothing(plugin: Plugin) -> None:
    pass


@attrs.frozen
class Recording:
    """A handler that follows a script, and records when each call began and ended."""

    validated: Call = nothing
    registered: Call = nothing
    deregistered: Call = nothing
    calls: list[tuple[float, str]] = attrs.Factory(list)

    async def validate(self, plugin: Plugin) -> None:
        await self._note("validate", self.validated, plugin)

    async def register(self, plugin: Plugin) -> None:
        await self._note("register", self.registered, plugin)

    async def deregister(self, plugin: Plugin) -> None:
        await self._note("deregister", self.deregistered, plugin)

    async def _note(self, what: str, call: Call, plugin: Plugin) -> None:
        self.calls.append((trio.current_time(), f"{what} {plugin.name}"))
        await call(plugin)
        self.calls.append((trio.current_time(), f"{what} {plugin.name} ended"))


@attrs.frozen
class Asker:
    """The address of a registration actor; it records the answers and their times."""

    address: actor.HandlerInbox
    answers: list[tuple[float, m.HandlerAnswered]] = attrs.Factory(list)

    def send_nowait(self, message: m.HandlerAnswered, /) -> None:
        self.answers.append((trio.current_time(), message))

    def ask(self, ask: Callable[[Plugin, int, m.Address[m.HandlerAnswered]], A], ticket: int, name: str = "x") -> A:
        asked = ask(plugin(name), ticket, self)
        self.address.send_nowait(asked)
        return asked

    def crash(self) -> None:
        """Crash the actor with a message that no actor sends."""
        self.address.send_nowait(cast("m.HandlerMessage", PoisonMessage()))


@asynccontextmanager
async def running(handler: Handler, links: LinkPort | None = None) -> AsyncIterator[Asker]:
    """Run the actor, and end it by closing its inbox once every call is answered."""
    inbox = actor.HandlerInbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(actor.run, Calls(handler, CallConfig(TIMEOUT), "T"), inbox, None, links)
        try:
            yield Asker(inbox)
        finally:
            inbox.close()


def ok(ticket: int) -> m.HandlerAnswered:
    return m.HandlerAnswered(ticket, Outcome.OK)


def sleeping(seconds: float) -> Call:
    async def call(plugin: Plugin) -> None:
        await trio.sleep(seconds)

    return call


def raising(error: BaseException) -> Call:
    async def call(plugin: Plugin) -> None:
        raise error

    return call


# --- one operation at a time ------------------------------------------------------------------------------------------


async def test_a_call_is_made_and_answered(autojump_clock: trio.testing.MockClock) -> None:
    """Test_NewGoRoutineMap_Positive_SingleOp."""
    handler = Recording(validated=sleeping(1))
    async with running(handler) as asker:
        asker.ask(m.Validate, 1)

    assert handler.calls == [(0.0, "validate x"), (1.0, "validate x ended")]
    assert asker.answers == [(1.0, ok(1))]


async def test_a_second_call_of_a_name_is_made_when_the_first_is_over(autojump_clock: trio.testing.MockClock) -> None:
    """Test_NewGoRoutineMap_Negative_SecondOpBeforeFirstCompletes, …_Positive_SecondOpAfterFirstCompletes and
    …_ThirdOpAfterFirstCompletes; TestOperationExecutor_RegisterPlugin_SerialRegisterPlugin and
    …_UnregisterPlugin_SerialUnregisterPlugin: the reference refuses the second call; here it waits (behaviour 21)."""
    handler = Recording(registered=sleeping(2), deregistered=sleeping(3))
    async with running(handler) as asker:
        asker.ask(m.Register, 1)
        asker.ask(m.Deregister, 2)
        await trio.sleep(1)
        asker.ask(m.Register, 3)

    assert handler.calls == [
        (0.0, "register x"),
        (2.0, "register x ended"),
        (2.0, "deregister x"),
        (5.0, "deregister x ended"),
        (5.0, "register x"),
        (7.0, "register x ended"),
    ]
    assert asker.answers == [(2.0, ok(1)), (5.0, ok(2)), (7.0, ok(3))]


async def test_a_call_is_made_long_after_an_earlier_one_has_ended(autojump_clock: trio.testing.MockClock) -> None:
    """Test_NewGoRoutineMap_Positive_SecondOpAfterFirstCompletes: nothing of the first remains."""
    async with running(Recording()) as asker:
        asker.ask(m.Register, 1)
        await trio.sleep(10)
        asker.ask(m.Deregister, 2)

    assert asker.answers == [(0.0, ok(1)), (10.0, ok(2))]


async def test_calls_of_different_names_run_side_by_side(autojump_clock: trio.testing.MockClock) -> None:
    """TestOperationExecutor_RegisterPlugin_ConcurrentRegisterPlugin and …_UnregisterPlugin_ConcurrentUnregisterPlugin;
    behaviour 22."""
    async with running(Recording(registered=sleeping(5), deregistered=sleeping(5))) as asker:
        for ticket in range(10):
            asker.ask(m.Register if ticket % 2 else m.Deregister, ticket, f"name {ticket}")

    assert [time for time, _ in asker.answers] == 10 * [5.0]
    assert {answer.ticket for _, answer in asker.answers} == set(range(10))


async def test_the_actor_ends_when_its_inbox_is_closed_and_every_call_is_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Test_NewGoRoutineMap_Positive_WaitEmpty and …_Wait."""
    async with running(Recording()):
        pass
    assert trio.current_time() == 0.0

    async with running(Recording(registered=sleeping(4))) as asker:
        asker.ask(m.Register, 1)
        asker.ask(m.Register, 2)
    assert asker.answers == [(4.0, ok(1)), (8.0, ok(2))]


# --- containment ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "outcome", "text"),
    [
        (ValidationError("too old"), Outcome.REFUSED, "too old"),
        (KeyError("x"), Outcome.BROKEN, "the handler broke: KeyError: 'x'"),
        (SystemExit(3), Outcome.BROKEN, "the handler broke: SystemExit: 3"),
        (GRPCError(Status.INVALID_ARGUMENT, "no room"), Outcome.FAILED, "INVALID_ARGUMENT: no room"),
        (GRPCError(Status.UNIMPLEMENTED), Outcome.FAILED, "UNIMPLEMENTED: no message"),
        (GRPCError(Status.INTERNAL, 5000 * "x"), Outcome.FAILED, f"INTERNAL: {1014 * 'x'}"),
        (
            ExceptionGroup("both", [ValueError("a"), OSError("b")]),
            Outcome.BROKEN,
            "the handler broke: ExceptionGroup: both (2 sub-exceptions)",
        ),
        (RuntimeError(5000 * "x"), Outcome.BROKEN, f"the handler broke: RuntimeError: {991 * 'x'}"),
    ],
    ids=["refusal", "error", "exit", "status", "status alone", "long status", "group", "long"],
)
async def test_an_error_of_a_handler_fails_only_the_plugin_of_the_call(
    autojump_clock: trio.testing.MockClock, error: BaseException, outcome: Outcome, text: str
) -> None:
    """Test_NewGoRoutineMap_Positive_SecondOpAfterFirstPanics; behaviour 22, faults 81, 84 and 94."""
    async with running(Recording(registered=raising(error))) as asker:
        asker.ask(m.Register, 1)
        asker.ask(m.Deregister, 2)
        asker.ask(m.Validate, 3, "y")

    answers = sorted((answer for _, answer in asker.answers), key=lambda answer: answer.ticket)
    assert answers == [m.HandlerAnswered(1, outcome, text), ok(2), ok(3)]


async def test_a_handler_that_hangs_is_cancelled_at_the_deadline_and_others_continue(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Fault 82: the next call of the same name begins when the deadline of the hung one is over."""
    handler = Recording(registered=sleeping(1e9), validated=sleeping(1))
    async with running(handler) as asker:
        asker.ask(m.Register, 1)
        asker.ask(m.Validate, 2)
        asker.ask(m.Validate, 3, "y")

    assert asker.answers == [
        (1.0, ok(3)),
        (120.0, m.HandlerAnswered(1, Outcome.TIMED_OUT, "the handler did not finish in 120 s")),
        (121.0, ok(2)),
    ]


async def test_a_slow_handler_within_its_deadline_is_not_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    """Behaviour 26: the deadline covers one call, and not the wait before it."""
    async with running(Recording(registered=sleeping(119))) as asker:
        for ticket in (1, 2, 3):
            asker.ask(m.Register, ticket)

    assert asker.answers == [(119.0, ok(1)), (238.0, ok(2)), (357.0, ok(3))]


async def test_a_handler_with_tasks_of_its_own_is_contained(autojump_clock: trio.testing.MockClock) -> None:
    """Fault 81: a nursery raises an exception group."""

    async def in_a_nursery(plugin: Plugin) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raising(ValueError("in a task")), plugin)
            nursery.start_soon(trio.sleep_forever)

    async with running(Recording(registered=in_a_nursery)) as asker:
        asker.ask(m.Register, 1)
        asker.ask(m.Deregister, 2)

    first, second = (answer for _, answer in asker.answers)
    assert (first.ticket, first.outcome) == (1, Outcome.BROKEN)
    assert first.error.startswith("the handler broke: ExceptionGroup: ")
    assert second == ok(2)


async def _fail_when_cancelled(plugin: Plugin) -> None:
    async def fail_in_cleanup() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while cleaning up")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_in_cleanup)
        nursery.start_soon(trio.sleep_forever)


async def _exit_in_a_task(plugin: Plugin) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(raising(SystemExit(3)), plugin)


@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        (_fail_when_cancelled, Outcome.BROKEN),
        (_exit_in_a_task, Outcome.BROKEN),
        (raising(BaseExceptionGroup("exits", [SystemExit(1), ValueError("a")])), Outcome.BROKEN),
    ],
    ids=["an error when it is cancelled", "an exit in a task", "an exit among errors"],
)
async def test_an_unusual_exception_is_contained_too(
    autojump_clock: trio.testing.MockClock, call: Call, outcome: Outcome
) -> None:
    """Faults 81 and 82: other plugins of the handler are not affected."""
    async with running(Recording(registered=call)) as asker:
        asker.ask(m.Register, 1)
        asker.ask(m.Deregister, 2)

    assert [(answer.ticket, answer.outcome) for _, answer in asker.answers] == [(1, outcome), (2, Outcome.OK)]


class OwnCause(PluginError):  # noqa: N818 - its name does not matter
    """An error of a user, who has another idea of its cause, and does not call the constructor of its base."""

    cause = 7  # type: ignore[assignment] # see above

    def __init__(self) -> None:
        self.args = ("no",)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (PluginError("a long story: too old", cause="too old"), "too old"),
        (PluginError("too old"), None),
        (PluginError("no", cause=5000 * "x"), 1024 * "x"),
        (OwnCause(), None),
    ],
    ids=["cause", "text", "long", "own"],
)
async def test_a_refusal_may_have_its_cause_in_few_words_beside_the_text(
    autojump_clock: trio.testing.MockClock, error: PluginError, cause: str | None
) -> None:
    """Faults 81 and 94: the plugin is told the text, and users are shown the cause."""
    async with running(Recording(registered=raising(error))) as asker:
        asker.ask(m.Register, 1)

    assert asker.answers == [(0.0, m.HandlerAnswered(1, Outcome.REFUSED, str(error), cause))]


async def test_an_error_whose_text_cannot_be_read_is_contained_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Fault 81."""

    class WordlessError(Exception):
        def __str__(self) -> str:
            raise ValueError("this text cannot be read either")

    async with running(Recording(registered=raising(WordlessError()))) as asker:
        asker.ask(m.Register, 1)

    error = "the handler broke: WordlessError: no words"
    assert asker.answers == [(0.0, m.HandlerAnswered(1, Outcome.BROKEN, error))]


async def test_a_keyboard_interrupt_is_not_a_failure_of_the_plugin(autojump_clock: trio.testing.MockClock) -> None:
    interrupt = BaseExceptionGroup("exits", [KeyboardInterrupt(), ValueError("a")])
    with pytest.raises(BaseExceptionGroup) as caught:
        async with running(Recording(registered=raising(interrupt))) as asker:
            asker.ask(m.Register, 1)

    assert caught.value.subgroup(KeyboardInterrupt) is not None
    assert asker.answers == []


async def test_only_a_few_idle_workers_remain(autojump_clock: trio.testing.MockClock) -> None:
    """A storm leaves only a few idle tasks, and later calls add none."""
    slow = "plugin 0"

    async def call(plugin: Plugin) -> None:
        await trio.sleep(100 if plugin.name == slow else 1)

    before = trio.lowlevel.current_statistics().tasks_living
    async with running(Recording(registered=call)) as asker:
        await trio.testing.wait_all_tasks_blocked()
        for ticket in range(20):
            asker.ask(m.Register, ticket, f"plugin {ticket}")
        await trio.sleep(0.5)
        assert trio.lowlevel.current_statistics().tasks_living == before + 20 + 1
        await trio.sleep(1.5)
        assert trio.lowlevel.current_statistics().tasks_living == before + 1 + actor.MAX_IDLE
        for ticket in range(20):
            asker.ask(m.Register, ticket, f"later {ticket}")
            await trio.sleep(2)
        assert trio.lowlevel.current_statistics().tasks_living == before + 1 + actor.MAX_IDLE


async def test_calls_that_come_one_by_one_need_two_workers(autojump_clock: trio.testing.MockClock) -> None:
    before = trio.lowlevel.current_statistics().tasks_living
    async with running(Recording(registered=sleeping(1))) as asker:
        for ticket in range(20):
            asker.ask(m.Register, ticket, f"plugin {ticket}")
            await trio.sleep(2)
        assert trio.lowlevel.current_statistics().tasks_living == before + 2


async def test_a_handler_whose_method_is_not_async_fails_only_its_plugin(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Fault 81."""

    def not_async(plugin: Plugin) -> None:
        return None

    async with running(Recording(registered=not_async)) as asker:  # type: ignore[arg-type]
        asker.ask(m.Register, 1)
        asker.ask(m.Deregister, 2)

    assert [answer.outcome for _, answer in asker.answers] == [Outcome.BROKEN, Outcome.OK]


async def test_the_actor_itself_can_be_cancelled_in_the_middle_of_a_call(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Containing errors must never swallow Cancelled."""
    with trio.move_on_after(3) as scope:
        async with running(Recording(registered=sleeping(60))) as asker:
            asker.ask(m.Register, 1)

    assert scope.cancelled_caught
    assert trio.current_time() == 3.0
    assert asker.answers == []


def test_a_handler_without_a_policy_has_its_newest_instance_active() -> None:
    """Behaviour 37."""

    class Choosy(Recording):
        instances = InstancePolicy.REJECT

    class Wrong(Recording):
        instances = "newest"

    assert policy_of(Recording()) is InstancePolicy.NEWEST
    assert policy_of(Choosy()) is InstancePolicy.REJECT
    with pytest.raises(TypeError, match=r"^Wrong.instances is 'newest'; make it an InstancePolicy$"):
        policy_of(Wrong())


async def test_calls_of_one_name_are_made_in_order_by_any_worker(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A Deregister that overtook its Register would leave the plugin registered for ever."""
    for _ in range(20):  # The order in which workers run is random.
        handler = Recording()
        async with running(handler) as asker:
            asker.ask(m.Validate, 1, "another")
            await trio.sleep(1)
            asker.ask(m.Validate, 2, "another")
            asker.ask(m.Register, 3)
            asker.ask(m.Deregister, 4)

        assert [call for _, call in handler.calls if call.endswith(" x")] == ["register x", "deregister x"]


# --- withdrawn calls --------------------------------------------------------------------------------------------------


async def test_a_validate_that_is_withdrawn_ends_at_once_and_is_not_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Seed 448: otherwise a call that hangs blocks its name until the deadline, although its answer is not needed."""
    handler = Recording(validated=sleeping(1e9))
    async with running(handler) as asker:
        validate = asker.ask(m.Validate, 1)
        asker.ask(m.Register, 2)
        await trio.sleep(1)
        asker.address.send_nowait(m.Withdraw(validate))

    assert handler.calls == [(0.0, "validate x"), (1.0, "register x"), (1.0, "register x ended")]
    assert asker.answers == [(1.0, ok(2))]


async def test_a_validate_that_is_withdrawn_before_it_begins_is_never_called(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A call of another path with the same ticket is not affected."""
    handler = Recording(registered=sleeping(2))
    async with running(handler) as asker:
        other = Asker(asker.address)
        asker.ask(m.Register, 1)
        validate = asker.ask(m.Validate, 2)
        other.ask(m.Validate, 2)
        await trio.sleep(1)
        asker.address.send_nowait(m.Withdraw(validate))

    assert [call for _, call in handler.calls] == ["register x", "register x ended", "validate x", "validate x ended"]
    assert (asker.answers, other.answers) == ([(2.0, ok(1))], [(2.0, ok(2))])


async def test_a_validate_that_is_withdrawn_too_late_changes_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """It changes nothing while its name is idle, nor during another call."""
    handler = Recording(registered=sleeping(2))
    async with running(handler) as asker:
        validate = asker.ask(m.Validate, 1)
        await trio.sleep(1)
        asker.address.send_nowait(m.Withdraw(validate))
        asker.ask(m.Register, 2)
        asker.ask(m.Deregister, 3)
        asker.address.send_nowait(m.Withdraw(validate))

    assert asker.answers == [(0.0, ok(1)), (3.0, ok(2)), (3.0, ok(3))]


async def test_a_register_that_is_withdrawn_is_cancelled_and_deregistered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Fault 82: a NodeGetInfo that hangs for two minutes must not keep a driver waiting that was started again."""
    handler = Recording(registered=sleeping(1e9))
    async with running(handler) as asker:
        register = asker.ask(m.Register, 1)
        await trio.sleep(1)
        asker.address.send_nowait(m.Withdraw(register))
        asker.ask(m.Deregister, 2)
        asker.ask(m.Validate, 3)

    assert handler.calls == [
        (0.0, "register x"),
        (1.0, "deregister x"),
        (1.0, "deregister x ended"),
        (1.0, "validate x"),
        (1.0, "validate x ended"),
    ]
    assert asker.answers == [(1.0, ok(2)), (1.0, ok(3))]


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_register_that_is_withdrawn_before_it_begins_is_called_for_no_time_and_deregistered(
    autojump_clock: trio.testing.MockClock, crashes: bool
) -> None:
    """Behaviour 36: there is one Deregister for each Register, so neither is left out, not even after a crash."""
    handler = Recording(deregistered=sleeping(2), registered=sleeping(1e9))
    async with crashing(handler) as asker:
        asker.ask(m.Deregister, 1)
        register = asker.ask(m.Register, 2)
        await trio.sleep(1)
        asker.address.send_nowait(m.Withdraw(register))
        asker.ask(m.Deregister, 3)
        if crashes:
            asker.crash()

    begin = 3.0 if crashes else 2.0
    assert handler.calls[-4:] == [
        (begin, "deregister x ended"),
        (begin, "register x"),
        (begin, "deregister x"),
        (begin + 2, "deregister x ended"),
    ]
    assert asker.answers == [(begin, ok(1)), (begin + 2, ok(3))]


async def test_a_register_that_is_withdrawn_too_late_changes_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """It has ended; the next Register of that name is another one."""
    handler = Recording(registered=sleeping(2), deregistered=sleeping(2))
    async with running(handler) as asker:
        register = asker.ask(m.Register, 1)
        await trio.sleep(3)
        asker.address.send_nowait(m.Withdraw(register))
        asker.ask(m.Deregister, 2)
        await trio.sleep(1)
        asker.address.send_nowait(m.Withdraw(register))
        asker.ask(m.Register, 3)

    assert asker.answers == [(2.0, ok(1)), (5.0, ok(2)), (7.0, ok(3))]


# --- a crash of the actor ---------------------------------------------------------------------------------------------


@attrs.define
class PoisonMessage:
    """A message that no actor sends."""


async def keeping(handler: Handler, inbox: actor.HandlerInbox, links: LinkPort | None = None) -> None:
    """Run the actor, and restart it when it crashes, as the supervisor does."""
    lanes: actor.Lanes = {}
    calls = Calls(handler, CallConfig(TIMEOUT), "T")
    while True:
        try:
            await actor.run(calls, inbox, lanes, links)
        except* AttributeError:
            await trio.lowlevel.checkpoint()
        else:
            break
    assert lanes == {}


@asynccontextmanager
async def crashing(handler: Handler, links: LinkPort | None = None) -> AsyncIterator[Asker]:
    """Run the actor as ``keeping`` does, and end it as ``running`` does."""
    inbox = actor.HandlerInbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeping, handler, inbox, links)
        try:
            yield Asker(inbox)
        finally:
            inbox.close()


CRASHED = "the handler actor crashed during the call, and was started again"


@pytest.mark.parametrize("ask", [m.Validate, m.Register])
async def test_a_crash_fails_the_current_call_and_the_successor_makes_the_waiting_calls(
    autojump_clock: trio.testing.MockClock, ask: type[m.Validate] | type[m.Register]
) -> None:
    """Fault 85, seed 448: the caller waits for an answer and must get one."""
    handler = Recording(validated=sleeping(3), registered=sleeping(3), deregistered=sleeping(2))
    async with crashing(handler) as asker:
        asker.ask(ask, 1)
        asker.ask(m.Deregister, 2)
        await trio.sleep(1)
        asker.crash()

    name = ask.__name__.lower()
    assert handler.calls == [(0.0, f"{name} x"), (1.0, "deregister x"), (3.0, "deregister x ended")]
    assert asker.answers == [(1.0, m.HandlerAnswered(1, Outcome.FAILED, CRASHED)), (3.0, ok(2))]


async def test_a_deregister_that_a_crash_interrupted_is_called_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Fault 85, seed 448: a lost Deregister would leave the plugin registered for ever."""
    handler = Recording(deregistered=sleeping(2))
    async with crashing(handler) as asker:
        asker.ask(m.Deregister, 1)
        asker.ask(m.Validate, 2)
        await trio.sleep(1)
        asker.crash()

    assert handler.calls == [
        (0.0, "deregister x"),
        (1.0, "deregister x"),
        (3.0, "deregister x ended"),
        (3.0, "validate x"),
        (3.0, "validate x ended"),
    ]
    assert asker.answers == [(3.0, ok(1)), (3.0, ok(2))]


async def test_a_call_that_had_not_begun_before_a_second_crash_does_not_fail(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Fault 85: a Register that was not called yet is called by the successor."""
    handler = Recording(validated=sleeping(3))
    async with crashing(handler) as asker:
        asker.ask(m.Validate, 1)
        asker.ask(m.Register, 2)
        await trio.sleep(1)
        asker.crash()
        asker.crash()

    assert [call for _, call in handler.calls] == ["validate x", "register x", "register x ended"]
    assert asker.answers == [(1.0, m.HandlerAnswered(1, Outcome.FAILED, CRASHED)), (1.0, ok(2))]


class NoLinks:
    """Counts what links are told: no handler has one here."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, str]] = []

    def open(self, plugin: Plugin, _file: object) -> Link:
        self.calls.append((trio.current_time(), f"open {plugin.name}"))
        return cast("Link", None)

    def give_way(self, plugin: Plugin) -> None:
        self.calls.append((trio.current_time(), f"give way {plugin.name}"))

    def start(self, plugin: Plugin, _follow: object) -> None:
        raise AssertionError("the handler follows nothing")

    async def end(self, plugin: Plugin) -> None:
        self.calls.append((trio.current_time(), f"end {plugin.name}"))


async def test_a_link_is_told_to_give_way_once_its_register_begins_or_while_it_is_under_way(
    autojump_clock: trio.testing.MockClock,
) -> None:
    handler, links = Recording(validated=sleeping(5), registered=sleeping(5)), NoLinks()
    async with running(handler, links) as asker:
        asker.ask(m.Validate, 1)
        waits, early = asker.ask(m.Register, 2), asker.ask(m.Register, 3, "y")
        asker.ask(partial(m.Register, wanted=True), 4, "z")
        await trio.sleep(1)
        asker.address.send_nowait(m.GiveWay(waits))
        asker.address.send_nowait(m.GiveWay(early))
        await trio.sleep(7)
        asker.address.send_nowait(m.GiveWay(early))

    assert sorted(links.calls) == [
        *((0.0, call) for call in ("give way z", "open y", "open z")),
        (1.0, "give way y"),
        *((5.0, call) for call in ("give way x", "open x")),
    ]
    assert sorted((answer.ticket, time) for time, answer in asker.answers) == [(1, 5.0), (2, 10.0), (3, 5.0), (4, 5.0)]


async def test_a_call_that_was_withdrawn_before_a_crash_stays_withdrawn(autojump_clock: trio.testing.MockClock) -> None:
    """Fault 85."""
    handler = Recording(validated=sleeping(1e9))
    async with crashing(handler) as asker:
        first, second = asker.ask(m.Validate, 1), asker.ask(m.Validate, 2)
        asker.ask(m.Register, 3)
        await trio.sleep(1)
        asker.address.send_nowait(m.Withdraw(second))
        asker.address.send_nowait(m.Withdraw(first))
        asker.crash()

    assert [call for _, call in handler.calls] == ["validate x", "register x", "register x ended"]
    assert asker.answers == [(1.0, ok(3))]


async def test_a_validate_that_was_asked_and_withdrawn_while_no_actor_ran_is_not_called(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Fault 85, behaviour 21: the next socket at the path may have another name, and so another lane."""
    handler = Recording(validated=sleeping(3))
    async with crashing(handler) as asker:
        await trio.sleep(1)
        asker.crash()
        asker.address.send_nowait(m.Withdraw(asker.ask(m.Validate, 1)))
        asker.ask(m.Validate, 2, "y")

    assert handler.calls == [(1.0, "validate y"), (4.0, "validate y ended")]
    assert asker.answers == [(4.0, ok(2))]


async def test_a_link_is_told_to_give_way_that_was_wanted_while_no_actor_ran(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Fault 85."""
    links = NoLinks()
    async with crashing(Recording(registered=sleeping(5)), links) as asker:
        await trio.sleep(1)
        asker.crash()
        asker.address.send_nowait(m.GiveWay(asker.ask(m.Register, 1)))

    assert links.calls == [(1.0, "open x"), (1.0, "give way x")]
    assert asker.answers == [(6.0, ok(1))]


async def test_validates_that_waited_and_were_withdrawn_while_no_actor_ran_are_not_called(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Fault 85, behaviour 21."""
    handler = Recording(registered=sleeping(9), validated=sleeping(3))
    names = [f"x{number}" for number in range(8)]
    async with crashing(handler) as asker:
        for ticket, name in enumerate(names):
            asker.ask(m.Register, ticket, name)
        waiting = [asker.ask(m.Validate, 10 + ticket, name) for ticket, name in enumerate(names)]
        await trio.sleep(1)
        asker.crash()
        for ask in waiting:
            asker.address.send_nowait(m.Withdraw(ask))
        asker.ask(m.Validate, 20, "y")

    begun = sorted((0.0, f"register {name}") for name in names)
    assert sorted(handler.calls) == [*begun, (1.0, "validate y"), (4.0, "validate y ended")]
    assert asker.answers[-1] == (4.0, ok(20))
