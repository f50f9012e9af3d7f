"""`twiceproof approvals`: list, show, approve, reject."""

from __future__ import annotations

import getpass

import pytest

from twiceproof import Rejected, Waiting

SHAPE = {"id", "name", "flow", "key", "run", "state", "shown", "digest", "asked_at", "until", "decision", "requester"}


@pytest.fixture
def order(ledger):
    """A flow that asks before it charges."""
    app = ledger.app

    @app.flow(key="order:{n}", name="charge_order")
    def order(n: int, total: int = 700) -> str:
        app.approve("charge", show={"total": total}, timeout="2d")
        return "charged"

    return order


@pytest.fixture
def asked(order, ledger):
    """One open approval."""
    with pytest.raises(Waiting):
        order(1)
    (found,) = ledger.app.approvals()
    return found


def test_where_nothing_waits_the_list_says_so(run, run_json, ledger):
    assert "Nothing waits for approval." in run("approvals", "list").stdout
    assert run_json("approvals", "list") == {"approvals": [], "more": False}


def test_the_list_shows_what_waits_and_the_next_move(run, asked):
    text = run("approvals", "list").stdout
    assert "charge_order" in text and "order:1" in text
    assert "approvals show charge_order/order:1" in text


def test_the_json_shape_is_exact(run_json, asked):
    (found,) = run_json("approvals", "list")["approvals"]
    assert set(found) == SHAPE
    assert (found["flow"], found["key"], found["name"], found["state"]) == ("charge_order", "order:1", "charge", "open")
    assert (found["shown"], found["decision"]) == ({"total": 700}, None)
    alone = run_json("approvals", "show", asked.id)
    assert alone["approval"] == found
    assert [move.split()[4] for move in alone["next"]] == ["approve", "reject"]


def test_only_those_of_one_flow_or_tenant_and_so_many_are_listed(run, run_json, order, asked):
    with pytest.raises(Waiting):
        order(2)
    assert len(run_json("approvals", "list")["approvals"]) == 2
    assert len(run_json("approvals", "list", "--flow", "charge_order")["approvals"]) == 2
    assert run_json("approvals", "list", "--flow", "other")["approvals"] == []
    assert run_json("approvals", "list", "--tenant", "acme")["approvals"] == []
    few = run_json("approvals", "list", "--limit", "1")
    assert (len(few["approvals"]), few["more"]) == (1, True)
    assert "There is more" in run("approvals", "list", "--limit", "1").stdout


def test_show_tells_what_is_shown_and_how_to_decide_about_just_that(run, asked):
    text = run("approvals", "show", asked.id).stdout
    assert '"total": 700' in text
    assert f"approvals approve {asked.id} --shown {asked.digest}" in text


def test_an_approval_lets_the_run_go_on(run, order, asked):
    text = run("approvals", "approve", asked.id, "--by", "ann", "--note", "fine").stdout
    assert "approved, by ann" in text and "fine" in text
    assert order(1) == "charged"
    assert "approvals approve" not in run("approvals", "show", asked.id).stdout


def test_a_rejection_stops_it(run, order, asked):
    assert "rejected, by ann" in run("approvals", "reject", asked.id, "--by", "ann").stdout
    with pytest.raises(Rejected):
        order(1)


def test_whose_word_it_is_defaults_to_the_login_name(run_json, asked):
    answer = run_json("approvals", "approve", asked.id)
    assert answer["first"] is True
    assert answer["approval"]["decision"]["by"] == getpass.getuser()


def test_whoever_decides_otherwise_later_is_told_what_stands(run, run_json, asked):
    run("approvals", "approve", asked.id, "--by", "ann")
    assert "too late, approved, by ann" in run("approvals", "reject", asked.id, code=1).stdout
    answer = run_json("approvals", "reject", asked.id, code=1)
    assert (answer["first"], answer["approval"]["decision"]["by"]) == (False, "ann")


def test_whoever_decides_the_same_later_is_content(run_json, asked):
    run_json("approvals", "approve", asked.id, "--by", "ann")
    assert run_json("approvals", "approve", asked.id, "--by", "bob")["first"] is False


def test_a_decision_about_something_else_is_refused_and_about_this_is_not(run, asked):
    assert "look at it again" in run("approvals", "approve", asked.id, "--shown", "1:0", code=2).stderr
    run("approvals", "approve", asked.id, "--shown", asked.digest)


@pytest.mark.parametrize("words", [("show",), ("approve",), ("reject",)])
def test_an_id_that_is_none_is_a_negative_answer(run, ledger, words):
    assert "approvals list" in run("approvals", *words, "apr_nothing", code=1).stderr


def test_its_run_shows_until_when_it_waits_and_once_decided_that_it_goes_on(run, asked):
    text = run("runs", "show", "charge_order/order:1").stdout
    assert "approve:charge  waits, until 20" in text and "not before" not in text
    assert "goes on      20" in text
    run("approvals", "approve", asked.id, "--by", "ann")
    assert "goes on      as soon as a worker takes it up" in run("runs", "show", "charge_order/order:1").stdout
