"""Stores of rows: requests per claim, lost answers, throttling, tombstones, races, and what is planted."""

import subprocess
import sys
import threading

import pytest

from tests.contracts.stores.movable_rows import MovableClock, advance, movable
from tests.contracts.stores.row_places import killable_place, place  # noqa: F401
from tests.contracts.stores.row_race import KEYS, winners
from twiceproof import App
from twiceproof.errors import BadWrite, StoreUnavailable
from twiceproof.records import Address, Batch, Check, Conflict, Insert, Lost, Remove, Replace, Written
from twiceproof.stores.base import Disconnected, NoLedger
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.open import open_store
from twiceproof.stores.rows import commits
from twiceproof.stores.rows import engine as engine_module
from twiceproof.stores.rows.table import Landed, Throttled

pytestmark = pytest.mark.server

AT = Address("shop/order:1", "claim", "self")


def claim(at=AT, body="mine"):
    return Insert(at, body, state="held", draw=True, lease=30.0, queue="q/a", due_in=30.0)


@pytest.fixture
def store(place):  # noqa: F811
    store = place.open()
    yield store
    store.close()


# -- the doctor before there is a ledger -----------------------------------------------------------


def test_the_doctor_sees_the_service_before_there_is_a_ledger(place):  # noqa: F811
    with pytest.raises(NoLedger) as missing:
        open_store(place.url, create=False)
    assert {"clock", "members" if place.name == "etcd" else "service"} <= {
        found.name for found in missing.value.findings
    }


# -- lists ---------------------------------------------------------------------------------------


def test_no_page_of_a_prefix_looks_at_more_rows_than_it_may(store, monkeypatch):
    monkeypatch.setattr(engine_module, "MOST_LOOKED_AT", 8)
    spaces = [f"{tenant}/{nth}" for nth in range(10) for tenant in ("acme", "other")]
    for space in spaces:
        store.write(Insert(Address(space, "claim", "self"), "")).block()
    pages, after = [], None
    while not pages or after is not None:
        page = store.scan("claim", prefix="acme/", after=after).block()
        pages.append([record.at.space for record in page.records])
        after = page.after
    assert len(pages) == 3 and all(len(page) <= 8 for page in pages)
    assert sorted(space for page in pages for space in page) == [f"acme/{nth}" for nth in range(10)]


# -- requests ------------------------------------------------------------------------------------


def counted(store, write):
    before = store.engine.table.requests
    return store.write(write).block(), store.engine.table.requests - before


def test_a_take_a_completion_and_a_replay_are_one_request_each(store, place):  # noqa: F811
    taken, take = counted(store, claim())
    done, completion = counted(store, Replace(AT, "done", "done", fence=taken.fence, draw=True, queue="q", due_in=9e5))
    again, replay = counted(store, claim(body="other"))
    assert (type(taken), type(done), type(again)) == (Written, Written, Conflict)
    assert (take, completion, replay) == (1, 1, 1)
    other = place.open()
    again, replay = counted(other, claim(body="other"))
    assert isinstance(again, Conflict) and again.found.body == "done"
    assert replay <= (2 if place.name == "azure-table" else 1)
    other.close()


def together(store, name, keys):
    """Commit these claims as one group: what each was told, and with how many requests."""
    spaces = [Address(f"{name} {key}", "claim", "self") for key in keys]
    before = store.engine.table.requests
    answers = store.engine.commit([Batch([claim(at)], at.space) for at in spaces])
    return [type(answer) for answer in answers], store.engine.table.requests - before


def test_claims_that_come_together_share_requests(store, both, place):  # noqa: F811
    """Azure's transactions are of one lane. A duplicate is told apart from the others, which land without it."""
    parts = store.engine.lanes if place.name == "azure-table" else 1
    landed, requests = together(store, "one", range(32))
    assert landed == [Written] * 32 and requests <= parts
    landed, requests = together(both[0], "one", range(31, 40))
    assert landed == [Conflict] + [Written] * 8
    assert requests <= parts + 2  # once more without the duplicate, and on Azure a look at what it met


def test_of_many_duplicates_in_one_group_each_is_told_apart(store, both):
    assert together(store, "many", range(0, 40, 2))[0] == [Written] * 20
    assert together(both[0], "many", range(40))[0] == [Conflict, Written] * 20
    found = store.read_each([Address(f"many {key}", "claim", "self") for key in range(40)]).block()
    assert all(one.record is not None for one in found)


def test_no_partition_has_all_that_is_due(store):
    together(store, "due", range(64))
    lanes = range(store.engine.lanes)
    assert [len(store.engine.table.range(lane, "d", "d~", 1)) for lane in lanes] == [1] * len(lanes)


# -- lost answers --------------------------------------------------------------------------------


@pytest.fixture
def proxy(place, fault_proxy):  # noqa: F811
    return fault_proxy(place.server.host, place.server.port)


@pytest.fixture
def by_proxy(place, proxy):  # noqa: F811
    store = place.open(place.url_by(proxy.host, proxy.port))
    yield store
    store.close()


