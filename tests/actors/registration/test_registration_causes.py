"""The causes that a node shows of a plugin that is not registered, over its whole life in virtual time."""

from __future__ import annotations

from trio.testing import MockClock

from plugind.actors.simulation.plugins import FakeRegistration, PluggedIn
from plugind.protocol.errors import ValidationError
from plugind.testing import Call, Fails, FakeHandler, FakePlugin, SimulatedNode
from plugind.tests.actors.registration.timelines import steps_at

TOO_OLD = "plugin validation failed: version 9.9.9 is not supported"


def causes(node: SimulatedNode, socket: str = "a.sock") -> list[tuple[float, str, str | None]]:
    return [(entry.time, entry.state.value, entry.cause) for entry in node.history(socket)]


def plug_registrar(node: SimulatedNode, fake: FakePlugin) -> PluggedIn:
    """A registrar that exits as soon as it is notified, before it answers, as node-driver-registrar does if refused."""
    calls: list[Call] = []
    plugged: list[PluggedIn] = []
    service = FakeRegistration(fake, calls.append, lambda: plugged[0].crash())
    plugged.append(node.plug("a.sock", service))
    return plugged[0]


async def test_a_registrar_that_exits_when_refused_keeps_its_refusal_as_the_cause(autojump_clock: MockClock) -> None:
    """Fault 77, behaviour 32: nobody listens then (fault 28); a new process on a new socket begins without a cause."""
    handler = FakeHandler().script("validate", Fails(ValidationError("version 9.9.9 is not supported")), times=1)
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        fake = FakePlugin("Colour", "red", ("9.9.9",), die="notify")
        plugged = plug_registrar(node, fake)
        await node.settled(patience=0.6)
        assert causes(node) == [
            (0.0, "waiting", TOO_OLD),
            (0.5, "dialing", TOO_OLD),
            (0.5, "stale", f"{TOO_OLD} (now: nobody listens)"),
        ]
        assert node.history("a.sock")[-1].reason == (
            "RegisterPlugin error -- dial failed at socket /plugins/a.sock, err: nobody listens on '/plugins/a.sock'"
        )
        fake.die = None
        plugged.restart()
        await node.settled()
        # The life of the registrar is over since the dial found nobody: half a second after that (fault 49).
        assert node.timeline("a.sock")[3:] == [(0.5, "waiting"), *steps_at(1.0)]
        assert {cause for _, _, cause in causes(node)[4:]} == {None}


async def test_the_end_of_a_connection_is_no_answer(autojump_clock: MockClock) -> None:
    """Faults 33 and 34: it gives way to what fails next."""
    async with SimulatedNode() as node:
        plugin = node.plug("a.sock", FakePlugin("CSIPlugin", "a", die="get-info"))
        await node.settled(patience=0.0)
        plugin.crash()
        await node.settled(patience=0.6)
        first, *rest = causes(node)
        assert first[:2] == (0.0, "waiting")
        assert (first[2] or "").startswith("GetInfo failed: UNAVAILABLE: ")
        assert rest == [(0.5, "dialing", None), (0.5, "stale", "nobody listens")]
