"""Twilio: forms signed by their meaning, JSON by its hash, and answers in TwiML."""

from __future__ import annotations

import hmac
from base64 import b64encode
from hashlib import sha1, sha256
from xml.etree import ElementTree

import pytest
from msgspec import structs

from twiceproof.doors.envelope import Envelope
from twiceproof.doors.source import Poison
from twiceproof.doors.sources.catalogue import find_source
from twiceproof.prove.source_contract.case import NOW, OTHER, SECRET

FORM = {"content-type": "application/x-www-form-urlencoded"}
URL = "https://mycompany.com/myapp.php?foo=1&bar=2"
CALL = b"Digits=1234&To=%2B18005551212&From=%2B14158675309&Caller=%2B14158675309&CallSid=CA1234567890ABCDE"
SIGNATURE = "RSOYDt4T1cUTdK1PDd93/VVr8B8="


def call(url: str = URL, **headers: str) -> Envelope:
    return Envelope("twilio", CALL, {**FORM, "x-twilio-signature": SIGNATURE, **headers}, url=url)


def test_twilio_signs_as_its_documentation_says():
    assert find_source("twilio", url=URL).verify(call(), ["12345"], NOW) == ""
    assert find_source("twilio", url=URL).verify(call(), ["54321"], NOW)
    assert find_source("twilio").verify(call(), ["12345"], NOW) == ""


def test_behind_a_proxy_the_public_url_is_told_and_the_query_stays():
    source = find_source("twilio", url="https://mycompany.com/myapp.php")
    assert source.verify(call("http://10.0.0.7/x?foo=1&bar=2"), ["12345"], NOW) == ""
    assert source.verify(structs.replace(call("http://10.0.0.7/x"), query="foo=1&bar=2"), ["12345"], NOW) == ""
    assert source.verify(call("http://10.0.0.7/x?foo=2&bar=2"), ["12345"], NOW)


def json_call(body: bytes, url: str, secret: str = SECRET) -> Envelope:
    signature = b64encode(hmac.new(secret.encode(), url.encode(), sha1).digest()).decode()
    headers = {"content-type": "application/json", "x-twilio-signature": signature}
    return Envelope("twilio", body, headers, url=url)


def test_json_is_vouched_for_by_the_hash_in_the_url():
    body = b'{"MessageSid":"SM1","MessageStatus":"sent"}'
    url = f"https://shop.example/hook?bodySHA256={sha256(body).hexdigest()}"
    source = find_source("twilio")
    assert source.verify(json_call(body, url), [SECRET], NOW) == ""
    assert source.read(json_call(body, url))[0].id == "SM1:sent"
    assert source.verify(json_call(body, url), [OTHER], NOW)
    assert source.verify(structs.replace(json_call(body, url), body=body + b" "), [SECRET], NOW)
    assert source.verify(json_call(body, "https://shop.example/hook"), [SECRET], NOW)
    assert source.verify(json_call(body, url + "&bodySHA256=" + "0" * 64), [SECRET], NOW)


def test_a_message_has_one_event_for_each_of_its_states():
    source = find_source("twilio")

    def name(body: bytes) -> str:
        return source.read(Envelope("twilio", body, FORM))[0].id

    assert name(b"MessageSid=SM1&MessageStatus=sent") == "SM1:sent"
    assert name(b"MessageSid=SM1&MessageStatus=delivered") == "SM1:delivered"
    assert name(b"MessageSid=SM1&SmsSid=SM1&Body=hi") == "SM1:received"


def test_a_call_asks_many_questions_in_one_state():
    source = find_source("twilio")
    first, second, again = (
        source.read(Envelope("twilio", b"CallSid=CA1&CallStatus=in-progress&Digits=" + digits, FORM))[0].id
        for digits in (b"1", b"2", b"1")
    )
    assert first == again != second


def test_twilios_own_token_comes_before_all_other_ids():
    assert find_source("twilio").read(call(**{"i-twilio-idempotency-token": "t-1"}))[0].id == "t-1"


@pytest.mark.parametrize("word", ["new", "duplicate", "poison", "mismatch", "review"])
def test_an_answer_is_twiml_that_does_nothing(word):
    reply = find_source("twilio").answer(word)
    response = ElementTree.fromstring(reply.body)
    assert (reply.status, reply.header("content-type"), response.tag, list(response)) == (
        200,
        "text/xml",
        "Response",
        [],
    )
    assert word.encode() in reply.body


def test_a_value_that_is_there_twice_is_signed_once():
    url, body = "https://shop.example/", b"MessageSid=SM1&MediaUrl=a&MediaUrl=a"
    signature = b64encode(hmac.new(SECRET.encode(), f"{url}MediaUrlaMessageSidSM1".encode(), sha1).digest()).decode()
    sent = Envelope("twilio", body, {**FORM, "x-twilio-signature": signature}, url=url)
    assert find_source("twilio").verify(sent, [SECRET], NOW) == ""


def test_two_values_of_one_name_are_signed_and_poison():
    """Its own validators sign each of them; which one counts is anybody's guess."""
    source = find_source("twilio", url="https://shop.example/")
    sent = source.seal(b"MessageSid=SM1&MediaUrl=a&MediaUrl=b", SECRET, NOW)
    assert source.verify(sent, [SECRET], NOW) == ""
    assert isinstance(source.read(sent), Poison)
