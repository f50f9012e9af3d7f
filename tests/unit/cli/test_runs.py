"""`twiceproof runs`: list, show, retry, cancel, fork."""

from __future__ import annotations

import shlex
from json import loads

import pytest

from twiceproof import Misuse, NotDone, Retry, Stale, by

RUN_KEYS = {
    "run",
    "flow",
    "version",
    "key",
    "tenant",
    "state",
    "lapsed",
    "reason",
    "attempt",
    "owner",
    "correlation",
    "link",
    "created_at",
    "updated_at",
    "age",
    "due_at",
}
WHOLE_KEYS = {
    "run",
    "input",
    "result_kept",
    "result",
    "fault",
    "settled",
    "undoing",
    "forked_from",
    "fence",
    "record_version",
    "lease_until",
    "steps",
    "evidence",
    "pieces",
    "next",
}
STEP_KEYS = {
    "name",
    "state",
    "repeat",
    "starts",
    "order",
    "began_at",
    "recorded_at",
    "took",
    "not_before",
    "result_kept",
    "result",
    "spill",
    "fault",
    "reason",
    "settled",
    "external",
}


@pytest.fixture(autouse=True)
def filled(shop):
    shop.fill()


def keys(answer):
    return [run["key"].removeprefix("order:") for run in answer["runs"]]


# -- by key alone ----------------------------------------------------------------------------------


def test_a_key_that_one_run_has_finds_it_without_its_flow(run, run_json):
    assert run_json("runs", "show", "order:bug")["run"]["flow"] == "buy"
    assert "order:timeout" in run("review", "show", "order:timeout").stdout


def test_a_key_of_several_flows_is_told_with_their_names(run, shop):
    other = shop.app.flow(key="order:{order}", name="sell")(lambda order: None)
    other("bug")
    told = run("runs", "show", "order:bug", code=1).stderr
    assert "buy/order:bug" in told and "sell/order:bug" in told
    assert run("runs", "show", "sell/order:bug").stdout


def test_a_key_with_a_slash_is_found_where_it_is_no_flows(run_json, shop):
    other = shop.app.flow(key="{order}", name="sell")(lambda order: None)
    other("eu/17")
    assert run_json("runs", "show", "eu/17")["run"]["flow"] == "sell"
    assert run_json("runs", "show", "sell/eu/17")["run"]["key"] == "eu/17"


@pytest.mark.parametrize("name", ["order:nobody", "run_nonsense", "run_ZGVmYXVsdC9idXkvb3JkZXI6MQ", "buy/order:nobody"])
def test_what_is_neither_an_id_nor_a_key_is_told_how_to_be_named(run, name):
    told = run("runs", "show", name, code=1).stderr
    assert "FLOW/KEY" in told and "runs list" in told


def test_a_claims_key_is_no_runs(run, ledger):
    ledger.fill()
    assert "no such run" in run("runs", "show", "order:closed", code=1).stderr


# -- a batch ---------------------------------------------------------------------------------------


@pytest.fixture
def batch(shop):
    app = shop.app

    @app.step(repeat="safe", retry=Retry(attempts=1))
    def reserve(line):
        if line in (3, 17):
            raise NotDone(f"no stock of {line}")
        return line

    @app.flow(key="order:{order}")
    def fill(order, lines):
        app.each(lines, reserve, key="{item}", on_failure="collect")

    fill("batch", list(range(40)))


def test_a_batch_shows_what_failed_first_and_folds_the_rest(run, batch):
    lines = [line.strip() for line in run("runs", "show", "fill/order:batch").stdout.splitlines()]
    shown = [line.split("  ")[1:3] for line in lines if "reserve[" in line]
    assert [first.split()[-1] for first, *_ in shown[:2]] == ["reserve[3]", "reserve[17]"]
    assert len(shown) < 10
    assert any("and 36 more of reserve, all done" in line for line in lines)
    assert any("--all" in line for line in lines)


def test_all_of_a_batch_is_shown_if_asked_for(run, batch):
    shown = run("runs", "show", "fill/order:batch", "--all").stdout
    assert sum("reserve[" in line for line in shown.splitlines()) == 40 and "more of reserve" not in shown


def test_a_batch_is_whole_in_json(run_json, batch):
    assert len(run_json("runs", "show", "fill/order:batch")["steps"]) == 40


# -- list ------------------------------------------------------------------------------------------


def test_what_is_not_done_is_listed_with_reviews_first(run_json):
    assert keys(run_json("runs", "list")) == ["timeout", "queued", "sleep", "bug"]


