"""One HTTP request: sent at most once, with limits for the time and the size of the answer, or refused before it is
sent.

No retries, no redirects, no cookies, and no proxy from the environment: a second request that a client sends by itself
would make "nothing was done" untrue. Connections are pooled per process.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from ..errors import Misuse, NotDone, OutcomeUnknown
from ..threads import at_fork
from .url_guard import Allowed, check_addresses, read_target, refuse_address
from .webhook_client import resolve, within

__all__ = ["HttpAnswer", "HttpClient", "HttpRequest", "TooLarge", "guarded_client", "prepare_requests", "shared_client"]


MOST_CONNECTIONS = 100
KEEP_ALIVE = 5.0  # seconds; short, since a request on a connection that the server is closing has an unknown outcome
MOST_ANSWER = 10 * 1024 * 1024  # bytes, decompressed
NEVER_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "LocalProtocolError")


class HttpRequest(Struct, frozen=True):
    """What is sent. `timeout` covers everything from the name's resolution to the last byte of the answer."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""
    timeout: float = 30.0

    def __repr__(self) -> str:
        return f"HttpRequest({self.shown})"  # headers hold secrets

    @property
    def shown(self) -> str:
        """Method, host and path: a query may hold secrets."""
        return f"{self.method} {self.url.partition('://')[2].partition('?')[0]}"


class HttpAnswer(Struct, frozen=True):
    """A status, headers by their names in lower case, and the body."""

    status: int
    headers: dict[str, str] = {}
    body: bytes = b""


class TooLarge(OutcomeUnknown):
    """The answer is larger than is read. Carries `status`. Next: ask for less, or keep the status only."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, repeats=True)
        self.data["status"] = status


_deadline = threading.local()


def _left(limit: float | None) -> float:
    """Return the seconds that the current request of this thread may still take."""
    left: float = getattr(_deadline, "at", time.monotonic() + (limit or 0.0)) - time.monotonic()
    if left <= 0:
        raise TimeoutError("its time is over")
    return left


class HttpClient:
    """Sends requests over pooled connections. With `allowed`, only to public addresses and to what it permits."""

    def __init__(self, *, allowed: Allowed | None = None, most: int = MOST_ANSWER) -> None:
        self._allowed = allowed
        self._most = most
        self._mutex = threading.Lock()
        self._pool: Any = None
        self._abandoned: list[Any] = []
        at_fork(self, in_child=HttpClient._abandon)

    def _abandon(self) -> None:
        """In a forked child: the connections belong to the parent, and closing one here would end it there, too."""
        if self._pool is not None:
            self._abandoned.append(self._pool)
        self._mutex, self._pool = threading.Lock(), None

    def close(self) -> None:
        """Close idle connections. The next request makes new ones."""
        with self._mutex:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def send(self, request: HttpRequest) -> HttpAnswer:
        """Send it once. Raises NotDone if nothing was sent, OutcomeUnknown if no whole answer came."""
        if self._allowed is not None:
            host = (urlsplit(request.url).hostname or "").lower()
            read_target(request.url, self._allowed, http=_is_permitted(host, self._allowed))
        pool = self._open()
        _deadline.at = time.monotonic() + request.timeout
        try:
            return self._exchange(pool, request)
        except (NotDone, OutcomeUnknown, Misuse):
            raise
        except Exception as error:
            raise _failure(error, request) from error
        finally:
            del _deadline.at

    def _open(self) -> Any:
        with self._mutex:
            if self._pool is None:
                core = _httpcore()
                self._pool = core.ConnectionPool(
                    ssl_context=_certificates(),
                    max_connections=MOST_CONNECTIONS,
                    keepalive_expiry=KEEP_ALIVE,
                    retries=0,
                    network_backend=_backend_class()(self._allowed),
                )
            return self._pool

    def _exchange(self, pool: Any, request: HttpRequest) -> HttpAnswer:
        limits = dict.fromkeys(("connect", "read", "write", "pool"), request.timeout)
        headers = [(name.encode("ascii"), value.encode("latin-1")) for name, value in _all_headers(request)]
        extensions = {"timeout": limits}
        with pool.stream(
            request.method, _address(request.url), headers=headers, content=request.body, extensions=extensions
        ) as response:
            found = {name.decode("ascii").lower(): value.decode("latin-1") for name, value in response.headers}
            return HttpAnswer(response.status, found, self._read(response, found, request))

    def _read(self, response: Any, headers: dict[str, str], request: HttpRequest) -> bytes:
        pieces, size = [], 0
        for piece in _decoded(response.iter_stream(), headers.get("content-encoding", ""), self._most):
            size += len(piece)
            if size > self._most:
                raise TooLarge(
                    f"{request.shown} was answered with {response.status} and more than {self._most} bytes, which are "
                    'not read; ask for less, or write keep="status".',
                    response.status,
                )
            pieces.append(piece)
        return b"".join(pieces)


def _all_headers(request: HttpRequest) -> Iterable[tuple[str, str]]:
    given = {name.lower() for name in request.headers}
    authority = request.url.partition("://")[2].partition("/")[0].partition("?")[0]
    if "host" not in given:
        yield "Host", authority
    if "accept-encoding" not in given:
        yield "Accept-Encoding", "gzip"
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        yield "Content-Length", str(len(request.body))
    yield from ((name, value) for name, value in request.headers.items() if name.lower() != "content-length")


def _decoded(pieces: Iterable[bytes], encoding: str, most: int) -> Iterable[bytes]:
    """Decompress in bounded pieces: a few kilobytes may stand for gigabytes."""
    if encoding.strip().lower() not in ("gzip", "x-gzip", "deflate"):
        yield from pieces
        return
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, by its header
    for piece in pieces:
        left = piece
        while left:
            yield inflate.decompress(left, most + 1)
            left = inflate.unconsumed_tail


def _failure(error: Exception, request: HttpRequest) -> NotDone | OutcomeUnknown:
    """Return the error for a failure of the transport: unknown, if a byte of the request may have arrived."""
    kind = type(error).__name__
    told = f"{kind}: {error}" if str(error) else kind
    if kind in NEVER_SENT:
        return NotDone(f"{request.shown} was not sent ({told}); it can be tried again.")
    return OutcomeUnknown(f"{request.shown} got no answer ({told}); whether it was carried out is unknown.")


def _is_permitted(host: str, allowed: Allowed) -> bool:
    """Whether the user named this host or address: plain http is for the user's own network."""
    is_private = bool(refuse_address(host))
    return host in allowed.hosts or (is_private and not refuse_address(host, host, allowed))


