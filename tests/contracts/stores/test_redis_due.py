"""Looking for due work on Redis costs what is due, however many queues there are, and nothing is overlooked."""

import pytest

from tests.contracts.stores.movable_redis import MovableRedisEngine
from twiceproof.errors import SchemaMismatch
from twiceproof.prove.store_contract.case import due_keys, land, record_at, schedule, take_due
from twiceproof.records import Replace
from twiceproof.stores.base import FEW
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.redis.codec import META_KEY, SCHEMA, Meta
from twiceproof.stores.redis.engine import RedisEngine

pytestmark = pytest.mark.server

MANY = [f"t{nth}/sync@1" for nth in range(2_000)]
SOME = [f"t{nth}/sync@1" for nth in range(FEW + 1)]


@pytest.fixture
def store(redis_url):
    store = GroupedStore(MovableRedisEngine(redis_url))
    yield store
    store.close()


def calls(server):
    """How many commands the server has carried out, those within scripts too."""
    stats = server.call("INFO", "commandstats")
    lines = stats.items() if isinstance(stats, dict) else ()
    return sum(one["calls"] for name, one in lines if name.startswith("cmdstat_z"))


def cost_of_a_look(server, store, queues):
    take_due(store, queues)
    before = calls(server)
    take_due(store, queues)
    return calls(server) - before


def test_a_look_costs_the_same_for_two_thousand_idle_tenants_as_for_a_few(valkey_server, store):
    few = cost_of_a_look(valkey_server, store, SOME)
    assert few > 0
    assert cost_of_a_look(valkey_server, store, MANY) == few


def test_a_look_hardly_costs_more_with_something_asleep_in_two_thousand_tenants(valkey_server, store):
    for nth, queue in enumerate(MANY):
        schedule(store, nth, 10_000 + nth, queue=queue)
    assert cost_of_a_look(valkey_server, store, MANY) < 32 * 16
    assert take_due(store, MANY).next_in == pytest.approx(10_000, abs=30)


def test_what_falls_due_is_found_among_many_queues_the_longest_overdue_first(store):
    for nth in (700, 3, 1_999, 42):
        schedule(store, nth, nth, queue=MANY[nth])
    store.engine.advance(1_000)
    assert due_keys(store, *MANY, hide=500) == ["3", "42", "700"]
    assert take_due(store, MANY).next_in == pytest.approx(500, abs=20)  # what was handed out comes back
    store.engine.advance(1_000)
    assert sorted(due_keys(store, *MANY)) == ["1999", "3", "42", "700"]


def test_what_others_serve_is_neither_handed_out_nor_in_the_way(store):
    for nth in range(500):
        schedule(store, f"theirs {nth}", 0, queue=f"theirs{nth}@1")
        schedule(store, f"theirs later {nth}", 50, queue=f"later{nth}@1")
    schedule(store, "ours", 0, queue=MANY[7])
    schedule(store, "ours later", 60, queue=MANY[8])
    assert due_keys(store, *MANY) == ["ours"]
    assert take_due(store, MANY).next_in <= 60
    assert len(due_keys(store, *(f"theirs{nth}@1" for nth in range(500)), limit=1_000)) == 500


def test_many_queues_whose_work_was_done_elsewhere_do_not_hide_what_is_due(store):
    """Their heads are too early; each is met once, and put right."""
    for nth, queue in enumerate(MANY[:-1]):
        at = schedule(store, nth, 0, queue=queue)
        land(store, Replace(at, "done", version=record_at(store, at).version))
    schedule(store, "last", 1, queue=MANY[-1])
    store.engine.advance(10)
    assert due_keys(store, *MANY, limit=1) == ["last"]


def test_a_record_that_was_moved_to_an_earlier_time_is_found(store):
    at = schedule(store, "moved", 1_000, queue=MANY[5])
    take_due(store, MANY)
    land(store, Replace(at, "", version=record_at(store, at).version, queue=MANY[5], due_in=0))
    assert due_keys(store, *MANY) == ["moved"]


@pytest.mark.parametrize("place", ["redis_url", "cluster_url"])
def test_a_store_of_an_unknown_schema_is_refused(request, place):
    url = request.getfixturevalue(place)
    first = RedisEngine(url)
    first._meta(("SET", META_KEY, Meta(SCHEMA - 1, len(first.lanes)).text()))
    first.close()
    with pytest.raises(SchemaMismatch, match="unknown schema"):
        RedisEngine(url)
