"""The fake CSI driver: its options, the commands that it takes, and the lines that it prints."""

from __future__ import annotations

import argparse
import json

import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from plugind.actors.console.fake import FakeSpec, add_arguments, spec_from, to_json
from plugind.actors.console.fake_csi import CommandedDriver, obey
from plugind.actors.simulation.reactions import Reaction
from plugind.actors.simulation.streams import connected
from plugind.protocol.proto import csi_v1_pb2 as api
from plugind.protocol.proto.csi_v1_grpc import IdentityStub
from plugind.testing import Call, CSICall

BASE = ("--type=CSIPlugin", "--name=csi.example.com", "--socket=/s")


def parse(*words: str) -> FakeSpec:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return spec_from(parser.parse_args(words))


def driver_of(spec: FakeSpec) -> CommandedDriver:
    assert spec.commanded is not None
    assert isinstance(spec.commanded.service, CommandedDriver)
    return spec.commanded.service


def test_every_option_of_a_driver_reaches_it() -> None:
    words = ["--node-id=", "--max-volumes=16", "--topology=zone=z1", "--topology=rack=r=2", "--vendor-version=2.1"]
    spec = parse(*BASE, *words, "--control=/c")
    driver = driver_of(spec)
    assert (driver.node_id, driver.max_volumes, driver.vendor_version) == ("", 16, "2.1")
    assert driver.topology == {"zone": "z1", "rack": "r=2"}
    assert spec.control == "/c"


@pytest.mark.parametrize(
    ("line", "said", "attribute", "value"),
    [
        ("not-ready", "the driver is not ready", "ready", False),
        (" ready\n", "the driver is ready", "ready", True),
        ("node-id node-7", "the node id is node-7", "node_id", "node-7"),
        ("node-id", "the node id is empty", "node_id", ""),
        ("max-volumes -1", "the most volumes are -1", "max_volumes", -1),
        ("topology zone=z1 rack=2", "the topology is zone=z1 rack=2", "topology", {"zone": "z1", "rack": "2"}),
        ("topology", "the topology is empty", "topology", {}),
        ("hang probe", "Probe is not answered from now on", "hangs", {CSICall.PROBE}),
        ("answer node-info", "NodeGetInfo is answered from now on", "hangs", set()),
    ],
)
def test_a_command_changes_what_the_driver_says(line: str, said: str, attribute: str, value: object) -> None:
    driver = CommandedDriver("csi.example.com", node_id="old", max_volumes=1, topology={"a": "b"})
    assert obey(line, driver) == said
    assert getattr(driver, attribute) == value


async def test_each_call_is_recorded_with_what_becomes_of_it(autojump_clock: trio.testing.MockClock) -> None:
    driver, calls = CommandedDriver("csi.example.com"), list[Call]()
    driver.record = calls.append
    async with connected(driver) as channel:
        stub = channel.stub(IdentityStub)
        assert obey("refuse all", driver).endswith("NodeGetInfo are refused from now on")
        with pytest.raises(GRPCError) as caught:
            await stub.Probe(api.ProbeRequest(), timeout=5)
        obey("hang probe", driver)
        with pytest.raises(GRPCError) as late:
            await stub.Probe(api.ProbeRequest(), timeout=5)
        assert obey("lack probe", driver) == "Probe is not implemented from now on"
        with pytest.raises(GRPCError) as lacked:
            await stub.Probe(api.ProbeRequest(), timeout=5)
        obey("answer all", driver)
        await stub.GetPluginInfo(api.GetPluginInfoRequest(), timeout=5)
    status = Status.FAILED_PRECONDITION
    assert (caught.value.status, caught.value.message) == (status, "Probe is refused on command")
    assert late.value.status is Status.DEADLINE_EXCEEDED
    assert lacked.value.status is Status.UNIMPLEMENTED
    assert [(call.method, call.reaction) for call in calls] == [
        ("Probe", Reaction.REFUSED),
        ("Probe", Reaction.HUNG),
        ("Probe", Reaction.REFUSED),
        ("GetPluginInfo", Reaction.ANSWERED),
    ]
    assert json.loads(to_json(calls[0], "/s", 1.5)) == {
        "time": 1.5, "call": "Probe", "socket": "/s", "peer_pid": None, "outcome": "refused",
    }  # fmt: skip
