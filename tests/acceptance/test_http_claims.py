"""The claim service behind a real server process: storms, kills, lost answers, lost tokens, tenants."""

from __future__ import annotations

import http.client
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.http_shop import HttpShop

CLAIM = "/v1/claims/ship/shop%3Aorder%3A17"
RUN_1, RUN_2 = "7d1f2c58-94ab-4b0e-9c1d-5a52ac2c5a11", "e3b0c442-98fc-4c14-9afb-f4c8996fb924"


@pytest.fixture
def shop(tmp_path):
    made = HttpShop(tmp_path)
    yield made
    made.kill()


def test_of_fifty_at_once_one_claims(shop):
    shop.start()
    with ThreadPoolExecutor(50) as crowd:
        heard = list(crowd.map(lambda _: shop("PUT", CLAIM, {"payload": {"order": 17}}), range(50)))
    assert Counter(one.status for one in heard) == {201: 1, 409: 49}
    assert all(one.headers["retry-after"] for one in heard if one.status == 409)
    token = next(one["token"] for one in heard if one.status == 201)
    assert shop("POST", f"{CLAIM}/complete", {"token": token, "result": "P-1"}).status == 200
    with ThreadPoolExecutor(50) as crowd:
        again = list(crowd.map(lambda _: shop("PUT", CLAIM, {"payload": {"order": 17}}), range(50)))
    assert {(one.status, one["result"]) for one in again} == {(200, "P-1")}


def lose_the_answer(shop, body):
    """The claim is on the disk; the server is gone before it has said so."""
    shop.start(SHOP_DIES="1")
    with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
        shop("PUT", CLAIM, body)
    assert shop.ended() == -signal.SIGKILL


def test_a_server_killed_after_the_claim_knows_its_caller_again(shop):
    lose_the_answer(shop, {"request_id": RUN_1})
    shop.start()
    assert shop("PUT", CLAIM, {"request_id": RUN_2}).status == 409
    again = shop("PUT", CLAIM, {"request_id": RUN_1})
    assert (again.status, again["attempt"]) == (201, 1)
    assert shop("POST", f"{CLAIM}/complete", {"token": again["token"], "result": 1}).status == 200
    assert shop("PUT", CLAIM, {"request_id": RUN_2})["result"] == 1


def test_a_server_killed_after_the_claim_gives_it_to_nobody_it_does_not_know(shop):
    lose_the_answer(shop, {})
    shop.start()
    assert (shop("PUT", CLAIM, {}).status, shop("PUT", CLAIM, {})["state"]) == (409, "held")
    shop.kill()
    shop.start(SHOP_SHIFT="1000")
    parked = shop("PUT", CLAIM, {})
    assert (parked.status, parked["state"]) == (409, "review")
    assert shop("PUT", CLAIM, {"repeat": "safe"})["attempt"] == 2


def test_a_token_outlives_the_server_that_gave_it(shop):
    shop.start()
    token = shop("PUT", CLAIM, {})["token"]
    shop.kill()
    shop.start()
    assert shop("POST", f"{CLAIM}/renew", {"token": token}).status == 200
    assert shop("POST", f"{CLAIM}/complete", {"token": token, "result": 1}).status == 200
    shop.kill()
    shop.start()
    assert shop("POST", f"{CLAIM}/complete", {"token": token, "result": 1}).status == 200


def test_a_token_that_lost_its_claim_is_told_so_and_its_finding_is_kept(shop):
    shop.start()
    old = shop("PUT", CLAIM, {"lease": "30s"})["token"]
    shop.kill()
    shop.start(SHOP_SHIFT="60")
    new = shop("PUT", CLAIM, {"repeat": "safe"})["token"]
    assert shop("POST", f"{CLAIM}/complete", {"token": old, "result": "late"}).status == 409
    assert shop("POST", f"{CLAIM}/complete", {"token": new, "result": "right"}).status == 200
    seen = shop("GET", CLAIM)
    assert (seen["result"], [piece["result"] for piece in seen["evidence"]]) == ("right", ["late"])


def test_tenants_do_not_meet_and_tokens_are_for_what_they_say(shop):
    shop.start()
    ann, bob = (shop.token(name, "ingest", "read", tenant=name) for name in ("ann", "bob"))
    reader = shop.token("reader", "read", tenant="ann")
    mine, theirs = shop("PUT", CLAIM, {}, token=ann), shop("PUT", CLAIM, {}, token=bob)
    assert (mine.status, theirs.status) == (201, 201)
    assert shop("POST", f"{CLAIM}/complete", {"token": mine["token"]}, token=bob).status == 403
    assert shop("PUT", CLAIM, {}, token=reader).status == 403
    assert shop("GET", CLAIM, token=reader).status == 200
    assert shop("PUT", CLAIM, {}).status == 401
    assert shop("POST", f"/v1/reviews/{mine['run']}", {"verdict": "abandon"}, token=bob).status in (403, 404)


@pytest.mark.parametrize("body", [b"", b"{}"])
def test_nothing_but_the_address_is_needed(shop, body):
    shop.start()
    assert shop("PUT", CLAIM, body).status == 201
