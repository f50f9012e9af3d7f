"""The Redis store when things break: lost answers, a killed server, forgotten scripts, a full memory."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.servers import FaultProxy, ValkeyServer
from twiceproof.errors import StoreError, StoreFull, StoreUnavailable
from twiceproof.records import Address, Batch, Conflict, Insert, Lost, Remove, Replace, Written
from twiceproof.stores.base import Disconnected
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.redis import url as redis_target
from twiceproof.stores.redis.connection import RedisServer
from twiceproof.stores.redis.engine import RedisEngine

pytestmark = pytest.mark.server

AT = Address("shop/order:1", "claim", "self")


def claim(at=AT, body="mine"):
    return Insert(at, body, state="held", draw=True, lease=30.0)


def numbered(nth):
    return Address(f"shop/order:{nth}", "claim", "self")


def wait_until(true, seconds=10.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.001)


@pytest.fixture
def opened():
    """Opens stores, and closes them after the test."""
    stores = []

    def open_(url):
        stores.append(GroupedStore(RedisEngine(url)))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


@pytest.fixture
def proxy(valkey_server, redis_url, fault_proxy) -> FaultProxy:
    return fault_proxy(valkey_server.host, valkey_server.port)


@pytest.fixture
def by_proxy(proxy, redis_url, opened):
    return opened(proxy.url(redis_url))


# -- lost acknowledgements -----------------------------------------------------------------------


def test_a_write_whose_answer_was_lost_is_recognised(by_proxy, proxy):
    by_proxy.read(AT).block()
    proxy.drop_next_reply(b"EVALSHA")
    outcome = by_proxy.write(claim()).block()
    assert isinstance(outcome, Written)
    assert proxy.counters.replies_dropped == 1
    assert by_proxy.read(AT).block().record.fence == outcome.fence


def test_a_write_that_never_left_lands_at_the_next_try(by_proxy, proxy):
    by_proxy.read(AT).block()
    proxy.cut()
    assert isinstance(by_proxy.write(claim()).block(), Written)


def test_a_lost_answer_whose_record_was_overwritten_is_lost_not_conflict(by_proxy, proxy, redis_url, opened):
    other = opened(redis_url)
    commit = by_proxy.engine.commit

    def overtaken(batches):
        """Between the first try and the second, somebody else writes over what the first left."""
        try:
            return commit(batches)
        except Disconnected:
            found = other.read(AT).block().record
            other.write(Replace(AT, "theirs", version=found.version, draw=True)).block()
            by_proxy.engine.commit = commit
            raise

    by_proxy.read(AT).block()
    by_proxy.engine.commit = overtaken
    proxy.drop_next_reply(b"EVALSHA")
    outcome = by_proxy.write(claim()).block()
    assert isinstance(outcome, Lost)
    assert outcome.found.body == "theirs"


def test_after_a_broken_connection_anothers_record_is_never_taken_for_ones_own(by_proxy, proxy):
    by_proxy.write(claim()).block()
    proxy.cut()
    outcome = by_proxy.write(claim(body="second")).block()
    assert isinstance(outcome, Lost | Conflict)
    assert outcome.found.body == "mine"


@pytest.mark.parametrize("silenced", [True, False], ids=["killed", "left alone (control)"])
def test_a_straggler_cannot_bring_back_what_was_removed(
    proxy, valkey_server: ValkeyServer, redis_url, monkeypatch, silenced
):
    monkeypatch.setattr(redis_target, "SECONDS_TO_ANSWER", 0.2)
    engine = RedisEngine(proxy.url(redis_url))
    engine.fetch([AT])
    if not silenced:
        monkeypatch.setattr(RedisServer, "_silence", lambda node, link: None)
    proxy.hold(replies=False)
    with pytest.raises(Disconnected) as broken:
        engine.commit([Batch([claim()], "nonce-1")])
    assert broken.value.sent
    (node,) = engine._nodes.all()
    node.port = valkey_server.port  # the way around the network's trouble
    (landed,) = engine.commit([Batch([claim()], "nonce-1")])
    engine.commit([Batch([Remove(AT, fence=landed.fence)], "nonce-2")])
    proxy.resume()
    wait_until(lambda: not proxy._links)  # the straggler has been passed on, and its connection is gone
    assert (engine.fetch([AT])[0].record is None) is silenced
    engine.close()


def test_a_straggler_cannot_bring_back_what_a_readers_connection_removed(
    proxy, valkey_server: ValkeyServer, redis_url, monkeypatch
):
    """A reader's connection was in use while the other broke, and is free when the commit is tried again."""
    monkeypatch.setattr(redis_target, "SECONDS_TO_ANSWER", 0.2)
    engine = RedisEngine(proxy.url(redis_url))
    engine.fetch([AT])
    (node,) = engine._nodes.all()
    node.port = valkey_server.port
    reading = node.open()
    proxy.hold(replies=False)
    with pytest.raises(Disconnected):
        engine.commit([Batch([claim()], "nonce-1")])
    node.give_back(reading)
    (landed,) = engine.commit([Batch([claim()], "nonce-1")])
    engine.commit([Batch([Remove(AT, fence=landed.fence)], "nonce-2")])
    proxy.resume()
    wait_until(lambda: not proxy._links)
    assert engine.fetch([AT])[0].record is None
    engine.close()


