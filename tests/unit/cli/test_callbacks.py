"""`twiceproof callbacks`: list and deliver."""

from __future__ import annotations

import pytest

from twiceproof import Waiting


@pytest.fixture
def app(ledger):
    ledger.app.runtime.url = "https://hooks.example.com"
    return ledger.app


@pytest.fixture
def payment(app):
    @app.flow(key="order:{n}", name="take_payment", stable=("n",))
    def take_payment(n: int):
        app.callback_url("paid")
        return app.wait_for("paid")

    with pytest.raises(Waiting):
        take_payment(1)
    return take_payment


def test_what_is_waited_for_is_listed_without_its_token(run, run_json, payment):
    text = run("callbacks", "list").stdout
    assert "take_payment" in text and "paid" in text and "callbacks deliver take_payment/order:1 paid" in text
    (one,) = run_json("callbacks", "list")["callbacks"]
    assert (one["name"], one["state"]) == ("paid", "waited for") and "token" not in one


def test_a_callback_delivered_by_hand_ends_the_wait_once(run, run_json, payment):
    first = run_json("callbacks", "deliver", "take_payment/order:1", "paid", "--payload", '{"amount": 70}')
    assert first["first"] is True
    second = run_json("callbacks", "deliver", "take_payment/order:1", "paid", "--payload", "1", code=1)
    assert (second["first"], second["answer"]) == (False, {"amount": 70})
    assert payment(1) == {"amount": 70}
    assert "No pending callbacks" in run("callbacks", "list").stdout
    assert run_json("callbacks", "list", "--all")["callbacks"][0]["state"] == "arrived"
    assert run_json("callbacks", "list", "--all", "--flow", "other")["callbacks"] == []


def test_what_the_run_does_not_wait_for_is_kept_and_told_so(run, run_json, payment):
    """A name that was mistyped must not look as if the run went on."""
    told = run("callbacks", "deliver", "take_payment/order:1", "payed").stdout
    assert (
        "the run continues" not in told
        and "does not wait for it yet" in told
        and "runs show take_payment/order:1" in told
    )
    assert run_json("callbacks", "deliver", "take_payment/order:1", "piad")["awaited"] is False
    assert run_json("callbacks", "deliver", "take_payment/order:1", "paid")["awaited"] is True


def test_a_payload_that_is_no_json_is_told_by_its_own_name(run, payment):
    assert "--payload" in run("callbacks", "deliver", "take_payment/order:1", "paid", "--payload", "{", code=2).stderr


def test_a_callback_for_no_run_is_a_negative_answer(run, ledger):
    assert "runs list" in run("callbacks", "deliver", "take_payment/none", "paid", code=1).stderr
