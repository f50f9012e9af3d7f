"""The PostgreSQL store keeps the contract, directly and by way of a transaction pooler."""

import psycopg
import pytest

from twiceproof.errors import BadWrite
from twiceproof.prove.store_contract import DurableStoreContract
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.postgres.engine import PostgresEngine

CLOCK = (
    "CREATE OR REPLACE FUNCTION twiceproof.twiceproof_now() RETURNS double precision LANGUAGE sql VOLATILE "
    "RETURN extract(epoch FROM clock_timestamp()) + {shift!r}"
)


@pytest.fixture(scope="class")
def class_database(postgres_server):
    """One database for a class: making one takes longer than most tests."""
    dsn = postgres_server.create_database()
    PostgresEngine(dsn).close()
    yield dsn
    postgres_server.drop_database(dsn)


@pytest.mark.server
class TestPostgres(DurableStoreContract):
    shift = 0.0

    @pytest.fixture(autouse=True)
    def database(self, class_database):
        self.url = class_database
        with psycopg.connect(class_database, autocommit=True) as self.db:
            self.db.execute("DELETE FROM twiceproof.twiceproof_records")
            yield
            if self.shift:
                self.db.execute(CLOCK.format(shift=0.0))

    def make_store(self):
        return GroupedStore(PostgresEngine(self.url))

    open_again = make_store

    def advance(self, seconds):
        self.shift += seconds
        self.db.execute(CLOCK.format(shift=self.shift))

    @pytest.mark.parametrize("after", ["x", "-1", "lane-3:x", "1" * 30])
    def test_a_cursor_of_another_store_is_refused(self, store, after):
        with pytest.raises(BadWrite, match="cursor"):
            store.scan("claim", after=after).block()


@pytest.mark.slow
class TestPostgresBehindAPooler(TestPostgres):
    @pytest.fixture(autouse=True)
    def pooler(self, database, pgbouncer):
        self.url = pgbouncer.dsn(self.url)
