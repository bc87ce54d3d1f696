"""The TCP port on which a node serves its metrics, for as long as the node runs."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import attrs

from ...protocol.errors import ConfigError, SocketBusyError
from ...protocol.logs.lines import SILENT, Level, Logger
from ...protocol.status.metrics_config import HostRule, TcpAddress
from ...protocol.values import record
from ..http.limits import HttpLimits
from ..io.descriptors import DescriptorReserve
from ..io.tcp_socket import TcpListener, listen

if TYPE_CHECKING:
    from .page.documents import CountsPage

#: Everybody on this machine or its network can connect, so the limits are tighter than on the status socket. A request
#: has no body.
LIMITS = HttpLimits(
    unread=64, connections=16, health=16, header_bytes=8 * 1024, body_bytes=0, request=5.0, response=15.0
)
#: How many descriptors are reserved for its clients when the process has none left (fault 46).
RESERVED = 4
#: Errors that can pass: another process has the port, or the machine does not have the address yet.
_PASSING = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)
_ELSEWHERE = "give another address with --metrics"
_HIDDEN = (
    "if plugind is a service that may not open ports (RestrictAddressFamilies=), let it with the drop-in of"
    " 'plugind install-unit --metrics', or "
)


@record
class MetricsPort:
    """The port. It is bound before any actor starts, and a crash of the status actor does not close it."""

    wanted: TcpAddress
    names: frozenset[str] = frozenset()
    log: Logger = SILENT
    limits: HttpLimits = LIMITS
    #: Its own descriptors: its clients must not use up those of the status socket.
    reserve: DescriptorReserve = attrs.field(init=False, factory=lambda: DescriptorReserve(RESERVED))
    _listener: TcpListener | None = attrs.field(init=False, default=None)
    _page: CountsPage | None = attrs.field(init=False, default=None)

    @property
    def hosts(self) -> HostRule:
        """The hosts in whose name clients can ask."""
        return HostRule(self.wanted.is_loopback, self.names)

    @property
    def listener(self) -> TcpListener:
        """The listener. The port must be open."""
        assert self._listener is not None, "the port is opened first"
        return self._listener

    @property
    def page(self) -> CountsPage:
        """The page of the port. The port must be open."""
        assert self._page is not None, "the port is opened first"
        return self._page

    def open(self) -> None:
        """Listen.

        Raises:
          ConfigError: if that is not possible; a SocketBusyError if the problem can pass.
        """
        # Imported late, since few daemons have a port. The page's files are read now, since an upgrade can replace
        # them.
        from .page.documents import counts_page

        self._page = counts_page()
        try:
            self._listener = listen(self.wanted)
        except OSError as error:
            hint = _HIDDEN if error.errno == errno.EAFNOSUPPORT else ""
            text = f"cannot serve metrics at {self.wanted}: {error.strerror or error}; {hint}{_ELSEWHERE}"
            raise (SocketBusyError if error.errno in _PASSING else ConfigError)(text) from error
        self.reserve.refill()
        self.log.event(Level.INFO, "metrics are served", address=str(self._listener.address))

    def close(self) -> None:
        """Stop listening. Can be repeated."""
        if self._listener is not None:
            self._listener.close()
        self.reserve.close()
