"""The address on which a node serves its metrics over TCP, and the host names that clients can use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import attrs

from ..checks import refusing_text
from ..errors import ConfigError
from ..values import value

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

_ADDRESS: Final = re.compile(r"(?:(?P<host>\[[^][]*\]|[^][:]*):)?(?P<port>[0-9]{1,5})")
_NAME: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
#: The header ``Host``: a name or an address, with an optional port.
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^][:@/?#\s]+)(?::[0-9]{0,5})?")
_MOST_PORTS: Final = 65535
#: A bound for the length of a name or an address.
_MOST: Final = 255
_LOCALHOST: Final = "localhost"
_SHOWN: Final = 64
_HOW = "give HOST:PORT, where HOST is an IP address or localhost, or a port alone for 127.0.0.1"


@value
class TcpAddress:
    """An IP address and a port. With port 0 the kernel chooses the port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        found = _ip_address(self.host)
        return found is not None and found.is_loopback

    def __str__(self) -> str:
        """Return the form in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _lower(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.lower() for name in names)


@attrs.frozen(field_transformer=refusing_text)
class MetricsConfig:
    """The address on which a node serves its metrics over TCP, besides its status socket, and the names of its hosts.

    Everybody who can connect can read the metrics. By default there is no port, and a port alone is one of 127.0.0.1. A
    web page whose name is resolved to this address cannot read them, since each request must name a known host:
    ``localhost``, an IP address (only a loopback one if the port has one), or one of ``hosts``.

    Raises:
      ConfigError: if the address is not valid, or a name cannot be that of a host.
    """

    #: ``HOST:PORT``, where HOST is an IP address, one of version 6 in brackets, or ``localhost``; or a port alone. With
    #: port 0 the system chooses the port, and logs it. None: there is no port.
    address: str | None = attrs.field(default=None)
    #: Other names of this machine that clients can use, without a port.
    hosts: tuple[str, ...] = attrs.field(default=(), converter=_lower)

    @address.validator
    def _check_address(self, _: object, text: str | None) -> None:
        if text is not None:
            tcp_address(text)

    @hosts.validator
    def _check_hosts(self, _: object, names: tuple[str, ...]) -> None:
        for name in names:
            if len(name) > _MOST or _NAME.fullmatch(name) is None:
                raise ConfigError(f"no host can have the name {name[:_SHOWN]!a}: see --metrics-host")


def tcp_address(text: str) -> TcpAddress:
    """Return the address for ``HOST:PORT`` or ``PORT``.

    Raises:
      ConfigError: if the text is not valid.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > _MOST_PORTS:
        raise ConfigError(f"the address for metrics is {text[:_SHOWN]!a}: {_HOW} (--metrics)")
    port = int(found["port"])
    host: str | None = found["host"]
    if host is None or host == _LOCALHOST:
        return TcpAddress("127.0.0.1", port)
    bare = host.strip("[]")
    if _ip_address(bare) is None or (":" in bare) != host.startswith("["):
        advice = _HOW if host else "write 0.0.0.0 for all addresses of version 4, or [::] for all"
        raise ConfigError(f"the address for metrics is {text[:_SHOWN]!a}, whose host is no IP address: {advice}")
    return TcpAddress(bare, port)


def _ip_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address; convert one of version 4 in the form of version 6."""
    # Imported late: few daemons have a port, and all import this module.
    from ipaddress import IPv6Address, ip_address

    try:
        found = ip_address(text)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found


@value
class HostRule:
    """The host names that clients can use. Names that others can direct here are excluded (DNS rebinding)."""

    #: Whether the only IP addresses allowed are loopback addresses.
    loopback: bool
    names: frozenset[str]

    def admits(self, host: str | None) -> bool:
        """Whether a request with this ``Host`` header is answered."""
        found = None if host is None or len(host) > _MOST else _HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1].lower()
        if name == _LOCALHOST or name in self.names:
            return True
        address = _ip_address(name.strip("[]"))
        return address is not None and (address.is_loopback or not self.loopback)
