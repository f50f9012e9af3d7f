"""The PostgreSQL store when a standby takes over the address: what was acknowledged may be gone, and it says so."""

import threading
import time

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.servers import FaultProxy, PostgresServer
from tests.servers.postgres import chosen_programs, initdb
from tests.servers.standby import PostgresStandby
from twiceproof.errors import StoreError, StoreUnavailable, StoreUnsafe
from twiceproof.records import Address, Conflict, Insert, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.open import accept_server
from twiceproof.stores.postgres.engine import PostgresEngine

pytestmark = pytest.mark.server

AT = Address("shop/order:1", "claim", "self")
MISSING = Address("shop/order:2", "claim", "self")


END_WAITING = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


def claim(at=AT):
    return Insert(at, "mine", state="held", draw=True, lease=30.0)


@pytest.fixture
def dsn(killable_postgres):
    return killable_postgres.create_database()


@pytest.fixture
def address(killable_postgres):
    """Leads to the primary, at first."""
    with FaultProxy(killable_postgres.host, killable_postgres.port) as proxy:
        yield proxy


@pytest.fixture
def standby(killable_postgres):
    with PostgresStandby(killable_postgres) as server:
        yield server


@pytest.fixture
def opened(address, dsn):
    """Opens stores by the address, and closes them after the test."""
    stores = []

    def open_():
        stores.append(GroupedStore(PostgresEngine(address.url(dsn)), patience=1.0))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


def lose_what_comes(standby):
    """What is acknowledged from now on is on the primary alone."""
    standby.catch_up()
    standby.cut_off()


def take_over(standby, address):
    """The standby is promoted, and the address leads to it."""
    standby.promote()
    address.lead_to(standby.host, standby.port)


def refusal_of(store):
    with pytest.raises(StoreUnsafe, match="acknowledged writes may be lost") as refused:
        store.read(AT).block()
    (finding,) = refused.value.findings
    assert (finding.level, finding.name) == ("refuse", "failover")
    return finding


def test_a_standby_that_took_over_is_refused_by_a_store_that_is_open(opened, standby, address):
    """It was over before anybody reconnected. Without this, both are told that they were first."""
    store = opened()
    store.write(claim()).block()
    lose_what_comes(standby)
    assert isinstance(store.write(claim(MISSING)).block(), Written)
    take_over(standby, address)
    refusal_of(store)
    for ask in (store.write(claim(MISSING)), store.scan("claim")):
        with pytest.raises(StoreUnsafe):
            ask.block()


def test_a_standby_that_took_over_is_refused_at_opening(opened, standby, address):
    opened().write(claim()).block()
    standby.catch_up()
    take_over(standby, address)
    with pytest.raises(StoreUnsafe, match="taken over"):
        opened()


def test_a_write_that_was_on_its_way_is_unknown_and_the_next_one_refused(opened, standby, address):
    store = opened()
    store.write(claim()).block()
    standby.catch_up()
    standby.promote()
    commit = store.engine._commits._waits

    def lost(*given):
        store.engine._commits._waits = commit
        address.lead_to(standby.host, standby.port)
        address.resume()
        return commit(*given)

    store.engine._commits._waits = lost
    address.hold(requests=False)  # or the answer may be here before the address leads elsewhere
    with pytest.raises(StoreUnavailable, match="StoreUnsafe") as unknown:
        store.write(claim(MISSING)).block()
    assert unknown.value.unsure
    with pytest.raises(StoreUnsafe):
        store.write(claim(MISSING)).block()


def test_accepted_once_the_server_is_served_again_and_no_fence_is_drawn_twice(opened, standby, address, dsn):
    store = opened()
    store.write(claim()).block()
    lose_what_comes(standby)
    before = [store.write(claim(Address(f"{n}", "claim", "self"))).block().fence for n in range(40)]
    take_over(standby, address)
    assert refusal_of(store).advice.endswith("twiceproof doctor --accept-server")
    accept_server(address.url(dsn))
    after = store.write(claim(MISSING)).block()
    assert after.fence > max(before) + 1_000_000_000
    assert opened().read(MISSING).block().record.fence == after.fence


# -- behind a transaction pooler, which goes on with another server on the same connection -----------


def pool(store):
    """As behind one: our session is shared, and not known by its process."""
    store.write(claim()).block()
    store.engine._commits._session = None


def go_on_with(standby, store, dsn):
    """What a pooler does: the connection stays, and what is behind it is another server."""
    link, name = store.engine._commits, conninfo_to_dict(dsn)["dbname"]
    link._db.close()
    link._db = psycopg.connect(standby.dsn(name), autocommit=True)


