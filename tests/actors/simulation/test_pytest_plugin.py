"""The fixtures that plugind offers, used as in another project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = """
import pytest
import trio
from trio.testing import MockClock

from plugind.testing import FakeHandler, FakePlugin, SimulatedNode


@pytest.fixture
def plugind_handlers():
    return {"Colour": FakeHandler()}


@pytest.fixture
def plugged(node):
    return node.plug("a.sock", FakePlugin("Colour", "red", get_info_fails=2))


async def test_an_hour_passes_in_no_time(node, plugged):
    await node.settled()
    assert node.timeline("a.sock")[-1] == (1.5, "registered")
    await trio.sleep(3600)
    assert node.now == 3601.5


async def test_a_project_can_use_its_own_clock(node: SimulatedNode, mock_clock: MockClock):
    assert trio.lowlevel.current_clock() is mock_clock


async def test_a_failing_test_is_reported_as_failed(node):
    assert node.state("a.sock") == "registered"


def test_a_daemon_is_a_fixture(plugind_daemon):
    assert plugind_daemon.client.list() == ()


class TestOther:
    @pytest.fixture
    def node(self):
        return "a node of another kind"

    def test_a_fixture_of_that_name_is_left_alone(self, node):
        assert node == "a node of another kind"
"""


def run_pytest(project: Path, *arguments: str) -> str:
    """Run a test session in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", *arguments, str(project)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=project)
    return done.stdout + done.stderr


def snippets(page: str) -> list[str]:
    """The blocks of Python code on a page."""
    text = (Path(__file__).parents[3] / "docs" / page).read_text()
    return [part.partition("```")[0] for part in text.split("```python\n")[1:]]


def test_a_project_that_uses_the_fixture_tests_in_virtual_time(tmp_path: Path) -> None:
    """The first block of the page is the line of the ``conftest.py``."""
    (tmp_path / "test_ours.py").write_text(PROJECT)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n")
    conftest, *blocks = snippets("testing.md")
    (tmp_path / "conftest.py").write_text(conftest)
    for number, block in enumerate(blocks):
        # Each block is a separate module, since each must work when it is copied.
        (tmp_path / f"test_block_{number}.py").write_text(block)
    output = run_pytest(tmp_path)
    assert "30 passed" in output, output
    assert "1 failed" in output, output
    assert "assert None == 'registered'" in output, output
