"""No connection of a scenario leaves for anything but a world, whatever the client.

The real outside is a listener on 127.0.0.2 that counts who comes.
"""

from __future__ import annotations

import asyncio
import ctypes
import http.client
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import psycopg
import pytest
from msgspec import structs

from twiceproof import App
from twiceproof.errors import Misuse
from twiceproof.prove.child import in_child
from twiceproof.prove.network_guard import NetworkGuard
from twiceproof.prove.prover import Prover
from twiceproof.prove.report import ProofReport
from twiceproof.prove.socket_guard import AllowedDestinations
from twiceproof.prove.target import target_of
from twiceproof.prove.worlds.http import HttpWorld
from twiceproof.prove.worlds.world import CallableWorld, World, Worlds

pytestmark = pytest.mark.slow
needs_kernel = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine not in ("x86_64", "aarch64"),
    reason="clients without Python's socket are stopped by the Linux kernel",
)

OUTSIDE = "127.0.0.2"
app = App("memory://")
done: list[str] = []
reach: Callable[[], Any] = list  # what the step does; each test says


class Listener:
    """Counts those who come, and answers what any HTTP client takes for a yes."""

    def __init__(self, sock: socket.socket, address: Any) -> None:
        self._sock = sock
        self._sock.bind(address)
        self.where = self._sock.getsockname()
        self.port: Any = self.where[1] if sock.family == socket.AF_INET else 0
        self.met: list[socket.socket] = []
        self._came = 0
        self._is_marked = threading.Event()
        if sock.type == socket.SOCK_STREAM:
            self._sock.listen()
        serve = self._serve if sock.type == socket.SOCK_STREAM else self._receive
        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        return OUTSIDE, self.port

    @property
    def count(self) -> int:
        """Who has come: known when one that comes after them has been met, which is not counted."""
        with socket.socket(self._sock.family, self._sock.type) as marker:
            marker.connect(self.where)
            if marker.type == socket.SOCK_STREAM:
                assert marker.recv(4) == b"HTTP"
            else:
                marker.send(b"marker")
                assert self._is_marked.wait(10)
                self._is_marked.clear()
        self._came -= 1
        return self._came

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._sock.accept()
                self._came += 1
                self.met.append(client)
                with suppress(OSError):
                    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

    def _receive(self) -> None:
        with suppress(OSError):
            while text := self._sock.recv(100):
                self._came += 1
                if text == b"marker":
                    self._is_marked.set()

    def close(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
            self._thread.join(10)  # or it could still add a client that nobody closes
        for one in (self._sock, *self.met):
            one.close()


@pytest.fixture
def outside() -> Iterator[Listener]:
    listener = Listener(socket.socket(), (OUTSIDE, 0))
    yield listener
    listener.close()


@pytest.fixture(autouse=True)
def clear(monkeypatch: pytest.MonkeyPatch) -> None:
    done.clear()


@app.step(repeat="safe")
def act(order: dict[str, Any]) -> None:
    with suppress(Exception):  # a flow may live with an outside that does not answer: the proof must not
        reach()
    done.append(f"done {order['id']}")


@app.flow(key="order:{order[id]}")
def reaching(order: dict[str, Any]) -> None:
    act(order)


def proved_by(how: Callable[[], Any], *worlds: World, **said: Any) -> ProofReport:
    global reach
    reach = how
    proved = structs.replace(target_of(reaching, {"id": 1}), **said)
    return Prover(proved, Worlds([CallableWorld(lambda: list(done)), *worlds]), only="twice").run()


async def _by_httpx(listener: Listener) -> None:
    async with httpx2.AsyncClient() as client:
        await client.post(f"http://{OUTSIDE}:{listener.port}/charges", json={})


async def _by_streams(listener: Listener) -> None:
    _, writer = await asyncio.open_connection(*listener.address)
    writer.close()


async def _by_anyio(listener: Listener) -> None:
    async with await anyio.connect_tcp(*listener.address):
        pass


async def _by_sock_connect(listener: Listener) -> None:
    with socket.socket() as one:
        one.setblocking(False)
        await asyncio.get_running_loop().sock_connect(one, listener.address)


def _by_socket(listener: Listener) -> None:
    with socket.socket() as one:
        one.connect(listener.address)


def _by_connect_ex(listener: Listener) -> None:
    with socket.socket() as one:
        one.connect_ex(listener.address)


def _by_mapped_address(listener: Listener) -> None:
    with socket.socket(socket.AF_INET6) as one:
        one.connect((f"::ffff:{OUTSIDE}", listener.port))


def _by_http_client(listener: Listener) -> None:
    http.client.HTTPConnection(*listener.address, timeout=5).request("POST", "/charges")


ASYNC = {"httpx": _by_httpx, "streams": _by_streams, "anyio": _by_anyio, "sock_connect": _by_sock_connect}
BLOCKING = {
    "socket": _by_socket,
    "connect_ex": _by_connect_ex,
    "mapped": _by_mapped_address,
    "http.client": _by_http_client,
}


def _client(name: str, listener: Listener) -> Callable[[], Any]:
    if name in ASYNC:
        return lambda: asyncio.run(ASYNC[name](listener))
    return lambda: BLOCKING[name](listener)


@pytest.mark.parametrize("name", [*ASYNC, *BLOCKING])
def test_a_client_that_calls_an_address_is_refused_before_it_is_outside(outside: Listener, name: str) -> None:
    with pytest.raises(Misuse, match=rf"reached for 127\.0\.0\.2:{outside.port}.*--real 127\.0\.0\.2"):
        proved_by(_client(name, outside))
    assert outside.count == 0


@pytest.mark.parametrize("name", ["httpx", "socket"])
def test_the_same_client_may_reach_it_if_that_is_said(outside: Listener, name: str) -> None:
    for said in (OUTSIDE, f"{OUTSIDE}:{outside.port}"):
        assert proved_by(_client(name, outside), real=(said,)).good
    assert outside.count > 0
    with pytest.raises(Misuse, match="reached for"):
        proved_by(_client(name, outside), real=(f"{OUTSIDE}:{outside.port + 1}",))


@pytest.mark.parametrize("name", [*ASYNC, *BLOCKING])
def test_a_world_that_is_declared_by_address_meets_every_client(outside: Listener, name: str) -> None:
    with HttpWorld([f"{OUTSIDE}:{outside.port}"]) as world:
        assert proved_by(_client(name, outside), world).good
    assert outside.count == 0


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_what_an_async_client_asks_of_an_address_is_counted_by_its_world(outside: Listener, scheme: str) -> None:
    async def ask() -> int:
        async with httpx2.AsyncClient() as client:
            return (await client.put(f"{scheme}://{OUTSIDE}:{outside.port}/x")).status_code

    with HttpWorld([OUTSIDE]) as world:
        assert asyncio.run(ask()) == 200
        assert list(world.look()) == [f"PUT {OUTSIDE}:{outside.port}/x"]
    assert outside.count == 0


def test_a_name_that_is_given_to_the_socket_itself_is_met_or_refused() -> None:
    def ask() -> None:
        with socket.socket() as one:
            one.connect(("api.shop.test", 80))
            one.sendall(b"POST /x HTTP/1.1\r\nHost: api.shop.test\r\n\r\n")
            one.recv(1)

    with HttpWorld(["api.shop.test"]) as world:
        ask()
        assert list(world.look()) == ["POST api.shop.test/x"]
    with pytest.raises(Misuse, match=r"reached for api\.shop\.test:80"):
        proved_by(ask)


# -- clients that do not use Python's socket -----------------------------------------------------


def _by_libpq(listener: Listener) -> None:
    psycopg.connect(f"host={OUTSIDE} port={listener.port} connect_timeout=5 sslmode=disable")


def _by_async_libpq(listener: Listener) -> None:
    asyncio.run(psycopg.AsyncConnection.connect(f"hostaddr={OUTSIDE} port={listener.port} connect_timeout=5"))


def _by_libc(listener: Listener) -> None:
    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", listener.port, socket.inet_aton(OUTSIDE))
    with socket.socket() as one:
        ctypes.CDLL(None).connect(one.fileno(), address, len(address))


def _by_a_program(listener: Listener) -> None:
    subprocess.run(["bash", "-c", f"echo > /dev/tcp/{OUTSIDE}/{listener.port}"], check=False, stderr=-3)


@needs_kernel
@pytest.mark.parametrize("how", [_by_libpq, _by_async_libpq, _by_libc, _by_a_program])
def test_a_client_that_brings_its_own_sockets_is_refused_too(
    outside: Listener, how: Callable[[Listener], None]
) -> None:
    with pytest.raises(Misuse, match=rf"reached for 127\.0\.0\.2:{outside.port}"):
        proved_by(lambda: how(outside))
    assert outside.count == 0
    with suppress(psycopg.Error):
        how(outside)  # the twin: nothing stands in its way once no scenario runs
    assert outside.count > 0


@pytest.mark.parametrize("how", [_by_libpq, _by_async_libpq])
def test_libpq_is_refused_without_the_kernels_help_as_well(
    outside: Listener, how: Callable[[Listener], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twiceproof.prove.network_guard.is_known", lambda: False)
    with pytest.raises(Misuse, match=rf"reached for 127\.0\.0\.2:{outside.port}"):
        proved_by(lambda: how(outside))
    assert outside.count == 0


@needs_kernel
def test_where_the_prover_may_not_read_the_plays_memory_python_judges(
    outside: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twiceproof.prove.network_guard._read", lambda thread, at, size: b"")
    with pytest.raises(Misuse, match=rf"reached for 127\.0\.0\.2:{outside.port}"):
        proved_by(_client("httpx", outside))
    assert outside.count == 0
    with HttpWorld([f"{OUTSIDE}:{outside.port}"]) as world:
        assert proved_by(_client("httpx", outside), world).guard == "python"


@pytest.mark.parametrize("name", [*ASYNC, *BLOCKING])
def test_pythons_own_clients_are_refused_without_the_kernels_help(
    outside: Listener, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twiceproof.prove.network_guard.is_known", lambda: False)
    with pytest.raises(Misuse, match=rf"reached for 127\.0\.0\.2:{outside.port}"):
        proved_by(_client(name, outside))
    assert outside.count == 0
    assert "python" in proved_by(list).guard


# -- other kinds of sockets ----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sendto", "sendmsg", "connect"])
def test_datagrams_stay_here(how: str) -> None:
    listener = Listener(socket.socket(type=socket.SOCK_DGRAM), (OUTSIDE, 0))

    def send() -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as one:
            if how == "sendto":
                one.sendto(b"x", listener.address)
            elif how == "sendmsg":
                one.sendmsg([b"x"], [], 0, listener.address)
            else:
                one.connect(listener.address)
                one.send(b"x")

    with pytest.raises(Misuse, match=rf"reached for 127\.0\.0\.2:{listener.port}"):
        proved_by(send)
    assert listener.count == 0
    listener.close()


def test_a_servers_unix_socket_is_outside_and_the_plays_own_is_not(tmp_path: Path) -> None:
    listener = Listener(socket.socket(socket.AF_UNIX), str(tmp_path / "theirs"))

    def ask(path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(path))

    def own() -> None:
        with socket.socket(socket.AF_UNIX) as server:
            path = tmp_path / f"mine-{os.getpid()}-{len(list(tmp_path.iterdir()))}"
            server.bind(str(path))
            server.listen()
            ask(path)

    with pytest.raises(Misuse, match=r"reached for unix:.*theirs"):
        proved_by(lambda: ask(tmp_path / "theirs"))
    assert listener.count == 0
    assert proved_by(lambda: ask(tmp_path / "theirs"), real=(str(tmp_path / "theirs"),)).good
    assert proved_by(own).good
    listener.close()


def test_a_server_of_the_plays_own_may_be_reached() -> None:
    def own() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()).close()
            done.append("met")

    report = proved_by(own)
    assert report.good and report.expected["met"] == 1


# -- what counts as a world ----------------------------------------------------------------------


def test_what_a_worlds_own_function_asks_is_a_world(outside: Listener) -> None:
    def look() -> list[str]:
        _by_socket(outside)
        return []

    assert proved_by(_client("httpx", outside), CallableWorld(look)).good
    assert outside.count > 0


def test_a_stand_in_that_is_open_is_a_world_whoever_looks_at_it(outside: Listener) -> None:
    with HttpWorld([f"{OUTSIDE}:{outside.port}"]) as http:
        report = proved_by(_client("httpx", outside), CallableWorld(lambda: {**http.look(), "more": 1}, http.reset))
    assert report.good and sum(report.expected.values()) == 2
    assert outside.count == 0


def test_a_local_server_that_nobody_declared_is_outside_too(outside: Listener) -> None:
    """A developer's own database is on this machine, and real."""
    listener = Listener(socket.socket(), ("127.0.0.1", 0))
    for host in ("localhost", "127.0.0.1", "0.0.0.0"):
        with pytest.raises(Misuse, match=rf"reached for 127\.0\.0\.1:{listener.port}"):
            proved_by(lambda host=host: socket.create_connection((host, listener.port)).close())
    assert listener.count == 0
    listener.close()


def test_a_connection_from_before_the_play_is_not_the_plays_to_use(outside: Listener) -> None:
    with socket.create_connection(outside.address) as kept:
        kept.recv(100)

        def use() -> None:
            kept.sendall(b"x")
            done.append("sent")

        report = proved_by(use)
        assert "sent" not in report.expected and report.good
        kept.sendall(b"y")
        assert outside.met[0].recv(100) == b"y"  # and for its owner it is as it was


def test_a_connection_from_before_that_is_missed_is_told(outside: Listener) -> None:
    with socket.create_connection(outside.address) as kept:

        @app.flow(key="order:{order[id]}", name="kept")
        def using(order: dict[str, Any]) -> None:
            kept.sendall(b"x")

        with pytest.raises(Misuse, match=rf"opened before it.*127\.0\.0\.2:{outside.port}"):
            Prover(target_of(using, {"id": 1}), CallableWorld(lambda: list(done)), only="twice").run()


def test_a_look_up_of_this_machines_own_name_is_nobodys_business() -> None:
    def ask() -> None:
        socket.getaddrinfo("localhost", 80)
        socket.getfqdn()

    assert proved_by(ask).good


def test_another_scenario_than_the_clean_one_may_reach_nobody_either(outside: Listener) -> None:
    """An undo or a probe runs in no clean run at all."""

    def only_the_second_time() -> None:
        if len(done):
            _by_socket(outside)

    @app.step(repeat="safe")
    def twice(order: dict[str, Any]) -> None:
        only_the_second_time()
        done.append("twice")

    @app.flow(key="order:{order[id]}", name="late")
    def late(order: dict[str, Any]) -> None:
        twice(order)

    with pytest.raises(Misuse, match=rf"In lost-1 it reached for 127\.0\.0\.2:{outside.port}"):
        Prover(target_of(late, {"id": 1}), CallableWorld(lambda: list(done)), only="lost-1").run()
    assert outside.count == 0


def test_the_one_who_plays_is_not_held_to_it(outside: Listener) -> None:
    def ask() -> int:
        with socket.socket() as one:
            return one.connect_ex(outside.address)

    guard = NetworkGuard(AllowedDestinations())
    assert in_child(ask, int, guard=guard) != 0
    assert guard.noted == [f"127.0.0.2:{outside.port}"]
    assert ask() == 0
