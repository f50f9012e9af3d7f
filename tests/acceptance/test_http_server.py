"""The server as a real process over loopback: how it starts, whom it cuts off, and how it leaves."""

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.acceptance.http_server import HttpServer, in_background
from tests.servers.nginx import Nginx
from tests.servers.process import Unavailable
from tests.servers.proxy import FaultProxy

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path):
    """Starts servers in one folder, and ends them all."""
    started = []

    def begin(*words, folder=tmp_path, **more):
        server = HttpServer(folder, *words, **more)
        started.append(server)
        return server

    yield begin
    for server in started:
        server.close()


def command(server, *words):
    return subprocess.run(
        [sys.executable, "-m", "twiceproof", *words],
        cwd=server.folder,
        env=server.environment,
        text=True,
        capture_output=True,
        timeout=60,
    )


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


def read_all(connection):
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


# -- from webhook to run -------------------------------------------------------------------------


def test_a_webhook_starts_one_run_however_often_it_is_delivered(start):
    server = start()
    assert [server.post("17")["state"] for _ in range(3)] == ["new", "duplicate", "duplicate"]
    until(lambda: server.effects() == ["17", "bill 17"])


def test_without_a_worker_runs_are_left_to_others(start):
    server = start("--no-worker")
    assert server.post("17")["state"] == "new"
    assert server.effects() == []
    assert command(server, "work", "shop:app", "--until-idle").returncode == 0
    assert server.effects() == ["17", "bill 17"]


def test_a_tenants_webhook_is_carried_out_by_the_worker_inside(start):
    server = start()
    token = json.loads(
        command(server, "tokens", "create", "site", "--scope", "ingest", "--tenant", "acme", "--json").stdout
    )
    headers = {"x-secret": "s3cret", "authorization": f"Bearer {token['token']}"}
    status, _, _ = server.call("POST", "/hooks/post", b'{"id":"17"}', headers)
    assert status == 200
    until(lambda: server.effects() == ["17", "bill 17"])
    listed = json.loads(command(server, "runs", "list", "--tenant", "acme", "--state", "all", "--json").stdout)
    assert [run["key"] for run in listed["runs"]] == ["order:17"]
    assert token["token"] not in server.said()


