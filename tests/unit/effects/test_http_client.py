"""The HTTP client of effects: once, in time, bounded, and honest about what may have arrived."""

from __future__ import annotations

import gzip
import os
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.unit.effects.loopback import trap
from twiceproof import Misuse, NotDone, OutcomeUnknown
from twiceproof.claims.error_classification import classify
from twiceproof.effects import http
from twiceproof.effects.http_client import HttpClient, HttpRequest, TooLarge, guarded_client, shared_client
from twiceproof.effects.url_guard import Allowed, NotAllowed

KEY = "tp_0123456789abcdef0123456789abcdef"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture
def client() -> Iterator[HttpClient]:
    made = HttpClient(most=1_000_000)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_connection_is_left() -> Iterator[None]:
    yield
    shared_client().close()


def post(port: int, timeout: float = 5.0, method: str = "POST") -> HttpRequest:
    return HttpRequest(method, f"http://127.0.0.1:{port}/pay", {}, b"{}", timeout)


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_request_that_never_left_is_clean(client: HttpClient) -> None:
    with pytest.raises(NotDone, match="was not sent"):
        client.send(post(unused_port()))


def test_a_connection_that_breaks_after_sending_leaves_a_doubt_and_ends_the_try(client: HttpClient) -> None:
    with trap(b"") as server, pytest.raises(OutcomeUnknown, match="is unknown"):
        client.send(post(server.port))
    assert len(server.requests) == 1


@pytest.mark.parametrize("cut", [*(OK[:at] for at in range(len(OK))), b"SSH-2.0-OpenSSH_9.6\r\n"])
def test_an_answer_that_breaks_off_at_any_byte_leaves_a_doubt(client: HttpClient, cut: bytes) -> None:
    with trap(cut) as server, pytest.raises(OutcomeUnknown):
        client.send(post(server.port))
    assert len(server.requests) == 1


def test_a_redirect_after_a_write_is_not_followed(client: HttpClient) -> None:
    with trap(OK) as target:
        moved = f"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:{target.port}/\r\nContent-Length: 0\r\n\r\n".encode()
        with trap(moved) as server:
            assert client.send(post(server.port)).status == 307
    assert target.requests == []


def dripping(head: bytes, every: float = 0.05) -> Callable[[socket.socket], None]:
    def answer(sock: socket.socket) -> None:
        for byte in head * 1_000:
            sock.sendall(bytes([byte]))
            time.sleep(every)

    return answer


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nX-A: b\r\nX-B: ", b"a"])
def test_one_deadline_is_for_all_of_it_however_slowly_it_drips(client: HttpClient, head: bytes) -> None:
    def answer(sock: socket.socket) -> None:
        if head == b"a":
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        dripping(head)(sock)

    with trap(answer) as server:
        began = time.monotonic()
        with pytest.raises(OutcomeUnknown, match="ReadTimeout"):
            client.send(post(server.port, timeout=0.3))
        assert time.monotonic() - began < 20  # all of it would drip for a minute


def test_an_endless_answer_is_cut_and_its_status_is_known(client: HttpClient) -> None:
    def answer(sock: socket.socket) -> None:
        sock.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 10000000000\r\n\r\n")
        while True:
            sock.sendall(b"x" * 65_536)

    with trap(answer) as server:
        with pytest.raises(TooLarge, match="more than 1000000 bytes") as cut:
            client.send(post(server.port))
        assert (cut.value.data["status"], cut.value.data["repeats"]) == (201, True)


def test_a_cut_answer_is_enough_where_only_the_status_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def large(*_: Any) -> Any:
        raise TooLarge("more than that", 201)

    monkeypatch.setattr(HttpClient, "send", large)
    assert http.post("https://example.com/", keep="status").perform(KEY) == 201
    with pytest.raises(TooLarge):
        http.post("https://example.com/").perform(KEY)
    with pytest.raises(NotDone):
        http.get("https://example.com/").perform(KEY)


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_answer_is_read_and_a_bomb_is_not(client: HttpClient, encoding: str, pack: Any) -> None:
    def of(body: bytes) -> bytes:
        packed = pack(body)
        return b"HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s" % (
            encoding.encode(),
            len(packed),
            packed,
        )

    with trap(of(b"hello")) as server:
        assert client.send(post(server.port)).body == b"hello"
    with trap(of(b"\0" * 100_000_000)) as server, pytest.raises(TooLarge):
        client.send(post(server.port))


def test_what_is_not_compressed_as_it_says_leaves_a_doubt(client: HttpClient) -> None:
    plain = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok"
    with trap(plain) as server, pytest.raises(OutcomeUnknown):
        client.send(post(server.port))


def keeping_alive(sock: socket.socket) -> None:
    while True:
        sock.sendall(OK)
        if not sock.recv(65_536):
            return


def test_connections_are_kept_and_shared_between_threads(client: HttpClient) -> None:
    with trap(keeping_alive) as server:
        for _ in range(3):
            client.send(post(server.port))
        assert len(server.requests) == 1  # one connection
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: client.send(post(server.port)).body, range(64)))
    assert found == [b"ok"] * 64


