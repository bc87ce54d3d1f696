"""Handlers in other processes: what they are asked, and what happens while they are away."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from plugind.actors.handlers.errors import MAX_ERROR
from plugind.actors.handlers.remote import RemoteHandlers, Session
from plugind.actors.simulation.node import DEFAULT_CONFIG
from plugind.actors.simulation.scripts import PluginLives
from plugind.protocol.client.asks_json import event_to_json
from plugind.protocol.errors import ConfigError
from plugind.protocol.handlers.remote import (
    MOST_OPEN,
    PING_EVERY,
    Ask,
    AskKind,
    AskResult,
    Asks,
    HandlerRefusedError,
    Instance,
    RoleTold,
    Synced,
    Withdrawn,
)
from plugind.protocol.plugins.health import Health
from plugind.protocol.settings.config import Config, Timeouts
from plugind.protocol.words import StateName
from plugind.testing import FakeHandler, FakePlugin, SimulatedNode
from plugind.tests.actors.handlers.calling import Lines
from plugind.tests.protocol.hypothesis_settings import examples
from plugind.tests.tools.schemas import check

TYPE = "Sensor"
KNOWN = attrs.evolve(DEFAULT_CONFIG, handler_uids={TYPE: frozenset({1000})})


def remote(node: SimulatedNode) -> RemoteHandlers:
    return node.supervisor.internals.remote_handlers()


def sensor(name: str = "a") -> FakePlugin:
    return FakePlugin(TYPE, name)


@attrs.define
class Process:
    """A process that serves the type. It answers each ask with the verdict for its kind, or not at all with None."""

    node: SimulatedNode
    pid: int = 7
    #: What it has, which outlives its sessions.
    has: dict[str, Instance] = attrs.field(factory=dict)
    verdicts: dict[AskKind, AskResult | None] = attrs.field(factory=dict)
    told: list[str] = attrs.field(factory=list)
    unanswered: list[Ask] = attrs.field(factory=list)
    session: Session = attrs.field(init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until the process is killed, as the status socket would."""
        handlers = remote(self.node)
        self._scope = trio.CancelScope()
        self.session = session = handlers.open(TYPE, f"token {trio.current_time()}", 1000, self.pid)
        try:
            with self._scope:
                session.hold(self.has.values(), more=False)
                task_status.started()
                while not session.over.is_set():
                    for event in await session.next():
                        self.take(event)
        finally:
            handlers.close(session)

    def kill(self) -> None:
        self._scope.cancel()

    def take(self, event: Ask | Withdrawn | RoleTold | Synced) -> None:
        check("line", json.loads(json.dumps(event_to_json(event, trio.current_time()))))
        match event:
            case Ask():
                self.told.append(f"{event.kind.value} {event.name}".strip())
                self.answer(event)
            case Withdrawn():
                self.told.append("withdrawn")
            case RoleTold():
                self.told.append("active" if event.active else "standby")
            case Synced():
                self.told.append("synced")

    def answer(self, ask: Ask) -> None:
        verdict = self.verdicts.get(ask.kind, AskResult())
        if verdict is None:
            self.unanswered.append(ask)
            return
        if ask.instance is not None and ask.kind is AskKind.REGISTER and verdict.error is None:
            self.has[ask.instance.id] = ask.instance
        if ask.instance is not None and ask.kind is AskKind.DEREGISTER:
            self.has.pop(ask.instance.id, None)
        assert self.session.answer(ask.number, verdict)

    def news(self) -> list[str]:
        """Return what it was told since the last time."""
        told, self.told = self.told, []
        return told


@asynccontextmanager
async def served(
    config: Config = KNOWN, verdicts: Mapping[AskKind, AskResult | None] = {}
) -> AsyncIterator[tuple[SimulatedNode, trio.Nursery, Process]]:
    """Run a node, and a process that serves the type."""
    async with SimulatedNode(config) as node, trio.open_nursery() as nursery:
        process = Process(node, verdicts={**verdicts})
        await nursery.start(process.serve)
        yield node, nursery, process
        process.kill()


