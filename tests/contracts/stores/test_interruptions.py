"""A signal's exception hits anywhere in the main thread; a store is closed under its callers. Nobody waits for ever."""

import gc
import random
import signal
import sqlite3
import threading
from contextlib import closing

import pytest

from twiceproof import App, NotDone, StoreUnavailable
from twiceproof.records import Address, Insert, Written
from twiceproof.stores.open import open_store

SIGNALS = 1_000


class Alarm(Exception):
    """What soft time limits of job runners raise."""


@pytest.fixture
def alarms():
    def ring(*_):
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    gc.disable()  # an exception in some library's collection callback is lost, and complained about
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    gc.enable()


def write_until_interrupted(store, key, alarms, seconds):
    """True: acknowledged. None: interrupted."""
    try:
        try:
            alarms(seconds)
            return isinstance(store.write(Insert(Address(key, "claim", "self"), "{}")).block(), Written)
        finally:
            alarms(0)
    except Alarm:
        return None


@pytest.mark.slow
def test_a_thousand_interruptions_leave_a_store_that_works(tmp_path, alarms):
    store, dice = open_store(f"sqlite:///{tmp_path}/s.db"), random.Random(1)
    acknowledged, hits, nth = [], 0, 0
    while hits < SIGNALS:
        nth += 1
        answer = write_until_interrupted(store, f"s{nth}", alarms, dice.uniform(0.00005, 0.0006))
        hits += answer is None
        acknowledged += [f"s{nth}"] if answer else []
        assert not store._writes.busy
        assert not store.engine._writer.in_transaction
    store.close()
    with closing(sqlite3.connect(tmp_path / "s.db")) as db:
        there = {space for (space,) in db.execute("SELECT space FROM twiceproof_records")}
    assert set(acknowledged) <= there


def test_nobody_beside_the_interrupted_waits_for_ever_or_gets_anothers_answer(tmp_path, alarms):
    """The main thread is interrupted while it leads for threads; they are told the truth about their own writes."""
    store, dice, ended = (
        open_store(f"sqlite:///{tmp_path}/b.db?durability=process"),
        random.Random(2),
        threading.Event(),
    )
    others = [Other(store, f"other{nth}", ended) for nth in range(4)]
    hits = nth = 0
    while hits < SIGNALS // 5:
        nth += 1
        hits += _interrupted_or_unsure(store, f"main{nth}", alarms, dice.uniform(0.0001, 0.003))
    ended.set()
    for other in others:
        other.join(30)
    assert not any(other.is_alive() for other in others)
    assert [other.wrong for other in others] == [[]] * 4
    assert not store._writes.busy
    store.close()


def _interrupted_or_unsure(store, key, alarms, seconds):
    try:
        return write_until_interrupted(store, key, alarms, seconds) is None
    except StoreUnavailable as error:  # nobody but this thread is interrupted
        raise AssertionError(f"told as if somebody else had been: {error}") from None


class Other(threading.Thread):
    """Writes and reads what only it writes and reads."""

    def __init__(self, store, name, ended):
        super().__init__(daemon=True)
        self.store, self.mine, self.ended, self.wrong, self.count = store, name, ended, [], 0
        self.start()

    def run(self):
        while not self.ended.is_set():
            self.count += 1
            try:
                self._write_and_read(Address(f"{self.mine}-{self.count}", "claim", "self"))
            except StoreUnavailable as error:
                self.wrong += [] if error.unsure else [error]
            except Exception as error:  # noqa: BLE001 - somebody else's
                self.wrong.append(error)

    def _write_and_read(self, at):
        written = self.store.write(Insert(at, at.space, draw=True)).block()
        found = self.store.read(at).block().record
        if not isinstance(written, Written) or (found.body, found.fence) != (at.space, written.fence):
            self.wrong.append((at, written, found))


def test_a_store_closed_under_its_callers_leaves_nothing_half_done(tmp_path):
    app, at_work = App(f"sqlite:///{tmp_path}/c.db"), threading.Barrier(9)
    refusals = []

    @app.once(key="{name}")
    def work(name):
        return name

    def call_on(caller):
        work(f"{caller}-first")
        at_work.wait()
        for nth in range(1_000_000):
            try:
                work(f"{caller}-{nth}")
            except StoreUnavailable as error:
                refusals.append(str(error))
                return

    threads = [threading.Thread(target=call_on, args=(caller,)) for caller in range(8)]
    for thread in threads:
        thread.start()
    at_work.wait()
    app.close()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert len(refusals) == 8
    assert all("closed" in refusal for refusal in refusals)


def test_the_view_of_the_claims_shows_what_was_left_at_its_default(tmp_path):
    with App(f"sqlite:///{tmp_path}/v.db") as app:

        @app.once(key="{name}")
        def work(name):
            raise NotDone("boom", final=True)

        with pytest.raises(NotDone, match="boom"):
            work("a")
    with closing(sqlite3.connect(tmp_path / "v.db")) as db:
        (row,) = db.execute("SELECT tenant, operation, key, state, attempt, fault FROM twiceproof_claims").fetchall()
    assert row == ("default", "work", "a", "failed", 1, '{"type":"NotDone","message":"boom"}')
