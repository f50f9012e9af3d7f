"""The Redis store on a cluster: one slot for each space, and moves and deaths of servers."""

import os
import signal
import threading

import pytest
from redis.crc import key_slot

from tests.servers import ValkeyCluster
from twiceproof.errors import Misuse, StoreUnavailable
from twiceproof.records import Address, Batch, Check, Conflict, Insert, Remove, Replace, Written
from twiceproof.stores.base import SpaceBusy
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.redis import url as redis_target
from twiceproof.stores.redis.codec import META_KEY, lane_of
from twiceproof.stores.redis.connection import RedisConnection
from twiceproof.stores.redis.engine import RedisEngine

pytestmark = pytest.mark.server


def claim(space, key="self", body="mine"):
    return Insert(Address(space, "claim", key), body, state="held", draw=True, queue="q", due_in=0.0)


@pytest.fixture
def store(cluster_url):
    store = GroupedStore(RedisEngine(cluster_url))
    yield store
    store.close()


@pytest.fixture
def own_cluster():
    with ValkeyCluster() as cluster:
        yield cluster


def test_every_key_of_a_space_is_in_one_slot(store, valkey_cluster):
    store.write(claim("shop"), claim("shop", "{other}"), Check(Address("shop", "x", "y"), absent=True)).block()
    keys = [key for node in valkey_cluster.nodes for key in node.call("KEYS", "twiceproof:{*")]
    written = {key for key in keys if not key.endswith(b":epoch")}
    assert len(written) == 6  # two records, the index, the due index, its head and the counter
    assert {key_slot(key) for key in written} == {store.engine._lane("shop").slot}


def test_the_lanes_are_spread_over_all_servers(store):
    nodes = store.engine._nodes
    assert len({nodes.node_of(lane.slot).name for lane in store.engine.lanes}) == 3


def test_a_group_of_batches_goes_to_all_servers_at_once(store):
    batches = [Batch([claim(f"space {nth}")], f"nonce-{nth}") for nth in range(60)]
    answers = store.engine.commit(batches)
    assert all(isinstance(answer, Written) for answer in answers)
    found = store.engine.fetch([batch.writes[0].at for batch in batches])
    assert [answer.record.nonce for answer in found] == [batch.nonce for batch in batches]


def test_an_interrupted_group_leaves_no_connection_with_work_on_it_alive(store, monkeypatch):
    """Each server was sent its part: whoever tries again must not meet it later."""
    batches = [Batch([claim(f"space {nth}")], f"nonce-{nth}") for nth in range(60)]
    store.engine.fetch([batch.writes[0].at for batch in batches])

    def interrupted(link):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RedisConnection, "receive", interrupted)
        store.engine.commit(batches)
    assert [len(node._doomed) for node in store.engine._nodes.all()] == [1, 1, 1]
    assert all(isinstance(answer, Written | Conflict) for answer in store.engine.commit(batches))


def test_the_longest_overdue_comes_first_whatever_server_has_it(store):
    for nth in range(30):
        store.write(claim(f"space {nth}")).block()
    handed = [record.at.space for _ in range(6) for record in store.due("claim", queues=["q"], limit=5).block().records]
    assert handed == [f"space {nth}" for nth in range(30)]


def test_a_cluster_is_best_effort(store):
    assert store.best_effort
    assert any(finding.level == "warn" and "best effort" in finding.found for finding in store.examine())


def test_the_doctor_looks_at_every_server(store):
    assert sum(finding.name == "version" for finding in store.examine()) == 3


def test_a_single_servers_url_for_a_cluster_is_refused(cluster_url):
    with pytest.raises(Misuse, match=r"redis\+cluster://"):
        RedisEngine(cluster_url.replace("redis+cluster", "redis"))


def test_a_clusters_url_for_a_single_server_is_refused(redis_url):
    with pytest.raises(Misuse, match="redis://"):
        RedisEngine(redis_url.replace("redis://", "redis+cluster://"))


