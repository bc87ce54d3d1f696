"""Kinds that answer the first call with a flood."""

from __future__ import annotations

import select
from collections.abc import Callable

import attrs

from plugind.benchmarks.peers.hostile import floods
from plugind.benchmarks.peers.hostile.floods import Answer, Endless, Flood, Windows
from plugind.benchmarks.peers.hostile.server import Connection, HostileServer, Kind
from plugind.benchmarks.plugins.cheap_protocol import PREFACE, AskInfo, BadClient


@attrs.define
class _Progress:
    """How much of a flood a connection has sent."""

    flood: Flood
    windows: Windows = attrs.Factory(Windows)
    #: Bytes of ``begin``, of ``frames`` and of ``end`` that were sent.
    begun: int = 0
    sent: int = 0
    ended: int = 0
    #: Bytes of ``frames`` whose DATA was taken from the windows.
    spent: int = 0


class Flooder(Kind):
    """Answers the first call with a flood."""

    interest = select.EPOLLIN | select.EPOLLRDHUP

    def __init__(self, about: str, flood: Callable[[], Flood]) -> None:
        self._about = about
        self._flood = flood

    @property
    def about(self) -> str:
        """Say what the flood is."""
        return self._about

    def received(self, server: HostileServer, connection: Connection, data: bytes) -> None:
        """Follow the client's frames until GetInfo is called; from then on only its windows."""
        if isinstance(connection.state, _Progress):
            connection.state.windows.read(data)
            server.want_room(connection, wanted=True)
            return
        history = connection.state if isinstance(connection.state, bytes) else b""
        try:
            transition = connection.node.transitions.get(data) or server.automaton.learn(connection.node, data)
        except BadClient:
            server.close(connection)
            return
        connection.node, connection.state = transition.node, history + data
        if any(isinstance(part, AskInfo) and part.stream == floods.FIRST_STREAM for part in transition.parts):
            progress = connection.state = _Progress(self._flood())
            progress.windows.read((history + data)[len(PREFACE) :])
            server.want_room(connection, wanted=True)

    def writable(self, server: HostileServer, connection: Connection) -> None:
        """Send the next part of the flood."""
        progress = connection.state
        assert isinstance(progress, _Progress)
        flood = progress.flood
        if progress.begun < len(flood.begin):
            progress.begun += server.send(connection, flood.begin[progress.begun :])
        elif isinstance(flood, Endless):
            progress.sent = (progress.sent + server.send(connection, flood.frames[progress.sent :])) % len(flood.frames)
        elif progress.sent < len(flood.frames):
            self._send_data(server, connection, progress, flood)
        elif progress.ended < len(flood.end):
            progress.ended += server.send(connection, flood.end[progress.ended :])
        else:
            server.want_room(connection, wanted=False)

    def _send_data(self, server: HostileServer, connection: Connection, progress: _Progress, answer: Answer) -> None:
        if progress.sent == progress.spent:
            allowed = min(progress.spent + answer.allowed(progress.windows.room), len(answer.frames))
            progress.windows.spend(answer.data_in(progress.spent, allowed))
            progress.spent = allowed
        if progress.sent == progress.spent:
            server.want_room(connection, wanted=False)
        else:
            progress.sent += server.send(connection, answer.frames[progress.sent : progress.spent])
