"""Requests of a shape that two readers could read differently, against a real server: smuggling, and odd addresses."""

import contextlib
import re

import pytest

from tests.acceptance.http_server import HttpServer

pytestmark = pytest.mark.slow

HOST = b"Host: 127.0.0.1\r\n"
POST = b"POST /hooks/none HTTP/1.1\r\n" + HOST
LAST = b"Connection: close\r\n\r\n"
NEXT = b"GET /healthz HTTP/1.1\r\n" + HOST + LAST

# As Java's own client says it with every request.
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\nUpgrade: h2c\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = HttpServer(tmp_path_factory.mktemp("shapes"), "--no-worker")
    yield made
    made.close()


def statuses(server, data, most=None):
    """Of every answer on one connection, or of the first so many."""
    heard = b""
    with server.connect() as connection, contextlib.suppress(OSError):
        connection.settimeout(5)
        connection.sendall(data)
        while heard.count(b"HTTP/1.1 ") != most and (part := connection.recv(65536)):
            heard += part
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", heard)]


@pytest.mark.parametrize(
    "request_",
    [
        POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + NEXT,
        POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef" + NEXT,
        POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + NEXT,
        POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n" + NEXT,
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + NEXT,
        POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + NEXT,
        POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + NEXT,
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-A: b\r\n c\r\n\r\n" + NEXT,
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-A : b\r\n\r\n" + NEXT,
        b"GET /healthz HTTP/1.1\nHost: a\n\n" + NEXT,
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-A: b\rX-B: c\r\n\r\n" + NEXT,
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-A: b\0c\r\n\r\n" + NEXT,
        POST + UPGRADE + b"Content-Length: 2\r\n\r\n{}" + NEXT,
        POST + UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + NEXT,
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n" + NEXT,
    ],
    ids=[
        "length-and-chunked",
        "two-lengths",
        "gzip-chunked",
        "chunked-gzip",
        "chunked-twice",
        "xchunked",
        "http-1.0",
        "folded",
        "blank-before-colon",
        "bare-newline",
        "bare-return",
        "nul",
        "upgrade",
        "upgrade-chunked",
        "connect",
    ],
)
def test_a_request_whose_end_is_in_doubt_is_refused_and_nothing_behind_it_is_read(server, request_):
    assert statuses(server, request_) == [400]


def test_a_body_that_comes_after_an_upgrade_is_not_taken_for_a_request(server):
    """The parser leaves such a body out. What it held would be carried out, unseen by whoever stands before us."""
    head = POST + UPGRADE + b"Content-Length: %d\r\n\r\n" % len(NEXT)
    with server.connect() as connection:
        connection.settimeout(5)
        connection.sendall(head)
        heard = connection.recv(65536)  # answered, so the head is read, and what comes now comes by itself
        connection.sendall(NEXT)
        with contextlib.suppress(OSError):
            while part := connection.recv(65536):
                heard += part
    assert re.findall(rb"HTTP/1\.1 (\d+) ", heard) == [b"400"]
    assert b"urn:twiceproof:upgrade-not-supported" in heard


def test_an_upgrade_without_a_body_is_answered_as_if_it_had_not_been_asked_for(server):
    """The server waits for what may follow: whether it reads that is another matter, and not waited for here."""
    for length in (b"", b"Content-Length: 0\r\n"):
        asked = b"GET /healthz HTTP/1.1\r\n" + HOST + UPGRADE + length + b"\r\n" + NEXT
        assert statuses(server, asked, most=1)[0] == 200


def test_a_plain_chunked_request_is_read_and_so_is_the_next(server):
    assert statuses(server, POST + b"Transfer-Encoding: Chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + NEXT) == [401, 200]


@pytest.mark.parametrize("name", ["Host", "Authorization", "Content-Type", "Content-Encoding", "Origin"])
def test_a_header_that_may_come_once_is_refused_twice(server, name):
    twice = b"".join(f"{name}: {value}\r\n".encode() for value in ("127.0.0.1", "127.0.0.2"))
    host = b"" if name == "Host" else HOST
    assert statuses(server, b"GET /healthz HTTP/1.1\r\n" + host + twice + LAST) == [400]
    assert statuses(
        server, b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-Forwarded-For: a\r\nX-Forwarded-For: b\r\n" + LAST
    ) == [200]


@pytest.mark.parametrize(
    "path",
    [
        "//healthz",
        "/./healthz",
        "/v1/../healthz",
        "/%2fhealthz",
        "/%68ealthz",
        "/healthz/",
        "/healthz%00",
        "/healthz;a=b",
        "/v1/runs/%ff",
        "/v1/runs/%c0%af",
        "/v1/runs/a%0d%0ab",
        "/v1//runs",
        "/v1/runs/..%2f..%2fhealthz",
    ],
)
def test_an_address_has_one_spelling(server, path):
    assert statuses(server, f"GET {path} HTTP/1.1\r\n".encode() + HOST + LAST) == [404]
