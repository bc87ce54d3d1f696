"""How the server's half of a connection is set up in h2.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Mapping

import h2.config
import h2.connection
import h2.events
import h2.settings
from hyperframe.frame import Frame, GoAwayFrame

from .limits import ServerLimits

#: Bytes of the largest frame that we accept; the default of RFC 9113 section 6.5.2.
FRAME_SIZE = 16384
_CONFIG = h2.config.H2Configuration(client_side=False, header_encoding=None, validate_outbound_headers=False)


class _ServerHalf(h2.connection.H2Connection):
    """h2's connection, except that a client's GOAWAY does not end it.

    A client that sends GOAWAY, as Node's do in answer to ours, still waits for the calls that it began (RFC 9113
    section 6.8). h2 would refuse every frame after it, even those of the same read.
    """

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[h2.events.Event]]:
        event = h2.events.ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        return [], [event]


class _LenientSettings(h2.settings.Settings):
    """Settings that announce one limit of streams and let h2 enforce a higher one.

    h2 ends the whole connection for a stream over the limit. A client may open some before it has read our SETTINGS,
    so :class:`~.calls.Calls` refuses those over the announced limit one by one, and h2 steps in only far
    above it. The value must not be announced high first and lowered later: gRPC's C core starts as many calls as the
    first SETTINGS allows, fails those above the second, and retries them without end.
    """

    def __init__(self, announced: Mapping[h2.settings.SettingCodes, int]) -> None:
        super().__init__(client=False, initial_values=dict(announced))

    @property
    def max_concurrent_streams(self) -> int:
        """What h2 enforces; what is announced is the item of the mapping."""
        return 2 * super().max_concurrent_streams + 1000

    @max_concurrent_streams.setter
    def max_concurrent_streams(self, value: int) -> None:
        self[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = value


def server_half(limits: ServerLimits) -> h2.connection.H2Connection:
    """h2's state of one connection, with our SETTINGS and windows queued to be sent."""
    connection = _ServerHalf(_CONFIG)
    codes = h2.settings.SettingCodes
    connection.local_settings = _LenientSettings(
        {
            codes.MAX_CONCURRENT_STREAMS: limits.max_streams,
            codes.MAX_HEADER_LIST_SIZE: limits.max_header_list,
        }
    )
    connection.decoder.max_header_list_size = limits.max_header_list
    connection.initiate_connection()
    # So that one stream that is not read does not starve the others of its connection.
    connection.increment_flow_control_window(1 << 20)
    return connection
