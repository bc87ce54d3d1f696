"""Where a node serves its metrics by HTTP over TCP, and by which names clients may ask there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import attrs

from ..errors import ConfigError
from ..values import value

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

_ADDRESS: Final = re.compile(r"(?:(?P<host>\[[^][]*\]|[^][:]*):)?(?P<port>[0-9]{1,5})")
_NAME: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
#: The header ``Host``: a name or an address, and perhaps a port.
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^][:@/?#\s]+)(?::[0-9]{0,5})?")
_MOST_PORTS: Final = 65535
#: More characters than a name or an address has.
_MOST: Final = 255
_LOCALHOST: Final = "localhost"
_SHOWN: Final = 64
_HOW = "give HOST:PORT, where HOST is an IP address or localhost, or a port alone for 127.0.0.1"


@value
class TcpAddress:
    """An IP address and a port. Port 0 stands for one that the kernel chooses."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        found = _ip_address(self.host)
        return found is not None and found.is_loopback

    def __str__(self) -> str:
        """Return it as it stands in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _lower(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.lower() for name in names)


@attrs.frozen
class MetricsConfig:
    """Where a node serves its metrics by HTTP over TCP, besides its status socket, and who may ask.

    Everybody who can connect may read them: by default there is no such port, and a port alone is one of 127.0.0.1. A
    web page whose name leads to this address, too, reads nothing, since each request has to name a host that is known
    here: ``localhost`` or an IP address, on a loopback address one of these, or one of ``hosts``.

    Raises:
      ConfigError: if the address is none, or a name cannot be that of a host.
    """

    #: ``HOST:PORT``, where HOST is an IP address, one of version 6 in brackets, or ``localhost``; or a port alone. With
    #: port 0 the system chooses one, and the log says which. None: there is no port.
    address: str | None = attrs.field(default=None)
    #: By which other names of this machine clients may ask, without a port.
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
    """Return the address that ``HOST:PORT`` or ``PORT`` means.

    Raises:
      ConfigError: if it is none.
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
    """Return the IP address that a text is; one of version 4 that is written as one of version 6 is the former."""
    # Few daemons have a port, and all import this module.
    from ipaddress import IPv6Address, ip_address

    try:
        found = ip_address(text)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found


@value
class HostRule:
    """By which hosts clients may ask (DNS rebinding): a name that others can lead here is not among them."""

    #: Whether only loopback addresses count, and no other IP address.
    loopback: bool
    names: frozenset[str]

    def admits(self, host: str | None) -> bool:
        """Whether a request for this ``host``, as its header names it, is answered."""
        found = None if host is None or len(host) > _MOST else _HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1].lower()
        if name == _LOCALHOST or name in self.names:
            return True
        address = _ip_address(name.strip("[]"))
        return address is not None and (address.is_loopback or not self.loopback)