# -- starting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_on_loopback_it_starts_without_a_token(start, host):
    server = start("--host", host)
    assert server.call("GET", "/metrics")[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_beyond_this_machine_it_refuses_to_start_without_a_token(start, host):
    server = start("--host", host)
    assert server.wait() == 2
    assert "no token exists" in server.said()
    assert f"twiceproof --store {server.environment['TWICEPROOF_STORE']} tokens create" in server.said()


def test_beyond_this_machine_it_starts_with_a_token_and_asks_for_it(start, tmp_path):
    first = start()
    first.close()
    made = command(first, "tokens", "create", "ops", "--scope", "read", "--json")
    token = json.loads(made.stdout)["token"]
    server = start("--host", "0.0.0.0")
    server.address = ("127.0.0.1", server.address[1])
    assert server.call("GET", "/metrics")[0] == 401
    assert server.call("GET", "/metrics", headers={"authorization": f"Bearer {token}"})[0] == 200
    assert server.call("GET", "/healthz")[0] == 200


@pytest.mark.parametrize("word", ["--open", "--insecure"])
def test_insecure_is_said_loudly(start, word):
    server = start("--host", "0.0.0.0", word)
    server.address = ("127.0.0.1", server.address[1])
    assert server.call("GET", "/metrics")[0] == 200
    assert "INSECURE" in server.said()


@pytest.fixture
def nginx():
    """A real one before a server, with nothing but `proxy_pass`; `more` are further directives."""
    started = []

    def begin(server, *more):
        try:
            started.append(Nginx(f"{server.address[0]}:{server.address[1]}", more).start())
        except Unavailable as error:
            pytest.skip(str(error))
        return started[-1].address

    yield begin
    for one in started:
        one.close()


FORWARDING = ("proxy_http_version 1.1;", "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;")
TOLD_OUR_NAME = ("proxy_http_version 1.1;", "proxy_set_header Host $host:$server_port;", "proxy_set_header Via nginx;")


@pytest.mark.parametrize("more", [(), FORWARDING, TOLD_OUR_NAME], ids=["bare", "forwarding", "via"])
def test_who_comes_through_nginx_is_not_the_operator_while_no_token_exists(start, nginx, more):
    server = start()
    straight, address = server.address, nginx(server, *more)
    server.address = address
    for method, path in (("GET", "/metrics"), ("GET", "/v1/runs"), ("PUT", "/v1/claims/ship/17")):
        status, _, answer = server.call(method, path, b"{}" if method == "PUT" else b"")
        assert (status, json.loads(answer)["type"]) == (401, "urn:twiceproof:through-a-proxy")
    assert "twiceproof tokens create" in json.loads(answer)["next"]
    assert server.call("GET", "/healthz")[0] == 200
    assert server.post("17")["state"] == "new"  # its signature is its proof
    server.address = straight
    assert server.call("GET", "/metrics")[0] == 200
    made = json.loads(command(server, "tokens", "create", "ops", "--scope", "admin", "--json").stdout)
    server.address = address
    assert server.call("GET", "/metrics", headers={"authorization": f"Bearer {made['token']}"})[0] == 200


def test_open_is_the_word_for_letting_everybody_in_through_nginx(start, nginx):
    server = start("--open")
    server.address = nginx(server)
    assert server.call("GET", "/metrics")[0] == 200
    assert "INSECURE" in server.said()


def test_without_a_token_it_says_at_its_start_that_every_caller_is_the_operator(start):
    server = start()
    warning = next(line for line in server.said().splitlines() if "OPEN" in line)
    assert server.url in warning and "is the operator" in warning and "through a proxy" in warning
    create = f"twiceproof --store {server.environment['TWICEPROOF_STORE']} tokens create NAME --scope admin"
    assert create in warning
    assert command(server, *create.replace("NAME", "ops").split()[1:]).returncode == 0
    assert "OPEN" not in start().said()


def test_a_port_that_is_taken_is_named(start):
    server = start()
    other = start("--port", str(server.address[1]))
    assert other.wait() == 2
    assert f"Cannot listen on 127.0.0.1 port {server.address[1]}" in other.said()


# -- whom it cuts off ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"POST /hooks/post HTTP/1.1\r\nx-slow: ",
        b"POST /hooks/post HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{",
    ],
    ids=["says nothing", "drips its head", "drips its body"],
)
def test_a_slow_sender_is_cut_off_however_steadily_it_drips(start, begun):
    server = start("--deadline", "1s")
    with server.connect() as slow:
        slow.sendall(begun)
        slow.settimeout(0.2)
        began, answer = time.monotonic(), b""
        while not answer:
            assert time.monotonic() - began < 15
            try:
                answer = slow.recv(4096)
                assert answer, "it was cut off without a word"
            except TimeoutError:
                slow.sendall(b"a" if begun else b"")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"urn:twiceproof:too-slow" in answer
    assert server.call("GET", "/healthz")[0] == 200


def test_a_good_request_on_an_old_connection_has_all_its_time(start):
    """The time runs from a request's first byte: a connection that was idle is not late."""
    server = start("--deadline", "1s")
    request = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with server.connect() as calm:
        for _ in range(3):
            calm.sendall(request)
            answer = b""
            while b"alive" not in answer:
                answer += calm.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200 ")
            time.sleep(0.8)


def test_a_flood_in_chunks_is_cut_off(start):
    server = start()
    with server.connect() as flood:
        flood.sendall(b"POST /hooks/post HTTP/1.1\r\nhost: x\r\nx-secret: s3cret\r\ntransfer-encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        sent, answer = 0, b""
        flood.settimeout(0.0)
        while not answer.startswith(b"HTTP/1.1 413 "):
            assert sent < 100_000_000
            try:
                flood.send(chunk)
                sent += len(chunk)
            except BlockingIOError:
                time.sleep(0.005)
            with contextlib.suppress(BlockingIOError):
                answer += flood.recv(4096)
    assert sent < 20_000_000
    assert server.call("GET", "/healthz")[0] == 200


def test_a_bomb_is_answered_413_and_costs_no_memory(start):
    server = start()
    packing = zlib.compressobj(9)
    bomb = b"".join(packing.compress(b"\0" * 1_000_000) for _ in range(300)) + packing.flush()
    before = resident(server)
    status, _, answer = server.call("POST", "/hooks/post", bomb, {"x-secret": "s3cret", "content-encoding": "deflate"})
    assert (status, json.loads(answer)["type"]) == (413, "urn:twiceproof:too-large")
    assert resident(server) - before < 50_000


def resident(server):
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))


