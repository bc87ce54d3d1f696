"""How the server's half of a connection is set up in h2, and what of a request is checked before it is a call."""

from __future__ import annotations

from collections.abc import Mapping

import h2.config
import h2.connection
import h2.events
import h2.settings
from hyperframe.frame import Frame, GoAwayFrame

from .limits import ServerLimits
from .stream import Headers

#: What we take in one frame; the default of RFC 9113 section 6.5.2.
FRAME_SIZE = 16384


class _ServerHalf(h2.connection.H2Connection):
    """h2's connection, except that a client's GOAWAY does not end it.

    A client that says it begins to leave, as Node's do in answer to ours, still waits for the calls that it began
    (RFC 9113 section 6.8). h2 would refuse every frame from there on, also of the same read.
    """

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[h2.events.Event]]:
        event = h2.events.ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        return [], [event]


def server_half(limits: ServerLimits) -> h2.connection.H2Connection:
    """h2's state of one connection, with our SETTINGS and windows queued to be sent."""
    connection = _ServerHalf(
        h2.config.H2Configuration(client_side=False, header_encoding=None, validate_outbound_headers=False)
    )
    codes = h2.settings.SettingCodes
    # h2 ends a connection that opens more streams than were ever offered. A client may open some before it has read
    # our SETTINGS, so h2 is given room above the limit that is told last, and we refuse those above it one by one.
    connection.local_settings = h2.settings.Settings(
        client=False,
        initial_values={
            codes.MAX_CONCURRENT_STREAMS: 2 * limits.max_streams + 1000,
            codes.MAX_HEADER_LIST_SIZE: limits.max_header_list,
        },
    )
    connection.decoder.max_header_list_size = limits.max_header_list
    connection.initiate_connection()
    connection.update_settings({codes.MAX_CONCURRENT_STREAMS: limits.max_streams})
    # So that one stream nobody reads does not starve the others of its connection.
    connection.increment_flow_control_window(1 << 20)
    return connection


def header_text(value: bytes | str) -> str:
    """A header as text, one character a byte: never fails, and what is no ASCII is refused where it matters."""
    return value.decode("latin-1") if isinstance(value, bytes) else value


def refusal_of(headers: Mapping[str, str]) -> Headers | None:
    """The HTTP answer to what is no gRPC request; None for one that is."""
    if headers.get(":method") != "POST":
        return [(":status", "405")]
    content_type = headers.get("content-type", "")
    if content_type.partition(";")[0].strip() not in ("application/grpc", "application/grpc+proto"):
        return [(":status", "415")]
    return None
