"""Pytest fixtures: servers live for a session (one each per xdist worker), what is in them for a test.

`TWICEPROOF_TEST_POSTGRES` (a DSN that may create databases) and `TWICEPROOF_TEST_REDIS` (a URL; from its
database number on, one database per xdist worker is emptied) name servers to use instead of starting them.
"""

import os
from collections.abc import Callable, Iterator
from secrets import token_hex
from typing import Protocol, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.servers.azurite import Azurite
from tests.servers.dovecot import Dovecot
from tests.servers.dynamodb import DynamoDbLocal, DynamoDbOnDisk, MinistackDynamoDb
from tests.servers.etcd import EtcdCluster
from tests.servers.galera import GaleraCluster
from tests.servers.mariadb import MariadbServer
from tests.servers.ministack import SqsServer
from tests.servers.nats import NatsServer
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.process import Unavailable
from tests.servers.proxy import FaultProxy
from tests.servers.rabbitmq import RabbitServer
from tests.servers.valkey import ValkeyCluster, ValkeyServer


class _Server(Protocol):
    def start(self) -> Self: ...
    def close(self) -> None: ...


S = TypeVar("S", bound=_Server)


def _running(server: S) -> Iterator[S]:
    """Started before, closed after; a visible skip when this machine cannot have it."""
    try:
        server.start()
        yield server
    except Unavailable as error:
        pytest.skip(str(error))
    finally:
        server.close()


def _lent_redis() -> str | None:
    """The URL from the environment, with a database of its own for each xdist worker."""
    lent = os.environ.get("TWICEPROOF_TEST_REDIS")
    if not lent:
        return None
    parts = urlsplit(lent)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return urlunsplit(parts._replace(path=f"/{int(parts.path.strip('/') or 0) + worker}"))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    yield from _running(PostgresServer(external=os.environ.get("TWICEPROOF_TEST_POSTGRES")))


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    yield from _running(ValkeyServer(external=_lent_redis()))


@pytest.fixture(scope="session")
def valkey_cluster() -> Iterator[ValkeyCluster]:
    yield from _running(ValkeyCluster())


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariadbServer]:
    yield from _running(MariadbServer())


@pytest.fixture(scope="session")
def galera_cluster() -> Iterator[GaleraCluster]:
    yield from _running(GaleraCluster())


@pytest.fixture
def mariadb_url(mariadb_server: MariadbServer) -> Iterator[str]:
    """A fresh database."""
    url = mariadb_server.create_database()
    yield url
    mariadb_server.drop_database(url)


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    yield from _running(PgBouncer(postgres_server.dsn()))


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    yield from _running(NatsServer())


@pytest.fixture(scope="session")
def rabbit_server() -> Iterator[RabbitServer]:
    yield from _running(RabbitServer())


@pytest.fixture(scope="session")
def sqs_server() -> Iterator[SqsServer]:
    yield from _running(SqsServer())


@pytest.fixture
def postgres_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh database."""
    dsn = postgres_server.create_database()
    yield dsn
    postgres_server.drop_database(dsn)


@pytest.fixture
def pgbouncer_dsn(pgbouncer: PgBouncer, postgres_dsn: str) -> str:
    """A fresh database, by way of a transaction pooler."""
    return pgbouncer.dsn(postgres_dsn)


@pytest.fixture
def redis_url(valkey_server: ValkeyServer) -> str:
    """An empty server."""
    valkey_server.empty()
    return valkey_server.url


@pytest.fixture
def cluster_url(valkey_cluster: ValkeyCluster) -> str:
    """An empty cluster."""
    valkey_cluster.empty()
    return valkey_cluster.url


@pytest.fixture(scope="session")
def ministack() -> Iterator[MinistackDynamoDb]:
    yield from _running(MinistackDynamoDb())


@pytest.fixture
def killable_ministack() -> Iterator[MinistackDynamoDb]:
    """A server for one test alone."""
    yield from _running(MinistackDynamoDb())


@pytest.fixture(scope="session")
def dynamodb_local() -> Iterator[DynamoDbLocal]:
    yield from _running(DynamoDbLocal())


@pytest.fixture
def killable_dynamodb() -> Iterator[DynamoDbOnDisk]:
    """A server for one test alone."""
    yield from _running(DynamoDbOnDisk())


@pytest.fixture
def aws_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """For emulators, which take any."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


@pytest.fixture
def dynamodb_url(ministack: MinistackDynamoDb, aws_credentials: None) -> str:
    """A table that does not exist yet."""
    return ministack.url(f"ledger-{token_hex(6)}")


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    yield from _running(Azurite())


@pytest.fixture
def killable_azurite() -> Iterator[Azurite]:
    """A server for one test alone."""
    yield from _running(Azurite())


@pytest.fixture(scope="session")
def etcd_cluster() -> Iterator[EtcdCluster]:
    yield from _running(EtcdCluster())


@pytest.fixture
def etcd_url(etcd_cluster: EtcdCluster) -> str:
    """A ledger of its own."""
    return f"etcd://{etcd_cluster.hosts}/ledger-{token_hex(6)}"


@pytest.fixture
def killable_etcd() -> Iterator[EtcdCluster]:
    """A cluster for one test alone."""
    yield from _running(EtcdCluster())


@pytest.fixture
def parted_etcd() -> Iterator[EtcdCluster]:
    """A cluster for one test alone, whose members can be cut off from each other."""
    yield from _running(EtcdCluster(gates=True))


@pytest.fixture
def killable_postgres() -> Iterator[PostgresServer]:
    """A server for one test alone, always ours, to be killed and restarted at will."""
    yield from _running(PostgresServer())


@pytest.fixture
def killable_mariadb() -> Iterator[MariadbServer]:
    """A server for one test alone, to be killed and restarted at will."""
    yield from _running(MariadbServer())


@pytest.fixture
def killable_valkey() -> Iterator[ValkeyServer]:
    """A server for one test alone, always ours, to be killed and restarted at will."""
    yield from _running(ValkeyServer())


@pytest.fixture
def fault_proxy() -> Iterator[Callable[[str, int], FaultProxy]]:
    """Makes proxies in front of a host and port, and closes them after the test."""
    made: list[FaultProxy] = []

    def make(host: str, port: int) -> FaultProxy:
        made.append(FaultProxy(host, port).start())
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


@pytest.fixture(scope="session")
def dovecot() -> Iterator[Dovecot]:
    yield from _running(Dovecot())
