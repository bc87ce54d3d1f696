"""Who may register plugins, and who may take a name: users on a whole node, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.handlers.csi.handler import CSIHandler
from plugind.actors.simulation.node import DAEMON_UID, OVERFLOW_UID
from plugind.protocol.logs.lines import Level
from plugind.protocol.plugins.info import InstancePolicy
from plugind.protocol.trust.users import Trust
from plugind.protocol.world.kept_names import NAME_KEPT
from plugind.testing import DEFAULT_CONFIG, FakeHandler, FakePlugin, PluggedIn, SimulatedNode
from plugind.tests.actors.handlers.calling import Lines
from plugind.tests.actors.registration.timelines import at, red, registered_at, steps_at

#: Users of the machine who are trusted, and one who is not.
ANN, BOB, EVE = 1001, 1002, 6666


@asynccontextmanager
async def running(handler: FakeHandler | None = None) -> AsyncIterator[SimulatedNode]:
    """A node that trusts Ann and Bob."""
    config = attrs.evolve(DEFAULT_CONFIG, trust=Trust(((ANN, BOB),)))
    async with SimulatedNode(config, handlers={"Colour": handler or FakeHandler()}) as node:
        yield node


# --- who may register -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uid", [EVE, OVERFLOW_UID])
async def test_a_plugin_of_a_user_who_is_not_trusted_is_parked_before_any_call(
    autojump_clock: MockClock, uid: int
) -> None:
    """Fault 40: the reason names the process, the user, and what to do."""
    async with running() as node:
        plugin = node.plug("a.sock", red(), uid=uid)
        await trio.sleep(3600.0)
        assert node.timeline("a.sock") == at(0.0, "parked")
        assert (plugin.calls, plugin.accepted) == ([], 1)
        status = node.status("a.sock")
        assert status is not None
        assert (status.uid, status.pid) == (uid, 1000)
        assert status.cause == node.config.trust.refusal(uid, 1000, node.users)
        assert status.reason == (
            "RegisterPlugin error -- dial failed at socket /plugins/a.sock, err: cannot trust '/plugins/a.sock': "
            f"{status.cause}"
        )


@pytest.mark.parametrize(
    ("owner", "uid", "outcome"),
    [
        (ANN, ANN, "registered"),
        (ANN, 0, "registered"),
        (ANN, DAEMON_UID, "registered"),
        (ANN, BOB, "parked"),
        (ANN, EVE, "parked"),
        (0, BOB, "registered"),
        (EVE, ANN, None),
    ],
)
async def test_in_the_directory_of_a_trusted_user_only_that_users_plugins_and_privileged_ones_are_registered(
    autojump_clock: MockClock, owner: int, uid: int, outcome: str | None
) -> None:
    """Faults 3 and 80: the owner could remove the socket of another user's plugin, and take its name."""
    async with running() as node:
        node.directory.mkdir("/plugins/own")
        node.directory.mkdir("/plugins/own/below")
        node.directory.chown("/plugins/own", owner)
        plugin = node.plug("own/below/a.sock", red(), uid=uid)
        await trio.sleep(100.0)
        status = node.status("own/below/a.sock")
        assert (None if status is None else status.state) == outcome
        if (owner, uid) == (ANN, BOB):
            assert status is not None
            assert status.cause == (
                f"process 1000 of user {BOB} listens there; it is in a directory of user {ANN}, who could remove it and"
                " take its name: move it to a directory of root, or of its own user"
            )
            assert (plugin.calls, plugin.accepted) == ([], 1)


async def test_a_parked_plugin_that_runs_as_another_user_is_registered(autojump_clock: MockClock) -> None:
    """Fault 40: it is judged at each connect."""
    async with running() as node:
        plugin = node.plug("a.sock", red(), uid=EVE)
        await node.settled()
        plugin.become(ANN)
        await trio.sleep(100.0)
        assert node.state("a.sock") == "parked"
        node.directory.chmod(plugin.path)
        await node.settled()
        assert node.timeline("a.sock") == [*at(0.0, "parked"), *steps_at(100.0)]


# --- who is notified --------------------------------------------------------------------------------------------------


