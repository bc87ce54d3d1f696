"""The commands of README.md, run as a reader would paste them, and the names in it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from plugind.tests.end_to_end.packages import PACKAGES
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, finish
from plugind.tests.tools.interpreters import SETTLED, block

CHECKOUT = Path(__file__).parents[2]
README = (CHECKOUT / "README.md").read_text()


def test_the_first_three_lines_give_a_device_to_a_process_and_to_a_container(tmp_path: Path) -> None:
    """All three are pasted at once, so the daemon has only begun to start. The engine shows what it is told."""
    engine = tmp_path / "podman"
    engine.write_text("#!/bin/sh\necho podman $*\n")
    engine.chmod(0o755)
    own = {"STATUS": "status.sock", "ROOT": "plugins", "STATE": "state", "LEASES_CDI_DIRECTORY": "cdi"}
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{sys.prefix}/bin:{os.environ['PATH']}",
        **{f"PLUGIND_{name}": f"{tmp_path}/{place}" for name, place in own.items()},
    }
    lines = block("first").replace("/dev/serial/by-id/*", "/dev/nul[l]")
    done = finish(["bash", "-euc", f"trap 'kill $(jobs -p)' EXIT\n{lines}"], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    there, nodes, container = done.stdout.splitlines()
    assert (there, nodes) == ("lab/serial has 1 healthy device", "/dev/null")
    assert re.fullmatch(r"podman run --rm --device plugind/lease=l\w+ IMAGE", container)


def test_the_commands_to_try_show_a_registered_plugin_and_leave_nothing_running(tmp_path: Path) -> None:
    """The commands use the ``.venv`` of the first command; here that is the environment of the tests."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    # A pipe ends when no process can write to it any more, so the daemon and the plugin have ended too.
    done = finish(["bash", "-euc", block("try")], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    (directory,) = temporary.iterdir()
    path = f"{directory}/plugins/red.sock"
    lines = done.stdout.splitlines()
    assert re.fullmatch(
        rf"red\.example\.com (is registered|was registered in \S+): {path}",
        next(x for x in lines if x.startswith("red")),
    )
    header = next(number for number, line in enumerate(lines) if line.startswith("STATE "))
    assert lines[header + 1].split()[:3] == ["registered", "red.example.com", "CSIPlugin"]
    assert {("Versions:", "1.0.0"), ("Node id:", "node-1")} <= {
        tuple(re.split(" {2,}", line, maxsplit=1)) for line in lines
    }
    assert sorted(os.listdir(directory)) == ["plugins"]
    assert os.listdir(directory / "plugins") == [".plugind.lock"]


@pytest.fixture
def fresh_copy(tmp_path: Path) -> Path:
    """Copy the files of the checkout as a clone would have them, including uncommitted changes."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = finish(listed, cwd=CHECKOUT, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (CHECKOUT / name).is_file():
            (tmp_path / "plugind" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, tmp_path / "plugind" / name)
    return tmp_path / "plugind"


def offline(python: Path, directory: Path) -> dict[str, str]:
    """Return an environment in which pip finds plugind's requirements among the packages of ``python``.

    Only the download differs from what a reader runs; the environment, the build and the installation do not.
    """
    here = finish([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True)
    return {
        **os.environ,
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "PYTHONPATH": here.stdout.strip(),
        "PIP_NO_INDEX": "1",
        # Despite its name, pip reads this value as whether builds are isolated.
        "PIP_NO_BUILD_ISOLATION": "0",
        "TMPDIR": str(directory),
    }


def test_the_commands_about_devices_show_the_table_of_the_page() -> None:
    # Instead of a second's sleep, which may be too short on a busy machine, the device is waited for.
    commands = block("devices").replace("sleep 1", "until plugind devices | grep -q Unhealthy; do sleep 0.1; done")
    assert commands != block("devices")
    # The path of a device plugin's socket may have 107 bytes, so the directory must have a short one.
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.symlink(sys.prefix, f"{directory}/.venv")
        done = finish(["bash", "-euc", commands], cwd=directory, env={**os.environ, "TMPDIR": directory})
    assert done.returncode == 0, done.stderr
    table = [line.split() for line in README.split("```\n")[1].split("```")[0].splitlines()]
    shown = [line.split() for line in done.stdout.splitlines()[-len(table) :]]
    assert [row[:3] for row in shown] == [row[:3] for row in table]
    assert shown[-1] == table[-1]


@pytest.mark.extended
def test_the_first_command_installs_plugind_and_shows_a_running_node_until_ctrl_c(
    fresh_copy: Path, tmp_path: Path
) -> None:
    environment = offline(Path(sys.executable), tmp_path)
    with subprocess.Popen(
        ["bash", "-euc", block("demo")],
        cwd=fresh_copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A terminal sends Ctrl-C to the whole process group.
        start_new_session=True,
    ) as shell:
        try:
            assert shell.stdout is not None
            shown: list[str] = []
            for line in shell.stdout:
                shown.append(line)
                if SETTLED in line:
                    break
            os.killpg(shell.pid, signal.SIGINT)
            _, complaint = shell.communicate(timeout=DEADLINE)
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
    assert shown, complaint
    assert "Ctrl-C ends it" in shown[0]
    # The command ran the program that it had installed.
    assert f"  alias plugind={fresh_copy}/.venv/bin/plugind\n" in shown
    installed = [sys.executable, "-c", "import plugind; print(plugind.__file__)"]
    installed[0] = str(fresh_copy / ".venv/bin/python")
    found = finish(installed, cwd="/", env=environment, check=True)
    assert found.stdout.startswith(f"{fresh_copy}/.venv/lib/")


def test_the_program_that_embeds_a_node_is_complete_and_registers_its_plugin(tmp_path: Path) -> None:
    program = README.split("```python\n")[1].split("```")[0]
    assert '"/tmp/plugins"' in program
    (tmp_path / "program.py").write_text(program.replace("/tmp/plugins", f"{tmp_path}/plugins"))
    (tmp_path / "plugins").mkdir()
    path = tmp_path / "plugins" / "red.sock"
    fake = [*PLUGIND, "fake", "--socket", str(path), "--type", "ColourPlugin", "--name", "red.example.com"]
    with subprocess.Popen([*fake, "--version", "1.0.0"], stdout=subprocess.DEVNULL) as plugin:
        try:
            done = finish([sys.executable, "program.py"], cwd=tmp_path)
        finally:
            plugin.terminate()
    assert done.stdout == f"red.example.com serves at {path}\nred.example.com is registered\n", done.stderr


def test_every_debian_package_that_ends_a_skip_is_named() -> None:
    assert [package for package in set(PACKAGES.values()) if f"`{package}`" not in README] == []


def test_every_file_that_is_named_exists() -> None:
    named = set(re.findall(r"`((?:actors|protocol|docs|examples|tests|benchmarks|\.ci)[\w/.-]*)`", README))
    assert len(named) > 10
    assert [name for name in named if not (CHECKOUT / name).exists()] == []


def test_benchmarks_are_started_in_the_same_way_everywhere() -> None:
    pages = [CHECKOUT / "README.md", *CHECKOUT.glob("docs/*.md"), *CHECKOUT.glob("benchmarks/**/*.py")]
    commands = [
        (page.name, command)
        for page in pages
        for command in re.findall(r"python3? -m (\S*benchmarks\S*)", page.read_text())
    ]
    assert len(commands) > 5
    assert [(page, command) for page, command in commands if not command.startswith("benchmarks.")] == []
