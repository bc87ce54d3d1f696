"""Roots are added and removed while a node runs: their plugins are registered and deregistered, and no others."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.actors.leases.store import MemoryLeaseStore
from plugind.actors.simulation.directory import MemoryDirectory
from plugind.protocol.errors import ConfigError
from plugind.protocol.messages.status import Snapshot
from plugind.protocol.settings.config import Config, Root
from plugind.testing import DEFAULT_CONFIG, FakeHandler, FakePlugin, SimulatedNode, Takes
from plugind.tests.actors.registration.timelines import at, registered_at

FIRST, OTHER = "/plugins", "/other"
SOCKET = f"{OTHER}/b.sock"


def rooted(*roots: str | Root) -> Config:
    return attrs.evolve(DEFAULT_CONFIG, roots=tuple(Root(root) if isinstance(root, str) else root for root in roots))


def watched(snapshot: Snapshot) -> dict[str, str]:
    return {report.root: report.watching for report in snapshot.roots}


async def test_the_plugins_of_a_root_are_registered_from_its_addition_until_its_removal(
    autojump_clock: MockClock,
) -> None:
    handler = FakeHandler()
    async with SimulatedNode(handlers={"Colour": handler}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red"))
        await trio.sleep(5.0)
        await node.reconfigure(rooted(FIRST, OTHER))
        await trio.sleep(1.0)
        # The node has made it.
        node.plug(SOCKET, FakePlugin("Colour", "blue"))
        await trio.sleep(24.0)
        assert watched(await node.snapshot()) == {FIRST: "events", OTHER: "events"}
        await node.reconfigure(rooted(FIRST))
        await trio.sleep(5.0)
        assert watched(await node.snapshot()) == {FIRST: "events"}
        assert (node.state(SOCKET), node.leftovers()) == (None, ["/plugins/a.sock has an actor"])
        # Nobody looks there any more.
        node.plug(f"{OTHER}/c.sock", FakePlugin("Colour", "green"))
        await trio.sleep(60.0)
        await node.reconfigure(rooted(OTHER, FIRST))
        await trio.sleep(5.0)
        assert node.timeline(SOCKET) == [*registered_at(6.0), *at(30.0, "leaving", "gone"), *registered_at(95.0)]
        assert node.timeline(f"{OTHER}/c.sock") == registered_at(95.0)
        assert node.timeline("a.sock") == registered_at(0.0)
        assert handler.asked("blue") == ["validate", "register", "deregister", "validate", "register"]


@pytest.mark.parametrize(
    ("after", "leaves"),
    [
        (0.25, [*at(0.25, "gone")]),
        (0.75, [*at(0.5, "validating", "registering"), *at(0.75, "leaving", "gone")]),
        (1.75, [*at(0.5, "validating", "registering"), *at(1.5, "notifying"), *at(1.75, "leaving", "gone")]),
    ],
)
async def test_a_root_that_is_removed_amid_a_registration_leaves_nothing_registered(
    after: float, leaves: list[tuple[float, str]], autojump_clock: MockClock
) -> None:
    """While the plugin is asked for its info, while its handler registers it, and while it is notified."""
    handler = FakeHandler().script("register", Takes(1.0))
    async with SimulatedNode(rooted(FIRST, OTHER), handlers={"Colour": handler}) as node:
        node.plug(SOCKET, FakePlugin("Colour", "blue", delay=0.5))
        await trio.sleep(after)
        await node.reconfigure(rooted(FIRST))
        await trio.sleep(60.0)
        assert node.timeline(SOCKET) == [*at(0.2, "asking-info"), *leaves]
        assert handler.asked().count("register") == handler.asked().count("deregister")
        assert node.leftovers() == []


async def test_a_root_is_unlocked_when_the_last_of_its_plugins_is_deregistered(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then no other node may register what is there; one that is added again stays locked all the time."""
    released: list[float] = []
    monkeypatch.setattr(MemoryDirectory, "release", lambda _: released.append(trio.current_time()))
    handler = FakeHandler().script("deregister", Takes(2.0), Takes(2.0))
    async with SimulatedNode(rooted(FIRST, OTHER), handlers={"Colour": handler}) as node:
        node.plug(SOCKET, FakePlugin("Colour", "blue"))
        await trio.sleep(20.0)
        await node.reconfigure(rooted(FIRST))
        await trio.sleep(1.0)
        await node.reconfigure(rooted(FIRST, OTHER))
        await trio.sleep(29.0)
        assert node.timeline(SOCKET) == [*registered_at(0.0), *at(20.0, "leaving"), *registered_at(22.0)]
        assert released == []
        await node.reconfigure(rooted(FIRST))
        await trio.sleep(10.0)
        assert node.timeline(SOCKET)[-2:] == [(50.0, "leaving"), (52.0, "gone")]
        assert released == [52.0]


