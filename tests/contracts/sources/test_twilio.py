"""Twilio: forms signed by their meaning, JSON by its hash, and answers in TwiML."""

from __future__ import annotations

import hmac
from base64 import b64encode
from hashlib import sha1, sha256
from urllib.parse import parse_qsl
from xml.etree import ElementTree

import pytest
from msgspec import structs

from twiceproof.inbound.source import Envelope, Poison
from twiceproof.inbound.sources import find_source
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


def signature_of(url: str, secret: str = SECRET, hash_=sha1, body: bytes = CALL) -> str:
    text = url + "".join(name + value for name, value in sorted(parse_qsl(body.decode())))
    return b64encode(hmac.new(secret.encode(), text.encode(), hash_).digest()).decode()


@pytest.mark.parametrize(
    ("signed", "seen"),
    [
        ("https://shop.example/hook?a=1", "https://shop.example:443/hook?a=1"),
        ("https://shop.example:443/hook?a=1", "https://shop.example/hook?a=1"),
        ("http://shop.example:80/hook", "http://shop.example/hook"),
        ("https://shop.example/hook", "https://shop.example:8443/hook"),
        ("https://[2001:db8::1]/hook", "https://[2001:db8::1]:8443/hook"),
        ("https://u:p@shop.example:443/hook#rc=3", "https://u:p@shop.example/hook#rc=3"),
    ],
)
@pytest.mark.parametrize("told", [True, False])
def test_twilio_signs_with_and_without_the_port(signed, seen, told):
    source = find_source("twilio", url=seen if told else "")
    sent = call("https://10.0.0.7/" if told else seen, **{"x-twilio-signature": signature_of(signed)})
    assert source.verify(sent, [SECRET], NOW) == ""
    assert source.verify(sent, [OTHER], NOW)


@pytest.mark.parametrize(
    "signed", ["https://shop.example:8443/hook", "http://shop.example/hook", "https://shop.example/Hook"]
)
def test_another_port_scheme_or_path_is_another_address(signed):
    source = find_source("twilio", url="https://shop.example/hook")
    assert source.verify(call("https://x/", **{"x-twilio-signature": signature_of(signed)}), [SECRET], NOW)


SETTINGS = "x-twilio-webhooks-signature-settings"


@pytest.mark.parametrize(
    "settings", ["key=webhooks_sharedkey_01,algorithm=HMAC_SHA256", " algorithm = hmac_sha256 , key=x"]
)
def test_a_shared_key_may_sign_by_sha_256(settings):
    source = find_source("twilio", url=URL)
    strong, weak = (signature_of(URL, hash_=hash_) for hash_ in (sha256, sha1))
    assert source.verify(call(**{"x-twilio-signature": strong, SETTINGS: settings}), [OTHER, SECRET], NOW) == ""
    assert source.verify(call(**{"x-twilio-signature": strong, SETTINGS: settings}), [OTHER], NOW)
    assert source.verify(call(**{"x-twilio-signature": weak, SETTINGS: settings}), [SECRET], NOW)
    assert source.verify(call(**{"x-twilio-signature": strong}), [SECRET], NOW)


@pytest.mark.parametrize("settings", ["", "key=webhooks_sharedkey_01", "key=x,algorithm=HMAC_SHA1", "key=x,algorithm="])
def test_without_another_word_it_is_sha_1(settings):
    assert find_source("twilio", url=URL).verify(call(**{SETTINGS: settings}), ["12345"], NOW) == ""


@pytest.mark.parametrize(
    "settings", ["algorithm=NONE", "algorithm=HMAC_MD5", "algorithm=HMAC_SHA1,algorithm=HMAC_SHA256"]
)
def test_an_algorithm_that_is_not_known_is_refused_by_its_name(settings):
    refused = find_source("twilio", url=URL).verify(call(**{SETTINGS: settings}), ["12345"], NOW)
    assert "algorithm" in refused


def test_json_may_be_vouched_for_by_sha_256():
    body = b'{"MessageSid":"SM1","MessageStatus":"sent"}'
    url = f"https://shop.example:443/hook?bodySHA256={sha256(body).hexdigest()}"
    signature = b64encode(hmac.new(SECRET.encode(), url.encode(), sha256).digest()).decode()
    headers = {"content-type": "application/json", "x-twilio-signature": signature, SETTINGS: "algorithm=HMAC_SHA256"}
    sent = Envelope("twilio", body, headers, url=url.replace(":443", ""))
    assert find_source("twilio").verify(sent, [SECRET], NOW) == ""


def test_twilios_own_client_believes_what_we_sign_and_we_what_it_signs():
    validator = pytest.importorskip("twilio.request_validator").RequestValidator(SECRET)
    source, form = find_source("twilio", url=URL), dict(parse_qsl(CALL.decode()))
    assert validator.validate(URL, form, source.seal(CALL, SECRET, NOW).header("x-twilio-signature"))
    for algorithm in ("HMAC_SHA1", "HMAC_SHA256"):
        signature = validator.compute_signature(URL.replace(".com/", ".com:443/"), form, algorithm)
        settings = {"x-twilio-signature": signature, SETTINGS: f"key=k,algorithm={algorithm}"}
        assert source.verify(call(**settings), [SECRET], NOW) == ""


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
