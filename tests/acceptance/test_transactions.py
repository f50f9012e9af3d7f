"""A step's work and its ledger entry, through each driver: both are there, or neither."""

from __future__ import annotations

import contextlib

import pytest
from msgspec import structs

from tests.acceptance.places import MariadbPlace, PostgresPlace
from tests.acceptance.shops import Shop, make_shop
from tests.acceptance.ways import LEASE, WAYS, Way, elsewhere
from tests.servers import PgBouncer, Unavailable
from twiceproof import ClaimLost, Misuse, NeedsReview, PriorFailure, Retry
from twiceproof.claims.claim import address_of, body_of, claim_of
from twiceproof.records import Replace, Written
from twiceproof.stores.postgres import engine as postgres

BOTH = (["17"], [("reserve", "done")])


def param(way):
    return pytest.param(way, marks=pytest.mark.server if way.store != "sqlite" else (), id=way.name)


@pytest.fixture(params=[param(way) for way in WAYS])
def way(request) -> Way:
    return request.param


@pytest.fixture
def shop(request, way, tmp_path) -> Shop:
    return make_shop(request, way.store, tmp_path)


@pytest.fixture
def other_shop(request, way, tmp_path):
    """Of the same kind, with a ledger of its own: another file, database or server."""
    there = tmp_path / "there"
    there.mkdir()
    if way.store == "sqlite":
        yield make_shop(request, "sqlite", there)
        return
    if way.store == "mariadb":  # whose transactions span the databases of a server
        server = request.getfixturevalue("killable_mariadb")
        yield Shop(MariadbPlace(server.create_database(), there), "mariadb")
        return
    server = request.getfixturevalue("postgres_server")
    dsn = server.create_database()
    yield Shop(PostgresPlace(dsn, there), "postgres")
    server.drop_database(dsn)


def both(shop):
    return shop.stock(), shop.steps()


def test_work_and_entry_are_committed_together_and_replayed_without_the_work(way, shop):
    with shop.place.app() as app:
        assert way.call(shop.place, app, "17") == "reserved 17"
        assert both(shop) == BOTH
        assert way.call(shop.place, app, "17") == "reserved 17"
    assert both(shop) == BOTH


def test_while_the_work_goes_on_neither_is_to_be_seen(way, shop):
    seen = []
    with shop.place.app() as app:
        way.call(shop.place, app, "17", during=lambda _: seen.append(both(shop)))
    assert seen == [([], [])]
    assert both(shop) == BOTH


def test_an_error_rolls_the_work_back(way, shop):
    def fail(_):
        raise ValueError("no such article")

    with shop.place.app() as app, pytest.raises(ValueError, match="no such article"):
        way.call(shop.place, app, "17", during=fail)
    assert both(shop) == ([], [("reserve", "failed")])


def test_after_an_error_it_is_tried_again_by_policy_and_done_once(way, shop):
    tries = []

    def fail_once(_):
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not yet")

    with shop.place.app() as app:
        retry = Retry(attempts=2, first=0)
        assert way.call(shop.place, app, "17", during=fail_once, retry=retry) == "reserved 17"
    assert len(tries) == 2
    assert both(shop) == BOTH


def finish_the_run(place, way):
    with place.app() as other:
        assert elsewhere(lambda: way.call(place, other, "17")) == "reserved 17"


def begin_the_run(place, way):
    """And come no further: the step is not done yet when the first holder commits."""
    store = place.app().store
    record = store.read(address_of("default", "buy", "order:17", "run")).block().record
    claim = structs.replace(claim_of(record), owner="another", attempt=2)
    taken = Replace(record.at, body_of(claim), "held", version=record.version, draw=True, lease=LEASE)
    assert isinstance(store.write(taken).block(), Written)
    store.close()


@pytest.mark.parametrize("overtake", [finish_the_run, begin_the_run])
def test_a_holder_that_lost_its_claim_has_its_work_rolled_back(way, shop, overtake):
    """While it is about to act, its lease runs out and another holder takes the run."""
    place, worked = shop.place, []

    def lose():
        place.advance(LEASE + 1)
        overtake(place, way)

    with place.app() as app, pytest.raises(ClaimLost):
        way.call(place, app, "17", before=lose, during=worked.append)
    assert len(worked) == 1  # it did its work, and nothing of it is there
    assert both(shop) == (BOTH if overtake is finish_the_run else ([], []))


def test_a_commit_in_the_function_is_refused_or_parked_and_never_repeated(way, shop):
    """Where the driver cannot refuse it, the work is there without its entry: a person must look."""
    with shop.place.app() as app:
        commit = {"asyncpg": lambda db: db.execute("COMMIT")}.get(way.name.partition(" ")[0], lambda db: db.commit())
        with pytest.raises(Exception, match=r"leave out commit|forbidden|ended the transaction itself"):
            way.call(shop.place, app, "17", during=commit, retry=Retry(attempts=2, first=0))
        by_hand = way.name.startswith(("asyncpg", "PyMySQL"))
        assert both(shop) == ((["17"], [("reserve", "unknown")]) if by_hand else ([], [("reserve", "failed")]))
        with pytest.raises(NeedsReview if by_hand else PriorFailure):
            way.call(shop.place, app, "17")
    assert shop.stock() == (["17"] if by_hand else [])


@pytest.mark.parametrize("way", [param(way) for way in WAYS if not way.dials_itself], indirect=True)
def test_another_database_is_refused_before_any_work_is_done(way, shop, other_shop):
    """The ledger is here, and connect= leads there."""
    worked = []
    with shop.place.app() as app, pytest.raises(Misuse, match=r"the ledger.*check"):
        way.call(other_shop.place, app, "17", during=worked.append)
    assert worked == []
    assert both(shop) == both(other_shop) == ([], [])


@pytest.mark.server
def test_a_transaction_needs_no_second_connection(postgres_server, postgres_dsn, tmp_path, monkeypatch):
    """Behind a pooler that has only one to give, whoever asks for another in the middle of it waits for ever."""
    monkeypatch.setattr(postgres, "SIDE_PATIENCE", 0.5)
    shop = Shop(PostgresPlace(postgres_dsn, tmp_path), "postgres")
    with pooler_of(postgres_server, "1") as pooler:
        far = PostgresPlace(pooler.dsn(postgres_dsn), tmp_path)
        with far.app() as app:
            way = next(way for way in WAYS if way.name == "psycopg lent")
            assert way.call(far, app, "17") == "reserved 17"
    assert shop.stock() == ["17"]


@contextlib.contextmanager
def pooler_of(server, size):
    try:
        with PgBouncer(server.dsn(), {"default_pool_size": size}) as pooler:
            yield pooler
    except Unavailable as error:
        pytest.skip(str(error))
