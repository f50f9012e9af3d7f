"""A page of a scan on SQLite costs what it shows: neither a long kind nor a large space makes it dearer."""

import sqlite3

import pytest

from twiceproof.errors import BadWrite
from twiceproof.prove.store_contract.case import met
from twiceproof.records import Address, Batch, Insert
from twiceproof.stores.base import MOST_LOOKED_AT
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.sqlite.engine import SqliteEngine
from twiceproof.stores.sqlite.rows import SqlitePrefixScan, SqliteScan

STATES = ("done", "failed", "held")


@pytest.fixture
def engine(tmp_path):
    engine = SqliteEngine(tmp_path / "twiceproof.db")
    yield engine
    engine.close()


def fill(engine, count, *, kind="claim", space=None, since=0):
    writes = [
        Insert(Address(space or f"space {nth}", kind, f"key {nth:06}"), "body", state=STATES[nth % 3])
        for nth in range(since, since + count)
    ]
    for begin in range(0, count, 500):
        engine.commit([Batch([write], f"{write.at.key}") for write in writes[begin : begin + 500]])


def cost(engine, *narrow, newest=None, family=None):
    """How many instructions SQLite carries out for one page of ten."""
    return steps_of(engine, SqliteScan(*narrow, 10, newest, family))


def steps_of(engine, asked):
    steps = []
    db = sqlite3.connect(engine.path)
    db.set_progress_handler(lambda: steps.append(1), 10)
    rows = db.execute(asked.sql, asked.values).fetchall()
    db.close()
    assert len(rows) == 11
    return len(steps)


@pytest.mark.parametrize(
    ("narrow", "space"),
    [
        (("claim", None, None, None), None),
        (("claim", None, None, "100"), None),
        (("claim", None, "held", None), None),
        (("claim", "large", None, None), "large"),
        (("claim", "large", None, "key:key 000100"), "large"),
        (("claim", "large", "held", None), "large"),
    ],
)
def test_a_page_costs_the_same_among_ten_times_as_many_records(engine, narrow, space):
    fill(engine, 500, space=space)
    among_few = cost(engine, *narrow)
    fill(engine, 4_500, space=space, since=500)
    assert cost(engine, *narrow) <= 1.2 * among_few


@pytest.mark.parametrize("state", [None, "held"])
@pytest.mark.parametrize("after", [None, "400"])
@pytest.mark.parametrize("newest", [True, False])
def test_a_page_by_age_costs_the_same_among_ten_times_as_many_records(engine, state, after, newest):
    fill(engine, 500)
    among_few = cost(engine, "claim", None, state, after, newest=newest)
    fill(engine, 4_500, since=500)
    assert cost(engine, "claim", None, state, after, newest=newest) <= 1.2 * among_few


def fill_runs(engine, flow, count):
    writes = [
        Insert(Address(f"default/{flow}/{nth:06}", "run", "self"), "body", state=STATES[nth % 3])
        for nth in range(count)
    ]
    for begin in range(0, count, 500):
        engine.commit([Batch([write], write.at.space) for write in writes[begin : begin + 500]])


@pytest.mark.parametrize("state", [None, "held"])
@pytest.mark.parametrize("newest", [True, False])
def test_a_flow_is_listed_without_reading_the_others(engine, state, newest):
    fill_runs(engine, "sync", 60)
    alone = cost(engine, "run", None, state, None, newest=newest, family="default/sync/")
    fill_runs(engine, "sync_order", 5_000)
    assert cost(engine, "run", None, state, None, newest=newest, family="default/sync/") <= 1.2 * alone


def test_a_prefix_is_found_without_reading_the_others(engine):
    fill_runs(engine, "sync", 60)
    asked = SqlitePrefixScan("run", "default/sync/", None, None, 10)
    alone = steps_of(engine, asked)
    fill_runs(engine, "sync_order", 5_000)
    fill(engine, 3_000)
    assert steps_of(engine, asked) <= 1.2 * alone


def test_no_page_of_a_prefix_looks_at_more_entries_than_it_may(engine):
    """What lies between is of another kind: the page is empty, and goes on behind it."""
    fill(engine, MOST_LOOKED_AT + 500, kind="step", space="default/each/1")
    land(engine, Address("default/each/2", "run", "self"))
    first = engine.scan("run", None, None, None, 10, None, "default/each/")
    assert (list(first.records), first.after is None) == ([], False)
    second = engine.scan("run", None, None, first.after, 10, None, "default/each/")
    assert [record.at.space for record in second.records] == ["default/each/2"]
    assert second.after is None


def land(engine, at):
    engine.commit([Batch([Insert(at, "")], "nonce")])


@pytest.mark.parametrize("after", ["key:a", "at:default\0run", "at:other/1\0run\0self", "17"])
def test_a_cursor_of_another_scan_than_of_this_prefix_is_refused(engine, after):
    with pytest.raises(BadWrite, match="begin it again"):
        engine.scan("run", None, None, after, 10, None, "default/")


def test_a_rare_kind_is_found_without_reading_the_others(engine):
    fill(engine, 30, kind="letter")
    alone = cost(engine, "letter", None, None, None)
    fill(engine, 5_000)
    assert cost(engine, "letter", None, None, None) <= 1.2 * alone


def test_a_state_in_one_space_is_found_without_reading_that_state_everywhere(engine):
    fill(engine, 60, space="small")
    alone = cost(engine, "claim", "small", "held", None)
    fill(engine, 5_000, since=100)
    assert cost(engine, "claim", "small", "held", None) <= 1.2 * alone


def test_a_kind_of_many_states_is_met_in_the_order_in_which_it_came(engine):
    fill(engine, 50)
    records = met(GroupedStore(engine), limit=7)
    assert [record.at.key for record in records] == [f"key {nth:06}" for nth in range(50)]


@pytest.mark.parametrize(
    ("space", "after"), [(None, "key:a"), (None, "-1"), (None, "9" * 19), ("large", "17"), ("large", "")]
)
def test_a_cursor_of_another_scan_is_refused(engine, space, after):
    with pytest.raises(BadWrite, match="begin it again"):
        engine.scan("claim", space, None, after, 10)


@pytest.mark.parametrize(("space", "after"), [(None, "17"), ("large", "key:a")])
def test_a_cursor_of_this_scan_is_taken(engine, space, after):
    assert list(engine.scan("claim", space, None, after, 10).records) == []
