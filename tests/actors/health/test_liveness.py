"""The liveness actor on a whole node in virtual time: who is shown as serving, and when stale sockets are tried."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.protocol.settings.config import Config
from plugind.testing import DEFAULT_CONFIG, Accepting, FakeHandler, FakePlugin, SimulatedNode
from plugind.tests.actors.registration.timelines import registered_at, shown

NOBODY = "nobody listens on its socket"
#: Messages to the liveness actor are read together, at pauses of a tenth of a second.
COALESCE = 0.1


def colour(name: str = "red", endpoint: str = "") -> FakePlugin:
    return FakePlugin("Colour", name, endpoint=endpoint)


def unlinked(config: Config = DEFAULT_CONFIG) -> SimulatedNode:
    """A node whose handler has no connection to its plugins: only the liveness actor makes some."""
    return SimulatedNode(config, handlers={"Colour": FakeHandler()})


def serving(node: SimulatedNode, socket: str = "a.sock") -> tuple[str | None, bool | None, str | None]:
    status = shown(node, socket)
    return status.state.value, status.serving, status.not_serving


async def test_a_plugin_that_is_killed_stays_registered_and_is_shown_as_not_serving_at_once(
    autojump_clock: MockClock,
) -> None:
    """Fault 39: killed with SIGKILL, and the socket file stays."""
    async with unlinked() as node:
        killed, well = node.plug("a.sock", colour()), node.plug("b.sock", colour("blue"))
        await node.settled()
        assert serving(node) == ("registered", True, None)
        await trio.sleep_until(7.0)
        killed.crash()
        await trio.sleep(COALESCE)
        assert serving(node) == ("registered", False, NOBODY)
        assert serving(node, "b.sock") == ("registered", True, None)
        assert well.accepted == 1, "a plugin whose process lives is not disturbed"
        assert node.timeline("a.sock") == registered_at(0.0)


async def test_a_plugin_that_hands_its_listener_on_serves_on(autojump_clock: MockClock) -> None:
    """Fault 39: the end of a process only causes a connect, which decides."""
    async with unlinked() as node:
        plugin = node.plug("a.sock", colour())
        await trio.sleep(5.0)
        plugin.hand_over()
        await trio.sleep(COALESCE)
        assert plugin.accepted == 2
        await trio.sleep(300.0)
        assert serving(node) == ("registered", True, None)
        assert len(node.history("a.sock")) == len(registered_at(0.0))


async def test_a_process_that_closes_its_listener_and_lives_is_found_by_a_connect_within_a_minute(
    autojump_clock: MockClock,
) -> None:
    """Fault 39."""
    async with unlinked() as node:
        plugin = node.plug("a.sock", colour())
        await node.settled()
        await trio.sleep_until(30.0)
        plugin.close_listener()
        await trio.sleep_until(59.9)
        assert serving(node) == ("registered", True, None)
        await trio.sleep_until(60.0 + COALESCE)
        assert serving(node) == ("registered", False, NOBODY)


async def test_a_plugin_that_serves_again_is_shown_so_within_a_rescans_period(autojump_clock: MockClock) -> None:
    """Fault 39: a new listener on the same socket, without another registration."""
    async with unlinked() as node:
        plugin = node.plug("a.sock", colour())
        await node.settled()
        plugin.crash()
        await trio.sleep(65.0)
        assert serving(node) == ("registered", False, NOBODY)
        plugin.listen()
        await trio.sleep(node.config.rescan + COALESCE)
        assert serving(node) == ("registered", True, None)
        # Its new process is watched.
        plugin.crash()
        await trio.sleep(COALESCE)
        assert serving(node) == ("registered", False, NOBODY)
        assert node.timeline("a.sock") == registered_at(0.0)


@pytest.mark.parametrize("accepting", [Accepting.BACKLOG_FULL, Accepting.SILENT, Accepting.CLOSES, Accepting.DENIED])
async def test_only_a_refused_connect_shows_an_absent_listener(autojump_clock: MockClock, accepting: Accepting) -> None:
    """Faults 29, 30, 32, 33 and 39: a plugin that hangs is not one that is gone."""
    async with unlinked() as node:
        plugin = node.plug("a.sock", colour())
        await node.settled()
        plugin.accepting = accepting
        await trio.sleep(200.0)
        assert serving(node) == ("registered", True, None)


async def test_a_plugin_of_another_pid_namespace_is_watched_from_its_first_look_on(autojump_clock: MockClock) -> None:
    """Fault 39: its process id is 0 here, but a connection brings a pidfd."""
    async with unlinked() as node:
        plugin = node.plug("a.sock", colour(), pid=0)
        await trio.sleep(5.0)
        assert plugin.accepted == 2
        plugin.crash()
        await trio.sleep(COALESCE)
        assert serving(node) == ("registered", False, NOBODY)


@pytest.mark.parametrize("alive", [True, False])
async def test_a_separate_endpoint_is_checked_too_once_nobody_listens_on_the_socket(
    autojump_clock: MockClock, alive: bool
) -> None:
    """Fault 39: a dead registrar does not mean a dead driver."""
    async with unlinked(attrs.evolve(DEFAULT_CONFIG, endpoint_directories=("/run",))) as node:
        driver = node.plug("/run/csi.sock", colour("driver"), listening=alive)
        registrar = node.plug("a.sock", colour(endpoint="/run/csi.sock"))
        await trio.sleep(5.0)
        registrar.crash()
        await trio.sleep(COALESCE)
        words = "but somebody listens" if alive else "nor"
        assert serving(node) == ("registered", False, f"{NOBODY}, {words} on its endpoint /run/csi.sock")
        driver.stop()
        await trio.sleep(node.config.rescan + COALESCE)
        assert serving(node)[2] == f"{NOBODY}, nor on its endpoint /run/csi.sock"


async def test_a_plugin_that_does_not_serve_is_deregistered_where_that_is_configured(autojump_clock: MockClock) -> None:
    """Fault 39: it is registered again once somebody listens."""
    handler = FakeHandler()
    config = attrs.evolve(DEFAULT_CONFIG, deregister_not_serving=True)
    async with SimulatedNode(config, handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", FakePlugin("Colour", "red"))
        await node.settled()
        await trio.sleep_until(200.0)
        plugin.crash()
        await trio.sleep_until(205.0)
        assert node.timeline("a.sock")[len(registered_at(0.0)) :][:3] == [
            (200.0, "leaving"), (200.0, "dialing"), (201.0, "stale"),
        ]  # fmt: skip
        assert handler.asked() == ["validate", "register", "deregister"]
        assert node.history("a.sock")[1].reason == NOBODY
        plugin.listen()
        await trio.sleep(node.config.rescan + COALESCE)
        assert serving(node) == ("registered", True, None)
        assert handler.asked() == ["validate", "register", "deregister", "validate", "register"]


@pytest.mark.parametrize("after", [20.0, 45.0, 1000.0])
async def test_a_socket_that_is_listened_on_late_is_registered_within_a_rescans_period(
    autojump_clock: MockClock, after: float
) -> None:
    """Behaviour 15: no event reports a new listener, and the backoff grows to two minutes."""
    async with unlinked() as node:
        plugins = [node.plug(f"{number}.sock", colour(f"c{number}"), listening=False) for number in range(50)]
        await trio.sleep_until(after)
        plugins[7].listen()
        await trio.sleep(node.config.rescan + COALESCE)
        assert node.state("7.sock") == "registered"
        assert [node.state(f"{number}.sock") for number in (6, 8)] == ["stale", "stale"]


async def test_a_liveness_actor_watches_the_same_plugins_after_a_crash(autojump_clock: MockClock) -> None:
    """Fault 85: the registrations report again what they are."""
    async with unlinked() as node:
        killed, closed = node.plug("a.sock", colour()), node.plug("b.sock", colour("blue"))
        late = node.plug("c.sock", colour("cyan"), listening=False)
        await trio.sleep_until(40.0)
        assert node.crash("liveness")
        await trio.sleep_until(50.0)
        killed.crash()
        await trio.sleep(COALESCE)
        assert serving(node) == ("registered", False, NOBODY)
        closed.close_listener()
        late.listen()
        await trio.sleep_until(110.0 + COALESCE)
        assert serving(node, "b.sock") == ("registered", False, NOBODY)
        assert serving(node, "c.sock") == ("registered", True, None)
