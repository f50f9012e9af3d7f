"""Signatures as the senders' own documentation gives them, and what lies around them."""

from __future__ import annotations

import hmac
from base64 import b64encode
from hashlib import sha256
from urllib.parse import urlencode

import msgspec
import pytest
from msgspec import structs

from twiceproof import Misuse
from twiceproof.inbound.source import Envelope, Handshake, Poison
from twiceproof.inbound.sources import find_source
from twiceproof.prove.source_contract.case import NOW, OTHER, SECRET

JSON = {"content-type": "application/json"}


def hexed(secret: str, message: bytes) -> str:
    return hmac.new(secret.encode(), message, sha256).hexdigest()


# -- Stripe -----------------------------------------------------------------------------------------


def stripe(header: str, body: bytes = b'{"id":"evt_1","pending_webhooks":2}') -> Envelope:
    return Envelope("stripe", body, {**JSON, "stripe-signature": header})


def test_stripe_may_sign_with_two_secrets_at_once():
    body = stripe("").body
    old, new = (hexed(secret, f"{NOW:.0f}.".encode() + body) for secret in ("old", "new"))
    sent = stripe(f"t={NOW:.0f},v1={old},v1={new},v0=abc")
    source = find_source("stripe")
    assert source.verify(sent, ["new"], NOW) == source.verify(sent, ["old"], NOW) == ""
    assert source.verify(sent, ["other"], NOW)


def test_stripes_test_scheme_is_no_way_in():
    good = hexed(SECRET, f"{NOW:.0f}.".encode() + stripe("").body)
    source = find_source("stripe")
    assert source.verify(stripe(f"t={NOW:.0f},v1={good}"), [SECRET], NOW) == ""
    assert source.verify(stripe(f"t={NOW:.0f},v0={good}"), [SECRET], NOW)


def test_stripe_has_one_time():
    """Of two, one might be signed and the other looked at."""
    good = hexed(SECRET, f"{NOW:.0f}.".encode() + stripe("").body)
    assert find_source("stripe").verify(stripe(f"t={NOW:.0f},t={NOW + 9:.0f},v1={good}"), [SECRET], NOW)


def test_stripe_counts_down_between_deliveries_of_one_event():
    assert find_source("stripe").varying == ("pending_webhooks",)


# -- GitHub -----------------------------------------------------------------------------------------


def test_github_signs_as_its_documentation_says():
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    sent = Envelope("github", b"Hello, World!", {"x-hub-signature-256": signature})
    assert find_source("github").verify(sent, ["It's a Secret to Everybody"], NOW) == ""
    assert find_source("github").verify(sent, ["It's a Secret to Nobody"], NOW)


def test_a_signature_of_githubs_says_how_it_was_made():
    body = b'{"a":1}'
    for prefix, believed in (("sha256=", True), ("", False), ("sha1=", False)):
        sent = Envelope("github", body, {"x-hub-signature-256": prefix + hexed(SECRET, body)})
        assert (find_source("github").verify(sent, [SECRET], NOW) == "") is believed


def test_github_names_the_event_and_the_kind_in_headers():
    sent = find_source("github").sample(SECRET, NOW)
    (event,) = find_source("github").read(sent)
    assert (event.id, event.type) == (sent.header("x-github-delivery"), "ping")


def in_form(body, sent):
    return structs.replace(
        sent, body=body, headers={**sent.headers, "content-type": "application/x-www-form-urlencoded"}
    )


def test_github_sends_the_same_event_as_a_form_which_is_its_default():
    payload = {"order": "7 & 8 = ü+", "nested": {"a": [1]}}
    sent = find_source("github").sample(SECRET, NOW, payload)
    form = in_form(urlencode({"payload": sent.body}).encode(), sent)
    assert find_source("github").read(form) == find_source("github").read(sent)
    signed = {**form.headers, "x-hub-signature-256": "sha256=" + hexed(SECRET, form.body)}
    assert find_source("github").verify(structs.replace(form, headers=signed), [SECRET], NOW) == ""
    assert find_source("github").verify(form, [SECRET], NOW), "signed is what came, not what is in it"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"payload",
        b"payload=",
        b"other=%7B%7D",
        b"payload=%7B%7D&more=1",
        b"payload=%7B%7D&payload=%7B%7D",
        b"payload=%FF",
        b"payload=%5B%5D",
        b"payload=%7B%22a%22%3A1%2C%22a%22%3A2%7D",
        b"a=1&b=2&c=3",
        b"\xff",
        b"{}",
    ],
)
def test_a_form_of_githubs_that_holds_no_one_event_is_kept_aside(body):
    sent = find_source("github").sample(SECRET, NOW)
    assert isinstance(find_source("github").read(in_form(body, sent)), Poison)


# -- Shopify ----------------------------------------------------------------------------------------


def test_shopify_is_claimed_by_the_id_that_was_chosen():
    sent = find_source("shopify").sample(SECRET, NOW)
    by_webhook = find_source("shopify").read(sent)[0]
    by_event = find_source("shopify", by="event-id").read(sent)[0]
    assert by_webhook.id == by_event.delivery == sent.header("x-shopify-webhook-id")
    assert by_event.id == sent.header("x-shopify-event-id")