@pytest.mark.parametrize(
    "head",
    [b"x-long: " + b"a" * 100_000, b"\r\n".join(b"x-%d: 1" % n for n in range(200)), b"x-endless: " + b"a" * 40_000],
    ids=["one long header", "many headers", "a header without end"],
)
def test_a_head_that_is_too_large_is_refused(start, head):
    server = start()
    with server.connect() as caller:
        end = b"" if head.startswith(b"x-endless") else b"\r\n\r\n"
        caller.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n" + head + end)
        assert caller.recv(4096).startswith(b"HTTP/1.1 431 ")
    assert server.call("GET", "/healthz")[0] == 200


def test_what_is_not_http_is_answered_as_a_problem(start):
    server = start()
    with server.connect() as caller:
        caller.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        answer = read_all(caller)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in answer
    assert b"x-content-type-options: nosniff" in answer


def test_more_connections_than_it_takes_are_told_to_come_back(start):
    server = start("--connections", "3", "--deadline", "60s")
    held = [server.connect() for _ in range(3)]
    until(lambda: refused(server))
    for one in held:
        one.close()
    until(lambda: not refused(server))


def refused(server):
    with server.connect() as caller:
        try:
            caller.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
            answer = read_all(caller)
        except ConnectionError:
            return True
        assert b" 200 " in answer[:20] or (b" 503 " in answer[:20] and b"retry-after: 1" in answer)
        return b" 503 " in answer[:20]


def test_good_traffic_goes_on_beside_slow_senders(start):
    server = start("--deadline", "30s")
    slow = [server.connect() for _ in range(200)]
    for one in slow:
        one.sendall(b"POST /hooks/post HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n")
    assert [server.post(str(n))["state"] for n in range(20)] == ["new"] * 20
    for one in slow:
        one.close()


# -- leaving -------------------------------------------------------------------------------------


def test_told_to_leave_it_ends_its_requests_and_gives_its_runs_back(start):
    server = start("--drain", "20s")
    (server.folder / "hold").touch()
    server.post("17")
    until(lambda: server.effects() == ["17"])
    with in_background(lambda: server.post("18", hook="slow")) as answers:
        time.sleep(0.2)
        server.tell(signal.SIGTERM)
        until(lambda: not accepts(server))
    assert answers[0]["status"] == 200
    until(lambda: "draining" in server.said())
    (server.folder / "hold").unlink()
    assert server.wait() == 0
    assert not [effect for effect in server.effects() if "bill" in effect]  # steps ended; no other was begun
    assert command(server, "work", "shop:app", "--until-idle").returncode == 0
    assert sorted(server.effects()) == ["17", "18", "bill 17", "bill 18"]


def accepts(server):
    try:
        server.connect().close()
    except OSError:
        return False
    return True


