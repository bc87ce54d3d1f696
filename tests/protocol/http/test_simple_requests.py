"""Requests of the usual form are read as h11 reads them, and all others are left to it."""

from __future__ import annotations

from urllib.parse import urlsplit

import h11
from hypothesis import given
from hypothesis import strategies as st

from plugind.actors.http.server import json_response
from plugind.protocol.http.simple_requests import SimpleRequest, head_of, read

POST = b"POST /v1/leases?a=b HTTP/1.1\r\nHost: plugind\r\nContent-Length: 5\r\n\r\nhello"


def by_h11(data: bytes) -> SimpleRequest | None:
    """Return the request that is all of ``data``; None if it is none, or not whole."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    head, body = None, b""
    try:
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            else:
                return None
    except h11.RemoteProtocolError:
        return None
    if head is None or connection.trailing_data[0]:
        return None
    host = dict(head.headers)[b"host"].decode("latin-1")
    return SimpleRequest(head.method.decode("ascii"), head.target.decode("ascii"), body, host)


def test_requests_of_the_usual_form_are_read() -> None:
    assert read(POST) == SimpleRequest("POST", "/v1/leases?a=b", b"hello", "plugind")
    for method in ("GET", "HEAD", "DELETE"):
        data = b"%s /x HTTP/1.1\r\nhost:\r\nAccept: \t*/* \r\nConnection: keep-alive\r\n\r\n" % method.encode()
        assert read(data) == by_h11(data) == SimpleRequest(method, "/x", b"", "")


#: What h11 refuses, or reads in a way of its own.
_OTHERS = (
    POST[:-1],
    POST + b"!",
    POST.replace(b"Host: plugind\r\n", b""),
    POST.replace(b"Host: plugind\r\n", b"Host: a\r\nHost: a\r\n"),
    POST.replace(b"Length: 5", b"Length: 5\r\nContent-Length: 5"),
    POST.replace(b"Length: 5", b"Length: 5, 5"),
    POST.replace(b"Length: 5", b"Length: +5"),
    POST.replace(b"Length: 5", b"Length: \xb2"),
    POST.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    POST.replace(b"Host", b"Expect: 100-continue\r\nHost"),
    POST.replace(b"Host", b"Upgrade: websocket\r\nHost"),
    POST.replace(b"Host", b"Authorization: Bearer x\r\nHost"),
    POST.replace(b"Host", b" Folded: x\r\nHost"),
    POST.replace(b"Host:", b"Host :"),
    POST.replace(b"plugind", b"plug\x00nd"),
    POST.replace(b"plugind", b"plug\nind"),
    POST.replace(b"HTTP/1.1", b"HTTP/1.0"),
    POST.replace(b"HTTP/1.1", b"HTTP/2.0"),
    POST.replace(b"POST", b"CONNECT"),
    POST.replace(b"POST", b"post"),
    POST.replace(b" /v1", b"  /v1"),
    POST.replace(b"\r\n", b"\n"),
    b"\r\n" + POST,
    b"",
)


def test_other_requests_are_left_to_h11() -> None:
    for data in _OTHERS:
        assert read(data) is None, data


_PIECES = st.sampled_from(
    [
        *(b"GET", b"HEAD", b"POST", b"DELETE", b"PUT", b" ", b"  ", b"/", b"/v1/leases", b"*", b"?a=b", b"\xe9", b"%"),
        *(
            b" HTTP/1.1\r\n",
            b" HTTP/1.0\r\n",
            b"\r\n",
            b"\n",
            b"\r",
            b"\t",
            b"\x00",
            b":",
            b": ",
            b"Host: a\r\n",
            b"Host:\tb:1 \t\r\n",
        ),
        *(b"host:\r\n", b"Content-Length: 2\r\n", b"content-length:2 \r\n", b"Content-Length: 02\r\n", b"ab", b"x"),
        *(b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n", b"X-A: b c\t d\r\n"),
        *(b"Connection: upgrade\r\n", b"Connection: close\r\n", b"Content-Length: 2, 2\r\n", b"2\r\nab\r\n0\r\n\r\n"),
    ]
)


@given(st.lists(_PIECES, max_size=12).map(b"".join))
def test_whatever_is_read_is_what_h11_reads(data: bytes) -> None:
    for whole in (data, b"GET / HTTP/1.1\r\nHost: a\r\n" + data, b"POST /x HTTP/1.1\r\nhost: a\r\n" + data + b"\r\nab"):
        found = read(whole)
        assert found is None or found == by_h11(whole)


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, blacklist_characters="?#"), max_size=20))
def test_a_path_without_a_query_is_not_taken_apart(text: str) -> None:
    """``urlsplit`` would find nothing else in it; two slashes at the beginning are another matter."""
    path = "/" + text.lstrip("/")
    assert urlsplit(path).path == path


def test_an_answer_has_the_head_that_h11_writes() -> None:
    """But for the place of ``Connection``, which h11 takes from the request."""
    for status in (200, 201, 400, 403, 404, 405, 408, 409, 413, 421, 429, 500, 502, 503, 504, 505, 507):
        answer = json_response(status, {}, (("Allow", "GET, POST"),))
        headers = [("Content-Type", answer.content_type), *answer.headers, ("Content-Length", "3")]
        connection = h11.Connection(h11.CLIENT)
        connection.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
        connection.send(h11.EndOfMessage())
        connection.receive_data(head_of(status, headers) + answer.body)
        head = connection.next_event()
        assert isinstance(head, h11.Response)
        expected = [*headers, ("Connection", "close")]
        assert [(name.decode(), text.decode()) for name, text in head.headers.raw_items()] == expected
        assert (head.status_code, head.http_version) == (status, b"1.1")
        body = connection.next_event()
        assert isinstance(body, h11.Data)
        assert bytes(body.data) == answer.body
        assert isinstance(connection.next_event(), h11.EndOfMessage)
