"""What is special to SQLite: one file, several processes, a disk that fills up, a lock that is held."""

import os
import signal
import sqlite3
import stat
import threading
from contextlib import closing

import pytest

from tests.contracts.stores.children import children
from twiceproof.errors import BadWrite, StoreError, StoreFull, StoreUnavailable
from twiceproof.prove.clocks import ManualClock
from twiceproof.records import Address, Batch, Conflict, Insert, Replace, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.sqlite.connection import READERS
from twiceproof.stores.sqlite.engine import SqliteEngine
from twiceproof.stores.sqlite.rows import land_counted


def at(key="key"):
    return Address("shop", "claim", str(key))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "twiceproof.db"


@pytest.fixture
def engine(path):
    engine = SqliteEngine(path)
    yield engine
    engine.close()


@pytest.fixture
def store(engine):
    return GroupedStore(engine)


def is_whole(path):
    with closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def keys_in(path):
    with closing(sqlite3.connect(path)) as db:
        return {key for (key,) in db.execute("SELECT key FROM twiceproof_records")}


# -- several processes ---------------------------------------------------------------------------


@pytest.mark.slow
def test_four_processes_on_the_same_keys_have_one_winner_each(path):
    SqliteEngine(path).close()
    with children(4, "race", path, 250) as racers:
        for racer in racers:
            racer.go()
        wins = [int(key) for racer in racers for key in racer.end()[0]]
    assert sorted(wins) == list(range(250))
    assert len(keys_in(path)) == 250


@pytest.mark.slow
def test_a_process_killed_while_it_commits_loses_nothing_it_acknowledged(path):
    with children(1, "write_for_ever", path) as (writer,):
        writer.go()
        acknowledged = [writer.line() for _ in range(200)]
        os.kill(writer.process.pid, signal.SIGKILL)
        rest, code = writer.end()
    assert code == -signal.SIGKILL
    whole = [key for key in (*acknowledged, *rest[:-1]) if key]  # the last line may be cut
    assert set(whole) <= keys_in(path)
    assert is_whole(path)
    store = GroupedStore(SqliteEngine(path))
    assert isinstance(store.write(Insert(at("after"), "")).block(), Written)
    store.close()


@pytest.mark.slow
def test_a_lock_held_by_another_process_is_waited_for(path, store):
    with children(1, "hold", path) as (holder,):
        clock = store.engine._clock = ManualClock()
        sleep = clock.sleep

        def let_go_after_a_while(seconds):
            sleep(seconds)
            if len(clock.pauses) == 20:
                holder.go()
                assert holder.line() == "let go"

        clock.sleep = let_go_after_a_while
        assert isinstance(store.write(Insert(at(), "")).block(), Written)
    assert len(clock.pauses) >= 20


def test_a_lock_held_for_longer_than_patience_is_an_error_and_nothing_is_written(path):
    clock = ManualClock()
    store = GroupedStore(SqliteEngine(path, clock=clock, patience=2.0), clock=clock)
    with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="held the SQLite file for 2 s; nothing was written"):
            store.write(Insert(at(), "")).block()
        assert 2.0 <= clock.ticks < 2.1
        assert store.read(at()).block().record is None
        foreign.execute("ROLLBACK")
        assert isinstance(store.write(Insert(at(), "")).block(), Written)
    foreign.close()
    store.close()


def test_readers_do_not_wait_for_a_lock_that_another_holds(path, store):
    store.write(Insert(at(), "body")).block()
    with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        assert store.read(at()).block().record.body == "body"
        assert len(store.scan("claim").block().records) == 1
        foreign.execute("ROLLBACK")
    foreign.close()


# -- how it commits ------------------------------------------------------------------------------


