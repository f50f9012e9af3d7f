"""No answer to COMMIT: the database knows, and is asked. The work is done once, whatever became of the commit."""

from __future__ import annotations

import threading
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.acceptance.places import PostgresPlace
from tests.acceptance.shops import Shop
from tests.acceptance.ways import WAYS
from tests.acceptance.wrappers import Wrapped
from twiceproof import Retry
from twiceproof.flows import transaction as joined
from twiceproof.flows.engine import ledger
from twiceproof.stores.base import SpaceBusy
from twiceproof.stores.user_transaction import Join

pytestmark = pytest.mark.server

BOTH = (["17"], [("reserve", "done")])
TWICE = Retry(attempts=2, first=0)
DRIVERS = {way.name: way for way in WAYS}
ON_POSTGRES = [way for way in WAYS if way.store == "postgres"]


@pytest.fixture
def shop(postgres_dsn, tmp_path):
    return Shop(PostgresPlace(postgres_dsn, tmp_path), "postgres")


@pytest.fixture
def proxy(postgres_dsn, fault_proxy):
    parts = urlsplit(postgres_dsn)
    return fault_proxy(parts.hostname, parts.port)


@pytest.fixture
def far(shop, proxy):
    """The same place, by way of the proxy: the user's connections go there."""
    return PostgresPlace(proxy.url(shop.place.url), shop.place.directory)


def both(shop):
    return shop.stock(), shop.steps()


@pytest.mark.parametrize("way", ON_POSTGRES, ids=lambda way: way.name)
def test_a_commit_whose_answer_was_lost_is_found_and_not_repeated(shop, far, proxy, way):
    worked = []
    with far.app() as app:
        proxy.drop_next_reply(match=b"COMMIT")
        assert way.call(far, app, "17", during=worked.append, retry=TWICE) == "reserved 17"
        assert proxy.counters.replies_dropped == 1
        assert way.call(far, app, "17") == "reserved 17"
    assert len(worked) == 1
    assert both(shop) == BOTH
    assert shop.starts() == [1]  # adopted, not tried again


@pytest.mark.parametrize("way", ON_POSTGRES, ids=lambda way: way.name)
def test_a_commit_that_never_arrived_is_found_missing_and_the_work_done_again(shop, far, proxy, way, monkeypatch):
    commit, cuts = Join.commit, []

    def cut_first(self):
        if not cuts:
            cuts.append(proxy.cut())
        yield from commit(self)

    monkeypatch.setattr(Join, "commit", cut_first)
    worked = []
    with far.app() as app:
        assert way.call(far, app, "17", during=worked.append, retry=TWICE) == "reserved 17"
    assert len(worked) == 2
    assert both(shop) == BOTH
    assert shop.starts() == [2]


# -- a commit that lands after its connection broke ----------------------------------------------

GATE = 4711
SLOW_COMMIT = f"""
CREATE FUNCTION wait_at_the_gate() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON stock DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION wait_at_the_gate()"""
AT_THE_GATE = f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = {GATE} AND NOT granted"


class Asking(Wrapped):
    """Tells when a commit found its space held by somebody else."""

    def __init__(self, inner, held: threading.Event):
        super().__init__(inner)
        self._held = held

    def commit(self, batches):
        answers = self.inner.commit(batches)
        if any(isinstance(answer, SpaceBusy) for answer in answers):
            self._held.set()
        return answers


def late_commit(shop, far, proxy):
    """The commit waits in the server; its connection breaks; only when the ledger has been asked does it go on."""
    held, worked = threading.Event(), []
    with psycopg.connect(shop.place.url, autocommit=True) as gate:
        gate.execute(SLOW_COMMIT)
        gate.execute("SELECT pg_advisory_lock(%s)", (GATE,))

        def let_it_through():
            with psycopg.connect(shop.place.url, autocommit=True) as eye:
                while eye.execute(AT_THE_GATE).fetchone() is None:
                    pass
            proxy.cut()
            held.wait(10)
            gate.execute("SELECT pg_advisory_unlock(%s)", (GATE,))

        helper = threading.Thread(target=let_it_through)
        helper.start()
        with shop.place.app(lambda engine: Asking(engine, held)) as app:
            way = DRIVERS["psycopg lent"]
            assert way.call(far, app, "17", during=worked.append, retry=TWICE) == "reserved 17"
        helper.join()
    assert held.is_set()
    return len(worked)


def test_a_commit_that_lands_after_its_connection_broke_is_waited_for(shop, far, proxy):
    assert late_commit(shop, far, proxy) == 1
    assert both(shop) == BOTH


def test_control_without_asking_under_the_lock_a_late_commit_is_done_twice(shop, far, proxy, monkeypatch):
    def overtaking(session, name):
        """A plain look: the commit under way is not to be seen yet."""
        return False
        yield

    monkeypatch.setattr(joined, "_is_written", overtaking)
    monkeypatch.setattr(ledger, "_came_late", lambda record, entry: False)  # nor is what is found later believed
    assert late_commit(shop, far, proxy) == 2
    assert shop.stock() == ["17", "17"]


def test_control_an_entry_outside_the_transaction_repeats_a_commit_of_lost_answer(shop, far, proxy):
    with shop.place.app() as app:

        @app.step(repeat="safe", retry=TWICE)
        def reserve():
            with psycopg.connect(far.url) as db:
                db.execute("INSERT INTO stock (name) VALUES ('17')")

        @app.flow(key="order:17")
        def buy():
            reserve()

        proxy.drop_next_reply(match=b"COMMIT")
        buy()
    assert shop.stock() == ["17", "17"]