def test_the_shape_of_a_list_is_exact(run_json):
    answer = run_json("runs", "list", "--state", "all")
    assert set(answer) == {"runs", "after", "before", "newer", "next"}
    assert all(set(one) == RUN_KEYS for one in answer["runs"])
    assert len(answer["runs"]) == 5


def test_claims_of_guarded_functions_are_no_runs(run_json, ledger):
    ledger.fill()
    assert len(run_json("runs", "list", "--state", "all")["runs"]) == 5
    assert "order:timeout" in [claim["key"] for claim in run_json("claims", "list")["claims"]]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--key", "order:bug"], ["bug"]),
        (["--key-prefix", "order:s"], ["sleep"]),
        (["--flow", "buy", "--state", "done"], ["done"]),
        (["--flow", "bu"], []),
        (["--since", "1h", "--state", "done"], ["done"]),
        (["--until", "1h"], []),
        (["--since", "2100-01-01"], []),
        (["--until", "2100-01-01T09:30", "--state", "failed"], ["bug"]),
    ],
)
def test_runs_are_filtered(run_json, words, found):
    assert keys(run_json("runs", "list", *words)) == found


def test_a_time_that_is_none_is_refused(run):
    assert "is not a time" in run("runs", "list", "--since", "yesterday", code=2).stderr


def test_pages_meet_every_run_once(run_json):
    first = run_json("runs", "list", "--state", "all", "--limit", "3")
    rest = run_json("runs", "list", "--state", "all", "--limit", "3", "--after", first["after"])
    assert sorted(keys(first) + keys(rest)) == ["bug", "done", "queued", "sleep", "timeout"]


@pytest.mark.parametrize(
    "words", [(), ("--flow", "buy", "--key-prefix", "order:s"), ("--key", "an order", "--since", "2h")]
)
def test_the_list_of_done_ones_that_it_suggests_is_about_the_same_runs(run, words):
    said = run("runs", "list", *words).stdout.partition("To list runs that are done: ")[2].splitlines()[0]
    assert shlex.split(said)[3:] == ["runs", "list", *words, "--state", "done"]


def test_in_a_pipe_a_table_of_runs_has_the_whole_reason(run, shop):
    shop.call("timeout" + "x" * 20)
    text = run("runs", "list").stdout
    assert text.splitlines()[0].split() == ["FLOW", "KEY", "STATE", "AGE", "REASON"]
    assert text.count("charge: no answer came: whether it was done is unknown (TimeoutError: no answer)\n") == 2
    assert "runs show buy/order:timeout" in text


def test_a_run_is_not_in_the_lists_of_claims_but_is_shown_as_what_it_is(run, run_json):
    assert run_json("claims", "list", "--state", "all")["claims"] == []
    assert "This is a run" in run("claims", "show", "buy", "order:sleep").stdout


# -- show ------------------------------------------------------------------------------------------


def test_the_shape_of_a_run_is_exact(run_json):
    answer = run_json("runs", "show", "buy/order:timeout")
    assert set(answer) == WHOLE_KEYS
    assert set(answer["run"]) == RUN_KEYS
    assert all(set(step) == STEP_KEYS for step in answer["steps"])
    assert all(set(move) == {"why", "command"} for move in answer["next"])
    assert answer["input"] == {"order": "timeout"}


def test_a_run_is_named_by_its_id_or_by_flow_and_key(run_json, shop):
    by_key = run_json("runs", "show", "buy/order:done")
    by_id = run_json("runs", "show", by_key["run"]["run"])
    assert by_id["result"] == by_key["result"] == {"id": "ch_done"}


def test_the_ledger_is_drawn_step_by_step(run):
    text = run("runs", "show", "buy/order:timeout").stdout
    assert text.index("+ reserve  done, repeat=safe, 1 attempt") < text.index(
        "? charge  unknown, repeat=never, 1 attempt, took"
    )
    for word in ("TimeoutError: no answer", "correlation", "buy@1", "whether it was done is unknown", "+0.0 s"):
        assert word in text


def test_a_run_that_is_not_there_is_a_negative_answer(run):
    assert "runs list" in run("runs", "show", "buy/order:nobody", code=1).stderr
    assert "FLOW/KEY" in run("runs", "show", "nonsense", code=1).stderr  # it may be a key


def test_a_claim_that_is_no_run_is_told_so(run, ledger):
    ledger.fill()
    assert "claims show ship order:done" in run("runs", "show", "ship/order:done", code=1).stderr


