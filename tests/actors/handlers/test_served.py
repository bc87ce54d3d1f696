"""What registrations call: a handler whose calls have turns, deadlines and links, and whose errors are contained."""

from __future__ import annotations

from typing import cast

import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock, wait_all_tasks_blocked

from plugind.actors.handlers.calls import HandlerCalls
from plugind.actors.handlers.handler import policy_of
from plugind.actors.handlers.link import Link
from plugind.protocol.errors import PluginError, ValidationError
from plugind.protocol.plugins.info import InstancePolicy, Plugin
from plugind.protocol.plugins.status import Ending, Outcome
from plugind.tests.actors.handlers.calling import OK, Method, Recording, calling, raising, sleeping

TWO_DEADLINES = Ending(Outcome.TIMED_OUT, "no answer in 240 s")

# --- turns ------------------------------------------------------------------------------------------------------------


async def test_calls_of_a_name_are_made_one_at_a_time_in_the_order_of_the_asks(autojump_clock: MockClock) -> None:
    """Test_NewGoRoutineMap_Negative_SecondOpBeforeFirstCompletes, …_Positive_SecondOpAfterFirstCompletes and
    Test_NewGoRoutineMap_Positive_ThirdOpAfterFirstCompletes; TestOperationExecutor_RegisterPlugin_SerialRegisterPlugin
    and …_UnregisterPlugin_SerialUnregisterPlugin: the reference refuses the second call; here it waits (behaviour 21).
    """
    handler = Recording(registered=sleeping(2), deregistered=sleeping(3))
    async with calling(handler) as caller:
        await caller.ask("register")
        await caller.ask("deregister")
        await trio.sleep(1)
        await caller.ask("register")

    assert handler.calls == [
        (0.0, "register x"),
        (2.0, "register x ended"),
        (2.0, "deregister x"),
        (5.0, "deregister x ended"),
        (5.0, "register x"),
        (7.0, "register x ended"),
    ]
    assert caller.endings == [(2.0, "register x", OK), (5.0, "deregister x", OK), (7.0, "register x", OK)]


async def test_calls_of_different_names_run_side_by_side(autojump_clock: MockClock) -> None:
    """TestOperationExecutor_RegisterPlugin_ConcurrentRegisterPlugin and …_UnregisterPlugin_ConcurrentUnregisterPlugin;
    behaviour 22."""
    async with calling(Recording(registered=sleeping(5), deregistered=sleeping(5))) as caller:
        for number in range(10):
            await caller.ask("register" if number % 2 else "deregister", f"name {number}")
    assert [time for time, _, _ in caller.endings] == 10 * [5.0]
    assert {ending.outcome for _, _, ending in caller.endings} == {Outcome.OK}


async def test_a_handler_that_hangs_is_cancelled_at_the_deadline_and_others_continue(autojump_clock: MockClock) -> None:
    """Fault 82: the next call of the same name begins when the deadline of the hung one is over."""
    async with calling(Recording(registered=sleeping(1e9), validated=sleeping(1))) as caller:
        await caller.ask("register")
        await caller.ask("validate")
        await caller.ask("validate", "y")
    assert caller.endings == [
        (1.0, "validate y", OK),
        (120.0, "register x", Ending(Outcome.TIMED_OUT, "the handler did not finish in 120 s")),
        (121.0, "validate x", OK),
    ]


@pytest.mark.parametrize("ask", ["validate", "register"])
async def test_a_call_whose_turn_does_not_come_within_two_deadlines_times_out_and_has_not_begun(
    autojump_clock: MockClock, ask: str
) -> None:
    handler = Recording(deregistered=sleeping(100))
    async with calling(handler) as caller:
        for _ in range(3):
            await caller.ask("deregister")
        await caller.ask(ask)
    assert (240.0, f"{ask} x", TWO_DEADLINES) in caller.endings
    assert {call for _, call in handler.calls} == {"deregister x", "deregister x ended"}
    assert caller.begun == [], "so it is never deregistered"


async def test_a_deregister_waits_for_its_turn_however_long_that_takes(autojump_clock: MockClock) -> None:
    """Fault 84, seed 448."""
    async with calling(Recording(registered=sleeping(119), deregistered=sleeping(1))) as caller:
        for _ in range(3):
            await caller.ask("register")
        await caller.ask("deregister")
    assert caller.endings[-1] == (358.0, "deregister x", OK)