def test_a_write_whose_answer_was_lost_is_recognised(by_proxy, proxy, place):  # noqa: F811
    proxy.drop_next_reply(place.write)
    outcome = by_proxy.write(claim()).block()
    assert isinstance(outcome, Written)
    assert proxy.counters.replies_dropped == 1
    assert by_proxy.read(AT).block().record.fence == outcome.fence


def test_a_group_whose_answer_was_lost_is_recognised(by_proxy, proxy, place, store):  # noqa: F811
    """All of them, and a duplicate among them is told apart."""
    spaces = [Address(f"group {nth}", "claim", "self") for nth in range(12)]
    store.write(claim(spaces[5])).block()
    proxy.drop_next_reply(place.write)
    answers = by_proxy.write_each([[claim(at)] for at in spaces]).block()
    assert proxy.counters.replies_dropped == 1
    assert [nth for nth, answer in enumerate(answers) if not isinstance(answer, Written)] == [5]
    found = store.read_each(spaces).block()
    assert all(found[nth].record.fence == answers[nth].fence for nth in range(12) if nth != 5)


def test_a_planted_store_that_does_not_know_its_own_write_conflicts_with_it(
    by_proxy,
    proxy,
    place,  # noqa: F811
    monkeypatch,
):
    """The control: what was written is found, and told as somebody else's."""
    monkeypatch.setattr(GroupedStore, "_recognise_lost_acknowledgement", lambda self, batch, answer: answer)
    proxy.drop_next_reply(place.write)
    assert isinstance(by_proxy.write(claim()).block(), Conflict)


def test_a_lost_answer_whose_record_was_overwritten_is_lost(by_proxy, proxy, place, store):  # noqa: F811
    commit = by_proxy.engine.commit

    def overtaken(batches):
        try:
            return commit(batches)
        except Disconnected as error:
            assert error.sent
            found = store.read(AT).block().record
            store.write(Replace(AT, "theirs", version=found.version, draw=True)).block()
            by_proxy.engine.commit = commit
            raise

    by_proxy.engine.commit = overtaken
    proxy.drop_next_reply(place.write)
    outcome = by_proxy.write(claim()).block()
    assert isinstance(outcome, Lost) and outcome.found.body == "theirs"


def test_after_a_kill_nothing_is_done_twice(killable_place):  # noqa: F811
    """The server is killed under four writers. What it kept, it kept whole; an emulator in memory keeps nothing."""
    store = killable_place.open()
    answers = []

    def write(nth):
        for key in range(100):
            try:
                answers.append((nth, key, store.write(claim(Address(f"s{key}", "claim", "self"), str(nth))).block()))
            except StoreUnavailable as error:
                answers.append((nth, key, error))
                return

    store._patience = 0.2
    threads = [threading.Thread(target=write, args=(nth,)) for nth in range(4)]
    for thread in threads:
        thread.start()
    while len(answers) < 40:
        threading.Event().wait(0.002)
    killable_place.server.kill()
    for thread in threads:
        thread.join(60)
    winners = [key for _, key, answer in answers if isinstance(answer, Written)]
    assert len(winners) == len(set(winners)) >= 5
    assert any(isinstance(answer, StoreUnavailable) for _, _, answer in answers)
    store.close()


# -- throttling ----------------------------------------------------------------------------------


class Slow:
    """A table that is throttled so many times, and then is not."""

    def __init__(self, table, times, after=None):
        self.table, self.times, self.after = table, times, after

    def __getattr__(self, name):
        return getattr(self.table, name)

    def change_each(self, transactions):
        if self.times > 0:
            self.times -= 1
            return [Throttled(OSError("slow down"), self.after) for _ in transactions]
        return self.table.change_each(transactions)

    def read(self, places):
        if self.times > 0:
            self.times -= 1
            raise Throttled(OSError("slow down"))
        return self.table.read(places)


def slowed(store, times, after=None):
    table = Slow(store.engine.table, times, after)
    store.engine._commits._table = table
    pauses = []
    store.engine._commits._clock = type(
        "Quick", (), {"monotonic": staticmethod(lambda: sum(pauses)), "sleep": staticmethod(pauses.append)}
    )
    return pauses


def test_a_throttled_write_waits_ever_longer_and_lands(store):
    pauses = slowed(store, 5)
    assert isinstance(store.write(claim()).block(), Written)
    assert len(pauses) == 5 and pauses[-1] > pauses[0] and len(set(pauses)) == 5


def test_a_throttled_write_waits_as_long_as_the_service_asks(store):
    pauses = slowed(store, 1, after=3.0)
    assert isinstance(store.write(claim()).block(), Written)
    assert pauses == [3.0]


@pytest.mark.parametrize("after", [None, 3_600.0])
def test_a_write_that_stays_throttled_is_clean(store, after):
    slowed(store, 10_000, after)
    with pytest.raises(StoreUnavailable) as refused:
        store.write(claim()).block()
    assert refused.value.data["unsure"] is False
    assert store.read(AT).block().record is None


