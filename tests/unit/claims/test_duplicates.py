"""Blocked duplicates: counted wherever one is answered, brought to the store, and read over all processes."""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from typing import Any

import pytest

from twiceproof import App, Duplicate, InProgress, PayloadMismatch, Waiting
from twiceproof.claims import duplicates
from twiceproof.claims.duplicates import (
    HOUR,
    KIND,
    MOST,
    OTHERS,
    RECENT,
    Duplicates,
    blocked_of,
    most_blocked,
    recently_blocked,
    source_var,
)
from twiceproof.errors import StoreFull, TwiceproofError
from twiceproof.operations import block
from twiceproof.prove.clocks import ManualClock
from twiceproof.prove.faulty_engine import FaultyEngine
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> MemoryEngine:
    return MemoryEngine(clock)


def process(engine: Any, clock: ManualClock, **options: Any) -> App:
    app = App(GroupedStore(engine, clock=clock), clock=clock, **options)
    app.tally._every = 3_600.0  # flushed by hand
    return app


def counted(app: App, **options: Any) -> dict[tuple[str, str, str], int]:
    app.tally.flush()
    found = block(most_blocked(app.store, app.settings.tenant, **options))
    return {(row.source, row.operation, row.key): row.count for row in found}


# -- where they are counted ----------------------------------------------------------------------


def test_a_guarded_function_counts_its_repeats_and_not_its_first_call(engine: Any, clock: ManualClock) -> None:
    app = process(engine, clock)

    @app.once(key="order:{n}")
    def charge(n: int) -> int:
        return n

    charge(1)
    assert counted(app) == {}
    for _ in range(3):
        charge(1)
    assert counted(app) == {("", "charge", "order:1"): 3}


def test_a_repeat_while_the_first_is_at_work_is_blocked_too(engine: Any, clock: ManualClock) -> None:
    app = process(engine, clock)

    def repeat() -> None:
        with pytest.raises(InProgress), app.claim("ship", "order:1"):
            pass

    with app.claim("ship", "order:1"):
        contextvars.Context().run(repeat)  # not from inside the work: as another thread would
    with pytest.raises(Duplicate), app.claim("ship", "order:1"):
        pass
    assert counted(app) == {("", "ship", "order:1"): 2}


def test_another_payload_is_no_duplicate(engine: Any, clock: ManualClock) -> None:
    app = process(engine, clock)

    @app.once(key="order:{order[id]}")
    def charge(order: dict[str, int]) -> None: ...

    charge({"id": 1, "total": 1})
    with pytest.raises(PayloadMismatch):
        charge({"id": 1, "total": 2})
    assert counted(app) == {}


def test_flows_count_repeated_calls_and_starts(engine: Any, clock: ManualClock) -> None:
    app = process(engine, clock)

    @app.flow(key="order:{n}")
    def sync(n: int) -> None: ...

    sync(1)
    sync(1)
    sync.start(1)
    sync.start(2)
    assert counted(app) == {("", "sync", "order:1"): 2}
    sync.start(2)
    assert counted(app)["", "sync", "order:2"] == 1


def test_who_asks_after_a_parked_run_is_not_a_duplicate(engine: Any, clock: ManualClock) -> None:
    app = process(engine, clock)

    @app.flow(key="order:{n}")
    def sync(n: int) -> None:
        app.sleep("1d")

    for _ in range(3):
        with pytest.raises(Waiting):
            sync(1)
    assert counted(app) == {}


def test_one_that_waits_for_the_first_is_counted_once(engine: Any) -> None:
    from twiceproof.prove.clocks import ShiftedClock

    clock = ShiftedClock()
    app = process(MemoryEngine(clock), clock)  # type: ignore[arg-type]
    go = threading.Event()

    @app.once(key="order:{n}", on_duplicate="wait")
    def charge(n: int) -> int:
        go.wait(5)
        return n

    first = threading.Thread(target=charge, args=(1,))
    first.start()
    while not app.claims.store.read(charge.once.claim_requests.address("order:1")).block().record:
        pass
    threading.Timer(0.3, go.set).start()
    charge(1)
    first.join()
    assert counted(app) == {("", "charge", "order:1"): 1}
    app.close()


def test_a_door_says_through_which_source_it_came(engine: Any, clock: ManualClock) -> None:
    app = process(engine, clock)

    @app.once(key="order:{n}")
    def charge(n: int) -> None: ...

    charge(1)
    token = source_var.set("stripe")
    charge(1)
    source_var.reset(token)
    charge(1)
    app.claims.duplicates.blocked("charge", "order:1", "github")
    assert counted(app, source="stripe") == {("stripe", "charge", "order:1"): 1}
    assert sum(counted(app).values()) == 3


# -- their way to the store ----------------------------------------------------------------------


