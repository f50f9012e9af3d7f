"""The worker: carries out what is due, sleeps when nothing is, and survives whatever a run does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from twiceproof import App, ClaimLost, Misuse, NotDone, StoreUnavailable
from twiceproof.claims.blobs import open_blob_store
from twiceproof.claims.claim import body_of, claim_of
from twiceproof.flows.engine.run_states import MOST_CRASHES, with_work
from twiceproof.flows.workers.due_work import DueWork, resume_run
from twiceproof.flows.workers.log import FORMAT, JsonLines, RunFilter
from twiceproof.operations import Inline, Operation, block
from twiceproof.prove.clocks import ManualClock
from twiceproof.prove.faulty_engine import FaultyEngine
from twiceproof.records import Address, Insert, Record, Remove, Replace
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

PATIENT = 20.0


class CountingEngine(FaultyEngine):
    """Counts what is asked of the store."""

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self.answered = threading.Semaphore(0)
        self.broken = False

    def commit(self, batches):
        self.calls["commit"] += 1
        return super().commit(batches)

    def due(self, *args):
        self.calls["due"] += 1
        try:
            if self.broken:
                raise StoreUnavailable("away", unsure=False)
            return super().due(*args)
        finally:
            self.answered.release()


class Shop:
    """An app on a store that counts, with a clock that stands still."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = CountingEngine(MemoryEngine(self.clock))
        self.app = self.process()
        self.done: Counter[str] = Counter()

    def process(self) -> App:
        return App(GroupedStore(self.engine, clock=self.clock), clock=self.clock)

    def work(self, app: App | None = None, **options) -> int:
        worker = (app or self.app).worker(**options)
        assert worker.run(until_idle=True) == 0
        return worker.begun

    @contextlib.contextmanager
    def at_work(self, **options):
        """A worker that waits for something to do."""
        worker = self.app.worker(**options)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        assert self.engine.answered.acquire(timeout=PATIENT)
        try:
            yield worker
        finally:
            worker.drain()
            thread.join(PATIENT)
            assert not thread.is_alive()


@pytest.fixture
def shop():
    shop = Shop()
    yield shop
    shop.app.close()


@pytest.fixture
def ship(shop):
    @shop.app.step(repeat="safe")
    def pack(n: int) -> int:
        shop.done[f"pack {n}"] += 1
        return n

    @shop.app.flow(key="order:{n}")
    def ship(n: int) -> int:
        return pack(n) * 2

    return ship


# -- carrying out ----------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_worker_carries_out_everything_that_was_started_once(shop, ship, concurrency):
    for n in range(50):
        ship.start(n)
        ship.start(n)
    assert shop.work(concurrency=concurrency) == 50
    assert shop.done == {f"pack {n}": 1 for n in range(50)}
    assert ship(7) == 14
    assert shop.work() == 0


def test_a_worker_fetches_many_short_runs_at_once(shop, ship):
    for n in range(1_000):
        ship.start(n)
    shop.engine.calls.clear()
    shop.work(concurrency=4)
    assert shop.engine.calls["due"] < 150  # with 4 places, one by one it would be at least 250


def test_plain_and_async_flows_are_carried_out_by_one_worker_each_where_it_belongs(shop):
    where = {}

    @shop.app.flow(key="{n}")
    def plain(n: int) -> None:
        with contextlib.suppress(RuntimeError):
            where["plain"] = asyncio.get_running_loop()
        where["thread"] = threading.current_thread().name

    @shop.app.flow(key="{n}")
    async def awaiting(n: int) -> None:
        here = where.setdefault("loop", asyncio.get_running_loop())
        assert here is asyncio.get_running_loop()
        both.release()

    both = threading.Semaphore(0)
    plain.start(1)
    for n in range(3):
        asyncio.run(awaiting.start(n))
    assert shop.work() == 4
    assert both.acquire(timeout=PATIENT)
    assert "plain" not in where
    assert where["thread"].startswith("twiceproof-work")


def test_async_runs_are_at_work_at_the_same_time(shop):
    @shop.app.flow(key="{n}")
    async def meet(n: int) -> None:
        together.append(n)
        while len(together) < 5:  # alone, it would never end
            await asyncio.sleep(0)

    together = []
    for n in range(5):
        asyncio.run(meet.start(n))
    assert shop.work(concurrency=5) == 5


