"""Names and endpoints that pass from one user's plugin to another's, on a whole node in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.protocol.logs.lines import Field, Level
from plugind.protocol.plugins.info import InstancePolicy
from plugind.protocol.plugins.status import PluginStatus
from plugind.protocol.trust.users import Trust
from plugind.protocol.world.kept_names import NAME_KEPT
from plugind.testing import DEFAULT_CONFIG, FakeHandler, FakePlugin, SimulatedNode

#: Users of the machine who are trusted.
ANN, BOB = 1001, 1002
ENDPOINT = "/plugins/.gpu.sock"


@attrs.define
class Warnings:
    """A log that keeps warnings."""

    lines: list[tuple[str, dict[str, Field]]] = attrs.field(factory=list)

    def enabled(self, level: Level) -> bool:
        return level == Level.WARNING

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        if self.enabled(level):
            self.lines.append((message, fields))

    def passed(self) -> list[tuple[Field, ...]]:
        """Return from whom and to whom names passed: the sockets and users before and after."""
        keys = ("socket_before", "uid_before", "socket", "uid")
        lines = [fields for message, fields in self.lines if message == "a name passed to another user"]
        return [tuple(fields[key] for key in keys) for fields in lines]


@asynccontextmanager
async def running(
    log: Warnings | None = None, policy: InstancePolicy = InstancePolicy.NEWEST
) -> AsyncIterator[SimulatedNode]:
    """A node that trusts Ann and Bob."""
    config = attrs.evolve(DEFAULT_CONFIG, trust=Trust((ANN, BOB)))
    handlers = {"Colour": FakeHandler(instances=policy)}
    async with SimulatedNode(config, handlers=handlers, log=log or Warnings()) as node:
        yield node


def colour(name: str = "red", endpoint: str = "") -> FakePlugin:
    return FakePlugin("Colour", name, endpoint=endpoint)


def shown(node: SimulatedNode, socket: str) -> PluginStatus:
    status = node.status(socket)
    assert status is not None
    return status


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", InstancePolicy)
async def test_a_name_that_root_takes_over_is_logged_once_with_both_users(
    autojump_clock: MockClock, policy: InstancePolicy
) -> None:
    """Fault 80: also when root's plugin is restarted later, or has more instances."""
    log = Warnings()
    async with running(log, policy) as node:
        node.plug("a.sock", colour(), uid=ANN)
        await node.settled()
        root = node.plug("b.sock", colour(), uid=0)
        await node.settled()
        passed = [("/plugins/a.sock", ANN, "/plugins/b.sock", 0)]
        assert log.passed() == passed
        root.restart()
        await trio.sleep(30.0)
        node.plug("c.sock", colour(), uid=0)
        await node.settled()
        assert log.passed() == passed


@pytest.mark.parametrize("waits", [True, False])
async def test_a_name_that_another_user_takes_once_it_is_kept_no_more_is_logged(
    autojump_clock: MockClock, waits: bool
) -> None:
    """Fault 80: at once, or much later."""
    log = Warnings()
    async with running(log) as node:
        holder = node.plug("a.sock", colour(), uid=ANN)
        await node.settled()
        if waits:
            node.plug("b.sock", colour(), uid=BOB)
            await trio.sleep(10.0)
        holder.stop()
        await trio.sleep(1000.0)
        if not waits:
            node.plug("b.sock", colour(), uid=BOB)
            await node.settled()
        assert log.passed() == [("/plugins/a.sock", ANN, "/plugins/b.sock", BOB)]


async def test_a_plugin_that_runs_as_another_user_at_its_own_socket_is_logged(autojump_clock: MockClock) -> None:
    """Fault 80."""
    log = Warnings()
    async with running(log) as node:
        node.plug("a.sock", colour(), uid=ANN).stop()
        await node.settled()
        plugin = node.plug("a.sock", colour(), uid=ANN)
        await node.settled()
        plugin.restart(uid=0)
        await node.settled()
        plugin.restart(uid=0)
        await trio.sleep(30.0)
        assert log.passed() == [("/plugins/a.sock", ANN, "/plugins/a.sock", 0)]


