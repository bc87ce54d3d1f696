"""The fake DRA driver: its options, and the commands that it takes."""

from __future__ import annotations

import argparse
from functools import partial

import pytest
from grpclib.const import Status

from plugind.actors.console.fake import FakeSpec, add_arguments, spec_from
from plugind.actors.console.fake_dra import CommandedDRADriver, obey
from plugind.actors.simulation.dra_drivers import USUAL_SERVICES, DRACall
from plugind.protocol.handlers.dra_health import DeviceReport, DRADeviceHealth

BASE = ("--type=DRAPlugin", "--name=gpu.example.com", "--socket=/s")


def parse(*words: str) -> FakeSpec:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return spec_from(parser.parse_args(words))


def driver_of(spec: FakeSpec) -> CommandedDRADriver:
    assert spec.commanded is not None
    assert isinstance(spec.commanded.service, CommandedDRADriver)
    return spec.commanded.service


@pytest.mark.parametrize(
    ("words", "versions", "more"),
    [
        ((), ("v1.DRAPlugin",), set()),
        (
            ("--serve=v1.DRAResourceHealth", "--serve=grpc.health.v1.Health"),
            ("v1.DRAPlugin", "v1.DRAResourceHealth"),
            {"v1.DRAResourceHealth", "grpc.health.v1.Health"},
        ),
        (
            ("--serve=v1.DRAResourceHealth", "--version=v1beta1.DRAPlugin"),
            ("v1beta1.DRAPlugin",),
            {"v1.DRAResourceHealth"},
        ),
    ],
)
def test_a_driver_serves_and_announces_what_it_is_told(
    words: tuple[str, ...], versions: tuple[str, ...], more: set[str]
) -> None:
    spec = parse(*BASE, *words)
    assert (spec.plugin.versions, driver_of(spec).services) == (versions, {*USUAL_SERVICES, *more})
    assert list(spec.plugin.serves) == [driver_of(spec)]


def test_commands_change_devices_calls_and_the_health_service() -> None:
    driver = CommandedDRADriver(USUAL_SERVICES)
    say = partial(obey, driver=driver)
    assert say("unhealthy pool-0/gpu-1 ECC  error\n") == "pool-0/gpu-1 is unhealthy"
    assert say("healthy pool-0/gpu-0") == "pool-0/gpu-0 is healthy"
    assert list(driver.reports.values()) == [
        DeviceReport("pool-0", "gpu-1", DRADeviceHealth.UNHEALTHY, "ECC error"),
        DeviceReport("pool-0", "gpu-0", DRADeviceHealth.HEALTHY),
    ]
    assert say("gone pool-0/gpu-1") == "pool-0/gpu-1 is not reported any more"
    assert list(driver.reports) == ["pool-0/gpu-0"]
    assert (say("not-serving"), driver.serving) == ("the driver is not serving", False)
    assert (say("serving"), driver.serving) == ("the driver is serving", True)
    assert say("hang prepare") == "NodePrepareResources is not answered from now on"
    assert (driver.hangs, driver.errors) == ({DRACall.PREPARE}, {})
    assert say("refuse all").startswith("NodePrepareResources, NodeUnprepareResources, NodeWatchResources, Check are")
    assert (driver.hangs, set(driver.errors)) == (set(), set(DRACall))
    assert say("lack watch") == "NodeWatchResources is not implemented from now on"
    assert driver.errors[DRACall.WATCH].status is Status.UNIMPLEMENTED
    assert say("answer all").endswith("are answered from now on")
    assert (driver.hangs, driver.errors) == (set(), {})
