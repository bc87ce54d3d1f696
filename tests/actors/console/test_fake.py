"""The fake plugin: what it answers, alone, in memory and by its clock; its socket and its lines."""

from __future__ import annotations

import argparse
import json
import socket
from pathlib import Path

import pytest
import trio
import trio.testing
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.console.fake import (
    CallName,
    FakeCall,
    FakeService,
    FakeSpec,
    GetInfoCalled,
    Hang,
    NotifyCalled,
    Reaction,
    add_arguments,
    decide,
    info_of,
    run_fake,
    spec_from,
    to_json,
)
from plugind.actors.io.grpc_client.dial import connect_stream
from plugind.actors.io.grpc_server.serve import serve_stream
from plugind.protocol.proto.pluginregistration_grpc import RegistrationStub
from plugind.protocol.proto.pluginregistration_pb2 import InfoRequest, PluginInfo, RegistrationStatus

GOOD = FakeSpec("/run/a.sock", "CSIPlugin", "a.example.com", ("1.0.0", "1.1.0"), "/run/a-service.sock")


def spec(*, fail_get_info: int = 0, hang: Hang | None = None, reject_notify: bool = False) -> FakeSpec:
    return FakeSpec("/s", "T", "n", fail_get_info=fail_get_info, hang=hang, reject_notify=reject_notify)


@pytest.mark.parametrize(
    ("told", "call", "outcomes"),
    [
        (spec(), "GetInfo", [Reaction.ANSWERED] * 4),
        (spec(fail_get_info=2), "GetInfo", [Reaction.REFUSED] * 2 + [Reaction.ANSWERED] * 2),
        (spec(hang="get-info", fail_get_info=2), "GetInfo", [Reaction.HUNG] * 4),
        (spec(hang="notify"), "GetInfo", [Reaction.ANSWERED] * 4),
        (spec(), "NotifyRegistrationStatus", [Reaction.ANSWERED] * 4),
        (spec(reject_notify=True), "NotifyRegistrationStatus", [Reaction.REFUSED] * 4),
        (spec(hang="notify", reject_notify=True), "NotifyRegistrationStatus", [Reaction.HUNG] * 4),
        (spec(hang="get-info"), "NotifyRegistrationStatus", [Reaction.ANSWERED] * 4),
    ],
)
def test_what_becomes_of_a_call_follows_from_the_spec_and_the_calls_before(
    told: FakeSpec, call: CallName, outcomes: list[Reaction]
) -> None:
    assert [decide(told, call, earlier) for earlier in range(4)] == outcomes


def test_the_info_is_what_the_spec_says() -> None:
    assert info_of(GOOD) == PluginInfo(
        type="CSIPlugin", name="a.example.com", endpoint="/run/a-service.sock", supported_versions=["1.0.0", "1.1.0"]
    )


async def converse(told: FakeSpec, calls: list[FakeCall]) -> tuple[list[object], float]:
    """Two GetInfo and one Notify in memory, each with two seconds: what the client got, and when it all began."""
    near, far = trio.testing.memory_stream_pair()
    began, got = trio.current_time(), list[object]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, [FakeService(told, calls.append)], far)
        channel = await connect_stream(near)
        async with channel:
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
        nursery.cancel_scope.cancel()
    return got, began


async def test_a_fake_that_fails_once_then_answers_says_so_call_by_call(
    autojump_clock: trio.testing.MockClock,
) -> None:
    calls: list[FakeCall] = []
    got, began = await converse(spec(fail_get_info=1), calls)
    assert got == [Status.UNAVAILABLE, "n", "told"]
    assert calls == [
        GetInfoCalled(began, "/s", None, Reaction.REFUSED),
        GetInfoCalled(began, "/s", None, Reaction.ANSWERED),
        NotifyCalled(began, "/s", None, Reaction.ANSWERED, plugin_registered=False, error="no such type"),
    ]


async def test_a_fake_that_hangs_leaves_each_caller_to_its_deadline(autojump_clock: trio.testing.MockClock) -> None:
    """fault 32."""
    calls: list[FakeCall] = []
    got, began = await converse(spec(hang="get-info", reject_notify=True), calls)
    assert got == [Status.DEADLINE_EXCEEDED, Status.DEADLINE_EXCEEDED, Status.UNAVAILABLE]
    assert [(call.time - began, call.outcome) for call in calls] == [
        (0.0, Reaction.HUNG),
        (2.0, Reaction.HUNG),
        (4.0, Reaction.REFUSED),
    ]


async def test_a_fake_that_never_accepts_still_listens_and_removes_its_socket(tmp_path: Path) -> None:
    told = FakeSpec(str(tmp_path / "s"), "T", "n", hang="accept")
    calls: list[FakeCall] = []
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:

            async def run(*, task_status: trio.TaskStatus[None]) -> None:
                await run_fake(told, on_call=calls.append, task_status=task_status)

            await nursery.start(run)
            stream = await trio.open_unix_socket(told.socket)
            with trio.move_on_after(0.05) as scope:
                await stream.receive_some(1)
            assert scope.cancelled_caught
            await stream.aclose()
            nursery.cancel_scope.cancel()
    assert calls == []
    assert not exists(tmp_path / "s")


def exists(path: Path) -> bool:
    return path.exists()


async def test_a_fake_replaces_the_socket_that_a_killed_one_left(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "s"))
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:

            async def run(*, task_status: trio.TaskStatus[None]) -> None:
                await run_fake(FakeSpec(str(tmp_path / "s"), "T", "n"), on_call=print, task_status=task_status)

            await nursery.start(run)
            await (await trio.open_unix_socket(str(tmp_path / "s"))).aclose()
            nursery.cancel_scope.cancel()


def test_a_call_is_one_line_of_json_whatever_its_text_holds() -> None:
    """fault 91."""
    line = to_json(
        NotifyCalled(1.0, "/s\n\udcff", 7, Reaction.REFUSED, plugin_registered=False, error="a\nb\x1b"), 12.5
    )
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


def test_every_argument_reaches_the_spec() -> None:
    assert parse(
        "--socket=/s", "--type=T", "--name=n", "--version=1", "--version=2", "--endpoint=/e", "--fail-get-info=3",
        "--hang=notify", "--reject-notify",
    ) == FakeSpec("/s", "T", "n", ("1", "2"), "/e", 3, "notify", reject_notify=True)  # fmt: skip


@pytest.mark.parametrize(
    ("plugin_type", "version"),
    [("CSIPlugin", "1.0.0"), ("DevicePlugin", "v1beta1"), ("DRAPlugin", "v1.DRAPlugin"), ("Other", "1.0.0")],
)
def test_a_fake_without_versions_has_the_usual_one_of_its_type(plugin_type: str, version: str) -> None:
    assert parse("--socket=/s", f"--type={plugin_type}", "--name=n") == FakeSpec("/s", plugin_type, "n", (version,))


@pytest.mark.parametrize("bad", ["-1", "many"])
def test_a_number_of_failures_that_is_none_is_a_usage_error(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--socket=/s", "--type=T", "--name=n", f"--fail-get-info={bad}")
    assert caught.value.code == 2
    assert "--fail-get-info" in capsys.readouterr().err
