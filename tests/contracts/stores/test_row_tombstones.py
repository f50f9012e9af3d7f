"""Tombstones of stores of rows: they keep late inserts out, are passed over, and go when their time is over."""

import pytest

from tests.contracts.stores.movable_rows import MovableClock, advance, movable
from tests.contracts.stores.row_places import place  # noqa: F401
from tests.unit.outbox.stand_in import StandInBroker
from twiceproof import App
from twiceproof.clock import system_clock
from twiceproof.errors import BadWrite
from twiceproof.outbox.relay import TargetRelay
from twiceproof.records import Address, Insert, Remove, Written
from twiceproof.stores.base import Disconnected
from twiceproof.stores.rows import due, engine
from twiceproof.stores.rows.row import micros, time_part
from twiceproof.stores.rows.table import Throttled

pytestmark = pytest.mark.server

AT = Address("shop/order:1", "claim", "self")


def claim():
    return Insert(AT, "mine", state="held", draw=True, lease=30.0, queue="q/a", due_in=30.0)


@pytest.fixture
def store(place):  # noqa: F811
    store = place.open()
    yield store
    store.close()
    MovableClock.shift = 0.0


def test_a_straggler_cannot_bring_back_what_was_removed(store):
    """An insert that arrives once more after its record was removed finds the tombstone."""
    late = []
    change_each = store.engine.table.change_each

    def remember(transactions):
        late.extend(transactions)
        return change_each(transactions)

    store.engine.table.change_each = remember
    landed = store.write(claim()).block()
    (straggler,) = late
    store.write(Remove(AT, fence=landed.fence)).block()
    change_each([straggler])  # DynamoDB knows it by its token, and answers as the first time; others refuse it
    assert store.read(AT).block().record is None


def test_a_tombstone_goes_when_its_time_is_over(store):
    movable(store.engine)
    landed = store.write(claim()).block()
    store.write(Remove(AT, fence=landed.fence)).block()
    lane, _ = next(iter(store.engine._known._rows))
    for seconds, rows in ((80_000, 1), (10_000, 0)):
        advance(seconds)
        for each in range(store.engine.lanes):
            store.engine._due.purge(each)
        assert len(store.engine.table.range(lane, "r", "r~", 10)) == rows
    assert store.engine.table.range(lane, "z", "z~", 10) == []
    assert store.write(claim()).block().fence > landed.fence


def test_a_record_that_was_removed_twice_leaves_no_tombstone_for_ever(store):
    """Both removals point to one row. A service may refuse to be asked for the same row twice at once."""
    movable(store.engine)
    for _ in range(2):
        landed = store.write(claim()).block()
        store.write(Remove(AT, fence=landed.fence)).block()
    lane, _ = next(iter(store.engine._known._rows))
    advance(90_000)
    store.engine._due.purge(lane)
    assert store.engine.table.range(lane, "r", "r~", 10) == store.engine.table.range(lane, "z", "z~", 10) == []


def test_tombstones_go_as_fast_as_they_come(store):
    """The table does not grow for ever."""
    movable(store.engine)
    at = [Address("gone", "step", str(nth)) for nth in range(150)]

    def come_and_go(part):
        landed = store.write(*(Insert(each, "", draw=True) for each in part)).block()
        store.write(*(Remove(each, fence=landed.fence) for each in part)).block()

    for first in range(0, len(at), 30):
        come_and_go(at[first : first + 30])
    lane, _ = next(iter(store.engine._known._rows))
    advance(90_000)
    for _ in range(6):
        come_and_go(at[:30])
    now = time_part(micros(store.engine.clock.now()))
    graves = store.engine.table.range(lane, "z", "z~", 1_000)
    assert graves and not [row for row in graves if row.place[1] < f"z{now}"]


FAULTS = [BadWrite("no"), Disconnected(OSError("gone"), sent=True), Throttled(OSError("slow"))]


@pytest.mark.parametrize("error", FAULTS)
def test_a_purge_that_fails_is_not_told_to_a_caller(store, error, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(engine, "PURGE_AFTER", 1)
    monkeypatch.setattr(due, "PURGE_EVERY", 0.0)
    landed = store.write(claim()).block()
    store.engine._due.purge = fail
    assert isinstance(store.write(Remove(AT, fence=landed.fence)).block(), Written)
    store.write(Insert(AT, "", queue="q/a", due_in=0.0)).block()
    handed = []
    while not handed:
        handed = store.due("claim", queues=["q/a"]).block().records
    assert [record.at for record in handed] == [AT]


def test_ordered_messages_are_all_published_in_their_order(place):  # noqa: F811
    """Tickets of those that were sent leave tombstones, behind which the next ones are found."""
    app, broker, keys = App(place.url), StandInBroker(), [f"m{nth}" for nth in range(150)]
    app.broker("main", broker)
    app.route("orders.*", to="main")
    relay = TargetRelay(app.store, app.routing.targets["main"], app.tenants.known, clock=system_clock, roll=lambda: 1.0)
    for part in (keys[:100], keys[100:]):
        for key in part:
            app.send("orders.paid", {"order": key}, key=key, order="o")
        for _ in range(30):
            relay.run_once()
    relay.close()
    assert broker.keys == keys
    app.close()
