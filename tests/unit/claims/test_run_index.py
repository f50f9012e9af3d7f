"""From an id to its run: the index record, and what is done where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from twiceproof import App, Misuse, StoreUnavailable
from twiceproof.claims.claim import RUN_POINTER, address_of, index_address, run_id, short_id
from twiceproof.claims.queries import SEARCH_AGAIN, SEARCHED, index_run, resolve_run
from twiceproof.claims.retention import sweep
from twiceproof.claims.states import run_pointer
from twiceproof.operations import block
from twiceproof.prove.clocks import ManualClock
from twiceproof.records import Insert, Remove, Written
from twiceproof.stores.encryption import EncryptedEngine, Keyring
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

SPACE = "default/buy/order:1"
SHORT, LONG = short_id(SPACE), run_id(SPACE)


class CountingEngine(MemoryEngine):
    """Notes how many batches each commit has, and how often runs were scanned."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.commits: list[int] = []
        self.scans = 0
        self.refuses = ""

    def commit(self, batches: Any) -> Any:
        self.commits.append(len(batches))
        answers = super().commit([batch for batch in batches if batch.writes[0].at.kind != self.refuses])
        lost = StoreUnavailable("this part of the store is away; try again.", unsure=False)
        return [lost if batch.writes[0].at.kind == self.refuses else answers.pop(0) for batch in batches]

    def scan(self, kind: str, *more: Any) -> Any:
        self.scans += kind == "run"
        return super().scan(kind, *more)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: Any) -> CountingEngine:
    return CountingEngine(clock)


@pytest.fixture
def app(engine: Any, clock: Any) -> App:
    return App(GroupedStore(engine, clock=clock), clock=clock)


@pytest.fixture
def buy(app: App) -> Any:
    @app.flow(key="order:{n}", keep="1h")
    def buy(n: int) -> int:
        return n

    return buy


def pointers(app: App) -> list[str]:
    return [
        record.at.space for record in app.store.scan(RUN_POINTER, limit=1_000).block().records if record.at != SEARCHED
    ]


def found(app: App, name: str) -> str:
    return block(resolve_run(app.store, "default", name)).space


def without_index(app: App) -> None:
    """As a run of an older release is."""
    for record in app.store.scan(RUN_POINTER, limit=1_000).block().records:
        app.store.write(Remove(record.at, version=record.version)).block()


# -- written with the run ------------------------------------------------------------------------


def test_a_start_writes_run_and_index_record_by_one_commit(app: App, buy: Any, engine: Any) -> None:
    engine.commits.clear()
    assert buy.start(1).id == SHORT
    assert engine.commits == [2]
    assert found(app, SHORT) == SPACE


def test_a_call_writes_one_too_and_a_guarded_function_none(app: App, buy: Any) -> None:
    @app.once(key="parcel:{n}")
    def ship(n: int) -> int:
        return n

    ship(1)
    assert pointers(app) == []
    buy(1)
    assert pointers(app) == [index_address(SHORT).space]


def test_a_fork_is_found_by_its_id(app: App, buy: Any) -> None:
    buy(1)
    forked = app.fork_run(SHORT, key="order:1:again")
    assert forked.run == short_id("default/buy/order:1:again")
    assert found(app, forked.run) == "default/buy/order:1:again"
    assert app.history(forked.run).forked_from == SHORT


@pytest.mark.parametrize("name", [SHORT, LONG, "buy/order:1"])
def test_a_run_is_found_by_either_id_and_as_flow_and_key(app: App, buy: Any, name: str) -> None:
    buy.start(1)
    assert block(resolve_run(app.store, "default", name)) == address_of("default", "buy", "order:1", "run")


def test_a_store_that_takes_one_write_at_a_time_takes_an_index_record(clock: Any) -> None:
    engine = CountingEngine(clock)
    engine.batch_limit = 1
    with App(GroupedStore(engine, clock=clock), clock=clock) as app:
        written = app.store.write(Insert(address_of("default", "buy", "order:1", "run"), "{}"), also=run_pointer(SPACE))
        assert isinstance(written.block(), Written)
        assert found(app, SHORT) == SPACE


def test_an_index_record_is_sealed_as_everything_is(clock: Any) -> None:
    inner = MemoryEngine(clock)
    store = GroupedStore(EncryptedEngine(inner, Keyring({"k": b"k" * 32})), clock=clock)
    with App(store, clock=clock) as app:
        app.flow(key="mail:{who}", name="buy")(lambda who: who).start("ann@example.com")
        (record,) = inner.scan(RUN_POINTER, None, None, None, 10).records
        assert "ann" not in record.body + record.at.space
        assert found(app, short_id("default/buy/mail:ann@example.com")) == "default/buy/mail:ann@example.com"