def test_a_forked_child_uses_connections_of_its_own(client: HttpClient) -> None:
    with trap(keeping_alive) as server:
        client.send(post(server.port))
        child = os.fork()
        if child == 0:
            answered = client.send(post(server.port)).body == b"ok"
            os._exit(0 if answered else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.send(post(server.port)).body == b"ok"
        assert len(server.requests) == 2  # the parent's, which is still in use, and the child's


def test_no_proxy_of_the_environment_is_used(client: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with trap(OK) as proxy, trap(OK) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert client.send(post(server.port)).status == 200
    assert proxy.requests == []


# -- URLs from data ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/",
        "https://169.254.169.254/latest",
        "https://localhost/",
        "http://example.com/",
        "https://10.0.0.1/",
    ],
)
def test_an_untrusted_url_leads_to_no_private_address(url: str) -> None:
    with pytest.raises(NotAllowed):
        http.post(url, untrusted=True).perform(KEY)


def test_a_name_that_resolves_to_a_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twiceproof.effects.http_client.resolve", lambda host, port: ["93.184.216.34", "127.0.0.1"])
    with pytest.raises(NotAllowed, match="this machine"):
        http.post("https://rebinding.example.com/", untrusted=True).perform(KEY)


def test_what_is_allowed_is_called_and_a_literal_url_needs_no_permission() -> None:
    with trap(OK) as server:
        url = f"http://127.0.0.1:{server.port}/"
        assert http.post(url, untrusted=True, allow=("127.0.0.0/8",)).perform(KEY) == "ok"
        assert http.post(url).perform(KEY) == "ok"
        guarded_client(("127.0.0.0/8",)).close()


def test_a_name_that_cannot_be_resolved_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(host: str, port: int) -> list[str]:
        raise socket.gaierror("no such name")

    monkeypatch.setattr("twiceproof.effects.http_client.resolve", fails)
    with pytest.raises(NotDone, match="could not be resolved"):
        HttpClient(allowed=Allowed()).send(HttpRequest("GET", "https://missing.example.com/", {}))


# -- the user's own client -----------------------------------------------------------------------


@pytest.fixture(params=["httpx2.Client", "httpx.Client", "requests.Session"])
def own(request: pytest.FixtureRequest) -> Iterator[Any]:
    module, _, maker = request.param.partition(".")
    made = getattr(pytest.importorskip(module), maker)()
    yield made
    made.close()


def test_a_client_of_the_users_own_sends_the_same(own: Any) -> None:
    answer = (
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\nConnection: close\r\n\r\n{"id":1}'
    )
    with trap(answer) as server:
        effect = http.post(f"http://127.0.0.1:{server.port}/pay", json={"a": 1}, client=own)
        assert effect.perform(KEY) == {"id": 1}
    assert f"twiceproof-effect-key: {KEY}".encode() in server.requests[0].lower()
    assert server.requests[0].endswith(b'{"a":1}')


def test_errors_of_a_users_own_client_are_judged(own: Any) -> None:
    with pytest.raises(Exception) as never, trap(b""):
        http.post(f"http://127.0.0.1:{unused_port()}/", client=own).perform(KEY)
    assert classify(never.value) == "clean"
    with trap(b"") as server, pytest.raises(Exception) as silent:
        http.post(f"http://127.0.0.1:{server.port}/", client=own).perform(KEY)
    assert classify(silent.value) == "ambiguous"
    assert len(server.requests) == 1


def test_a_users_own_client_follows_no_redirect(own: Any) -> None:
    with trap(OK) as target:
        moved = f"HTTP/1.1 302 Moved\r\nLocation: http://127.0.0.1:{target.port}/\r\nContent-Length: 0\r\n\r\n".encode()
        with trap(moved) as server, pytest.raises(OutcomeUnknown):
            http.post(f"http://127.0.0.1:{server.port}/", client=own).perform(KEY)
    assert target.requests == []


def test_an_asynchronous_client_is_refused() -> None:
    module = pytest.importorskip("httpx2")
    with pytest.raises(Misuse, match="must block"):
        http.post("http://127.0.0.1:1/", client=module.AsyncClient()).perform(KEY)


@pytest.mark.parametrize("path", ["/orders;v=2", "/a;x=1/b;y=2?q=;z", "/"])
def test_a_request_goes_to_its_whole_path(client, path):
    """Also what follows a `;`: without it, the request would be another one."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def answered() -> bytes:
            connection, _ = server.accept()
            with connection:
                line = connection.recv(65_536)
                connection.sendall(OK)
            return line

        heard = pool.submit(answered)
        client.send(HttpRequest("GET", f"http://127.0.0.1:{server.getsockname()[1]}{path}", {}, b"", 5.0))
        assert heard.result().startswith(f"GET {path} HTTP/1.1\r\n".encode())
