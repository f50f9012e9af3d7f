"""Migrations: numbered, once each, safe when several start at once, and never backwards."""

import sqlite3

import pytest

from tests.contracts.stores.children import children
from twiceproof.errors import SchemaMismatch
from twiceproof.records import Address, Insert, Written
from twiceproof.stores.base import Migration, migrations
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.sqlite.engine import SqliteEngine
from twiceproof.stores.sqlite.schema import statements

AT = Address("shop", "claim", "key")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "twiceproof.db"


def schema(path):
    with sqlite3.connect(path) as db:
        found = db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
    db.close()
    return found


def applied(path):
    with sqlite3.connect(path) as db:
        found = db.execute("SELECT number, name FROM twiceproof_migrations ORDER BY number").fetchall()
    db.close()
    return found


@pytest.fixture
def one_more(monkeypatch):
    """As the next release would see it: one migration more."""
    more = Migration(
        len(migrations("sqlite")) + 1,
        "9999_more.sql",
        "-- a comment; with a semicolon\nCREATE TABLE twiceproof_more (x);\n"
        "CREATE TRIGGER twiceproof_t AFTER INSERT ON twiceproof_more BEGIN\n  SELECT 1;\n  SELECT 2;\nEND;\n",
    )
    monkeypatch.setattr("twiceproof.stores.sqlite.schema.migrations", lambda dialect: [*migrations(dialect), more])
    return more


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_migrations_are_numbered_from_one_without_gaps(dialect):
    known = migrations(dialect)
    assert [migration.number for migration in known] == list(range(1, len(known) + 1))
    assert all(migration.name.startswith(f"{migration.number:04}_") for migration in known)


def test_a_fresh_file_has_every_migration_once(path):
    SqliteEngine(path).close()
    SqliteEngine(path).close()
    assert applied(path) == [(migration.number, migration.name) for migration in migrations("sqlite")]


def test_opening_again_changes_nothing(path):
    SqliteEngine(path).close()
    before = schema(path)
    SqliteEngine(path).close()
    assert schema(path) == before


def test_an_older_file_is_brought_up_to_date_with_its_records(path, one_more, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr("twiceproof.stores.sqlite.schema.migrations", migrations)
        store = GroupedStore(SqliteEngine(path))
        store.write(Insert(AT, "kept")).block()
        store.close()
    store = GroupedStore(SqliteEngine(path))
    assert store.read(AT).block().record.body == "kept"
    assert isinstance(store.write(Insert(Address("shop", "claim", "new"), "")).block(), Written)
    store.close()
    assert applied(path)[-1] == (one_more.number, one_more.name)


def test_a_migrated_file_has_the_schema_of_a_fresh_one(path, tmp_path, one_more, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr("twiceproof.stores.sqlite.schema.migrations", migrations)
        SqliteEngine(path).close()
    SqliteEngine(path).close()
    SqliteEngine(tmp_path / "fresh.db").close()
    assert schema(path) == schema(tmp_path / "fresh.db")


def test_a_file_of_a_newer_release_is_refused_and_left_alone(path):
    SqliteEngine(path).close()
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO twiceproof_migrations VALUES (9999, 'from the future')")
    db.close()
    before = schema(path)
    with pytest.raises(SchemaMismatch, match=r"newer release .*; upgrade twiceproof"):
        SqliteEngine(path)
    assert schema(path) == before


def test_a_migration_that_fails_leaves_the_file_as_it_was(path, monkeypatch):
    SqliteEngine(path).close()
    before = schema(path)
    bad = Migration(len(migrations("sqlite")) + 1, "bad.sql", "CREATE TABLE twiceproof_half (x);\nCREATE NONSENSE;\n")
    with monkeypatch.context() as newer:
        newer.setattr("twiceproof.stores.sqlite.schema.migrations", lambda d: [*migrations(d), bad])
        with pytest.raises(Exception, match="NONSENSE"):
            SqliteEngine(path)
    assert schema(path) == before
    SqliteEngine(path).close()


def test_a_script_is_cut_at_the_ends_of_its_statements():
    sql = "CREATE TABLE a (x); -- one\nCREATE TRIGGER t AFTER INSERT ON a BEGIN\nSELECT 1;\nEND;\nSELECT ';';\n"
    assert len(statements(sql)) == 3


@pytest.mark.slow
def test_ten_processes_may_migrate_at_once(path):
    with children(10, "migrate", path) as starters:
        for starter in starters:
            starter.go()
        ends = [starter.end() for starter in starters]
    assert ends == [(["migrated"], 0)] * 10
    assert applied(path) == [(migration.number, migration.name) for migration in migrations("sqlite")]
