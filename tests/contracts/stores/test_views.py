"""The ledger for people: runs and steps, with plain SQL."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import psycopg
import pytest

from twiceproof import App, NeedsReview
from twiceproof.claims.claim import run_id


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.server)])
def url(request, tmp_path):
    return f"sqlite:///{tmp_path}/a.db" if request.param == "sqlite" else request.getfixturevalue("postgres_dsn")


def asked(url, sql):
    if url.startswith("sqlite"):
        db = sqlite3.connect(url.removeprefix("sqlite:///"))
    else:
        db = psycopg.connect(url, options="-csearch_path=twiceproof")
    with closing(db):
        return [tuple(row) for row in db.execute(sql).fetchall()]


@pytest.fixture
def run(url):
    with App(url) as app:

        @app.step(repeat="safe", external="{result[id]}")
        def invoice(order):
            return {"id": f"inv_{order}"}

        @app.step
        def charge(order):
            raise ConnectionResetError("gone")

        @app.flow(key="order:{order}", version="2")
        def buy(order):
            invoice(order)
            charge(order)

        @app.once(key="mail:{order}")
        def mail(order):
            """A claim without steps is no run."""

        mail(17)
        with pytest.raises(NeedsReview):
            buy(17)
        yield run_id("default/buy/order:17")  # as it is stored, which is accepted wherever a run is named


def test_a_run_is_one_row(url, run):
    ((number, *rest, given),) = asked(
        url, "SELECT run, tenant, flow, version, key, state, attempt, input FROM twiceproof_runs"
    )
    assert number == run
    assert rest == ["default", "buy", "2", "order:17", "review", 1]
    assert (json.loads(given) if isinstance(given, str) else given) == {"order": 17}
    assert "charge" in asked(url, "SELECT reason FROM twiceproof_runs")[0][0]


def test_each_step_is_a_row_of_its_run(url, run):
    steps = asked(
        url, "SELECT run, flow, key, step, state, repeat, starts, external FROM twiceproof_steps ORDER BY place"
    )
    assert steps == [
        (run, "buy", "order:17", "invoice", "done", "safe", 1, "inv_17"),
        (run, "buy", "order:17", "charge", "unknown", "never", 1, None),
    ]


def test_times_are_times(url, run):
    """Comparable with what people write."""
    sane = "created_at > '2020-01-01' AND updated_at >= created_at"
    for view in ("twiceproof_runs", "twiceproof_steps"):
        assert asked(url, f"SELECT count(*) FROM {view} WHERE {sane}")[0][0]


NUL = "a\x00\x00b"
LITERAL = "a\\u0000b"  # what somebody wrote, not a NUL


def document(value):
    """A column of JSON: text on SQLite, parsed by the driver on PostgreSQL."""
    return json.loads(value) if isinstance(value, str) else value


@pytest.fixture
def odd(url):
    """Results, inputs and errors with what SQL has no letter or number for."""
    with App(url) as app:

        @app.step(repeat="safe")
        def told(it):
            return it

        @app.flow(key="note:{note[id]}")
        def write_down(note):
            return told(note["text"])

        @app.once(key="{n}")
        def fail(n):
            raise ValueError(f"bad byte {NUL} in file")

        @app.once(key="{n}")
        def plain(n):
            return "fine"

        write_down({"id": 1, "text": NUL, "big": 2**64 - 1, "\\u0000": f"{LITERAL}\\\x00"})
        write_down({"id": 2, "text": LITERAL})
        plain(1)
        with pytest.raises(NeedsReview, match="bad byte"):
            fail(1)
        yield


def test_a_nul_in_one_row_breaks_no_view(url, odd):
    for view, rows in (("twiceproof_runs", 2), ("twiceproof_steps", 2), ("twiceproof_claims", 4)):
        assert len(asked(url, f"SELECT * FROM {view}")) == rows


def test_a_result_is_json_with_all_of_its_letters_and_digits(url, odd):
    seen = "a\ufffd\ufffdb" if url.startswith("postgres") else NUL  # PostgreSQL's text has no NUL
    (given, first), (_, second) = asked(url, "SELECT input, result FROM twiceproof_runs ORDER BY key")
    assert (document(first) if url.startswith("sqlite") else first) == seen
    assert (document(second) if url.startswith("sqlite") else second) == LITERAL
    last = "\\\ufffd" if url.startswith("postgres") else "\\\x00"
    assert document(given) == {
        "note": {"id": 1, "text": seen, "big": 2**64 - 1, "\\u0000": f"{LITERAL}{last}"},
    }
    results = dict(asked(url, "SELECT operation, result FROM twiceproof_claims WHERE operation IN ('plain', 'fail')"))
    assert results == {"plain": '"fine"' if url.startswith("sqlite") else "fine", "fail": None}
    (fault,) = [document(row[0]) for row in asked(url, "SELECT fault FROM twiceproof_claims WHERE operation = 'fail'")]
    assert fault["message"] == "bad byte a␀␀b in file"  # for people, as it is written
