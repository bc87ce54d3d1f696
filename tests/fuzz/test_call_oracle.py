"""The oracle of calls of Register."""

from __future__ import annotations

import pytest

from plugind.actors.simulation.device_directory import MemoryDeviceDirectory, RegisterAttempt
from plugind.actors.simulation.directory import MemoryDirectory
from plugind.protocol.devices.calls import RegisterCall
from plugind.tests.fuzz.call_oracle import REFUSAL, CallOracle


@pytest.mark.parametrize(("text", "expected"), [(REFUSAL, set()), ("the resource has no valid name", {"gpu.sock"})])
async def test_a_plugin_that_its_handler_refuses_takes_the_place_of_the_one_before_it(
    text: str, expected: set[str]
) -> None:
    """Seed 2007: a call that the server itself refuses changes nothing, and the plugin before it stays."""
    violated: list[str] = []
    files = MemoryDirectory()
    files.mkdir("/dp")
    socket = files.bind("/dp/gpu.sock")
    oracle = CallOracle(lambda rule, _: violated.append(rule))
    for code, words in (("OK", ""), ("INVALID_ARGUMENT", text)):
        attempt = RegisterAttempt(RegisterCall("v1beta1", "gpu.sock", "vendor.com/gpu", 0, 903), 1.0)
        attempt.answer(code, words)
        oracle.made(attempt, socket)
    assert oracle.expected(MemoryDeviceDirectory("/dp", files, lambda: None)) == expected
    assert violated == []
