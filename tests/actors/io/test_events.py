"""What a real inotify instance returns."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from plugind.actors.discovery.directory import RealDirectory
from plugind.protocol.discovery import watches as mask


def test_events_that_a_loop_causes_again_and_again_are_returned_once_each(tmp_path: Path) -> None:
    names = ["a", "b.sock", "a much longer name of a socket.sock"]
    for name in names:
        (tmp_path / name).touch()
    with closing(RealDirectory(str(tmp_path)).events()) as events:
        descriptor = events.watch(str(tmp_path))
        for _ in range(2000):
            for name in names:
                os.chmod(tmp_path / name, 0o600)
        (tmp_path / "new").touch()
        changed = [(descriptor, mask.ATTRIB, name) for name in names]
        assert events.read() == [*changed, (descriptor, mask.CREATE, "new")]
        assert events.read() == []
