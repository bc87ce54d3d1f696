"""A device plugin of a user who is trusted with a resource, and what root takes of its answers."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from plugind.actors.grpc.server.serve import Service, serve_stream
from plugind.actors.io.connecting import stream_socket
from plugind.actors.simulation.plugins import FakePlugin, FakeRegistration
from plugind.protocol.proto import deviceplugin_v1beta1_pb2 as api
from plugind.testing import Device, FakeDevices
from plugind.tests.end_to_end.leasing import leases, listed, release
from plugind.tests.end_to_end.processes import DEADLINE, Daemon, Done, daemon, run
from plugind.tests.end_to_end.test_trust import as_user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as another user")

GPU = "example.com/gpu"
ANN = 4242
#: A lease of root that is printed, and one that a command has.
PRINTED = ("allocate", f"{GPU}=1", "--until-release", "--id", "x", "-o")
COMMAND = ("allocate", f"{GPU}=1", "--", "env")


@asynccontextmanager
async def foreign_plugin(directory: Path, *options: str) -> AsyncIterator[tuple[Daemon, api.ContainerAllocateResponse]]:
    """Run a daemon of root with a device plugin of Ann; yield what the plugin answers."""
    devices = FakeDevices([Device("GPU-0")])
    answer = devices.answer = api.AllocateResponse()
    said = answer.container_responses.add()
    options = ("--state", str(directory / "kept"), "--cdi-dir", str(directory / "cdi"), *options)
    with daemon(directory, "--trust-uid", f"{ANN}", *options) as node, stream_socket() as made:
        await node.ready()
        made.bind(str(node.root / "gpu.sock"))
        with as_user(ANN):
            made.listen()
        plugin = FakePlugin("DevicePlugin", GPU, ("v1beta1",))
        services: list[Service] = [FakeRegistration(plugin, lambda _: None, lambda: None), devices]
        serve = partial(serve_stream, services, report=lambda _: None)
        async with trio.open_nursery() as nursery:
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(made))
            nursery.start_soon(partial(trio.serve_listeners, serve, [listener]))
            await listed(node, GPU)
            with trio.fail_after(DEADLINE):
                yield node, said
            nursery.cancel_scope.cancel()


async def asked(node: Daemon, *words: str) -> Done:
    return await trio.to_thread.run_sync(partial(run, "allocate", "--status", node.status, *words[1:]))


def evil(directory: Path) -> dict[str, str]:
    """Return variables that run a program of the plugin's user, and leave a mark."""
    directory.mkdir()
    for name in ("env", "true"):
        program = directory / name
        program.write_text(f"#!/bin/sh\necho {name} >> {directory}/mark\n")
        program.chmod(0o755)
    return {"PATH": str(directory), "LD_PRELOAD": str(directory / "evil.so"), "GPUS": "0"}


@pytest.mark.parametrize("permit", [None, f"{GPU}:env=GPUS", f"{GPU}:env=PATH"])
async def test_a_command_of_root_is_its_own_whatever_the_plugin_says(tmp_path: Path, permit: str | None) -> None:
    config = tmp_path / "plugind.toml"
    config.write_text(f"[leases]\npermitted = {json.dumps([permit] if permit else [])}\n")
    async with foreign_plugin(tmp_path, "--config", str(config)) as (node, said):
        said.envs.update(evil(tmp_path / "evil"))
        done = await asked(node, *COMMAND)
        assert (done.code, (tmp_path / "evil" / "mark").exists()) == (0, False)
        got = dict(line.partition("=")[::2] for line in done.out.splitlines())
        taken = {name for name, text in said.envs.items() if got.get(name) == text}
        assert taken == ({permit.rpartition("=")[2]} if permit else set())
        assert "are left out, as leases.permitted does not have them" in done.err


async def test_no_form_has_a_variable_of_the_plugin(tmp_path: Path) -> None:
    async with foreign_plugin(tmp_path) as (node, said):
        said.envs.update(evil(tmp_path / "evil"))
        for form in ("env", "docker", "json", "text"):
            done = await asked(node, *PRINTED, form)
            assert (done.code, "evil.so" in done.out) == (0, False), form
            assert "evil.so" not in json.dumps(await leases(node))
            await release(node, "x")


async def test_a_mount_over_the_root_gets_into_no_container_and_the_error_names_the_setting(tmp_path: Path) -> None:
    async with foreign_plugin(tmp_path) as (node, said):
        said.mounts.add(host_path="/", container_path="/")
        done = await asked(node, "allocate", f"{GPU}=1", "-o", "podman")
        assert (done.code, done.out) == (4, "--device plugind/lease=none\n")
        assert f"it names mounts, and leases.permitted does not have {GPU}:mounts" in done.err
        assert (await leases(node), list((tmp_path / "cdi").glob("*"))) == ({}, [])
