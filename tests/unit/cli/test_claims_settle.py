"""`twiceproof claims settle`."""

from __future__ import annotations

import getpass

import pytest

from twiceproof import NeedsReview, PriorFailure, ResultNotKept


@pytest.fixture(autouse=True)
def filled(ledger):
    ledger.fill()


def settle(*words):
    return ("claims", "settle", "ship", *words)


def test_what_happened_is_replayed_with_the_given_result(run, ledger):
    with pytest.raises(NeedsReview):
        ledger.ship("timeout")
    run(*settle("order:timeout", "--happened", "--result", '{"parcel": "P-1"}'))
    assert ledger.ship("timeout") == {"parcel": "P-1"}


def test_what_did_not_happen_is_tried_again(run, ledger):
    run(*settle("order:gone", "--did-not-happen"))
    assert ledger.ship("gone") == {"parcel": "P-gone", "price": 1.1}


def test_what_is_abandoned_is_not_tried_again(run, ledger):
    run(*settle("order:timeout", "--abandon", "--note", "too late"))
    with pytest.raises(PriorFailure, match="too late"):
        ledger.ship("timeout")


def test_a_retry_does_not_run_what_was_abandoned_in_doubt(run, ledger):
    run(*settle("order:gone", "--abandon"))
    with pytest.raises(PriorFailure, match="--did-not-happen"):
        ledger.ship.retry("gone")
    run(*settle("order:gone", "--did-not-happen"))
    assert ledger.ship("gone") == {"parcel": "P-gone", "price": 1.1}


def test_without_a_result_people_are_told_what_that_means(run, ledger):
    assert "--result null" in run(*settle("order:timeout", "--happened")).stdout
    with pytest.raises(ResultNotKept):
        ledger.ship("timeout")


def test_with_a_result_there_is_nothing_to_tell(run):
    assert "--result null" not in run(*settle("order:timeout", "--happened", "--result", "null")).stdout


def test_the_json_shape_is_exact(run_json):
    answer = run_json(*settle("order:timeout", "--happened", "--note", "asked", "--by", "ann"))
    assert answer == {
        "settled": {
            "operation": "ship",
            "key": "order:timeout",
            "tenant": "default",
            "state": "done",
            "verdict": "happened",
            "by": "ann",
            "note": "asked",
            "result_kept": False,
        }
    }


def test_who_settled_and_why_is_kept(run, run_json):
    run(*settle("order:timeout", "--abandon", "--note", "asked"))
    settled = run_json("claims", "show", "ship", "order:timeout")["claim"]["settled"]
    assert set(settled) == {"verdict", "by", "at", "note"}
    assert (settled["by"], settled["note"]) == (getpass.getuser(), "asked")
    assert f"abandon, by {getpass.getuser()}" in run("claims", "show", "ship", "order:timeout").stdout


@pytest.mark.parametrize("verdicts", [[], ["--happened", "--abandon"], ["--happened", "--did-not-happen"]])
def test_exactly_one_verdict_must_be_said(run, verdicts):
    assert "exactly one" in run(*settle("order:timeout", *verdicts), code=2).stderr


def test_a_result_goes_only_with_happened(run):
    run(*settle("order:timeout", "--abandon", "--result", "1"), code=2)
    run(*settle("order:timeout", "--happened", "--result", "1"))


@pytest.mark.parametrize("bad", ["P-1", "{", "NaN", "@nowhere.json", '"\\ud800"'])
def test_a_result_that_is_not_json_is_refused(run, ledger, bad):
    run(*settle("order:timeout", "--happened", "--result", bad), code=2)
    with pytest.raises(NeedsReview):
        ledger.ship("timeout")


def test_a_result_can_come_from_a_file_or_from_stdin(run, ledger, tmp_path):
    (tmp_path / "answer.json").write_text('{\n  "from": "file"\n}\n')
    run(*settle("order:timeout", "--happened", "--result", "@answer.json"))
    run(*settle("order:gone", "--happened", "--result", "-"), input='{"from": "stdin"}\n')
    assert ledger.ship("timeout") == {"from": "file"}
    assert ledger.ship("gone") == {"from": "stdin"}


@pytest.mark.parametrize("key", ["order:done", "order:live"])
def test_what_is_done_or_held_is_not_settled(run, key):
    run(*settle(key, "--abandon"), code=2)


def test_what_is_not_there_is_a_negative_answer(run):
    run(*settle("order:nobody", "--abandon"), code=1)


def test_what_is_done_is_looked_at_with_a_command_that_names_it(run, ledger):
    said = run("claims", "settle", "ship", "order:done", "--happened", code=2).stderr
    assert said.rstrip().endswith("claims show ship order:done")
    assert "OPERATION" not in said
