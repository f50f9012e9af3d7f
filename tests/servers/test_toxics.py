"""Each toxic does what its name says to the bytes of the connections it harms, and to no others."""

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.servers.proxy import FaultProxy
from tests.servers.toxics import Clog, Drip, HalfOpen, Jitter, Late, Latency, OneWay, Reset

SOON = 0.05


class Echo:
    """Sends back what it is sent, and remembers it."""

    def __init__(self) -> None:
        self.got = b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = self._socket.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=self._socket.accept()[:1], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while data := client.recv(4096):
                self.got += data
                client.sendall(data)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with FaultProxy(*echo.address) as made:
        yield made


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    """Connected, and known to the proxy."""
    with dialled(proxy) as made:
        yield made


@contextlib.contextmanager
def dialled(proxy: FaultProxy) -> Iterator[socket.socket]:
    with socket.create_connection((proxy.host, proxy.port), timeout=SOON) as made:
        assert say(made, b"hello") == b"hello"
        yield made


def say(client: socket.socket, text: bytes, seconds: float = 5.0) -> bytes:
    client.settimeout(seconds)
    client.sendall(text)
    heard = b""
    while len(heard) < len(text):
        piece = client.recv(4096)
        if not piece:
            break
        heard += piece
    return heard


def wait_until(true: object) -> None:
    end = time.monotonic() + 5
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.001)


@pytest.mark.parametrize(
    "toxic",
    [Latency(SOON), Jitter(random.Random(1), SOON), Drip(random.Random(1), 0.001), Clog(random.Random(1), 0.01, SOON)],
    ids=["latency", "jitter", "drip", "clog"],
)
def test_what_is_slow_arrives_whole(proxy, client, toxic):
    proxy.arm(toxic)
    text = bytes(range(200))
    assert b"".join(say(client, text[i : i + 50]) for i in range(0, 200, 50)) == text
    assert toxic.bites


def test_latency_holds_replies_back_for_as_long_as_it_says(proxy, client):
    proxy.arm(Latency(SOON))
    began = time.monotonic()
    say(client, b"x")
    assert time.monotonic() - began >= SOON


@pytest.mark.parametrize(("way", "got"), [("request", b"hellox"), ("reply", b"helloxyz")])
def test_a_reset_comes_after_so_many_bytes_of_its_direction_and_once(proxy, client, echo, way, got):
    toxic = Reset(way, 1, fresh=5)
    proxy.arm(toxic)
    with pytest.raises(ConnectionError):
        say(client, b"xyz")
        say(client, b"xyz")
    wait_until(lambda: len(echo.got) >= len(got))  # the client may hear of the reset before the server has read
    assert echo.got == got
    assert toxic.bites == 1
    with dialled(proxy) as again:
        assert say(again, b"more") == b"more"


def test_half_open_nothing_moves_and_nobody_is_told_until_it_is_over(proxy, client, echo):
    proxy.arm(HalfOpen())
    with pytest.raises(TimeoutError):
        say(client, b"x", SOON)
    assert echo.got == b"hello"
    proxy.disarm()
    with pytest.raises(ConnectionError):
        say(client, b"x")


@pytest.mark.parametrize(("way", "got"), [("request", b"hello"), ("reply", b"hellox")])
def test_one_way_what_goes_in_one_direction_is_lost(proxy, client, echo, way, got):
    proxy.arm(OneWay(way))
    with pytest.raises(TimeoutError):
        say(client, b"x", SOON)
    assert echo.got == got


def test_a_late_request_arrives_after_its_sender_has_left(proxy, client, echo):
    proxy.arm(Late(2 * SOON))
    with pytest.raises(TimeoutError):
        say(client, b"x", SOON)
    client.close()
    assert echo.got == b"hello"
    wait_until(lambda: echo.got == b"hellox")


def test_only_connections_that_were_open_are_harmed_and_as_many_new_ones_as_it_says(proxy, client):
    proxy.arm(OneWay("reply", fresh=1))
    with socket.create_connection((proxy.host, proxy.port)) as first, pytest.raises(TimeoutError):
        say(first, b"x", SOON)
    with dialled(proxy):
        pass


def test_disarmed_everything_passes_again(proxy, client):
    proxy.arm(Latency(60.0))
    proxy.disarm()
    assert say(client, b"x") == b"x"


def test_an_address_that_leads_elsewhere_resets_what_was_open(proxy, client):
    other = Echo()
    proxy.lead_to(*other.address)
    with pytest.raises(ConnectionError):
        say(client, b"x")
        say(client, b"x")
    with dialled(proxy):
        assert other.got == b"hello"
    other.close()
