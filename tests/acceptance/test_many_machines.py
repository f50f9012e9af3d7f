"""One ledger for several machines, through the loss of a server: docs/why/many-machines.md has the figures.

A machine is an app of its own with connections of its own. Effects are counted outside of the product.
"""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.servers import FaultProxy
from tests.servers.galera import GaleraCluster
from tests.servers.process import Unavailable
from tests.servers.standby import PostgresStandby
from tests.servers.valkey import ValkeyCluster
from twiceproof import App, ClaimError
from twiceproof.errors import StoreError

pytestmark = [pytest.mark.server, pytest.mark.slow]

MACHINES, KEYS = 3, 240


class Counted:
    """What happened outside, what callers were told, and how long the longest of them waited."""

    def __init__(self):
        self.effects, self.told, self.done = Counter(), Counter(), set()
        self.longest = 0.0
        self._mutex = threading.Lock()

    def effect(self, key):
        with self._mutex:
            self.effects[key] += 1
            return len(self.effects)

    def tell(self, key, outcome, seconds):
        with self._mutex:
            self.told[outcome] += 1
            self.longest = max(self.longest, seconds)
            if outcome == "result":
                self.done.add(key)


def storm(apps, lose_server, at):
    """Each machine calls for every key; after `at` effects a server is lost."""
    counted, lost = Counted(), threading.Event()

    def calls(app):
        @app.once(key="order:{n}", name="charge", lease=60.0)
        def charge(n: int) -> str:
            if counted.effect(n) == at:
                lost.set()
            return f"receipt {n}"

        for n in range(KEYS):
            began = time.monotonic()
            try:
                outcome = "result" if charge(n) == f"receipt {n}" else "wrong"
            except ClaimError as error:
                outcome = type(error).__name__
            except StoreError as error:
                outcome = type(error).__name__
            counted.tell(n, outcome, time.monotonic() - began)

    with ThreadPoolExecutor(MACHINES + 1) as pool:
        work = [pool.submit(calls, app) for app in apps]
        assert lost.wait(60)
        lose_server()
        for one in work:
            one.result(timeout=180)
    return counted


def on_record(apps):
    app = apps[0]
    return {n for n in range(KEYS) if _is_done(app.operations["charge"], n)}


def _is_done(once, n):
    from twiceproof.claims.claim import Done
    from twiceproof.operations import block

    return isinstance(block(once.look((n,), {})), Done)


def report(name, counted, capsys):
    with capsys.disabled():
        told = ", ".join(f"{count} {what}" for what, count in counted.told.most_common())
        print(f"\n{name}: {len(counted.effects)} effects, told {told}, longest wait {counted.longest:.1f} s")


def nothing_is_lost(counted, kept):
    assert set(counted.effects.values()) == {1}
    assert counted.done <= kept  # what a caller was told is there
    assert counted.told["wrong"] == 0


def test_postgresql_with_a_synchronous_standby_loses_nothing(killable_postgres, capsys):
    dsn = killable_postgres.create_database()
    with (
        FaultProxy(killable_postgres.host, killable_postgres.port) as address,
        PostgresStandby(killable_postgres) as standby,
    ):
        standby.be_synchronous()
        apps = [App(address.url(dsn)) for _ in range(MACHINES)]

        def lose_server():
            killable_postgres.kill()
            standby.promote()
            address.lead_to(standby.host, standby.port)

        counted = storm(apps, lose_server, KEYS // 3)
        kept = on_record(apps)
        for app in apps:
            app.close()
    report("PostgreSQL, synchronous standby promoted", counted, capsys)
    nothing_is_lost(counted, kept)


def test_a_redis_cluster_of_which_a_node_is_killed_repeats_nothing_that_is_on_record(capsys):
    """Best effort: a node that restarts from its append-only file has what was acknowledged; a failover may not."""
    with ValkeyCluster(disk=True) as cluster:
        for node in cluster.nodes:
            node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
        apps = [App(cluster.url, best_effort=True) for _ in range(MACHINES)]
        assert apps[0].store.best_effort

        def lose_server():
            cluster.nodes[1].kill()
            cluster.nodes[1].start()

        counted = storm(apps, lose_server, KEYS // 3)
        kept = on_record(apps)
        for app in apps:
            app.close()
    report("Redis Cluster, a node killed and restarted", counted, capsys)
    assert set(counted.effects.values()) == {1}
    assert counted.done <= kept


def test_galera_of_which_a_node_is_killed_loses_nothing(capsys):
    """Each machine has a node of its own; the machine whose node dies is led to another one, as by a proxy."""
    cluster = GaleraCluster()
    with ExitStack() as stack:
        stack.callback(cluster.close)
        try:
            nodes = cluster.start().nodes
        except Unavailable as error:
            pytest.skip(str(error))
        name = cluster.create_database()
        addresses = [stack.enter_context(FaultProxy(node.host, node.port)) for node in nodes]
        apps = [App(address.url(node.url(name))) for address, node in zip(addresses, nodes, strict=True)]

        def lose_server():
            nodes[2].kill()
            addresses[2].lead_to(nodes[0].host, nodes[0].port)

        counted = storm(apps, lose_server, KEYS // 3)
        kept = on_record(apps)
        for app in apps:
            app.close()
    report("Galera, one of three nodes killed", counted, capsys)
    nothing_is_lost(counted, kept)


def test_etcd_whose_leader_is_killed_loses_nothing(killable_etcd, capsys):
    apps = [App(f"etcd://{killable_etcd.hosts}/shop") for _ in range(MACHINES)]
    counted = storm(apps, lambda: killable_etcd.leader().kill(), KEYS // 3)
    kept = on_record(apps)
    for app in apps:
        app.close()
    report("etcd, the leader of three killed", counted, capsys)
    nothing_is_lost(counted, kept)
