"""A Galera cluster of our own: MariaDB nodes on loopback that acknowledge a commit together."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.servers.address import free_port
from tests.servers.mariadb import MariadbServer
from tests.servers.process import StartFailed, Unavailable

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
PATIENCE = 60.0


class GaleraNode(MariadbServer):
    """One node. Ports: its own for clients, one for the group, one for increments, one for the first copy."""

    def __init__(self, group: list[int], nth: int) -> None:
        super().__init__()
        self.group, self.nth = group, nth
        self.first = nth == 0
        self._ports = [free_port(), free_port()]

    def command(self) -> list[str]:
        mine, (increments, copy) = self.group[self.nth], self._ports
        others = "" if self.first else ",".join(f"127.0.0.1:{port}" for port in self.group)
        provider = (
            f"gmcast.listen_addr=tcp://127.0.0.1:{mine};base_host=127.0.0.1;base_port={mine};"
            f"ist.recv_addr=127.0.0.1:{increments};ist.recv_bind=127.0.0.1:{increments};gcache.size=16M;"
            "pc.recovery=false"
        )
        return [
            *super().command(),
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            "--wsrep-on=ON",
            f"--wsrep-provider={PROVIDER}",
            "--wsrep-cluster-name=tp",
            f"--wsrep-cluster-address=gcomm://{others}",
            "--wsrep-node-address=127.0.0.1",
            f"--wsrep-node-incoming-address=127.0.0.1:{self.port}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address=127.0.0.1:{copy}",
            f"--wsrep-provider-options={provider}",
        ]

    def states(self) -> dict[str, str]:
        with self.connect() as admin, admin.cursor() as cursor:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'wsrep_%'")
            return dict(cursor.fetchall())

    def provide(self, options: str) -> None:
        """Change the provider's options while it runs: `gmcast.isolate=1` cuts the node off."""
        with self.connect() as admin, admin.cursor() as cursor:
            cursor.execute("SET GLOBAL wsrep_provider_options = %s", (options,))


class GaleraCluster:
    def __init__(self, size: int = 3) -> None:
        group = [free_port() for _ in range(size)]
        self.nodes = [GaleraNode(group, nth) for nth in range(size)]
        self._stack = ExitStack()

    def start(self) -> Self:
        if not PROVIDER.exists():
            raise Unavailable("Galera cannot be had: no libgalera_smm.so (Debian packages galera-4, rsync, socat)")
        for node in self.nodes:
            node.start()
            self._stack.callback(node.close)
            self.await_size(self.nodes.index(node) + 1, node)
        self.nodes[0].first = False  # started again, it joins the others
        return self

    def create_database(self) -> str:
        """A fresh, empty database, when every node has it; returns its name."""
        name = self.nodes[0].create_database().rpartition("/")[2]
        for node in self.nodes[1:]:
            with node.connect() as db, db.cursor() as cursor:
                cursor.execute("SET SESSION wsrep_sync_wait = 1")  # a look waits for what other nodes have acknowledged
                if not cursor.execute("SHOW DATABASES LIKE %s", (name,)):
                    raise StartFailed(f"{name} is not there on every node")
        return name

    def await_size(self, size: int, *nodes: GaleraNode) -> None:
        until = time.monotonic() + PATIENCE
        for node in nodes:
            while True:
                states = node.states()
                if states.get("wsrep_local_state_comment") == "Synced" and states["wsrep_cluster_size"] == str(size):
                    break
                if time.monotonic() > until:
                    raise StartFailed(f"the cluster has {states['wsrep_cluster_size']} nodes, not {size}")
                time.sleep(0.05)

    def close(self) -> None:
        self._stack.close()
