"""The simulated node itself."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
import trio.testing
from trio._core import _run
from trio.testing import MockClock

from plugind.actors.simulation.scheduling import pinned
from plugind.protocol.backoff import Backoff
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.proto.pluginregistration_grpc import RegistrationBase
from plugind.protocol.proto.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from plugind.protocol.settings.config import Config, Root
from plugind.protocol.wire.errors import DialError, DialFailure
from plugind.testing import (
    DEFAULT_CONFIG,
    Accepting,
    Call,
    FakeHandler,
    FakePlugin,
    LeakError,
    SimulatedNode,
    Takes,
    WaitFailedError,
)
from plugind.tests.actors.registration.timelines import at, registered_at

if TYPE_CHECKING:
    from grpclib.server import Stream


def csi(name: str = "a.example.com") -> FakePlugin:
    return FakePlugin("CSIPlugin", name)


async def test_a_plugin_without_faults_is_registered_at_once(autojump_clock: MockClock) -> None:
    """The whole timeline of a registration; goroutinemap Test_NewGoRoutineMap_Positive_SingleOp."""
    async with SimulatedNode() as node:
        plugin = node.plug("csi.sock", csi())
        await node.settled()
        assert node.timeline("csi.sock") == registered_at(0.0)
        assert plugin.calls == [Call(0.0, "GetInfo"), Call(0.0, "NotifyRegistrationStatus", registered=True)]


async def test_real_time_is_refused() -> None:
    """A test without a virtual clock fails at once instead of waiting for hours."""
    with pytest.raises(RuntimeError, match=r"run it under trio\.testing\.MockClock"):
        await SimulatedNode().__aenter__()


async def test_roots_and_seed_are_filled_in(autojump_clock: MockClock) -> None:
    """A configuration for a real node is valid for a simulated one; other roots are kept."""
    assert SimulatedNode(Config()).config == attrs.evolve(Config(), roots=(Root("/plugins"),), seed=0)
    config = Config(roots=(Root("/new"), Root("/old", deprecated=True)), seed=3)
    async with SimulatedNode(config) as node:
        node.plug("a.sock", csi())
        node.plug("/old/b.sock", FakePlugin("CSIPlugin", "old.example.com", ["0.3.0"]))
        await node.settled()
        status = node.status("/old/b.sock")
        assert status is not None
        assert (node.state("a.sock"), status.state, len(status.warnings)) == ("registered", "registered", 1)


# --- settled ----------------------------------------------------------------------------------------------------------


async def test_settled_waits_for_retries_that_are_due_soon_only(autojump_clock: MockClock) -> None:
    """``settled`` does not wait for tries that are later than its patience."""
    async with SimulatedNode() as node:
        node.plug("a.sock", FakePlugin("CSIPlugin", "a", get_info_fails=math.inf))
        await node.settled(patience=0.0)
        assert node.now == 0.0
        await node.settled(patience=0.9)
        assert (node.now, node.history("a.sock")[-1].next_try) == (0.5, 1.5)
        await node.settled()
        assert (node.now, node.history("a.sock")[-1].next_try) == (7.5, 15.5)
        await node.settled()
        assert node.now == 7.5


async def test_settled_waits_until_the_watcher_has_seen_every_socket(autojump_clock: MockClock) -> None:
    """The next scan recovers from lost events, and ``settled`` waits for it."""
    async with SimulatedNode() as node:
        await node.settled()
        node.directory.drop_events()
        plugin = node.plug("a.sock", csi())
        await node.settled()
        ((when, _), *_) = node.timeline("a.sock")
        assert 9.0 <= when <= 11.0
        plugin.stop()
        await node.settled()
        assert node.state("a.sock") is None


async def test_settled_gives_up_and_names_the_sockets_that_have_not_settled(autojump_clock: MockClock) -> None:
    async with SimulatedNode(handlers={"Colour": FakeHandler().always("register", Takes(50.0))}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red"))
        node.plug("b.sock", csi())
        with pytest.raises(
            WaitFailedError, match=r"^after 20 s: /plugins/a\.sock is registering\n  /plugins/a\.sock is"
        ):
            await node.settled(timeout=20.0)
        assert node.now == 20.0
        await node.settled()
        assert node.now == 50.0


# --- a plugin's process -----------------------------------------------------------------------------------------------


async def test_a_script_crashes_restarts_unlinks_and_stops_a_plugin(autojump_clock: MockClock) -> None:
    """``crash``, ``restart``, ``unlink`` and ``stop`` do what their docstrings say."""
    async with SimulatedNode() as node:
        plugin = node.plug("one/two/a.sock", csi())
        await node.settled()
        assert (plugin.alive, node.state("one/two/a.sock")) == (True, "registered")
        plugin.crash()
        await node.settled()
        assert (plugin.alive, node.state("one/two/a.sock")) == (False, "registered")
        plugin.restart()
        await node.settled()
        await trio.sleep(Config().stable_after)  # After a shorter life the next socket would wait (fault 49).
        plugin.unlink()
        await node.settled()
        assert (plugin.alive, node.state("one/two/a.sock")) == (True, None)
        plugin.stop()
        plugin.bind()
        await trio.sleep(0.3)
        assert (plugin.alive, node.state("one/two/a.sock")) == (False, "dialing")
        plugin.listen()
        await node.settled()
        assert node.state("one/two/a.sock") == "registered"
        with pytest.raises(OSError, match="in use"):
            node.plug("one/two/a.sock", csi())


@pytest.mark.parametrize(
    ("accepting", "kind", "after"),
    [
        (Accepting.BACKLOG_FULL, DialFailure.FULL, 0.0),
        (Accepting.DENIED, DialFailure.DENIED, 0.0),
        (None, DialFailure.REFUSED, 1.0),
    ],
)
async def test_dialing_fails_with_the_errors_of_real_sockets(
    autojump_clock: MockClock, accepting: Accepting | None, kind: DialFailure, after: float
) -> None:
    """The same kinds of error after the same waits as ``plugind.actors.grpc.client.dial``; faults 28, 29 and 30."""
    node = SimulatedNode()
    plugin = node.plug("a.sock", csi(), listening=accepting is not None)
    if accepting is not None:
        plugin.accepting = accepting
    with pytest.raises(DialError) as caught:
        await node.network.dial(plugin.path, timeout=10.0, refused_grace=1.0)
    assert (caught.value.kind, round(trio.current_time(), 6)) == (kind, after)
    with pytest.raises(DialError) as caught:
        await node.network.dial("/plugins/no.sock", timeout=10.0)
    assert caught.value.kind is DialFailure.GONE


# --- code of users ----------------------------------------------------------------------------------------------------


class OwnRegistration(RegistrationBase):
    """A plugin as an author writes it for grpclib."""

    async def GetInfo(self, stream: Stream[InfoRequest, PluginInfo]) -> None:  # noqa: N802 - the name in the .proto
        await stream.recv_message()
        await stream.send_message(PluginInfo(type="Colour", name="own.example.com", supported_versions=["2.0.0"]))

    async def NotifyRegistrationStatus(  # noqa: N802 - the name in the .proto
        self, stream: Stream[RegistrationStatus, RegistrationStatusResponse]
    ) -> None:
        await stream.recv_message()
        await stream.send_message(RegistrationStatusResponse())


async def test_your_own_plugin_registers_with_your_own_handler(autojump_clock: MockClock) -> None:
    """A user needs only services on grpclib's base classes, and a handler with three methods."""

    class Own:
        follow = None

        def __init__(self) -> None:
            self.kept: list[str] = []

        async def validate(self, plugin: Plugin) -> None:
            if plugin.versions != ("2.0.0",):
                raise ValueError("too old")

        async def register(self, plugin: Plugin) -> None:
            await trio.sleep(0.25)
            self.kept.append(plugin.name)

        async def deregister(self, plugin: Plugin) -> None:
            self.kept.remove(plugin.name)

    own = Own()
    async with SimulatedNode(handlers={"Colour": own}) as node:
        plugin = node.plug("own.sock", OwnRegistration())
        await node.settled()
        assert node.timeline("own.sock") == [
            *at(0.2, "registering"),
            *at(0.25, "notifying", "registered"),
        ]
        assert plugin.calls == [Call(0.0, "GetInfo"), Call(0.25, "NotifyRegistrationStatus")]
        assert own.kept == ["own.example.com"]