async def test_a_process_is_asked_what_a_handler_of_the_program_would_be(autojump_clock: MockClock) -> None:
    async with served() as (node, _, process):
        plugin = node.plug("a.sock", sensor())
        await node.registered("a.sock")
        await node.settled()
        assert process.news() == ["synced", "validate a", "register a", "follow a", "active"]
        (instance,) = process.has.values()
        assert instance.plugin is not None
        assert instance.plugin.pid == plugin.pid
        link = process.session.handler.links.get(instance.id)
        assert link is not None
        link.report(Health.HEALTHY, facts={"unit": "celsius"})
        await node.settled()
        status = node.status("a.sock")
        assert status is not None
        assert (status.health, dict(status.facts)) == (Health.HEALTHY, {"unit": "celsius"})
        plugin.stop()
        await node.settled()
        assert process.news() == ["unfollow a", "deregister a"]
        assert not process.has


async def test_a_refusal_is_told_to_the_plugin_in_the_words_of_the_process(autojump_clock: MockClock) -> None:
    async with served(verdicts={AskKind.VALIDATE: AskResult("it is not known here")}) as (node, _, _):
        plugin = node.plug("a.sock", sensor())
        await trio.sleep(0.1)
        assert node.state("a.sock") == "waiting"
        assert "it is not known here" in (plugin.calls[-1].error or "")