def test_a_flush_is_one_write_and_none_if_nothing_was_blocked(engine: Any, clock: ManualClock) -> None:
    faulty = FaultyEngine(engine)
    app = process(faulty, clock)
    app.tally.flush()
    assert faulty.groups == []
    for n in range(50):
        app.claims.duplicates.blocked("ship", f"order:{n % 7}")
    app.tally.flush()
    app.tally.flush()
    assert faulty.groups == [1]


def test_processes_are_added_up_and_tenants_kept_apart(engine: Any, clock: ManualClock) -> None:
    one, two, other = (process(engine, clock, tenant=tenant) for tenant in ("default", "default", "acme"))
    for app in (one, one, two, other):
        app.claims.duplicates.blocked("ship", "order:1", tenant=app.settings.tenant)
        app.tally.flush()
    assert counted(one) == {("", "ship", "order:1"): 3}
    assert counted(other) == {("", "ship", "order:1"): 1}


def test_hours_are_added_up_and_since_leaves_earlier_ones_out(engine: Any, clock: ManualClock) -> None:
    app = process(engine, clock)
    for _ in range(3):
        app.claims.duplicates.blocked("ship", "order:1")
        app.tally.flush()
        clock.advance(3_600)
    assert counted(app) == {("", "ship", "order:1"): 3}
    assert counted(app, since=clock.now() - 5_000) == {("", "ship", "order:1"): 1}
    assert len(engine.scan(KIND, None, None, None, 100).records) == 3


@pytest.mark.parametrize("fault", ["lose_reply", "lose_request", "refuse_connection"])
def test_a_broken_connection_counts_nothing_twice(engine: Any, clock: ManualClock, fault: str) -> None:
    faulty = FaultyEngine(engine)
    app = process(faulty, clock)
    for _ in range(2):
        getattr(faulty, fault)()
        app.claims.duplicates.blocked("ship", "order:1")
        app.tally.flush()
    assert counted(app) == {("", "ship", "order:1"): 2}


def test_what_could_not_be_told_is_told_later(engine: Any, clock: ManualClock) -> None:
    faulty = FaultyEngine(engine)
    app = process(faulty, clock)
    app.claims.duplicates.blocked("ship", "order:1")
    faulty.fail(_down())
    app.tally.flush()
    clock.advance(3_600)  # its hour is over meanwhile
    app.claims.duplicates.blocked("ship", "order:1")
    assert counted(app) == {("", "ship", "order:1"): 2}


