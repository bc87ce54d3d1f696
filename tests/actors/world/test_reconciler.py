"""The reconciler on a whole node: several sockets of one name, changes of handlers, and requests of users."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.protocol.messages.reconciler import RetryAnswer, RetryAnswered, RetryAsked
from plugind.protocol.plugins.info import InstancePolicy, Plugin
from plugind.protocol.trust.users import Trust
from plugind.testing import (
    DEFAULT_CONFIG,
    Fails,
    FakeHandler,
    FakePlugin,
    HandlerCall,
    SimulatedNode,
    Takes,
)
from plugind.tests.actors.registration.timelines import (
    asked,
    at,
    notified_error,
    notified_ok,
    registered_at,
    steps_at,
)


def red(*versions: str) -> FakePlugin:
    return FakePlugin("Colour", "red", versions or ("1.0.0",))


async def active(node: SimulatedNode) -> dict[str, bool | None]:
    return {plugin.socket.removeprefix("/plugins/"): plugin.active for plugin in (await node.snapshot()).plugins}


# --- one path ---------------------------------------------------------------------------------------------------------


async def test_a_registered_socket_is_shown_completely(autojump_clock: MockClock) -> None:
    """Reconciler Test_Run_Positive_Register; actual state Test_ASW_AddPlugin_Positive_NewPlugin: stored whole.

    Desired state Test_DSW_AddOrUpdatePlugin_Positive_NewPlugin: listed.
    """
    config = attrs.evolve(DEFAULT_CONFIG, trust=Trust((42,)))
    async with SimulatedNode(config, handlers={"Colour": FakeHandler()}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red", ("1.0.0", "2.0.0"), "/plugins/.red.sock"), uid=42)
        await node.settled()
        (plugin,) = (await node.snapshot()).plugins
        assert (plugin.socket, plugin.type, plugin.name, plugin.endpoint, plugin.versions) == (
            "/plugins/a.sock",
            "Colour",
            "red",
            "/plugins/.red.sock",
            ("1.0.0", "2.0.0"),
        )
        assert (plugin.state, plugin.uid, plugin.pid, plugin.attempt, plugin.reason) == (
            "registered",
            42,
            1000,
            1,
            None,
        )
        assert plugin.registered_in == 0.0
        assert [entry.state for entry in plugin.history] == ["registered"]


async def test_a_socket_that_is_removed_is_deregistered_and_no_longer_shown(autojump_clock: MockClock) -> None:
    """Reconciler Test_Run_Positive_RegisterThenUnregister; actual state Test_ASW_RemovePlugin_Positive, desired state
    Test_DSW_RemovePlugin_Positive: gone."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        await node.settled()
        await trio.sleep(7.0)
        plugin.stop()
        await node.settled()
        assert node.timeline("a.sock") == [*registered_at(0.0), *at(7.0, "leaving", "gone")]
        assert (await node.snapshot()).plugins == ()
        assert handler.asked() == ["validate", "register", "deregister"]


async def test_adding_and_removing_ten_times_is_tracked(autojump_clock: MockClock) -> None:
    """plugin_watcher_test TestPluginRegistration: add and remove ten times."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        expected: list[tuple[float, str]] = []
        for number in range(10):
            plugin = node.plug("a.sock", red())
            await node.settled()
            # Each of them was stable, so that the next one is registered at once (behaviour 24).
            await trio.sleep(10.0)
            plugin.stop()
            await node.settled()
            expected += [*registered_at(10.0 * number), *at(10.0 * number + 10.0, "leaving", "gone")]
        assert node.timeline("a.sock") == expected
        assert handler.asked() == ["validate", "register", "deregister"] * 10


# --- one name, several sockets ----------------------------------------------------------------------------------------


async def test_ten_sockets_of_one_name_are_all_kept(autojump_clock: MockClock) -> None:
    """plugin_watcher_test TestPluginRegistrationSameName: ten paths, one name, all kept."""
    handler = FakeHandler(instances=InstancePolicy.ALL)
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        for number in range(10):
            node.plug(f"{number}.sock", red())
        await node.settled()
        assert [node.state(f"{number}.sock") for number in range(10)] == ["registered"] * 10
        assert set((await active(node)).values()) == {True}
        assert len(handler.registered) == 10
        assert handler.most_at_once == 1


async def test_the_second_socket_of_a_name_stays_when_the_first_is_removed(autojump_clock: MockClock) -> None:
    """Behaviour 37, fault 78: removing one deregisters that instance alone; roles go to the newest."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        old = node.plug("old.sock", red())
        await node.settled()
        new = node.plug("new.sock", red())
        await node.settled()
        assert await active(node) == {"old.sock": False, "new.sock": True}
        new.stop()
        await node.settled()
        assert await active(node) == {"old.sock": True}
        assert handler.plugins[-1][1].socket == new.path
        assert list(handler.registered) == [old.path]
        assert node.timeline("old.sock") == registered_at(0.0)


