"""What is forgotten, when, and what never is."""

from __future__ import annotations

from typing import Any

import pytest

from twiceproof import App, NotDone, ResultNotKept
from twiceproof.claims.claim import Fault, Held, address_of
from twiceproof.claims.queries import KEEP, evidence_of
from twiceproof.claims.results import Packed, pack
from twiceproof.claims.retention import PASS, Sweeper, Swept, sweep
from twiceproof.claims.states import Lifetime, pointer_of
from twiceproof.operations import block
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.sqlite.engine import SqliteEngine

PATIENT = 20.0  # seconds

DAY = 86_400.0


def counted(app: App, **options: Any) -> Any:
    runs = []

    @app.once(key="order:{order}", name="pay", **options)
    def pay(order: int) -> int:
        runs.append(order)
        return len(runs)

    pay.runs = runs  # type: ignore[attr-defined]
    return pay


def test_a_key_is_kept_for_thirty_days_by_default(app: App, clock: Any) -> None:
    pay = counted(app)
    pay(1)
    clock.advance(30 * DAY - 1)
    block(sweep(app.store))
    assert (pay(1), pay.runs) == (1, [1])
    clock.advance(1)
    assert (pay(1), pay.runs) == (2, [1, 1])


def test_a_key_kept_forever_is_never_due(app: App, clock: Any) -> None:
    pay = counted(app, keep="forever")
    pay(1)
    clock.advance(90 * 365 * DAY)
    assert block(sweep(app.store)) == Swept()
    assert pay(1) == 1


def test_a_key_that_is_free_again_has_a_greater_fence(desk: Any) -> None:
    held, claim = desk.held()
    desk.run(desk.claims.complete(held, claim, Packed(), Lifetime(keep=10.0)))
    desk.clock.advance(10)
    assert block(sweep(desk.store)) == Swept(forgotten=1)
    assert desk.record() is None
    assert desk.take("bob").fence > held.fence


def test_after_keep_result_the_duplicate_is_told_so_and_is_still_not_run(app: App, clock: Any) -> None:
    pay = counted(app, keep="30d", keep_result="1d")
    pay(1)
    clock.advance(DAY - 1)
    assert pay(1) == 1
    clock.advance(1)
    for _ in range(2):  # before the sweep and after it
        with pytest.raises(ResultNotKept, match="its time is over"):
            pay(1)
        block(sweep(app.store))
    assert pay.runs == [1]
    clock.advance(29 * DAY)
    assert pay(1) == 2


def test_a_sweep_trims_a_result_to_a_tombstone_once(app: App, clock: Any) -> None:
    pay = counted(app, keep="forever", keep_result="1d")
    pay(1)
    clock.advance(DAY)
    assert block(sweep(app.store)) == Swept(trimmed=1)
    clock.advance(10_000 * DAY)
    assert block(sweep(app.store)) == Swept()
    with pytest.raises(ResultNotKept):
        pay(1)
    assert pay.runs == [1]


def test_a_key_is_forgotten_when_its_time_is_over_though_its_result_was_not_swept(app: App, clock: Any) -> None:
    pay = counted(app, keep="2h", keep_result="1h")
    pay(1)
    clock.advance(7_199)
    with pytest.raises(ResultNotKept):
        pay(1)
    clock.advance(1)
    assert pay.look(1) is None
    assert (pay(1), pay.runs) == (2, [1, 1])


@pytest.mark.parametrize("late", [0, 1_800])
def test_a_key_outlives_its_result_from_when_it_was_done_and_not_from_the_sweep(
    app: App, clock: Any, late: int
) -> None:
    pay = counted(app, keep="2h", keep_result="1h")
    pay(1)
    clock.advance(3_600 + late)
    assert block(sweep(app.store)) == Swept(trimmed=1)
    clock.advance(3_599 - late)
    with pytest.raises(ResultNotKept):
        pay(1)
    clock.advance(1)
    assert (pay(1), pay.runs) == (2, [1, 1])


def test_a_sweep_that_comes_when_the_key_is_over_too_forgets_it(app: App, clock: Any) -> None:
    pay = counted(app, keep="2h", keep_result="1h")
    pay(1)
    clock.advance(7_200)
    assert block(sweep(app.store)) == Swept(forgotten=1)
    assert app.store.read(address_of("default", "pay", "order:1")).block().record is None


