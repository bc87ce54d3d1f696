"""Names and endpoints that pass from one user's plugin to another's, on a whole node in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.protocol.logs.lines import Field
from plugind.protocol.plugins.info import InstancePolicy
from plugind.protocol.trust.users import Trust
from plugind.protocol.world.kept_names import NAME_KEPT
from plugind.testing import DEFAULT_CONFIG, FakeHandler, FakePlugin, SimulatedNode
from plugind.tests.actors.handlers.calling import Lines
from plugind.tests.actors.registration.timelines import shown

#: Users of the machine who are trusted.
ANN, BOB = 1001, 1002
ENDPOINT = "/plugins/.gpu.sock"


def passed(log: Lines) -> list[tuple[Field, ...]]:
    """Return from whom and to whom names passed: the sockets and users before and after."""
    keys = ("socket_before", "uid_before", "socket", "uid")
    return [tuple(fields[key] for key in keys) for _, fields in log.with_text("a name passed to another user")]


@asynccontextmanager
async def running(
    log: Lines | None = None, policy: InstancePolicy = InstancePolicy.NEWEST
) -> AsyncIterator[SimulatedNode]:
    """A node that trusts Ann and Bob."""
    config = attrs.evolve(DEFAULT_CONFIG, trust=Trust((ANN, BOB)))
    handlers = {"Colour": FakeHandler(instances=policy)}
    async with SimulatedNode(config, handlers=handlers, log=log or Lines()) as node:
        yield node


def colour(name: str = "red", endpoint: str = "") -> FakePlugin:
    return FakePlugin("Colour", name, endpoint=endpoint)


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", InstancePolicy)
async def test_a_name_that_root_takes_over_is_logged_once_with_both_users(
    autojump_clock: MockClock, policy: InstancePolicy
) -> None:
    """Fault 80: also when root's plugin is restarted later, or has more instances."""
    log = Lines()
    async with running(log, policy) as node:
        node.plug("a.sock", colour(), uid=ANN)
        await node.settled()
        root = node.plug("b.sock", colour(), uid=0)
        await node.settled()
        taken_over = [("/plugins/a.sock", ANN, "/plugins/b.sock", 0)]
        assert passed(log) == taken_over
        root.restart()
        await trio.sleep(30.0)
        node.plug("c.sock", colour(), uid=0)
        await node.settled()
        assert passed(log) == taken_over


async def test_a_plugin_that_is_restarted_by_its_user_is_not_logged(autojump_clock: MockClock) -> None:
    """Fault 80: at its path or at another one, and beside another instance."""
    log = Lines()
    async with running(log) as node:
        plugin = node.plug("a.sock", colour(), uid=ANN)
        await node.settled()
        plugin.restart()
        node.plug("b.sock", colour(), uid=ANN)
        await trio.sleep(NAME_KEPT + 20.0)
        assert (node.state("a.sock"), node.state("b.sock"), passed(log)) == ("registered", "registered", [])


# --- endpoints --------------------------------------------------------------------------------------------------------


async def test_a_user_who_names_the_endpoint_of_root_first_does_not_keep_its_plugin_out(
    autojump_clock: MockClock,
) -> None:
    """Fault 79: as with names, Ann's plugin stays registered and stands by, with the reason, until root's leaves."""
    log = Lines()
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
        assert [fields["cause"] for _, fields in log.with_text("endpoint passed to another plugin")] == [reason]
        node.crash("status")
        await node.settled(patience=0.0)
        assert reason in shown(node, "ann.sock").warnings, "a new status actor is told again"
        root.stop()
        await trio.sleep(1.0)
        assert shown(node, "ann.sock").active
        assert reason not in shown(node, "ann.sock").warnings
