"""Redaction: declared fields and unnamed headers never get as far as the store."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twiceproof import Misuse
from twiceproof.inbound.redaction import (
    REDACTED,
    kept_headers,
    kept_url,
    read_paths,
    redact,
    redact_body,
    redact_envelope,
)
from twiceproof.inbound.source import envelope

CARD = {"card": {"number": "4242", "brand": "visa"}, "customer": {"email": "a@b.io"}, "total": 5}


def test_declared_fields_are_hidden_and_the_rest_stays() -> None:
    before = copy.deepcopy(CARD)
    found = redact(CARD, ("card.number", "customer.email"))
    assert found == {"card": {"number": REDACTED, "brand": "visa"}, "customer": {"email": REDACTED}, "total": 5}
    assert before == CARD


@pytest.mark.parametrize(
    ("value", "paths", "found"),
    [
        ({"l": [{"pin": 1}, {"pin": 2, "n": 3}]}, ("l.pin",), {"l": [{"pin": REDACTED}, {"pin": REDACTED, "n": 3}]}),
        ([{"pin": 1}], ("pin",), [{"pin": REDACTED}]),
        ({"a": [[{"b": 1}]]}, ("a.b",), {"a": [[{"b": REDACTED}]]}),
        ({"card": {"number": 1}}, ("card",), {"card": REDACTED}),
        ({"card": {"number": 1, "x": 2}}, ("card.number", "card"), {"card": REDACTED}),
        ({"card": "4242"}, ("card.number",), {"card": REDACTED}),
        ({"card": ["4242"]}, ("card.number",), {"card": [REDACTED]}),
        ({"card": None}, ("card.number",), {"card": None}),
        ({"a": None}, ("a",), {"a": None}),
        ({"b": 1}, ("a", "a.b"), {"b": 1}),
        ({"card.number": "4242", "card.x": 1}, ("card.number",), {"card.number": REDACTED, "card.x": 1}),
        ({"card.number": "4242", "cards": 1}, ("card",), {"card.number": REDACTED, "cards": 1}),
        ({"a.b": {"c": 1, "d": 2}}, ("a.b.c",), {"a.b": {"c": REDACTED, "d": 2}}),
        ({"a": {"b.c": 3}}, ("a.b.c",), {"a": {"b.c": REDACTED}}),
        ({"_x@OData.Community.Value": "Ann"}, ("_x@OData.Community.Value",), {"_x@OData.Community.Value": REDACTED}),
        ({"number.card": 1, ".": 2, "card.": 3}, ("card.number",), {"number.card": 1, ".": 2, "card.": 3}),
        ("text", ("a",), "text"),
        (None, ("a",), None),
    ],
)
def test_wherever_a_field_is_it_is_found(value: Any, paths: Any, found: Any) -> None:
    assert redact(value, paths) == found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "pin"]), inner, max_size=3),
    max_leaves=12,
)


@given(JSON)
def test_nothing_below_a_declared_field_is_left(value: Any) -> None:
    found = json.dumps(redact({"a": {"secret": value, "kept": "yes"}}, ("a.secret",)))
    assert json.loads(found)["a"]["secret"] in (REDACTED, None)
    assert "yes" in found


@given(JSON)
def test_it_changes_nothing_twice(value: Any) -> None:
    once = redact(value, ("a.pin", "pin"))
    assert redact(once, ("a.pin", "pin")) == once


@pytest.mark.parametrize("paths", ["card.number", ("",), ("card..number",), (".card",), ("card.",), (7,)])
def test_what_names_no_field_is_refused(paths: Any) -> None:
    with pytest.raises(Misuse):
        read_paths(paths)


def test_a_body_is_redacted_in_its_own_form() -> None:
    assert json.loads(redact_body(json.dumps(CARD).encode(), ("card.number",)))["card"]["number"] == REDACTED
    form = redact_body(b"From=%2B49&Body=hi", ("From",), "application/x-www-form-urlencoded; charset=utf-8")
    assert form == b"From=%5Bredacted%5D&Body=hi"
    flat = redact_body(b"card.number=4242&card.brand=visa", ("card.number",), "application/x-www-form-urlencoded")
    assert flat == b"card.number=%5Bredacted%5D&card.brand=visa"
    assert redact_body(b"anything \xff", ()) == b"anything \xff"


@pytest.mark.parametrize("body", [b"<xml>4242</xml>", b'{"card": "4242"', b"\xff4242", b"[" * 100_000 + b"4242"])
def test_a_body_that_cannot_be_looked_into_is_not_kept(body: bytes) -> None:
    assert b"4242" not in redact_body(body, ("card.number",))


def test_only_headers_on_the_list_are_kept() -> None:
    headers = {
        "content-type": "a",
        "X-GitHub-Event": "push",
        "authorization": "b",
        "x-hub-signature-256": "c",
        "x-odd": "d",
    }
    assert kept_headers(headers) == {"content-type": "a", "X-GitHub-Event": "push"}
    assert kept_headers(headers, ("X-Odd",))["x-odd"] == "d"
    assert len(kept_headers({"user-agent": "x" * 9_999})["user-agent"]) == 512


@pytest.mark.parametrize(
    "name", ["Authorization", "cookie", "Stripe-Signature", "X-Auth-Token", "x-api-key", "X-Shopify-Hmac-Sha256"]
)
def test_a_header_that_carries_a_secret_cannot_be_put_on_the_list(name: str) -> None:
    assert kept_headers({name: "s"}) == {}
    with pytest.raises(Misuse, match="carries a secret"):
        kept_headers({name: "s"}, (name,))


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://u:p@x.io:8443/hooks/a?code=s#t", "https://x.io:8443/hooks/a"),
        ("/hooks/a?sig=s", "/hooks/a"),
        ("", ""),
        ("https://[bad", REDACTED),
    ],
)
def test_a_url_is_kept_without_its_secrets(url: str, kept: str) -> None:
    assert kept_url(url) == kept


def test_an_envelope_keeps_none_of_them() -> None:
    came = envelope(
        "shop",
        b'{"card":{"number":"CANARY"}}',
        [("Authorization", "CANARY"), ("Content-Type", "application/json")],
        url="https://x.io/h?code=CANARY",
        query="code=CANARY",
    )
    kept = redact_envelope(came, ("card.number",))
    assert "CANARY" not in str([kept.body, kept.headers, kept.url, kept.query])
    assert kept.headers == {"content-type": "application/json"}
