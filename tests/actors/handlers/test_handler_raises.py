"""Whatever a handler raises fails the call of one plugin: nothing that it raises ends the node (fault 82)."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import trio
from grpclib import GRPCError, Status

from plugind.actors.handlers.calls import CallConfig, HandlerCalls
from plugind.protocol.errors import HandlerAwayError, PluginError
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import Outcome
from plugind.testing import FakeHandler
from plugind.tests.actors.handlers.calling import Lines

PLUGIN = Plugin("T", "x", "/reg/a.sock", ("1.0.0",), "/reg/a.sock", 1)


@attrs.frozen
class Raises:
    """A handler whose register raises, in the loop or in a thread."""

    follow = None

    make: Callable[[], BaseException]

    async def validate(self, plugin: Plugin) -> None:
        raise self.make()

    def register(self, plugin: Plugin) -> None:
        raise self.make()

    async def deregister(self, plugin: Plugin) -> None:
        await trio.lowlevel.checkpoint()
        raise self.make()


class UnreadableError(PluginError):
    """A refusal that breaks while it is read."""

    def __str__(self) -> str:
        raise SystemExit


def stored() -> BaseException:
    """A ``Cancelled`` of a scope that has ended."""
    return trio.Cancelled._create(source="explicit")


ERRORS: dict[str, Callable[[], BaseException]] = {
    "GeneratorExit": GeneratorExit,
    "a group": lambda: BaseExceptionGroup("g", [GeneratorExit(), ValueError()]),
    "SystemExit in a group": lambda: BaseExceptionGroup("g", [SystemExit(3)]),
    "a stored Cancelled": stored,
    "a group with it": lambda: BaseExceptionGroup("g", [stored(), ValueError()]),
    "KeyboardInterrupt": KeyboardInterrupt,
    "KeyboardInterrupt in a group": lambda: BaseExceptionGroup("g", [KeyboardInterrupt(), ValueError()]),
}


@pytest.mark.parametrize("ask", ["validate", "register", "deregister"])
@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS)
async def test_nothing_that_a_handler_raises_leaves_its_call(ask: str, make: Callable[[], BaseException]) -> None:
    """Fault 82: with SIGINT in the daemon's hands, an interrupt is the handler's own, too."""
    log = Lines()
    calls = HandlerCalls(Raises(make), CallConfig(30.0, log, handles_sigint=True), "T")
    ending = await calls.make(calls.prepare(ask, PLUGIN))
    assert ending.outcome is Outcome.BROKEN
    assert ending.error.startswith(f"the handler broke: {type(make()).__name__}")
    ((_, line),) = log.with_text("handler broke")
    assert (line["name"], line["call"]) == ("x", ask)


async def test_a_refusal_that_cannot_be_read_is_a_refusal() -> None:
    calls = HandlerCalls(Raises(UnreadableError), CallConfig(30.0), "T")
    assert (await calls.make(calls.prepare("validate", PLUGIN))).outcome is Outcome.REFUSED


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PluginError(2000 * "m", cause="short"), 1024 * "m"),
        (GRPCError(Status.UNAVAILABLE, "it is away"), "UNAVAILABLE: it is away"),
        (HandlerAwayError("it is asked later"), None),
    ],
)
@pytest.mark.parametrize("ask", ["validate", "deregister"])
async def test_an_error_of_a_deregister_is_logged_in_its_words(ask: str, error: Exception, words: str | None) -> None:
    """Fault 84: nothing else has them. What is answered to other asks the plugin is told."""
    log = Lines()
    calls = HandlerCalls(Raises(lambda: error), CallConfig(30.0, log), "T")
    await calls.make(calls.prepare(ask, PLUGIN))
    logged = [line["error"] for _, line in log.with_text("deregister failed")]
    assert logged == ([words] if words is not None and ask == "deregister" else [])


@pytest.mark.parametrize("name", ["KeyboardInterrupt", "KeyboardInterrupt in a group"])
async def test_an_interrupt_in_the_loop_ends_a_program_that_leaves_sigint_to_python(name: str) -> None:
    """It may be the one of Ctrl-C, so it is passed on; the log says which handler was called."""
    log = Lines()
    calls = HandlerCalls(Raises(ERRORS[name]), CallConfig(30.0, log), "T")
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - a group has no KeyboardInterrupt as its base
        await calls.make(calls.prepare("deregister", PLUGIN))
    assert type(raised.value) is type(ERRORS[name]())
    ((_, line),) = log.with_text("handler interrupted")
    assert (line["type"], line["name"], line["call"]) == ("T", "x", "deregister")
    # Python raises the interrupt of Ctrl-C in the main thread only.
    in_thread = await calls.make(calls.prepare("register", PLUGIN))
    assert in_thread.outcome is Outcome.BROKEN


@pytest.mark.parametrize("own", [False, True])
async def test_a_cancellation_from_outside_of_the_call_goes_on(own: bool) -> None:
    """What the handler itself raised meanwhile is logged, and does not leave the call with it."""

    class Waits(FakeHandler):
        async def register(self, plugin: Plugin) -> None:
            try:
                await trio.sleep_forever()
            except trio.Cancelled as cancelled:
                if own:
                    raise BaseExceptionGroup("g", [cancelled, GeneratorExit()]) from None
                raise

    log = Lines()
    calls = HandlerCalls(Waits(), CallConfig(30.0, log), "T")
    with trio.CancelScope() as scope:
        scope.cancel()
        await calls.make(calls.prepare("register", PLUGIN))
    assert scope.cancelled_caught
    assert len(log.with_text("handler broke")) == own
