"""Valkey servers that follow one another: a replica, and its promotion."""

import time

from tests.servers.process import START_SECONDS, StartFailed
from tests.servers.valkey import ValkeyServer

__all__ = ["follow", "promote"]


def follow(replica: ValkeyServer, master: ValkeyServer) -> None:
    """Returns when everything that the master had then is on the replica too."""
    master.call("CONFIG", "SET", "repl-diskless-sync-delay", 0)  # or it waits 5 s for more replicas to come
    replica.call("REPLICAOF", master.host, master.port)
    end = time.monotonic() + START_SECONDS
    while not _caught_up(replica, master):
        if time.monotonic() > end:
            raise StartFailed(f"the replica did not catch up: {replica.call('INFO', 'replication')}")
        time.sleep(0.005)


def promote(replica: ValkeyServer) -> None:
    replica.call("REPLICAOF", "NO", "ONE")


def _caught_up(replica: ValkeyServer, master: ValkeyServer) -> bool:
    mine, theirs = replica.call("INFO", "replication"), master.call("INFO", "replication")
    return bool(
        mine.get("master_link_status") == "up" and mine["slave_repl_offset"] >= theirs["master_repl_offset"] - 100
    )