def test_a_standby_that_took_over_behind_a_pooler_is_written_to_by_nobody(opened, standby, address, dsn):
    store = opened()
    pool(store)
    standby.catch_up()
    take_over(standby, address)
    go_on_with(standby, store, dsn)
    with pytest.raises(StoreUnsafe, match="taken over"):
        store.write(claim(MISSING)).block()
    with psycopg.connect(address.url(dsn)) as db:
        assert db.execute("SELECT count(*) FROM twiceproof.twiceproof_records").fetchone() == (1,)


def test_a_server_that_is_the_same_behind_a_pooler_is_written_to(opened):
    """The twin."""
    store = opened()
    pool(store)
    several = [store.write(claim(Address(f"{n}", "claim", "self"))) for n in range(3)]
    assert all(isinstance(one.block(), Written) for one in several)
    batch = store.write(claim(MISSING), Insert(Address(MISSING.space, "step", "pay"), "")).block()
    assert isinstance(batch, Written)
    assert store.engine._commits._session is None


def test_a_synchronous_standby_that_took_over_behind_a_pooler_is_served(opened, standby, address, dsn):
    standby.be_synchronous()
    store = opened()
    pool(store)
    take_over(standby, address)
    go_on_with(standby, store, dsn)
    assert isinstance(store.write(claim(MISSING)).block(), Written)


def test_a_standby_behind_a_pooler_that_is_not_promoted_yet_is_waited_for(opened, standby, address, dsn):
    store = opened()
    pool(store)
    standby.catch_up()
    address.lead_to(standby.host, standby.port)
    go_on_with(standby, store, dsn)
    with pytest.raises(StoreUnavailable, match="is a standby") as unavailable:
        store.write(claim(MISSING)).block()
    assert not unavailable.value.unsure


# -- synchronous standbys --------------------------------------------------------------------------


def test_a_synchronous_standby_that_took_over_has_every_acknowledged_write(opened, standby, address):
    standby.be_synchronous()
    store = opened()
    before = store.write(claim()).block()
    take_over(standby, address)
    assert store.read(AT).block().record.fence == before.fence
    assert isinstance(store.write(claim()).block(), Conflict)
    after = store.write(claim(MISSING)).block()
    assert after.fence > before.fence + 1_000_000_000  # nothing is missing, and still no number is risked
    assert opened().read(MISSING).block().record.fence == after.fence


def test_a_synchronous_standby_that_took_over_is_served_at_opening(opened, standby, address):
    standby.be_synchronous()
    before = opened().write(claim()).block()
    take_over(standby, address)
    assert opened().read(AT).block().record.fence == before.fence


def test_a_successor_that_waits_for_a_standby_of_its_own_is_read_meanwhile(killable_postgres, opened, address):
    with PostgresStandby(killable_postgres, {"synchronous_standby_names": "nobody"}) as standby:
        standby.be_synchronous()
        store = opened()
        before = store.write(claim()).block()
        take_over(standby, address)
        store.engine._reads._patience = 0.5
        assert store.read(AT).block().record.fence == before.fence


@pytest.fixture
def alone(standby, opened):
    """A store whose server waits in vain for its synchronous standby; it gives up on an answer after 0.3 s."""
    standby.be_synchronous()
    store = opened()
    store.write(claim()).block()
    standby.stop()
    store.engine._commits._patience = 0.3
    return store


def test_a_write_that_no_synchronous_standby_has_is_not_acknowledged(alone, opened, standby, address):
    """It is there, on the primary, and it is ours: but a failover would lose it."""
    with pytest.raises(StoreUnavailable) as unknown:
        alone.write(claim(MISSING)).block()
    assert unknown.value.unsure
    standby.settings["primary_conninfo"] = ""  # the primary is gone for good
    standby.start()
    take_over(standby, address)
    assert alone.read(AT).block().record is not None
    assert alone.read(MISSING).block().record is None


def test_a_session_that_waits_for_a_synchronous_standby_is_not_ended(alone, opened):
    """Or everybody would see, and believe, what it wrote."""
    with pytest.raises(StoreUnavailable):
        alone.write(claim(MISSING)).block()
    assert opened().read(MISSING).block().record is None


def test_a_write_whose_wait_for_the_standby_was_ended_is_not_acknowledged(alone, dsn):
    def end():
        with psycopg.connect(dsn, autocommit=True) as admin:
            while not admin.execute(END_WAITING).fetchall():
                time.sleep(0.005)

    alone.engine._commits._patience = 1.0
    ending = threading.Thread(target=end)
    ending.start()
    with pytest.raises(StoreUnavailable) as unknown:
        alone.write(claim(MISSING)).block()
    ending.join()
    assert unknown.value.unsure
    assert alone.read(MISSING).block().record is not None


