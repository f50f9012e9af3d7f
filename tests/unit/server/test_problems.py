"""One thing has one word, wherever it is told."""

import re

import pytest

from tests.unit.server.services.claim_client import ClaimClient, body_of
from twiceproof.errors import Misuse, NeedsReview, PriorFailure
from twiceproof.server.problems import MEANINGS, of_error


@pytest.mark.parametrize(
    ("kind", "word"), [(kind, word) for kind, _, word in MEANINGS if kind is not Misuse], ids=lambda part: str(part)
)
def test_a_problem_has_the_name_of_its_error(kind, word):
    assert word == re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()


@pytest.mark.parametrize(
    ("ended", "error"), [({"unknown": True}, NeedsReview("?")), ({"retryable": False}, PriorFailure("no"))]
)
def test_the_claim_service_and_the_server_say_the_same(ended, error):
    server = ClaimClient()
    server.fail(server.token(), error="it broke", **ended)
    told, problem = body_of(server.take(), 409), body_of(of_error(error), 409)
    assert told["type"] == problem["type"]