def test_a_sleeping_run_goes_on_when_its_time_has_come_and_not_before(shop):
    @shop.app.flow(key="{n}")
    def nap(n: int) -> str:
        shop.app.sleep("1h")
        return "rested"

    nap.start(1)
    assert shop.work() == 1
    shop.clock.advance(3_000)
    assert shop.work() == 0
    shop.clock.advance(700)
    assert shop.work() == 1
    assert nap(1) == "rested"


def test_only_what_has_lapsed_is_recovered(shop, ship):
    record = _held(shop, ship, 1)
    assert shop.work() == 0
    shop.clock.advance(31)
    assert shop.work() == 1
    assert shop.done == {"pack 1": 1}
    assert record.at == shop.engine.fetch([record.at])[0].record.at


def _held(shop: Shop, flow, n: int, crashes: int = 0) -> Record:
    """A run whose holder is about to die."""
    handle = flow.start(n)
    at = handle._handle.at
    found = shop.engine.fetch([at])[0].record
    claim = with_work(claim_of(found), crashes=crashes)
    shop.app.store.write(
        Replace(
            at, body_of(claim), "held", version=found.version, draw=True, lease=30.0, queue=found.queue, due_in=30.0
        )
    ).block()
    return shop.engine.fetch([at])[0].record


def test_a_worker_leaves_runs_of_versions_alone_that_it_does_not_have(shop, ship):
    other = shop.process()

    @other.flow(key="order:{n}", name="ship", version="2")
    def newer(n: int) -> str:
        return "new"

    newer.start(1)
    assert shop.work() == 0
    assert shop.work(other) == 1
    assert newer(1) == "new"


def test_a_worker_serves_the_versions_that_a_flow_accepts(shop, ship):
    other = shop.process()

    @other.flow(key="order:{n}", name="ship", version="2", accepts=("1",))
    def newer(n: int) -> str:
        return "new"

    ship.start(1)
    assert shop.work(other) == 1


# -- bad runs --------------------------------------------------------------------------------------


def test_a_run_that_fails_harms_no_other(shop, ship):
    @shop.app.flow(key="{n}")
    def bad(n: int) -> None:
        raise ValueError("a bug")

    for n in range(5):
        bad.start(n)
        ship.start(n)
    assert shop.work(concurrency=2) == 10
    assert shop.app.attach(flow="bad", key="1").state == "failed"
    assert shop.done.total() == 5


def test_input_that_cannot_be_read_fails_a_run_that_never_began(shop):
    @shop.app.flow(key="{n}")
    def count(n) -> None:
        raise AssertionError("it must not run")

    count.start("three")
    other = shop.process()

    @other.flow(key="{n}", name="count")
    def typed(n: int) -> None:
        raise AssertionError("it must not run")

    assert shop.work(other) == 1
    assert other.attach(flow="count", key="three").state == "failed"
    shop.clock.advance(3_600)
    assert shop.work(other) == 0


def test_input_that_can_no_longer_be_read_parks_a_run_that_has_begun(shop):
    @shop.app.flow(key="{n}")
    def count(n) -> None:
        shop.app.sleep("1h")

    count.start("three")
    shop.work()
    other = shop.process()

    @other.flow(key="{n}", name="count")
    def typed(n: int) -> None:
        raise AssertionError("it must not run")

    shop.clock.advance(3_700)
    assert shop.work(other) == 1
    assert other.attach(flow="count", key="three").state == "review"


def test_a_direct_call_whose_input_does_not_fit_leaves_nothing_behind(shop):
    @shop.app.flow(key="{n}")
    def typed(n: int) -> None:
        raise AssertionError("it must not run")

    with pytest.raises(Misuse, match="correct the annotation or the call"):
        typed("three")
    assert shop.app.attach(flow="typed", key="three").state == ""


def test_a_record_that_cannot_be_read_is_put_off_and_told(shop, ship, caplog):
    at = Address("default/ship/order:1", "run", "self")
    shop.app.store.write(Insert(at, "not a claim", "queued", queue=ship.flow.queues[0], due_in=0.0)).block()
    ship.start(2)
    with caplog.at_level(logging.ERROR, "twiceproof.work"):
        assert shop.work() == 2
    assert "default/ship/order:1" in caplog.text
    assert caplog.records[0].run.startswith("run_")
    shop.clock.advance(60)
    assert shop.work() == 0
    shop.clock.advance(300)
    assert shop.work() == 1


