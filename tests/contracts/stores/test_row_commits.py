"""Stores of rows: what may happen between the look at a row and the write that relies on it, and between two rounds."""

import time

import pytest

from tests.contracts.stores.row_places import place  # noqa: F401
from twiceproof.claims.manager import ClaimManager
from twiceproof.claims.states import ClaimRequest
from twiceproof.errors import BadWrite
from twiceproof.operations import block
from twiceproof.records import Address, Check, Conflict, Insert, Replace, Written
from twiceproof.stores.base import Disconnected
from twiceproof.stores.rows.row import kind_prefix
from twiceproof.stores.rows.server_clock import ServerClock
from twiceproof.stores.rows.table import RowsDiffer, Throttled

pytestmark = pytest.mark.server

AT, BESIDE = Address("shop/order:1", "claim", "self"), Address("shop/order:2", "claim", "self")


def claim(at=AT, body="mine"):
    return Insert(at, body, state="held", draw=True, lease=30.0, queue="q/a", due_in=30.0)


@pytest.fixture
def store(place):  # noqa: F811
    store = place.open()
    yield store
    store.close()


@pytest.fixture
def other(place):  # noqa: F811
    store = place.open()
    yield store
    store.close()


def between_look_and_write(store, work):
    """Do this once, when the conditions of the next write have been checked and nothing has been sent."""
    committer, left = store.engine._commits, [work]
    send = committer._send

    def sent(attempts, pauses):
        while left:
            left.pop()()
        send(attempts, pauses)

    committer._send = sent


def test_a_claim_that_a_reader_meets_meanwhile_is_not_overwritten(store, other):
    def overtake():
        other.write(claim(body="theirs")).block()
        store.engine.fetch([AT])  # as another thread does, which waits for the claim

    between_look_and_write(store, overtake)
    outcome = store.write(claim()).block()
    assert isinstance(outcome, Conflict) and outcome.found.body == "theirs"


@pytest.mark.parametrize("by", ["fence", "version"])
def test_a_take_over_that_a_reader_meets_meanwhile_is_not_overwritten(store, other, by):
    held = store.write(claim()).block()

    def overtake():
        other.write(Replace(AT, "theirs", "held", version=held.version, draw=True)).block()
        store.engine.fetch([AT])

    between_look_and_write(store, overtake)
    late = store.write(Replace(AT, "late", "done", **{by: getattr(held, by)})).block()
    assert isinstance(late, Conflict) and late.found.body == "theirs"


def test_a_check_that_held_once_is_made_again(store, other):
    """DynamoDB remembers the token of a request for ten minutes, and repeats its answer."""
    held = store.write(claim()).block()
    check = Check(AT, fence=held.fence)
    assert isinstance(store.write(check).block(), Written)
    other.write(Replace(AT, "theirs", "held", fence=held.fence, draw=True)).block()
    assert isinstance(store.write(check).block(), Conflict)


class Failing:
    """A table that tells nothing of the rows it found, and fails to read so many times."""

    def __init__(self, table, error, times):
        self.table, self.error, self.times = table, error, times

    def __getattr__(self, name):
        return getattr(self.table, name)

    def change_each(self, transactions):
        answers = self.table.change_each(transactions)
        return [RowsDiffer() if isinstance(answer, RowsDiffer) else answer for answer in answers]

    def read(self, places):
        self.times -= 1
        if self.times >= 0:
            raise self.error
        return self.table.read(places)


THROTTLED, REFUSED = Throttled(OSError("slow down")), Disconnected(OSError("refused"), sent=False)


@pytest.mark.parametrize("error", [THROTTLED, REFUSED], ids=["throttled", "refused"])
def test_a_claim_keeps_its_answer_when_its_neighbour_cannot_be_read(store, other, error):
    """The first round lands one claim and finds a duplicate, which must be read to be told."""
    other.write(claim(BESIDE, "theirs")).block()
    store.engine._commits._table = Failing(store.engine.table, error, 1)
    mine, theirs = store.write_each([[claim(AT)], [claim(BESIDE)]]).block()
    assert isinstance(mine, Written) and other.read(AT).block().record.fence == mine.fence
    assert isinstance(theirs, Conflict) and theirs.found.body == "theirs"


def test_a_queue_changed_within_one_moment_is_found_in_the_new_one(store, monkeypatch):
    """The store's time stands still while its estimate of the service's time is corrected."""
    now = store.engine.clock.now()
    monkeypatch.setattr(store.engine.clock, "now", lambda: now)
    first = store.write(Insert(AT, "", "queued", queue="shop/a", due_in=0.0)).block()
    store.write(Replace(AT, "", "queued", version=first.version, queue="shop/b", due_in=0.0)).block()
    assert store.due("claim", queues=["shop/a"]).block().next_in is None
    assert [record.at for record in store.due("claim", queues=["shop/b"]).block().records] == [AT]


@pytest.mark.parametrize("tail", ["' or RowKey gt '", "é", "0 ", ""])
def test_a_cursor_with_anything_but_a_key_in_it_is_refused(store, tail):
    store.write(Insert(AT, "")).block()
    store.write(Insert(Address("secret", "key", "self"), "")).block()
    prefix = kind_prefix("claim")
    with pytest.raises(BadWrite):
        store.scan("claim", after=f"0:{prefix}{tail}" if tail else "9" * 5_000 + f":{prefix}").block()


class Shifted(ServerClock):
    """An estimate that is as wrong as one answer allows."""

    shift = 0.0

    def _told_time(self):
        return super()._told_time() + self.shift


@pytest.mark.parametrize("renewed", [False, True])
def test_a_holder_stops_before_another_process_may_take_over(store, other, renewed):
    """The service's answers name whole seconds: two processes may differ by one about when a lease is over."""
    for each, shift in ((store, -0.5), (other, 0.5)):
        estimate = each.engine.table.clock
        estimate._low = estimate._high = time.time() - time.monotonic()
        estimate._told = 0.0
        estimate.__class__, estimate.shift = Shifted, shift
        estimate.heard = lambda *answer: None
    claims = ClaimManager(store)
    request = ClaimRequest(at=AT, operation="charge", key="1", owner="me", lease=30.0)
    held = block(claims.take(request))
    if renewed:
        held = block(claims.renew(held))
    found = other.read(AT).block()
    assert held.deadline <= time.monotonic() + found.record.lease_until - found.now
    assert held.deadline >= time.monotonic() + 28.0
