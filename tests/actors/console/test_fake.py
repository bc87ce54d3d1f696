"""The fake plugin: its reactions, calls in memory, its socket, its options and its output."""

from __future__ import annotations

import argparse
import json
import os
import socket
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.console.fake import FakeSpec, add_arguments, run_fake, spec_from, to_json
from plugind.actors.grpc.client.dial import dial
from plugind.actors.simulation.plugins import FakeRegistration, Step
from plugind.actors.simulation.reactions import Reaction
from plugind.actors.simulation.streams import connected
from plugind.protocol.proto.pluginregistration_grpc import RegistrationStub
from plugind.protocol.proto.pluginregistration_pb2 import InfoRequest, RegistrationStatus
from plugind.testing import Call, FakePlugin

ANSWERED, REFUSED, HUNG, DIED = Reaction.ANSWERED, Reaction.REFUSED, Reaction.HUNG, Reaction.DIED


def plugin(
    *,
    get_info_fails: int = 0,
    notify_fails: int = 0,
    hang: Step | None = None,
    die: Step | None = None,
    reject_notify: bool = False,
) -> FakePlugin:
    return FakePlugin(
        "T",
        "n",
        get_info_fails=get_info_fails,
        notify_fails=notify_fails,
        hang=hang,
        die=die,
        reject_notify=reject_notify,
    )


@pytest.mark.parametrize(
    ("fake", "step", "reactions"),
    [
        (plugin(), "get-info", [ANSWERED] * 4),
        (plugin(get_info_fails=2), "get-info", [REFUSED] * 2 + [ANSWERED] * 2),
        (plugin(hang="get-info", get_info_fails=2), "get-info", [HUNG] * 4),
        (plugin(die="get-info", hang="get-info"), "get-info", [DIED] * 4),
        (plugin(hang="notify"), "get-info", [ANSWERED] * 4),
        (plugin(), "notify", [ANSWERED] * 4),
        (plugin(notify_fails=1), "notify", [REFUSED] + [ANSWERED] * 3),
        (plugin(reject_notify=True), "notify", [REFUSED] * 4),
        (plugin(hang="notify", reject_notify=True), "notify", [HUNG] * 4),
        (plugin(hang="get-info"), "notify", [ANSWERED] * 4),
    ],
)
def test_the_reaction_follows_from_the_script_and_from_earlier_calls(
    fake: FakePlugin, step: Step, reactions: list[Reaction]
) -> None:
    assert [fake.decide(step) for _ in range(4)] == reactions


async def converse(fake: FakePlugin, calls: list[Call]) -> list[object]:
    """Make two GetInfo calls and one Notify in memory, each with a deadline of 2 s; return what the client got."""
    got = list[object]()
    async with connected(FakeRegistration(fake, calls.append, lambda: None)) as channel:
        stub = channel.stub(RegistrationStub)
        for _ in range(2):
            try:
                got.append((await stub.GetInfo(InfoRequest(), timeout=2)).name)
            except GRPCError as error:
                got.append(error.status)
        status = RegistrationStatus(plugin_registered=False, error="no such type")
        try:
            await stub.NotifyRegistrationStatus(status, timeout=2)
            got.append("told")
        except GRPCError as error:
            got.append(error.status)
    return got


def reactions(calls: list[Call]) -> list[tuple[float, Reaction | None]]:
    return [(call.time, call.reaction) for call in calls]


async def test_a_call_to_a_fake_that_hangs_ends_at_the_deadline_of_its_caller(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Fault 32."""
    calls: list[Call] = []
    got = await converse(plugin(hang="get-info", reject_notify=True), calls)
    assert got == [Status.DEADLINE_EXCEEDED, Status.DEADLINE_EXCEEDED, Status.UNAVAILABLE]
    assert reactions(calls) == [(0.0, HUNG), (2.0, HUNG), (4.0, REFUSED)]


def exists(path: Path) -> bool:
    return path.exists()


async def test_a_fake_replaces_the_socket_of_one_that_was_killed(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "s"))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def run(*, task_status: trio.TaskStatus[None]) -> None:
                await run_fake(FakeSpec(str(tmp_path / "s"), plugin()), on_call=print, task_status=task_status)

            await nursery.start(run)
            await (await trio.open_unix_socket(str(tmp_path / "s"))).aclose()
            nursery.cancel_scope.cancel()


async def test_a_fake_that_dies_closes_the_connection_and_ends(tmp_path: Path) -> None:
    spec = FakeSpec(str(tmp_path / "s"), plugin(die="get-info"))
    calls: list[Call] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def run(*, task_status: trio.TaskStatus[None]) -> None:
                await run_fake(spec, on_call=calls.append, task_status=task_status)

            await nursery.start(run)
            async with await dial(spec.socket, timeout=5) as channel:
                with pytest.raises(GRPCError) as caught:
                    await channel.stub(RegistrationStub).GetInfo(InfoRequest())
    assert caught.value.status is Status.UNAVAILABLE
    assert [(call.reaction, call.peer_pid) for call in calls] == [(DIED, os.getpid())]
    assert not exists(tmp_path / "s")


def test_a_call_is_one_line_of_json_whatever_its_text_contains() -> None:
    """Fault 91."""
    call = Call(1.0, "NotifyRegistrationStatus", registered=False, error="a\nb\x1b", reaction=REFUSED, peer_pid=7)
    line = to_json(call, "/s\n\udcff", 12.5)
    assert "\n" not in line
    assert "\x1b" not in line
    assert json.loads(line) == {
        "time": 12.5,
        "call": "NotifyRegistrationStatus",
        "plugin_registered": False,
        "error": "a\nb\x1b",
        "socket": "/s\n\udcff",
        "peer_pid": 7,
        "outcome": "refused",
    }


def parse(*words: str) -> FakeSpec:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return spec_from(parser.parse_args(words))


def fields(spec: FakeSpec) -> tuple[object, ...]:
    return spec.socket, spec.accepts, *attrs.astuple(spec.plugin, filter=lambda field, _: field.name != "error")


def test_every_argument_reaches_the_plugin() -> None:
    spec = parse(
        "--socket=/s", "--type=T", "--name=n", "--version=1", "--version=2", "--endpoint=/e", "--fail-get-info=3",
        "--hang=notify", "--reject-notify",
    )  # fmt: skip
    fake = FakePlugin("T", "n", ("1", "2"), "/e", get_info_fails=3, hang="notify", reject_notify=True)
    assert fields(spec) == fields(FakeSpec("/s", fake))
    spec = parse("--socket=/s", "--type=T", "--name=n", "--hang=accept")
    assert fields(spec) == fields(FakeSpec("/s", plugin(), accepts=False)), (
        "the versions too: the default of an unknown type is 1.0.0"
    )
