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
    assert set(answer) == {"runs", "claims", "after", "next"}
    (one,), (claim,) = answer["runs"], answer["claims"]
    assert (one["flow"], one["key"]) == ("buy", "order:timeout")
    assert (claim["operation"], claim["key"], claim["state"]) == ("ship", "order:timeout", "review")
    assert "TimeoutError" in claim["reason"]
    shown = run("review", "list").stdout
    assert "claims show ship order:timeout" in shown and "review show buy/order:timeout" in shown
    rows = [line.split() for line in shown.splitlines() if "order:timeout" in line and "twiceproof" not in line]
    assert sorted((row[0].partition("@")[0], row[2]) for row in rows) == [("buy", "run"), ("ship", "claim")]


def test_the_list_names_the_commands_for_each_entry_and_its_next_page(run_json, ledger):
    ledger.fill()
    answer = run_json("review", "list")
    assert all(set(move) == {"why", "command"} for move in answer["next"])
    run, claim = (run_json(*shlex.split(move["command"])[3:]) for move in answer["next"])
    assert (run["run"]["key"], claim["claim"]["key"]) == ("order:timeout", "order:timeout")
    assert run["next"] and claim["next"]
    page = run_json("review", "list", "--since", "1h", "--limit", "1")
    follows = shlex.split(page["next"][-1]["command"])[3:]
    assert follows == ["review", "list", "--since", "1h", "--limit", "1", "--after", page["after"]]
    assert run_json("review", "list", "--flow", "other")["next"] == []


@pytest.mark.parametrize(
    "words",
    [
        ("--did-not-happen", "--note", "asked the bank"),
        ("--happened", "--result", '{"id":"ch 1"}', "--by", "ann"),
        ("--undo", "--happened", "--result", "null"),
        ("--abandon", "--since", "2h"),
    ],
)
def test_a_dry_run_names_the_command_that_settles_with_the_same_decision(run_json, words):
    counted = run_json("review", "settle", "--flow", "buy", *words, "--dry-run")
    settles, lists = (shlex.split(move["command"])[3:] for move in counted["next"])
    assert [one["key"] for one in run_json(*lists)["runs"]] == ["order:timeout"]
    assert settles[:4] == ["review", "settle", "--flow", "buy"] and set(words) < set(settles)
    assert run_json(*settles)["settled"] == 1
    found = run_json("runs", "show", "buy/order:timeout")
    settled = next(step for step in found["steps"] if step["name"] == "charge")["settled"] or found["settled"]
    given = dict(zip(words[1::2], words[2::2], strict=False))
    assert settled["note"] == given.get("--note", "") and settled["by"] == given.get("--by", getpass.getuser())


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
    told = run_json("review", "settle", "buy/order:timeout", *words, "--note", "asked")
    assert told["next"] == run_json("runs", "show", "buy/order:timeout")["next"]
    answer = told["settled"]
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
    counted = run_json(*words, "--dry-run")
    assert (counted["found"], counted["settled"], counted["refused"]) == (3, 0, [])
    assert "--yes" in run(*words, code=2).stderr
    assert len(run_json("review", "list")["runs"]) == 3
    assert run_json(*words, "--yes") == {"found": 3, "settled": 3, "refused": [], "next": []}
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
    (move,) = answer["next"]
    assert run_json(*shlex.split(move["command"])[3:])["run"]["run"] == answer["refused"][0]["run"]
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
