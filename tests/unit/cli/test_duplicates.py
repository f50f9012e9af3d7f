"""`twiceproof duplicates`."""

from __future__ import annotations


def block_some(app):
    for key, times in (("order:1", 5), ("order:2", 2)):
        for _ in range(times):
            app.claims.duplicates.blocked("ship", key, "stripe")
    app.claims.duplicates.blocked("bill", "order:\x1b[31m9")
    app.tally.flush()


def test_the_keys_with_most_blocked_repeats_come_first(ledger, run, run_json):
    block_some(ledger.app)
    rows = run_json("duplicates")["duplicates"]
    assert [(row["blocked"], row["source"], row["key"]) for row in rows[:2]] == [
        (5, "stripe", "order:1"),
        (2, "stripe", "order:2"),
    ]
    shown = run("duplicates").stdout
    assert shown.index("order:1") < shown.index("order:2")
    assert "\x1b" not in shown


def test_they_can_be_chosen_by_flow_source_and_time(ledger, run_json):
    block_some(ledger.app)
    assert [row["key"] for row in run_json("duplicates", "--flow", "ship", "--limit", "1")["duplicates"]] == ["order:1"]
    assert len(run_json("duplicates", "--source", "stripe")["duplicates"]) == 2
    assert run_json("duplicates", "--source", "github")["duplicates"] == []
    assert len(run_json("duplicates", "--since", "1h")["duplicates"]) == 3
    assert run_json("duplicates", "--since", "2099-01-01")["duplicates"] == []


def test_tenants_do_not_see_each_others(ledger, run_json, run):
    block_some(ledger.app)
    assert run_json("--tenant", "acme", "duplicates")["duplicates"] == []
    assert "No duplicates" in run("--tenant", "acme", "duplicates").stdout