@pytest.mark.parametrize(("durability", "level"), [("power", 2), ("process", 1)])
def test_every_connection_syncs_as_promised(path, durability, level):
    engine = SqliteEngine(path, durability=durability)
    engine.fetch([at()])
    for db in (engine._writer, *engine._readers.idle):
        assert db.execute("PRAGMA synchronous").fetchone() == (level,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    engine.close()


@pytest.mark.parametrize("act", ["write", "batch", "due"])
def test_every_write_takes_its_lock_before_it_looks(engine, store, act):
    """A read that turns into a write later fails at once, whatever the time-out."""
    said = []
    store.write(Insert(at("due"), "", queue="q", due_in=0.0)).block()  # a look that finds nothing writes nothing
    engine._writer.set_trace_callback(said.append)
    if act == "due":
        store.due("claim", queues=["q"]).block()
    else:
        store.write(*(Insert(at(nth), "") for nth in range(1 if act == "write" else 3))).block()
    engine._writer.set_trace_callback(None)
    assert said[0] == "BEGIN IMMEDIATE"
    assert [word for word in said if word.startswith(("BEGIN", "COMMIT", "ROLLBACK"))] == [
        "BEGIN IMMEDIATE",
        "COMMIT",
    ]


def test_a_group_of_batches_is_one_transaction(engine, store):
    import asyncio

    said = []
    engine._writer.set_trace_callback(said.append)

    async def together():
        await asyncio.gather(*(store.write(Insert(at(nth), "")).wait() for nth in range(50)))

    asyncio.run(together())
    engine._writer.set_trace_callback(None)
    assert said.count("COMMIT") == 1


def test_a_commit_that_fails_half_way_leaves_nothing(engine, store):
    engine._writer.execute(
        "CREATE TEMP TRIGGER refuse BEFORE INSERT ON main.twiceproof_records WHEN new.key='bad'"
        " BEGIN SELECT raise(ABORT, 'refused'); END"
    )
    with pytest.raises(StoreError, match="refused"):
        store.write(Insert(at("good"), ""), Insert(at("bad"), "")).block()
    assert store.read(at("good")).block().record is None
    assert isinstance(store.write(Insert(at("good"), "")).block(), Written)


# -- a disk that fills up ------------------------------------------------------------------------


def test_a_full_disk_is_said_and_the_file_stays_whole(path, engine, store):
    landed = store.write(Insert(at(), "before")).block()
    (pages,) = engine._writer.execute("PRAGMA page_count").fetchone()
    engine._writer.execute(f"PRAGMA max_page_count={pages + 4}")
    with pytest.raises(StoreFull, match="nothing was written"):
        store.write(Insert(at("large"), "x" * 100_000)).block()
    assert store.read(at("large")).block().record is None
    assert isinstance(store.write(Replace(at(), "small", version=landed.version)).block(), Written)
    engine._writer.execute("PRAGMA max_page_count=1000000")
    assert isinstance(store.write(Insert(at("large"), "x" * 100_000)).block(), Written)
    assert is_whole(path)


def test_on_a_full_disk_a_large_batch_does_not_keep_its_small_neighbours_out(engine, store):
    import asyncio

    (pages,) = engine._writer.execute("PRAGMA page_count").fetchone()
    engine._writer.execute(f"PRAGMA max_page_count={pages + 4}")

    async def together():
        bodies = ["small", "x" * 100_000, "small"]
        writes = [store.write(Insert(at(nth), body)).wait() for nth, body in enumerate(bodies)]
        return await asyncio.gather(*writes, return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(together())] == [Written, StoreFull, Written]


@pytest.mark.slow
def test_a_file_that_may_not_grow_keeps_all_that_was_acknowledged(path):
    with children(1, "fill", path, 300_000) as (child,):
        child.go()
        (error, acknowledged, missing, after), code = child.end()
    assert error in ("StoreFull", "StoreUnavailable")
    assert int(acknowledged) > 10
    assert (missing, after, code) == ("0", "Written", 0)
    assert is_whole(path)


# -- the file ------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_the_owner_can_read_the_file_and_its_log(path, umask):
    before = os.umask(umask)
    try:
        store = GroupedStore(SqliteEngine(path))
        store.write(Insert(at(), "secret")).block()
        files = sorted(path.parent.iterdir())
        assert [file.name for file in files] == ["twiceproof.db", "twiceproof.db-shm", "twiceproof.db-wal"]
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        store.close()
    finally:
        os.umask(before)


def test_the_rights_of_a_file_that_was_there_are_left_alone(path):
    path.touch(0o640)
    path.chmod(0o640)
    SqliteEngine(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_the_users_own_tables_in_the_same_file_are_left_alone(path):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL)")
        db.execute("INSERT INTO orders VALUES (1, 12.5)")
    db.close()
    store = GroupedStore(SqliteEngine(path))
    store.write(Insert(at(), "")).block()
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO orders VALUES (2, 7)")
        assert db.execute("SELECT * FROM orders").fetchall() == [(1, 12.5), (2, 7.0)]
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    db.close()
    assert all(name.startswith("twiceproof_") for name in names - {"orders"})
    assert isinstance(store.write(Insert(at(), "")).block(), Conflict)
    store.close()


def test_a_file_that_is_no_database_is_refused_and_left_alone(path):
    path.write_text("These are my notes, and they are longer than a hundred bytes. " * 5)
    with pytest.raises(StoreError):
        SqliteEngine(path)
    assert path.read_text().startswith("These are my notes")


def test_a_directory_that_is_not_there_is_said(tmp_path):
    with pytest.raises(StoreError, match="does not exist; create it"):
        SqliteEngine(tmp_path / "nowhere" / "twiceproof.db")


def test_a_directory_in_place_of_the_file_is_said(tmp_path):
    with pytest.raises(StoreError, match="cannot be opened"):
        SqliteEngine(tmp_path)


@pytest.mark.parametrize("name", ["with blank.db", "größe.db", "a?b=c&d#e.db", "100%.db", ":memory:"])
def test_the_files_name_may_be_any(tmp_path, name):
    path = tmp_path / name
    store = GroupedStore(SqliteEngine(path))
    store.write(Insert(at(), "")).block()
    assert path.exists()
    store.close()


# -- cursors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", ["x", "-1", "٣", "1" * 30, ""])
def test_a_cursor_of_another_store_is_refused(store, after):
    with pytest.raises(BadWrite):
        store.scan("claim", after=after).block()


def test_a_cursor_of_this_store_goes_on(store):
    for key in range(3):
        store.write(Insert(at(key), "{}")).block()
    first = store.scan("claim", limit=2).block()
    assert [record.at.key for record in store.scan("claim", after=first.after).block().records] == ["2"]


def far(nth):
    return Address(f"order-{nth}", "claim", "self")


@pytest.mark.parametrize("count", [1, 3, 64, 150])
def test_a_large_group_lands_and_each_caller_is_told_its_own_answer(engine, count):
    taken = set(range(0, count, 7))
    engine.commit([Batch((Insert(far(nth), "before", draw=True),), f"b{nth}") for nth in taken])
    inserts = [Batch((Insert(far(nth), f"body {nth}", draw=True),), f"i{nth}") for nth in range(count)]
    answers = engine.commit(inserts)
    assert [type(answer) is Conflict for answer in answers] == [nth in taken for nth in range(count)]
    there = [found.record for found in engine.fetch([far(nth) for nth in range(count)])]
    assert [record.body for record in there] == ["before" if n in taken else f"body {n}" for n in range(count)]
    stale = set(range(0, count, 5))
    fences = [record.fence + (nth in stale) * 1_000_000 for nth, record in enumerate(there)]
    replaces = [Batch((Replace(far(nth), "after", fence=fence),), f"r{nth}") for nth, fence in enumerate(fences)]
    assert [type(answer) is Written for answer in engine.commit(replaces)] == [n not in stale for n in range(count)]
    bodies = [found.record.body for found in engine.fetch([far(nth) for nth in range(count)])]
    assert [body == "after" for body in bodies] == [nth not in stale for nth in range(count)]


def test_a_child_forked_while_another_thread_commits_can_write(tmp_path, monkeypatch):
    """SQLite keeps its locks in memory, too: in a child of a process in mid-commit, nobody would ever release them."""
    store = GroupedStore(SqliteEngine(tmp_path / "f.db", patience=1.0), patience=1.0)
    inside, land = threading.Event(), land_counted

    def slowly(*given):
        inside.set()
        threading.Event().wait(0.3)  # long enough for a fork
        return land(*given)

    monkeypatch.setattr("twiceproof.stores.sqlite.engine.land_counted", slowly)
    other = threading.Thread(target=store.write(Insert(Address("parent", "claim", "self"), "{}")).block)
    other.start()
    assert inside.wait(20)
    pid = os.fork()
    if pid == 0:
        try:
            written = store.write(Insert(Address("child", "claim", "self"), "{}")).block()
            os._exit(0 if isinstance(written, Written) else 3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    other.join(20)
    assert isinstance(store.write(Insert(Address("after", "claim", "self"), "{}")).block(), Written)
    store.close()


def test_a_child_finds_the_write_lock_as_free_as_its_parent_does(tmp_path):
    """Also of an engine whose store is gone and resets nothing: or each fork in the child would wait for it in vain."""
    engine = SqliteEngine(tmp_path / "f.db")
    pid = os.fork()
    if pid == 0:
        os._exit(1 if engine._writing.locked() else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not engine._writing.locked()
    engine.close()


def test_a_fork_that_did_not_get_the_write_lock_leaves_it_to_the_one_that_did(tmp_path, monkeypatch):
    """Two threads fork at once, and one takes longer than the other waits."""
    monkeypatch.setattr("twiceproof.stores.sqlite.engine.FORK_PATIENCE", 0.01)
    engine = SqliteEngine(tmp_path / "f.db")
    engine.before_fork()
    for call in (engine.before_fork, engine.after_fork):
        other = threading.Thread(target=call)
        other.start()
        other.join(20)
        assert engine._writing.locked()
    engine.after_fork()
    assert not engine._writing.locked()
    engine.close()


# -- readers -------------------------------------------------------------------------------------


def test_forty_threads_that_read_share_few_connections_and_one_budget_of_memory(engine):
    """Each connection has a cache of its own, and keeps it."""
    inside, enough, dbs = [], threading.Event(), set()

    def read():
        with engine._reader() as db:
            inside.append(db)
            dbs.add(db)
            assert enough.wait(20)

    threads = [threading.Thread(target=read) for _ in range(40)]
    for thread in threads:
        thread.start()
    while len(inside) + engine._readers._waiting < 40:
        threading.Event().wait(0.001)
    assert len(inside) == READERS
    enough.set()
    for thread in threads:
        thread.join(20)
    assert len(inside) == 40
    budget = sum(-db.execute("PRAGMA cache_size").fetchone()[0] for db in (engine._writer, *dbs))
    assert len(dbs) == READERS
    assert budget <= 65_536


def test_a_reader_that_failed_or_was_interrupted_keeps_nobody_out(engine, monkeypatch):
    monkeypatch.setattr("twiceproof.stores.sqlite.connection.LOST", 0.01)
    for nth in range(3 * READERS):
        with pytest.raises((StoreError, KeyboardInterrupt)), engine._reader() as db:
            if nth % 2:
                raise KeyboardInterrupt
            db.execute("SELECT nothing")
    for _ in range(3 * READERS):
        engine._readers.borrow()  # an interrupt came before it could be given back
    assert engine.fetch([at()])[0].record is None
