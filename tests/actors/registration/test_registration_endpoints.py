"""Registrations of plugins that name an endpoint elsewhere, on a whole node in virtual time."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from plugind.testing import DEFAULT_CONFIG, FakeHandler, FakePlugin, SimulatedNode
from plugind.tests.actors.registration.timelines import asked, notified_error, shown

MISSING = "endpoint does not exist yet"
#: Longer than the pauses at which the messages to the liveness actor are read together.
COALESCE = 0.15


def red(endpoint: str = "", name: str = "red") -> FakePlugin:
    return FakePlugin("Colour", name, endpoint=endpoint)


def node_with(handler: FakeHandler, *directories: str) -> SimulatedNode:
    config = attrs.evolve(DEFAULT_CONFIG, endpoint_directories=directories or None)
    return SimulatedNode(config, handlers={"Colour": handler})


def warnings(node: SimulatedNode, socket: str = "a.sock") -> tuple[str, ...]:
    status = shown(node, socket)
    assert status.state == "registered"
    return status.warnings


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("/etc/shadow.sock", "is in none of the directories for endpoints, /plugins: move it there, or run"),
        ("/proc/1/root/a.sock", "is in /proc"),
        ("/plugins/file", "is no socket"),
        ("/plugins/.link", "is a symbolic link"),
        ("/plugins/d", "is a directory"),
    ],
)
async def test_a_plugin_with_an_unacceptable_endpoint_is_notified_of_the_reason(
    autojump_clock: MockClock, endpoint: str, words: str
) -> None:
    """Fault 43: refused before any handler is called."""
    handler = FakeHandler()
    async with node_with(handler) as node:
        node.directory.mkdir("/plugins/d")
        node.directory.write("/plugins/file")
        node.directory.symlink("/plugins/a.sock", "/plugins/.link")
        plugged = node.plug("a.sock", red(endpoint))
        await node.settled(patience=0.0)
        reason = node.history("a.sock")[-1].reason or ""
        assert reason.startswith(
            f"RegisterPlugin error -- plugin validation failed with err: the endpoint '{endpoint}' {words}"
        )
        assert plugged.calls == [asked(0.0), notified_error(0.0, reason)]
        assert handler.calls == []


async def test_an_endpoint_that_does_not_exist_yet_is_shown_until_it_can_be_used(autojump_clock: MockClock) -> None:
    """Fault 43: drivers may start after their registrars."""
    handler = FakeHandler()
    async with node_with(handler) as node:
        registrar = node.plug("a.sock", red("/plugins/.driver/csi.sock"))
        await trio.sleep(COALESCE)
        assert warnings(node) == (MISSING,)
        driver = node.plug("/plugins/.driver/csi.sock", red(), listening=False)
        await trio.sleep(node.config.rescan + COALESCE)
        assert warnings(node) == ("nobody listens on its endpoint",)
        driver.listen()
        await trio.sleep(node.config.rescan + COALESCE)
        assert warnings(node) == ()
        accepted = driver.accepted
        await trio.sleep(10 * node.config.rescan)
        assert driver.accepted == accepted, "it is not looked at again"
        assert [call.method for call in registrar.calls] == ["GetInfo", "NotifyRegistrationStatus"]


async def test_an_endpoint_that_appears_is_judged_when_it_is_connected_to(autojump_clock: MockClock) -> None:
    """Fault 43: what was no file when the plugin was registered may be anything later."""
    async with node_with(FakeHandler()) as node:
        node.plug("a.sock", red("/plugins/.csi.sock"))
        await trio.sleep(COALESCE)
        node.directory.symlink("/etc/other.sock", "/plugins/.csi.sock")
        await trio.sleep(node.config.rescan + COALESCE)
        (problem,) = warnings(node)
        assert problem.startswith("the endpoint '/plugins/.csi.sock' is a symbolic link")
        node.directory.unlink("/plugins/.csi.sock")
        node.plug("/plugins/.csi.sock", red())
        await trio.sleep(node.config.rescan + COALESCE)
        assert warnings(node) == ()


async def test_the_process_that_listens_on_an_endpoint_is_judged_at_each_connection(autojump_clock: MockClock) -> None:
    """Fault 40: any user who may write to a directory for endpoints could listen there first."""
    async with node_with(FakeHandler()) as node:
        node.plug("a.sock", red("/plugins/.csi.sock"))
        await trio.sleep(COALESCE)
        stranger = node.plug("/plugins/.csi.sock", red(), uid=1234)
        await trio.sleep(node.config.rescan + COALESCE)
        (problem,) = warnings(node)
        assert problem.startswith("the endpoint '/plugins/.csi.sock' is not used: process ")
        assert "of user 1234 listens there, which is not trusted" in problem
        stranger.stop()
        await trio.sleep(node.config.rescan + COALESCE)
        assert warnings(node) == (MISSING,)


@pytest.mark.parametrize("link", [False, True])
async def test_the_endpoint_of_another_plugin_is_refused_and_free_once_that_is_gone(
    autojump_clock: MockClock, link: bool
) -> None:
    """Fault 79: by its path, and by its file."""
    handler = FakeHandler()
    async with node_with(handler) as node:
        node.plug("/plugins/.csi.sock", red())
        if link:
            node.directory.link("/plugins/.csi.sock", "/plugins/.linked.sock")
        owner = node.plug("a.sock", red("/plugins/.csi.sock"))
        await trio.sleep(1.0)
        same = node.plug("same.sock", red("/plugins/.csi.sock"))
        endpoint = "/plugins/.linked.sock" if link else "/plugins/.csi.sock"
        other = node.plug("b.sock", red(endpoint, "blue"))
        await trio.sleep(0.0)
        await node.settled(patience=0.0)
        assert (node.state("same.sock"), node.state("b.sock")) == ("registered", "waiting")
        assert other.calls[-1].error == (
            f"RegisterPlugin error -- plugin validation failed with err: the endpoint '{endpoint}' belongs to Colour"
            " 'red' of user 0, by the socket /plugins/a.sock: give this plugin an endpoint of its own"
        )
        owner.stop()
        same.stop()
        await node.settled()
        assert node.state("b.sock") == "registered"