async def test_a_plugin_that_is_restarted_by_its_user_is_not_logged(autojump_clock: MockClock) -> None:
    """Fault 80: at its path or at another one, and beside another instance."""
    log = Warnings()
    async with running(log) as node:
        plugin = node.plug("a.sock", colour(), uid=ANN)
        await node.settled()
        plugin.restart()
        node.plug("b.sock", colour(), uid=ANN)
        await trio.sleep(NAME_KEPT + 20.0)
        assert (node.state("a.sock"), node.state("b.sock"), log.passed()) == ("registered", "registered", [])


# --- endpoints --------------------------------------------------------------------------------------------------------


async def test_a_user_who_names_the_endpoint_of_root_first_does_not_keep_its_plugin_out(
    autojump_clock: MockClock,
) -> None:
    """Fault 79: as with names, Ann's plugin stays registered and stands by, with the reason, until root's leaves."""
    log = Warnings()
    async with running(log) as node:
        node.plug("ann.sock", colour("squatter", ENDPOINT), uid=ANN)
        await node.settled(patience=0.0)
        root = node.plug("root.sock", colour("gpu", ENDPOINT), uid=0)
        await trio.sleep(1.0)
        assert (shown(node, "root.sock").state, shown(node, "root.sock").active) == ("registered", True)
        squatter = shown(node, "ann.sock")
        reason = (
            f"the endpoint '{ENDPOINT}' belongs to Colour 'gpu' of user 0, by the socket /plugins/root.sock: give this"
            " plugin an endpoint of its own"
        )
        assert (squatter.state, squatter.active) == ("registered", False)
        assert reason in squatter.warnings
        assert [fields["cause"] for message, fields in log.lines if message == "endpoint passed to another plugin"] == [
            reason
        ]
        node.crash("status")
        await node.settled(patience=0.0)
        assert reason in shown(node, "ann.sock").warnings, "a new status actor is told again"
        root.stop()
        await trio.sleep(1.0)
        assert shown(node, "ann.sock").active
        assert reason not in shown(node, "ann.sock").warnings


async def test_a_plugin_that_stands_by_because_of_its_endpoint_does_not_get_that_back_by_a_restart(
    autojump_clock: MockClock,
) -> None:
    """Fault 79: the reason names the owner with its user, and is gone with the endpoint."""
    async with running() as node:
        ann = node.plug("ann.sock", colour("squatter", ENDPOINT), uid=ANN)
        await node.settled(patience=0.0)
        node.plug("root.sock", colour("gpu", ENDPOINT), uid=0)
        await trio.sleep(30.0)
        ann.restart()
        await trio.sleep(1.0)
        assert shown(node, "ann.sock").state == "waiting"
        assert "belongs to Colour 'gpu' of user 0, by the socket /plugins/root.sock" in str(
            shown(node, "ann.sock").cause
        )
        ann.plugin = colour("squatter")
        ann.restart()
        await trio.sleep(10.0)
        assert (shown(node, "ann.sock").state, shown(node, "ann.sock").active) == ("registered", True)
        assert shown(node, "ann.sock").warnings == ()


async def test_an_endpoint_does_not_pass_between_users_who_are_not_privileged(autojump_clock: MockClock) -> None:
    """Fault 79."""
    async with running() as node:
        node.plug("ann.sock", colour("one", ENDPOINT), uid=ANN)
        await node.settled(patience=0.0)
        node.plug("bob.sock", colour("two", ENDPOINT), uid=BOB)
        await trio.sleep(1.0)
        assert shown(node, "bob.sock").state == "waiting"
        assert "belongs to Colour 'one' of user 1001" in str(shown(node, "bob.sock").cause)
