"""The tutorials in docs, pasted block by block into one shell, show what the pages say; so their plugins work."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugind.tests.end_to_end.foreign import GRPC_JS, install_grpc_js
from plugind.tests.end_to_end.go_programs import BUILD_DEADLINE
from plugind.tests.end_to_end.packages import go_package, program
from plugind.tests.end_to_end.processes import DEADLINE

DOCS = Path(__file__).parents[2] / "docs"
#: A block of a page: its name, the commands or the text of a file, and the output that the page shows below commands.
BLOCK = re.compile(
    r"<!-- (?P<name>\S+) -->\n(?:(?P<commands>(?:    .*\n)+)|```\w+\n(?P<text>(?:.*\n)*?)```\n)<!-- -->\n"
    r"(?:\n```\n(?P<output>(?:.*\n)*?)```\n)?"
)
#: What is another one each time: times, the directory, and whether a plugin was registered before it was waited for.
CHANGING = re.compile(
    r"\d\d:\d\d:\d\d([+-]\d\d:\d\d)?|/tmp/tmp\.\w+|is registered|was registered in [\d.]+m?s|[\d.]+s$", re.M
)


def blocks(page: str) -> Iterator[tuple[str, str, str]]:
    """Yield for each block its name, what a reader does with it as commands, and the output that the page shows."""
    for found in BLOCK.finditer(page):
        name, commands, text = found["name"], found["commands"], found["text"]
        if commands is None:
            yield name, f"cat > {name} <<'END OF FILE'\n{text}END OF FILE\n", ""
        else:
            yield name, "".join(line[4:] + "\n" for line in commands.splitlines()), found["output"] or ""


def rows(text: str) -> list[list[str]]:
    """Return the words of each line, but not what is another one each time, nor that the shell tells of a kill."""
    return [CHANGING.sub("#", line).split() for line in text.splitlines() if " Killed " not in line]


def shown(steps: list[tuple[str, str, str]], deadline: float) -> None:
    """Run the steps; compare what each prints with the page.

    A pipe ends when no process can write to it any more: the last step has ended all that the others have started.
    """
    blocks = "".join(f"{commands}printf '\\n%s\\n' END\n" for _, commands, _ in steps)
    # After a command that fails nothing is waited for.
    script = f"trap 'kill $(jobs -p) 2>/dev/null' EXIT\n{blocks}"
    # The path of a plugin's socket may have 107 bytes, so the directory must have a short one.
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.symlink(sys.prefix, f"{directory}/.venv")
        (Path(directory) / "tmp").mkdir()
        with subprocess.Popen(
            ["bash", "-euc", script],
            cwd=directory,
            env={**os.environ, "TMPDIR": f"{directory}/tmp"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as shell:
            try:
                said, _ = shell.communicate(timeout=deadline)
            finally:
                if shell.poll() is None:
                    os.killpg(shell.pid, signal.SIGKILL)
        outputs = said.replace(f"{directory}/tmp/", "/tmp/").split("\nEND\n")
    assert len(outputs) == len(steps) + 1, said
    for (name, _, wanted), output in zip(steps, outputs, strict=False):
        # What a plugin in the background prints may come before or after what a command prints.
        assert sorted(rows(output.strip("\n"))) == sorted(rows(wanted)), f"{name}: {said}"


def steps_of(name: str, **others: str) -> list[tuple[str, str, str]]:
    """Return the blocks of a page; the commands of ``others`` take the place of those that would download something."""
    found = list(blocks((DOCS / f"tutorial-{name}.md").read_text()))
    assert {"install", *others} < {block for block, _, _ in found}
    given = {"install": ":\n", **others}
    return [(block, given.get(block, commands), output) for block, commands, output in found]


def test_the_tutorial_in_python_shows_what_the_page_says() -> None:
    steps = steps_of("python")
    assert [name for name, _, output in steps if output] == [
        "protocol",
        "register",
        "use",
        "break",
        "kill",
        "restart",
        "test",
    ]
    shown(steps, DEADLINE)


@pytest.mark.extended
def test_the_tutorial_in_javascript_shows_what_the_page_says() -> None:
    install_grpc_js()
    steps = steps_of("javascript", npm=f"ln -s {GRPC_JS / 'node_modules'} .\n")
    assert [name for name, _, output in steps if output] == ["register", "break", "test"]
    shown(steps, DEADLINE)


@pytest.mark.extended
def test_the_tutorial_in_go_shows_what_the_page_says() -> None:
    program("go")
    program("protoc-gen-go")
    go_package("google.golang.org/grpc", "golang-google-grpc-dev")
    steps = steps_of("go")
    assert [name for name, _, output in steps if output] == ["register", "break", "test"]
    shown(steps, DEADLINE + BUILD_DEADLINE)


def test_the_plugins_of_the_tutorials_offer_the_same() -> None:
    """So that a reader of one page finds on the other ones what it explains."""
    pages = {name: {block: shown for block, _, shown in steps_of(name)} for name in ("python", "javascript", "go")}
    assert pages["javascript"]["break"] == pages["go"]["break"] == pages["python"]["break"]
    assert pages["javascript"]["register"] == pages["go"]["register"]


@pytest.mark.parametrize("name", ["python", "javascript", "go"])
def test_each_block_of_a_tutorial_is_run(name: str) -> None:
    """A mark that is misspelt would leave out what is below it."""
    page = (DOCS / f"tutorial-{name}.md").read_text()
    indented = [line[4:] for line in page.splitlines() if line.startswith("    ")]
    run = "".join(commands for _, commands, _ in blocks(page))
    assert len(indented) > 10
    assert [line for line in indented if line not in run] == []
