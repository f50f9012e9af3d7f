"""PostgreSQL's commit function: it lands what the memory store lands, also beside a next release."""

import random

import psycopg
import pytest
from psycopg import sql

from twiceproof.errors import StoreError, StoreUnsafe
from twiceproof.records import Address, Batch, Check, Conflict, Insert, Remove, Replace, Written
from twiceproof.stores.base import SPACE_BUSY, Migration, migrations
from twiceproof.stores.memory import MemoryEngine
from twiceproof.stores.postgres.codec import commit_call, outcomes
from twiceproof.stores.postgres.engine import PostgresEngine

pytestmark = pytest.mark.server

KEYS = ["self", "one", "two"]


@pytest.fixture
def engine(postgres_dsn):
    engine = PostgresEngine(postgres_dsn)
    yield engine
    engine.close()


def commit_as_group(engine, batches):
    """By the function for groups, also where there is a function for a single write."""
    return outcomes(batches, engine._commits.ask(*commit_call(engine._calls, batches))[0][0])


def at(space, key="self"):
    return Address(space, "claim" if key == "self" else "step", key)


def claim(space, nonce="claim"):
    return Batch([Insert(at(space), "a claim", state="held", draw=True, lease=30.0, queue="runs", due_in=30.0)], nonce)


def step(space, fence, key, nonce="step"):
    return Batch([Check(at(space), fence=fence), Insert(at(space, key), "a step", state="done")], nonce)


def end(space, fence, key, nonce="end"):
    done = Replace(at(space), "an end", state="done", fence=fence, draw=True, queue="sweep", due_in=60.0)
    return Batch([done, Insert(at(space, key), "a step", state="done")], nonce)


# -- the same as the memory store ------------------------------------------------------------------


def shape(record, side):
    """A record without what differs between stores: its space's name, its numbers, its times."""
    if record is None:
        return None
    spans = [
        None if until is None else round(until - record.updated_at) for until in (record.lease_until, record.due_at)
    ]
    address = record.at.space.removeprefix(side), record.at.kind, record.at.key
    numbers = record.fence > 0, str(record.fence) == record.version, record.created_at < record.updated_at
    return *address, record.body, record.state, record.queue, record.nonce, *numbers, spans


class Side:
    """One of two stores that the same groups are written to."""

    def __init__(self, engine, name, commit):
        self.engine = engine
        self.name = name
        self.commit = commit

    def land(self, group):
        batches = [
            Batch([self.write(space, *plan) for plan in plans], f"{place}")
            for place, (space, plans) in enumerate(group)
        ]
        return [self.told(outcome) for outcome in self.commit(self.engine, batches)]

    def write(self, space, act, key, given, fits, by):
        here = at(self.name + space, key)
        if act is Insert:
            return Insert(here, **given)
        if by == "absent":
            return Check(here, absent=True)
        found = self.engine.fetch([here])[0].record
        known = 1 if found is None or not fits else getattr(found, by)
        condition = {by: str(known) if by == "version" else known or 1}
        return act(here, **condition, **(given if act is Replace else {}))

    def told(self, outcome):
        if not isinstance(outcome, Conflict):
            return type(outcome)
        return (
            outcome.at.space.removeprefix(self.name),
            outcome.at.kind,
            outcome.at.key,
            shape(outcome.found, self.name),
        )

    def everything(self):
        pages = [self.engine.scan(kind, None, None, None, 1_000) for kind in ("claim", "step")]
        records = [record for page in pages for record in page.records if record.at.space.startswith(self.name)]
        return sorted(shape(record, self.name) for record in records)


def random_group(dice):
    """Up to eight batches of one to three writes; most conditions fit."""
    spaces = dice.sample([f"space {n}" for n in range(10)], dice.randint(1, 8))
    return [(space, [random_write(dice, key) for key in dice.sample(KEYS, dice.randint(1, 3))]) for space in spaces]


def random_write(dice, key):
    act = dice.choices([Insert, Replace, Remove, Check], [6, 3, 1, 4])[0]
    given = {
        "body": dice.choice(["", "a body", "ä body"]),
        "state": dice.choice(["", "held", "done"]),
        "draw": dice.random() < 0.5,
        "lease": dice.choice([None, 30.0]),
        "queue": dice.choice(["", "runs"]),
        "due_in": dice.choice([None, 0.0, 60.0]),
    }
    if act is Replace and dice.random() < 0.3:
        given["body"] = None
    by = dice.choice(["fence", "version", "absent"] if act is Check else ["fence", "version"])
    return act, key, given, dice.random() < 0.9, by


@pytest.mark.parametrize("seed", range(4))
def test_random_groups_land_as_in_the_memory_store(engine, seed):
    dice = random.Random(seed)
    postgres = Side(engine, "postgres ", commit_as_group)
    memory = Side(MemoryEngine(), "memory ", MemoryEngine.commit)
    memory.engine._number = 1_000  # a condition that must not fit names 1
    seen = set()
    for _ in range(60):
        group = random_group(dice)
        outcomes_of_group = postgres.land(group)
        assert outcomes_of_group == memory.land(group)
        seen |= {outcome if outcome is Written else Conflict for outcome in outcomes_of_group}
        assert postgres.everything() == memory.everything()
    assert seen == {Written, Conflict}


