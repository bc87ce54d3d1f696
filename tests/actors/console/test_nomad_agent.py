"""The API of an agent of Nomad as the device plugin asks it: two requests with a token, and why one fails."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from plugind.actors.console.nomad_agent import NomadAgent, of_file, usable
from plugind.actors.io.http_get import Origin
from plugind.protocol.nomad import NomadError
from plugind.tests.protocol.test_nomad_allocations import shown

NODE = "f7476465-4d6e-c0de-26d0-e383c49be941"
SELF = {"stats": {"client": {"node_id": NODE}}}


@asynccontextmanager
async def answering(answers: Mapping[str, bytes], asked: list[tuple[str, str]]) -> AsyncIterator[Origin]:
    """Serve these bodies by their paths, and 403 for others; keep each path with the token."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            lines = (await stream.receive_some(65536)).decode().split("\r\n")
            path = lines[0].split()[1]
            asked.append((path, "".join(line[15:] for line in lines if line.startswith("X-Nomad-Token: "))))
            status = "200 OK" if path in answers else "403 Forbidden"
            body = answers.get(path, b"Permission denied")
            await stream.send_all(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status.encode(), len(body)) + body)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield Origin("127.0.0.1", listener.socket.getsockname()[1])
        nursery.cancel_scope.cancel()


async def test_the_node_is_asked_for_first_and_then_its_allocations() -> None:
    answers = {
        "/v1/agent/self": json.dumps(SELF).encode(),
        f"/v1/node/{NODE}/allocations": json.dumps([shown("running", "GPU-0")]).encode(),
    }
    asked: list[tuple[str, str]] = []
    tokens = iter(["old", "new", "", ""])
    async with answering(answers, asked) as server:
        agent = NomadAgent(server, lambda: next(tokens))
        (found,) = await agent.allocations()
        assert (found.id, found.lives) == ("5456bd7a", True)
        await agent.allocations()
    assert asked == [
        ("/v1/agent/self", "old"),
        (f"/v1/node/{NODE}/allocations", "new"),
        ("/v1/agent/self", ""),
        (f"/v1/node/{NODE}/allocations", ""),
    ]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({}, r"Nomad's API does not tell \(GET /v1/agent/self\): the answer is 403, and not 200"),
        ({"/v1/agent/self": b"{"}, r"Nomad's answer is no JSON \(GET /v1/agent/self\)"),
        ({"/v1/agent/self": b"\xff"}, r"Nomad's answer is no JSON \(GET /v1/agent/self\)"),
        ({"/v1/agent/self": b"[" * 100_000}, r"Nomad's answer is no JSON \(GET /v1/agent/self\)"),
        ({"/v1/agent/self": b"[]"}, r"Nomad's answer cannot be understood"),
        ({"/v1/agent/self": b" " * (1024 * 1024 + 1)}, r"the answer is over 1048576 bytes"),
        ({"/v1/agent/self": json.dumps(SELF).encode()}, r"GET /v1/node/f7476465-[^)]+\): the answer is 403"),
    ],
)
async def test_what_is_no_answer_is_an_error_with_its_reason(answers: Mapping[str, bytes], reason: str) -> None:
    async with answering(answers, []) as server:
        with pytest.raises(NomadError, match=reason):
            await NomadAgent(server, lambda: "").allocations()


def test_the_file_of_a_token_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for secret in ("5b2a0d0c-9d5f", "another"):
        file.write_text(f" {secret}\n")
        assert of_file(str(file)) == secret


@pytest.mark.parametrize("content", [b"", b" \n", b"a" * 4097, b"a\r\nHost: b", b"\xff", "ü".encode(), b"a b"])
def test_a_file_without_a_token_is_refused_and_not_shown(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(NomadError) as caught:
        of_file(str(file))
    assert "Host" not in str(caught.value)
    assert "aaaa" not in str(caught.value)


def test_a_token_in_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NomadError, match="No such file or directory"):
        of_file(str(tmp_path / "absent"))
    with pytest.raises(NomadError, match="Is a directory"):
        of_file(str(tmp_path))
    with pytest.raises(NomadError, match="letters that no token has"):
        usable("a\tb")


def test_a_pipe_in_the_place_of_a_token_holds_up_nothing(tmp_path: Path) -> None:
    pipe = tmp_path / "token"
    os.mkfifo(pipe)
    with pytest.raises(NomadError, match="has no token"):
        of_file(str(pipe))
    writer = os.open(pipe, os.O_RDWR)
    try:
        with pytest.raises(NomadError, match="has no token"):
            of_file(str(pipe))
    finally:
        os.close(writer)
