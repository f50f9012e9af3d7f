"""CloudEvents 1.0: what its specification calls invalid is refused, in every mode, and nothing else is."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from twiceproof.inbound.source import Envelope, Event, Poison
from twiceproof.inbound.sources import find_source
from twiceproof.inbound.sources.cloudevents import header_value

EVENT = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "paid"}
BINARY = {f"ce-{name}": value for name, value in EVENT.items()}
ONE, MANY = "application/cloudevents+json", "application/cloudevents-batch+json"


def structured(event: Any, kind: str = ONE, source: str = "cloudevents") -> Any:
    return find_source(source).read(Envelope(source, msgspec.json.encode(event), {"content-type": kind}))


def binary(body: bytes = b"", **headers: str) -> Any:
    sent = {**BINARY, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return find_source("cloudevents").read(Envelope("cloudevents", body, sent))


INVALID: list[dict[str, Any]] = [
    {"time": "yesterday"},
    {"time": ""},
    {"time": 1700000000},
    {"time": "2026-01-01"},
    {"time": "2026-01-01T00:00:00"},
    {"time": "2026-02-30T00:00:00Z"},
    {"time": "2026-01-01T24:00:00Z"},
    {"time": "2026-01-01 00:00:00Z"},
    {"time": "2026-01-01T00:00:00+2500"},
    {"time": "2026-01-01T00:00:61Z"},
    {"time": "2026-01-01T00:00:00.Z"},
    {"dataschema": ""},
    {"dataschema": "/schemas/order"},
    {"dataschema": "#"},
    {"dataschema": "https://a b"},
    {"dataschema": 1},
    {"datacontenttype": ""},
    {"datacontenttype": "json"},
    {"datacontenttype": "application/"},
    {"datacontenttype": True},
    {"datacontenttype": "text/plain; charset"},
    {"datacontenttype": "text/plain, text/html"},
    {"subject": ""},
    {"subject": 5},
    {"subject": "a\nb"},
    {"subject": "a\x9fb"},
    {"subject": "\ufdd0"},
    {"subject": "\U0001fffe"},
    {"id": ""},
    {"id": 7},
    {"id": "a\x00"},
    {"source": ""},
    {"source": ["a"]},
    {"type": ""},
    {"type": 1},
    {"type": None},
    {"specversion": "0.3"},
    {"specversion": 1.0},
    {"specversion": None},
    {"Tenant": "x"},
    {"my_tenant": "x"},
    {"my-tenant": "x"},
    {"": "x"},
    {"tenänt": "x"},
    {"tenant": {"id": 1}},
    {"tenant": [1]},
    {"tenant": 1.5},
    {"tenant": 2**31},
    {"tenant": -(2**31) - 1},
    {"tenant": "a\tb"},
    {"data": 1, "data_base64": "AA=="},
    {"data": None, "data_base64": "AA=="},
    {"data_base64": "not base64"},
    {"data_base64": 5},
    {"data_base64": "AAA"},
]
VALID: list[dict[str, Any]] = [
    {"time": "2026-01-01T00:00:00Z"},
    {"time": "2026-01-01t00:00:00.4579346z"},
    {"time": "1990-12-31T23:59:60Z"},
    {"time": "2026-01-01T00:00:00-23:59"},
    {"time": None},
    {"dataschema": "https://shop.example/order.json#/v1"},
    {"dataschema": "urn:schema:order"},
    {"datacontenttype": 'TEXT/Plain; CharSet="utf-8"', "data": "x"},
    {"datacontenttype": "application/vnd.shop+json;version=1", "data": 1},
    {"subject": "a/b c ü"},
    {"subject": None},
    {"tenant": "x", "retries": 2**31 - 1, "live": True, "gone": None},
    {"averyveryverylongextensionname": "x"},
    {"data": None},
    {"data": {"Any": ["thing", 1.5]}},
    {"data_base64": "AA=="},
    {"data": 1, "data_base64": None},
    {"source": "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66"},
    {"source": "1-555-123-4567"},
    {"id": "ü 1"},
]


@pytest.mark.parametrize("changed", INVALID, ids=ascii)
def test_what_the_specification_calls_invalid_is_refused(changed):
    assert isinstance(structured({**EVENT, **changed}), Poison)


@pytest.mark.parametrize("changed", VALID, ids=ascii)
def test_what_it_calls_valid_is_taken(changed):
    (found,) = structured({**EVENT, **changed})
    assert found.payload == {**EVENT, **changed}


@pytest.mark.parametrize("name", ["datacontenttype", "dataschema", "time", "subject", "tenant"])
@pytest.mark.parametrize("long", ["a/b" + " " * 200_000 + "x", "a/b" + ";a=b" * 50_000 + "; ;", "a:" + "%" * 200_000])
def test_a_very_long_attribute_is_judged_at_once(name, long):
    begun = time.process_time()
    structured({**EVENT, name: long})
    assert time.process_time() - begun < 2


def test_one_that_is_invalid_does_not_harm_its_batch():
    good, bad = {**EVENT, "id": "2"}, {**EVENT, "time": "now"}
    assert [type(one) for one in structured([good, bad, EVENT], MANY)] == [Event, Poison, Event]


def test_event_grids_own_schema_word_is_taken_where_it_is_expected():
    (found,) = structured({**EVENT, "dataschema": "#"}, source="event_grid")
    assert found.id == "/shop:1"
    assert isinstance(structured({**EVENT, "time": "now"}, source="event_grid"), Poison)


# -- binary --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),
        ("%e2%82%ac", "€"),
        ("%41", "A"),
        ("%2541", "%41"),
        ('"a b"', "a b"),
        (r'"a \"b\" \\ c"', r'a "b" \ c'),
        ('a"b c"d', "ab cd"),
        ('"%E2%82%AC 5"', "€ 5"),
        ('"%22"', '"'),
        ("a+b", "a+b"),
        ("", ""),
        ('""', ""),
    ],
)
def test_a_header_is_unquoted_and_then_percent_decoded_once(written, read):
    assert header_value(written) == read
    if read:
        (found,) = binary(ce_subject=written)
        assert found.payload["subject"] == read


@pytest.mark.parametrize("odd", ["%C0%A0", "%FF", "%ED%A0%80", "%", "100%", "%zz", "%4", '"a', 'a"', '"a\\"', "é", "€"])
def test_a_header_that_cannot_be_decoded_is_refused(odd):
    assert header_value(odd) is None
    assert isinstance(binary(ce_id=odd), Poison)
    assert isinstance(binary(ce_tenant=odd), Poison)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn"]), min_size=1).filter(str.strip))
def test_whatever_the_reference_writes_into_a_header_is_read_as_it_was(text):
    made = CloudEvent({**EVENT, "subject": text}, None)
    headers = {name.lower(): value for name, value in to_binary_event(made).headers.items()}
    (found,) = find_source("cloudevents").read(Envelope("cloudevents", b"", headers))
    assert found.payload["subject"] == text
    whole = to_structured_event(made)
    (same,) = find_source("cloudevents").read(Envelope("cloudevents", whole.body, {"content-type": ONE}))
    assert same.payload["subject"] == text


@pytest.mark.parametrize(
    "headers",
    [
        {"ce_time": "now"},
        {"ce_dataschema": "#"},
        {"ce_subject": ""},
        {"ce_my_tenant": "x"},
        {"ce_data": "x"},
        {"ce_data_base64": "AA=="},
        {"ce_datacontenttype": "text/plain"},
        {"content_type": "json"},
        {"ce_subject": "a%0Ab"},
        {"content_type": "application/cloudevents+xml"},
        {"content_type": "application/cloudevents"},
    ],
)
def test_invalid_headers_are_refused(headers):
    assert isinstance(binary(b"1", **headers), Poison)


@pytest.mark.parametrize(
    ("kind", "data"), [("text/json", [1]), ("application/json", [1]), ("text/plain; charset=utf-8", "[1]")]
)
def test_data_is_json_where_its_type_says_so(kind, data):
    (found,) = binary(b"[1]", content_type=kind, ce_time="2026-01-01T00:00:00Z", ce_retries="2")
    assert (found.payload["data"], found.payload["retries"]) == (data, "2")
