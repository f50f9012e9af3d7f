"""The safe sender: what it connects to, what it follows, how long it waits, and what it tells."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.effects.loopback import RebindingResolver, certificate, trap
from twiceproof import NotDone
from twiceproof.effects.url_guard import NotAllowed
from twiceproof.effects.webhook_client import WebhookClient, WebhookResponse

HOST = "hooks.shop.io"
PUBLIC = "93.184.216.34"
HERE = ("127.0.0.0/8",)
METADATA = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest/\r\nContent-Length: 0\r\n\r\n"


def here(**options: Any) -> WebhookClient:
    """A sender that may reach loopback, for the servers of these tests."""
    return WebhookClient(allow=HERE, http=True, resolve=lambda host, port: ["127.0.0.1"], **options)


def url(port: int, scheme: str = "http") -> str:
    return f"{scheme}://{HOST}:{port}/cb?x=1"


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Every address that is connected to. The public ones lead to loopback: nothing leaves this machine."""
    seen: list[tuple[str, int]] = []
    real = socket.create_connection

    def dial(address: tuple[str, int], **options: Any) -> socket.socket:
        seen.append(address)
        return real(("127.0.0.1", address[1]), **options)

    monkeypatch.setattr(socket, "create_connection", dial)
    return seen


# -- where it goes -------------------------------------------------------------------------------


def test_what_was_judged_is_what_is_connected_to(dialled: list[tuple[str, int]]) -> None:
    """The name means something else a moment later. Simulated: a resolver that is public first, then 127.0.0.1."""
    resolver = RebindingResolver(PUBLIC, "127.0.0.1")
    with trap() as server:
        sender = WebhookClient(http=True, resolve=resolver)
        assert sender.post(url(server.port), b"{}", {}).ok
        assert dialled == [(PUBLIC, server.port)]
        assert resolver.asked == [HOST]
        with pytest.raises(NotAllowed, match="this machine"):
            sender.post(url(server.port), b"{}", {})
        assert len(server.requests) == 1


def test_a_name_that_was_fine_when_registered_is_judged_again_when_called() -> None:
    sender = WebhookClient(resolve=RebindingResolver("127.0.0.1"))
    assert sender.check(f"https://{HOST}/").host == HOST
    with pytest.raises(NotAllowed):
        sender.post(f"https://{HOST}/", b"", {})


def test_one_bad_address_spoils_the_name() -> None:
    sender = WebhookClient(resolve=lambda host, port: [PUBLIC, "10.0.0.1"])
    with pytest.raises(NotAllowed, match="private"):
        sender.post(f"https://{HOST}/", b"", {})


def test_a_literal_address_inside_is_not_called() -> None:
    with trap() as server, pytest.raises(NotAllowed):
        WebhookClient(http=True).post(f"http://127.0.0.1:{server.port}/", b"", {})
    assert server.requests == []


def test_a_redirect_is_told_and_not_followed(dialled: list[tuple[str, int]]) -> None:
    with trap(METADATA) as server:
        answer = WebhookClient(http=True, resolve=lambda host, port: [PUBLIC]).post(url(server.port), b"{}", {})
    assert answer == WebhookResponse(302)
    assert not answer.ok
    assert dialled == [(PUBLIC, server.port)]


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with trap() as proxy, trap() as server:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert here().post(url(server.port), b"{}", {}).ok
        assert (len(server.requests), proxy.requests) == (1, [])


def test_the_host_is_named_in_tls_and_in_the_request(tmp_path: Path) -> None:
    server_side, client_side = certificate(tmp_path, HOST)
    named: list[str | None] = []
    server_side.sni_callback = lambda sock, name, context: named.append(name)
    with trap(context=server_side) as server:
        sender = WebhookClient(allow=HERE, resolve=lambda host, port: ["127.0.0.1"], context=client_side)
        assert sender.post(url(server.port, "https"), b'{"a":1}', {"webhook-id": "m1"}).ok
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert named == [HOST]
    assert head.startswith(b"POST /cb?x=1 HTTP/1.1")
    assert f"host: {HOST}:{server.port}".encode() in head.lower()
    assert (b"webhook-id: m1" in head, body) == (True, b'{"a":1}')


