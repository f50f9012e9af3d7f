"""The generic source: any sender, described by where its parts are."""

from __future__ import annotations

import hmac
from base64 import b64encode

import msgspec
import pytest

from twiceproof import Misuse
from twiceproof.inbound.source import Envelope, Poison
from twiceproof.inbound.sources import find_source
from twiceproof.prove.source_contract.case import NOW, SECRET

BODY = b'{"data":{"order":{"id":17}},"kind":"paid","lines":[{"sku":"a"}]}'


def sent(source, headers, body=BODY, **more):
    return Envelope("generic", body, {"content-type": "application/json", **headers}, **more)


@pytest.mark.parametrize("algorithm", ["sha256", "sha512", "sha1"])
@pytest.mark.parametrize("encoding", ["hex", "base64"])
def test_any_hmac_can_be_described(algorithm, encoding):
    source = find_source("generic", id="kind", signature="X-Sig", algorithm=algorithm, encoding=encoding, prefix="s=")
    made = hmac.new(SECRET.encode(), BODY, algorithm).digest()
    text = made.hex() if encoding == "hex" else b64encode(made).decode()
    assert source.verify(sent(source, {"x-sig": f"s={text}"}), [SECRET], NOW) == ""
    assert source.verify(sent(source, {"x-sig": text}), [SECRET], NOW)
    assert source.verify(sent(source, {"x-sig": f"s={text[:-4]}"}), [SECRET], NOW)


def test_what_is_signed_can_be_described():
    source = find_source("generic", id="kind", signature="X-Sig", timestamp="X-At", signs="v2:{timestamp}:{url}:{body}")
    url = "https://shop.example/hook"
    text = hmac.new(SECRET.encode(), f"v2:{NOW:.0f}:{url}:".encode() + BODY, "sha256").hexdigest()
    headers = {"x-sig": text, "x-at": f"{NOW:.0f}"}
    assert source.verify(sent(source, headers, url=url), [SECRET], NOW) == ""
    assert source.verify(sent(source, headers, url=url + "/"), [SECRET], NOW)
    assert source.verify(sent(source, headers, url=url), [SECRET], NOW + 301)
    assert source.verify(sent(source, headers), [SECRET], NOW)


@pytest.mark.parametrize(
    ("path", "name"),
    [("data.order.id", "17"), ("kind", "paid"), ("lines.0.sku", "a"), ("header:X-Id", "h-1")],
)
def test_an_id_is_found_by_its_path(path, name):
    source = find_source("generic", id=path, type="kind", signature="X-Sig")
    (event,) = source.read(sent(source, {"x-id": "h-1"}))
    assert (event.id, event.type) == (name, "paid")


@pytest.mark.parametrize("blank", ["", " ", "\u200b", "\u3164", "\u2800" * 600])
def test_an_id_that_nobody_can_see_is_poison(blank):
    source = find_source("generic", id="kind", signature="X-Sig")
    assert isinstance(source.read(sent(source, {}, msgspec.json.encode({"kind": blank}))), Poison)


@pytest.mark.parametrize("path", ["data.order", "lines", "lines.1.sku", "lines.x", "nothing", "kind.x", "header:X-No"])
def test_an_id_that_is_not_there_or_no_id_is_poison(path):
    source = find_source("generic", id=path, signature="X-Sig")
    assert isinstance(source.read(sent(source, {})), Poison)


def test_a_fingerprint_names_an_event_whose_other_fields_change():
    """Some senders write the body anew at each try, and have no id."""
    source = find_source("generic", fingerprint=("order.id", "status"), signature="X-Sig")

    def read(**body):
        return source.read(sent(source, {}, msgspec.json.encode(body)))[0]

    first = read(order={"id": 1, "seen": 5}, status="paid", sent_at=1)
    again = read(sent_at=2, status="paid", order={"id": 1, "seen": 9})
    other = read(order={"id": 1}, status="void")
    assert (first.id, first.contents) == (again.id, again.contents) == (again.id, [1, "paid"])
    assert other.id != first.id
    assert isinstance(source.read(sent(source, {}, b'{"status":"paid"}')), Poison)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "id= or fingerprint=, not both"),
        ({"id": "a", "fingerprint": ("b",)}, "id= or fingerprint=, not both"),
        ({"id": "a", "algorithm": "md5"}, "algorithm="),
        ({"id": "a", "encoding": "rot13"}, "encoding="),
        ({"id": "a", "signs": "{timestamp}.{body}"}, "{timestamp}"),
        ({"id": "a", "timestamp": "X-At", "signs": "{body}"}, "proves nothing"),
        ({"id": "a", "signs": "{url}"}, "can be forged"),
        ({"id": "a", "signs": "{body}{secret}"}, "unknown placeholder"),
        ({"id": "a", "signs": "{id}{body}"}, "header:"),
        ({"id": "a", "signature": ""}, "signature="),
        ({"fingerprint": "order"}, r'fingerprint=\("order",\)'),
    ],
)
def test_a_description_that_would_let_somebody_in_is_refused(options, why):
    with pytest.raises(Misuse, match=why):
        find_source("generic", **{"signature": "X-Sig", **options})


def test_an_unknown_option_is_refused():
    with pytest.raises(Misuse, match=r"stripe was given window=; it takes no options"):
        find_source("stripe", window=9)
