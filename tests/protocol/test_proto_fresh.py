from __future__ import annotations

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