def test_a_failure_has_a_lifetime_of_its_own(app: App, clock: Any) -> None:
    runs: list[int] = []

    @app.once(key="order:{order}", keep="forever", keep_failed="1h")
    def pay(order: int) -> None:
        runs.append(order)
        raise NotDone("no", final=True)

    for _ in range(2):
        with pytest.raises(NotDone):
            pay(1)
        clock.advance(3_600)
    assert runs == [1, 1]


def test_a_failure_is_kept_as_long_as_a_result_unless_told(app: App, clock: Any) -> None:
    @app.once(key="order:{order}", keep="1h")
    def pay(order: int) -> None:
        raise NotDone("no", final=True)

    with pytest.raises(NotDone):
        pay(1)
    assert pay.look(1) is not None
    clock.advance(3_600)
    assert pay.look(1) is None


def test_what_is_held_or_in_review_is_never_swept(desk: Any) -> None:
    held, claim = desk.held()
    desk.clock.advance(10**9)
    assert block(sweep(desk.store)) == Swept()
    desk.run(desk.claims.park(held, claim, Fault("TimeoutError"), "no answer"))
    desk.clock.advance(10**9)
    assert block(sweep(desk.store)) == Swept()
    assert desk.record() is not None


def test_a_key_that_was_taken_again_meanwhile_is_not_swept(desk: Any) -> None:
    """The sweep found it due; before its write lands, somebody takes the expired key."""
    held, claim = desk.held()
    desk.run(desk.claims.complete(held, claim, Packed(), Lifetime(keep=10.0)))
    desk.clock.advance(10)
    due = desk.store.due

    def due_and_then_taken(kind: str, **how: Any) -> Any:
        answer = due(kind, **how)
        if kind != "claim":
            return answer
        found = answer.block()
        desk.clock.advance(60)  # past the time for which it is hidden, so that a take finds it expired
        assert isinstance(desk.take("bob"), Held)
        return type(answer)(answer._thread, lambda: found)

    desk.store.due = due_and_then_taken
    assert block(sweep(desk.store)) == Swept()
    assert desk.record().state == "held"


def test_a_spilled_result_goes_with_its_key(app: App, clock: Any) -> None:
    big = "x" * 100_000

    @app.once(key="order:{order}", keep="1h")
    def pay(order: int) -> str:
        return big

    pay(1)
    assert pay(1) == big
    assert len(app.store.scan("resource").block().records) == 1
    clock.advance(3_600)
    assert block(sweep(app.store)) == Swept(forgotten=1, pieces=1)
    assert app.store.scan("resource").block().records in ([], ())


def test_a_spilled_result_goes_when_its_own_time_ends_and_leaves_the_tombstone(app: App, clock: Any) -> None:
    @app.once(key="order:{order}", keep="1d", keep_result="1h")
    def pay(order: int) -> str:
        return "x" * 100_000

    pay(1)
    clock.advance(3_600)
    assert block(sweep(app.store)) == Swept(trimmed=1, pieces=1)
    with pytest.raises(ResultNotKept):
        pay(1)


def test_a_sweep_in_small_batches_gets_everything_in_the_end(memory: App, clock: Any) -> None:
    pay = counted(memory, keep="1h")
    for order in range(7):
        pay(order)
    clock.advance(3_600)
    swept = [block(sweep(memory.store, limit=3)).forgotten for _ in range(4)]
    assert swept == [3, 3, 1, 0]


def test_evidence_goes_after_a_year(desk: Any) -> None:
    held, claim = desk.held()
    desk.clock.advance(31)
    bob, done = desk.held("bob", repeat="safe")
    desk.run(desk.claims.complete(held, claim, pack("x" * 100_000, held)))
    desk.run(desk.claims.complete(bob, done, pack("y", bob)))
    desk.clock.advance(KEEP - 1)
    assert block(sweep(desk.store)) == Swept()
    desk.clock.advance(1)
    assert block(sweep(desk.store)) == Swept(pieces=2)
    assert block(evidence_of(desk.store, held.at.space)) == []


def test_the_housekeeper_sweeps_when_its_time_has_come_and_not_before(memory: App, clock: Any) -> None:
    keeper = Sweeper(memory.store, clock=clock, every=300.0)
    pay = counted(memory, keep="1h")
    pay(1)
    clock.advance(299)
    keeper.sweep_if_due()
    assert not keeper._thread.started
    clock.advance(3_600)
    keeper.sweep_if_due()
    keeper._thread.stop(PATIENT)
    assert memory.store.read(address_of("default", "pay", "order:1")).block().record is None


