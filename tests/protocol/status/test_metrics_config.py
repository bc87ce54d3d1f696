"""The address for metrics, and the hosts by which clients may ask there."""

from __future__ import annotations

import pytest

from plugind.protocol.errors import ConfigError
from plugind.protocol.status.metrics_config import HostRule, MetricsConfig, TcpAddress, tcp_address


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback", "shown"),
    [
        ("9464", "127.0.0.1", 9464, True, "127.0.0.1:9464"),
        ("0", "127.0.0.1", 0, True, "127.0.0.1:0"),
        ("localhost:9464", "127.0.0.1", 9464, True, "127.0.0.1:9464"),
        ("127.0.0.2:9464", "127.0.0.2", 9464, True, "127.0.0.2:9464"),
        ("[::1]:9464", "::1", 9464, True, "[::1]:9464"),
        ("[::ffff:127.0.0.1]:1", "::ffff:127.0.0.1", 1, True, "[::ffff:127.0.0.1]:1"),
        ("0.0.0.0:65535", "0.0.0.0", 65535, False, "0.0.0.0:65535"),
        ("[::]:1", "::", 1, False, "[::]:1"),
        ("192.0.2.7:9464", "192.0.2.7", 9464, False, "192.0.2.7:9464"),
    ],
)
def test_an_address_is_a_port_of_an_ip_address(text: str, host: str, port: int, loopback: bool, shown: str) -> None:
    found = tcp_address(text)
    assert found == TcpAddress(host, port)
    assert (found.is_loopback, str(found)) == (loopback, shown)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'': give HOST:PORT, where HOST is an IP address or localhost, or a port alone for 127.0.0.1 (--metrics)"),
        (":9464", "whose host is no IP address: write 0.0.0.0 for all addresses of version 4, or [::] for all"),
        ("node1:9464", "whose host is no IP address: give HOST:PORT"),
        ("127.0.0.1", "give HOST:PORT"),
        ("127.0.0.1:", "give HOST:PORT"),
        ("127.0.0.1:65536", "give HOST:PORT"),
        ("127.0.0.1:-1", "give HOST:PORT"),
        ("127.0.0.1:٣", "give HOST:PORT"),
        ("127.0.0.1:http", "give HOST:PORT"),
        ("::1:9464", "give HOST:PORT"),
        ("[127.0.0.1]:9464", "whose host is no IP address: give HOST:PORT"),
        ("[::1]9464", "give HOST:PORT"),
        ("[]:9464", "whose host is no IP address: give HOST:PORT"),
        ("http://127.0.0.1:9464/", "give HOST:PORT"),
        ("127.1:9464", "whose host is no IP address"),
        ("9464\n", "give HOST:PORT"),
        ("x" * 1000, f"is '{'x' * 64}': give HOST:PORT"),
    ],
)
def test_an_address_that_is_none_is_refused_with_what_it_has_to_be(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        MetricsConfig(text)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_names_of_hosts_are_compared_in_lower_case_and_cannot_be_anything() -> None:
    assert MetricsConfig("1", ("Node-1.Example", "a_b")).hosts == ("node-1.example", "a_b")
    for name in ("", "a b", "a:1", "-a", "a..b", "a.", "*", "x" * 64, "a." * 128 + "a", "ä", "a\n"):
        with pytest.raises(ConfigError, match=r"no host can have the name .*: see --metrics-host"):
            MetricsConfig("1", (name,))


#: Whom nobody but this machine can be, on whichever address the port is.
_EVERYWHERE = ("localhost", "LOCALHOST:9464", "127.0.0.1", "127.0.0.1:1", "127.255.0.9:9464", "[::1]", "[::1]:9464")
#: Addresses that others can have, too: no name leads there.
_ADDRESSES = ("192.0.2.7", "192.0.2.7:80", "[2001:db8::1]:80", "0.0.0.0:9464", "[::]", "8.8.8.8")
#: What a name server of others may answer for, or a parser may take for something else.
_NEVER = (
    *(None, "", ":9464", "evil.example", "evil.example:9464", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("localhost.", "x.localhost", "127.1", "0x7f.0.0.1", "017700000001", "2130706433", "127.0.0.1.", "::1", "[::1"),
    *("[127.0.0.1]x", "[::1]:9464:1", "localhost:99999999", "localhost:9464/", "localhost@evil.example", "a@localhost"),
    *("localhost, evil.example", "localhost evil.example", " localhost", "localhost\t", "localhost#", "[::1%lo]"),
    *("evil.example#localhost", "http://localhost", "l\u043ecalhost", "\u0661\u0662\u0667.0.0.1", "x" * 300),
)


def test_on_a_loopback_address_only_localhost_and_loopback_addresses_are_asked_for() -> None:
    """A page of others can give its name this address, and would be of the same origin then."""
    rule = HostRule(loopback=True, names=frozenset())
    assert [host for host in _EVERYWHERE if not rule.admits(host)] == []
    assert [host for host in (*_ADDRESSES, *_NEVER) if rule.admits(host)] == []


def test_elsewhere_any_ip_address_is_asked_for_since_no_name_stands_for_it() -> None:
    rule = HostRule(loopback=False, names=frozenset())
    assert [host for host in (*_EVERYWHERE, *_ADDRESSES) if not rule.admits(host)] == []
    assert [host for host in _NEVER if rule.admits(host)] == []


def test_names_that_were_given_are_asked_for_and_no_others_that_contain_them() -> None:
    rule = HostRule(loopback=False, names=frozenset(MetricsConfig("1", ("Node1.example",)).hosts))
    assert [rule.admits(host) for host in ("node1.example", "NODE1.example:9464")] == [True, True]
    others = ("node2.example", "xnode1.example", "node1.example.evil", "node1", "node1.example@evil", "node1_example")
    assert [host for host in others if rule.admits(host)] == []
