"""Tools that cannot branch on a status look into the body."""

from __future__ import annotations

import pytest

from tests.unit.server.services.claim_client import ClaimClient, body_of
from twiceproof.inbound.reply import JSON, problem
from twiceproof.server.services.claim_messages import always_200


def test_every_outcome_says_claimed_or_not_and_its_real_status():
    server = ClaimClient()
    first = server.take(payload=1)
    token = body_of(first, 201)["token"]
    answers = [first, server.take(payload=1), server.take(payload=2), server.complete(token), server.take(payload=1)]
    turned = [always_200(reply) for reply in answers]
    assert [body_of(reply, 200)["claimed"] for reply in turned] == [True, False, False, False, False]
    assert [body_of(reply, 200)["status"] for reply in turned] == [201, 409, 422, 200, 200]
    assert turned[1].header("retry-after") == "30"
    assert all(reply.header("content-type") == JSON for reply in turned)


@pytest.mark.parametrize("status", [400, 401, 403, 415, 429, 500, 503])
def test_what_is_wrong_with_the_request_is_never_taken_for_a_duplicate(status):
    reply = problem(status, "wrong", "It is.", next_move="Correct it.")
    assert always_200(reply) is reply
