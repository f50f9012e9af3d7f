"""`twiceproof review`."""

from __future__ import annotations

import getpass
import shlex

import pytest

from twiceproof import NeedsReview


@pytest.fixture(autouse=True)
def filled(shop):
    shop.fill()


def step_of(run_json, order):
    whole = run_json("review", "show", f"buy/order:{order}")
    return whole["run"]["state"], next(step for step in whole["steps"] if step["name"] == "charge")


def test_what_waits_for_a_person_is_listed(run, run_json):
    (one,) = run_json("review", "list")["runs"]
    assert (one["key"], one["state"]) == ("order:timeout", "review")
    assert "review show buy/order:timeout" in run("review", "list").stdout
    assert run_json("review", "list", "--until", "1h")["runs"] == []
    assert "Nothing is in review" in run("review", "list", "--flow", "other").stdout


def test_claims_that_wait_for_a_person_are_listed_beside_runs(run, run_json, ledger):
    ledger.fill()
    answer = run_json("review", "list")
    assert set(answer) == {"runs", "claims", "after"}
    (one,), (claim,) = answer["runs"], answer["claims"]
    assert (one["flow"], one["key"]) == ("buy", "order:timeout")
    assert (claim["operation"], claim["key"], claim["state"]) == ("ship", "order:timeout", "review")
    assert "TimeoutError" in claim["reason"]
    shown = run("review", "list").stdout
    assert "claims show ship order:timeout" in shown and "review show buy/order:timeout" in shown
    rows = [line.split() for line in shown.splitlines() if "order:timeout" in line and "twiceproof" not in line]
    assert sorted((row[0].partition("@")[0], row[2]) for row in rows) == [("buy", "run"), ("ship", "claim")]


@pytest.mark.parametrize(("name", "runs", "claims"), [("buy", 1, 0), ("ship", 0, 1), ("other", 0, 0)])
def test_the_name_of_a_flow_or_an_operation_narrows_the_list(run_json, ledger, name, runs, claims):
    ledger.fill()
    answer = run_json("review", "list", "--flow", name)
    assert (len(answer["runs"]), len(answer["claims"])) == (runs, claims)


def test_a_list_of_both_kinds_goes_on_where_it_ended(run_json, ledger):
    ledger.fill()
    seen, after = [], None
    while after is not None or not seen:
        page = run_json("review", "list", "--limit", "1", *(["--after", after] if after else []))
        seen += [one.get("flow") or one["operation"] for one in page["runs"] + page["claims"]]
        after = page["after"]
    assert sorted(seen) == ["buy", "ship"]


@pytest.mark.parametrize(
    ("words", "state", "step", "verdict"),
    [
        (["--happened", "--result", '{"id": "ch_1"}'], "queued", "done", "happened"),
        (["--did-not-happen"], "queued", "retry", "did-not-happen"),
        (["--undo", "--did-not-happen"], "queued", "retry", "undo"),
        (["--undo", "--happened", "--result", "null"], "queued", "done", "undo"),
        (["--abandon"], "failed", "unknown", "abandon"),
    ],
)
def test_each_verdict_is_carried_out(run_json, words, state, step, verdict):
    answer = run_json("review", "settle", "buy/order:timeout", *words, "--note", "asked")["settled"]
    assert set(answer) == {"run", "state", "verdict", "step", "by", "note"}
    assert (answer["state"], answer["verdict"], answer["by"]) == (state, verdict, getpass.getuser())
    found, entry = step_of(run_json, "timeout")
    assert (found, entry["state"]) == (state, step)


