from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from plugind.protocol.proto import regenerate

GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_grpc.py")


def test_the_generated_files_are_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is stale, missing or left over; the command needs no activated environment."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    made = regenerate.generate(tmp_path)

    fresh = {path.name: path.read_bytes() for path in made}
    committed = {path.name: path.read_bytes() for kind in GENERATED for path in regenerate.HERE.glob(kind)}
    assert sorted(fresh) == sorted(committed)
    stale = [name for name in fresh if fresh[name] != committed[name]]
    assert stale == [], "run `python -m plugind.protocol.proto.regenerate`"


def test_help_describes_the_module_and_generates_nothing() -> None:
    before = {path: path.stat().st_mtime_ns for kind in GENERATED for path in regenerate.HERE.glob(kind)}
    command = [sys.executable, "-m", "plugind.protocol.proto.regenerate"]

    help_text = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    mistaken = subprocess.run([*command, "csi_v1.proto"], capture_output=True, text=True, check=False)

    assert help_text.startswith("usage: python -m plugind.protocol.proto.regenerate [-h]\n\nGenerate ")
    assert (mistaken.returncode, mistaken.stdout) == (2, "")
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_every_proto_file_gives_its_messages_their_types_and_its_services() -> None:
    sources = {path.stem for path in regenerate.HERE.glob("*.proto")}

    for kind in GENERATED:
        assert {path.name.removesuffix(kind[1:]) for path in regenerate.HERE.glob(kind)} == sources
