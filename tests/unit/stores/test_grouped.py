"""A store over an engine: groups, broken connections, and who is told what."""

import asyncio
import threading
from time import monotonic

import pytest

from twiceproof.errors import StoreFull, StoreUnavailable
from twiceproof.prove.clocks import ManualClock
from twiceproof.prove.faulty_engine import FaultyEngine
from twiceproof.records import Address, Conflict, Insert, Lost, Remove, Replace, Written
from twiceproof.stores.base import Disconnected
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine
from twiceproof.stores.sqlite.engine import SqliteEngine


def at(key="key", space="shop"):
    return Address(space, "claim", str(key))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def engine(clock):
    return FaultyEngine(MemoryEngine(clock))


@pytest.fixture
def store(engine, clock):
    store = GroupedStore(engine, clock=clock)
    yield store
    store.close()


def write_together(store, *batches):
    async def together():
        waits = [store.write(*batch).wait() for batch in batches]
        return await asyncio.gather(*waits, return_exceptions=True)

    return asyncio.run(together())


def test_a_write_to_memory_needs_no_other_thread_even_on_an_event_loop(clock):
    store = GroupedStore(MemoryEngine(clock), clock=clock)
    before = threading.active_count()
    assert isinstance(asyncio.run(store.write(Insert(at(), "")).wait()), Written)
    assert threading.active_count() == before


def test_a_lone_write_is_one_commit(store, engine):
    store.write(Insert(at(), "")).block()
    assert engine.groups == [1]


def test_writes_awaited_together_are_one_commit(store, engine):
    write_together(store, *([Insert(at(nth), "")] for nth in range(30)))
    assert engine.groups == [30]


def test_a_refused_write_never_reaches_the_engine(store, engine):
    with pytest.raises(ValueError, match="empty"):
        store.write(Insert(at(""), ""))
    assert engine.groups == []


def test_one_batch_per_space_and_commit_where_the_engine_wants_it(engine, clock):
    engine.one_per_space = True
    store = GroupedStore(engine, clock=clock)
    write_together(store, *([Insert(at(nth, space=f"space {nth % 3}"), "")] for nth in range(9)))
    assert engine.groups == [3, 3, 3]
    store.close()


def test_a_commit_is_tried_again_with_growing_pauses(store, engine, clock):
    for _ in range(4):
        engine.refuse_connection()
    assert isinstance(store.write(Insert(at(), "")).block(), Written)
    assert len(clock.pauses) == 4
    assert clock.pauses == sorted(clock.pauses)
    assert clock.pauses[0] <= 0.02


def test_when_patience_ends_a_write_that_was_never_sent_was_not_written(store, engine, clock):
    for _ in range(200):
        engine.refuse_connection()
    with pytest.raises(StoreUnavailable, match="Nothing was written") as caught:
        store.write(Insert(at(), "")).block()
    assert caught.value.unsure is False
    assert 10.0 <= clock.ticks < 12.0


def test_when_patience_ends_a_write_that_was_sent_may_have_landed(store, engine):
    engine.lose_reply()
    for _ in range(200):
        engine.refuse_connection()
    with pytest.raises(StoreUnavailable, match="may or may not have landed") as caught:
        store.write(Insert(at(), "")).block()
    assert caught.value.unsure is True


def test_the_error_says_why_in_one_line_with_a_next_move(store, engine):
    for _ in range(200):
        engine.refuse_connection()
    with pytest.raises(StoreUnavailable) as caught:
        store.write(Insert(at(), "")).block()
    assert "(refused)" in str(caught.value)
    assert str(caught.value).endswith("try again.")


def test_a_lost_answer_is_remembered_while_the_space_is_held(store, engine):
    """The second try finds the space held, the third finds our own record there."""
    engine.lose_reply()
    engine.be_held()
    outcome = store.write(Insert(at(), "mine", draw=True)).block()
    assert isinstance(outcome, Written)
    assert store.read(at()).block().record.fence == outcome.fence


def test_a_lost_answer_is_remembered_when_a_neighbour_is_refused(store, engine):
    """The group is taken apart after the answer was lost: each part must still know."""
    engine.lose_reply()
    engine.fail(RuntimeError("one of them is bad"))
    outcomes = write_together(store, [Insert(at(1), "")], [Insert(at(2), "")])
    assert [type(outcome) for outcome in outcomes] == [Written, Written]


@pytest.mark.parametrize("error", [StoreFull("The disk is full; nothing was written."), RuntimeError("no")])
def test_an_error_after_a_lost_answer_does_not_say_that_nothing_was_written(store, engine, error):
    engine.lose_reply()
    engine.fail(error)
    with pytest.raises(StoreUnavailable) as caught:
        store.write(Insert(at(), "")).block()
    assert caught.value.unsure is True
    assert "othing was written" not in str(caught.value)