async def registered_but_not_notified(node: SimulatedNode) -> PluggedIn:
    """Return Ann's plugin, which the handler has registered, and which was not to be notified so far."""
    plugin = node.plug("a.sock", red(notify_fails=2), uid=ANN)
    await trio.sleep(0.1)
    assert node.timeline("a.sock") == at(0.0, "dialing", "notifying", "waiting")
    return plugin


async def test_another_user_is_not_notified_of_a_registration(autojump_clock: MockClock) -> None:
    """Fault 40: the connection that notifies must be to the user who answered GetInfo; the registration is undone."""
    handler = FakeHandler()
    async with running(handler) as node:
        plugin = await registered_but_not_notified(node)
        before = list(plugin.calls)
        plugin.become(BOB)
        await trio.sleep(3600.0)
        assert node.timeline("a.sock")[-3:] == at(0.5, "dialing", "leaving", "parked")
        assert plugin.calls == before
        assert handler.asked() == ["validate", "register", "deregister"]
        status = node.status("a.sock")
        assert status is not None
        assert (status.uid, status.pid) == (BOB, 1000)
        assert str(status.reason).endswith(
            "process 1000 of user 1002 listens there now, and user 1001 answered GetInfo: a plugin must not change its"
            " user; restart it, or ask for a retry to register the one that listens now"
        )


# --- who may have a name ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", InstancePolicy)
@pytest.mark.parametrize("holder", [0, DAEMON_UID, ANN])
async def test_another_user_does_not_get_a_name_that_is_taken(
    autojump_clock: MockClock, policy: InstancePolicy, holder: int
) -> None:
    """Fault 80: whatever the policy for several instances; the reason names the user that has the name."""
    handler = FakeHandler(instances=policy)
    async with running(handler) as node:
        node.plug("a.sock", red(), uid=holder)
        await node.settled()
        thief = node.plug("b.sock", red(), uid=BOB)
        await trio.sleep(0.1)
        assert node.timeline("b.sock") == at(0.0, "waiting")
        assert handler.asked() == ["validate", "register"]
        reason = (
            f"Colour 'red' belongs to user {holder}, by the socket /plugins/a.sock, and user 1002 may"
            " not take it over: stop that plugin first, or run this one as that user or as root"
        )
        assert node.history("b.sock")[-1].cause == f"plugin validation failed: {reason}"
        assert thief.calls[-1].error == f"RegisterPlugin error -- plugin validation failed with err: {reason}"
        active = {plugin.socket: plugin.active for plugin in (await node.snapshot()).plugins}
        assert active == {"/plugins/a.sock": True, "/plugins/b.sock": None}


async def test_a_claim_to_the_name_of_another_user_is_an_error_in_the_log(autojump_clock: MockClock) -> None:
    """Fault 80: once for each socket, however often it is tried."""
    log = Lines()
    config = attrs.evolve(DEFAULT_CONFIG, trust=Trust((ANN, BOB)))
    async with SimulatedNode(config, handlers={"Colour": FakeHandler()}, log=log) as node:
        node.plug("a.sock", red(), uid=ANN)
        await node.settled()
        thief = node.plug("b.sock", red(), uid=BOB)
        await trio.sleep(1000.0)
        thief.restart()
        await trio.sleep(1000.0)
    errors = [
        (level, fields["uid"], fields["generation"]) for level, fields in log.with_text("another user claims a name")
    ]
    assert errors == [(Level.ERROR, BOB, 2), (Level.ERROR, BOB, 3)]


@pytest.mark.parametrize("uid", [0, DAEMON_UID])
@pytest.mark.parametrize("policy", InstancePolicy)
async def test_root_and_the_daemon_may_succeed_a_plugin_of_another_user_whatever_the_policy(
    autojump_clock: MockClock, policy: InstancePolicy, uid: int
) -> None:
    """Fault 80: also where the policy is to reject; a lower version does not count against them."""
    async with running(FakeHandler(instances=policy)) as node:
        old = node.plug("a.sock", FakePlugin("Colour", "red", versions=("2.0.0",)), uid=ANN)
        await node.settled()
        node.plug("b.sock", red(), uid=uid)
        await node.settled()
        assert (node.state("a.sock"), node.state("b.sock")) == ("registered", "registered")
        assert {plugin.socket: plugin.active for plugin in (await node.snapshot()).plugins} == {
            "/plugins/a.sock": policy is InstancePolicy.ALL,
            "/plugins/b.sock": True,
        }
        node.plug("c.sock", red(), uid=ANN)
        await trio.sleep(0.1)
        assert f"belongs to user {uid}" in str(node.history("c.sock")[-1].cause)
        old.stop()
        await node.settled()
        assert (node.state("a.sock"), node.state("b.sock")) == (None, "registered")