def test_the_housekeeper_goes_on_while_there_is_much_to_do(memory: App, clock: Any) -> None:
    pay = counted(memory, keep="1h")
    for order in range(PASS + 50):
        pay(order)
    clock.advance(3_600)
    keeper = Sweeper(memory.store, clock=clock, every=0.0)
    keeper.sweep_if_due()
    keeper._thread.stop(PATIENT)
    assert memory.store.scan("claim").block().records == []


def test_a_housekeeper_that_was_stopped_begins_nothing(memory: App, clock: Any) -> None:
    keeper = Sweeper(memory.store, clock=clock, every=0.0)
    keeper.stop()
    keeper.sweep_if_due()
    assert not keeper._thread.started


def test_a_store_that_fails_does_not_end_housekeeping(memory: App, clock: Any) -> None:
    keeper = Sweeper(memory.store, clock=clock, every=0.0)
    memory.close()  # everything the sweep asks for is refused now
    keeper.sweep_if_due()
    keeper._thread.stop(PATIENT)


def test_a_trimmed_claim_still_knows_when_it_was_finished(memory: App, clock: Any) -> None:
    pay = counted(memory, keep="2h", keep_result="1h")
    pay(1)
    finished = pay.look(1).finished_at
    clock.advance(3_600)
    block(sweep(memory.store))
    assert pay.look(1).finished_at == finished


def test_a_released_key_takes_its_large_result_along(memory: App) -> None:
    @memory.once(key="{name}", keep="forever")
    def report(name: str) -> str:
        return name * 100_000

    report("x")
    at = address_of("default", "report", "x")
    assert len(memory.store.scan("resource").block().records) == 1
    assert block(memory.claims.free(at))
    assert memory.store.scan("resource").block().records == []


class Counting:
    """An engine that counts what it is asked, and lets somebody act before an answer."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.asked: list[str] = []
        self.before: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name not in ("commit", "fetch", "scan", "due", "beside"):
            return found

        def ask(*given: Any) -> Any:
            self.asked.append(name)
            act = self.before.pop(name, None)
            if act is not None:
                act()
            return found(*given)

        return ask


def flow_of(app: App) -> Any:
    @app.step(repeat="safe")
    def first(order: int) -> int:
        return order

    @app.flow(key="order:{order}", keep=60.0)
    def buy(order: int) -> int:
        return first(order)

    return buy


@pytest.fixture
def counted_app(tmp_path: Any, clock: Any) -> Any:
    engine = Counting(SqliteEngine(tmp_path / "ledger.db", clock=clock))
    with App(store=GroupedStore(engine, clock=clock), clock=clock) as app:
        yield app, engine


def test_many_runs_are_forgotten_with_their_steps_by_a_handful_of_questions(counted_app: Any, clock: Any) -> None:
    """By one after the other, a sweep is slower than whoever makes them."""
    app, engine = counted_app
    buy = flow_of(app)
    for order in range(150):
        buy(order)
    clock.advance(61)
    engine.asked.clear()
    assert block(sweep(app.store)) == Swept(forgotten=150, pieces=150)
    assert len(engine.asked) < 50
    assert not app.store.scan("step").block().records


@pytest.mark.parametrize("moment", ["beside", "commit"])
def test_a_run_taken_again_at_the_moment_of_the_sweep_stays_with_all_its_records(
    counted_app: Any, clock: Any, tmp_path: Any, moment: str
) -> None:
    app, engine = counted_app
    buy = flow_of(app)
    for order in range(5):
        buy(order)
    clock.advance(61)
    with App(store=GroupedStore(SqliteEngine(tmp_path / "ledger.db", clock=clock), clock=clock), clock=clock) as other:
        again = flow_of(other)

        def take() -> None:
            clock.advance(61)  # past the time for which it is hidden, so that a call finds it expired
            again(3)

        engine.before[moment] = take
        assert block(sweep(app.store)).forgotten == 4
        assert [record.at.space for record in other.store.scan("run").block().records] == ["default/buy/order:3"]
        (indexed,) = other.store.scan("runid").block().records
        assert pointer_of(indexed).space == "default/buy/order:3"
        assert len(other.store.scan("step").block().records) == 1
