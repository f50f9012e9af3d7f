"""Many sessions at once: one schema, one winner per key, no deadlock, nobody waits for a stranger's lock."""

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ExecStatus

from twiceproof.errors import SchemaMismatch, StoreUnavailable
from twiceproof.records import Address, Batch, Check, Conflict, Insert, Remove, Replace, Written
from twiceproof.stores.base import SPACE_BUSY, migrations
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.postgres import schema as postgres_schema
from twiceproof.stores.postgres.codec import ServerFunctions, commit_call, due_of, due_values, fetch_values
from twiceproof.stores.postgres.engine import PostgresEngine

pytestmark = pytest.mark.server

CALLS = ServerFunctions(postgres_schema.SCHEMA)

KEYS = 1_200


def at(key, space=None):
    return Address(space or f"space {key}", "claim", str(key))


def batch(*writes):
    return Batch(writes, "nonce")


@pytest.fixture
def store(postgres_dsn):
    store = GroupedStore(PostgresEngine(postgres_dsn))
    yield store
    store.close()


def together(count, work, *arguments):
    """Run in so many processes, let loose at the same moment; returns what each put into the queue."""
    spawn = multiprocessing.get_context("spawn")
    barrier, answers = spawn.Barrier(count), spawn.Queue()
    processes = [spawn.Process(target=work, args=(n, barrier, answers, *arguments)) for n in range(count)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * count
    return found


def open_and_write(me, barrier, answers, dsn):
    barrier.wait(60)
    store = GroupedStore(PostgresEngine(dsn))
    answers.put(type(store.write(Insert(at("the one"), str(me))).block()).__name__)
    store.close()


@pytest.mark.slow
def test_ten_processes_can_open_an_empty_database_at_once(postgres_dsn):
    outcomes = together(10, open_and_write, postgres_dsn)
    assert sorted(outcomes) == ["Conflict"] * 9 + ["Written"]
    with psycopg.connect(postgres_dsn) as db:
        applied = db.execute("SELECT number, name FROM twiceproof.twiceproof_migrations ORDER BY number").fetchall()
    assert applied == [(migration.number, migration.name) for migration in migrations("postgres")]


def claim_all(me, barrier, answers, dsn):
    """Four threads over all keys, each process in another order: unsorted multi-row inserts deadlock here."""
    store = GroupedStore(PostgresEngine(dsn))
    keys = range(KEYS) if me % 2 else range(KEYS - 1, -1, -1)
    barrier.wait(60)

    def claim(key):
        taken = store.write(Insert(at(key), str(me), draw=True)).block()
        if isinstance(taken, Written):
            done = store.write(Replace(at(key), "done", fence=taken.fence, queue="q", due_in=0.0)).block()
            assert isinstance(done, Written)
        return isinstance(taken, Written)

    with ThreadPoolExecutor(16) as pool:
        won = [key for key, mine in zip(keys, pool.map(claim, keys), strict=True) if mine]
    while store.due("claim", queues=["q"], limit=50, hide=600.0).block().records:
        pass
    store.close()
    answers.put(won)


@pytest.mark.slow
def test_four_processes_on_shared_keys_have_one_winner_each_and_no_deadlock(postgres_dsn):
    PostgresEngine(postgres_dsn).close()
    won = together(4, claim_all, postgres_dsn)
    assert sorted(key for keys in won for key in keys) == list(range(KEYS))
    with psycopg.connect(postgres_dsn) as db:
        assert db.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone() == (
            0,
        )
        assert db.execute("SELECT count(*) FROM twiceproof.twiceproof_records WHERE body = 'done'").fetchone() == (
            KEYS,
        )


def test_a_user_transaction_that_holds_a_space_delays_nobody_else(store, postgres_dsn):
    first = store.write(Insert(at(1), "", draw=True)).block()
    with psycopg.connect(postgres_dsn) as user, ThreadPoolExecutor() as pool:
        assert user.execute("SELECT twiceproof.twiceproof_hold(%s)", (at(1).space,)).fetchone() == (True,)
        late = pool.submit(store.write(Replace(at(1), "late", fence=first.fence)).block)
        for key in range(2, 50):
            assert isinstance(store.write(Insert(at(key), "")).block(), Written)
        assert not late.done()
        user.rollback()
        assert isinstance(late.result(10), Written)


@pytest.mark.parametrize("company", [0, 5], ids=["alone", "in company"])
@pytest.mark.parametrize("act", [Replace, Remove])
def test_a_row_locked_by_hand_is_tried_again_and_holds_up_nobody(store, postgres_dsn, act, company):
    first = store.write(Insert(at(1), "", draw=True)).block()
    batches = [
        batch(act(at(1), fence=first.fence)),
        *(batch(Insert(at(n), "")) for n in range(2, 2 + company)),
    ]
    with psycopg.connect(postgres_dsn) as user:
        user.execute("SELECT FROM twiceproof.twiceproof_records FOR UPDATE")
        held, *others = store.engine.commit(batches)
        assert held == SPACE_BUSY
        assert all(isinstance(other, Written) for other in others)
        user.rollback()
    assert isinstance(store.engine.commit(batches[:1])[0], Written)


def test_due_leaves_out_what_another_session_holds_and_hands_it_out_later(store, postgres_dsn):
    for key in (1, 2):
        store.write(Insert(at(key), "", queue="q", due_in=0.0)).block()
    with psycopg.connect(postgres_dsn) as user:
        user.execute("SELECT twiceproof.twiceproof_hold(%s)", (at(1).space,))
        due = store.due("claim", queues=["q"]).block()
        assert [record.at for record in due.records] == [at(2)]
        assert due.next_in == 0.0
    assert [record.at for record in store.due("claim", queues=["q"]).block().records] == [at(1)]


def test_a_key_inserted_by_hand_in_an_open_transaction_is_met_as_a_conflict(store, postgres_dsn):
    store.write(Insert(at(1), "")).block()
    with psycopg.connect(postgres_dsn) as db:
        db.execute(
            "INSERT INTO twiceproof.twiceproof_records (space, kind, key, version, fence, created_at, updated_at,"
            " state, nonce, queue, body) SELECT 'space 2', kind, '2', 1, 0, 0, 0, '', '', '', 'by hand'"
            " FROM twiceproof.twiceproof_records"
        )
    outcomes = [store.engine.commit([batch(Insert(at(2), ""))])[0]]
    outcomes += store.engine.commit([batch(Insert(at(2), "")), batch(Insert(at(3), ""))])
    assert [type(outcome) for outcome in outcomes] == [Conflict, Conflict, Written]
    assert outcomes[0].found.body == "by hand"


def test_a_newer_schema_is_refused_and_the_same_one_is_not(store, postgres_dsn):
    PostgresEngine(postgres_dsn).close()
    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        db.execute("INSERT INTO twiceproof.twiceproof_migrations VALUES (9999, 'from the future')")
    with pytest.raises(SchemaMismatch, match="upgrade twiceproof"):
        PostgresEngine(postgres_dsn)


def test_opening_an_up_to_date_store_takes_no_lock_that_migrating_takes(store, postgres_dsn):
    with psycopg.connect(postgres_dsn) as migrating:
        migrating.execute("LOCK TABLE twiceproof.twiceproof_migrations IN SHARE ROW EXCLUSIVE MODE")
        migrating.execute("SELECT pg_advisory_xact_lock(%s)", (0x7477696365,))
        PostgresEngine(postgres_dsn).close()


def test_a_lookup_by_address_reads_its_own_row_and_no_other(store, postgres_dsn):
    """Plans are made while the table is empty, and kept: they must be the right ones for a large table."""
    with psycopg.connect(postgres_dsn) as db:
        for n in range(0, 300, 3):
            calls = [commit_call(CALLS, [batch(Insert(at(n), ""))]), commit_call(CALLS, [batch(Insert(at(n), ""))])]
            calls += [commit_call(CALLS, [batch(Replace(at(n), version="1"))])]
            calls += [commit_call(CALLS, [batch(Insert(at(n + 1), "")), batch(Remove(at(n + 2), version="1"))])]
            calls += [commit_call(CALLS, [batch(Insert(at(n + 2), "")), batch(Replace(at(n), version="1"))])]
            calls += [commit_call(CALLS, [batch(Check(at(n), fence=1), Insert(at("step", at(n).space), ""))])]
            calls += [(CALLS.fetch, fetch_values([at(n), at(n + 1)]))]
            for sql, values in calls:
                assert db.pgconn.exec_params(sql, values).status == ExecStatus.TUPLES_OK
        scans, fetched = db.execute(
            "SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'twiceproof_records'"
        ).fetchone()
    assert scans == 0
    assert fetched < 300 * 5


def test_a_long_queue_is_read_at_its_head_only(store, postgres_dsn):
    with psycopg.connect(postgres_dsn) as db:
        db.execute(
            "INSERT INTO twiceproof.twiceproof_records (space, kind, key, version, fence, created_at, updated_at,"
            " state, nonce, queue, due_at, body) SELECT n, 'run', n, 1, 0, 0, 0, '', '', 'q' || n % 2, n, ''"
            " FROM generate_series(1, 5000) AS n"
        )
        for n in range(8):
            answer = db.pgconn.exec_params(CALLS.due, due_values("run", ["q0", "q1"], 10, 60.0))
            due = due_of(answer.get_value(0, 0))
            assert [int(record.at.key) for record in due.records] == list(range(n * 10 + 1, n * 10 + 11))
        scans, fetched = db.execute(
            "SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'twiceproof_records'"
        ).fetchone()
        db.rollback()
    assert scans == 0
    assert fetched < 8 * 400


def test_values_may_hold_the_characters_that_mark_columns(store):
    keys = ["\x1f", "\x1e", "a\x1f\x1eb", "\x1f\x1e\x1e", "{,}", '"', "NULL", "\\"]
    outcomes = store.engine.commit([batch(Insert(at(key, space=key), key, state=key)) for key in keys])
    assert all(isinstance(outcome, Written) for outcome in outcomes)
    found = store.engine.fetch([at(key, space=key) for key in keys])
    assert [each.record.body for each in found] == keys


def test_the_claims_view_reads_a_claim_with_plain_sql(store, postgres_dsn):
    body = '{"tenant":"t","operation":"charge","key":"k","owner":"me","attempt":2,"result":{"id":7}}'
    store.write(Insert(Address("s", "claim", "self"), body, state="done", draw=True)).block()
    store.write(Insert(Address("s", "note", "self"), "not json")).block()
    with psycopg.connect(postgres_dsn) as db:
        rows = db.execute(
            "SELECT operation, key, state, owner, attempt, result, lease_until FROM twiceproof.twiceproof_claims"
        ).fetchall()
    assert rows == [("charge", "k", "done", "me", 2, {"id": 7}, None)]


def test_a_migration_that_somebody_has_stopped_in_is_waited_for_and_given_up(postgres_dsn, monkeypatch):
    """A stopped process keeps the lock; without an end to it, everybody who opens the store would wait for ever."""
    monkeypatch.setattr(postgres_schema, "PATIENCE", 0.2)
    with psycopg.connect(postgres_dsn) as stopped:
        stopped.execute("SELECT pg_advisory_xact_lock(%s)", (postgres_schema.MIGRATING,))
        with pytest.raises(StoreUnavailable, match="holds a lock for too long") as told:
            PostgresEngine(postgres_dsn)
        assert not told.value.unsure
    PostgresEngine(postgres_dsn).close()


def test_a_roles_own_lock_timeout_does_not_cut_a_migration_short(postgres_dsn):
    """The twin: the doctor asks for one, which is meant for other transactions."""
    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        db.execute(f'ALTER DATABASE "{conninfo_to_dict(postgres_dsn)["dbname"]}" SET lock_timeout = 1')
    with psycopg.connect(postgres_dsn) as first:
        first.execute("SELECT pg_advisory_xact_lock(%s)", (postgres_schema.MIGRATING,))
        opening = threading.Thread(target=lambda: PostgresEngine(postgres_dsn).close())
        opening.start()
        _until_waiting(postgres_dsn)
    opening.join(20)
    assert not opening.is_alive()
    PostgresEngine(postgres_dsn, create=False).close()


def _until_waiting(dsn):
    with psycopg.connect(dsn, autocommit=True) as db:
        for _ in range(10_000):
            if db.execute("SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchall():
                return
    raise AssertionError("Nobody waits.")
