"""What is put into the Redis store comes out of it, whatever it is made of."""

import multiprocessing

import pytest

from twiceproof.errors import BadWrite, SchemaMismatch
from twiceproof.records import Address, Batch, Check, Insert, Remove, Replace, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.redis import codec as redis_rows
from twiceproof.stores.redis.codec import META_KEY, SCHEMA, Lane, Meta, lane_of
from twiceproof.stores.redis.engine import RedisEngine

pytestmark = pytest.mark.server

AWKWARD = [
    '\\ \\\\ \\" "',
    "'; return 1 --",
    "Grüße, 世界, 🎉",
    "a\nb\r\n*3\r\n$3\r\nDEL\r\n",
    "{lane-1}",
    "%s %d \x01\x7f",
]


@pytest.fixture(params=["redis_url", "cluster_url"], ids=["one server", "cluster"])
def store(request):
    store = GroupedStore(RedisEngine(request.getfixturevalue(request.param)))
    yield store
    store.close()


@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_text_survives_everywhere(store, text):
    at = Address(f"space {text}", f"k {text}", f"key {text}")
    insert = Insert(at, text, state=text[:16], draw=True, queue=text, due_in=0.0)
    fence = store.write(insert, Check(Address(at.space, at.kind, "other"), absent=True)).block().fence
    record = store.read(at).block().record
    assert (record.at, record.body, record.state, record.queue) == (at, text, text[:16], text)
    assert store.scan(at.kind, space=at.space, state=text[:16]).block().records == [record]
    assert [found.at for found in store.due(at.kind, queues=[text]).block().records] == [at]
    assert isinstance(store.write(Remove(at, fence=fence)).block(), Written)
    assert store.scan(at.kind).block().records == []


def test_a_large_body_survives_and_a_heartbeat_does_not_send_it_again(store):
    at, body = Address("s", "claim", "large"), "é" * 524_288
    fence = store.write(Insert(at, body, draw=True)).block().fence
    store.write(Replace(at, None, state="held", fence=fence, lease=30.0)).block()
    record = store.read(at).block().record
    assert record.body == body
    assert record.lease_until is not None


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 65_535, 65_536])
def test_a_heartbeat_and_a_hand_out_keep_a_body_of_any_length(store, size):
    """Neither unpacks the record: they know where its parts begin, and lengths are packed in many ways."""
    at, queue = Address("s", "claim", "x"), "q" * min(size, 256)
    fence = store.write(Insert(at, "b" * size, state="s" * min(size, 32), draw=True)).block().fence
    beat = Replace(at, None, state="t" * min(size, 32), fence=fence, queue=queue, due_in=0.0, lease=30.0)
    written = store.write(beat).block()
    (handed,) = store.due("claim", queues=[queue], hide=60.0).block().records
    assert (handed.body, handed.state, handed.queue, handed.fence) == ("b" * size, beat.state, queue, fence)
    assert handed.version != written.version
    assert handed.lease_until == pytest.approx(written.now + 30.0)
    assert store.read(at).block().record == handed


def test_a_group_of_large_batches_goes_in_several_calls(store, monkeypatch):
    monkeypatch.setattr(redis_rows, "ENOUGH_BYTES", 3_000)
    monkeypatch.setattr(redis_rows, "MOST_BYTES", 10_000)
    sizes = [1_000, 9_000, 11_000, 10, 2_000, 2_000]
    batches = [Batch([Insert(Address("s", "claim", str(n)), "x" * size)], f"n{n}") for n, size in enumerate(sizes)]
    answers = store.engine.commit(batches)
    assert [type(answer) for answer in answers] == [Written, Written, BadWrite, Written, Written, Written]
    assert {record.at.key for record in store.scan("claim").block().records} == {"0", "1", "3", "4", "5"}


def test_numbers_of_a_lane_only_grow(store):
    at = Address("s", "claim", "again")
    fences = []
    for _ in range(5):
        fences.append(store.write(Insert(at, "", draw=True)).block().fence)
        store.write(Remove(at, fence=fences[-1])).block()
    assert fences == sorted(set(fences))


def test_versions_of_another_store_are_simply_not_the_one_found(store):
    at = Address("s", "claim", "x")
    version = store.write(Insert(at, "")).block().version
    for foreign in ("", "x", f"0{version}", "9" * 40, "-1", "١"):
        assert not isinstance(store.write(Replace(at, "no", version=foreign)).block(), Written)
    assert isinstance(store.write(Replace(at, "yes", version=version)).block(), Written)


@pytest.mark.parametrize("after", ["17", "9" * 5_000 + ":shop"], ids=["a number", "a long one"])
def test_a_cursor_of_another_store_is_refused(store, after):
    with pytest.raises(BadWrite, match="cursor"):
        store.scan("claim", after=after).block()


# -- lanes ---------------------------------------------------------------------------------------


def test_a_lane_is_where_it_always_was():
    """Known values: another hash would look for every record in the wrong place."""
    assert [lane_of(space, 16) for space in ("", "shop", "shop/order:1", "Grüße")] == [0, 2, 3, 1]
    assert Lane(17).prefix == "twiceproof:{lane-17}"


def test_the_number_of_lanes_is_the_one_the_store_was_created_with(redis_url):
    first = RedisEngine(redis_url + "?lanes=3")
    second = RedisEngine(redis_url + "?lanes=64")
    third = RedisEngine(redis_url)
    assert [len(engine.lanes) for engine in (first, second, third)] == [3, 3, 3]
    assert any("as the store was created" in finding.found for finding in second.examine())
    for engine in (first, second, third):
        engine.close()


def test_a_store_of_a_newer_release_is_refused(valkey_server, redis_url):
    valkey_server.call("SET", META_KEY, Meta(schema=99, lanes=16).text())
    with pytest.raises(SchemaMismatch, match="upgrade"):
        RedisEngine(redis_url)


def test_a_store_of_a_newer_layout_is_refused(valkey_server, redis_url):
    valkey_server.call("SET", META_KEY, Meta(schema=SCHEMA + 1, lanes=16).text())
    with pytest.raises(SchemaMismatch, match="newer release"):
        RedisEngine(redis_url)


def test_a_store_of_this_layout_is_opened_again(redis_url):
    for _ in range(2):
        RedisEngine(redis_url).close()


def test_a_key_that_is_not_ours_is_refused(valkey_server, redis_url):
    valkey_server.call("SET", META_KEY, "hello")
    with pytest.raises(SchemaMismatch, match="another database"):
        RedisEngine(redis_url)


# -- many processes ------------------------------------------------------------------------------


def _insert_all(url, count, name, wins):
    store = GroupedStore(RedisEngine(url))
    for nth in range(count):
        outcome = store.write(Insert(Address(f"order:{nth}", "claim", "self"), name, draw=True)).block()
        if isinstance(outcome, Written):
            wins.put((nth, name))
    wins.put(None)
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["redis_url", "cluster_url"])
def test_of_four_processes_one_wins_each_key(request, fixture):
    url = request.getfixturevalue(fixture)
    fresh = multiprocessing.get_context("spawn")
    wins = fresh.Queue()
    processes = [fresh.Process(target=_insert_all, args=(url, 300, f"p{nth}", wins)) for nth in range(4)]
    for process in processes:
        process.start()
    won = [win for _ in processes for win in iter(wins.get, None)]
    for process in processes:
        process.join(20)
    assert sorted(nth for nth, _ in won) == list(range(300))
    store = GroupedStore(RedisEngine(url))
    assert all(store.read(Address(f"order:{nth}", "claim", "self")).block().record.body == name for nth, name in won)
    store.close()
