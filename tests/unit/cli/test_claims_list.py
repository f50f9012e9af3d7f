"""`twiceproof claims list`."""

from __future__ import annotations

import pytest

from twiceproof.claims import lists as listing


@pytest.fixture(autouse=True)
def filled(ledger):
    ledger.fill()


def keys(answer):
    return [claim["key"].removeprefix("order:") for claim in answer["claims"]]


def test_what_is_not_done_is_listed_with_reviews_first(run_json):
    assert keys(run_json("claims", "list")) == ["timeout", "gone", "live", "closed", "bug"]


def test_the_json_shape_is_exact(run_json, claim_keys):
    answer = run_json("claims", "list")
    assert set(answer) == {"claims", "after", "before", "newer"}
    assert all(set(claim) == claim_keys for claim in answer["claims"])
    assert answer["after"] is None


def test_people_see_a_table_and_how_to_see_the_rest(run):
    text = run("claims", "list").stdout
    head, *rows = text.splitlines()
    assert head.split() == ["OPERATION", "KEY", "STATE", "ATTEMPT", "OWNER", "AGE", "LEASE", "LEFT", "RUN"]
    assert any("order:gone" in row and "held, lapsed" in row for row in rows)
    assert any("order:live" in row and "held, lapsed" not in row for row in rows)
    assert "claims list --state done" in rows[-1]


def test_a_lapsed_hold_is_marked_and_a_live_one_is_not(run_json):
    held = {claim["key"]: claim for claim in run_json("claims", "list", "--state", "held")["claims"]}
    assert (held["order:gone"]["lapsed"], held["order:gone"]["lease_left"]) == (True, 0.0)
    assert held["order:live"]["lapsed"] is False
    assert 0 < held["order:live"]["lease_left"] <= 60


@pytest.mark.parametrize(
    ("state", "found"),
    [("done", ["done"]), ("review", ["timeout"]), ("failed", ["closed", "bug"]), ("held", ["gone", "live"])],
)
def test_a_state_can_be_chosen(run_json, state, found):
    assert keys(run_json("claims", "list", "--state", state)) == found


def test_all_states_are_listed_if_asked_for(run_json):
    assert sorted(keys(run_json("claims", "list", "--state", "all"))) == sorted(
        ["done", "timeout", "bug", "closed", "live", "gone"]
    )


@pytest.mark.parametrize("limit", ["1", "2", "4"])
def test_pages_meet_every_claim_once(run_json, limit):
    found, after = [], []
    while True:
        answer = run_json("claims", "list", "--state", "all", "--limit", limit, *after)
        found += keys(answer)
        assert len(answer["claims"]) <= int(limit)
        if answer["after"] is None:
            break
        after = ["--after", answer["after"]]
    assert sorted(found) == sorted(["done", "timeout", "bug", "closed", "live", "gone"])


def test_a_page_says_how_to_go_on(run):
    assert "--state all --limit 2 --after" in run("claims", "list", "--state", "all", "--limit", "2").stdout


def test_a_cursor_of_another_list_is_refused(run):
    assert "--after" in run("claims", "list", "--after", "nonsense", code=2).stderr


def test_an_operation_is_not_mixed_with_one_whose_name_begins_alike(run_json, ledger):
    ledger.hold("x", operation="ship2")
    assert keys(run_json("claims", "list", "--operation", "ship2")) == ["x"]
    assert "x" not in keys(run_json("claims", "list", "--operation", "ship"))


def test_a_few_among_many_of_other_operations_are_found(run_json, ledger, monkeypatch):
    monkeypatch.setattr(listing, "SCAN", 200)
    for n in range(450):
        ledger.hold(n, operation="other")
        if n % 150 == 0:
            ledger.hold(n, operation="rare")
    first = run_json("claims", "list", "--operation", "rare", "--limit", "2")
    rest = run_json("claims", "list", "--operation", "rare", "--limit", "2", "--after", first["after"])
    assert (keys(first), keys(rest)) == (["300", "150"], ["0"])


def test_tenants_do_not_see_each_other(run_json, ledger):
    ledger.hold("theirs", tenant="acme")
    assert "theirs" not in keys(run_json("claims", "list", "--state", "all"))
    assert keys(run_json("claims", "list", "--tenant", "acme")) == ["theirs"]
    assert keys(run_json("--tenant", "acme", "claims", "list")) == ["theirs"]


def test_an_empty_ledger_says_so(run, ledger):
    assert "No claims" in run("--tenant", "nobody", "claims", "list").stdout
