"""The file that says which plugins were notified."""

from __future__ import annotations

import json
import os
from pathlib import Path

import attrs
import pytest

from plugind.actors.io import notice_file
from plugind.actors.io.notice_file import FILE_NAME, NoticeFile
from plugind.protocol.errors import StateError
from plugind.protocol.registration.notices import Notice, NoticesByPath
from plugind.tests.actors.status.bench import RecordingLogger

RED = Notice("Colour", "red", "/plugins/red.sock", ("1.0.0", "1.1.0"), 0, 2, 3, 4, 5, 6, "this boot")
#: A path and an endpoint may have bytes that are no UTF-8.
ODD = attrs.evolve(RED, endpoint=os.fsdecode(b"/plugins/\xff.sock"), uid=None)
NOTICES = {RED.endpoint: RED, ODD.endpoint: ODD}


@pytest.fixture(autouse=True)
def boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice_file, "known_boot_id", lambda: RED.boot_id)


async def read(directory: Path, log: RecordingLogger) -> NoticesByPath:
    file = NoticeFile(str(directory), log)
    try:
        return await file.read()
    finally:
        file.close()


async def write(directory: Path, notices: NoticesByPath) -> None:
    file = NoticeFile(str(directory), RecordingLogger())
    try:
        await file.write(notices)
    finally:
        file.close()


async def test_what_is_written_is_read_and_without_notices_there_is_no_file(tmp_path: Path) -> None:
    log = RecordingLogger()
    assert await read(tmp_path, log) == {}
    await write(tmp_path, NOTICES)
    assert await read(tmp_path, log) == NOTICES
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    for _ in range(2):
        await write(tmp_path, {})
        assert os.listdir(tmp_path) == []
    assert log.events == []


async def test_a_notice_of_another_boot_says_nothing(tmp_path: Path) -> None:
    await write(tmp_path, {RED.endpoint: RED, "/b": attrs.evolve(RED, boot_id="another")})
    assert await read(tmp_path, RecordingLogger()) == {RED.endpoint: RED}


ROW = [*attrs.astuple(RED)]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        json.dumps({"version": 2, "notified": {}}),
        json.dumps({"version": 1}),
        json.dumps({"version": 1, "notified": {"/a": ROW[:-1]}}),
        json.dumps({"version": 1, "notified": {"/a": [*ROW[:-2], True, "this boot"]}}),
        "\N{SNOWMAN}",
    ],
)
async def test_a_file_that_cannot_be_understood_says_nothing_and_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    log = RecordingLogger()
    assert await read(tmp_path, log) == {}
    assert [message for _, message, _ in log.events] == ["the notifications of before are unknown"]


async def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    await write(tmp_path, NOTICES)
    (tmp_path / FILE_NAME).rename(tmp_path / "other")
    (tmp_path / FILE_NAME).symlink_to("other")
    with pytest.raises(StateError, match="cannot be read"):
        await read(tmp_path, RecordingLogger())


async def test_without_its_directory_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot be written: No such file"):
        await write(tmp_path / "missing", NOTICES)