def test_a_write_whose_synchronous_standby_comes_back_is_acknowledged(alone, standby):
    """The twin."""
    alone._patience = 20.0
    back = threading.Timer(1.0, standby.start)
    back.start()
    written = alone.write(claim(MISSING)).block()
    back.join()
    assert isinstance(written, Written)
    assert alone.read(MISSING).block().record.fence == written.fence


def test_the_former_primary_lacks_what_its_successor_acknowledged_and_is_refused(
    killable_postgres, opened, standby, address
):
    """Though its own database remembers no other server than itself."""
    standby.be_synchronous()
    store = opened()
    store.write(claim()).block()
    take_over(standby, address)
    assert isinstance(store.write(claim(MISSING)).block(), Written)
    address.lead_to(killable_postgres.host, killable_postgres.port)
    assert "Lead the address back" in refusal_of(store).advice


def test_a_standby_that_is_not_promoted_yet_is_waited_for_and_not_used(opened, standby, address):
    """Its answers may be old."""
    store = opened()
    store.write(claim()).block()
    standby.catch_up()
    address.lead_to(standby.host, standby.port)
    for ask in (store.read(AT), store.write(claim())):
        with pytest.raises(StoreUnavailable, match="is a standby") as unavailable:
            ask.block()
        assert not unavailable.value.unsure


class OtherSystem(PostgresServer):
    """The others are copies of one, and look like one server restored."""

    def prepare(self):
        initdb(chosen_programs(), self.directory)


def test_another_server_with_a_store_of_its_own_is_refused_by_whoever_knew_the_first(opened, address, dsn):
    """Empty, it would hand out every claim once more."""
    store = opened()
    store.write(claim()).block()
    with OtherSystem() as other:
        name = conninfo_to_dict(dsn)["dbname"]
        with psycopg.connect(other.dsn(), autocommit=True) as db:
            db.execute(f'CREATE DATABASE "{name}"')
        PostgresEngine(other.dsn(name)).close()
        address.lead_to(other.host, other.port)
        assert "open the store again" in refusal_of(store).advice
        assert opened().read(AT).block().record is None


def test_a_restarted_server_is_not_taken_for_another(killable_postgres, opened):
    """The twin: the same server, from its own log, has lost nothing."""
    store = opened()
    before = store.write(claim()).block()
    killable_postgres.kill()
    killable_postgres.start()
    assert store.read(AT).block().record.fence == before.fence
    assert opened().read(AT).block().record.fence == before.fence


def test_a_promotion_before_anybody_took_note_is_not_refused_but_the_doctor_tells(opened, standby, address, dsn):
    """As in a database that an older release has written."""
    opened().write(claim()).block()
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute(
            "UPDATE twiceproof.twiceproof_facts SET value = replace(value, '/asynchronous', '') WHERE name = 'server'"
        )
    standby.catch_up()
    take_over(standby, address)
    store = opened()
    assert store.read(AT).block().record is not None
    address.cut()
    assert store.read(AT).block().record is not None
    (told,) = [finding for finding in store.examine() if finding.name == "server"]
    assert told.level == "warn"
    accept_server(address.url(dsn))
    (told,) = [finding for finding in store.examine() if finding.name == "server"]
    assert told.level == "ok"


def test_a_role_that_may_not_accept_a_server_is_told_so_and_nothing_is_accepted(opened, standby, address, dsn):
    store = opened()
    store.write(claim()).block()
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE ROLE onlooker LOGIN")
        db.execute("GRANT USAGE ON SCHEMA twiceproof TO onlooker")
        db.execute("GRANT SELECT ON ALL TABLES IN SCHEMA twiceproof TO onlooker")
    standby.catch_up()
    take_over(standby, address)
    with pytest.raises(StoreError, match="lacks a right"):
        accept_server(address.url(dsn).replace("postgres@", "onlooker@"))
    refusal_of(store)


def test_a_role_that_may_not_take_note_is_served_all_the_same(opened, address, dsn):
    opened().close()
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE ROLE plain LOGIN")
        db.execute("GRANT USAGE ON SCHEMA twiceproof TO plain")
        db.execute("GRANT SELECT ON ALL TABLES IN SCHEMA twiceproof TO plain")
        db.execute("GRANT INSERT, UPDATE, DELETE ON twiceproof.twiceproof_records TO plain")
        db.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA twiceproof TO plain")
        db.execute(
            "UPDATE twiceproof.twiceproof_facts SET value = replace(value, '/asynchronous', '') WHERE name = 'server'"
        )
    store = GroupedStore(PostgresEngine(address.url(dsn).replace("postgres@", "plain@")), patience=1.0)
    assert isinstance(store.write(claim()).block(), Written)
    store.close()