def test_shopify_may_leave_out_the_x():
    source = find_source("shopify")
    sent = source.sample(SECRET, NOW)
    bare = structs.replace(sent, headers={name.removeprefix("x-"): value for name, value in sent.headers.items()})
    assert "shopify-hmac-sha256" in bare.headers
    assert source.verify(bare, [SECRET], NOW) == ""
    assert source.verify(bare, [OTHER], NOW)
    assert source.read(bare) == source.read(sent)


def test_shopifys_newer_events_are_known_by_event_and_subscription():
    """Their subscriptions have a handle; both kinds of headers may come side by side."""
    source, body = find_source("shopify"), b'{"id":1}'
    signature = b64encode(hmac.new(SECRET.encode(), body, sha256).digest()).decode()

    def event(handle: str, **more: str) -> Envelope:
        headers = {"shopify-hmac-sha256": signature, "shopify-topic": "orders/create", "shopify-event-id": "e-1"}
        return Envelope("shopify", body, {**JSON, **headers, "shopify-handle": handle, **more})

    one, two = event("stock"), event("mail", **{"x-shopify-hmac-sha256": signature})
    assert source.verify(one, [SECRET], NOW) == source.verify(two, [SECRET], NOW) == ""
    assert [source.read(sent)[0].id for sent in (one, two, event(""))] == ["e-1:stock", "e-1:mail", "e-1"]
    by_event = find_source("shopify", by="event-id")
    assert [by_event.read(sent)[0].id for sent in (one, two)] == ["e-1", "e-1"]


def test_shopify_has_no_other_id():
    with pytest.raises(Misuse, match="webhook-id, event-id"):
        find_source("shopify", by="order-id")


# -- Slack ------------------------------------------------------------------------------------------

SLACK = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&"
    b"channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&"
    b"response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&"
    b"trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)


def test_slack_signs_as_its_documentation_says():
    signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    headers = {"x-slack-request-timestamp": "1531420618", "x-slack-signature": signature}
    sent = Envelope("slack", SLACK, headers)
    assert find_source("slack").verify(sent, ["8f742231b10e8888abcd99yyyzzz85a5"], 1531420618.0) == ""
    assert find_source("slack").verify(sent, ["8f742231b10e8888abcd99yyyzzz85a6"], 1531420618.0)


def test_slacks_challenge_is_answered_once_it_is_believed():
    source = find_source("slack")
    sent = source.seal(b'{"token":"x","challenge":"3eZb","type":"url_verification"}', SECRET, NOW)
    assert source.verify(sent, [SECRET], NOW) == ""
    reading = source.read(sent)
    assert isinstance(reading, Handshake)
    assert (reading.reply.status, reading.reply.body) == (200, b'{"challenge":"3eZb"}')
    assert source.verify(sent, [OTHER], NOW)


def test_slack_is_told_not_to_come_again_unless_it_should():
    source = find_source("slack")
    assert source.answer("new").header("x-slack-no-retry") == "1"
    assert source.answer("duplicate").header("x-slack-no-retry") == "1"
    assert source.answer("busy").header("x-slack-no-retry") == ""


def test_slacks_retry_number_is_kept_as_the_attempt():
    sent = find_source("slack").sample(SECRET, NOW)
    again = structs.replace(sent, headers={**sent.headers, "x-slack-retry-num": "2"})
    assert find_source("slack").read(again)[0].attempt == "2"


def test_slacks_one_event_without_an_id_is_named_by_its_minute():
    body = {"type": "app_rate_limited", "team_id": "T1", "minute_rate_limited": 1518467820, "api_app_id": "A1"}
    sent = find_source("slack").seal(msgspec.json.encode(body), SECRET, NOW)
    assert find_source("slack").read(sent)[0].id == "app_rate_limited:T1:1518467820"


# -- Square -----------------------------------------------------------------------------------------


def test_square_signs_its_own_url_and_the_body():
    url, body = "https://shop.example/hooks/square", b'{"event_id":"e1","type":"payment.created"}'
    signature = b64encode(hmac.new(SECRET.encode(), url.encode() + body, sha256).digest()).decode()
    headers = {**JSON, "x-square-hmacsha256-signature": signature, "square-retry-number": "3"}
    behind_a_proxy = Envelope("square", body, headers, url="http://10.0.0.7:8000/hooks/square")
    assert find_source("square", url=url).verify(behind_a_proxy, [SECRET], NOW) == ""
    assert find_source("square").verify(behind_a_proxy, [SECRET], NOW)
    assert find_source("square").verify(structs.replace(behind_a_proxy, url=url), [SECRET], NOW) == ""
    assert find_source("square", url=url + "/").verify(behind_a_proxy, [SECRET], NOW)
    (event,) = find_source("square").read(behind_a_proxy)
    assert (event.id, event.type, event.attempt) == ("e1", "payment.created", "3")


def test_square_without_a_url_says_what_to_give():
    sent = structs.replace(find_source("square").sample(SECRET, NOW), url="")
    assert "url=" in find_source("square").verify(sent, [SECRET], NOW)


# -- the catalogue ----------------------------------------------------------------------------------


def test_an_unknown_source_is_answered_with_the_known_ones():
    with pytest.raises(Misuse, match=r"There is no source 'stirpe'.*github.*stripe"):
        find_source("stirpe")
