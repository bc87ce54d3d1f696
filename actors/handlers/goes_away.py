"""Connections on which a server takes no more calls, and which it may never close.

A server on grpc-go says so at the greatest age that it gives a connection (``MaxConnectionAge``), and when it stops in
order. The calls under way go on, so that a stream may keep the connection open for ever.
"""

from __future__ import annotations

from ..grpc.client.channel import Channel


class GoesAwayError(Exception):
    """The server takes no more calls on this connection: another one is to be made."""


def check_takes_calls(channel: Channel) -> None:
    """See that a plugin can be asked on a channel; one that has failed fails the call.

    Raises:
      GoesAwayError: if the server has said that it goes away.
    """
    if not channel.takes_calls and channel.connection.failure is None:
        raise GoesAwayError