@pytest.mark.parametrize("ask", ["validate", "register"])
async def test_a_call_that_is_cancelled_while_it_waits_for_its_turn_is_never_made(
    autojump_clock: MockClock, ask: str
) -> None:
    handler = Recording(deregistered=sleeping(5))
    async with calling(handler) as caller:
        await caller.ask("deregister")
        scope = await caller.ask(ask)
        await caller.ask("validate")
        await trio.sleep(1)
        scope.cancel()
    assert [call for _, call in handler.calls] == [
        "deregister x",
        "deregister x ended",
        "validate x",
        "validate x ended",
    ]
    assert (handler.calls[2][0], caller.begun) == (5.0, [])


@pytest.mark.parametrize("ask", ["validate", "register"])
async def test_a_call_of_a_registration_that_ends_in_the_instant_of_its_turn_is_not_made_and_keeps_no_turn(
    autojump_clock: MockClock, ask: str
) -> None:
    handler = Recording(deregistered=sleeping(5))

    async def leave() -> None:
        await caller.call("deregister")
        scope.cancel()

    async with calling(handler) as caller:
        caller.nursery.start_soon(leave)
        await wait_all_tasks_blocked()
        scope = await caller.ask(ask)
        await trio.sleep(6)
        assert (caller.begun, caller.endings) == ([], [])
        assert await caller.call("deregister") == OK
    assert handler.calls == [
        *((0.0, "deregister x"), (5.0, "deregister x ended")),
        *((6.0, "deregister x"), (11.0, "deregister x ended")),
    ]


@pytest.mark.parametrize("ask", ["validate", "register"])
async def test_a_call_that_is_cancelled_ends_at_once_and_passes_its_turn_on(
    autojump_clock: MockClock, ask: str
) -> None:
    """Fault 82, seed 448: a NodeGetInfo that hangs must not keep a driver waiting that was started again."""
    handler = Recording(registered=sleeping(1e9), validated=sleeping(1e9))
    async with calling(handler) as caller:
        scope = await caller.ask(ask)
        await caller.ask("deregister")
        await trio.sleep(1)
        scope.cancel()
    assert handler.calls == [(0.0, f"{ask} x"), (1.0, "deregister x"), (1.0, "deregister x ended")]
    assert caller.endings == [(1.0, "deregister x", OK)]


