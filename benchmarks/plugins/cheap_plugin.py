"""The options of the cheap server, and its plugins."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

import attrs

from plugind.benchmarks.plugins.cheap_protocol import (
    AskInfo,
    DeviceCall,
    Notification,
    Part,
    failure,
    not_implemented,
    plugin_info,
    success,
)

VERSIONS = {"CSIPlugin": "1.0.0", "DevicePlugin": "v1beta1", "DRAPlugin": "v1.DRAPlugin"}
HANGS = ("accept", "get-info", "notify", "backlog", "probe")
_UNAVAILABLE = 14


@attrs.frozen(kw_only=True)
class ServerOptions:
    """The options of the server; ``arguments()`` is the same as a command line.

    ``name``, ``file`` and ``endpoint`` are patterns over ``{i}``. ``file`` may contain subdirectories. An ``endpoint``
    of None means the socket's own path. With ``wait``, a command must create the sockets. The first ``fail_first``
    GetInfo calls of each socket fail with UNAVAILABLE.
    """

    directory: Path
    sockets: int = 2000
    type: str = "CSIPlugin"
    name: str = "plugin-{i:05d}.example.com"
    file: str = "plugin-{i:05d}.sock"
    endpoint: str | None = None
    versions: tuple[str, ...] = ()
    wait: bool = False
    spin: bool = False
    core: int | None = None
    hang_fraction: float = 0.0
    hang: str = "get-info"
    fail_first: int = 0

    def plugin_name(self, index: int) -> str:
        """Return the name of the plugin at ``index``."""
        return self.name.format(i=index)

    def path(self, index: int) -> Path:
        """Return the socket of the plugin at ``index``."""
        return self.directory / self.file.format(i=index)

    def hangs(self, index: int) -> bool:
        """Return whether this plugin hangs: ``hang_fraction`` of all plugins do, spread evenly."""
        return int((index + 1) * self.hang_fraction) > int(index * self.hang_fraction)

    def arguments(self) -> list[str]:
        """Return the same options as a command line."""
        line = ["--dir", str(self.directory), "--sockets", str(self.sockets), "--type", self.type]
        line += ["--name", self.name, "--file", self.file, "--hang", self.hang]
        line += ["--hang-fraction", str(self.hang_fraction), "--fail-first", str(self.fail_first)]
        for version in self.versions:
            line += ["--version", version]
        line += ["--endpoint", self.endpoint] if self.endpoint is not None else []
        line += ["--core", str(self.core)] if self.core is not None else []
        return line + ["--spin"] * self.spin + ["--wait"] * self.wait


class Tally:
    """The number of notified sockets, over all plugins of a server."""

    __slots__ = ("notified",)

    def __init__(self) -> None:
        self.notified = 0


class PluginReport(TypedDict):
    """Events of one socket. Times are nanoseconds of CLOCK_MONOTONIC, of the first call of each kind; 0 is never."""

    index: int
    name: str
    path: str
    hang: str
    bound_ns: int
    listening_ns: int
    asked_ns: int
    notified_ns: int
    removed_ns: int
    asked: int
    notified: int
    refused: int
    error: str


class Plugin:
    """One socket: its answers, and the times of its events (nanoseconds; 0 means never)."""

    __slots__ = (
        "accept",
        "asked",
        "asked_ns",
        "bound_ns",
        "endpoint",
        "error",
        "failures_left",
        "fillers",
        "hang",
        "index",
        "info",
        "listener",
        "listening_ns",
        "message",
        "name",
        "notified",
        "notified_ns",
        "path",
        "refused",
        "removed_ns",
        "tally",
    )

    def __init__(self, options: ServerOptions, index: int, tally: Tally) -> None:
        self.tally = tally
        self.index = index
        self.name = options.plugin_name(index)
        self.path = str(options.path(index))
        self.endpoint = self.path if options.endpoint is None else options.endpoint.format(i=index)
        versions = options.versions or (VERSIONS.get(options.type, "1.0.0"),)
        self.message = plugin_info(options.type, self.name, self.endpoint, versions)
        self.info = success(1, self.message)
        self.hang = options.hang if options.hangs(index) else ""
        self.failures_left = options.fail_first
        self.listener: socket.socket | None = None
        self.accept: Callable[[], tuple[int, object]] | None = None
        self.fillers: list[socket.socket] = []
        self.bound_ns = self.listening_ns = self.asked_ns = self.notified_ns = self.removed_ns = 0
        self.asked = self.notified = self.refused = 0
        self.error = ""

    def listen(self, file: str) -> socket.socket:
        """Bind and listen. The backlog of a plugin that hangs there is full from the start.

        Raises:
          OSError: if the socket cannot be created.
        """
        # This plugin represents foreign code and must be cheaper than its client, so it uses the bare socket module.
        listener = self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        listener.bind(file)
        self.bound_ns = time.monotonic_ns()
        listener.listen(0 if self.hang == "backlog" else 128)
        self.listening_ns = time.monotonic_ns()
        # socket._accept() returns a bare descriptor; creating a socket object would cost more than the call.
        self.accept = listener._accept  # type: ignore[attr-defined]
        while self.hang == "backlog":
            filler = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self.fillers.append(filler)
            if filler.connect_ex(file):
                break
        return listener

    def close(self) -> None:
        """Close the listener; ``Server`` removes the file."""
        self.removed_ns = time.monotonic_ns()
        for one in (self.listener, *self.fillers):
            if one is not None:
                one.close()
        self.listener = self.accept = None
        self.fillers.clear()

    def reply(self, parts: tuple[Part, ...]) -> bytes:
        """Return the bytes that this plugin sends for ``parts``."""
        out = b""
        for part in parts:
            if isinstance(part, bytes):
                out += part
            elif isinstance(part, AskInfo):
                out += self._answer(part.stream)
            elif isinstance(part, DeviceCall):
                out += self.endpoint_call(part)
            else:
                if self.hang == "notify":
                    return b""
                self.note(part)
        return out

    def endpoint_call(self, call: DeviceCall) -> bytes:
        """Return the bytes that answer a call to the endpoint."""
        return not_implemented(call.stream)

    def _answer(self, stream: int) -> bytes:
        self.asked += 1
        if not self.asked_ns:
            self.asked_ns = time.monotonic_ns()
        if self.hang == "get-info":
            return b""
        if self.failures_left:
            self.failures_left -= 1
            return failure(stream, _UNAVAILABLE, "not ready yet")
        return self.info if stream == 1 else success(stream, self.message)

    def note(self, notified: Notification) -> None:
        """Record the result of the registration."""
        if notified.registered:
            self.notified += 1
            if not self.notified_ns:
                self.notified_ns = time.monotonic_ns()
                self.tally.notified += 1
        else:
            self.refused += 1
            self.error = notified.error

    def report(self) -> PluginReport:
        """Return all facts as values for JSON."""
        return {
            "index": self.index,
            "name": self.name,
            "path": self.path,
            "hang": self.hang,
            "bound_ns": self.bound_ns,
            "listening_ns": self.listening_ns,
            "asked_ns": self.asked_ns,
            "notified_ns": self.notified_ns,
            "removed_ns": self.removed_ns,
            "asked": self.asked,
            "notified": self.notified,
            "refused": self.refused,
            "error": self.error,
        }
