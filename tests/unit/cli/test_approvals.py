"""`twiceproof approvals`: list, show, approve, reject, decide, link."""

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
    assert "No pending approvals." in run("approvals", "list").stdout
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
    assert "To list more" in run("approvals", "list", "--limit", "1").stdout


def test_show_tells_what_is_shown_and_how_to_decide_about_just_that(run, asked):
    text = run("approvals", "show", asked.id).stdout
    assert '"total": 700' in text
    assert f"approvals approve {asked.id} --digest {asked.digest}" in text


def test_an_approval_lets_the_run_go_on(run, order, asked):
    text = run("approvals", "approve", asked.id, "--by", "ann", "--note", "fine").stdout
    assert "approved by ann" in text and "fine" in text
    assert order(1) == "charged"
    assert "approvals approve" not in run("approvals", "show", asked.id).stdout


def test_a_rejection_stops_it(run, order, asked):
    assert "rejected by ann" in run("approvals", "reject", asked.id, "--by", "ann").stdout
    with pytest.raises(Rejected):
        order(1)


def test_whose_word_it_is_defaults_to_the_login_name(run_json, asked):
    answer = run_json("approvals", "approve", asked.id)
    assert answer["first"] is True
    assert answer["approval"]["decision"]["by"] == getpass.getuser()


def test_whoever_decides_otherwise_later_is_told_what_stands(run, run_json, asked):
    run("approvals", "approve", asked.id, "--by", "ann")
    assert "already approved by ann" in run("approvals", "reject", asked.id, code=1).stdout
    answer = run_json("approvals", "reject", asked.id, code=1)
    assert (answer["first"], answer["approval"]["decision"]["by"]) == (False, "ann")


def test_whoever_decides_the_same_later_is_content(run_json, asked):
    run_json("approvals", "approve", asked.id, "--by", "ann")
    assert run_json("approvals", "approve", asked.id, "--by", "bob")["first"] is False


def test_a_decision_about_something_else_is_refused_and_about_this_is_not(run, asked):
    assert "look at it again" in run("approvals", "approve", asked.id, "--digest", "1:0", code=2).stderr
    run("approvals", "approve", asked.id, "--digest", asked.digest)


@pytest.mark.parametrize("words", [("show",), ("approve",), ("reject",)])
def test_an_id_that_is_none_is_a_negative_answer(run, ledger, words):
    assert "approvals list" in run("approvals", *words, "apr_nothing", code=1).stderr


def test_its_run_shows_until_when_it_waits_and_once_decided_that_it_goes_on(run, asked):
    text = run("runs", "show", "charge_order/order:1").stdout
    assert "approve:charge  waits, until 20" in text and "not before" not in text
    assert "continues    20" in text
    run("approvals", "approve", asked.id, "--by", "ann")
    assert "continues    when a worker takes it" in run("runs", "show", "charge_order/order:1").stdout


@pytest.fixture
def charge(ledger):
    app = ledger.app
    app.runtime.url = "https://hooks.example.com"

    @app.flow(key="order:{n}", name="charge", stable=("n",))
    def charge(n: int):
        return app.approve("money", show={"total": n}).by

    with pytest.raises(Waiting):
        charge(7)
    return charge


def test_an_approval_is_decided_in_one_word(run_json, charge):
    answer = run_json("approvals", "decide", "charge/order:7", "approve", "--by", "ann")
    assert answer["approval"]["decision"]["approved"] is True
    assert run_json("approvals", "decide", "charge/order:7", "reject", code=1)["first"] is False
    assert charge(7) == "ann"


def test_a_link_is_shown_once_and_leads_to_the_approval(run, run_json, charge, monkeypatch):
    told = run("approvals", "link", "charge/order:7", code=2).stderr
    assert "--url" in told and "TWICEPROOF_URL" in told
    monkeypatch.setenv("TWICEPROOF_URL", "https://hooks.example.com")
    answer = run_json("approvals", "link", "charge/order:7", "--to", "ann", "--expires", "2h")
    assert answer["url"].startswith("https://hooks.example.com/v1/approvals/link/") and answer["expires_in"] == 7200
    assert run("approvals", "link", "charge/order:7", "--url", "http://localhost").stdout.startswith(
        "http://localhost/v1"
    )


def test_who_asked_is_shown_where_it_is_known(run, ledger):
    app = ledger.app

    @app.flow(key="order:{n}", name="pay", stable=("n",))
    def pay(n: int):
        return app.approve("money", show={"total": n}, requester="bob").by

    with pytest.raises(Waiting):
        pay(8)
    assert ", by bob\n" in run("approvals", "show", "pay/order:8").stdout


def test_what_is_decided_gets_no_link(run, charge):
    run("approvals", "decide", "charge/order:7", "approve")
    assert "not pending" in run("approvals", "link", "charge/order:7", "--url", "http://localhost", code=2).stderr


def test_an_approval_is_found_by_its_run(run, run_json, waiting):
    assert run_json("approvals", "show", "wait/one")["approval"]["name"] == "charge"
    assert "approved" in run("approvals", "approve", "wait/one", "--by", "ann").stdout
    assert run_json("approvals", "show", "wait/one")["approval"]["state"] == "decided"


def test_a_run_that_asks_for_several_things_or_none_is_not_guessed_at(run, waiting):
    told = run("approvals", "approve", "wait/two", code=2).stderr
    assert told.count("apr_") == 2 and "(a)" in told and "(b)" in told
    assert "approvals list" in run("approvals", "approve", "wait/time", code=1).stderr


def test_the_list_of_approvals_fits_into_a_terminal(run, waiting):
    assert max(map(len, run("approvals", "list").stdout.splitlines()[:-1])) <= 80
