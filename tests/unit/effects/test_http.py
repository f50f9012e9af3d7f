"""HTTP effects: what they are before a byte is sent, what is sent, and what they look for."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest

from tests.unit.effects.loopback import Trap, trap
from twiceproof import Absent, Happened, Misuse, NotDone, OutcomeUnknown, Unknown, check, env, keyed, provider
from twiceproof.effects import base, dataverse, http, s3
from twiceproof.effects.base import Effect, outgoing_headers
from twiceproof.effects.http_client import shared_client
from twiceproof.effects.providers import key_form, providers

KEY = "tp_0123456789abcdef0123456789abcdef"
URL = "https://api.example.com/invoices"
STRIPE = "https://api.stripe.com/v1/charges"
FIND = http.find("GET /invoices?reference={key}", at="items[0]", absent=404)


@pytest.fixture(autouse=True)
def _no_connection_is_left() -> Iterator[None]:
    yield
    shared_client().close()


def answering(body: Any, status: int = 200, **headers: str) -> bytes:
    text = body if isinstance(body, bytes) else msgspec.json.encode(body)
    fields = {"Content-Type": "application/json", "Content-Length": str(len(text)), "Connection": "close", **headers}
    lines = [f"HTTP/1.1 {status} Answer", *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + text


def sent(effect: Any, answer: bytes = b"") -> tuple[Any, str, dict[str, str], str]:
    """Perform it against a server on loopback: its result, the request line, headers, body."""
    with trap(answer or answering({"id": 1})) as server:
        aimed = at(effect, server)
        result = aimed.perform(KEY)
        head, _, body = server.requests[0].decode().partition("\r\n\r\n")
        line, *fields = head.split("\r\n")
        return result, line, {n.lower(): v for n, _, v in (field.partition(": ") for field in fields)}, body


def at(effect: Any, server: Trap) -> Any:
    call = effect.call
    path = call.url.partition("://")[2].partition("/")[2]
    return msgspec.structs.replace(
        effect, call=msgspec.structs.replace(call, url=f"http://127.0.0.1:{server.port}/{path}")
    )


# -- the class, before anything is sent ----------------------------------------------------------


KEYED = [row.id for row in providers().values() if row.kind == "keyed" and row.methods and not row.paths]
CLASSES = [
    (http.get(URL), "safe"),
    (http.head(URL), "safe"),
    (http.put(URL), "safe"),
    (http.delete(URL), "safe"),
    (http.post(URL), "never"),
    (http.patch(URL), "never"),
    (http.post(URL, look=FIND), "check"),
    (http.patch(URL, look=FIND), "check"),
    (http.put(URL, look=FIND), "check"),
    (http.post(URL, look=lambda key: Absent), "check"),
    (http.put(URL, headers={"If-None-Match": "*"}), "never"),
    (http.put(URL, headers={"if-match": '"1"'}), "never"),
    (http.put(URL, headers={"If-None-Match": "*"}, look=FIND), "check"),
    (http.post(URL, provider="twilio"), "never"),
    (http.post(URL, provider="mollie"), "never"),
    (http.post(URL, provider="sendgrid", look=FIND), "check"),
    (http.patch(URL, provider="salesforce"), "safe"),
    (http.post(URL, provider="salesforce"), "never"),
    (http.post("https://api.hubapi.com/crm/v3/objects/contacts/batch/upsert", provider="hubspot-upsert"), "safe"),
    (http.post("https://api.hubapi.com/crm/v3/objects/contacts", provider="hubspot-upsert"), "never"),
    (http.post("https://www.googleapis.com/calendar/v3/calendars/a/events", provider="google-calendar"), "check"),
    (http.get(STRIPE, provider="stripe"), "safe"),
    (http.post(STRIPE, provider=provider("stripe")), "keyed"),
    (http.post(STRIPE, provider="stripe", look=FIND), "keyed"),
    (http.post(URL, repeat="safe"), "safe"),
    (http.put(URL, repeat="never"), "never"),
    (http.post(STRIPE, provider="stripe", repeat="never"), "never"),
    (http.post(URL, repeat=keyed(window="1h")), "keyed"),
    (http.post(URL, repeat=check(lambda: Absent)), "check"),
    (http.patch(URL, provider="dataverse", headers={"If-Match": "*"}), "never"),
    *[(http.post(URL, provider=name, json={}), "keyed") for name in KEYED],
]


@pytest.mark.parametrize(("effect", "kind"), CLASSES)
def test_the_class_is_worked_out_when_the_effect_is_made(effect: http.HttpEffect, kind: str) -> None:
    assert effect.repeat.kind == kind
    assert isinstance(effect, Effect)


def test_a_row_gives_its_window_and_the_deadline_settles_a_look() -> None:
    effect = http.post("https://api-m.paypal.com/v2/checkout/orders", provider="paypal-orders", timeout=20, look=FIND)
    assert (effect.repeat.window, effect.repeat.settling) == (6 * 3_600, 25)
    assert effect.repeat.probe == effect.look
    late = http.find("GET /search", settling="1h")
    assert http.post(URL, look=late).repeat.settling == 3_630


# -- what is sent --------------------------------------------------------------------------------


def test_a_post_carries_its_body_its_key_and_what_leads_back() -> None:
    token = outgoing_headers.set({"correlation-id": "c-17", "traceparent": "00-1-2-01"})
    try:
        result, line, headers, body = sent(http.post(URL, json={"total": 5, "reference": http.KEY}))
    finally:
        outgoing_headers.reset(token)
    assert (result, line) == ({"id": 1}, "POST /invoices HTTP/1.1")
    assert (headers["correlation-id"], headers["traceparent"]) == ("c-17", "00-1-2-01")
    assert headers["twiceproof-effect-key"] == KEY
    assert msgspec.json.decode(body) == {"total": 5, "reference": KEY}


def test_a_form_for_stripe_carries_the_key_in_the_header_and_in_its_metadata() -> None:
    form = {
        "amount": 5,
        "metadata": {"order": "17"},
        "items": [{"price": "p"}],
        "expand[]": ["a", "b"],
        "capture": True,
    }
    _, _, headers, body = sent(http.post(STRIPE, form=form, provider="stripe"))
    assert headers["idempotency-key"] == KEY
    assert parse_qs(body) == {
        "metadata[effect_key]": [KEY],
        "amount": ["5"],
        "metadata[order]": ["17"],
        "items[0][price]": ["p"],
        "expand[]": ["a", "b"],
        "capture": ["true"],
    }


@pytest.mark.parametrize(("name", "path"), [("square", ["idempotency_key"]), ("brevo", ["headers", "idempotencyKey"])])
def test_a_key_in_the_body_is_put_where_the_row_says(name: str, path: list[str]) -> None:
    _, _, _, body = sent(http.post(URL, json={"headers": {"a": "b"}}, provider=name))
    found = msgspec.json.decode(body)
    assert found["headers"]["a"] == "b"
    for part in path:
        found = found[part]
    assert found == key_form(KEY, provider(name).form)


def test_a_key_in_the_query_is_added_to_the_parameters() -> None:
    _, line, _, _ = sent(http.post(f"{URL}?a=1", json={}, params={"b": 2}, provider="quickbooks"))
    assert line == f"POST /invoices?a=1&b=2&requestid={KEY} HTTP/1.1"


def test_a_key_for_the_body_needs_a_body() -> None:
    with pytest.raises(Misuse, match="idempotency_key of the body"):
        http.post(URL, provider="square").perform(KEY)


# -- secrets -------------------------------------------------------------------------------------


CANARY = "sk_live_canary_4711"


def test_authorization_is_read_when_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    bearer, basic = http.get(URL, auth=env("SHOP_KEY")), http.get(URL, auth=("shop", env("SHOP_KEY")))
    monkeypatch.setenv("SHOP_KEY", CANARY)
    assert sent(bearer)[2]["authorization"] == f"Bearer {CANARY}"
    assert sent(basic)[2]["authorization"] == "Basic " + base64.b64encode(f"shop:{CANARY}".encode()).decode()
    assert sent(http.get(URL, auth=lambda: "token"))[2]["authorization"] == "Bearer token"
    assert sent(http.get(URL, headers={"X-Api-Key": env("SHOP_KEY")}))[2]["x-api-key"] == CANARY


@pytest.mark.parametrize("auth", [CANARY, ("shop", CANARY), 5])
def test_a_secret_as_a_value_is_refused_and_not_repeated(auth: Any) -> None:
    with pytest.raises(Misuse, match="not a value") as refused:
        http.post(URL, auth=auth)
    assert CANARY not in str(refused.value)


def test_no_secret_is_described_shown_or_repeated_by_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEY", CANARY)
    effect = http.post(
        f"{URL}?api_key={CANARY}&page=1",
        headers={"X-Api-Key": env("SHOP_KEY"), "Authorization": CANARY, "X-Shop": "7"},
        params={"token": CANARY, "sort": "id"},
        auth=env("SHOP_KEY"),
    )
    described = effect.describe()
    assert CANARY not in f"{effect!r} {described} {effect.name} {effect.call.request(KEY)!r}"
    assert (described["headers"], described["params"], described["query"]) == (
        {"X-Shop": "7"},
        {"sort": "id"},
        ["page=1"],
    )
    with pytest.raises(NotDone) as refused, trap(answering({"echo": f"Bearer {CANARY}"}, 401)) as server:
        at(effect, server).perform(KEY)
    assert CANARY not in str(refused.value)
    assert "***" in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"X-Api-Key": CANARY}},
        {"params": {"token": CANARY}},
        {"url": f"{URL}?v=2&access_key={CANARY}"},
    ],
    ids=["header", "parameter", "url"],
)
def test_a_server_that_echoes_a_plain_credential_does_not_bring_it_into_the_ledger(options: dict[str, Any]) -> None:
    effect = http.post(options.pop("url", URL), json={}, **options)
    with pytest.raises(NotDone) as refused, trap(answering({"error": f"no such key: {CANARY}"}, 401)) as server:
        at(effect, server).perform(KEY)
    assert CANARY in server.requests[0].decode()
    assert CANARY not in str(refused.value) and "***" in str(refused.value)


def test_the_effect_key_stays_readable_in_an_error() -> None:
    effect = http.post(URL, json={}, headers={"X-Request-Key": http.KEY, "X-Key": "v2"})
    with (
        pytest.raises(NotDone, match=f"no such key: {KEY} v2"),
        trap(answering(f"no such key: {KEY} v2".encode(), 401)) as server,
    ):
        at(effect, server).perform(KEY)


@pytest.mark.parametrize("kind", ["json", "form"])
def test_a_secret_in_a_body_is_sent_and_not_described_shown_or_repeated(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", CANARY)
    body = {"apikey": env("SHOP_KEY"), "order": {"keys": [env("SHOP_KEY"), "17"]}}
    effect = http.post(URL, **{kind: body})  # type: ignore[arg-type]
    _, _, _, sent_body = sent(effect)
    assert sent_body.count(CANARY) == 2 and "17" in sent_body
    assert effect.describe()["body"] == {"apikey": "***", "order": {"keys": ["***", "17"]}}
    with pytest.raises(NotDone) as refused:
        sent(effect, answering(f"no such key: {CANARY}".encode(), 400))
    assert CANARY not in f"{effect!r} {refused.value}"


@pytest.mark.parametrize("auth", [lambda: CANARY, ("shop", lambda: CANARY)], ids=["bearer", "basic"])
def test_a_token_from_a_function_that_the_server_repeats_is_not_kept(auth: Any) -> None:
    sent = base64.b64encode(f"shop:{CANARY}".encode()).decode() if isinstance(auth, tuple) else CANARY
    with pytest.raises(NotDone) as refused, trap(answering({"echo": sent}, 401)) as server:
        at(http.post(URL, auth=auth), server).perform(KEY)
    assert sent not in str(refused.value)
    assert "***" in str(refused.value)


def test_a_password_in_a_url_is_refused() -> None:
    with pytest.raises(Misuse, match="no user name, password") as refused:
        http.get(f"https://shop:{CANARY}@example.com/")
    assert CANARY not in str(refused.value)


def test_a_line_break_in_a_header_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(Misuse, match="line break"):
        http.post(URL, headers={"X-Note": "a\r\nX-Other: b"}).perform(KEY)


def test_a_header_that_http_cannot_carry_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(Misuse, match="X-Customer has letters that HTTP headers cannot carry"):
        http.post(URL, headers={"X-Customer": "№ 5"}).perform(KEY)


# -- the description -----------------------------------------------------------------------------


def test_a_description_differs_with_what_is_asked_for_and_with_the_region() -> None:
    one = http.post("https://eu.example.com/pay", json={"amount": 1}).describe()
    assert one == http.post("https://eu.example.com/pay", json={"amount": 1}, auth=env("OTHER")).describe()
    assert one != http.post("https://us.example.com/pay", json={"amount": 1}).describe()
    assert one != http.post("https://eu.example.com/pay", json={"amount": 2}).describe()
    assert http.put(URL, content=b"a").describe() != http.put(URL, content=b"b").describe()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"json": 1, "form": {}}, "one body"),
        ({"keep": "headers"}, "keep="),
        ({"look": 5}, "look="),
        ({"allow": ("10.0.0.0/8",)}, "untrusted=True"),
        ({"allow": "x", "untrusted": True}, "not a list"),
        ({"client": object(), "untrusted": True}, "leave out untrusted"),
        ({"headers": {"a b": "c"}}, "name of a header"),
        ({"provider": "stirpe"}, "table of providers"),
        ({"provider": "tigerbeetle"}, "in its own way"),
        ({"timeout": 0}, "timeout"),
        ({"jsn": {}}, "is not an option"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_written(options: dict[str, Any], told: str) -> None:
    with pytest.raises(Misuse, match=told):
        http.post(URL, **options)


@pytest.mark.parametrize("url", ["/invoices", "ftp://example.com/", "https://", "https://a b/", "https://h:x/", 5])
def test_only_an_absolute_url_is_called(url: Any) -> None:
    with pytest.raises(Misuse, match="URL"):
        http.get(url)


# -- results -------------------------------------------------------------------------------------


class Invoice(msgspec.Struct):
    id: int


def test_what_is_kept_is_the_body_the_status_or_the_whole_answer() -> None:
    assert sent(http.post(URL, result=Invoice))[0] == Invoice(1)
    assert sent(http.post(URL, keep="status"), answering(b"x", 201))[0] == 201
    kept = sent(http.post(URL, keep="response"), answering({"id": 1}, Set_Cookie="s=1"))[0]
    assert (kept.status, kept.body) == (200, b'{"id":1}')
    assert "set-cookie" not in kept.headers
    assert sent(http.get(URL, result=bytes), answering(b"\xff\x00", Content_Type="image/png"))[0] == b"\xff\x00"
    assert sent(http.get(URL), answering("ä".encode("latin-1"), Content_Type="text/plain; charset=latin-1"))[0] == "ä"
    assert sent(http.put(URL), answering(b"", 204))[0] is None


def test_a_successful_answer_that_cannot_be_read_does_not_undo_what_was_done() -> None:
    with pytest.raises(OutcomeUnknown, match="it was done") as unknown:
        sent(http.post(URL, result=Invoice), answering({"number": 1}))
    assert unknown.value.data["repeats"]
    with pytest.raises(OutcomeUnknown, match="it was done"):
        sent(http.post(URL), answering(b"<html>"))
    with pytest.raises(NotDone):
        sent(http.get(URL), answering(b"<html>"))


def test_what_is_deleted_already_is_deleted() -> None:
    assert sent(http.delete(URL), answering({"error": "none"}, 404))[0] is None
    with pytest.raises(NotDone):
        sent(http.put(URL), answering({"error": "none"}, 404))


# -- looking -------------------------------------------------------------------------------------


def looked(answer: bytes, find: http.Find = FIND, **options: Any) -> Any:
    with trap(answer) as server:
        found = at(http.post(URL, look=find, **options), server).look(KEY)
        assert server.requests[0].startswith(b"GET ")
        return found


def test_a_part_of_the_only_item_is_found_like_the_item() -> None:
    """Of several items the first one was taken, and an empty list could not be read."""
    part = http.find("GET /invoices?reference={key}", at="items[0].id")
    for items, found in (([1], Happened(1)), ([], Absent()), ([1, 2], Unknown("2 found: 1, 2", ("1", "2")))):
        assert looked(answering({"items": [{"id": number} for number in items]}), part) == found


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (answering({"items": [{"id": 1}]}), Happened({"id": 1})),
        (answering({"items": []}), Absent()),
        (answering({"items": [{"id": 1}, {"id": 2}]}), Unknown("2 found: 1, 2", ("1", "2"))),
        (answering({}, 404), Absent()),
        (answering({}, 500), Unknown("the look was answered with 500", failed=True)),
        (answering({}, 429), Unknown("the look was answered with 429", failed=True)),
        (answering({}, 302), Unknown("the look was answered with 302")),
        (answering({}, 403), Unknown("the look was answered with 403")),
    ],
)
def test_a_recipe_finds_one_none_several_or_cannot_tell(answer: bytes, found: Any) -> None:
    assert looked(answer) == found


@pytest.mark.parametrize("answer", [answering({"other": 1}), answering(b"<html>"), b"", b"HTTP/1.1 200 OK\r\nConte"])
def test_a_look_that_fails_has_found_out_nothing(answer: bytes) -> None:
    assert isinstance(looked(answer), Unknown)


def test_a_function_may_look_and_its_failure_is_unknown() -> None:
    assert http.post(URL, look=lambda key: Happened(key)).look(KEY) == Happened(KEY)
    assert isinstance(http.post(URL, look=lambda key: None).look(KEY), Unknown)
    assert isinstance(http.post(URL, look=lambda key: 1 / 0).look(KEY), Unknown)
    assert isinstance(http.post(URL).look(KEY), Unknown)


def test_a_look_sends_no_condition_and_no_body_and_the_same_authorization() -> None:
    with trap(answering({"items": []})) as server:
        effect = http.post(URL, json={"a": 1}, auth=lambda: "t", headers={"If-Match": "*"}, look=FIND)
        at(effect, server).look(KEY)
    asked = server.requests[0].decode().lower()
    assert asked.startswith(f"get /invoices?reference={KEY} ")
    assert "authorization: bearer t" in asked
    assert "if-match" not in asked and "content-type" not in asked


@pytest.mark.parametrize("request_", ["POST /invoices", "/invoices", "GET"])
def test_a_recipe_only_reads(request_: str) -> None:
    with pytest.raises(Misuse, match="must only read"):
        http.find(request_)


# -- without the extra ---------------------------------------------------------------------------


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installation without extras."""
    base.require.cache_clear()
    monkeypatch.setattr(base, "find_spec", lambda name: None)
    yield
    base.require.cache_clear()


@pytest.mark.parametrize(
    ("make", "extra"),
    [
        (lambda: http.put(URL), "http"),
        (lambda: dataverse.environment("https://org.example.com", auth=lambda: "a token"), "http"),
        (lambda: s3.put("shop", "17.pdf", b"data"), "s3"),
    ],
)
def test_a_missing_extra_is_named_when_the_effect_is_made(bare: None, make: Callable[[], Any], extra: str) -> None:
    """While it is performed, it would be taken for an error of the destination, and retried."""
    with pytest.raises(Misuse, match=rf"pip install 'twiceproof\[{extra}\]'"):
        make()


def test_a_client_of_ones_own_needs_no_extra(bare: None) -> None:
    assert http.put(URL, client=object()).repeat.kind == "safe"