def test_a_certificate_of_another_host_is_not_believed(tmp_path: Path) -> None:
    server_side, client_side = certificate(tmp_path, "other.shop.io")
    with trap(context=server_side) as server:
        sender = WebhookClient(allow=HERE, resolve=lambda host, port: ["127.0.0.1"], context=client_side)
        with pytest.raises(NotDone, match="TLS connection"):
            sender.post(url(server.port, "https"), b"secret", {})
    assert server.requests == []


def test_a_header_cannot_be_smuggled_in() -> None:
    with trap() as server, pytest.raises(ValueError, match="header"):
        here().post(url(server.port), b"", {"x-note": "a\r\nx-evil: 1"})
    assert server.requests == [b""] or server.requests == []


def test_host_and_length_are_said_once_however_a_caller_spells_them() -> None:
    with trap() as server:
        given = {"Host": "evil.example", "Content-Length": "0", "Transfer-Encoding": "chunked", "X-Note": "kept"}
        assert here().post(url(server.port), b"{}", given).ok
    head, _, body = server.requests[0].lower().partition(b"\r\n\r\n")
    assert (head.count(b"host:"), head.count(b"content-length:"), b"transfer-encoding" in head) == (1, 1, False)
    assert (b"evil" in head, b"x-note: kept" in head, body) == (False, True, b"{}")


# -- how long, and how much ----------------------------------------------------------------------


def drip(sock: socket.socket) -> None:
    """A byte now and then, for ever: each read succeeds."""
    for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000:
        sock.sendall(bytes([byte]))
        time.sleep(0.02)


def endless(sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        sock.sendall(b"x" * 65_536)


def endless_headers(sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        sock.sendall(b"X-A: b\r\n" * 1_000)


def early_answers(sock: socket.socket) -> None:
    while True:
        sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.001)


def silent(sock: socket.socket) -> None:
    sock.recv(1)


@pytest.mark.parametrize("answer", [drip, silent, early_answers])
def test_a_slow_answer_is_cut_off(answer: Any) -> None:
    begun = time.monotonic()
    with trap(answer) as server, pytest.raises((TimeoutError, ConnectionError)):
        here(timeout=0.3).post(url(server.port), b"{}", {})
    assert time.monotonic() - begun < 20  # uncut, it would take minutes


def test_an_endless_body_is_left_unread() -> None:
    begun = time.monotonic()
    with trap(endless) as server:
        assert here(timeout=9.0).post(url(server.port), b"{}", {}).status == 200
    assert time.monotonic() - begun < 5


def test_endless_headers_are_no_answer() -> None:
    with trap(endless_headers) as server, pytest.raises(ConnectionError, match="invalid response"):
        here(timeout=5.0).post(url(server.port), b"{}", {})


def test_a_slow_resolver_is_cut_off() -> None:
    is_cut_off = threading.Event()

    def slow(host: str, port: int) -> list[str]:
        assert is_cut_off.wait(60)
        return [PUBLIC]

    with pytest.raises(NotDone, match="resolver"):
        WebhookClient(resolve=slow, timeout=0.1).post(f"https://{HOST}/", b"", {})
    is_cut_off.set()


def test_a_slow_handshake_is_cut_off() -> None:
    with trap(silent) as server, pytest.raises(NotDone):
        WebhookClient(allow=HERE, resolve=lambda host, port: ["127.0.0.1"], timeout=0.3).post(
            url(server.port, "https"), b"", {}
        )


# -- what it tells -------------------------------------------------------------------------------


def test_the_answers_body_is_told_to_nobody() -> None:
    with trap(b"HTTP/1.1 500 Oops\r\nContent-Length: 6\r\nRetry-After: 7\r\n\r\nsecret") as server:
        answer = here().post(url(server.port), b"{}", {})
    assert answer == WebhookResponse(500, "7")
    assert "secret" not in repr(answer)


def test_what_never_left_is_not_done_and_what_may_have_is_unknown() -> None:
    with pytest.raises(NotDone, match="could not be reached"):
        here().post(url(1), b"", {})
    with pytest.raises(NotDone, match="could not be resolved"):
        WebhookClient(resolve=_no_name).post(f"https://{HOST}/", b"", {})
    with trap(lambda sock: None) as server, pytest.raises(ConnectionError):
        here().post(url(server.port), b"{}", {})


def _no_name(host: str, port: int) -> list[str]:
    raise socket.gaierror("no such name")
