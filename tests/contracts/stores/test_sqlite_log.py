"""How long SQLite's log grows before its pages are brought to the file."""

import pytest

from twiceproof.records import Address, Batch, Insert
from twiceproof.stores.sqlite import engine as sqlite
from twiceproof.stores.sqlite.engine import SqliteEngine


@pytest.fixture
def engine(tmp_path):
    engine = SqliteEngine(tmp_path / "twiceproof.db")
    yield engine
    engine.close()


def log_of(engine):
    return engine._writer.execute("PRAGMA wal_autocheckpoint").fetchone()[0]


def put(engine, key, body=""):
    engine.commit([Batch((Insert(Address("shop", "claim", key), body),), key)])


def test_a_small_files_log_is_short(engine):
    put(engine, "key")
    assert log_of(engine) == sqlite.SHORTEST_LOG


def test_a_file_that_outgrows_its_log_is_noticed(engine, monkeypatch):
    monkeypatch.setattr(sqlite, "COMMITS_BETWEEN_FITS", 2)
    monkeypatch.setattr(sqlite, "SHORTEST_LOG", 4)
    for key in range(4):
        put(engine, str(key), "x" * 1_000_000)
    assert 4 < log_of(engine) < sqlite.LONGEST_LOG


def test_a_large_files_log_has_its_longest(engine, monkeypatch):
    monkeypatch.setattr(sqlite, "COMMITS_BETWEEN_FITS", 1)
    monkeypatch.setattr(sqlite, "SHORTEST_LOG", 4)
    monkeypatch.setattr(sqlite, "LONGEST_LOG", 8)
    put(engine, "key", "x" * 1_000_000)
    put(engine, "other")
    assert log_of(engine) == 8