def test_an_outdated_map_is_corrected(store):
    """Every lane looked for on the wrong server: MOVED, a new map, and the write lands."""
    nodes = store.engine._nodes
    servers = nodes.all()
    nodes._by_slot = [(first, last, servers[0]) for first, last, _ in nodes.refresh()]
    for nth in range(10):
        assert isinstance(store.write(claim(f"space {nth}")).block(), Written)
    nodes._by_slot = [(first, last, servers[1]) for first, last, _ in nodes.refresh()]
    assert len(store.scan("claim").block().records) == 10
    nodes._by_slot = [(first, last, servers[2]) for first, last, _ in nodes.refresh()]
    assert store.read(Address("space 1", "claim", "self")).block().record is not None


# -- a slot on its way ---------------------------------------------------------------------------


def ids(cluster):
    return {node: node.call("CLUSTER", "MYID").decode() for node in cluster.nodes}


@pytest.mark.slow
def test_while_a_slot_moves_nobody_sees_half_a_lane(own_cluster):
    """Key by key, the slow way. A claim that has moved must not look free on the server it left."""
    engine = RedisEngine(own_cluster.url)
    old = engine.commit([Batch([claim("shop")], "nonce-1")])[0]
    slot, name = engine._lane("shop").slot, ids(own_cluster)
    source = own_cluster.node_of(engine._lane("shop").prefix)
    target = next(node for node in own_cluster.nodes if node is not source)
    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", name[source])
    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", name[target])
    keys = source.call("CLUSTER", "GETKEYSINSLOT", slot, 100)
    for nth, key in enumerate([*sorted(keys), None]):
        for write in (
            claim("shop"),
            claim("shop", f"new {nth}"),
            Replace(Address("shop", "claim", "self"), "", fence=old.fence),
        ):
            assert isinstance(engine.commit([Batch([write], f"nonce-{nth}")])[0], SpaceBusy)
        if key is not None:
            source.call("MIGRATE", target.host, target.port, key, 0, 1000)
    store = GroupedStore(engine)
    outcomes = []
    waiting = threading.Thread(target=lambda: outcomes.append(store.write(claim("shop", "waited")).block()))
    waiting.start()
    for node in (target, source):
        node.call("CLUSTER", "SETSLOT", slot, "NODE", name[target])
    waiting.join(10)
    assert isinstance(outcomes[0], Written)
    assert {record.at.key for record in store.scan("claim", space="shop").block().records} == {"self", "waited"}
    assert isinstance(store.write(Remove(Address("shop", "claim", "self"), fence=old.fence)).block(), Written)
    store.close()


# -- a server that dies --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "hanging"])
def test_the_death_of_one_server_is_no_trouble_for_the_spaces_of_the_others(own_cluster, monkeypatch, how):
    monkeypatch.setattr(redis_target, "SECONDS_TO_ANSWER", 0.3)
    for node in own_cluster.nodes:  # or the rest would stop serving, of its own accord
        node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
    store = GroupedStore(RedisEngine(own_cluster.url), patience=0.2)
    for nth in range(30):
        store.write(claim(f"space {nth}")).block()
    dead = own_cluster.nodes[1]
    lost = [lane.number for lane in store.engine.lanes if own_cluster.node_of(lane.prefix) is dead]
    dead.kill() if how == "killed" else os.kill(dead.pid, signal.SIGSTOP)
    store.read(Address(next(s for s in map(str, range(99)) if lane_of(s, 16) not in lost), "claim", "x")).block()
    batches = [Batch([claim(f"new {nth}")], f"nonce-{nth}") for nth in range(30)]
    answers = store._commit(batches)
    for batch, answer in zip(batches, answers, strict=True):
        expected = StoreUnavailable if lane_of(batch.space, 16) in lost else Written
        assert isinstance(answer, expected)
    due = store.due("claim", queues=["q"]).block()
    assert due.records
    assert due.next_in is not None and due.next_in <= 1.0
    store.close()
    if how == "hanging":
        os.kill(dead.pid, signal.SIGCONT)


def test_the_creation_is_recorded_once(cluster_url, valkey_cluster):
    engines = [RedisEngine(f"{cluster_url}?lanes={lanes}") for lanes in (5, 6)]
    assert [len(engine.lanes) for engine in engines] == [5, 5]
    assert b'"lanes":5' in valkey_cluster.node_of(META_KEY).call("GET", META_KEY)
    for engine in engines:
        engine.close()
