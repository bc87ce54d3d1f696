"""The example for Nomad with go-plugin, and with a server of HTTP, in the place of an agent: no test has a real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from plugind.tests.end_to_end.go_programs import go_program
from plugind.tests.end_to_end.leasing import allocate, leases
from plugind.tests.end_to_end.packages import go_package
from plugind.tests.end_to_end.processes import DEADLINE
from plugind.tests.end_to_end.test_lease_commands import GPU, running_node
from plugind.tests.packaging.test_deploy import configured

pytestmark = pytest.mark.extended

EXAMPLE = Path(__file__).parents[2] / "examples" / "nomad"
POOL = ("--pool", f"nomad={GPU}")
RUNNING, ENDED = ("running", "running"), ("complete", "dead")
NODE, SECRET = "f7476465-4d6e-c0de-26d0-e383c49be941", "5b2a0d0c"


async def test_an_agent_on_go_plugin_reserves_devices_for_one_task_and_then_for_another(tmp_path: Path) -> None:
    go_package("github.com/hashicorp/go-plugin", "golang-github-hashicorp-go-plugin-dev")
    agent = await trio.to_thread.run_sync(go_program, "nomad_agent")
    async with running_node(tmp_path, "GPU-0", "GPU-1", "GPU-2", options=POOL) as node:
        status, held = await allocate(node.daemon, GPU, pool="nomad", ids=["GPU-2"], id="train")
        assert status == 201, held
        plugin = [sys.executable, str(EXAMPLE / "device_plugin.py"), "--resource", GPU, "--status", node.daemon.status]
        with trio.fail_after(2 * DEADLINE):
            done = await trio.run_process([agent, *plugin], capture_stdout=True, capture_stderr=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        said = [json.loads(line) for line in done.stdout.splitlines()]
        both, one = (line["lease"] for line in said if "lease" in line)
        assert set(await leases(node.daemon)) == {"train", one}
        taken = f"user {os.getuid()} has it by the lease train"
        name = "example.com/gpu/gpu"
        assert said[:-4] == [
            {"ping": "ok"},
            {"info": "plugind-nomad", "type": "DEVICE", "versions": ["v0.1.0"]},
            {"schema": "object"},
            {"configured": True},
            {"device": name, "id": "GPU-0", "unhealthy": ""},
            {"device": name, "id": "GPU-1", "unhealthy": ""},
            {"device": name, "id": "GPU-2", "unhealthy": taken},
            {"reserved": f"{GPU}=GPU-0,GPU-1", "lease": both},
            {"reserved": f"{GPU}=GPU-0", "lease": one},
        ]
        # The statistics of each device, in any order.
        assert {line["stats"]: line["summary"] for line in said[-4:-1]} == {
            "GPU-0": "Healthy",
            "GPU-1": "Healthy",
            "GPU-2": taken,
        }
        assert said[-1] == {"killed": True}


@attrs.define
class Api:
    """The part of the API of an agent that is asked for."""

    #: The status of each allocation and the state of its task, by its name, which begins with its device and a space.
    shown: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    #: The status of each answer in HTTP.
    code: int = 200
    #: How many times the agent was asked for its node.
    looks: int = 0

    def answer(self, path: str, token: str | None) -> object:
        assert token == SECRET
        if path == "/v1/agent/self":
            self.looks += 1
            return {"stats": {"client": {"node_id": NODE}}}
        assert path == f"/v1/node/{NODE}/allocations"
        self.shown["unsteady "] = ENDED if self.looks % 2 else RUNNING
        return [allocation(name.split()[0], status, state) for name, (status, state) in self.shown.items()]

    async def looked_at(self, times: int) -> None:
        """Wait until there were so many more looks, the first of which may have begun already."""
        until = self.looks + times + 1
        with trio.fail_after(DEADLINE):
            while self.looks < until:  # noqa: ASYNC110 - another process looks
                await trio.sleep(0.02)


def allocation(device: str, status: str, state: str) -> dict[str, Any]:
    """Return an allocation as the documentation of Nomad shows it, with what is of use of a hundred fields."""
    end = None if status == "running" else "2999-01-01T00:00:00.123456789Z"
    group = {"Vendor": "example.com", "Type": "gpu", "Name": "gpu", "DeviceIDs": [device]}
    return {
        "ClientStatus": status,
        "AllocatedResources": {"Tasks": {"web": {"Devices": [group]}, "log": {"Devices": None}}},
        "TaskStates": {
            "web": {"State": state, "FinishedAt": end},
            "log": {"State": "dead", "FinishedAt": "0001-01-01T00:00:00Z"},
        },
    }


@contextmanager
def served() -> Iterator[tuple[Api, str]]:
    api = Api()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(api.answer(self.path, self.headers["X-Nomad-Token"])).encode()
            self.send_response(api.code)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield api, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def ending(status: str, address: str) -> Iterator[subprocess.Popen[str]]:
    """Run the program that ends leases; interrupt it at exit."""
    environment = {**os.environ, "NOMAD_ADDR": address, "NOMAD_TOKEN": SECRET}
    command = [sys.executable, str(EXAMPLE / "end_leases.py"), "--every", "0.1", "--status", status]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)


@pytest.mark.usefixtures("real_processes")
async def test_the_leases_of_tasks_that_have_ended_are_released_and_no_others(tmp_path: Path) -> None:
    staying = ("unsteady", "not-shown", "given-again", "at-its-end")
    async with running_node(tmp_path, "GPU-0", "GPU-1", *staying, options=POOL) as node:
        for device in ("GPU-0", "GPU-1", *staying):
            await allocate(node.daemon, GPU, pool="nomad", ids=[device], id=f"nomad-{device}")

        async def until(*left: str) -> None:
            await node.until(**{f"nomad-{device}": "held" for device in left})

        with served() as (api, address):
            api.shown = {"GPU-0 ": RUNNING, "GPU-1 ": RUNNING, "at-its-end ": ("complete", "running")}
            api.shown |= {"given-again before": ENDED, "given-again now": RUNNING}
            with ending(node.daemon.status, address) as process:
                await api.looked_at(3)
                await until("GPU-0", "GPU-1", *staying)
                api.shown["GPU-0 "] = ENDED
                await until("GPU-1", *staying)
                api.code = 500
                api.shown["GPU-1 "] = ENDED
                await api.looked_at(3)
                await until("GPU-1", *staying)
                api.code = 200
                await until(*staying)
                assert process.stderr is not None
                assert process.stderr.readline().startswith("no lease ends: ValueError('GET /v1/agent/self: 500")


def test_the_job_has_arguments_that_plugind_takes_and_gives_it_the_time_to_stop() -> None:
    (group,) = json.loads((EXAMPLE / "plugind.nomad.json").read_text())["Job"]["TaskGroups"]
    (task,) = group["Tasks"]
    command, *arguments = [word.replace("${NOMAD_ADDR_metrics}", "192.0.2.7:9464") for word in task["Config"]["args"]]
    assert command == "run"
    # The daemon ends within twice its grace, by force if need be.
    assert task["KillTimeout"] / 1e9 > 2 * configured(arguments).config.timeouts.stop_grace + 1
