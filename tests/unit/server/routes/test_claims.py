"""The claim service at its address: paths, bodies, and answers for tools that look at bodies only."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.unit.server.routes.client import Client

CLAIM = "/v1/claims/ship/order%3A1"


def test_a_claim_from_its_first_word_to_its_last(client):
    first = client("PUT", CLAIM, {"payload": {"n": 1}, "lease": "5m"}, 201)
    assert first["claimed"] is True
    busy = client("PUT", CLAIM, {"payload": {"n": 1}}, 409)
    assert (busy.headers["retry-after"], busy["state"]) == ("30", "held")
    assert busy.headers["content-type"] == "application/problem+json"
    client("POST", f"{CLAIM}/renew", {"token": first["token"], "lease": "10m"}, 200)
    client("POST", f"{CLAIM}/complete", {"token": first["token"], "result": {"parcel": "P-1"}}, 200)
    assert client("PUT", CLAIM, {"payload": {"n": 1}}, 200)["result"] == {"parcel": "P-1"}
    client("PUT", CLAIM, {"payload": {"n": 2}}, 422)
    assert client("GET", CLAIM, status=200)["state"] == "done"


@pytest.mark.parametrize("key", ["a/b", "käse/ναι 🧀", "100%", "a+b&c=d?#", "order:1/complete", ".", "a%2Fb"])
def test_a_key_is_decoded_once_and_stays_itself(client, key):
    path = f"/v1/claims/ship/{quote(key, safe='')}"
    token = client("PUT", path, status=201)["token"]
    assert client("GET", path, status=200)["key"] == key
    client("POST", f"{path}/complete", {"token": token}, 200)


@pytest.mark.parametrize("path", ["/v1/claims/ship/%FF", "/v1/claims/ship/", "/v1/claims/ship/a/b", "/v1/claims/ship"])
def test_an_address_that_is_none_is_not_found(client, path):
    assert client("PUT", path, {}, 404)["next"]


@pytest.mark.parametrize(
    "path", ["/v1/claims/a%20b/k", "/v1/claims/ship/%00", "/v1/claims/ship/%20", f"/v1/claims/ship/{'x' * 1_025}"]
)
def test_a_name_or_a_key_that_is_none_is_refused_with_a_next_move(client, path):
    assert client("PUT", path, {}, 400)["next"]


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"leese": 1}', b'{"lease": "soon"}', b'{"repeat": "x"}', b"\xff"])
def test_a_body_that_does_not_fit_is_refused_with_a_next_move(client, body):
    assert client("PUT", CLAIM, body, 400)["next"]
    client("GET", CLAIM, status=404)


def test_a_body_that_is_no_json_is_refused_before_it_is_read(client):
    client("PUT", CLAIM, b"lease=5m", 415, content_type="application/x-www-form-urlencoded")


def test_a_tool_that_cannot_branch_is_answered_200_and_told_in_the_body(client):
    body_of = [client("PUT", f"{CLAIM}?always200=true", {"payload": n}, 200) for n in (1, 1, 2)]
    assert [(one["claimed"], one["status"]) for one in body_of] == [(True, 201), (False, 409), (False, 422)]
    token = body_of[0]["token"]
    done = client("POST", f"{CLAIM}/complete?always200=true", {"token": token, "result": 7}, 200)
    assert (done["status"], done["state"]) == (200, "done")
    again = client("PUT", f"{CLAIM}?always200=true", {"payload": 1}, 200)
    assert (again["claimed"], again["result"]) == (False, 7)
    assert client("GET", "/v1/claims/ship/none?always200=true", status=200)["state"] == "unclaimed"


def test_a_mistake_is_not_hidden_from_a_tool_that_cannot_branch(client):
    client("PUT", f"{CLAIM}?always200=true", {"leese": 1}, 400)
    client("POST", f"{CLAIM}/complete?always200=true", {"token": "ct_no"}, 403)


def test_a_claim_that_lapsed_is_settled_over_http_and_the_next_one_hears_of_it(client, clock):
    client("PUT", CLAIM, {"lease": 30}, 201)
    clock.advance(31)
    run = client("PUT", CLAIM, {}, 409)["run"]
    client("POST", f"/v1/reviews/{run}", {"verdict": "happened", "result": {"id": 1}}, 400)
    settled = client("POST", f"/v1/reviews/{run}", {"verdict": "happened", "result": {"id": 1}, "by": "ann"}, 200)
    assert settled["state"] == "done"
    assert client("PUT", CLAIM, {}, 200)["result"] == {"id": 1}
    client("POST", f"/v1/reviews/{run}", {"verdict": "happened", "by": "ann"}, 409)


def test_what_did_not_happen_is_claimed_again(client, clock):
    client("PUT", CLAIM, {"lease": 30}, 201)
    clock.advance(31)
    run = client("PUT", CLAIM, {}, 409)["run"]
    client("POST", f"/v1/reviews/{run}", {"verdict": "did-not-happen", "by": "ann"}, 200)
    assert client("PUT", CLAIM, {}, 201)["attempt"] == 2


def test_a_claim_is_not_undone(client, clock):
    client("PUT", CLAIM, {"lease": 30}, 201)
    clock.advance(31)
    run = client("PUT", CLAIM, {}, 409)["run"]
    client("POST", f"/v1/reviews/{run}", {"verdict": "undo", "by": "ann"}, 409)


def test_a_claim_that_is_held_is_not_settled_by_anybody(client):
    run = client("PUT", CLAIM, {}, 201)["run"]
    assert (
        "holds this claim" in client("POST", f"/v1/reviews/{run}", {"verdict": "abandon", "by": "ann"}, 409)["detail"]
    )


def test_a_request_id_is_its_callers_own(app):
    """Another token's request is another one, whatever its id."""
    shop, depot = Client(app, by="n8n-shop"), Client(app, by="n8n-depot")
    path, asked = "/v1/claims/ship/order%3A17", {"request_id": "7d1f2c58-94ab-4b0e-9c1d-5a52ac2c5a11"}
    first = shop("PUT", path, asked, 201)
    assert depot("PUT", path, asked, 409)["state"] == "held"
    assert shop("PUT", path, asked, 201)["token"] == first["token"]


def test_a_request_id_that_is_no_random_uuid_is_answered_with_what_to_send(app):
    told = Client(app, by="n8n")("PUT", "/v1/claims/ship/order%3A17", {"request_id": "17-0"}, 400)
    assert "random UUID" in told["detail"]
