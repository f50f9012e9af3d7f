"""The table of providers: its rows, the forms of keys, and what a URL belongs to."""

from __future__ import annotations

import random
import re
from datetime import date

import pytest

from twiceproof import Misuse, provider
from twiceproof.effects.providers import Provider, key_form, normal_key, provider_of, providers
from twiceproof.effects.repeat import NEVER, SAFE, declare
from twiceproof.flows.engine.step_identity import effect_key

ROWS = list(providers().values())
FORMS = ("plain", "dash", "uuid", "base32hex", "hex")
KEY = "tp_0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_row_has_its_source_its_date_and_its_class(row: Provider) -> None:
    assert row.link.startswith("https://")
    assert row.kind in ("safe", "keyed", "check", "never")
    assert row.verified or row.kind == "never"
    assert (row.kind == "keyed") <= (row.window_seconds > 0 and bool(row.field) and bool(row.replays))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_row_was_read_within_400_days(row: Provider) -> None:
    """Windows change: a row that nobody has looked at for a year is to be read again at its source."""
    assert (date.today() - row.checked).days <= 400, f"read {row.link} again, and renew the row"


def test_the_forms_of_10000_keys_fit_their_providers() -> None:
    dice = random.Random(7)
    keyed = [row for row in ROWS if row.kind in ("keyed", "check")]
    for _ in range(10_000):
        key = effect_key(f"shop:{dice.getrandbits(64)}", f"step{dice.random()}")
        for form in {row.form for row in keyed}:
            written = key_form(key, form)
            for row in (row for row in keyed if row.form == form):
                assert len(written) <= row.longest
                assert re.fullmatch(row.pattern or ".*", written)
            assert normal_key(written) == normal_key(key) != ""


def test_all_forms_of_a_key_lead_back_to_it_and_to_no_other() -> None:
    other = effect_key("default:order:18", "pay")
    forms = [key_form(KEY, form) for form in FORMS]  # type: ignore[arg-type]
    assert {normal_key(form) for form in forms} == {normal_key(KEY)}
    assert {normal_key(form.upper()) for form in forms} == {normal_key(KEY)}
    assert normal_key(other) != normal_key(KEY)
    assert normal_key("order-17") == ""


def test_forms_are_as_documented() -> None:
    assert key_form(KEY, "dash") == "tp-0123456789abcdef0123456789abcdef"
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", key_form(KEY, "uuid"))
    assert re.fullmatch(r"[a-v0-9]{34}", key_form(KEY, "base32hex"))
    assert int(key_form(KEY, "hex"), 16) < 2**128


def test_only_an_effect_key_has_forms() -> None:
    with pytest.raises(Misuse, match="is not an effect key"):
        key_form("order-17")


def test_a_provider_is_a_declaration_of_repeat() -> None:
    assert declare(provider("brevo")).window == 900
    assert (declare(provider("stripe")).kind, declare(provider("stripe")).window) == ("keyed", 86_400)
    assert declare(provider("salesforce")) is SAFE
    assert declare(provider("twilio")) is NEVER
    assert declare(provider("mollie")) is NEVER  # not verified


def test_a_provider_gives_the_header_or_says_where_the_key_goes() -> None:
    assert provider("stripe").headers(KEY) == {"Idempotency-Key": KEY}
    assert provider("mangopay").headers(KEY) == {"Idempotency-Key": key_form(KEY, "dash")}
    with pytest.raises(Misuse, match=r"in the body, as idempotency_key.*provider\(\"square\"\)\.key"):
        provider("square").headers(KEY)
    with pytest.raises(Misuse, match="takes no idempotency key"):
        provider("twilio").headers(KEY)


def test_a_provider_that_wants_the_first_attempts_time_gives_no_header_alone() -> None:
    with pytest.raises(Misuse, match=r"use http\.post\(…, provider=\"azure-repeatable\"\)"):
        provider("azure-repeatable").headers(KEY)


def test_an_unknown_provider_is_refused_with_those_that_are_near() -> None:
    with pytest.raises(Misuse, match="paypal-orders, paypal-payments"):
        provider("paypal")


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://api.stripe.com/v1/payment_intents", "stripe"),
        ("https://api-m.paypal.com/v2/checkout/orders", "paypal-orders"),
        ("https://api-m.paypal.com/v2/payments/captures/1/refund", "paypal-payments"),
        ("https://api.hubapi.com/crm/v3/objects/contacts/batch/upsert", "hubspot-upsert"),
        ("https://checkout-live.adyen.com/v71/payments", "adyen"),
        ("https://api.hubapi.com/crm/v3/objects/contacts", None),
        ("https://api.stripe.com.evil.test/v1/charges", None),
        ("https://example.com/", None),
    ],
)
def test_a_url_belongs_to_a_provider_by_its_host_and_path(url: str, found: str | None) -> None:
    row = provider_of(url, "POST")
    assert (row.id if row else None) == found