async def test_an_error_in_the_block_is_raised_without_a_group(autojump_clock: MockClock) -> None:
    """So a failing assertion looks as in any other test."""

    async def run() -> None:
        async with SimulatedNode() as node:
            node.plug("a.sock", csi())
            await node.settled()
            raise AssertionError("as expected")

    with pytest.raises(AssertionError, match="as expected"):
        await run()


async def test_a_connection_that_is_left_open_is_an_error(autojump_clock: MockClock) -> None:
    """So a leak fails the test."""

    async def run() -> None:
        async with SimulatedNode() as node:
            plugin = node.plug("a.sock", csi())
            await node.settled()
            await node.network.dial(plugin.path, timeout=1.0)

    with pytest.raises(LeakError, match=r"connections to \['/plugins/a\.sock'\]"):
        await run()


# --- one seed, one trace ----------------------------------------------------------------------------------------------


async def trace(seed: int) -> list[object]:
    """Return the trace of a script with many faults."""
    config = attrs.evolve(DEFAULT_CONFIG, backoff=Backoff(jitter=0.1), seed=seed)
    handler = FakeHandler().script("register", Takes(0.2), times=5)
    async with SimulatedNode(config, handlers={"Colour": handler}) as node:
        plugins = [node.plug(f"{number}.sock", FakePlugin("Colour", f"{number % 4}")) for number in range(12)]
        for number, plugin in enumerate(plugins):
            assert isinstance(plugin.plugin, FakePlugin)
            plugin.plugin.get_info_fails = number % 3
        await trio.sleep(0.3)
        for plugin in plugins[::2]:
            plugin.restart()
        await node.settled()
        for plugin in plugins[::3]:
            plugin.crash()
            plugin.stop()
        await node.settled()
        histories = [node.history(f"{number}.sock") for number in range(12)]
        return [*handler.plugins, *histories, [plugin.calls for plugin in plugins], node.network.dials]


