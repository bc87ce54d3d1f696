"""The programs of docs/consumers.md are complete, and do what the page says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from plugind.actors.console.fake import FakeSpec, run_fake
from plugind.actors.simulation.dra_drivers import DRACall, FakeDRADriver
from plugind.testing import FakePlugin
from plugind.tests.end_to_end.processes import DEADLINE

PAGE = (Path(__file__).parents[3] / "docs" / "consumers.md").read_text()
BLOCKS = [piece.split("```")[0] for piece in PAGE.split("```python\n")[1:]]


def test_each_block_is_tested_here() -> None:
    assert [".dra_driver(" in block for block in BLOCKS] == [True]


async def test_the_program_that_prepares_a_claim_prints_its_devices_and_undoes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Acceptance of proposal 8, in the words of the page: the driver has its socket where the program looks."""
    (program,) = BLOCKS
    assert program.count('"/tmp/plugins"') == 1
    programs: list[Callable[[], Awaitable[None]]] = []
    monkeypatch.setattr(trio, "run", programs.append)
    exec(program.replace("/tmp/", f"{tmp_path}/"), {"__name__": "pasted"})
    (tmp_path / "plugins").mkdir()
    driver = FakeDRADriver()
    plugin = FakePlugin("DRAPlugin", "gpu.example.com", ("v1.DRAPlugin",), serves=[driver])
    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            spec = FakeSpec(f"{tmp_path}/plugins/gpu.sock", plugin)
            await nursery.start(partial(run_fake, spec, on_call=lambda _: None))
            await programs[0]()
            nursery.cancel_scope.cancel()
    assert capsys.readouterr().out == "pool-0 gpu-0 example.com/gpu=train\n"
    assert [call for _, call in driver.calls] == [DRACall.PREPARE, DRACall.UNPREPARE]
    assert driver.prepared == {}
