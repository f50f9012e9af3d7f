"""Callbacks at their address: the first one counts, the second hears what it body_of, and looking does nothing."""

from __future__ import annotations

import pytest

from twiceproof import Waiting


@pytest.fixture
def path(app):
    """The address that a run handed out."""
    sent = []

    @app.step(repeat="safe")
    def ask(url):
        sent.append(url)

    @app.flow(key="order:{n}", name="pay")
    def pay(n: int):
        ask(app.callback_url("paid"))
        return app.wait_for("paid", timeout="7d")

    app.pay = pay
    with pytest.raises(Waiting):
        pay(1)
    return sent[0].removeprefix("https://hooks.example.com")


def test_the_first_counts_and_the_second_hears_what_it_said(app, client, path):
    first = client("POST", path, {"amount": 1.5}, 200)
    assert (first["first"], first["state"]) == (True, "arrived")
    second = client("POST", path, {"amount": 9}, 200)
    assert (second["first"], second["answer"]) == (False, {"amount": 1.5})
    assert app.pay(1) == {"amount": 1.5}


def test_looking_shows_nothing_and_changes_nothing(app, client, path):
    known = [client("GET", path, status=405) for _ in range(100)]
    unknown = client("GET", "/v1/callbacks/nonsense", status=405)
    assert {response.body for response in known} == {unknown.body}
    client("HEAD", path, status=405)
    assert client("POST", path, 1)["first"] is True


def test_a_callback_that_leads_nowhere_is_told_so(client):
    assert client("POST", "/v1/callbacks/nonsense", {}, 404)["next"]


def test_an_empty_body_is_null(app, client, path):
    assert client("POST", path)["answer"] is None
    assert app.pay(1) is None


def test_what_comes_too_late_is_told_so_and_need_not_come_again(app, client, path, clock):
    clock.advance(8 * 86_400)
    with pytest.raises(Exception, match="in time"):
        app.pay(1)
    assert client("POST", path, {}, 200)["state"] == "timeout"


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"\xff", 400), (b'"' + b"x" * 300_000 + b'"', 413)])
def test_a_payload_that_cannot_be_kept_is_refused_and_the_wait_goes_on(client, path, body, status):
    client("POST", path, body, status)
    client("POST", path, b"a=1", 415, content_type="application/x-www-form-urlencoded")
    assert client("POST", path, 1)["first"] is True