def test_an_error_with_no_answer_lost_before_is_told_as_it_is(store, engine):
    engine.fail(StoreFull("The disk is full; nothing was written."))
    with pytest.raises(StoreFull, match="nothing was written"):
        store.write(Insert(at(), "")).block()


def test_an_unavailable_store_is_told_to_all_and_not_tried_one_by_one(store, engine):
    engine.fail(StoreUnavailable("locked; try again.", unsure=False))
    outcomes = write_together(store, *([Insert(at(nth), "")] for nth in range(3)))
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 3
    assert engine.groups == [3]


def test_when_reading_back_fails_the_outcome_is_unsure(store, engine, clock):
    def cut_reads():
        engine.fetch = lambda addresses: (_ for _ in ()).throw(Disconnected(OSError("cut"), sent=True))

    engine.lose_reply(meanwhile=cut_reads)
    with pytest.raises(StoreUnavailable) as caught:
        store.write(Insert(at(), "")).block()
    assert caught.value.unsure is True


def test_when_reading_back_fails_after_a_split_group_only_that_batch_is_unsure(store, engine):
    """Its neighbours' writes have landed, and must not be told that nothing was written."""
    store.write(Insert(at("taken"), "")).block()
    engine.fetch = lambda addresses: (_ for _ in ()).throw(Disconnected(OSError("cut"), sent=True))
    engine.fail(RuntimeError("one of them is bad"))
    first, second, third = write_together(store, *([Insert(at(key), "")] for key in ("first", "taken", "third")))
    assert isinstance(first, Written)
    assert isinstance(second, StoreUnavailable)
    assert second.unsure is True
    assert isinstance(third, Written)


def test_a_write_after_the_trouble_is_judged_afresh(store, engine):
    engine.lose_reply()
    store.write(Insert(at(), "")).block()
    assert isinstance(store.write(Insert(at(), "")).block(), Conflict)
    assert store._unacknowledged == set()


def test_a_lost_write_leaves_nothing_to_remember(store, engine):
    landed = store.write(Insert(at(), "", draw=True)).block()
    engine.lose_reply()
    assert isinstance(store.write(Remove(at(), fence=landed.fence)).block(), Lost)
    assert store._unacknowledged == set()


def test_a_read_is_tried_again_after_a_broken_connection(store, engine):
    store.write(Insert(at(), "body")).block()
    fetch, cuts = engine.inner.fetch, [1, 1]

    def cut(addresses):
        if cuts:
            raise Disconnected(OSError("cut"), sent=bool(cuts.pop()))
        return fetch(addresses)

    engine.inner.fetch = cut
    assert store.read(at()).block().record.body == "body"


@pytest.mark.parametrize("method", ["scan", "due"])
def test_scans_and_due_lists_are_tried_again_after_a_broken_connection(store, engine, method):
    inner, cuts = getattr(engine.inner, method), [1, 1]

    def cut(*arguments):
        if cuts:
            raise Disconnected(OSError("cut"), sent=bool(cuts.pop()))
        return inner(*arguments)

    setattr(engine.inner, method, cut)
    request = store.scan("claim") if method == "scan" else store.due("claim", queues=["q"])
    assert list(request.block().records) == []


def test_a_takeover_and_a_removal_notify_and_a_heartbeat_does_not(store):
    notified = []
    landed = store.write(Insert(at(), "", draw=True)).block()
    store.changes.add("shop", lambda: notified.append("heartbeat"))
    store.write(Replace(at(), fence=landed.fence)).block()
    assert notified == []
    store.write(Replace(at(), fence=landed.fence, draw=True)).block()
    assert notified == ["heartbeat"]
    store.changes.add("shop", lambda: notified.append("removal"))
    store.write(Remove(at(), version=store.read(at()).block().record.version)).block()
    assert notified == ["heartbeat", "removal"]


def test_a_refused_write_notifies_no_one(store):
    notified = []
    store.changes.add("shop", lambda: notified.append(1))
    store.write(Remove(at(), version="1")).block()
    assert notified == []


def test_a_loop_that_closes_its_store_does_not_wait_for_itself(tmp_path):
    """What one of its tasks has just begun to write is written, and nobody's patience runs out meanwhile."""
    store = GroupedStore(SqliteEngine(tmp_path / "s.db"), patience=20.0)

    async def scene():
        task = asyncio.create_task(store.write(Insert(at(), "mine")).wait())
        await asyncio.sleep(0)
        began = monotonic()
        store.close()
        return monotonic() - began, await task

    waited, written = asyncio.run(scene())
    assert waited < 15.0
    assert isinstance(written, Written)
