"""Real servers for tests and benches, on free loopback ports and in temporary directories.

    with PostgresServer() as server, FaultProxy(server.host, server.port) as proxy:
        dsn = proxy.url(server.create_database())

Not part of the package. The fixtures are in `tests.servers.fixtures`.
"""

from tests.servers.mariadb import MariadbServer
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.process import NotOurs, StartFailed, Unavailable
from tests.servers.proxy import Counters, FaultProxy
from tests.servers.valkey import ClusterNode, ValkeyCluster, ValkeyServer

__all__ = [
    "ClusterNode",
    "Counters",
    "FaultProxy",
    "MariadbServer",
    "NotOurs",
    "PgBouncer",
    "PostgresServer",
    "StartFailed",
    "Unavailable",
    "ValkeyCluster",
    "ValkeyServer",
]