def test_a_flow_that_calls_sys_exit_ends_neither_the_worker_nor_comes_round_at_once(shop, ship):
    @shop.app.flow(key="{n}")
    def leave(n: int) -> None:
        sys.exit(1)

    leave.start(1)
    ship.start(1)
    assert shop.work(concurrency=1) == 2
    assert shop.app.attach(flow="leave", key="1").state == "queued"


def test_a_run_that_kills_whoever_takes_it_ends_in_review(shop, ship):
    _held(shop, ship, 1, crashes=MOST_CRASHES)
    shop.clock.advance(31)
    assert shop.work() == 1
    assert shop.app.attach(flow="ship", key="order:1").state == "review"
    assert not shop.done


def test_one_crash_less_is_recovered(shop, ship):
    _held(shop, ship, 1, crashes=MOST_CRASHES - 1)
    shop.clock.advance(31)
    shop.work()
    assert shop.app.attach(flow="ship", key="order:1").state == "done"


def test_a_run_that_was_taken_away_after_it_was_handed_out_does_not_begin_anew(shop, ship):
    ship.start(1)
    due = shop.app.store.due("run", queues=ship.flow.queues).block()
    (record,) = due.records
    shop.app.store.write(Remove(record.at, version=record.version)).block()
    assert block(resume_run(ship.flow, record)) is None
    assert not shop.done


def test_a_run_that_was_parked_after_it_was_handed_out_is_not_woken_early(shop):
    @shop.app.flow(key="{n}")
    def nap(n: int) -> None:
        shop.done["began"] += 1
        shop.app.sleep("1h")

    nap.start(1)
    (record,) = shop.app.store.due("run", queues=nap.flow.queues).block().records
    block(resume_run(nap.flow, record))
    assert block(resume_run(nap.flow, record)) is None
    assert shop.done["began"] == 1


# -- waiting ---------------------------------------------------------------------------------------


def test_an_idle_worker_asks_nothing_and_hears_of_a_start(shop, ship):
    with shop.at_work():
        asked = shop.engine.calls["due"]
        assert not shop.engine.answered.acquire(timeout=0.2)
        assert shop.engine.calls["due"] == asked
        assert ship.start(1).result(PATIENT) == 2


def test_a_worker_that_waits_for_something_far_away_is_woken_by_something_nearer(shop, ship):
    block(ship.flow.start((1,), {}, delay=86_400.0))
    with shop.at_work():
        assert ship.start(2).result(PATIENT) == 4
    assert shop.done == {"pack 2": 1}


def test_a_run_that_is_given_while_all_places_are_taken_is_begun_when_one_is_free(shop):
    @shop.app.flow(key="{n}")
    def hold(n: int) -> int:
        began.release()
        assert go.wait(PATIENT)
        return n

    began, go = threading.Semaphore(0), threading.Event()
    with shop.at_work(concurrency=2):
        handles = [hold.start(n) for n in range(5)]
        assert began.acquire(timeout=PATIENT) and began.acquire(timeout=PATIENT)
        assert not began.acquire(blocking=False)
        go.set()
        assert [handle.result(PATIENT) for handle in handles] == list(range(5))


def test_a_flow_that_is_declared_later_is_served_too(shop, ship):
    with shop.at_work():
        late = shop.app.flow(key="{n}", name="late")(lambda n: n)
        ship.start(1).result(PATIENT)  # makes it look again, and learn of the new queue
        assert late.start(3).result(PATIENT) == 3


def test_a_worker_outlives_a_store_that_does_not_answer(shop, ship, caplog):
    shop.engine.broken = True
    with caplog.at_level(logging.WARNING, "twiceproof.work"), shop.at_work():
        shop.engine.broken = False
        assert ship.start(1).result(PATIENT) == 2
    assert "will try again" in caplog.text


# -- draining --------------------------------------------------------------------------------------