def run_trace(seed: int) -> str:
    traced = trio.run(partial(trace, seed), clock=MockClock(autojump_threshold=0))
    return hashlib.sha256(repr(traced).encode()).hexdigest()


def test_one_seed_gives_one_trace_in_this_process_and_in_another() -> None:
    """The trace includes the order in which tasks run that are ready at the same time."""
    here = run_trace(1)
    assert run_trace(1) == here
    assert run_trace(2) != here
    script = "from plugind.tests.actors.simulation.test_node import run_trace; print(run_trace(1))"
    elsewhere = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert elsewhere.stdout.strip() == here


def test_the_private_names_that_pin_the_order_of_tasks_still_work_in_trio() -> None:
    """These names are private to Trio. If this fails, repair ``plugind.actors.simulation.scheduling``."""

    async def order(seed: int) -> list[int]:
        ran: list[int] = []

        async def append_number(number: int) -> None:
            for _ in range(3):
                await trio.lowlevel.checkpoint()
                ran.append(number)

        with pinned(seed):
            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(append_number, number)
        return ran

    first = trio.run(order, 1)
    assert [trio.run(order, 1) for _ in range(5)] == [first] * 5
    assert len({tuple(trio.run(order, seed)) for seed in range(10)}) > 5
    before = _run._r.getstate(), _run._ALLOW_DETERMINISTIC_SCHEDULING
    with pinned(5):
        assert _run._ALLOW_DETERMINISTIC_SCHEDULING
    assert (_run._r.getstate(), _run._ALLOW_DETERMINISTIC_SCHEDULING) == before


async def test_a_process_that_is_suspended_answers_once_it_runs_on(autojump_clock: MockClock) -> None:
    """As after SIGSTOP: it can be connected to, its connections stay, and what it is asked waits (fault 32)."""
    async with SimulatedNode() as node:
        plugin = node.plug("csi.sock", csi())
        plugin.suspend()
        await trio.sleep(0.5)
        assert (plugin.suspended, plugin.alive, node.state("csi.sock"), plugin.calls) == (
            True,
            True,
            "asking-info",
            [],
        )
        plugin.resume()
        await node.settled()
        assert (plugin.suspended, node.state("csi.sock")) == (False, "registered")
        assert plugin.calls == [Call(0.5, "GetInfo"), Call(0.5, "NotifyRegistrationStatus", registered=True)]