# -- one that is missing -------------------------------------------------------------------------


def test_a_lost_index_record_costs_neither_the_start_nor_the_run(app: App, buy: Any, engine: Any) -> None:
    engine.refuses = RUN_POINTER
    run = buy.start(1)
    assert (run.id, run.state) == (SHORT, "queued")
    assert pointers(app) == []
    engine.refuses = ""
    assert buy.start(1).id == SHORT
    assert pointers(app) == [index_address(SHORT).space]


@pytest.mark.parametrize("name", [LONG, "buy/order:1"])
def test_a_look_at_a_run_of_an_older_release_writes_it(app: App, buy: Any, name: str, engine: Any) -> None:
    buy.start(1)
    without_index(app)
    assert app.history(name).run.run == SHORT
    assert pointers(app) == [index_address(SHORT).space]
    assert app.history(SHORT).run.key == "order:1"
    assert engine.scans == 0


def test_a_look_works_though_the_store_cannot_be_written_to(app: App, buy: Any, engine: Any) -> None:
    buy.start(1)
    without_index(app)
    engine.refuses = RUN_POINTER
    assert app.history("buy/order:1").run.run == SHORT
    assert app.history(SHORT).run.run == SHORT


def test_an_id_from_a_list_of_older_runs_is_found_and_all_are_indexed(app: App, buy: Any, engine: Any) -> None:
    for n in range(250):
        buy.start(n)
    without_index(app)
    shown = {run.key: run.run for run in app.runs(limit=300)}
    assert found(app, shown["order:249"]) == "default/buy/order:249"
    assert len(pointers(app)) == 250
    scans = engine.scans
    assert found(app, shown["order:7"]) == "default/buy/order:7"
    assert engine.scans == scans


def test_an_unknown_id_has_runs_searched_once_an_hour_at_most(app: App, buy: Any, engine: Any, clock: Any) -> None:
    unknown = short_id("default/buy/none")
    for _ in range(3):
        with pytest.raises(Misuse, match="no such run here"):
            found(app, unknown)
    assert engine.scans == 1
    clock.advance(SEARCH_AGAIN)
    buy.start(1)
    indexed = app.store.read(index_address(SHORT)).block().record
    assert indexed is not None
    app.store.write(Remove(index_address(SHORT), version=indexed.version)).block()
    assert found(app, SHORT) == SPACE
    assert engine.scans == 2


def test_a_mistyped_id_asks_the_store_for_nothing(app: App, engine: Any) -> None:
    with pytest.raises(Misuse, match="not the id of a run"):
        found(app, SHORT[:-1] + ("0" if SHORT[-1] != "0" else "1"))
    assert engine.scans == 0


def test_indexing_twice_is_indexing_once(app: App) -> None:
    for _ in range(2):
        block(index_run(app.store, SPACE))
    assert pointers(app) == [index_address(SHORT).space]


# -- swept with its run --------------------------------------------------------------------------


def test_an_index_record_goes_with_its_run(app: App, buy: Any, clock: Any) -> None:
    buy(1)
    clock.advance(3_601)
    assert block(sweep(app.store)).forgotten == 1
    assert pointers(app) == []
    with pytest.raises(Misuse, match="no such run"):
        app.history(SHORT)


def test_one_without_a_run_is_swept_in_the_end(app: App, clock: Any) -> None:
    app.store.write(run_pointer(SPACE)).block()
    clock.advance(366 * 86_400)
    assert block(sweep(app.store)).pieces == 1
    assert pointers(app) == []


def test_a_tombstone_is_still_found_by_its_id(app: App, clock: Any) -> None:
    @app.flow(key="order:{n}", keep="forever", keep_history="1h", name="buy")
    def buy(n: int) -> int:
        return n

    buy(1)
    for _ in range(3):
        clock.advance(366 * 86_400)
        block(sweep(app.store))
    assert app.history(SHORT).run.state == "done"


def test_a_key_begun_anew_after_it_was_forgotten_is_found(app: App, buy: Any, clock: Any) -> None:
    buy(1)
    clock.advance(3_601)
    assert buy.start(1).state == "queued"
    block(sweep(app.store))
    assert found(app, SHORT) == SPACE
