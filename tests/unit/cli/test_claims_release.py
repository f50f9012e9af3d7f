"""`twiceproof claims release` and `twiceproof claims sweep`."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def filled(ledger):
    ledger.fill()


def release(*words):
    return ("claims", "release", "ship", *words)


def test_a_released_key_is_taken_again(run, ledger):
    assert "is released" in run(*release("order:done", "--yes")).stdout
    assert ledger.ship.look("done") is None


def test_the_json_shape_is_exact(run_json):
    assert run_json(*release("order:done", "--yes")) == {
        "released": True,
        "operation": "ship",
        "key": "order:done",
        "tenant": "default",
    }


def test_without_a_terminal_and_without_yes_nothing_is_done(run, ledger):
    assert "--yes" in run(*release("order:done"), input="y\n", code=2).stderr
    assert ledger.ship.look("done") is not None


def test_a_live_claim_is_released_only_by_force(run, run_json, ledger):
    assert "--force" in run(*release("order:live", "--yes"), code=2).stderr
    assert ledger.ship.look("live") is not None
    run(*release("order:live", "--yes", "--force"))
    assert ledger.ship.look("live") is None


def test_a_lapsed_claim_needs_no_force(run, ledger):
    run(*release("order:gone", "--yes"))
    assert ledger.ship.look("gone") is None


def test_what_is_not_there_is_a_negative_answer(run, run_json):
    run(*release("order:nobody", "--yes"), code=1)
    assert run_json(*release("order:nobody", "--yes"), code=1)["error"]["type"] == "NotFound"


def test_sweep_forgets_all_whose_time_is_over_and_nothing_else(run_json, ledger):
    ledger.back = 40 * 86_400.0
    for n in range(450):
        ledger.call(n)
    ledger.back = 0.0
    assert run_json("claims", "sweep") == {"deleted_claims": 450, "trimmed_results": 0, "deleted_records": 0}
    assert run_json("claims", "sweep") == {"deleted_claims": 0, "trimmed_results": 0, "deleted_records": 0}
    assert len(run_json("claims", "list", "--state", "all")["claims"]) == 6


def test_people_are_told_what_was_swept(run):
    assert "Deleted 0 claims" in run("claims", "sweep").stdout


def test_what_has_expired_is_not_shown_even_before_it_is_swept(run, run_json, ledger):
    ledger.back = 40 * 86_400.0
    ledger.call("old")
    assert "order:old" not in run("claims", "list", "--state", "all").stdout
    run("claims", "show", "ship", "order:old", code=1)


def test_before_a_run_is_forgotten_it_is_told_that_its_steps_act_again(run, shop, monkeypatch):
    shop.fill()
    asked = []
    monkeypatch.setattr("twiceproof.cli.claims.confirm", lambda question, yes: asked.append(question))
    for operation in ("buy", "ship"):
        run("claims", "release", operation, "order:done")
    assert ["all its steps run again" in question for question in asked] == [True, False]
