"""The proxy does each fault when told, and only then."""

import socket
import time
from collections.abc import Callable

import psycopg
import pytest
import redis
from psycopg.conninfo import conninfo_to_dict
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers import FaultProxy, ValkeyServer

pytestmark = pytest.mark.server

ProxyMaker = Callable[[str, int], FaultProxy]


def rows(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute("SELECT x FROM t ORDER BY x")]


def make_table(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE t (x int)")


def address_of(dsn: str) -> tuple[str, int]:
    parts = conninfo_to_dict(dsn)
    return str(parts["host"]), int(str(parts["port"]))


def proxy_before_valkey(server: ValkeyServer, make: ProxyMaker) -> tuple[FaultProxy, redis.Redis]:
    proxy = make(server.host, server.port)
    never = Retry(NoBackoff(), 0)  # by default the client retries a lost reply, and so hides it
    client = redis.Redis(host=proxy.host, port=proxy.port, retry=never, socket_timeout=5)
    client.ping()
    return proxy, client


def test_a_lost_commit_reply_leaves_the_row(postgres_dsn: str, fault_proxy: ProxyMaker) -> None:
    make_table(postgres_dsn)
    proxy = fault_proxy(*address_of(postgres_dsn))
    with psycopg.connect(proxy.url(postgres_dsn)) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
        proxy.drop_next_reply(b"COMMIT")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert rows(postgres_dsn) == [1]
    assert proxy.counters.replies_dropped == 1


def test_only_the_chosen_reply_is_lost(killable_valkey: ValkeyServer, fault_proxy: ProxyMaker) -> None:
    proxy, client = proxy_before_valkey(killable_valkey, fault_proxy)
    with client:
        proxy.drop_next_reply(b"INCR", skip=2)
        assert [client.incr("n"), client.get("n"), client.incr("n")] == [1, b"1", 2]
        with pytest.raises(redis.ConnectionError):
            client.incr("n")
        assert client.get("n") == b"3"  # it did happen, and the next connection is sound
    assert proxy.counters.replies_dropped == 1


def test_a_match_may_come_in_two_pieces(killable_valkey: ValkeyServer, fault_proxy: ProxyMaker) -> None:
    proxy = fault_proxy(killable_valkey.host, killable_valkey.port)
    proxy.drop_next_reply(b"INCR n")
    with socket.create_connection((proxy.host, proxy.port), timeout=5) as client:
        client.sendall(b"INC")
        time.sleep(0.05)
        client.sendall(b"R n\r\n")
        with pytest.raises(ConnectionResetError):
            client.recv(100)
    assert killable_valkey.call("GET", "n") == b"1"


def test_held_answers_come_after_resume(killable_valkey: ValkeyServer, fault_proxy: ProxyMaker) -> None:
    proxy = fault_proxy(killable_valkey.host, killable_valkey.port)
    with socket.create_connection((proxy.host, proxy.port), timeout=0.2) as client:
        proxy.hold(requests=False)
        client.sendall(b"INCR n\r\n")
        with pytest.raises(TimeoutError):
            client.recv(100)
        assert killable_valkey.call("GET", "n") == b"1"  # the request went through
        proxy.resume()
        assert client.recv(100) == b":1\r\n"
        proxy.hold()
        client.sendall(b"INCR n\r\n")
        with pytest.raises(TimeoutError):
            client.recv(100)
        assert killable_valkey.call("GET", "n") == b"1"  # this one did not


def test_replies_are_delayed_and_connections_refused(killable_valkey: ValkeyServer, fault_proxy: ProxyMaker) -> None:
    proxy, client = proxy_before_valkey(killable_valkey, fault_proxy)
    with client:
        proxy.delay = 0.1
        begun = time.monotonic()
        client.ping()
        assert time.monotonic() - begun >= 0.1
        proxy.delay = 0.0
        proxy.refuse()
        client.ping()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((proxy.host, proxy.port), timeout=5)
        proxy.accept()
        assert client.ping()


def test_cut_resets_open_connections(killable_valkey: ValkeyServer, fault_proxy: ProxyMaker) -> None:
    proxy = fault_proxy(killable_valkey.host, killable_valkey.port)
    with socket.create_connection((proxy.host, proxy.port), timeout=5) as client:
        client.sendall(b"PING\r\n")
        assert client.recv(100) == b"+PONG\r\n"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(100)
    assert proxy.counters.connections_cut == 1
