"""`Repeatability-Request-ID` and `Repeatability-First-Sent`."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from twiceproof.middleware import Route

GUID = "8e03978e-40d5-43dd-bc93-6894a57f9324"


@pytest.fixture
def pair(clock):
    """The two headers, first sent so many seconds ago."""

    def make(ago: float = 0.0, request_id: str = GUID):
        sent = formatdate(clock.now() - ago, usegmt=True)
        return [("repeatability-request-id", request_id), ("repeatability-first-sent", sent)]

    return make


def test_the_pair_is_a_key(client, shop, pair):
    first, second = (client.ask(key=None, headers=pair()) for _ in range(2))
    assert (second.replayed, second.body) == (True, first.body)
    assert first.header("repeatability-result") == second.header("repeatability-result") == "accepted"
    assert shop.count == 1


def test_an_id_is_the_same_however_it_is_written(client, pair):
    client.ask(key=None, headers=pair())
    assert client.ask(key=None, headers=pair(request_id=GUID.upper())).replayed


def test_an_id_and_a_key_of_the_same_text_are_two_requests(client, pair):
    client.ask(key=GUID)
    assert not client.ask(key=None, headers=pair()).replayed


@pytest.mark.parametrize("with_key", [False, True])
def test_what_was_first_sent_longer_ago_than_is_remembered_is_refused_and_not_run(door, shop, pair, with_key):
    client = door(routes=[Route("/pay", keep="5m")])
    headers = pair(301)[1:] if with_key else pair(301)
    heard = client.ask(key="k-1" if with_key else None, headers=headers)
    assert (heard.status, heard.problem()["type"]) == (412, "urn:twiceproof:first-sent-too-old")
    assert heard.header("repeatability-result") == "rejected"
    assert shop.count == 0


def test_what_was_first_sent_just_in_time_is_run(door, shop, pair):
    assert door(routes=[Route("/pay", keep="5m")]).ask(key=None, headers=pair(299)).status == 201


def test_what_is_remembered_for_ever_is_never_too_old(door, pair):
    assert door(routes=[Route("/pay", keep="forever")]).ask(key=None, headers=pair(10**8)).status == 201


def test_an_expired_key_is_refused_instead_of_run_again(door, shop, pair, clock):
    """The only scheme that does not run again after expiry."""
    client = door(routes=[Route("/pay", keep="5m")])
    headers = pair()
    client.ask(key=None, headers=headers)
    clock.advance(400)
    assert client.ask(key=None, headers=headers).status == 412
    assert shop.count == 1


MALFORMED = [
    [("repeatability-request-id", GUID)],
    [("repeatability-request-id", "7"), ("repeatability-first-sent", "Tue, 14 Nov 2023 22:13:20 GMT")],
    [("repeatability-request-id", GUID), ("repeatability-first-sent", "yesterday")],
    [("repeatability-request-id", GUID), ("repeatability-first-sent", "Tue, 14 Nov 2028 22:13:20 GMT")],
]


@pytest.mark.parametrize("headers", MALFORMED, ids=["no time", "no guid", "no date", "in the future"])
def test_a_pair_that_cannot_be_read_is_rejected(client, shop, headers):
    heard = client.ask(key=None, headers=headers)
    assert (heard.status, heard.header("repeatability-result")) == (400, "rejected")
    assert shop.count == 0


@pytest.mark.parametrize("time", ["yesterday", "Tue, 15 Nov 2022 12:45:26 +99999999999999999999"])
def test_a_key_with_a_time_that_cannot_be_read_is_refused(client, shop, time):
    assert client.ask(headers=[("repeatability-first-sent", time)]).status == 400
    assert shop.count == 0


def test_a_time_alone_is_no_key(client, shop, pair):
    client.ask(key=None, headers=pair()[1:])
    client.ask(key=None, headers=pair()[1:])
    assert shop.count == 2
