"""The harness itself: servers survive a kill, faults happen when told, nothing is left behind."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from tests.servers import NotOurs, PgBouncer, PostgresServer, ValkeyCluster, ValkeyServer, guard

pytestmark = pytest.mark.server


def rows(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute("SELECT x FROM t ORDER BY x")]


def make_table(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE t (x int)")


def test_a_committed_row_survives_a_kill_of_postgres(killable_postgres: PostgresServer) -> None:
    server = killable_postgres
    dsn = server.create_database()
    make_table(dsn)
    with psycopg.connect(dsn) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
        connection.commit()
        connection.execute("INSERT INTO t VALUES (2)")
        backends = guard.descendants(server.pid)
        server.kill()
        assert guard.living(backends) == []
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    server.start()
    assert rows(dsn) == [1]


def test_settings_are_read_again_at_a_restart(killable_postgres: PostgresServer) -> None:
    def show(name: str) -> str:
        with psycopg.connect(killable_postgres.dsn()) as connection:
            row = connection.execute(f"SHOW {name}").fetchone()
            return str(row[0]) if row else ""

    assert (show("fsync"), show("synchronous_commit"), show("server_encoding")) == ("on", "on", "UTF8")
    killable_postgres.settings["synchronous_commit"] = "off"
    killable_postgres.restart()
    assert show("synchronous_commit") == "off"


def test_each_test_has_its_own_database(postgres_server: PostgresServer, postgres_dsn: str) -> None:
    other = postgres_server.create_database()
    make_table(postgres_dsn)
    with psycopg.connect(other) as connection:
        assert connection.execute("SELECT to_regclass('t')").fetchone() == (None,)
    postgres_server.drop_database(other)


def test_an_acknowledged_write_survives_a_kill_of_valkey(killable_valkey: ValkeyServer) -> None:
    killable_valkey.call("SET", "k", "v")
    killable_valkey.kill()
    with pytest.raises(redis.ConnectionError):
        killable_valkey.call("PING")
    killable_valkey.start()
    assert killable_valkey.call("GET", "k") == b"v"


def test_valkey_starts_empty_for_each_test(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0


def test_a_server_from_the_environment_is_never_stopped() -> None:
    for server in (PostgresServer(external="host=db.example"), ValkeyServer(external="redis://db.example")):
        for forbidden in (server.start().kill, server.stop, server.restart):
            with pytest.raises(NotOurs):
                forbidden()
        server.close()


def test_a_cluster_spreads_its_keys(valkey_cluster: ValkeyCluster, cluster_url: str) -> None:
    with redis.RedisCluster.from_url(cluster_url.replace("redis+cluster", "redis")) as client:
        for number in range(50):
            client.set(f"k{number}", number)
        assert client.get("k7") == b"7"
    assert all(node.call("DBSIZE") > 0 for node in valkey_cluster.nodes)
    assert valkey_cluster.node_of("k7").call("GET", "k7") == b"7"


def test_a_killed_node_comes_back_into_the_cluster(valkey_cluster: ValkeyCluster, cluster_url: str) -> None:
    node = valkey_cluster.node_of("k")
    node.call("SET", "k", "v")
    node.kill()
    node.start()
    valkey_cluster.wait_ok()
    assert node.call("GET", "k") == b"v"


def test_a_pooler_hands_out_server_sessions_per_transaction(pgbouncer_dsn: str) -> None:
    make_table(pgbouncer_dsn)
    with psycopg.connect(pgbouncer_dsn) as one, psycopg.connect(pgbouncer_dsn) as two:
        sessions = []
        for connection in (one, two):
            sessions.append(connection.execute("SELECT pg_backend_pid()").fetchone())
            connection.commit()
        assert sessions[0] == sessions[1]


def test_a_bouncer_may_be_killed_too(pgbouncer: PgBouncer) -> None:
    pgbouncer.kill()
    pgbouncer.start()
    with psycopg.connect(pgbouncer.dsn()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.fixture
def doomed(valkey_server: ValkeyServer, postgres_server: PostgresServer) -> Iterator[subprocess.Popen[str]]:
    """A process with servers of its own. (Those asked for here only tell whether servers can be had.)"""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", DOOMED]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=root, stdout=pipe, stderr=pipe, text=True) as process:
        yield process
        process.kill()


DOOMED = """
import time
from tests.servers import PostgresServer, ValkeyServer
for server in (PostgresServer().start(), ValkeyServer().start()):
    print(server.pid, server.directory, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_servers_end_with_the_process_that_started_them(doomed: subprocess.Popen[str], number: signal.Signals) -> None:
    """Also when that process has no chance to clean up."""
    assert doomed.stdout is not None
    started = [doomed.stdout.readline().split() for _ in range(2)]
    servers, directories = [int(pid) for pid, _ in started], [Path(path) for _, path in started]
    family = [*servers, *(pid for server in servers for pid in guard.descendants(server))]
    assert guard.living(family) == family
    doomed.send_signal(number)
    assert guard.wait_gone(family, 15)
    assert guard.until(lambda: not any(path.exists() for path in directories), 5)
