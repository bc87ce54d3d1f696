"""Connections on which a server takes no more calls, and which it may never close.

A server on grpc-go sends GOAWAY when a connection reaches its ``MaxConnectionAge``, and at an orderly stop. The calls
under way go on, so a stream can keep the connection open forever.
"""

from __future__ import annotations

from ..grpc.client.channel import Channel


class GoesAwayError(Exception):
    """The server takes no more calls on this connection, so the client must make another one."""


def check_takes_calls(channel: Channel) -> None:
    """Check that new calls can be made on a channel. On a channel that has failed, the call fails itself.

    Raises:
      GoesAwayError: if the server has sent GOAWAY.
    """
    if not channel.takes_calls and channel.connection.failure is None:
        raise GoesAwayError
