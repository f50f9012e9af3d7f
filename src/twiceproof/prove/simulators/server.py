"""The HTTP server under the simulators: on loopback, one request at a time, with faults on demand."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
from msgspec import Struct, structs

__all__ = ["SimulatedAnswer", "SimulatedRequest", "Simulator"]


class SimulatedRequest(Struct, frozen=True):
    """`path` is decoded; headers are by their names in lower case; `json` is the body."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    json: Any = None


class SimulatedAnswer(Struct, frozen=True):
    status: int
    body: Any = None
    headers: Mapping[str, str] = {}


class Simulator:
    """`with DataverseSimulator(…) as simulator:` serves on `simulator.url`; or `start` it, and `close` it.

    Requests are carried out one after the other, which makes each of them atomic. `requests` lists those that came.
    `now` is the service's clock. `deaf_to` are headers that it ignores, by their names in lower case.
    """

    def __init__(self) -> None:
        self.now: Callable[[], float] = time.time
        self.requests: list[SimulatedRequest] = []
        self.deaf_to: frozenset[str] = frozenset()
        self.client_secret = ""  # with one, requests need a token, which is given for it at /TENANT/oauth2/v2.0/token
        self.before: Callable[[SimulatedRequest], None] | None = None  # for changes by other clients
        self._faults: list[tuple[str, str, SimulatedAnswer | None]] = []
        self._mutex = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    def handle(self, request: SimulatedRequest) -> SimulatedAnswer:
        raise NotImplementedError

    # -- faults ----------------------------------------------------------------------------------

    def lose_answer(self, method: str, ending: str = "") -> None:
        """Carry out the next request with this method and end of the path, and close the connection instead of
        answering.
        """
        self._faults.append((method, ending, None))

    def refuse(self, method: str, answer: SimulatedAnswer, ending: str = "") -> None:
        """Answer the next request with this method and end of the path, without carrying it out."""
        self._faults.append((method, ending, answer))

    # -- serving ---------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        if self._server is None:
            raise RuntimeError("the simulator is not running; use it in a with statement")
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> Self:
        simulator = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                simulator._serve(self)

            do_POST = do_PATCH = do_PUT = do_DELETE = do_GET  # noqa: N815

            def date_time_string(self, timestamp: float | None = None) -> str:
                return formatdate(simulator.now() if timestamp is None else timestamp, usegmt=True)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start() if self._server is None else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        request = self._heard(_read(handler))
        if self.before is not None:
            self.before(request)
        with self._mutex:
            self.requests.append(request)
            lost, answer = self._faulty(request)
            answer = answer or self._signed_in(request) or self.handle(request)
        if lost:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
        else:
            _write(handler, answer)

    def _heard(self, request: SimulatedRequest) -> SimulatedRequest:
        if not self.deaf_to:
            return request
        kept = {name: value for name, value in request.headers.items() if name not in self.deaf_to}
        return structs.replace(request, headers=kept)

    def _signed_in(self, request: SimulatedRequest) -> SimulatedAnswer | None:
        """Answer for the sign-in of Microsoft Entra ID; None: the request may be carried out."""
        if not self.client_secret:
            return None
        if request.path.endswith("/oauth2/v2.0/token"):
            return _token(request.json, self.client_secret)
        if request.headers.get("authorization") == f"Bearer {TOKEN}":
            return None
        return SimulatedAnswer(
            401, {"error": {"code": "InvalidAuthenticationToken", "message": "Access token is empty."}}
        )

    def _faulty(self, request: SimulatedRequest) -> tuple[bool, SimulatedAnswer | None]:
        for fault in self._faults:
            method, ending, answer = fault
            if method == request.method and request.path.endswith(ending):
                self._faults.remove(fault)
                return answer is None, answer
        return False, None


TOKEN = "token-of-the-simulator"  # noqa: S105 - of a simulator


def _token(form: Mapping[str, str], secret: str) -> SimulatedAnswer:
    if form.get("grant_type") != "client_credentials" or form.get("client_secret") != secret:
        return SimulatedAnswer(401, {"error": "invalid_client", "error_description": "AADSTS7000215: Invalid secret."})
    return SimulatedAnswer(200, {"token_type": "Bearer", "expires_in": 3599, "access_token": TOKEN})


def _read(handler: BaseHTTPRequestHandler) -> SimulatedRequest:
    parts = urlsplit(handler.path)
    body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    headers = {name.lower(): value for name, value in handler.headers.items()}
    path = re.sub(r"/+", "/", unquote(parts.path))
    return SimulatedRequest(handler.command, path, query, headers, _decoded(body, headers.get("content-type", "")))


def _decoded(body: bytes, kind: str) -> Any:
    if kind.startswith("application/x-www-form-urlencoded"):
        return {name: values[-1] for name, values in parse_qs(body.decode()).items()}
    return msgspec.json.decode(body) if body else None


def _write(handler: BaseHTTPRequestHandler, answer: SimulatedAnswer) -> None:
    body = b"" if answer.body is None else msgspec.json.encode(answer.body)
    handler.send_response(answer.status)
    for name, value in answer.headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