def _address(url: str) -> Any:
    """Return an address as it is written. Of a text, httpcore leaves out what follows a `;` in the last part of the
    path, and the request would go somewhere else."""
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _httpcore().URL(scheme=parts.scheme, host=parts.hostname or "", port=parts.port, target=target)


def _httpcore() -> Any:
    try:
        import httpcore2
    except ImportError:
        raise Misuse('HTTP effects need an HTTP client; install it with: pip install "twiceproof[http]"') from None
    return httpcore2


@lru_cache(1)
def _certificates() -> Any:
    """Return the context of all TLS connections. Reading the system's certificates takes longer than most requests."""
    return _httpcore().default_ssl_context()


def prepare_requests() -> None:
    """Load the client and the certificates, for processes that are forked later."""
    _backend_class()
    _certificates()


@lru_cache(1)
def _backend_class() -> Any:
    """Return the class of a network whose every wait is limited to the request's remaining time; created late, with its
    base class.
    """
    core = _httpcore()

    class TimedStream(core.NetworkStream):  # type: ignore[misc, name-defined]
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
            return self._inner.read(max_bytes, _timely(core.ReadTimeout, timeout))  # type: ignore[no-any-return]

        def write(self, buffer: bytes, timeout: float | None = None) -> None:
            self._inner.write(buffer, _timely(core.WriteTimeout, timeout))

        def close(self) -> None:
            self._inner.close()

        def start_tls(self, ssl_context: Any, server_hostname: Any = None, timeout: float | None = None) -> Any:
            left = _timely(core.ConnectTimeout, timeout)
            return TimedStream(self._inner.start_tls(ssl_context, server_hostname, left))

        def get_extra_info(self, info: str) -> Any:
            return self._inner.get_extra_info(info)

    class TimedBackend(core.NetworkBackend):  # type: ignore[misc, name-defined]
        def __init__(self, allowed: Allowed | None) -> None:
            self._inner = core.SyncBackend()
            self._allowed = allowed

        def connect_tcp(self, host: str, port: int, timeout: float | None = None, **given: Any) -> Any:
            left = _timely(core.ConnectTimeout, timeout)
            address = host if self._allowed is None else _checked_address(host, port, self._allowed, left)
            return TimedStream(self._inner.connect_tcp(address, port, _timely(core.ConnectTimeout, timeout), **given))

    return TimedBackend


def _timely(kind: Callable[[str], Exception], limit: float | None) -> float:
    try:
        return _left(limit)
    except TimeoutError as over:
        raise kind(str(over)) from None


def _checked_address(host: str, port: int, allowed: Allowed, left: float) -> str:
    """Resolve a name once and check every address of the answer; the connection goes to the checked one."""
    try:
        addresses = within(left, lambda: resolve(host, port))
    except OSError as error:
        raise NotDone(f"{host} could not be resolved ({error}); nothing was sent.") from error
    if not addresses:
        raise NotDone(f"{host} has no address; nothing was sent.")
    check_addresses(host, addresses, allowed)
    return addresses[0]


@lru_cache(1)
def shared_client() -> HttpClient:
    """Return this process's client, for URLs that the program itself names."""
    import atexit

    client = HttpClient()
    atexit.register(client.close)
    return client


@lru_cache(32)
def guarded_client(allow: tuple[str, ...]) -> HttpClient:
    """Return a client for URLs that come from data: only public addresses, and those that `allow` names."""
    return HttpClient(allowed=Allowed(allow))