def test_a_connection_that_breaks_while_others_are_killed_is_not_forgotten(redis_url):
    engine = RedisEngine(redis_url)
    (node,) = engine._nodes.all()

    class Meanwhile:
        """A commit's connection breaks on another thread."""

        def ask(self, *commands):
            node._doomed.append((node.server, 2))

    node._doomed.append((node.server, 1))
    node._silence(Meanwhile())
    assert node._doomed == [(node.server, 2)]
    node._doomed.clear()
    engine.close()


def test_a_server_that_is_away_for_too_long_is_an_error_that_says_so(killable_valkey: ValkeyServer):
    store = GroupedStore(RedisEngine(killable_valkey.url), patience=0.1)
    killable_valkey.kill()
    with pytest.raises(StoreUnavailable, match="try again"):
        store.write(claim()).block()
    with pytest.raises(StoreUnavailable):
        store.read(AT).block()
    killable_valkey.start()
    assert isinstance(store.write(claim()).block(), Written)
    store.close()


def test_a_server_that_is_not_there_is_an_error_that_names_it_but_no_password():
    with pytest.raises(StoreUnavailable) as error:
        RedisEngine("redis://joe:hunter2@127.0.0.1:1/0")
    assert "127.0.0.1:1" in str(error.value)
    assert "hunter2" not in str(error.value)


# -- kill -9 -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_when_the_server_is_killed(killable_valkey: ValkeyServer, opened):
    store = opened(killable_valkey.url)
    enough = threading.Semaphore(0)

    def write(nth):
        outcome = store.write(claim(numbered(nth))).block()
        enough.release()
        return nth, outcome

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(write, nth) for nth in range(600)]
        for _ in range(200):
            enough.acquire()
        killable_valkey.kill()
        killable_valkey.start()
        outcomes = dict(future.result() for future in futures)
    landed = {nth for nth, outcome in outcomes.items() if isinstance(outcome, Written)}
    assert len(landed) == 600
    found = {nth: store.read(numbered(nth)).block().record for nth in landed}
    assert all(found[nth].fence == outcomes[nth].fence for nth in landed)


def test_without_an_append_only_file_everything_is_lost_and_so_it_is_refused(killable_valkey, opened):
    """The control: the same kill, without persistence."""
    killable_valkey.call("CONFIG", "SET", "appendonly", "no")
    with pytest.raises(StoreError, match="append-only"):
        opened(killable_valkey.url)
    store = opened(killable_valkey.url + "?durability=cache")
    assert store.best_effort
    assert isinstance(store.write(claim()).block(), Written)
    killable_valkey.kill()
    killable_valkey.start()
    assert store.read(AT).block().record is None


def test_fences_skip_ahead_when_another_process_serves_the_store(killable_valkey: ValkeyServer, opened):
    """Its last writes may be lost, and the counter with them: no number may be drawn twice."""
    store = opened(killable_valkey.url)
    before = store.write(claim()).block()
    killable_valkey.restart()
    after = store.write(Replace(AT, "taken over", fence=before.fence, draw=True)).block()
    assert after.fence > before.fence + 900_000
    again = store.write(Replace(AT, "taken over", fence=after.fence, draw=True)).block()
    assert again.fence == after.fence + 1


# -- scripts -------------------------------------------------------------------------------------


def test_a_server_that_forgot_the_scripts_is_taught_again(valkey_server: ValkeyServer, redis_url, opened):
    store = opened(redis_url)
    fences = []
    for _ in range(3):
        outcome = store.write(claim()).block()
        fences.append(outcome.fence)
        valkey_server.call("SCRIPT", "FLUSH")
        assert store.read(AT).block().record.fence == outcome.fence
        store.write(Remove(AT, fence=outcome.fence)).block()
        valkey_server.call("SCRIPT", "FLUSH")
    assert fences == sorted(set(fences))


