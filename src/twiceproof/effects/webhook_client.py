"""An HTTP client for URLs that users supply, protected against SSRF, and Standard Webhooks signatures.

The name is resolved once, every address of the answer is checked, and the connection is made to the checked address,
with the name in TLS and in Host. No redirects, no proxies from the environment, no cookies; the answer's body is
counted and discarded.
"""

from __future__ import annotations

import binascii
import hmac
import http.client
import io
import socket
import ssl
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ..errors import Misuse, NotDone
from ..threads import call_within
from .url_guard import Allowed, GuardedUrl, check_addresses, read_target

__all__ = ["WebhookClient", "WebhookResponse", "resolve", "signed_headers", "within"]


MOST_ANSWER = 64 * 1024
PIECE = 8 * 1024

Resolve = Callable[[str, int], Sequence[str]]


class WebhookResponse(Struct, frozen=True):
    """A response. `ok` means 2xx; a redirect is not followed, and not ok."""

    status: int
    retry_after: str = ""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


def resolve(host: str, port: int) -> Sequence[str]:
    """Return every address of a name, in the resolver's order."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class WebhookClient:
    """Sends requests. `allow` permits networks and hosts, `ports` restricts ports, `http` permits plain http."""

    def __init__(
        self,
        *,
        allow: Collection[str] = (),
        ports: Collection[int] | None = None,
        http: bool = False,
        timeout: float = 10.0,
        resolve: Resolve = resolve,
        context: ssl.SSLContext | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowed = Allowed(allow)
        self._ports = ports
        self._http = http
        self._timeout = timeout
        self._resolve = resolve
        self._context = context
        self._monotonic = monotonic

    def check(self, url: str) -> GuardedUrl:
        """Check a URL before it is stored. It is checked again, with its resolved addresses, for each request."""
        target = read_target(url, self._allowed, http=self._http, ports=self._ports)
        if target.is_literal:
            check_addresses(target.host, [target.host], self._allowed)
        return target

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> WebhookResponse:
        """Raise NotAllowed for a forbidden URL, NotDone if nothing was sent, OSError if the outcome is unknown."""
        target = self.check(url)
        deadline = self._monotonic() + self._timeout
        address = self._address(target, deadline)
        connection = self._connect(target, address, deadline)
        try:
            return self._exchange(connection, target, body, headers, deadline)
        finally:
            connection.close()

    def _address(self, target: GuardedUrl, deadline: float) -> str:
        if target.is_literal:
            return target.host
        try:
            addresses = within(self._left(deadline), lambda: self._resolve(target.host, target.port))
        except OSError as error:
            raise NotDone(f"{target.host} could not be resolved ({error}); nothing was sent.") from error
        if not addresses:
            raise NotDone(f"{target.host} has no address; nothing was sent.")
        check_addresses(target.host, addresses, self._allowed)
        return addresses[0]

    def _connect(self, target: GuardedUrl, address: str, deadline: float) -> http.client.HTTPConnection:
        try:
            sock = socket.create_connection((address, target.port), timeout=self._left(deadline))
        except OSError as error:
            raise NotDone(f"{target.host} could not be reached ({error}); nothing was sent.") from error
        connection = http.client.HTTPConnection(target.host, target.port)
        try:
            connection.sock = self._secured(sock, target, deadline)
        except OSError as error:
            sock.close()
            raise NotDone(f"the TLS connection to {target.host} failed ({error}); nothing was sent.") from error
        return connection

    def _secured(self, sock: socket.socket, target: GuardedUrl, deadline: float) -> socket.socket:
        if target.scheme == "http":
            return sock
        sock.settimeout(self._left(deadline))
        context = self._context or ssl.create_default_context()
        return context.wrap_socket(sock, server_hostname=target.host)

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        target: GuardedUrl,
        body: bytes,
        headers: Mapping[str, str],
        deadline: float,
    ) -> WebhookResponse:
        try:
            connection.sock.settimeout(self._left(deadline))
            _request(connection, target, body, headers)
            return self._answer(connection, deadline)
        except http.client.HTTPException as error:
            raise ConnectionError(f"{target.host} sent an invalid response ({type(error).__name__})") from error

    def _answer(self, connection: http.client.HTTPConnection, deadline: float) -> WebhookResponse:
        """Read the status and the beginning of the body, so that the peer can finish; cut off a long or slow one."""
        reader = _Timed(connection.sock, lambda: self._left(deadline))
        response = http.client.HTTPResponse(reader, method="POST")  # type: ignore[arg-type]
        try:
            response.begin()
            status, wait = response.status, response.getheader("retry-after", "")[:100]
            _drain(response)
        finally:
            response.close()
        return WebhookResponse(status, wait)

    def _left(self, deadline: float) -> float:
        left = deadline - self._monotonic()
        if left <= 0:
            raise TimeoutError(f"no response within {self._timeout:g} s")
        return left


def within(seconds: float, work: Callable[[], Sequence[str]]) -> Sequence[str]:
    """Resolve with a time limit: the resolver has none, and the name's owner can delay it."""
    (answer,) = call_within(seconds, [work], "twiceproof-resolve")
    if answer is None or (isinstance(answer, TimeoutError) and not answer.args):
        raise TimeoutError(f"the resolver did not answer within {seconds:.1f} s")
    if isinstance(answer, UnicodeError):  # a name that DNS cannot represent
        raise OSError(str(answer))
    if isinstance(answer, Exception):
        raise answer
    return answer


def _request(
    connection: http.client.HTTPConnection, target: GuardedUrl, body: bytes, headers: Mapping[str, str]
) -> None:
    connection.putrequest("POST", target.path, skip_host=True, skip_accept_encoding=True)
    given = {"host": target.authority, "content-length": str(len(body)), "connection": "close"}
    others = {name: value for name, value in headers.items() if name.lower() not in (*given, "transfer-encoding")}
    for name, value in {**others, **given}.items():  # each once, in any case: two Host headers name two receivers
        connection.putheader(name, value)
    connection.endheaders(body)


def _drain(response: http.client.HTTPResponse) -> None:
    left = MOST_ANSWER
    try:
        while left > 0 and (piece := response.read(min(PIECE, left))):
            left -= len(piece)
    except (OSError, http.client.HTTPException):
        return  # the status is known, and the rest is not needed


class _Timed:
    """A socket substitute for `HTTPResponse`."""

    def __init__(self, sock: socket.socket, left: Callable[[], float]) -> None:
        self._reads = _Reads(sock, left)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._reads, PIECE)


class _Reads(io.RawIOBase):
    """Limits every read to the remaining time, so that a peer sending one byte a second cannot block for ever."""

    def __init__(self, sock: socket.socket, left: Callable[[], float]) -> None:
        self._sock = sock
        self._left = left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._left())
        return self._sock.recv_into(buffer)


PREFIX = "whsec_"
SHORTEST = 24  # bytes, as the specification requires


def signed_headers(message: str, at: float, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """Return the three headers, with one signature per secret, so that secrets can be rotated."""
    stamp = str(int(at))
    content = f"{message}.{stamp}.".encode() + body
    signatures = [b64encode(hmac.digest(_key(secret), content, "sha256")).decode() for secret in secrets]
    return {
        "webhook-id": message,
        "webhook-timestamp": stamp,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def _key(secret: str) -> bytes:
    text = secret.removeprefix(PREFIX)
    try:  # with the padding that may have been left out
        key = b64decode(text if "=" in text else text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < SHORTEST:
        raise Misuse(
            f"A signing secret is {PREFIX} and the base64 of {SHORTEST} random bytes or more; create another one."
        )
    return key