def test_a_page_that_could_not_be_told_for_hours_is_not_counted_twice(
    engine: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first part is in the store already, and newer pages come to be told before it."""
    faulty = FaultyEngine(engine)
    app = process(faulty, clock)
    duplicates = app.claims.duplicates
    take = duplicates.take
    monkeypatch.setattr(duplicates, "take", lambda: dict(sorted(take().items(), reverse=True)))
    duplicates.blocked("ship", "order:1")
    app.tally.flush()
    duplicates.blocked("ship", "order:1")
    faulty.fail(_down())
    app.tally.flush()
    clock.advance(3 * 3_600)
    duplicates.blocked("ship", "order:1")
    assert counted(app) == {("", "ship", "order:1"): 3}


def _down() -> TwiceproofError:
    from twiceproof import StoreUnavailable

    return StoreUnavailable("down")


def test_memory_is_bounded_and_the_total_stays_true(engine: Any, clock: ManualClock) -> None:
    app = process(engine, clock)
    for n in range(MOST + 50):
        app.claims.duplicates.blocked("ship", f"order:{n}")
    found = counted(app, limit=10_000)
    assert len(found) == MOST + 1
    assert found["", "ship", OTHERS] == 50
    assert sum(found.values()) == MOST + 50


def test_closing_brings_the_last_ones_to_the_store(engine: Any, clock: ManualClock) -> None:
    app = process(engine, clock)
    app.claims.duplicates.blocked("ship", "order:1")
    app.close()
    assert counted(process(engine, clock)) == {("", "ship", "order:1"): 1}


def test_they_are_brought_there_by_themselves_after_a_while(engine: Any, clock: ManualClock) -> None:
    app = process(engine, clock)
    app.tally._every = 0.01
    told = threading.Event()
    app.tally.told.append(lambda tenant, rows: told.set())
    app.claims.duplicates.blocked("ship", "order:1")
    assert told.wait(5)
    app.close()


def test_they_are_forgotten_after_a_month(engine: Any, clock: ManualClock) -> None:
    from twiceproof.claims.retention import sweep

    app = process(engine, clock)
    app.claims.duplicates.blocked("ship", "order:1")
    app.tally.flush()
    clock.advance(31 * 86_400)
    block(sweep(app.store))
    assert engine.scan(KIND, None, None, None, 100).records == []


def test_many_threads_lose_no_count() -> None:
    duplicates = Duplicates()
    threads = [threading.Thread(target=lambda: [duplicates.blocked("o", "k") for _ in range(2_000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ((row,),) = duplicates.take().values()
    assert row.count == 16_000


def test_a_forked_child_does_not_tell_what_its_parent_counted(tmp_path: Any) -> None:
    app = App(f"sqlite:///{tmp_path}/l.db?durability=process")
    app.tally._every = 3_600.0
    app.claims.duplicates.blocked("ship", "order:1")
    app.tally.flush()
    app.claims.duplicates.blocked("ship", "order:1")
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            app.claims.duplicates.blocked("ship", "order:1")
            app.tally.flush()
        os._exit(0)
    os.waitpid(child, 0)
    assert counted(app) == {("", "ship", "order:1"): 3}
    app.close()


def test_a_duplicate_is_answered_and_counted_where_no_thread_is_to_be_had(
    engine: MemoryEngine, clock: ManualClock, monkeypatch: Any
) -> None:
    def exhausted(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    app = process(engine, clock)

    @app.once(key="order:{order}")
    def pay(order: int) -> str:
        return "paid"

    pay(1)
    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", exhausted)
        assert pay(1) == "paid"
    assert pay(1) == "paid"
    app.tally.flush()
    assert counted(app) == {("", "pay", "order:1"): 2}
    app.close()


@pytest.mark.parametrize(("closed", "tries_again"), [(True, False), (False, True)])
def test_a_store_that_was_closed_for_good_is_not_tried_again(closed: bool, tries_again: bool, caplog: Any) -> None:
    """A timer that goes on complains every five seconds, long after whoever reads the log has gone."""
    engine = MemoryEngine()
    store = GroupedStore(engine, patience=0.0)
    app = App(store)
    app.claims.duplicates.blocked("ship", "order:1")
    app.tally._delayed.cancel()  # type: ignore[union-attr]
    app.tally._delayed = None
    if closed:
        store.close()
    else:
        engine.commit = _broken  # type: ignore[method-assign]
    app.tally.flush()
    timer = app.tally._delayed
    if timer is not None:
        timer.cancel()
    assert len(caplog.records) == 1
    assert (timer is not None) is tries_again


def _broken(batches: Any) -> Any:
    raise StoreFull("no room")


# -- the latest of one key, and bounded reading --------------------------------------------------


def test_the_times_of_the_latest_repeats_are_kept(engine: Any, clock: ManualClock) -> None:
    app = process(engine, clock)
    times = []
    for _ in range(RECENT + 3):
        clock.advance(1.5)
        times.append(round(clock.now(), 3))
        app.tally._duplicates.blocked("charge", "order:1", "stripe")
    app.tally.flush()
    [row] = block(most_blocked(app.store, "default"))
    assert (row.count, row.times) == (RECENT + 3, tuple(times[-RECENT:]))


def test_what_was_blocked_of_one_key_is_found_in_its_first_hours_and_the_latest(
    engine: Any, clock: ManualClock
) -> None:
    app = process(engine, clock)
    began = clock.now()
    for hours in (0, 3, 70, 130):
        clock.advance(hours * HOUR)
        app.tally._duplicates.blocked("charge", "order:1", "stripe")
        app.tally._duplicates.blocked("charge", "order:2", "stripe")
        app.tally._duplicates.blocked("ship", "order:1", "")
        app.tally.flush()
    found = block(blocked_of(app.store, "default", "charge", {"order:1"}, began, clock.now()))
    assert [(row.source, row.count, len(row.times), row.times[0]) for row in found.rows] == [
        ("stripe", 4, 4, round(began, 3))
    ]
    assert not found.more
    assert block(blocked_of(app.store, "acme", "charge", {"order:1"}, began, clock.now())).rows == []


def test_a_page_of_repeats_reads_the_latest_hours_first(
    engine: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = process(engine, clock)
    for number in range(30):
        clock.advance(10 * HOUR)
        app.tally._duplicates.blocked("charge", f"order:{number}")
        app.tally.flush()
    everything = block(recently_blocked(app.store, "default", clock.now()))
    assert (len(everything.rows), everything.more) == (30, False)
    monkeypatch.setattr(duplicates, "ROW_BYTES", 0.01)  # room for 500 bytes
    found = block(recently_blocked(app.store, "default", clock.now()))
    assert found.more and 0 < len(found.rows) < 30
    assert "order:29" in {row.key for row in found.rows} and "order:0" not in {row.key for row in found.rows}


@pytest.mark.parametrize(
    ("first", "last"), [(495_100, 495_199), (495_987, 495_987), (495_999, 496_000), (495_123, 495_987)]
)
def test_blocks_of_hours_cover_every_hour_asked_for_once(first: int, last: int) -> None:
    blocks = list(duplicates._blocks(first, last))
    for hour in range(first, last + 1):
        assert sum(_is_in(hour, one) for one in blocks) == 1, hour


def _is_in(hour: int, block_of_hours: str) -> bool:
    return hour // 10 == int(block_of_hours) or hour // 100 == int(block_of_hours)