def test_a_draining_worker_lets_the_step_end_and_gives_the_run_back_before_the_next(shop):
    @shop.app.step(repeat="never")
    def first() -> str:
        inside.set()
        assert go.wait(PATIENT)
        return "one"

    @shop.app.step(repeat="never")
    def second() -> str:
        shop.done["second"] += 1
        return "two"

    @shop.app.flow(key="{n}")
    def both(n: int) -> list[str]:
        return [first(), second()]

    inside, go = threading.Event(), threading.Event()
    handle = both.start(1)
    with shop.at_work() as worker:
        assert inside.wait(PATIENT)
        worker.drain()
        go.set()
    assert handle.state == "queued"
    assert not shop.done
    assert shop.work() == 1
    assert handle.result() == ["one", "two"]


def test_a_worker_that_is_stopped_leaves_what_is_under_way(shop):
    @shop.app.flow(key="{n}")
    def stuck(n: int) -> None:
        inside.set()
        go.wait(PATIENT)

    inside, go, left = threading.Event(), threading.Event(), []
    stuck.start(1)
    worker = shop.app.worker()
    thread = threading.Thread(target=lambda: left.append(worker.run()), daemon=True)
    thread.start()
    assert inside.wait(PATIENT)
    worker.drain()
    worker.stop()
    thread.join(PATIENT)
    assert left == [1]
    go.set()


def test_a_worker_without_places_is_refused(shop):
    with pytest.raises(Misuse, match="one or more"):
        shop.app.worker(concurrency=0)


# -- other due_work ----------------------------------------------------------------------------------


class Chime(DueWork):
    """Something else that falls due."""

    kind = "chime"

    def __init__(self) -> None:
        self.heard: list[str] = []

    def queues(self) -> list[str]:
        return ["bells"]

    def carry_out(self, record: Record) -> Operation[None]:
        yield from Inline(lambda: self.heard.append(record.at.key))
        if record.at.key == "cracked":
            raise NotDone("cracked")


def test_a_worker_serves_other_duties_beside_runs(shop, ship):
    chime = Chime()
    shop.app.due_work.append(chime)
    for key in ("one", "cracked"):
        shop.app.store.write(Insert(Address("s", "chime", key), "", queue="bells", due_in=0.0)).block()
    ship.start(1)
    assert shop.work(concurrency=1) == 3
    assert sorted(chime.heard) == ["cracked", "one"]
    shop.clock.advance(6)
    assert shop.work() == 1  # nobody moved it: it is due again
    assert chime.heard[2:] == ["one"]


# -- telling ---------------------------------------------------------------------------------------


@pytest.fixture
def lines():
    """What a handler with our filter writes, in text and in JSON."""
    found: list[tuple[str, str]] = []
    plain, as_json = logging.Formatter(FORMAT), JsonLines()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append((plain.format(record), as_json.format(record)))

    handler = Handler()
    handler.addFilter(RunFilter())
    root = logging.getLogger()
    root.addHandler(handler)
    before = root.level
    root.setLevel(logging.INFO)
    yield found
    root.removeHandler(handler)
    root.setLevel(before)


def test_every_line_of_a_run_has_its_correlation_id_also_those_of_other_loggers(shop, lines):
    @shop.app.step(repeat="safe")
    def call() -> None:
        logging.getLogger("somebody.else").info("in the step")

    @shop.app.flow(key="order:{n}")
    def talk(n: int) -> None:
        logging.getLogger("somebody.else").info("in the flow")
        call()

    block(talk.flow.start((1,), {}, correlation="req-9"))
    shop.work()
    texts = [text for text, _ in lines]
    assert [text.split(" ", 3)[3] for text in texts] == [
        "[req-9] talk order:1: in the flow",
        "[req-9] talk order:1 call: in the step",
        "[req-9] talk order:1: done",
    ]
    assert '"correlation":"req-9","run":"run_' in lines[1][1]
    assert '"step":"call","message":"in the step"' in lines[1][1]


def _frozen(shop):
    """A flow whose first holder stands still past its lease: another takes the run over, and the first wakes up."""

    def declare(app, freeze):
        @app.step(repeat="safe")
        def slow() -> None:
            freeze()

        @app.flow(key="order:{n}")
        def talk(n: int) -> None:
            slow()

        return talk

    other = shop.process()
    declare(other, lambda: None)

    def freeze():
        shop.clock.advance(60)
        assert threads.submit(shop.work, other).result(PATIENT) == 1
        threads.submit(shop.app._heartbeat.beat).result(PATIENT)

    threads = ThreadPoolExecutor(1)
    return declare(shop.app, freeze)