def test_every_next_move_that_needs_no_answer_can_be_typed(run, run_json, shop):
    moves = [move["command"] for move in run_json("review", "show", "buy/order:timeout")["next"]]
    for number, move in enumerate(moves):
        shop.call(f"timeout{number}")
        words = shlex.split(move.replace("order:timeout", f"order:timeout{number}").replace("JSON", "null"))
        run(*words[3:])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "The verdict is missing"),
        (["--happened"], "Say what charge returned"),
        (["--happened", "--did-not-happen"], "contradict"),
        (["--abandon", "--undo"], "contradict"),
        (["--undo"], "while an outcome is unknown"),
        (["--did-not-happen", "--result", "1"], "require --happened"),
        (["--happened", "--result", "nonsense"], "not valid JSON"),
        (["--happened", "--result", '{"paid": 1, "paid": 900}'], "'paid' twice"),
        (["--happened", "--evidence", "1:charge"], "no evidence"),
        (["--abandon", "--flow", "buy"], "Name one RUN"),
        (["--abandon", "--since", "1h"], "require --flow"),
    ],
)
def test_what_makes_no_sense_is_refused(run, words, why):
    assert why in run("review", "settle", "buy/order:timeout", *words, code=2).stderr


def test_a_run_that_is_not_in_review_is_refused(run):
    assert "not in review" in run("review", "settle", "buy/order:done", "--abandon", code=2).stderr


# -- in bulk ---------------------------------------------------------------------------------------


def test_many_are_counted_before_they_are_settled(run, run_json, shop):
    shop.call("timeout1", "timeout2")
    words = ("review", "settle", "--flow", "buy", "--did-not-happen")
    assert run_json(*words, "--dry-run") == {"found": 3, "settled": 0, "refused": []}
    assert "--yes" in run(*words, code=2).stderr
    assert len(run_json("review", "list")["runs"]) == 3
    assert run_json(*words, "--yes") == {"found": 3, "settled": 3, "refused": []}
    assert run_json("review", "list")["runs"] == []


def test_only_those_of_the_time_are_settled(run_json, shop, ledger):
    ledger.back = 7_200.0
    shop.call("timeout-early")
    ledger.back = 0.0
    words = ("review", "settle", "--flow", "buy", "--abandon", "--yes")
    assert run_json(*words, "--until", "1h")["settled"] == 1
    assert [one["key"] for one in run_json("review", "list")["runs"]] == ["order:timeout"]


def test_of_many_that_the_word_does_not_fit_it_is_said_how_many_are_not_told(run, shop):
    for number in range(6):
        shop.call(f"timeout-{number}")
    said = run("review", "settle", "--flow", "buy", "--happened", "--yes", code=1).stdout
    assert "7 runs in review: 0 settled, 7 refused and not changed." in said
    assert said.count("Say what charge returned") == 5
    assert "and 2 more; --json lists all of them" in said


def test_what_the_word_does_not_fit_is_left_and_told(run, run_json, shop):
    answer = run_json("review", "settle", "--flow", "buy", "--happened", "--yes", code=1)
    assert (answer["found"], answer["settled"]) == (1, 0)
    assert "Say what charge returned" in answer["refused"][0]["reason"]
    assert "1 refused and not changed" in run("review", "settle", "--flow", "buy", "--happened", "--yes", code=1).stdout


def test_a_run_whose_code_broke_off_goes_on_by_the_move_that_is_named_first(run, run_json, ledger):
    mistaken = [True]

    @ledger.app.flow(key="order:{n}", name="count", stable=("n",))
    def count(n: str):
        return n.total if mistaken else len(n)

    with pytest.raises(NeedsReview, match="broke off with AttributeError"):
        count("three")
    moves = [move["command"].split()[3:] for move in run_json("review", "show", "count/order:three")["next"]]
    assert [words[:2] for words in moves] == [["runs", "retry"], ["review", "settle"], ["review", "settle"]]
    mistaken.clear()
    assert "is queued" in run("review", "settle", "count/order:three", "--retry", "--by", "ann").stdout
    assert count("three") == 5
    for words in (["--retry", "--undo"], ["--retry", "--happened"], ["--retry", "--abandon"]):
        run("review", "settle", "count/order:three", *words, code=2)
