"""The demo as a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, finish

PASTED = "shopt -s expand_aliases\n"


@pytest.mark.usefixtures("real_processes")
def test_the_demo_ends_by_itself_when_every_plugin_has_settled_even_if_temporary_files_lie_deep(tmp_path: Path) -> None:
    deep = tmp_path / ("deep" * 20)
    deep.mkdir()
    ended = finish([sys.executable, "-m", "plugind", "demo", "--once"], env={**os.environ, "TMPDIR": str(deep)})
    assert (ended.returncode, ended.stderr) == (0, "")
    *table, devices, facts = ended.stdout.splitlines()
    assert facts == "csi.example.com: node id node-7, 16 volumes, zone=z1"
    assert devices == "example.com/gpu: 4 of 4 devices healthy"
    rows = [line.split() for line in table]
    assert [(row[1], row[0]) for row in rows] == [
        ("NAME", "STATE"),
        ("csi.example.com", "registered"),
        ("faulty.example.com", "registered"),
        ("dra.example.com", "registered"),
        ("rolling.example.com", "registered"),
        ("example.com/gpu", "registered"),
        ("example.com/mortal", "registered"),
        ("odd.example.com", "parked"),
        ("-", "waiting"),
    ]


@pytest.mark.usefixtures("real_processes")
def test_the_commands_that_the_demo_shows_work_when_pasted() -> None:
    with subprocess.Popen([*PLUGIND, "demo"], stdout=subprocess.PIPE, text=True) as demo:
        try:
            assert demo.stdout is not None
            for line in demo.stdout:
                if line == "From a second terminal:\n":
                    break
            *questions, watch = [demo.stdout.readline().strip() for _ in range(4)]
            # It is the last one that is registered, and has no name before.
            for line in demo.stdout:
                if "  registered   faulty.example.com  " in line:
                    break
            script = PASTED + "\n".join(questions)
            result = finish(["bash", "-euc", script], check=True)
            # Instead of three seconds' sleep, what the command got is shown.
            shown = watch.replace("sleep 3", "printenv PLUGIND_DEVICES")
            setting = PASTED + "\n".join([*questions[:2], shown])
            with subprocess.Popen(
                ["bash", "-euc", setting], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as watching:
                assert watching.stdout is not None
                now = [watching.stdout.readline() for _ in range(6)]
                while not now[-1].startswith("4 devices of "):
                    now.append(watching.stdout.readline())
                # A line says that the plugin that dies is away just now, or has no devices yet.
                while (leased := watching.stdout.readline()).startswith("example.com/mortal "):
                    pass
                now += [watching.stdout.readline() for _ in range(8)]
                demo.send_signal(signal.SIGINT)
                _, complaint = watching.communicate(timeout=DEADLINE)
            # The output is read to the end, so that the demo never blocks.
            demo.communicate(timeout=DEADLINE)
        finally:
            demo.kill()
    status = Path(questions[1].partition("=")[2])
    assert result.stderr == ""
    assert result.stdout.splitlines()[0].split()[:3] == ["STATE", "NAME", "TYPE"]
    assert re.search("^Name: +csi.example.com$", result.stdout, re.MULTILINE)
    assert re.search("^Topology: +zone=z1$", result.stdout, re.MULTILINE)
    assert result.stdout.endswith(f"{status.parent}/plugins/odd.sock: tried now\n")
    assert watch == "plugind devices; plugind allocate example.com/gpu=1 -- sleep 3; plugind watch"
    assert re.fullmatch(r"example\.com/gpu=gpu-\d\n", leased)
    assert {"gpu-0", "gpu-3", "csi.example.com", "odd.example.com"} <= {word for line in now for word in line.split()}
    assert (watching.returncode, complaint) == (69, f"plugind: the daemon at {status} stopped\n")
    assert demo.returncode == 0
    assert not os.path.exists(status.parent)