def test_the_counter_never_expires(valkey_server: ValkeyServer, redis_url, opened):
    store = opened(redis_url)
    fence = store.write(claim()).block().fence
    store.write(Remove(AT, fence=fence)).block()
    keys = valkey_server.call("KEYS", "twiceproof:*")
    assert any(key.endswith(b":number") for key in keys)
    assert {valkey_server.call("TTL", key) for key in keys} == {-1}


def test_removing_a_record_leaves_no_key_of_it(valkey_server: ValkeyServer, redis_url, opened):
    store = opened(redis_url)
    store.write(Insert(AT, "x", state="held", draw=True, queue="q", due_in=5.0)).block()
    fence = store.write(Insert(numbered(2), "x", draw=True, queue="q", due_in=5.0)).block().fence
    store.write(Remove(AT, version=store.read(AT).block().record.version)).block()
    store.write(Remove(numbered(2), fence=fence)).block()
    left = {key.rsplit(b":", 1)[1] for key in valkey_server.call("KEYS", "twiceproof:{*")}
    assert left <= {b"number", b"epoch"}


# -- a full memory -------------------------------------------------------------------------------


@pytest.fixture
def full(killable_valkey: ValkeyServer, opened):
    """A store with one record, on a server that has no room left."""
    store = opened(killable_valkey.url)
    store.write(claim()).block()
    killable_valkey.call("CONFIG", "SET", "maxmemory", "1mb")
    return store


def snapshot(server):
    """Everything but the traces of connecting."""
    keys = sorted(key for key in server.call("KEYS", "*") if not key.endswith(b":epoch"))
    return {key: server.call("DUMP", key) for key in keys}


def test_a_full_memory_is_store_full_and_nothing_is_half_written(full, killable_valkey):
    before = snapshot(killable_valkey)
    with pytest.raises(StoreFull, match="maxmemory"):
        full.write(*(claim(Address("shop", "claim", str(nth))) for nth in range(5))).block()
    assert snapshot(killable_valkey) == before


def test_when_there_is_room_again_the_same_write_lands(full, killable_valkey):
    with pytest.raises(StoreFull):
        full.write(claim(numbered(2))).block()
    killable_valkey.call("CONFIG", "SET", "maxmemory", "0")
    assert isinstance(full.write(claim(numbered(2))).block(), Written)


def test_a_full_memory_can_still_be_read_and_purged(full):
    record = full.read(AT).block().record
    assert isinstance(full.write(Remove(AT, fence=record.fence)).block(), Written)
    assert full.read(AT).block().record is None


def test_in_one_group_a_removal_lands_and_an_insert_before_it_is_refused(full):
    record = full.read(AT).block().record
    refused, landed = full.engine.commit(
        [Batch([claim(numbered(2))], "nonce-1"), Batch([Remove(AT, fence=record.fence)], "nonce-2")]
    )
    assert isinstance(refused, StoreFull)
    assert isinstance(landed, Written)


# -- strangers among the keys --------------------------------------------------------------------


@pytest.mark.parametrize("part", ["i", "r:claim\0shop/order:1\0self", "number"])
def test_a_key_of_another_type_is_refused_and_changes_no_record(valkey_server, redis_url, opened, part):
    store = opened(redis_url)
    lane = store.engine._lane(AT.space).prefix
    valkey_server.call("DEL", f"{lane}:{part}")
    valkey_server.call("RPUSH", f"{lane}:{part}", "foreign")
    with pytest.raises(StoreError, match="did not write"):
        store.write(claim()).block()
    assert part.startswith("r:") or store.read(AT).block().record is None


def test_one_bad_batch_does_not_harm_its_neighbours(valkey_server, redis_url, opened):
    store = opened(redis_url)
    lane = store.engine._lane(AT.space).prefix
    valkey_server.call("RPUSH", f"{lane}:r:claim\0{AT.space}\0{AT.key}", "foreign")
    before, bad, after = store.engine.commit(
        [Batch([claim(at)], f"nonce-{at.space}") for at in (numbered(2), AT, numbered(3))]
    )
    assert isinstance(before, Written)
    assert isinstance(bad, StoreError)
    assert isinstance(after, Written)
