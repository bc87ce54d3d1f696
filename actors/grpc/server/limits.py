"""What one client of the server may cost."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from .budget import DEFAULT_ALLOWANCES, Allowance, FrameKind


@attrs.frozen
class ServerLimits:
    """What one client may cost; sizes in bytes, times in seconds."""

    max_message: int = 4 * 1024 * 1024
    max_header_list: int = 65536
    #: Calls at once on one connection; those over it are refused with REFUSED_STREAM, which clients retry.
    max_streams: int = 100
    #: Connections at once on one listener; those over it are closed at once.
    max_connections: int = 512
    #: Of these, those of one process, if that has a number in our pid namespace; None if there is no such limit.
    max_connections_per_process: int | None = None
    #: From the connection to the client's preface and SETTINGS, in total.
    handshake_timeout: float = 10.0
    #: Without a call in progress and without a PING. gRPC clients reconnect by themselves.
    idle_timeout: float = 3600.0
    #: For a request message to arrive whole.
    receive_timeout: float = 30.0
    #: For the client's windows to take one message.
    send_timeout: float = 60.0
    #: For the client to read what is written to it.
    write_timeout: float = 30.0
    #: For the GOAWAY of a connection that ends.
    farewell: float = 1.0
    #: For calls in progress when the server stops.
    grace: float = 5.0
    allowances: Mapping[FrameKind, Allowance] = attrs.field(factory=lambda: DEFAULT_ALLOWANCES)
