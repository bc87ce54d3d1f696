"""A small server in the place of a daemon that has leases."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import attrs

from plugind.protocol.version import STATUS_HEADER, STATUS_VERSION


@attrs.frozen
class Asked:
    """One request."""

    line: str
    body: Any
    uid: int


@attrs.define
class LeaseServer:
    """Answers each request with the next of ``answers``, and every later one with the last."""

    path: Path
    answers: list[bytes]
    requests: list[Asked] = attrs.field(factory=list)
    #: Leave each connection open until the end of the test.
    hold: bool = False

    def serve(self, listener: socket.socket) -> None:
        with ExitStack() as held:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return  # The test has ended.
                with connection if not self.hold else nullcontext(held.enter_context(connection)):
                    self.requests.append(_request(connection))
                    answered = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                    # A test's client may have given up, and its socket is closed.
                    with suppress(BrokenPipeError):
                        connection.sendall(answered)


def _request(connection: socket.socket) -> Asked:
    _, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    with connection.makefile("rb") as lines:
        line = lines.readline().decode().strip()
        length = 0
        while header := lines.readline().strip():
            name, _, value = header.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return Asked(line, json.loads(lines.read(length)) if length else None, uid)


def answer(status: int, content: Any = None, version: int | None = STATUS_VERSION) -> bytes:
    """Return an answer of a daemon that speaks this version of the status socket, and says none if it is None."""
    body = b"" if content is None else json.dumps(content).encode()
    said = b"" if version is None else b"%s: %d\r\n" % (STATUS_HEADER.encode(), version)
    return b"HTTP/1.1 %d Whatever\r\n%sContent-Length: %d\r\n\r\n%s" % (status, said, len(body), body)


@contextmanager
def lease_server(directory: Path, *answers: bytes, hold: bool = False) -> Iterator[LeaseServer]:
    """Serve on a socket in ``directory``."""
    path = directory / "status.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen()
        server = LeaseServer(path, list(answers), hold=hold)
        thread = threading.Thread(target=server.serve, args=(listener,))
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
