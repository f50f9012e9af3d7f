"""A SQLite file that is open here is never taken for one that nobody uses, whatever else this process does with it."""

import gc
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tests.contracts.stores.children import children
from twiceproof.operations import block
from twiceproof.prove.store_contract.lifecycle import in_a_fork
from twiceproof.records import Address, Batch, Insert, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.sqlite.engine import SqliteEngine

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path):
    (tmp_path / "ledger").mkdir()
    return tmp_path / "ledger" / "twiceproof.db"


def keys_in(path):
    with closing(sqlite3.connect(path)) as db:
        return {key for (key,) in db.execute("SELECT key FROM twiceproof_records")}


def another_process_comes_and_goes(path):
    with children(1, "open_and_close", path) as (visitor,):
        visitor.go()
        assert visitor.end()[1] == 0


def survives_a_visitor(path, *words):
    """What a process acknowledges after another one came and went is there when it has died."""
    with children(1, *words) as (child,):
        another_process_comes_and_goes(path)
        assert path.with_name(path.name + "-wal").exists()
        child.go()
        assert [child.line(), child.line()] == ["first", "second"]
        child.end()
    assert {"before", "first", "second"} <= keys_in(path)


def test_a_second_store_on_the_file_leaves_the_first_ones_locks(path):
    survives_a_visitor(path, "second_store", path)


def test_a_second_store_that_is_closed_leaves_the_first_ones_locks(path):
    survives_a_visitor(path, "second_store_closed", path)


def test_copying_the_files_in_the_process_that_has_them_open_leaves_its_locks(path):
    survives_a_visitor(path, "copied", path)


@pytest.mark.parametrize("way", ["doctor", "backup", "restore", "list", "effect"])
def test_whoever_else_opens_the_file_in_this_process_leaves_its_locks(path, way):
    survives_a_visitor(path, "looked_into", path, way)


@pytest.mark.parametrize("way", ["same store", "new store", "multiprocessing", "daemon"])
def test_a_forked_child_has_locks_of_its_own(path, way):
    survives_a_visitor(path, "forked", path, way)
    assert "child" in keys_in(path)


# -- the end -------------------------------------------------------------------------------------


def at(key="key"):
    return Address("shop", "claim", key)


def descriptors():
    gc.collect()  # what other tests left open
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def test_the_last_one_to_close_brings_the_log_to_the_file_and_leaves_no_descriptor(path):
    before = descriptors()
    stores = [GroupedStore(SqliteEngine(path)) for _ in range(2)]
    for nth, store in enumerate(stores):
        store.write(Insert(at(str(nth)), "")).block()
    stores[0].close()
    assert path.with_name(path.name + "-wal").exists()
    stores[1].close()
    assert [part.name for part in path.parent.iterdir()] == [path.name]
    assert descriptors() == before


def test_a_store_that_nobody_closed_is_tidied_up_when_it_is_gone(path):
    before = descriptors()
    engine = SqliteEngine(path)
    engine.commit([Batch((Insert(at(), ""),), "n")])
    del engine
    gc.collect()
    assert [part.name for part in path.parent.iterdir()] == [path.name]
    assert descriptors() == before


def test_a_connection_of_the_users_own_keeps_its_locks_when_the_store_is_closed(path):
    """Our own descriptor stays as long as its close would drop them."""
    before = descriptors()
    store = GroupedStore(SqliteEngine(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as own:
        own.execute("CREATE TABLE orders (id INTEGER)")
        store.close()
        another_process_comes_and_goes(path)
        own.execute("INSERT INTO orders VALUES (1)")
        with children(1, "count_orders", path) as (reader,):
            reader.go()
            assert reader.end()[0] == ["1"]
    SqliteEngine(path).close()
    assert descriptors() == before


# -- forks ---------------------------------------------------------------------------------------


def write_in(store, key="child"):
    return lambda: store.write(Insert(at(key), "")).block()


@pytest.fixture
def store(path):
    store = GroupedStore(SqliteEngine(path))
    yield store
    store.close()


def test_a_child_forked_within_a_transaction_is_refused_the_file_its_parent_is_not(store):
    """SQLite's memory says there that the child has the write lock: it would wait for itself."""
    with closing(sqlite3.connect(store.engine.path, isolation_level=None)) as own:
        own.execute("CREATE TABLE orders (id INTEGER)")
        own.execute("BEGIN IMMEDIATE")
        join = store.join(own)
        block(join.write(Insert(at("joined"), "")))
        own.execute("INSERT INTO orders VALUES (1)")
        assert "StoreUnsafe" in in_a_fork(write_in(store))
        assert "StoreUnsafe" in in_a_fork(lambda: SqliteEngine(store.engine.path))
        own.execute("COMMIT")
        assert own.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    assert store.read(at("joined")).block().record is not None
    assert in_a_fork(write_in(store)) == "done"
    assert store.read(at("child")).block().record is not None


def test_a_fork_waits_for_those_who_read(store):
    """SQLite's memory says in a child that its parent's readers are at it still, for ever."""
    inside, go_on = threading.Event(), threading.Event()
    store.write(Insert(at(), "")).block()
    db = store.engine._readers.borrow()
    db.create_function("pause", 0, lambda: inside.set() or go_on.wait(20))
    reading = threading.Thread(target=lambda: (db.execute("SELECT pause()"), store.engine._readers.give_back(db)))
    reading.start()
    assert inside.wait(20)
    threading.Timer(0.2, go_on.set).start()
    assert in_a_fork(write_in(store)) == "done"
    reading.join(20)


def test_a_child_forked_within_a_read_is_refused_the_file_and_its_parent_is_not(store, monkeypatch):
    monkeypatch.setattr("twiceproof.stores.sqlite.engine.FORK_PATIENCE", 0.01)
    db = store.engine._readers.borrow()
    db.execute("BEGIN")
    db.execute("SELECT count(*) FROM twiceproof_records").fetchone()
    assert "StoreUnsafe" in in_a_fork(write_in(store))
    db.execute("COMMIT")
    store.engine._readers.give_back(db)
    assert isinstance(write_in(store, "parent")(), Written)
    assert in_a_fork(write_in(store)) == "done"


def test_a_child_of_a_fork_that_python_was_not_told_of_is_refused_the_file(path):
    """As a server written in C makes them: nobody closed the parent's connections before."""
    with children(1, "forked_unheard", path) as (child,):
        child.go()
        assert child.line() == "StoreUnsafe"
        assert child.line() == "Written"
        assert child.end()[1] == 0


def test_a_child_that_ends_leaves_its_parents_file_alone(store):
    """Its interpreter closes what it finds open."""
    write_in(store, "before")()
    pid = os.fork()
    if pid == 0:
        store.close()
        del store
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    another_process_comes_and_goes(store.engine.path)
    write_in(store, "after")()
    assert {"before", "after"} <= keys_in(store.engine.path)