async def test_a_rolling_update_has_no_gap_when_the_older_socket_is_removed(autojump_clock: MockClock) -> None:
    """Behaviour 37: rolling updates overlap. The name stays registered, and only the old socket is deregistered."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        old = node.plug("red-1-reg.sock", red())
        await trio.sleep(1.0)
        new = node.plug("red-2-reg.sock", red())
        await trio.sleep(1.0)
        old.stop()
        await node.settled()
        assert node.timeline("red-1-reg.sock") == [*registered_at(0.0), *at(2.0, "leaving", "gone")]
        assert node.timeline("red-2-reg.sock") == registered_at(1.0)
        assert [(call, plugin.socket) for call, plugin in handler.plugins] == [
            ("validate", old.path),
            ("register", old.path),
            ("validate", new.path),
            ("register", new.path),
            ("deregister", old.path),
        ]


async def test_a_name_that_is_taken_is_refused_until_it_is_free(autojump_clock: MockClock) -> None:
    """Behaviour 37, REJECT: the second plugin is notified, backs off, and is tried at once on NameFreed."""
    handler = FakeHandler(instances=InstancePolicy.REJECT)
    error = (
        "RegisterPlugin error -- plugin validation failed with err: "
        "Colour 'red' is registered already, by the socket /plugins/first.sock"
    )
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        first = node.plug("first.sock", red())
        await node.settled()
        second = node.plug("second.sock", red())
        await trio.sleep_until(20.0)
        assert node.timeline("second.sock")[:2] == [(0.0, "waiting"), (0.5, "dialing")]
        assert second.calls[:2] == [asked(0.0), notified_error(0.0, error)]
        assert node.history("second.sock")[-1].next_try == 31.5
        before = len(node.timeline("second.sock"))
        first.stop()
        await node.settled()
        assert node.timeline("first.sock")[1:] == at(20.0, "leaving", "gone")
        assert node.timeline("second.sock")[before:] == steps_at(20.0)


async def test_a_csi_driver_of_a_name_that_is_taken_must_have_a_higher_version(autojump_clock: MockClock) -> None:
    """CSI handler TestValidatePluginExistingDriver, fault 78: it is tried at once when the other driver is removed."""
    async with SimulatedNode() as node:
        first = node.plug("first.sock", FakePlugin("CSIPlugin", "x.csi", ["1.2.0"]))
        await node.settled()
        node.plug("lower.sock", FakePlugin("CSIPlugin", "x.csi", ["1.1.0"]))
        node.plug("higher.sock", FakePlugin("CSIPlugin", "x.csi", ["1.3.0"]))
        await trio.sleep_until(10.0)
        assert node.state("lower.sock") == "waiting"
        assert await active(node) == {"first.sock": False, "higher.sock": True, "lower.sock": None}
        node.directory.unlink("/plugins/higher.sock")
        first.stop()
        await node.settled()
        assert node.timeline("lower.sock")[-6:] == steps_at(10.0)


async def test_a_second_release_in_one_step_of_the_backoff_is_waited_for(autojump_clock: MockClock) -> None:
    """Fault 49: a release brings a try forward once in a step, so that removals in a loop do not end the backoff."""
    async with SimulatedNode() as node:
        first = node.plug("first.sock", FakePlugin("CSIPlugin", "x.csi", ["1.2.0"]))
        await node.settled()
        node.plug("lower.sock", FakePlugin("CSIPlugin", "x.csi", ["1.1.0"]))
        node.plug("higher.sock", FakePlugin("CSIPlugin", "x.csi", ["1.3.0"]))
        await trio.sleep_until(10.0)
        first.stop()
        await trio.sleep(0.1)
        assert node.timeline("lower.sock")[-2:] == at(10.0, "notifying", "waiting")
        node.directory.unlink("/plugins/higher.sock")
        await trio.sleep_until(30.0)
        assert node.timeline("lower.sock")[-6:] == steps_at(26.0)


# --- handlers ---------------------------------------------------------------------------------------------------------


async def test_an_error_that_a_handler_raises_at_its_deadline_is_contained_too(autojump_clock: MockClock) -> None:
    """Faults 81 and 82 at once: a task of the handler raises while it is cancelled."""

    class FailsInCleanup(FakeHandler):
        async def register(self, plugin: Plugin) -> None:
            async def err() -> None:
                try:
                    await trio.sleep_forever()
                finally:
                    raise OSError("cannot clean up")

            if self.asked().count("register") == 0:
                self.calls.append(HandlerCall(trio.current_time(), "register", plugin.name))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(err)
                    nursery.start_soon(trio.sleep_forever)
            await super().register(plugin)

    handler = FailsInCleanup()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        plugin = node.plug("a.sock", red())
        await node.settled()
        assert node.timeline("a.sock")[-6:] == steps_at(60.5)
        assert handler.asked() == ["validate", "register", "deregister", "validate", "register"]
        assert plugin.calls[1].error.startswith(
            "RegisterPlugin error -- plugin registration failed with err: the handler broke: ExceptionGroup: "
        )


async def test_removing_a_handler_deregisters_its_plugins_and_parks_them(autojump_clock: MockClock) -> None:
    """Behaviour 29: the plugins are notified that there is no handler, and are registered again with the next one."""
    first, second = FakeHandler().always("deregister", Takes(1.0)), FakeHandler()
    async with SimulatedNode(handlers={"Colour": first}) as node:
        node.plug("a.sock", red())
        csi = node.plug("csi.sock", FakePlugin("CSIPlugin", "x.csi"))
        await node.settled()
        await node.supervisor.remove_handler("Colour")
        assert node.now == 1.0
        await node.settled()
        assert node.timeline("a.sock") == [
            *registered_at(0.0),
            (0.0, "leaving"),
            *at(1.0, "dialing", "asking-info", "validating", "notifying", "parked"),
        ]
        assert first.asked() == ["validate", "register", "deregister"]
        assert (await node.snapshot()).handlers == ("CSIPlugin", "DRAPlugin", "DevicePlugin")
        await node.supervisor.add_handler("Colour", second)
        await node.settled()
        assert node.timeline("a.sock")[7:] == steps_at(1.0)
        assert second.asked() == ["validate", "register"]
        assert csi.calls == [asked(0.0), notified_ok(0.0)]


async def test_adding_a_handler_twice_or_removing_a_missing_one_is_an_error(autojump_clock: MockClock) -> None:
    """The errors of the embedding API say what to do."""
    async with SimulatedNode() as node:
        with pytest.raises(ValueError, match="remove it first"):
            await node.supervisor.add_handler("CSIPlugin", FakeHandler())
        with pytest.raises(KeyError, match="Colour has no handler"):
            await node.supervisor.remove_handler("Colour")


# --- retries ----------------------------------------------------------------------------------------------------------


async def test_a_retry_by_path_or_name_tries_at_once_and_resets_the_backoff(autojump_clock: MockClock) -> None:
    """``plugind retry``: resets the backoff and tries now."""
    handler = FakeHandler().script("validate", Fails("no"), times=6)
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", red())
        await trio.sleep_until(10.0)
        assert node.history("a.sock")[-1].next_try == 15.5
        tried_now = (RetryAnswer("/plugins/a.sock", tried=True, why="tried now"),)
        assert await node.supervisor.retry("red") == tried_now
        await trio.sleep(0.1)
        waiting = node.history("a.sock")[-1]
        assert (waiting.time, waiting.attempt, waiting.next_try) == (10.0, 1, 10.5)
        assert await node.supervisor.retry("/plugins/a.sock") == tried_now
        await node.settled()
        assert node.timeline("a.sock")[-6:] == steps_at(10.1)
        assert await node.supervisor.retry("green") == ()


async def test_retrying_a_registered_plugin_changes_nothing(autojump_clock: MockClock) -> None:
    """``plugind retry`` of a healthy plugin is harmless."""
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", red())
        await node.settled()
        (answer,) = await node.supervisor.retry("red")
        assert answer == RetryAnswer("/plugins/a.sock", tried=False, why="registered already, nothing to retry")
        await node.settled()
        assert node.timeline("a.sock") == registered_at(0.0)
        assert handler.calls == [HandlerCall(0.0, "validate", "red"), HandlerCall(0.0, "register", "red")]


async def test_a_retry_during_an_attempt_reports_at_once_that_it_is_under_way(autojump_clock: MockClock) -> None:
    """The plugin does not answer GetInfo for a second; the caller does not wait for that."""
    async with SimulatedNode() as node:
        node.plug("a.sock", FakePlugin("Colour", "red", hang="get-info"))
        await trio.sleep(0.5)
        (answer,) = await node.supervisor.retry("/plugins/a.sock")
        assert trio.current_time() == 0.5
        assert (answer.tried, answer.why) == (True, "an attempt is under way: info")
        await trio.sleep_until(1.9)
        assert [time for time, _ in node.network.dials] == [0.0, 1.0], (
            "the retry takes effect when the attempt has failed, and needs no backoff"
        )


async def test_a_retry_of_a_plugin_that_leaves_reports_it(autojump_clock: MockClock) -> None:
    handler = FakeHandler().always("deregister", Takes(3.0))
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", red())
        await node.settled()
        node.directory.unlink(node.path("a.sock"))
        await trio.sleep(1.0)
        (answer,) = await node.supervisor.retry("red")
        assert (answer.tried, answer.why) == (False, "it is leaving: plugind stops, or its socket was removed")
        node.plug("a.sock", red())
        await trio.sleep(1.0)
        (answer,) = await node.supervisor.retry("red")
        assert (answer.tried, answer.why) == (True, "it is being deregistered, and tried right after that")


async def test_a_retry_of_a_symbolic_link_reports_that_it_does_not_help(autojump_clock: MockClock) -> None:
    """Behaviour 7."""
    async with SimulatedNode() as node:
        node.directory.bind("/plugins/.a.sock")
        node.directory.symlink("/plugins/.a.sock", "/plugins/link.sock")
        await node.settled()
        (answer,) = await node.supervisor.retry("/plugins/link.sock")
        assert not answer.tried
        assert answer.why.startswith("not a plugin: a symbolic link")
        assert answer.why.endswith("; retry does not help")


async def test_a_retry_by_a_caller_that_has_gone_affects_no_other(autojump_clock: MockClock) -> None:
    """Its answer is dropped: a reconciler that crashed because of it would deregister every plugin."""
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        node.plug("a.sock", red())
        await node.settled()
        reply, answer = trio.open_memory_channel[RetryAnswered](1)
        answer.close()
        for path in ("/plugins/a.sock", "/plugins/unknown.sock"):
            node.supervisor.internals.reconciler.address.send_nowait(RetryAsked(path, reply))
        await node.settled()
        assert node.timeline("a.sock") == registered_at(0.0)