async def test_a_csi_driver_of_root_succeeds_a_higher_version_of_another_user(autojump_clock: MockClock) -> None:
    """Fault 80: otherwise Ann's driver would lock root's out by a version that nobody can exceed."""

    def driver(version: str) -> FakePlugin:
        return FakePlugin("CSIPlugin", "disk.example.com", versions=(version,))

    config = attrs.evolve(DEFAULT_CONFIG, trust=Trust((ANN,)))
    async with SimulatedNode(config, handlers={"CSIPlugin": CSIHandler()}) as node:
        node.plug("a.sock", driver("1.999"), uid=ANN)
        await node.settled()
        node.plug("b.sock", driver("1.2"), uid=0)
        await node.settled()
        node.plug("c.sock", driver("1.1"), uid=0)
        await trio.sleep(0.1)
        assert {plugin.socket: plugin.active for plugin in (await node.snapshot()).plugins} == {
            "/plugins/a.sock": False,
            "/plugins/b.sock": True,
            "/plugins/c.sock": None,
        }
        assert "by the socket /plugins/b.sock" in str(node.history("c.sock")[-1].cause)


# --- the owner of the file --------------------------------------------------------------------------------------------


async def test_the_owner_of_the_file_is_shown_and_decides_nothing(autojump_clock: MockClock) -> None:
    """Fault 40: a plugin gives its socket away, and a user who is not trusted owns it; the process counts."""
    async with running() as node:
        plugin = node.plug("a.sock", red(), uid=ANN)
        await node.settled()
        history = node.timeline("a.sock")
        for owner in (EVE, 0):
            node.directory.chown(plugin.path, owner)
            await trio.sleep(1.0)  # A change of attributes alone may be looked at a moment later.
            await node.settled()
            (shown,) = (await node.snapshot()).plugins
            assert (shown.uid, shown.owner, shown.state) == (ANN, owner, "registered")
            assert shown == attrs.evolve(shown, history=shown.history[:1]), "it is no change of state"
        assert node.timeline("a.sock") == history == registered_at(0.0)


# --- a name whose plugin is replaced ----------------------------------------------------------------------------------


@pytest.mark.parametrize("holder", [0, DAEMON_UID, ANN])
@pytest.mark.parametrize("path", ["a.sock", "new.sock"])
async def test_a_name_is_kept_for_a_plugin_that_restarts(autojump_clock: MockClock, holder: int, path: str) -> None:
    """Fault 80: the socket is removed, and a new one is made a while later, perhaps at another path."""
    async with running(FakeHandler(instances=InstancePolicy.HIGHEST_VERSION)) as node:
        plugin = node.plug("a.sock", red(), uid=holder)
        await node.settled()
        thief = node.plug("b.sock", red(), uid=BOB)
        await trio.sleep(100.0)
        calls = len(thief.calls)
        plugin.stop()
        await trio.sleep(10.0)
        assert (node.state("b.sock"), len(thief.calls)) == ("waiting", calls)
        node.plug(path, red(), uid=holder)
        await trio.sleep(NAME_KEPT + 1.0)
        assert (node.state(path), node.state("b.sock")) == ("registered", "waiting")


async def test_a_plugin_of_another_user_is_told_for_whom_a_name_is_kept(autojump_clock: MockClock) -> None:
    """Fault 80: it gets its turn at the end, also if its backoff is longer."""
    async with running() as node:
        plugin = node.plug("a.sock", red(), uid=0)
        await node.settled()
        plugin.stop()
        await node.settled(patience=0.0)
        thief = node.plug("b.sock", red(), uid=BOB)
        await trio.sleep(0.1)
        assert str(thief.calls[-1].error).endswith(
            "Colour 'red' is kept for user 0 for 15 s, whose plugin left: wait until then, or run this plugin as that"
            " user or as root"
        )
        await trio.sleep(NAME_KEPT)
        assert node.state("b.sock") == "registered"