@pytest.mark.parametrize("crash_first", [True, False])
async def test_roots_are_watched_as_they_were_changed_amid_a_crash_of_the_reconciler(
    crash_first: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[float] = []
    monkeypatch.setattr(MemoryDirectory, "release", lambda _: released.append(trio.current_time()))
    handler = FakeHandler().script("deregister", Takes(1.0), Takes(1.0))
    async with SimulatedNode(rooted(FIRST, OTHER), handlers={"Colour": handler}) as node:
        node.plug("a.sock", FakePlugin("Colour", "red"))
        node.plug(SOCKET, FakePlugin("Colour", "blue"))
        node.plug("/third/c.sock", FakePlugin("Colour", "green"))
        await trio.sleep(20.0)
        if crash_first:
            node.crash("reconciler")
            await trio.sleep(0.5)  # All plugins are being deregistered.
        await node.reconfigure(rooted(FIRST, "/third"))
        if not crash_first:
            node.crash("reconciler")
        await trio.sleep(40.0)
        assert watched(await node.snapshot()) == {FIRST: "events", "/third": "events"}
        assert (node.state("a.sock"), node.state(SOCKET), node.state("/third/c.sock")) == (
            "registered",
            None,
            "registered",
        )
        asked = [handler.asked(name) for name in ("red", "blue")]
        assert asked[0] == ["validate", "register", "deregister", "validate", "register"]
        assert asked[1] == ["validate", "register", "deregister"]
        assert len(released) == 1
        await node.reconfigure(rooted(FIRST, OTHER))
        await trio.sleep(40.0)
        assert (node.state("a.sock"), node.state(SOCKET), node.state("/third/c.sock")) == (
            "registered",
            "registered",
            None,
        )


async def test_a_watcher_that_has_crashed_is_started_again_unless_its_root_was_removed(
    autojump_clock: MockClock,
) -> None:
    async with SimulatedNode(rooted(FIRST), handlers={"Colour": FakeHandler()}) as node:
        await trio.sleep(5.0)
        node.plug(SOCKET, FakePlugin("Colour", "blue"))
        node.crash("watcher")
        await node.reconfigure(rooted(FIRST, OTHER))
        await trio.sleep(20.0)
        assert node.state(SOCKET) == "registered"
        # It has crashed, and is not started again yet.
        node.crash("watcher")
        node.plug(f"{OTHER}/c.sock", FakePlugin("Colour", "green"))
        await trio.testing.wait_all_tasks_blocked()
        await node.reconfigure(rooted(FIRST))
        await trio.sleep(20.0)
        assert (node.statuses, node.leftovers()) == ({}, [])


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (rooted(FIRST, f"{FIRST}/below"), "lies in the root"),
        (rooted(), "there is no root"),
        (rooted(OTHER, OTHER), "is named twice"),
        (rooted(Root(FIRST, deprecated=True)), r"Config\.roots: start another node"),
        (rooted(Root(FIRST, insecure=True), OTHER), r"Config\.roots: start another node"),
    ],
)
async def test_roots_that_cannot_be_watched_together_or_in_another_way_change_nothing(
    config: Config, reason: str, autojump_clock: MockClock
) -> None:
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        with pytest.raises(ConfigError, match=reason):
            await node.reconfigure(config)
        await trio.sleep(30.0)
        assert (node.supervisor.config, watched(await node.snapshot())) == (DEFAULT_CONFIG, {FIRST: "events"})


async def test_the_store_of_leases_learns_first_which_roots_there_will_be_and_may_refuse_them(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says outside of the state of which directories leases may be, and knows of leases of other states."""
    served: list[Sequence[str]] = []

    def serve(_: MemoryLeaseStore, directories: Sequence[str]) -> None:
        served.append(directories)
        if OTHER in directories:
            raise ConfigError("leases may be held there")

    monkeypatch.setattr(MemoryLeaseStore, "serve", serve)
    async with SimulatedNode(handlers={"Colour": FakeHandler()}) as node:
        with pytest.raises(ConfigError, match="leases may be held there"):
            await node.reconfigure(rooted(FIRST, OTHER))
        await trio.sleep(30.0)
        assert (node.supervisor.config, watched(await node.snapshot())) == (DEFAULT_CONFIG, {FIRST: "events"})
        await node.reconfigure(rooted(FIRST, "/third"))
        await node.reconfigure(attrs.evolve(rooted(FIRST, "/third"), expected=("a",)))
    assert served == [(FIRST, OTHER), (FIRST, "/third")]


async def test_what_was_refused_in_a_root_is_forgotten_with_it(autojump_clock: MockClock) -> None:
    async with SimulatedNode(rooted(FIRST, OTHER)) as node:
        link = f"{OTHER}/link.sock"
        node.plug("/elsewhere/x.sock", FakePlugin("Colour", "x"))
        node.directory.symlink("/elsewhere/x.sock", link)
        await trio.sleep(5.0)
        await node.reconfigure(rooted(FIRST))
        await trio.sleep(60.0)
        assert node.timeline(link) == [(0.0, "parked"), (5.0, "gone")]


async def test_one_configuration_is_put_in_force_at_a_time(autojump_clock: MockClock) -> None:
    """Of two calls at once, one is refused; what the other one asks for is what there is."""
    async with SimulatedNode(rooted(FIRST, OTHER)) as node:
        await trio.sleep(1.0)
        errors: list[str] = []

        async def change(config: Config) -> None:
            try:
                await node.reconfigure(config)
            except RuntimeError as error:
                errors.append(str(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change, rooted(FIRST))
            nursery.start_soon(change, rooted(FIRST, "/third"))
        await trio.sleep(5.0)
        assert errors == ["another configuration is being put in force: wait for that"]
        assert list(watched(await node.snapshot())) == [root.path for root in node.supervisor.config.roots]


async def test_a_caller_who_is_cancelled_leaves_the_whole_new_configuration_in_force(autojump_clock: MockClock) -> None:
    """The watcher of the removed root has not ended when the caller leaves; what comes after that is done, too."""
    async with SimulatedNode(rooted(FIRST, OTHER)) as node:
        await trio.sleep(1.0)
        with trio.CancelScope() as caller:
            caller.cancel()
            await node.reconfigure(rooted(FIRST, "/third"))
        assert caller.cancelled_caught
        await trio.sleep(5.0)
        assert list(watched(await node.snapshot())) == [FIRST, "/third"]
        # No caller waits for it any more, so that the next change may come.
        await node.reconfigure(rooted(FIRST))
        assert list(watched(await node.snapshot())) == [FIRST]
