"""Every path and tool that docs/contributing.md names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import finish

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "contributing.md").read_text()


def test_each_tool_is_named() -> None:
    tools = [path for path in (REPOSITORY / "tests" / "tools").glob("*.py") if "__main__" in path.read_text()]
    assert len(tools) > 5
    missing = [path.stem for path in tools if f"`python -m tests.tools.{path.stem}" not in PAGE]
    assert missing == []


def test_each_path_and_tool_that_is_named_exists() -> None:
    names = re.findall(r"`((?:actors|protocol|docs|tests|examples|\.ci)/[\w./-]*)`", PAGE)
    names += [name.replace(".", "/") + ".py" for name in re.findall(r"python -m (tests\.tools\.\w+)", PAGE)]
    assert len(names) > 20
    assert [name for name in names if not (REPOSITORY / name).exists()] == []


@pytest.mark.parametrize("name", ["run", "debian13"])
def test_the_scripts_of_ci_can_be_read_by_bash(name: str) -> None:
    done = finish([program("bash"), "-n", REPOSITORY / ".ci" / name])
    assert (done.returncode, done.stderr) == (0, "")