@pytest.mark.parametrize(("order", "moves"), [("done", 1), ("timeout", 5), ("bug", 1), ("sleep", 1), ("queued", 2)])
def test_every_state_has_its_next_moves(run_json, order, moves):
    assert len(run_json("runs", "show", f"buy/order:{order}")["next"]) == moves


def test_the_next_move_can_be_typed(run, run_json, ledger):
    move = run_json("runs", "show", "buy/order:bug")["next"][0]["command"]
    words = shlex.split(move)
    assert words[:3] == ["twiceproof", "--store", ledger.url]
    run(*words[3:])
    assert run_json("runs", "show", "buy/order:bug")["run"]["state"] == "queued"


def test_a_list_names_the_commands_for_its_first_run_and_its_next_page(run_json):
    given = ("runs", "list", "--flow", "buy", "--since", "2h", "--state", "all", "--limit", "2")
    page = run_json(*given)
    seen = keys(page)
    shows, follows = [shlex.split(move["command"])[3:] for move in page["next"]]
    assert run_json(*shows)["run"]["key"] == f"order:{seen[0]}"
    assert follows == [*given, "--after", page["after"]]
    while follows:
        page = run_json(*follows)
        seen += keys(page)
        follows = next((shlex.split(move["command"])[3:] for move in page["next"] if move["why"] == "Next page"), None)
    assert sorted(seen) == ["bug", "done", "queued", "sleep", "timeout"]


def test_an_empty_list_of_open_runs_names_the_list_of_those_that_are_done(run_json):
    (move,) = run_json("runs", "list", "--flow", "bu")["next"]
    assert shlex.split(move["command"])[3:] == ["runs", "list", "--flow", "bu", "--state", "done"]


def test_a_change_that_was_made_is_told_where_the_run_is_gone(run_json, monkeypatch):
    def gone(*_):
        raise Misuse("There is no such run; list them.")

    monkeypatch.setattr("twiceproof.cli.runs.look_at_run", gone)
    assert run_json("runs", "cancel", "buy/order:queued") == {
        "run": "buy/order:queued",
        "state": "failed",
        "cancelled": True,
        "next": [],
    }


# -- retry, cancel, fork ---------------------------------------------------------------------------


def test_a_failed_run_is_tried_again(run_json, shop, ledger):
    answer = run_json("runs", "retry", "buy/order:bug")
    assert answer.pop("next") == run_json("runs", "show", "buy/order:bug")["next"]
    assert answer == {"run": "buy/order:bug", "state": "queued"}
    steps = {step["name"]: step["state"] for step in run_json("runs", "show", "buy/order:bug")["steps"]}
    assert steps["charge"] == "retry"


@pytest.mark.parametrize("order", ["done", "sleep", "queued"])
def test_only_what_failed_is_tried_again(run, order):
    assert "nothing to try again" in run("runs", "retry", f"buy/order:{order}", code=2).stderr


def test_a_run_with_an_unknown_outcome_is_settled_not_tried_again(run):
    assert "charge is unknown; settle it" in run("runs", "retry", "buy/order:timeout", code=2).stderr


def test_a_run_is_cancelled(run_json, run):
    assert run_json("runs", "cancel", "buy/order:queued", "--by", "ann")["state"] == "failed"
    answer = run_json("runs", "cancel", "buy/order:sleep")
    assert answer.pop("next") == run_json("runs", "show", "buy/order:sleep")["next"]
    assert answer == {"run": "buy/order:sleep", "state": "queued", "cancelled": True}
    assert "had already ended" in run("runs", "cancel", "buy/order:done", code=1).stdout
    assert "settle it instead" in run("runs", "cancel", "buy/order:timeout", code=2).stderr


def test_all_runs_of_a_release_are_cancelled_after_they_were_counted(run, run_json):
    open_ones = {
        one["key"] for state in ("queued", "waiting") for one in run_json("runs", "list", "--state", state)["runs"]
    }
    told = run_json("runs", "cancel", "--flow", "buy", "--version", "1", "--dry-run")
    assert told["cancelled"] == 0 and told["found"] > len(open_ones) > 1
    assert told["next"][0]["command"].endswith("runs cancel --flow buy --version 1 --yes")
    assert run_json("runs", "cancel", "--flow", "buy", "--version", "r8", "--yes")["found"] == 0
    assert "--yes" in run("runs", "cancel", "--flow", "buy", code=2).stderr  # it is asked first
    told = loads(run("runs", "cancel", "--flow", "buy", "--version", "1", "--yes", "--json", code=1).stdout)
    assert told["cancelled"] == told["found"] - len(told["refused"]) >= len(open_ones)
    assert all("settle it instead" in one["reason"] for one in told["refused"])
    for key in open_ones:
        assert run_json("runs", "show", f"buy/{key}")["run"]["state"] in ("failed", "queued")
    assert "not both" in run("runs", "cancel", "buy/order:done", "--flow", "buy", code=2).stderr
    assert "require --flow" in run("runs", "cancel", "buy/order:done", "--dry-run", code=2).stderr