@pytest.mark.parametrize("ask", ["validate", "register", "deregister"])
async def test_a_crash_in_the_turn_of_a_name_passes_it_on(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    """Fault 85: the successor of the registration would wait for its Deregister for ever."""

    def planted(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async with calling(Recording()) as caller:
        with monkeypatch.context() as patched:
            patched.setattr(HandlerCalls, "prepare", planted)
            with pytest.raises(ZeroDivisionError):
                await caller.call(ask)
        with trio.fail_after(60):
            assert await caller.call("deregister") == OK


# --- links ------------------------------------------------------------------------------------------------------------


class Follows(Recording):
    """A handler with links."""

    async def follow(self, plugin: Plugin, link: Link) -> None:  # type: ignore[override]  # that of its base is None
        raise AssertionError("the links of the test follow nothing")


class Links:
    """Adds what links are told to the calls of a handler."""

    def __init__(self, handler: Recording) -> None:
        self._calls = handler.calls
        self.broken = False

    def _note(self, what: str, plugin: Plugin) -> None:
        if self.broken:
            raise ZeroDivisionError
        self._calls.append((trio.current_time(), f"{what} {plugin.name}"))

    def open(self, plugin: Plugin, _file: object) -> Link:
        self._note("open", plugin)
        return cast("Link", self)

    def give_way(self, plugin: Plugin) -> None:
        self._note("give way", plugin)

    def start(self, plugin: Plugin, _follow: object) -> None:
        self._note("follow", plugin)

    async def end(self, plugin: Plugin) -> None:
        await trio.sleep(1)
        self._note("end", plugin)


async def test_a_link_lives_from_before_register_until_before_deregister_in_the_turns_of_these_calls(
    autojump_clock: MockClock,
) -> None:
    handler = Follows(validated=sleeping(5), registered=sleeping(5))
    async with calling(handler, Links(handler)) as caller:
        for ask in ("validate", "register", "deregister", "register"):
            await caller.ask(ask)
    registered = ["open x", "register x", "register x ended", "follow x"]
    assert [call for _, call in handler.calls] == [
        "validate x",
        "validate x ended",
        *registered,
        "end x",
        "deregister x",
        "deregister x ended",
        *registered,
    ]
    times = dict(reversed([(call, time) for time, call in handler.calls]))
    assert (times["open x"], times["follow x"], times["end x"]) == (5.0, 10.0, 11.0)


async def test_a_plugin_whose_register_fails_is_not_followed_and_its_link_is_ended(autojump_clock: MockClock) -> None:
    handler = Follows(registered=raising(PluginError("no")))
    async with calling(handler, Links(handler)) as caller:
        await caller.ask("register")
        await caller.ask("deregister")
    calls = [call for _, call in handler.calls]
    assert calls == ["open x", "register x", "end x", "deregister x", "deregister x ended"]


async def test_a_link_gives_way_as_its_register_begins_or_while_that_is_under_way(autojump_clock: MockClock) -> None:
    handler = Follows(registered=sleeping(5))
    async with calling(handler, Links(handler)) as caller:
        caller.wanted.add("x")
        await caller.ask("register")
        assert handler.calls[:2] == [(0.0, "open x"), (0.0, "give way x")]
        await caller.ask("register", "y")
        await trio.sleep(1)
        caller.served.give_way(Plugin("T", "y", "/reg/b.sock", ("1.0.0",), "/reg/b.sock", 1))
    assert (1.0, "give way y") in handler.calls


@pytest.mark.parametrize("ask", ["register", "deregister"])
async def test_a_crash_of_links_in_the_turn_of_a_name_passes_it_on(autojump_clock: MockClock, ask: str) -> None:
    """Fault 85."""
    handler = Follows()
    links = Links(handler)
    async with calling(handler, links) as caller:
        links.broken = True
        with pytest.raises(ZeroDivisionError):
            await caller.call(ask)
        links.broken = False
        with trio.fail_after(60):
            assert await caller.call("deregister") == OK


# --- containment ------------------------------------------------------------------------------------------------------


class WordlessError(Exception):
    """An error whose text cannot be read."""

    def __str__(self) -> str:
        raise ValueError("this text cannot be read either")


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
        (WordlessError(), Outcome.BROKEN, "the handler broke: WordlessError: no words"),
    ],
    ids=["refusal", "error", "exit", "status", "status alone", "long status", "group", "long", "wordless"],
)
async def test_an_error_of_a_handler_fails_only_the_plugin_of_the_call(
    autojump_clock: MockClock, error: BaseException, outcome: Outcome, text: str
) -> None:
    """Test_NewGoRoutineMap_Positive_SecondOpAfterFirstPanics; behaviour 22, faults 81, 84 and 94."""
    async with calling(Recording(registered=raising(error))) as caller:
        assert await caller.call("register") == Ending(outcome, text)
        assert await caller.call("deregister") == OK
        assert await caller.call("validate", "y") == OK


async def _fail_when_cancelled(plugin: Plugin) -> None:
    async def fail_in_cleanup() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while cleaning up")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_in_cleanup)
        nursery.start_soon(trio.sleep_forever)


async def _fail_in_a_task(plugin: Plugin) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(raising(ValueError("in a task")), plugin)
        nursery.start_soon(trio.sleep_forever)


async def _exit_in_a_task(plugin: Plugin) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(raising(SystemExit(3)), plugin)


async def _leave_a_scope_open(plugin: Plugin) -> None:
    trio.CancelScope().__enter__()


def not_async(plugin: Plugin) -> None:
    return None


@pytest.mark.parametrize(
    "method",
    [
        _fail_when_cancelled,
        _fail_in_a_task,
        _exit_in_a_task,
        _leave_a_scope_open,
        raising(BaseExceptionGroup("exits", [SystemExit(1), ValueError("a")])),
        not_async,
    ],
    ids=["when cancelled", "in a task", "an exit in a task", "an open scope", "an exit among errors", "not async"],
)
async def test_an_unusual_exception_is_contained_too(autojump_clock: MockClock, method: Method) -> None:
    """Faults 81 and 82: other calls of the handler are not affected."""
    async with calling(Recording(registered=method)) as caller:
        assert (await caller.call("register")).outcome is Outcome.BROKEN
        assert await caller.call("deregister") == OK


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
async def test_a_refusal_may_have_its_cause_in_few_words_beside_the_text(error: PluginError, cause: str | None) -> None:
    """Faults 81 and 94: the plugin is told the text, and users are shown the cause."""
    async with calling(Recording(registered=raising(error))) as caller:
        assert await caller.call("register") == Ending(Outcome.REFUSED, str(error), cause)


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
