"""``plugind nomad-device`` as a process, asked by grpcio and by Debian's go-plugin as an agent of Nomad asks it.

There is no Nomad in any registry that the tests may use. ``plugins/go/nomad_agent.go`` has the calls of its agent.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import attrs
import grpc
import pytest
import trio
from google.protobuf.message import Message

from plugind.actors.console.nomad_device import COOKIE, COOKIE_NAME
from plugind.actors.console.nomad_pool import WAIT
from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as kubelet
from plugind.protocol.proto import go_plugin_pb2, health_v1_pb2
from plugind.protocol.proto import nomad_base_pb2 as base
from plugind.protocol.proto import nomad_device_pb2 as nomad
from plugind.testing import Device
from plugind.tests.end_to_end.go_programs import go_program
from plugind.tests.end_to_end.leasing import allocate, leases, listed, release
from plugind.tests.end_to_end.packages import go_package
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, daemon
from plugind.tests.end_to_end.test_lease_commands import GPU, Node, node

T = TypeVar("T")
ReplyT = TypeVar("ReplyT", bound=Message)
POOL = ("--pool", f"nomad={GPU}")
BASE, DEVICES = "/hashicorp.nomad.plugins.base.proto.BasePlugin/", "/hashicorp.nomad.plugins.device.DevicePlugin/"


async def aside(call: Callable[[], T]) -> T:
    """Call what blocks; the fake device plugin goes on meanwhile."""
    with trio.fail_after(DEADLINE):
        return await trio.to_thread.run_sync(call, abandon_on_cancel=True)


@attrs.frozen
class Plugin:
    """A plugin that has been started as an agent starts it."""

    process: subprocess.Popen[str]
    #: The fields of its first line.
    handshake: list[str]
    channel: grpc.Channel

    def call(self, method: str, request: Message, reply: type[ReplyT]) -> ReplyT:
        called = self.channel.unary_unary(method, type(request).SerializeToString, reply.FromString)
        answer: ReplyT = called(request, timeout=DEADLINE)
        return answer

    def stream(self, method: str, request: Message, reply: type[ReplyT]) -> Iterator[ReplyT]:
        called = self.channel.unary_stream(method, type(request).SerializeToString, reply.FromString)
        stream: Iterator[ReplyT] = called(request, timeout=2 * DEADLINE)
        return stream

    def fingerprint(self) -> Iterator[nomad.FingerprintResponse]:
        return self.stream(f"{DEVICES}Fingerprint", nomad.FingerprintRequest(), nomad.FingerprintResponse)

    async def reserve(self, *ids: str) -> nomad.ContainerReservation:
        request = nomad.ReserveRequest(device_ids=ids)
        return (await aside(lambda: self.call(f"{DEVICES}Reserve", request, nomad.ReserveResponse))).container_res


@contextmanager
def plugin(
    status: str, *options: str, command: Sequence[str] = PLUGIND, more: Mapping[str, str] | None = None
) -> Iterator[Plugin]:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        environment = {**os.environ, **(more or {}), COOKIE_NAME: COOKIE, "PLUGIN_UNIX_SOCKET_DIR": directory}
        words = [*command, "nomad-device", *POOL, "--status", status, *options]
        with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                fields = process.stdout.readline().rstrip("\n").split("|")
                with grpc.insecure_channel(f"unix:{fields[3]}") as channel:
                    yield Plugin(process, fields, channel)
            finally:
                process.kill()
        # Only one that was killed leaves its socket.
        assert process.returncode == -signal.SIGKILL or os.listdir(directory) == []


@asynccontextmanager
async def served(directory: Path, *ids: str) -> AsyncIterator[tuple[Node, Plugin]]:
    async with node(directory, *ids, options=POOL) as it:
        with plugin(it.daemon.status) as started:
            yield it, started


def seen(response: nomad.FingerprintResponse) -> dict[str, str]:
    """Return the health of each device, or why it is not healthy."""
    (group,) = response.device_group
    assert (group.vendor, group.device_type, group.device_name) == ("example.com", "gpu", "gpu")
    return {device.ID: "Healthy" if device.healthy else device.health_description for device in group.devices}


async def until(found: Iterator[nomad.FingerprintResponse], wanted: Callable[[dict[str, str]], bool]) -> dict[str, str]:
    """Return the first health that is ``wanted``."""
    while True:
        health = seen(await aside(lambda: next(found)))
        if wanted(health):
            return health


@pytest.mark.usefixtures("real_processes")
def test_the_handshake_and_the_base_services_are_those_that_an_agent_needs(tmp_path: Path) -> None:
    """Without a daemon, too: an agent starts each plugin three times before it asks for devices."""
    with plugin(str(tmp_path / "absent.sock")) as started:
        core, version, network, _, protocol, certificate = started.handshake
        assert (core, version, network, protocol, certificate) == ("1", "2", "unix", "grpc", "")
        health = health_v1_pb2.HealthCheckRequest(service="plugin")
        answer = started.call("/grpc.health.v1.Health/Check", health, health_v1_pb2.HealthCheckResponse)
        assert answer == health_v1_pb2.HealthCheckResponse(status="SERVING")
        info = started.call(f"{BASE}PluginInfo", base.PluginInfoRequest(), base.PluginInfoResponse)
        assert (info.type, [*info.plugin_api_versions], info.name) == (base.DEVICE, ["v0.1.0"], "plugind-nomad")
        schema = started.call(f"{BASE}ConfigSchema", base.ConfigSchemaRequest(), base.ConfigSchemaResponse)
        assert schema.spec.WhichOneof("block") == "object"
        started.call(f"{BASE}SetConfig", base.SetConfigRequest(plugin_api_version="v0.1.0"), base.SetConfigResponse)
        # Nothing of the configuration is read: the arguments have it all.
        garbage = base.SetConfigRequest(msgpack_config=b"\xc1\xff" * 1000, plugin_api_version="v0.1.0")
        assert started.call(f"{BASE}SetConfig", garbage, base.SetConfigResponse) == base.SetConfigResponse()
        with pytest.raises(grpc.RpcError, match=r"v0\.1\.0"):
            started.call(f"{BASE}SetConfig", base.SetConfigRequest(plugin_api_version="v9"), base.SetConfigResponse)
        # It tells of no devices, and goes on to tell.
        assert next(started.fingerprint()) == nomad.FingerprintResponse()
        started.process.send_signal(signal.SIGINT)
        started.call("/plugin.GRPCController/Shutdown", go_plugin_pb2.Empty(), go_plugin_pb2.Empty)
        assert started.process.wait(DEADLINE) == 0


@pytest.mark.parametrize(
    ("environment", "pools", "code", "why"),
    [
        ({COOKIE_NAME: "another"}, POOL, 1, "this is a plugin of Nomad: its agent starts it"),
        ({COOKIE_NAME: COOKIE, "PLUGIN_CLIENT_CERT": "x"}, POOL, 1, "the agent asks for TLS"),
        ({COOKIE_NAME: COOKIE}, (*POOL, "--pool", "other=a.com/b"), 2, "all --pool have one name"),
        ({COOKIE_NAME: COOKIE}, (*POOL, *POOL), 2, "each --pool has another resource"),
        ({COOKIE_NAME: COOKIE}, ("--pool", "gpu"), 2, "is no pool"),
        ({COOKIE_NAME: COOKIE}, (*POOL, "--ca-cert", "/ca"), 2, "--ca-cert is of use with --reconcile alone"),
        ({COOKIE_NAME: COOKIE}, (*POOL, "--reconcile", "--address", "a:1"), 2, "the address of the agent cannot be"),
        ({COOKIE_NAME: COOKIE, "NOMAD_TOKEN": "a b"}, (*POOL, "--reconcile"), 2, "$NOMAD_TOKEN cannot be used"),
    ],
)
def test_what_is_started_in_another_way_says_why_it_ends(
    environment: dict[str, str], pools: tuple[str, ...], code: int, why: str
) -> None:
    done = subprocess.run(
        [*PLUGIND, "nomad-device", *pools],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (done.returncode, done.stdout, why in done.stderr) == (code, "", True), done.stderr


async def test_a_device_is_leased_until_it_is_reserved_again(tmp_path: Path) -> None:
    async with served(tmp_path, "GPU-0", "GPU-1") as (it, agent):
        found = agent.fingerprint()
        assert seen(await aside(lambda: next(found))) == {"GPU-0": "Healthy", "GPU-1": "Healthy"}
        both = await agent.reserve("GPU-0", "GPU-1")
        assert both.envs["PLUGIND_DEVICES"] == f"{GPU}=GPU-0,GPU-1"
        assert list(await leases(it.daemon)) == [both.envs["PLUGIND_LEASE"]]
        # The task has ended; another one gets one of its devices.
        one = await agent.reserve("GPU-1")
        (lease,) = (await leases(it.daemon)).values()
        assert lease["id"] == one.envs["PLUGIND_LEASE"] != both.envs["PLUGIND_LEASE"]
        assert (lease["devices"], lease["request"]["pool"]) == ({GPU: ["GPU-1"]}, "nomad")
        # Nobody else takes from the pool.
        status, _ = await allocate(it.daemon, GPU)
        assert status == 409
        request = nomad.StatsRequest(collection_interval=nomad.Duration(seconds=1))
        statistics = agent.stream(f"{DEVICES}Stats", request, nomad.StatsResponse)
        (group,) = (await aside(lambda: next(statistics))).groups
        assert {name: it.summary.string_val for name, it in group.instance_stats.items()} == {
            "GPU-0": "Healthy",
            "GPU-1": "Healthy",
        }


async def test_a_device_of_the_pool_that_somebody_else_has_leased_is_unhealthy_meanwhile(tmp_path: Path) -> None:
    """Else Nomad would choose it, and the task would fail for good."""
    async with node(tmp_path, "GPU-0", "GPU-1", options=POOL) as it:
        status, held = await allocate(it.daemon, GPU, pool="nomad", ids=["GPU-0"], id="train")
        assert status == 201, held
        why = f"somebody else has leased it: user {os.getuid()}, by the lease train"
        with plugin(it.daemon.status) as agent:
            found = agent.fingerprint()
            # The first list says so already.
            assert seen(await aside(lambda: next(found))) == {"GPU-0": why, "GPU-1": "Healthy"}
            # What Nomad itself has leased is healthy.
            await agent.reserve("GPU-1")
            await release(it.daemon, "train")
            both = {"GPU-0": "Healthy", "GPU-1": "Healthy"}
            assert seen(await aside(lambda: next(found))) == both
            await allocate(it.daemon, GPU, pool="nomad", ids=["GPU-0"], id="train")
            assert seen(await aside(lambda: next(found))) == {"GPU-0": why, "GPU-1": "Healthy"}


async def test_devices_stay_and_are_unhealthy_while_plugind_is_away(tmp_path: Path) -> None:
    async with node(tmp_path, "GPU-0", "GPU-1", options=POOL) as it:
        with plugin(it.daemon.status) as agent:
            found = agent.fingerprint()
            it.devices.show(Device("GPU-0"), Device("GPU-1", "Hot"))
            await until(found, lambda health: health == {"GPU-0": "Healthy", "GPU-1": "Hot"})
            held = await agent.reserve("GPU-0")
            it.daemon.process.kill()
            await it.daemon.ended()
            away = await until(found, lambda health: health["GPU-0"] != "Healthy")
            assert [text.startswith("plugind does not answer: ") for text in away.values()] == [True, True]
            with daemon(tmp_path, "--state", str(tmp_path / "state"), *POOL) as again:
                await again.ready()
                await listed(again, GPU)
                await until(found, lambda health: health == {"GPU-0": "Healthy", "GPU-1": "Hot"})
                assert list(await leases(again)) == [held.envs["PLUGIND_LEASE"]]


async def test_what_nomad_cannot_give_to_a_task_is_refused_and_free(tmp_path: Path) -> None:
    async with served(tmp_path, "GPU-0") as (it, agent):
        names = [kubelet.CDIDevice(name="example.com/gpu=0")]
        response = kubelet.ContainerAllocateResponse(cdi_devices=names)
        it.devices.answer = kubelet.AllocateResponse(container_responses=[response])
        with pytest.raises(grpc.RpcError, match=r"has named CDI devices \(example.com/gpu=0\)"):
            await agent.reserve("GPU-0")
        await it.until()


async def test_a_plugin_that_is_killed_leaves_its_leases_and_the_next_one_takes_over(tmp_path: Path) -> None:
    async with node(tmp_path, "GPU-0", "GPU-1", options=POOL) as it:
        with plugin(it.daemon.status) as agent:
            held = await agent.reserve("GPU-0")
            agent.process.kill()
            await aside(agent.process.wait)
            with pytest.raises(grpc.RpcError):
                await agent.reserve("GPU-1")
        with plugin(it.daemon.status) as agent:
            assert seen(await aside(lambda: next(agent.fingerprint()))) == {"GPU-0": "Healthy", "GPU-1": "Healthy"}
            await it.until(**{held.envs["PLUGIND_LEASE"]: "held"})
            again = await agent.reserve("GPU-0")
            await it.until(**{again.envs["PLUGIND_LEASE"]: "held"})


@pytest.mark.parametrize("ids", [(), ("GPU-0", "GPU-0"), ("GPU-0", "")])
async def test_a_reservation_that_makes_no_sense_fails_and_ends_no_lease(ids: tuple[str, ...], tmp_path: Path) -> None:
    async with served(tmp_path, "GPU-0", "GPU-1") as (it, agent):
        held = await agent.reserve("GPU-0")
        with pytest.raises(grpc.RpcError, match="a reservation names") as caught:
            await agent.reserve(*ids)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        await it.until(**{held.envs["PLUGIND_LEASE"]: "held"})


async def test_of_reservations_of_a_device_at_once_one_lease_is_left_and_none_waits_for_another(tmp_path: Path) -> None:
    """A later one says that the task of an earlier one has ended."""
    async with served(tmp_path, "GPU-0", "GPU-1") as (it, agent):
        given: dict[str, str] = {}

        async def reserve(*ids: str) -> None:
            envs = (await agent.reserve(*ids)).envs
            given[envs["PLUGIND_LEASE"]] = envs["PLUGIND_DEVICES"]

        with trio.fail_after(WAIT / 2):
            async with trio.open_nursery() as nursery:
                for ids in (("GPU-0",), ("GPU-0", "GPU-1"), ("GPU-1",), ("GPU-0",)):
                    nursery.start_soon(reserve, *ids)
        assert len(given) == 4
        left = await leases(it.daemon)
        devices = [device for lease in left.values() for device in lease["devices"][GPU]]
        assert left.keys() <= given.keys()
        assert len(set(devices)) == len(devices) > 0


async def test_an_agent_on_go_plugin_uses_it(tmp_path: Path) -> None:
    go_package("github.com/hashicorp/go-plugin", "golang-github-hashicorp-go-plugin-dev")
    program = await trio.to_thread.run_sync(go_program, "nomad_agent")
    async with node(tmp_path, "GPU-0", options=POOL) as it:
        command = [program, *PLUGIND, "nomad-device", *POOL, "--status", it.daemon.status]
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        done = await aside(
            lambda: subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
            )
        )
        assert done.returncode == 0, done.stderr
        said = [json.loads(line) for line in done.stdout.splitlines()]
        (lease,) = await leases(it.daemon)
        assert said == [
            {"ping": "ok"},
            {"info": "plugind-nomad", "type": "DEVICE", "versions": ["v0.1.0"]},
            {"schema": "object"},
            {"configured": True},
            {"device": "example.com/gpu/gpu", "id": "GPU-0", "healthy": True},
            {"reserved": f"{GPU}=GPU-0", "lease": lease},
            {"stats": "Healthy"},
            {"killed": True},
        ]