def test_a_fork_is_asked_about_and_named(run, run_json):
    refused = run("runs", "fork", "buy/order:done", "--key", "order:2", code=2).stderr
    assert "--yes" in refused
    answer = run_json("runs", "fork", "buy/order:done", "--key", "order:2", "--from", "charge", "--yes")["forked"]
    assert (answer["key"], answer["kept_steps"], answer["repeated_steps"]) == ("order:2", ["reserve"], ["charge"])
    forked = run_json("runs", "show", "buy/order:2")
    assert (forked["run"]["state"], forked["input"]) == ("queued", {"order": "done"})


# -- flows -----------------------------------------------------------------------------------------


# -- ids -------------------------------------------------------------------------------------------


def test_a_run_that_is_to_be_undone_is_shown_so_and_afterwards_as_what_became_of_it(run, shop):
    shop.call("sleep")
    run("runs", "cancel", "buy/order:sleep", "--by", "ann")
    assert "queued, being undone (cancelled)" in run("runs", "show", "buy/order:sleep").stdout
    shop.app.worker().run(until_idle=True)
    assert "failed, cancelled, nothing undone" in run("runs", "show", "buy/order:sleep").stdout  # it has no undo


def test_a_cancelled_run_is_not_revived(run, shop):
    shop.call("sleep")
    run("runs", "cancel", "buy/order:sleep", "--by", "ann")
    shop.app.worker().run(until_idle=True)
    refused = run("runs", "retry", "buy/order:sleep", code=2).stderr
    assert "cancelled by ann" in refused
    assert "runs fork" in refused


def test_errors_about_runs_name_whole_commands(run):
    assert "twiceproof --store" in run("runs", "show", "buy/nope", code=1).stderr
    assert "as FLOW/KEY, or by its key" in run("runs", "show", "order:nope", code=1).stderr
    assert "--result" in run("review", "settle", "buy/order:timeout", "--happened", code=2).stderr
    assert "--undo --did-not-happen" in run("review", "settle", "buy/order:timeout", "--undo", code=2).stderr
    told = run("review", "settle", "buy/order:timeout", "--happened", "--evidence", "1:x", code=2).stderr
    assert "twiceproof --store" in told and " review show run_" in told
    told = run("review", "settle", "buy/order:done", "--abandon", code=2).stderr
    assert "twiceproof --store" in told and " runs show run_" in told
    told = run("runs", "retry", "buy/order:done", code=2).stderr
    assert "twiceproof --store" in told and " runs show run_" in told
    assert " review show run_" in run("claims", "settle", "buy", "order:timeout", "--happened", code=2).stderr


def next_of(run_json, what):
    return [(move["why"], move["command"]) for move in run_json("runs", "show", f"wait/{what}")["next"]]


def test_a_run_that_waits_for_somebody_does_not_go_on_by_itself(run_json, waiting):
    (asked, show), (until, _) = next_of(run_json, "one")
    assert "approval of charge" in asked and "approvals show apr_" in show
    assert "has arrived, or its time is over" in until
    assert [why.partition(".")[0] for why, _ in next_of(run_json, "call")] == [
        "It goes on when what it waits for has arrived, or its time is over"
    ]
    assert next_of(run_json, "time")[0][0].startswith("It goes on by itself.")


def test_a_stale_run_is_done_and_says_why(ledger, run, run_json):
    @ledger.app.flow(key="{order}", name="sync", order=by(object="{order}", version="{v}"))
    def sync(order: str, v: int) -> None: ...

    sync("o1", 3)
    with pytest.raises(Stale):
        sync("o1", 2)
    shown = run("runs", "show", "sync/o1:2").stdout
    assert "stale: version 3 of o1 was let through before" in shown
    (row,) = [one for one in run_json("runs", "list", "--state", "done")["runs"] if one["key"] == "o1:2"]
    assert row["reason"].startswith("stale")
    result = run_json("runs", "show", "sync/o1:2")["result"]
    assert (result["stale"], result["version"], result["newest"]) == (True, "2", "3")
