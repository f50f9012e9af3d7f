"""The same commands on real servers: the command line knows the store only through its seam."""

from __future__ import annotations

import contextlib
import json

import psycopg
import pytest
import redis
from click.testing import CliRunner

from twiceproof import App, NeedsReview
from twiceproof.cli.main import cli

pytestmark = pytest.mark.server


@pytest.fixture(params=["postgres_dsn", "redis_url"])
def url(request):
    return request.getfixturevalue(request.param)


def run(url, *words):
    return CliRunner().invoke(cli, [*words, "--json"], env={"TWICEPROOF_STORE": url})


def answer(url, *words):
    result = run(url, *words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_claim_in_review_is_listed_shown_settled_and_released(url):
    with App(url, best_effort=True) as app:

        @app.once(key="order:{n}", stable=("n",))
        def ship(n: str):
            raise TimeoutError("no answer")

        for n in ("a", "b", "c"):
            with pytest.raises(NeedsReview):
                ship(n)
        first = answer(url, "claims", "list", "--limit", "2")
        rest = answer(url, "claims", "list", "--limit", "2", "--after", first["after"])
        found = sorted(claim["key"] for claim in (*first["claims"], *rest["claims"]))
        assert found == ["order:a", "order:b", "order:c"]
        assert answer(url, "claims", "show", "ship", "order:a")["claim"]["state"] == "review"
        answer(url, "claims", "settle", "ship", "order:a", "--happened", "--result", '{"parcel": 1}')
        assert ship("a") == {"parcel": 1}
        assert answer(url, "claims", "release", "ship", "order:b", "--yes")["released"]
        assert run(url, "claims", "show", "ship", "order:b").exit_code == 1
        swept = {"deleted_claims": 0, "trimmed_results": 0, "deleted_records": 0}
        assert answer(url, "claims", "sweep") == swept


def traces(url):
    """What stands in the database: names of relations, or of keys."""
    if url.startswith("redis"):
        with contextlib.closing(redis.Redis.from_url(url)) as server:
            return server.keys("*")
    with psycopg.connect(url) as db:
        return db.execute("SELECT relname FROM pg_class WHERE relname LIKE 'twiceproof%'").fetchall()


@pytest.mark.parametrize("words", [("claims", "list"), ("claims", "sweep"), ("runs", "list"), ("encryption", "status")])
def test_looking_makes_no_ledger(url, words):
    result = run(url, *words)
    assert (result.exit_code, traces(url)) == (3, [])
    said = json.loads(result.stdout)["error"]
    assert (said["type"], "there is no ledger in this" in said["message"].lower()) == ("NoLedger", True)


def test_the_doctor_makes_no_ledger_and_checks_what_can_be_checked_without_one(url):
    result = run(url, "doctor")
    findings = {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert (result.exit_code, traces(url)) == (1, [])
    assert (findings["ledger"]["level"], findings["ledger"]["found"]) == ("warn", "does not exist yet")
    assert {"fsync", "synchronous_commit", "max_connections"} <= set(findings) or {"persistence", "memory"} <= set(
        findings
    )


def test_an_app_makes_a_ledger_and_then_looking_finds_it(url):
    App(url, best_effort=True).close()
    assert traces(url) != []
    assert answer(url, "claims", "list")["claims"] == []


def test_the_doctor_examines_a_server(url):
    App(url, best_effort=True).close()
    result = run(url, "doctor")
    report = json.loads(result.stdout)
    assert result.exit_code == {"ok": 0, "warn": 1, "refuse": 2}[report["verdict"]]
    names = {finding["name"] for finding in report["findings"]}
    assert {"clock skew", "clock step", "lease"} <= names
    assert "ledger" not in names
