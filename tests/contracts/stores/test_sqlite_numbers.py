"""The numbers of an SQLite file: reserved in blocks, and all the same larger than everything drawn before."""

import sqlite3
import threading
from contextlib import closing

import pytest

from twiceproof.errors import StoreError
from twiceproof.records import Address, Batch, Conflict, Insert, Replace, Written
from twiceproof.stores.sqlite.engine import SqliteEngine
from twiceproof.stores.sqlite.rows import PER_SECOND, RESERVED


@pytest.fixture
def path(tmp_path):
    return tmp_path / "twiceproof.db"


@pytest.fixture
def engines(path):
    engines = [SqliteEngine(path) for _ in range(3)]
    yield engines
    for engine in engines:
        engine.close()


def at(key):
    return Address(f"shop/{key}", "claim", "self")


def put(engine, key):
    (answer,) = engine.commit([Batch((Insert(at(key), "body", draw=True),), f"nonce-{key}")])
    return answer


def counter(path):
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT number FROM twiceproof_counter").fetchone()[0]


def test_those_who_write_in_turns_draw_larger_numbers_each_time(engines):
    fences = [put(engines[turn % 3], turn).fence for turn in range(30)]
    assert fences == sorted(set(fences))


def test_those_who_write_at_once_never_draw_the_same_number(engines):
    fences = []

    def write(engine, name):
        for turn in range(50):
            fences.append(put(engine, f"{name}-{turn}").fence)

    threads = [threading.Thread(target=write, args=(engine, name)) for name, engine in enumerate(engines)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(fences)) == 150


def test_one_who_takes_over_has_the_larger_fence_though_his_block_was_reserved_first(engines):
    early, late, _ = engines
    put(early, "another")
    first = put(late, "this")
    take = Replace(at("this"), "mine", version=first.version, draw=True)
    (second,) = early.commit([Batch((take,), "nonce")])
    assert second.fence > first.fence


def test_what_is_due_is_handed_out_under_a_larger_version_than_another_wrote(engines):
    early, late, _ = engines
    put(early, "another")
    late.commit([Batch((Insert(at("due"), "", queue="q", due_in=0.0),), "nonce")])
    (written,) = late.commit([Batch((Insert(at("later"), ""),), "nonce-2")])
    (handed,) = early.due("claim", ["q"], 10, 5.0).records
    assert int(handed.version) > int(written.version)


def test_the_counter_is_written_once_for_many_commits(path, engines):
    put(engines[0], "first")
    reserved = counter(path)
    for turn in range(20):
        put(engines[0], turn)
    assert counter(path) == reserved


def test_those_who_write_in_turns_do_not_run_ahead_of_the_time(path, engines):
    """At 200,000 commits a second; beyond that, a file that was copied back could draw a number again."""
    for turn in range(3):
        put(engines[turn], f"first-{turn}")
    before = counter(path)
    for turn in range(60):
        put(engines[turn % 3], turn)
    assert (counter(path) - before) / 60 < PER_SECOND / 200_000


def test_one_who_writes_alone_again_has_large_blocks_again(path, engines):
    for turn in range(6):
        put(engines[turn % 2], turn)
    for turn in range(130):
        put(engines[0], f"alone-{turn}")
    reserved = counter(path)
    for turn in range(100):
        put(engines[0], f"later-{turn}")
    assert counter(path) == reserved


def test_a_block_that_is_used_up_is_followed_by_another(path, engines):
    numbers = [put(engines[0], f"{turn}").fence for turn in range(3)]
    many = [Batch((Insert(at(f"many-{n}"), "", draw=True),), f"n-{n}") for n in range(RESERVED - 10)]
    numbers += [answer.fence for answer in engines[0].commit(many)]
    numbers += [put(engines[0], f"after-{turn}").fence for turn in range(20)]
    assert numbers == sorted(set(numbers))
    assert counter(path) >= numbers[-1]


def refuse_commit(action, what, *_):
    return sqlite3.SQLITE_DENY if (action, what) == (sqlite3.SQLITE_TRANSACTION, "COMMIT") else sqlite3.SQLITE_OK


def test_after_a_commit_that_failed_the_numbers_it_reserved_are_not_used(path, engines):
    put(engines[0], "first")
    engines[1].commit([])  # opens its connection
    engines[1]._writer.set_authorizer(refuse_commit)
    with pytest.raises(StoreError):
        put(engines[1], "refused")
    engines[1]._writer.set_authorizer(None)
    assert put(engines[1], "second").fence <= counter(path)


def test_conflicts_alone_write_nothing(path, engines):
    put(engines[0], "key")
    reserved = counter(path)
    assert isinstance(put(engines[1], "key"), Conflict)
    assert counter(path) == reserved


def test_a_new_process_goes_on_after_all_that_was_reserved(path, engines):
    last = put(engines[0], "key").fence
    for engine in engines:
        engine.close()
    fresh = SqliteEngine(path)
    answer = put(fresh, "other")
    fresh.close()
    assert isinstance(answer, Written)
    assert answer.fence > last
