"""What the page knows of a daemon: its first list, each change, and that it has gone and come back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from plugind.actors.http.server import problem
from plugind.actors.status.page.board import LEASES, PLUGINS, RESOURCES, Board
from plugind.actors.status.page.daemon import UserNames, follow
from plugind.protocol.leases.values import Lease, LeaseState, ProcessIdentity, ProcessOwner, Request, TimeOwner, Wanted
from plugind.protocol.plugins.status import StateName
from plugind.tests.actors.status.page.events import Browser
from plugind.tests.actors.status.page.stand_in import GPU, plugin, resource, standing_in

UNIX = 1_000_000.0


@attrs.define
class Shown:
    """A board that follows a daemon, and a browser that has its stream."""

    board: Board
    browser: Browser = attrs.field(factory=Browser)
    _came: trio.Event = attrs.field(factory=trio.Event)

    async def send(self, piece: bytes) -> None:
        self.browser.take(piece)
        self._came.set()
        self._came = trio.Event()

    async def until(self, condition: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
        """Wait until what the browser knows meets ``condition``."""
        with trio.move_on_after(60):
            while not condition(self.browser.tables):
                await self._came.wait()
            return
        raise AssertionError(self.browser.tables)

    def plugins(self) -> dict[str, str]:
        return {key: entry["state"] for key, entry in self.browser.tables[PLUGINS].items()}


@asynccontextmanager
async def following(
    path: str, timeout: float = 60.0, *, wall: Callable[[], float] = lambda: UNIX, names: UserNames | None = None
) -> AsyncIterator[Shown]:
    shown = Shown(Board())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow, path, timeout, shown.board, wall, names)
        nursery.start_soon(shown.board.stream, shown.send)
        yield shown
        nursery.cancel_scope.cancel()


def is_there(tables: dict[str, dict[str, Any]]) -> bool:
    return all(tables.get("node", {}).get(table, {}).get("state") == "there" for table in (PLUGINS, RESOURCES, LEASES))


async def test_the_first_list_and_then_each_change_are_known(tmp_path: Path) -> None:
    async with standing_in(str(tmp_path / "s")) as daemon:
        daemon.put_plugin(plugin("a"))
        daemon.put_plugin(plugin("b", StateName.WAITING, cause="it refused"))
        daemon.put_resource(resource(d0="Healthy", d1="Sick"))
        owner = ProcessOwner(ProcessIdentity(991, 7, "boot"))
        lease = Lease("train", 1000, Request((Wanted(GPU, 1),)), owner, LeaseState.HELD, 5.0, {GPU: ("d0",)})
        daemon.put_lease(lease)
        async with following(daemon.path) as shown:
            await shown.until(is_there)
            tables = shown.browser.tables
            assert shown.plugins() == {"/r/a.sock": "registered", "/r/b.sock": "waiting"}
            assert tables[PLUGINS]["/r/b.sock"]["cause"] == "it refused"
            assert (tables[RESOURCES][GPU]["allocatable"], tables[RESOURCES][GPU]["capacity"]) == (1, 2)
            assert tables[LEASES]["train"]["devices"] == {GPU: ["d0"]}
            assert tables[LEASES]["train"]["owner"]["pid"] == 991
            assert "answer" not in tables[LEASES]["train"], "the environment may hold secrets"
            daemon.put_plugin(plugin("b"))
            daemon.remove("/watch", "/r/a.sock")
            daemon.remove("/v1/leases/watch", "train")
            await shown.until(lambda _: shown.plugins() == {"/r/b.sock": "registered"} and not tables[LEASES])


async def test_a_daemon_that_has_gone_is_away_and_what_it_said_stays_until_its_successor_says_more(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "s")
    async with following(path) as shown:
        await shown.until(lambda tables: tables.get("node", {}).get(PLUGINS, {}).get("state") == "away")
        assert shown.browser.tables["node"][PLUGINS] == {
            "state": "away",
            "since": UNIX,
            "reason": "No such file or directory",
        }
        async with standing_in(path) as daemon:
            daemon.put_plugin(plugin("a"))
            daemon.put_plugin(plugin("b"))
            await shown.until(is_there)
            assert shown.plugins() == {"/r/a.sock": "registered", "/r/b.sock": "registered"}
            daemon.end_watches()
            await shown.until(lambda tables: tables["node"][PLUGINS]["state"] == "away")
            assert shown.browser.tables["node"][PLUGINS]["reason"] == "the daemon has stopped"
        assert shown.plugins() == {"/r/a.sock": "registered", "/r/b.sock": "registered"}
        async with standing_in(path) as daemon:
            daemon.put_plugin(plugin("b", StateName.WAITING))
            await shown.until(is_there)
            assert shown.plugins() == {"/r/b.sock": "waiting"}
            assert shown.browser.tables["node"][PLUGINS] == {"state": "there", "since": None, "reason": None}


async def test_changes_that_the_daemon_has_dropped_are_read_anew_and_it_is_not_away(tmp_path: Path) -> None:
    async with standing_in(str(tmp_path / "s")) as daemon, following(daemon.path) as shown:
        daemon.put_plugin(plugin("a"))
        await shown.until(is_there)
        shown_as: list[object] = []
        daemon.tables["/watch"].clear()
        daemon.say("/watch", b'{"error": "too slow: changes were lost; watch again"}\n')
        daemon.put_plugin(plugin("b"))

        def is_anew(tables: dict[str, dict[str, Any]]) -> bool:
            shown_as.append(tables["node"][PLUGINS]["state"])
            return shown.plugins() == {"/r/b.sock": "registered"}

        await shown.until(is_anew)
        assert {*shown_as} == {"there"}
        assert daemon.asked.count("/watch") == 2


async def test_a_daemon_without_device_plugins_has_no_devices_and_is_there(tmp_path: Path) -> None:
    async with standing_in(str(tmp_path / "s")) as daemon:
        daemon.instead["/v1/devices/watch"] = problem(404, "this node has no device plugins")
        async with following(daemon.path) as shown:
            await shown.until(lambda tables: RESOURCES in tables.get("node", {}) and PLUGINS in tables["node"])
            assert shown.browser.tables["node"][RESOURCES] == {
                "state": "missing",
                "since": UNIX,
                "reason": "this node has no device plugins",
            }
            assert shown.browser.tables["node"][PLUGINS]["state"] == "there"


async def test_a_daemon_that_is_silent_is_away(tmp_path: Path) -> None:
    async with standing_in(str(tmp_path / "s")) as daemon, following(daemon.path, timeout=1.0) as shown:
        await shown.until(is_there)
        # A heartbeat later than the daemon may be silent.
        daemon.silent = True
        await shown.until(lambda tables: tables["node"][PLUGINS]["state"] == "away")
        assert "sent nothing within 1 s" in shown.browser.tables["node"][PLUGINS]["reason"]


async def test_answers_that_are_something_else_are_said_and_asked_for_again(tmp_path: Path) -> None:
    async with standing_in(str(tmp_path / "s")) as daemon, following(daemon.path) as shown:
        await shown.until(is_there)
        for line in (b"no JSON\n", b'{"socket": 7}\n'):
            daemon.say("/watch", line)
            await shown.until(lambda tables: tables["node"][PLUGINS]["state"] == "away")
            assert "something else" in shown.browser.tables["node"][PLUGINS]["reason"]
            await shown.until(is_there)


async def test_the_parts_of_a_daemon_that_are_not_well_are_named(tmp_path: Path) -> None:
    async with standing_in(str(tmp_path / "s")) as daemon:
        roots = [{"root": "/r", "status": "degraded", "reason": "polling"}, {"root": "/ok", "status": "ok"}]
        actors = [{"name": "loop", "status": "failed", "reason": "blocked"}] * 30
        daemon.health = {"status": "failed", "roots": roots, "actors": actors, "queued": 7}
        async with following(daemon.path) as shown:
            await shown.until(lambda tables: "health" in tables.get("node", {}))
            health = shown.browser.tables["node"]["health"]
    assert (health["status"], health["queued"]) == ("failed", 7)
    assert health["reasons"] == ["/r is degraded: polling", *["loop is failed: blocked"] * 15]


async def test_the_user_of_a_lease_has_its_name(tmp_path: Path) -> None:
    users = tmp_path / "passwd"
    users.write_text("anna:x:1000:1000::/home/anna:/bin/sh\n")
    async with standing_in(str(tmp_path / "s")) as daemon, following(daemon.path, names=UserNames(users)) as shown:
        request = Request((Wanted(GPU, 1),))
        for number, uid in enumerate((1000, 1001)):
            daemon.put_lease(Lease(str(number), uid, request, TimeOwner(60.0), LeaseState.HELD, 5.0))
        job = "slurm:c:n:42:0:1000:gpu"
        daemon.put_lease(Lease(job, 0, request, TimeOwner(60.0), LeaseState.HELD, 5.0))
        await shown.until(lambda tables: {"0", "1", job} <= {*tables.get(LEASES, {})})
        leases = [shown.browser.tables[LEASES][key] for key in ("0", "1", job)]
        assert [(lease["uid"], lease["user"], lease["whose"], lease["for"]) for lease in leases] == [
            (1000, "anna", "anna", "0"),
            (1001, None, "user 1001", "1"),
            (0, None, "anna", "job 42"),
        ]


async def test_who_may_only_lease_has_no_plugins_and_the_daemon_is_not_away(tmp_path: Path) -> None:
    async with standing_in(str(tmp_path / "s")) as daemon:
        for path in ("/watch", "/healthz", "/"):
            daemon.instead[path] = problem(403, "you may only see and lease devices")
        daemon.put_resource(resource(d0="Healthy"))
        async with following(daemon.path) as shown:
            await shown.until(lambda tables: tables.get("node", {}).get(RESOURCES, {}).get("state") == "there")
            await shown.until(lambda tables: PLUGINS in tables["node"])
            node = shown.browser.tables["node"]
            assert node[PLUGINS]["state"] == "forbidden"
            # What this user may not know is not said to be bad.
            assert (node.get("health"), node.get("version")) == (None, None)
            assert GPU in shown.browser.tables[RESOURCES]


async def test_a_daemon_is_away_since_it_was_heard_last_and_its_health_and_version_are_known_when_it_is_back(
    tmp_path: Path,
) -> None:
    path, times = str(tmp_path / "s"), [UNIX]
    async with following(path, wall=lambda: times[0]) as shown:
        async with standing_in(path) as daemon:
            daemon.version = "1.0"
            await shown.until(is_there)
            await shown.until(lambda tables: {"health", "version"} <= {*tables["node"]})
            times[0] += 100.0
            daemon.end_watches()
            await shown.until(lambda tables: tables["node"][PLUGINS]["state"] == "away")
            assert shown.browser.tables["node"][PLUGINS]["since"] == UNIX
        await shown.until(lambda tables: {"health", "version"}.isdisjoint(tables["node"]))
        async with standing_in(path) as daemon:
            daemon.version, daemon.health = "2.0", {"status": "degraded"}
            await shown.until(is_there)
            await shown.until(lambda tables: tables["node"].get("version") == "2.0")
            await shown.until(lambda tables: tables["node"]["health"]["status"] == "degraded")
