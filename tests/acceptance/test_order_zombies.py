"""A process stopped with SIGSTOP past its lease at work on an older version, and continued when a newer one is through.

Only the store's time goes by, as on a machine that was suspended: the process' own clock tells it nothing.
"""

from __future__ import annotations

import signal
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.children import Child, wake
from tests.acceptance.journeys import entries
from tests.acceptance.later import pass_time
from tests.acceptance.places import PostgresPlace
from twiceproof import ClaimLost, NeedsReview, Retry, Stale, Waiting, by
from twiceproof.claims.claim import address_of
from twiceproof.claims.queries import evidence_of
from twiceproof.operations import block

LEASE = 600.0  # longer than any test takes: no heartbeat comes in between


def nothing():
    """What happens in a step, or between two, by default."""


def declare(app, work, inside=nothing, between=nothing):
    """`work` makes the step that sets the object to a version."""
    save = work(app, inside)

    @app.flow(key="order:{order[id]}", lease=LEASE, order=by(object="{order[id]}", version="{order[v]}"))
    def sync(order):
        between()
        return save(order)

    return sync


def saving(place, repeat="safe"):
    def work(app, inside):
        @app.step(repeat=repeat)
        def save(order):
            inside()
            place.do(f"version {order['v']}")
            return f"saved {order['v']}"

        return save

    return work


def event(version):
    return {"id": 17, "v": version}


def stopped(place, work, where):
    """A process with version 1, stopped inside its step or before it; its lease is over."""

    def run(child):
        def pause():
            child.tell("here")
            child.wait_for_go()

        with place.app() as app:
            try:
                child.tell(declare(app, work, **{where: pause})(event(1)))
            except (ClaimLost, NeedsReview, Waiting) as error:
                child.tell(f"{type(error).__name__}: {error}")

    child = Child(run)
    assert child.hear() == "here"
    child.send(signal.SIGSTOP)
    pass_time(place, LEASE + 1)
    return child


def evidence_in(app):
    space = address_of("default", "sync", "order:17:1").space
    return [(piece.step, bytes(piece.result)) for piece in block(evidence_of(app.store, space))]


def states(app):
    return {name: entry.state for name, entry in entries(app, "sync", "order:17:1").items()}


@pytest.mark.parametrize("repeat", ["safe", "never"])
def test_an_effect_that_landed_after_a_newer_one_is_evidence_and_for_a_person(place, repeat):
    """Nobody could hold it back. It is not recorded as done, and somebody hears of it."""
    child = stopped(place, saving(place, repeat), "inside")
    with place.app() as app:
        sync = declare(app, saving(place, repeat))
        assert sync(event(2)) == "saved 2"
        assert "version 2 of 17 was let through while it was under way" in wake(child)
        assert place.effects() == ["version 2", "version 1"]
        assert states(app) == {"save": "unknown"}
        assert evidence_in(app) == [("save", b'"saved 1"')]
        with pytest.raises(NeedsReview):
            sync(event(1))


def test_who_took_its_run_over_has_dropped_it_and_its_word_is_evidence(place):
    child = stopped(place, saving(place), "inside")
    with place.app() as app:
        sync = declare(app, saving(place))
        sync(event(2))
        with pytest.raises(Stale):
            sync(event(1))
        assert wake(child).startswith("ClaimLost: ")
        assert states(app) == {}
        assert evidence_in(app) == [("save", b'"saved 1"')]
        with pytest.raises(Stale):
            sync(event(1))
    assert place.effects() == ["version 2", "version 1"]


@pytest.mark.parametrize("repeat", ["safe", "never"])
def test_a_step_that_it_had_not_begun_is_not_begun(place, repeat):
    child = stopped(place, saving(place, repeat), "between")
    with place.app() as app:
        sync = declare(app, saving(place, repeat))
        sync(event(2))
        assert "lost its turn" in wake(child)
        with pytest.raises(Stale):
            sync(event(1))
        assert evidence_in(app) == []
    assert place.effects() == ["version 2"]


def test_who_was_away_and_not_overtaken_goes_on(place):
    """The twin: its lease is over, but nobody came."""
    child = stopped(place, saving(place), "inside")
    assert wake(child) == "saved 1"
    with place.app() as app:
        assert states(app) == {"save": "done"}
        assert declare(app, saving(place))(event(2)) == "saved 2"
    assert place.effects() == ["version 1", "version 2"]


# -- in the ledger's own database ----------------------------------------------------------------


@pytest.fixture
def database(postgres_dsn: str, tmp_path: Path) -> PostgresPlace:
    place = PostgresPlace(postgres_dsn, tmp_path)
    place.app().close()
    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        db.execute("CREATE TABLE thing (id int PRIMARY KEY, version int)")
        db.execute("INSERT INTO thing VALUES (17, 0)")
    return place


def updating(app, inside):
    @app.transaction(retry=Retry(attempts=1))
    def save(connection, order):
        inside()
        connection.execute("UPDATE thing SET version = %s WHERE id = %s", (order["v"], order["id"]))
        return f"saved {order['v']}"

    return save


def version_of_thing(place):
    with psycopg.connect(place.url) as db:
        return db.execute("SELECT version FROM thing").fetchone()[0]


@pytest.mark.server
def test_a_transaction_of_an_older_version_does_not_commit_after_a_newer_one(database):
    """Here it can be held back: the turn is part of what is committed."""
    child = stopped(database, updating, "inside")
    with database.app() as app:
        sync = declare(app, updating)
        assert sync(event(2)) == "saved 2"
        assert "lost its turn" in wake(child)
        assert version_of_thing(database) == 2
        with pytest.raises(Stale):
            sync(event(1))


@pytest.mark.server
def test_a_transaction_that_nobody_overtook_commits(database):
    child = stopped(database, updating, "inside")
    assert wake(child) == "saved 1"
    assert version_of_thing(database) == 1