def _about_the_loss(lines):
    return [text.split(" ", 3)[3] for text, _ in lines if "lost" in text]


def test_what_is_said_of_a_run_that_was_lost_has_its_correlation_id(shop, lines):
    talk = _frozen(shop)
    with shop.app.correlate("req-9"):
        talk.start(1)
    shop.work()
    lost, left = _about_the_loss(lines)
    assert lost.startswith("[req-9] talk order:1: lost the claim default/talk/order:1")
    assert left.startswith("[req-9] talk order:1: left default/talk/order:1 behind")
    for _, as_json in lines[-2:]:
        assert '"correlation":"req-9","run":"run_' in as_json
        assert '"flow":"talk","key":"order:1"' in as_json


@pytest.mark.parametrize("given", [True, False])
def test_a_call_that_lost_its_run_is_told_with_its_correlation_id(shop, lines, given):
    talk = _frozen(shop)
    with shop.app.correlate("req-9") if given else contextlib.nullcontext(), pytest.raises(ClaimLost):
        talk(1)
    (lost,) = _about_the_loss(lines)
    id_ = "req-9" if given else shop.app.attach(flow="talk", key="order:1").id
    assert lost.startswith(f"[{id_}] talk order:1: lost the claim default/talk/order:1")


def test_a_line_outside_of_runs_has_none(lines):
    logging.getLogger("somebody.else").info("hello")
    assert lines[0][0].endswith(" INFO hello")
    assert "correlation" not in lines[0][1]


def test_a_correlation_id_cannot_write_lines_of_its_own(shop, ship, lines):
    block(ship.flow.start((1,), {}, correlation="req\n2026-01-01 INFO all is well"))
    shop.work()
    assert all("\n" not in text for text, _ in lines)


def test_a_worker_of_a_closed_app_is_refused() -> None:
    shop = Shop()
    shop.app.flow(key="order:{n}", name="order")(lambda n: n)
    shop.app.close()
    worker, told = shop.app.worker(), []

    def serve() -> None:
        with pytest.raises(StoreUnavailable, match="was closed"):
            worker.run()
        told.append("closed")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    thread.join(PATIENT)
    worker.stop()
    assert told == ["closed"]


def test_a_worker_ends_when_its_app_is_closed() -> None:
    """It would look for ever at a store that nobody opens again."""
    shop = Shop()
    shop.app.flow(key="order:{n}", name="order")(lambda n: n)
    worker, left = shop.app.worker(), []
    thread = threading.Thread(target=lambda: left.append(worker.run()), daemon=True)
    thread.start()
    assert shop.engine.answered.acquire(timeout=PATIENT)
    shop.app.close()
    worker.wake()
    thread.join(PATIENT)
    assert left == [0]


def test_a_worker_outlives_a_store_that_is_away() -> None:
    shop = Shop()
    shop.app.flow(key="order:{n}", name="order")(lambda n: n)
    shop.engine.broken = True
    worker, left = shop.app.worker(), []
    thread = threading.Thread(target=lambda: left.append(worker.run()), daemon=True)
    thread.start()
    assert shop.engine.answered.acquire(timeout=PATIENT)
    shop.engine.broken = False
    worker.wake()
    assert shop.engine.answered.acquire(timeout=PATIENT)
    assert thread.is_alive() and not left
    worker.drain()
    thread.join(PATIENT)
    assert left == [0]


@pytest.mark.parametrize("placed", [False, True])
def test_a_worker_without_a_place_for_large_values_says_first_what_is_not_kept(shop, ship, tmp_path, caplog, placed):
    shop.app.runtime.claims.blobs = open_blob_store(f"dir://{tmp_path}") if placed else None
    with caplog.at_level(logging.INFO, "twiceproof.work"), shop.at_work():
        pass
    said = [record.getMessage() for record in caplog.records]
    assert any("more than 8,388,608 bytes is not kept" in line for line in said[:1]) != placed
