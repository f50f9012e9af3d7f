"""What answers mean: done, refused, final or unknown, by HTTP itself and by a provider's row."""

from __future__ import annotations

import pytest

from twiceproof import NotDone, OutcomeUnknown, provider
from twiceproof.effects.http_answers import refuse, retry_after_of
from twiceproof.effects.http_client import HttpAnswer, HttpRequest
from twiceproof.effects.providers import Provider

POST = HttpRequest("POST", "https://api.example.com/pay", {})
STRIPE, WORLDLINE, SALESFORCE = provider("stripe"), provider("worldline"), provider("salesforce")


def meaning(
    status: int, row: Provider | None = None, *, body: bytes = b"", method: str = "POST", final: int = 0, **headers: str
) -> str:
    request = HttpRequest(method, POST.url, {})
    answer = HttpAnswer(status, {name.replace("_", "-"): value for name, value in headers.items()}, body)
    error = refuse(request, answer, row, (final,))
    marks = [name for name in ("final", "repeats", "retry_after") if error.data.get(name)]
    return " ".join(["clean" if isinstance(error, NotDone) else "unknown", *marks])


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 412, 413, 415, 422, 423, 428, 431])
def test_a_refusal_is_clean(status: int) -> None:
    assert meaning(status) == "clean"


@pytest.mark.parametrize("status", [402, 408, 409, 425, 499, 500, 502, 503, 504, 520])
def test_what_may_follow_the_work_is_unknown(status: int) -> None:
    assert meaning(status) == "unknown"


def test_a_limit_is_waited_for_and_503_is_clean_only_by_a_row() -> None:
    assert meaning(429, retry_after="7") == "clean retry_after"
    assert meaning(503, retry_after="7") == "unknown retry_after"
    refusing = Provider(**{**_fields(STRIPE), "refused": (503,)})
    assert meaning(503, refusing, retry_after="7") == "clean retry_after"


def test_a_refusal_that_no_retry_cures_is_final_by_the_row_or_the_call() -> None:
    assert meaning(402, STRIPE) == "clean final"
    assert meaning(422, final=422) == "clean final"
    assert meaning(300, SALESFORCE, method="PATCH", final=300) == "clean final"


def test_a_500_that_is_replayed_repeats_itself() -> None:
    assert meaning(500, STRIPE) == "unknown repeats"
    assert meaning(502, STRIPE) == "unknown"
    assert meaning(502, STRIPE, idempotent_replayed="true") == "unknown repeats"
    assert meaning(500, WORLDLINE) == "unknown"


def test_a_request_in_progress_is_asked_for_again() -> None:
    assert meaning(409, STRIPE, retry_after="2") == "unknown retry_after"


def test_a_key_whose_time_is_over_is_no_clean_refusal() -> None:
    repeatable = provider("azure-repeatable")
    assert meaning(412, repeatable) == "unknown repeats"
    assert meaning(412, STRIPE) == meaning(400, repeatable) == "clean"


def test_a_key_that_was_used_for_another_request_is_no_clean_refusal() -> None:
    body = b'{"error": {"type": "idempotency_error"}}'
    assert meaning(400, STRIPE, body=body) == "unknown repeats"
    assert meaning(400, STRIPE, body=b'{"error": "no such price"}') == "clean"
    assert meaning(400, None, body=body) == "clean"


@pytest.mark.parametrize(
    ("method", "status", "found"),
    [
        ("POST", 301, "unknown repeats"),
        ("POST", 302, "unknown repeats"),
        ("POST", 303, "unknown repeats"),
        ("PUT", 304, "unknown repeats"),
        ("POST", 307, "clean final"),
        ("POST", 308, "clean final"),
        ("GET", 302, "clean final"),
    ],
)
def test_a_redirect_is_not_followed(method: str, status: int, found: str) -> None:
    assert meaning(status, method=method, location="https://elsewhere.example.com/") == found


def test_a_pause_is_read_from_seconds_or_from_two_dates() -> None:
    dates = {"retry-after": "Wed, 18 Nov 2026 08:00:30 GMT", "date": "Wed, 18 Nov 2026 08:00:00 GMT"}
    assert retry_after_of(HttpAnswer(429, {"retry-after": "12"})) == 12
    assert retry_after_of(HttpAnswer(429, dates)) == 30
    for odd in ("", "-5", "soon", "9" * 40, "²"):
        assert retry_after_of(HttpAnswer(429, {"retry-after": odd})) is None


def test_the_message_has_the_status_the_reason_and_no_query() -> None:
    request = HttpRequest("POST", "https://api.example.com/pay?token=secret", {})
    error = refuse(request, HttpAnswer(400, {}, b'{"error":\n "no such price"}'), None, ())
    assert str(error) == (
        'POST api.example.com/pay was answered with 400 ({"error": "no such price"}); nothing was done.'
    )
    assert isinstance(refuse(POST, HttpAnswer(500), None, ()), OutcomeUnknown)


def _fields(row: Provider) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__struct_fields__}
