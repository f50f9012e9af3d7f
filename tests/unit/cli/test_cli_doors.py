"""`callbacks`, `approvals decide`, `approvals link` and `connector` on the command line."""

from __future__ import annotations

import json

import pytest

from twiceproof import Waiting


@pytest.fixture
def app(ledger):
    ledger.app.parts.url = "https://hooks.example.com"
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


@pytest.fixture
def charge(app):
    @app.flow(key="order:{n}", name="charge", stable=("n",))
    def charge(n: int):
        return app.approve("money", show={"total": n}).by

    with pytest.raises(Waiting):
        charge(7)
    return charge


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
    assert "No callback" in run("callbacks", "list").stdout
    assert run_json("callbacks", "list", "--all")["callbacks"][0]["state"] == "arrived"
    assert run_json("callbacks", "list", "--all", "--flow", "other")["callbacks"] == []


def test_what_the_run_does_not_wait_for_is_kept_and_told_so(run, run_json, payment):
    """A name that was mistyped must not look as if the run went on."""
    told = run("callbacks", "deliver", "take_payment/order:1", "payed").stdout
    assert "goes on" not in told and "does not wait for it yet" in told and "runs show take_payment/order:1" in told
    assert run_json("callbacks", "deliver", "take_payment/order:1", "piad")["awaited"] is False
    assert run_json("callbacks", "deliver", "take_payment/order:1", "paid")["awaited"] is True


def test_a_payload_that_is_no_json_is_told_by_its_own_name(run, payment):
    assert "--payload" in run("callbacks", "deliver", "take_payment/order:1", "paid", "--payload", "{", code=2).stderr


def test_a_callback_for_no_run_is_a_negative_answer(run, ledger):
    assert "runs list" in run("callbacks", "deliver", "take_payment/none", "paid", code=1).stderr


def test_an_approval_is_decided_in_one_word(run_json, charge):
    answer = run_json("approvals", "decide", "charge/order:7", "approve", "--by", "ann")
    assert answer["approval"]["decision"]["approved"] is True
    assert run_json("approvals", "decide", "charge/order:7", "reject", code=1)["first"] is False
    assert charge(7) == "ann"


def test_a_link_is_shown_once_and_leads_to_the_approval(run, run_json, charge, monkeypatch):
    told = run("approvals", "link", "charge/order:7", code=2).stderr
    assert "--url" in told and "TWICEPROOF_URL" in told
    monkeypatch.setenv("TWICEPROOF_URL", "https://hooks.example.com")
    answer = run_json("approvals", "link", "charge/order:7", "--to", "ann", "--valid", "2h")
    assert answer["url"].startswith("https://hooks.example.com/v1/approvals/link/") and answer["valid"] == 7200
    assert run("approvals", "link", "charge/order:7", "--url", "http://localhost").stdout.startswith(
        "http://localhost/v1"
    )


def test_who_asked_is_shown_where_it_is_known(run, app):
    @app.flow(key="order:{n}", name="pay", stable=("n",))
    def pay(n: int):
        return app.approve("money", show={"total": n}, requester="bob").by

    with pytest.raises(Waiting):
        pay(8)
    assert ", by bob\n" in run("approvals", "show", "pay/order:8").stdout


def test_what_is_decided_gets_no_link(run, charge):
    run("approvals", "decide", "charge/order:7", "approve")
    assert "any more" in run("approvals", "link", "charge/order:7", "--url", "http://localhost", code=2).stderr


@pytest.mark.parametrize("tool", ["power-automate", "n8n"])
def test_the_help_of_a_connector_shows_how_to_write_that_one(run, tool):
    shown = run("connector", tool, "-h").stdout
    assert f"twiceproof connector {tool} --url https://hooks.example.com -o twiceproof." in shown


@pytest.mark.parametrize("tool", ["power-automate", "n8n"])
@pytest.mark.parametrize(
    "url", ["https://me:canary@h.io", "https://h.io?code=canary", "https://h.io\nx", "http://[::1", "http://"]
)
def test_no_secret_gets_into_a_connector_and_nothing_that_is_no_address(run, tool, url):
    refused = run("connector", tool, "--url", url, code=2)
    assert "https://hooks.example.com" in refused.stderr
    assert "canary" not in refused.stdout + refused.stderr


@pytest.mark.parametrize("tool", ["power-automate", "n8n"])
@pytest.mark.parametrize("url", ["https://h.io:8443/below/", "http://[::1]:8000", "http://127.0.0.1"])
def test_a_server_may_be_anywhere(run, tool, url):
    assert url.split("//")[1].split("/")[0] in run("connector", tool, "--url", url).stdout


@pytest.mark.parametrize("tool", ["power-automate", "n8n"])
def test_a_connector_needs_an_address(run, tool, tmp_path, monkeypatch):
    monkeypatch.delenv("TWICEPROOF_URL", raising=False)
    assert "TWICEPROOF_URL" in run("connector", tool, code=2).stderr
    run("connector", tool, "--host", "a", "--url", "http://b", code=2)
    run("connector", tool, "--url", "ftp://b", code=2)
    json.loads(run("connector", tool, "--host", "hooks.example.com").stdout)
    file = tmp_path / "file.json"
    assert "Import" in run("connector", tool, "--url", "https://hooks.example.com", "-o", str(file)).stdout
    assert "hooks.example.com" in file.read_text()
    assert "another file" in run("connector", tool, "--host", "h", "-o", str(tmp_path / "no" / "file"), code=2).stderr