async def test_while_no_process_serves_the_type_nothing_is_told_to_new_plugins_and_registered_ones_stay(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as (node, nursery, process):
        stays, goes = node.plug("a.sock", sensor()), node.plug("b.sock", sensor("b"))
        await node.registered("a.sock")
        await node.registered("b.sock")
        await node.settled()
        caplog.clear()
        process.kill()
        await node.settled()
        process.news()
        new = node.plug("c.sock", sensor("c"))
        goes.stop()
        await trio.sleep(600)
        assert [call.method for call in new.calls] == ["GetInfo"]
        assert node.state("c.sock") == "parked"
        assert node.state("a.sock") == "registered"
        # Health shows it as long as it is away, and the log says it once.
        away = f"the handler for {TYPE} is away: no process serves it now"
        assert node.health()[f"handler {TYPE}"].reason == away
        assert [text for text in caplog.messages if f'reason="{away}"' in text] == [
            f'handler is away type={TYPE} reason="{away}"'
        ]
        await nursery.start(process.serve)
        await node.registered("c.sock")
        await node.settled()
        # What it has and should not have goes first; what it has still is not registered again.
        assert process.news()[:2] == ["deregister b", "synced"]
        assert sorted(instance.name for instance in process.has.values()) == ["a", "c"]
        assert [call.method for call in stays.calls] == ["GetInfo", "NotifyRegistrationStatus"]


async def test_a_process_that_comes_back_with_less_is_asked_to_register_the_rest(autojump_clock: MockClock) -> None:
    async with served() as (node, nursery, process):
        plugin = node.plug("a.sock", sensor())
        await node.registered("a.sock")
        process.kill()
        await node.settled()
        process.news()
        process.has.clear()
        await nursery.start(process.serve)
        await node.settled()
        assert process.news() == ["synced", "register a", "follow a", "active"]
        assert [call.method for call in plugin.calls] == ["GetInfo", "NotifyRegistrationStatus"]


async def test_after_a_kill_of_the_daemon_what_a_process_has_is_deregistered_and_registered_anew(
    autojump_clock: MockClock,
) -> None:
    async with served() as (node, nursery, process):
        node.plug("a.sock", sensor())
        await node.registered("a.sock")
        before = set(process.has)
        process.kill()
        await node.kill()
        process.news()
        node.config = attrs.evolve(KNOWN, seed=1)
        await node.start()
        await node.settled()
        assert node.state("a.sock") == "parked"
        await nursery.start(process.serve)
        await node.registered("a.sock")
        await node.settled()
        assert process.news()[:4] == ["deregister a", "synced", "validate a", "register a"]
        assert before.isdisjoint(process.has)


@pytest.mark.parametrize("was_done", [False, True])
@pytest.mark.parametrize("during", [kind for kind in AskKind if kind is not AskKind.PING])
async def test_a_daemon_that_dies_amid_an_ask_leaves_the_process_with_exactly_the_plugins_that_are_there(
    during: AskKind, was_done: bool, autojump_clock: MockClock
) -> None:
    """Whether the process has done what it was asked or not: its answer is lost either way."""
    async with served(verdicts={during: None}) as (node, nursery, process):
        plugin = node.plug("a.sock", sensor())
        await trio.sleep(1)
        leaves = during in (AskKind.UNFOLLOW, AskKind.DEREGISTER)
        if leaves:
            plugin.stop()
            await trio.sleep(1)
        (ask,) = process.unanswered
        assert (ask.kind, ask.name) == (during, "a")
        assert ask.instance is not None
        if was_done and during is AskKind.REGISTER:
            process.has[ask.instance.id] = ask.instance
        if was_done and during is AskKind.DEREGISTER:
            del process.has[ask.instance.id]
        process.kill()
        await node.kill()
        process.verdicts.clear()
        node.config = attrs.evolve(KNOWN, seed=1)
        await node.start()
        await nursery.start(process.serve)
        await trio.sleep(10)
        epoch = remote(node).epoch
        assert [instance.rpartition("-")[0] for instance in process.has] == ([] if leaves else [epoch])
        assert node.state("a.sock") == (None if leaves else "registered")


@pytest.mark.parametrize("during", [AskKind.VALIDATE, AskKind.REGISTER])
async def test_a_process_that_dies_before_it_answers_leaves_the_plugin_untold(
    during: AskKind, autojump_clock: MockClock
) -> None:
    async with served(verdicts={during: None}) as (node, nursery, process):
        plugin = node.plug("a.sock", sensor())
        await trio.sleep(5)
        assert process.news()[-1] == f"{during.value} a"
        process.kill()
        await trio.sleep(60)
        assert {call.method for call in plugin.calls} == {"GetInfo"}
        assert node.state("a.sock") == "parked"
        process.verdicts.clear()
        await nursery.start(process.serve)
        await node.registered("a.sock")
        assert [call.method for call in plugin.calls][-1] == "NotifyRegistrationStatus"


async def test_a_process_that_misses_three_deadlines_hangs_until_it_answers_a_ping(autojump_clock: MockClock) -> None:
    config = attrs.evolve(KNOWN, timeouts=Timeouts(handlers={TYPE: 10.0}))
    async with served(config) as (node, _, process):
        old = node.plug("old.sock", sensor("old"))
        await node.registered("old.sock")
        process.verdicts = dict.fromkeys(AskKind, None)
        for name in "abc":
            node.plug(f"{name}.sock", sensor(name))
        await trio.sleep(11)
        assert node.health()[f"handler {TYPE}"].reason == (
            f"the handler for {TYPE}, pid 7 of uid 1000, hangs: it missed 3 deadlines in a row"
        )
        process.news()
        old.stop()
        await trio.sleep(2 * PING_EVERY + 20)
        assert [told for told in process.news() if told != "withdrawn"] == ["ping", "ping"]
        assert {node.state(f"{name}.sock") for name in "abc"} == {"parked"}
        process.verdicts = {}
        await trio.sleep(PING_EVERY + 20)
        assert process.news()[:2] == ["ping", "deregister old"]
        assert {node.state(f"{name}.sock") for name in "abc"} == {"registered"}


@pytest.mark.parametrize("gap", [0.0, 1.0])
async def test_three_plugins_are_told_that_a_handler_did_not_finish_and_all_others_wait_untold(
    gap: float, autojump_clock: MockClock
) -> None:
    config = attrs.evolve(KNOWN, timeouts=Timeouts(handlers={TYPE: 10.0}))
    async with served(config, dict.fromkeys(AskKind, None)) as (node, _, process):
        plugins = []
        for number in range(10):
            plugins.append(node.plug(f"{number}.sock", sensor(str(number))))
            await trio.sleep(gap)
        await trio.sleep(100)
        told = [call.error or "" for plugin in plugins for call in plugin.calls if call.method != "GetInfo"]
        assert [error.rpartition(": ")[2] for error in told] == ["the handler did not finish in 10 s"] * 3
        assert {node.state(f"{number}.sock") for number in range(10)} == {"parked"}
        assert process.news()[-3:] == ["ping"] * 3


async def test_an_error_of_a_deregister_is_logged_also_for_an_instance_of_before(autojump_clock: MockClock) -> None:
    """Fault 84."""
    log = Lines()
    verdicts = {AskKind.DEREGISTER: AskResult("it is mounted " * 100)}
    async with SimulatedNode(KNOWN, log=log) as node, trio.open_nursery() as nursery:
        older = Instance("older-1", "b", "/plugins/b.sock")
        process = Process(node, has={older.id: older}, verdicts={**verdicts})
        await nursery.start(process.serve)
        plugin = node.plug("a.sock", sensor())
        await node.registered("a.sock")
        plugin.stop()
        await node.settled()
        process.kill()
    lines = [line for _, line in log.with_text("deregister failed")]
    assert [(line["type"], line["name"], line["error"]) for line in lines] == [
        (TYPE, name, ("it is mounted " * 100)[:MAX_ERROR]) for name in "ba"
    ]


async def test_after_the_grace_the_plugins_of_an_absent_handler_are_deregistered(autojump_clock: MockClock) -> None:
    config = attrs.evolve(KNOWN, handler_grace={TYPE: 60.0})
    async with served(config) as (node, nursery, process):
        plugin = node.plug("a.sock", sensor())
        await node.registered("a.sock")
        process.kill()
        await trio.sleep(50)
        assert node.state("a.sock") == "registered"
        await trio.sleep(20)
        assert node.state("a.sock") == "parked"
        process.news()
        await nursery.start(process.serve)
        await node.registered("a.sock")
        assert process.news()[:2] == ["deregister a", "synced"]
        assert all(call.registered is not False for call in plugin.calls)


async def test_a_type_has_one_handler(autojump_clock: MockClock) -> None:
    async with SimulatedNode(handlers={"Mine": FakeHandler()}) as node, trio.open_nursery() as nursery:
        process = Process(node)
        await nursery.start(process.serve)
        with pytest.raises(HandlerRefusedError, match="pid 7 of uid 1000 serves Sensor: a type has one handler"):
            remote(node).open(TYPE, "another", 1000, 8)
        for taken in ("Mine", "CSIPlugin"):
            with pytest.raises(HandlerRefusedError, match=f"plugind has a handler for {taken} itself"):
                remote(node).open(taken, "another", 0, 8)
        process.kill()
    config = attrs.evolve(DEFAULT_CONFIG, handler_uids={"Mine": frozenset[int]()})
    with pytest.raises(ConfigError, match="Mine has a handler here, and one in another process"):
        async with SimulatedNode(config, handlers={"Mine": FakeHandler()}):
            pass


async def test_a_configured_type_takes_the_place_of_a_built_in_handler(autojump_clock: MockClock) -> None:
    async with SimulatedNode(Config(seed=0, handler_uids={"CSIPlugin": frozenset[int]()})) as node:
        plugin = node.plug("a.sock", FakePlugin("CSIPlugin", "csi.example.com"))
        await trio.sleep(1)
        assert node.state("a.sock") == "parked"
        assert [call.method for call in plugin.calls] == ["GetInfo"]


class Story:
    """A random life of a node, its plugins and the process that serves their type."""

    def __init__(self, node: SimulatedNode, nursery: trio.Nursery, seed: int) -> None:
        self.node, self.nursery, self.random = node, nursery, random.Random(seed)
        self.process, self.serves = Process(node), False
        self.lives = PluginLives(node, [sensor(name) for name in "abcdef"], self.random)
        self.pids = itertools.count(8)

    async def serve(self) -> None:
        if not self.serves:
            self.process.pid = next(self.pids)
            await self.nursery.start(self.process.serve)
            self.serves = True

    async def die(self) -> None:
        if self.serves:
            self.process.kill()
            self.serves = False
            await trio.testing.wait_all_tasks_blocked()

    async def lose(self) -> None:
        """Die, and come back with less."""
        await self.die()
        for instance in [*self.process.has][:: self.random.choice([1, 2])]:
            del self.process.has[instance]
        await self.serve()

    async def find(self) -> None:
        """Die, and come back with an instance that nobody knows."""
        await self.die()
        self.process.has["older-1"] = Instance("older-1", self.random.choice("abc"), "/plugins/older.sock")
        await self.serve()

    async def misbehave(self) -> None:
        kind = self.random.choice([*AskKind])
        self.process.verdicts[kind] = self.random.choice([None, AskResult("no"), AskResult("no", "in short")])

    async def behave(self) -> None:
        self.process.verdicts.clear()

    async def answer_late(self) -> None:
        """Answer what was not answered, some of it twice, and something that was never asked."""
        if self.serves:
            for ask in self.process.unanswered:
                self.process.session.answer(ask.number, AskResult())
                assert not self.process.session.answer(ask.number, AskResult())
            assert not self.process.session.answer(10**6, AskResult())
            self.process.unanswered.clear()

    async def restart(self) -> None:
        await self.die()
        await (self.node.kill() if self.random.random() < 0.7 else self.node.stop())
        self.node.config = attrs.evolve(self.node.config, seed=self.random.randrange(10**6))
        await self.node.start()

    async def crash_reconciler(self) -> None:
        self.node.crash("reconciler")

    async def play(self, acts: int) -> None:
        weights = {
            self.serve: 3, self.die: 1, self.lose: 1, self.find: 1, self.misbehave: 1, self.behave: 2,
            self.answer_late: 1, self.restart: 1, self.crash_reconciler: 1, self.lives.act: 13,
        }  # fmt: skip
        for act in self.random.choices([*weights], [*weights.values()], k=acts):
            await act()
        await self.behave()
        await self.die()
        await self.serve()
        self.lives.recover()
        await trio.sleep(600)

    def check(self) -> None:
        """Check that the process has what is registered, and that this is all that there is."""
        there = sorted(plugin.name for _, plugin in self.lives.plugged.values())
        states = [status for status in self.node.statuses.values() if status.state is StateName.REGISTERED]
        assert sorted(status.name or "" for status in states) == there
        epoch = remote(self.node).epoch
        has = sorted((instance.name, instance.id.split("-")[0]) for instance in self.process.has.values())
        assert has == [(name, epoch) for name in there]


@pytest.mark.parametrize("seed", range(6))
async def test_after_any_story_a_process_has_exactly_the_plugins_that_are_there(
    seed: int, autojump_clock: MockClock
) -> None:
    config = attrs.evolve(KNOWN, timeouts=Timeouts(handlers={TYPE: 10.0}), seed=seed)
    async with SimulatedNode(config) as node, trio.open_nursery() as nursery:
        story = Story(node, nursery, seed)
        await story.play(40)
        story.check()
        story.process.kill()


def nothing(_: AskResult) -> None:
    pass


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[str, int]]:
    return draw(st.lists(st.tuples(st.sampled_from(["put", "send", "answer", "withdraw"]), st.integers(0, 5))))