def test_a_throttled_read_is_tried_again_and_clean(store):
    landed = store.write(claim()).block()
    store.engine.table = slow = Slow(store.engine.table, 3)
    assert store.read(AT).block().record.fence == landed.fence
    assert slow.times == 0
    slow.times, store._patience = 10_000, 0.1
    with pytest.raises(StoreUnavailable) as refused:
        store.read(AT).block()
    assert refused.value.data["unsure"] is False


# -- fences -------------------------------------------------------------------------------------


def test_fences_grow_although_another_process_is_an_hour_behind(store, both):
    behind, later = both
    for each in both:
        each.engine.table.clock.now = lambda: store.engine.clock.now() - 3_600
    first = store.write(claim()).block()
    second = behind.write(Replace(AT, "theirs", "held", version=first.version, draw=True)).block()
    removed = behind.write(Remove(AT, fence=second.fence)).block()
    third = later.write(claim()).block()
    assert first.fence < second.fence < int(removed.version) < third.fence


def test_a_machine_that_was_suspended_stamps_no_lease_that_is_over_already(store):
    """Its monotonic clock stood still for an hour, so that what it knows of the service's time is an hour old."""
    clock = store.engine.table.clock
    hour = 3_600.0
    clock._low, clock._high, clock._wall, clock._told = clock._low - hour, clock._high - hour, clock._wall - hour, 0.0
    assert isinstance(store.write(claim()).block(), Written)
    found = store.read(AT).block()
    assert found.record.lease_until > found.now + 20.0


# -- limits ----------------------------------------------------------------------------------------


def test_writes_that_are_too_large_together_are_refused_alone(store):
    part = "x" * store.body_limit
    many = [Insert(Address("big", "step", str(nth)), part) for nth in range(12)]
    answers = store.write_each([many, [claim()]]).block()
    assert isinstance(answers[0], BadWrite) and isinstance(answers[1], Written)
    assert store.scan("step").block().records == []


# -- races ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_of_fifty_callers_in_four_processes_one_wins_each_key(place):  # noqa: F811
    assert winners(place) == list(range(KEYS))


# -- what is planted -----------------------------------------------------------------------------


def conflicts_are_noticed(store, other):
    """Two stores on one ledger take the same key one after the other; each knows an old row."""
    first = store.write(Insert(AT, "mine", "held", draw=True, lease=30.0)).block()
    other.read(AT).block()
    second = store.write(Replace(AT, "renewed", "held", fence=first.fence, draw=True)).block()
    late = other.write(Replace(AT, "late", "held", fence=first.fence)).block()
    return isinstance(late, Conflict) and store.read(AT).block().record.fence == second.fence


@pytest.fixture
def both(place):  # noqa: F811
    stores = place.open(), place.open()
    yield stores
    for each in stores:
        each.close()


def test_a_late_write_is_noticed(both):
    assert conflicts_are_noticed(*both)


def test_a_planted_store_that_ignores_tokens_is_caught(both, monkeypatch):
    monkeypatch.setattr(commits.Base, "expected", property(lambda base: commits.ANY))
    assert not conflicts_are_noticed(*both)


def test_a_planted_store_that_does_not_look_at_the_answer_is_caught(both):
    for each in both:
        each.engine._commits._settle = _believing(each.engine._commits)
    assert not conflicts_are_noticed(*both)


def _believing(committer):
    settle = committer._settle

    def believe(attempt, changes, number, now, answer):
        settle(attempt, changes, number, now, Landed([change.number for change in changes]))

    return believe


# -- the product on it ---------------------------------------------------------------------------


def test_flows_with_steps_waits_and_schedules_run(place):  # noqa: F811
    store, done = place.open(), []
    movable(store.engine)
    app = App(store)

    @app.step(repeat="safe")
    def note(word):
        done.append(word)
        return word

    @app.flow(key="order:{order}")
    def sync(order):
        note("before")
        app.sleep(30)
        return note("after")

    @app.every("1s")
    def tick():
        note("tick")

    handle = sync.start(1)
    app.worker().run(until_idle=True)
    assert "before" in done and "after" not in done
    advance(60)
    app.worker().run(until_idle=True)
    assert done.count("before") == done.count("after") == 1 and "tick" in done
    assert handle.result() == "after"
    app.close()
    MovableClock.shift = 0.0


def test_unknown_batches_are_empty(store):
    assert store.engine.commit([]) == []
    assert store.engine.fetch([]) == []
    landed = store.engine.commit([Batch([claim()], "n1")])
    assert isinstance(landed[0], Written)
    assert isinstance(store.engine.commit([Batch([Check(AT, fence=landed[0].fence)], "n2")])[0], Written)


PROGRAM = """
import sys
from twiceproof import App

app = App(sys.argv[1])

@app.once(key="{n}")
def charge(n):
    return n

print(charge(1), charge(1))
"""


def test_a_program_that_closes_nothing_ends_quietly_with_its_duplicates_counted(place):  # noqa: F811
    """What is counted at the end is written without threads, which an ending process has none of."""
    url = place.url
    ended = subprocess.run([sys.executable, "-c", PROGRAM, url], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("1 1\n", "")
    store = open_store(url)
    assert len(store.scan("duplicates").block().records) == 1
    store.close()