# -- beside the next release -----------------------------------------------------------------------


@pytest.fixture
def one_more(monkeypatch):
    """As the next release would see it: one migration more."""
    more = Migration(
        len(migrations("postgres")) + 1,
        "9999_more.sql",
        "ALTER TABLE {schema}.twiceproof_records ADD COLUMN remark text;\n"
        "CREATE TABLE {schema}.twiceproof_more (x int);\n",
    )
    monkeypatch.setattr("twiceproof.stores.postgres.schema.migrations", lambda dialect: [*migrations(dialect), more])
    return more


def applied(dsn):
    with psycopg.connect(dsn) as db:
        return db.execute("SELECT number, name FROM twiceproof.twiceproof_migrations ORDER BY number").fetchall()


def test_an_older_database_is_brought_up_to_date_with_its_records(engine, postgres_dsn, one_more):
    (first,) = engine.commit([claim("a")])
    newer = PostgresEngine(postgres_dsn)
    assert newer.fetch([at("a")])[0].record.fence == first.fence
    assert applied(postgres_dsn)[-1] == (one_more.number, one_more.name)
    assert [number for number, _ in applied(postgres_dsn)] == list(range(1, one_more.number + 1))
    newer.close()


def test_a_migration_that_fails_leaves_the_database_as_it_was(engine, postgres_dsn, monkeypatch):
    before = applied(postgres_dsn)
    bad = Migration(len(before) + 1, "bad.sql", "CREATE TABLE {schema}.twiceproof_half (x int);\nCREATE NONSENSE;\n")
    with monkeypatch.context() as newer:
        newer.setattr("twiceproof.stores.postgres.schema.migrations", lambda dialect: [*migrations(dialect), bad])
        with pytest.raises(StoreError, match="NONSENSE"):
            PostgresEngine(postgres_dsn)
    assert applied(postgres_dsn) == before
    with psycopg.connect(postgres_dsn) as db:
        assert db.execute("SELECT to_regclass('twiceproof.twiceproof_half')").fetchone() == (None,)


def test_a_process_of_this_release_goes_on_after_a_newer_one_migrated(engine, postgres_dsn, one_more):
    older = engine
    (first,) = older.commit([claim("a")])
    newer = PostgresEngine(postgres_dsn)
    steps = [newer.commit([step("a", first.fence, "one")]), older.commit([step("a", first.fence, "two")])]
    assert all(isinstance(landed, Written) for (landed,) in steps)
    (ended,) = newer.commit([end("a", first.fence, "three")])
    assert isinstance(ended, Written)
    (late,) = older.commit([step("a", first.fence, "four")])
    assert isinstance(late, Conflict)
    assert late.found.fence == ended.fence
    newer.close()


def test_each_batch_of_a_group_has_its_own_end(engine, postgres_dsn):
    spaces = [f"space {n}" for n in range(8)]
    claims = engine.commit([claim(space) for space in spaces])
    group = [step(space, taken.fence, "one") for space, taken in zip(spaces, claims, strict=True)]
    group[1] = step(spaces[1], claims[0].fence, "one")  # a stranger's fence
    group[4] = end(spaces[4], claims[4].fence, "one")
    group[5] = end(spaces[5], claims[4].fence, "one")
    group[6] = claim(spaces[6], "a duplicate")
    with psycopg.connect(postgres_dsn) as user:
        user.execute("SELECT twiceproof.twiceproof_hold(%s)", (spaces[3],))
        ends = engine.commit(group)
    assert [type(each) for each in ends] == [
        Written,
        Conflict,
        Written,
        type(SPACE_BUSY),
        Written,
        Conflict,
        Conflict,
        Written,
    ]
    assert [ends[n].found.fence for n in (1, 5, 6)] == [claims[n].fence for n in (1, 5, 6)]
    found = engine.fetch([at(space, "one") for space in spaces])
    assert [each.record is not None for each in found] == [isinstance(each, Written) for each in ends]
    assert isinstance(engine.commit([group[3]])[0], Written)


def test_a_conflict_names_the_first_write_that_does_not_fit(engine):
    (first,) = engine.commit([claim("a")])
    engine.commit([step("a", first.fence, "one")])
    writes = [Check(at("a"), fence=first.fence + 1), Insert(at("a", "one"), "")]
    forwards, backwards = (engine.commit([Batch(order, "nonce")])[0] for order in (writes, writes[::-1]))
    assert forwards.at == at("a")
    assert backwards.at == at("a", "one")
    assert backwards.found.body == "a step"


def test_a_snapshot_from_before_the_lock_is_refused(engine, postgres_dsn):
    group = [claim("a"), claim("b")]
    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        database = sql.Identifier(db.info.dbname)
        alter = sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}")
        db.execute(alter.format(database, "repeatable read"))
        engine._commits.close()
        with pytest.raises(StoreUnsafe, match="READ COMMITTED"):
            engine.commit(group)
        db.execute(alter.format(database, "read committed"))
    engine._commits.close()
    assert all(isinstance(each, Written) for each in engine.commit(group))