@given(stories())
@examples(200)
def test_asks_of_a_name_go_one_after_the_other_and_all_together_up_to_the_limit(story: list[tuple[str, int]]) -> None:
    asks, there, out = Asks(), list[Ask](), dict[int, Ask]()

    def send() -> None:
        for ask in asks.to_send():
            earlier = [other for other in there if other.name == ask.name and other.number < ask.number]
            assert not earlier
            out[ask.number] = ask

    for what, which in [*story, ("send", 0)]:
        match what:
            case "put":
                instance = Instance(f"e-{which}", f"n{which % 3}", "/a")
                there.append(asks.put(AskKind.VALIDATE, instance, math.inf, nothing))
            case "send":
                send()
            case "answer" if out:
                number = sorted(out)[which % len(out)]
                assert asks.take(number) is out.pop(number)
                there = [ask for ask in there if ask.number != number]
                assert asks.take(number) is None
            case "withdraw" if there:
                ask = there.pop(which % len(there))
                assert asks.withdraw(ask) is (out.pop(ask.number, None) is not None)
    assert {ask.name for ask in out.values()} == {ask.name for ask in there}
    assert asks.clear() == there


def test_at_most_so_many_asks_are_open() -> None:
    asks = Asks()
    put = [asks.put(AskKind.VALIDATE, Instance(str(n), str(n), "/a"), math.inf, nothing) for n in range(MOST_OPEN + 2)]
    assert asks.to_send() == put[:MOST_OPEN]
    assert asks.to_send() == []
    asks.take(put[3].number)
    assert asks.to_send() == [put[MOST_OPEN]]