def test_a_slow_sender_does_not_keep_it(start):
    server = start("--deadline", "1s", "--drain", "30s")
    with server.connect() as slow:
        slow.sendall(b"POST /hooks/post HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        server.tell(signal.SIGTERM)
        began = time.monotonic()
        assert server.wait() == 0
        assert time.monotonic() - began < 15


def test_a_step_that_does_not_end_is_left_to_others(start):
    server = start("--drain", "1s")
    (server.folder / "hold").touch()
    server.post("17")
    until(lambda: server.effects() == ["17"])
    server.tell(signal.SIGTERM)
    assert server.wait() == 1
    assert "1 runs unfinished" in server.said()


def test_told_to_leave_it_is_ready_no_more_but_goes_on_answering_for_a_while(start):
    server = start("--lame-duck", "3s")
    with contextlib.closing(http.client.HTTPConnection(*server.address, timeout=30)) as kept:
        kept.request("GET", "/healthz")
        kept.getresponse().read()
        server.tell(signal.SIGTERM)
        until(lambda: server.call("GET", "/readyz")[0] == 503)
        assert server.post("17")["state"] == "new"  # on a connection of its own
        kept.request("GET", "/healthz")
        last = kept.getresponse()
        assert (last.status, last.getheader("connection")) == (200, "close")
        last.read()
    assert server.wait() == 0
    assert not accepts(server)


def test_in_a_rolling_restart_nobody_is_refused_or_cut_off(start, tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    words = {"store": f"sqlite:///{tmp_path}/shop.db"}
    begin = lambda folder: start("--lame-duck", "2s", "--no-worker", folder=folder, **words)  # noqa: E731
    with Balanced([begin(folder) for folder in folders]) as balanced:
        for place, folder in enumerate(folders):
            balanced.servers[place].tell(signal.SIGTERM)
            assert balanced.servers[place].wait() == 0
            balanced.servers[place] = begin(folder)
            until(lambda: len(balanced.ready) == 2)
    assert balanced.broken == []
    assert set(balanced.answers) == {200} and len(balanced.answers) > 20


class Balanced:
    """Servers behind a balancer that asks `/readyz`; callers keep their connections as long as they may."""

    def __init__(self, servers):
        self.servers = servers
        self.ready = [server.address for server in servers]
        self.answers, self.broken = [], []
        self._over = threading.Event()
        self._crew = [threading.Thread(target=self._balance)]
        self._crew += [threading.Thread(target=self._call, args=(number,)) for number in range(4)]

    def __enter__(self):
        for thread in self._crew:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._crew:
            thread.join()

    def _balance(self):
        while not self._over.wait(0.05):
            self.ready = [server.address for server in list(self.servers) if is_ready(server)] or self.ready

    def _call(self, number):
        kept = {}
        while not self._over.is_set():
            ready = self.ready
            address = ready[len(self.answers) % len(ready)]
            caller = kept.setdefault(address, http.client.HTTPConnection(*address, timeout=30))
            try:
                body = b'{"id":"%d-%d"}' % (number, len(self.answers))
                caller.request("POST", "/hooks/post", body, {"x-secret": "s3cret"})
                answer = caller.getresponse()
                answer.read()
                self.answers.append(answer.status)
            except (OSError, http.client.HTTPException) as error:
                self.broken.append(repr(error))
                kept.pop(address).close()
        for caller in kept.values():
            caller.close()


def is_ready(server):
    try:
        return server.call("GET", "/readyz")[0] == 200
    except OSError:
        return False


# -- what a kill leaves --------------------------------------------------------------------------


def test_killed_between_claim_and_answer_the_senders_retry_gets_the_right_answer(start):
    server = start()
    (server.folder / "kill").touch()
    with pytest.raises((ConnectionError, socket.error)):
        server.post("17", hook="deadly")
    assert server.wait() == -signal.SIGKILL
    again = start()
    until(lambda: retried(again) == "new", 40)
    assert retried(again) == "duplicate"
    until(lambda: again.effects() == ["17", "bill 17"])


def retried(server):
    """While the dead one's claim is alive the sender is told to come back; then its retry is taken in."""
    answer = server.post("17", hook="deadly")
    assert answer["status"] in (200, 503)
    return answer["state"]


# -- a store that is down ------------------------------------------------------------------------


@pytest.mark.server
def test_while_the_store_is_down_it_lives_but_is_not_ready(start, postgres_server, postgres_dsn):
    with FaultProxy(*address_of(postgres_dsn)) as proxy:
        server = start(store=proxy.url(postgres_dsn))
        assert server.call("GET", "/readyz")[0] == 200
        proxy.refuse()
        proxy.cut()
        until(lambda: server.call("GET", "/readyz")[0] == 503, 30)
        assert server.call("GET", "/healthz")[0] == 200
        assert server.post("17")["status"] == 503
        proxy.accept()
        until(lambda: server.call("GET", "/readyz")[0] == 200, 30)
        until(lambda: server.post("17")["state"] in ("new", "duplicate"), 30)


@pytest.mark.server
def test_a_frozen_store_is_told_by_readyz_in_a_moment(start, postgres_server, postgres_dsn):
    """The connections stay, and nobody answers on them: as a machine that hangs, or a SIGSTOP."""
    with FaultProxy(*address_of(postgres_dsn)) as proxy:
        server = start("--no-worker", store=proxy.url(postgres_dsn))
        assert server.call("GET", "/readyz")[0] == 200
        proxy.hold()
        began = time.monotonic()
        until(lambda: server.call("GET", "/readyz")[0] == 503)
        assert server.call("GET", "/readyz")[0] == 503
        assert time.monotonic() - began < 8  # an answer is believed for 1 s; 2 s as declared; time to spare
        assert server.call("GET", "/healthz")[0] == 200
        proxy.resume()
        until(lambda: server.call("GET", "/readyz")[0] == 200, 30)


def address_of(dsn):
    parts = urlsplit(dsn)
    return parts.hostname, parts.port
