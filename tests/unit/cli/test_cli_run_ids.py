"""Commands take a run's short id, an id of an older release, and FLOW/KEY; what they show is the short one."""

from __future__ import annotations

import pytest

from twiceproof import NeedsReview, NotDone, Waiting
from twiceproof.claims.claim import RUN_POINTER, run_id, short_id
from twiceproof.operations import block
from twiceproof.records import Remove

SPACE = "default/buy/mail:ann@example.com"
NAMES = [short_id(SPACE), run_id(SPACE), "buy/mail:ann@example.com"]


@pytest.fixture
def buy(ledger):
    app = ledger.app

    @app.step(repeat="never")
    def charge(who):
        raise ledger.broken

    @app.flow(key="mail:{who}", name="buy")
    def buy(who):
        return charge(who)

    @app.flow(key="mail:{who}", name="ask")
    def ask(who):
        return app.approve("pay", show={"who": who}).by

    ledger.broken, ledger.ask = NotDone("closed", final=True), ask
    return buy


def failed(buy):
    with pytest.raises(NotDone):
        buy("ann@example.com")


@pytest.mark.parametrize("name", NAMES)
def test_runs_show_retry_and_cancel_take_every_name(run_json, buy, name):
    failed(buy)
    shown = run_json("runs", "show", name)["run"]
    assert (shown["run"], shown["key"]) == (short_id(SPACE), "mail:ann@example.com")
    assert run_json("runs", "retry", name)["state"] == "queued"
    assert run_json("runs", "cancel", name)["cancelled"]


@pytest.mark.parametrize("name", NAMES)
def test_runs_fork_takes_every_name(run_json, buy, name):
    failed(buy)
    forked = run_json("runs", "fork", name, "--key", "mail:bob", "--yes")["forked"]
    assert forked["run"] == short_id("default/buy/mail:bob")
    assert run_json("runs", "show", forked["run"])["forked_from"] == short_id(SPACE)


@pytest.mark.parametrize("name", NAMES)
def test_review_show_and_settle_take_every_name(ledger, run, run_json, buy, name):
    ledger.broken = TimeoutError("no answer")
    with pytest.raises(NeedsReview) as raised:
        buy("ann@example.com")
    assert raised.value.run == short_id(SPACE)
    assert f"review show {short_id(SPACE)}" in str(raised.value)
    assert run_json("review", "show", name)["run"]["run"] == short_id(SPACE)
    assert run_json("review", "settle", name, "--abandon")["settled"]["run"] == short_id(SPACE)


@pytest.mark.parametrize("spelled", [short_id, run_id, lambda space: space.partition("/")[2]])
def test_an_approval_is_decided_by_the_name_of_its_run(ledger, run_json, buy, spelled):
    with pytest.raises(Waiting) as raised:
        ledger.ask("ann")
    space = "default/ask/mail:ann"
    assert raised.value.run == short_id(space)
    assert run_json("approvals", "show", spelled(space))["approval"]["run"] == short_id(space)
    assert run_json("approvals", "approve", spelled(space), "--by", "bob")


def test_a_run_of_an_older_release_is_found_by_the_id_in_the_list(ledger, run_json, buy):
    failed(buy)
    for record in ledger.app.store.scan(RUN_POINTER).block().records:
        ledger.app.store.write(Remove(record.at, version=record.version)).block()
    (listed,) = run_json("runs", "list")["runs"]
    assert run_json("runs", "show", listed["run"])["run"]["key"] == "mail:ann@example.com"


def test_an_id_names_its_tenant_too(ledger, run_json, buy):
    block(ledger.app.of("acme").flows["buy"].start(("ann",), {}))
    assert run_json("runs", "show", short_id("acme/buy/mail:ann"))["run"]["tenant"] == "acme"


def test_an_unknown_id_is_told_with_the_next_move(run, buy):
    missing = run("runs", "show", short_id("default/buy/none"), code=1)
    assert "There is no such run" in missing.stderr and "runs list" in missing.stderr
