"""One request to a JSON API, and what each answer means for the effect that sent it."""

from __future__ import annotations

from typing import Any

import pytest

from twiceproof import Misuse, NotDone, OutcomeUnknown, env
from twiceproof.effects.http_client import HttpAnswer, HttpRequest
from twiceproof.effects.json_api import JsonApi, json_api, plain_values


def answering(status: int, body: bytes = b"", **headers: str) -> tuple[JsonApi, list[HttpRequest]]:
    sent: list[HttpRequest] = []

    def send(request: HttpRequest) -> HttpAnswer:
        sent.append(request)
        return HttpAnswer(status, headers, body)

    return json_api("https://api.example.org/v1/", lambda: "canary", send=send), sent


@pytest.mark.parametrize(
    ("status", "raised", "final"),
    [
        (400, NotDone, True),
        (401, NotDone, False),  # the next attempt asks for another token
        (403, NotDone, True),
        (409, NotDone, False),
        (423, NotDone, False),
        (429, NotDone, False),
        (408, OutcomeUnknown, False),
        (425, OutcomeUnknown, False),
        (499, OutcomeUnknown, False),  # a proxy's: the service may have acted
        (500, OutcomeUnknown, False),
        (503, OutcomeUnknown, False),
        (302, OutcomeUnknown, False),
    ],
)
def test_a_refusal_is_clean_and_a_failure_does_not_tell(status: int, raised: type[Exception], final: bool) -> None:
    api, _ = answering(status, b'{"error": {"code": "X1", "message": "why not"}}')
    with pytest.raises(raised, match="why not") as caught:
        api.require("POST", "/rows", json={"a": 1})
    assert caught.value.data.get("final", False) is final  # type: ignore[attr-defined]


@pytest.mark.parametrize(("given", "found"), [("7", 7.0), ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0), ("soon", None)])
def test_the_pause_that_is_asked_for_is_kept(given: str, found: float | None) -> None:
    api, _ = answering(429, **{"retry-after": given, "date": "Thu, 01 Jan 1970 00:00:10 GMT"})
    with pytest.raises(NotDone) as caught:
        api.require("GET", "/rows")
    assert caught.value.data.get("retry_after") == found


def test_a_request_carries_its_token_and_key_and_an_answer_its_json() -> None:
    api, sent = answering(200, b'{"id": 7}')
    answer = api.call("PATCH", "/rows", json={"a": "ü"}, params={"$filter": "a eq 'b c'"}, effect_key="tp_1")
    assert (answer.body, answer.code) == ({"id": 7}, "")
    (request,) = sent
    assert request.url == "https://api.example.org/v1/rows?%24filter=a%20eq%20%27b%20c%27"
    assert request.body == '{"a":"ü"}'.encode()
    assert (request.headers["Authorization"], request.headers["Twiceproof-Effect-Key"]) == ("Bearer canary", "tp_1")
    assert "canary" not in repr(request)


def test_an_answer_that_is_no_json_is_shown_in_part() -> None:
    api, _ = answering(502, b"<html>" + b"x" * 1_000)
    with pytest.raises(OutcomeUnknown, match="502 <html>") as caught:
        api.require("GET", "/rows")
    assert len(str(caught.value)) < 500


def test_a_token_that_a_server_repeats_is_not_shown() -> None:
    api, _ = answering(400, b'{"error": {"message": "canary is not valid"}}')
    with pytest.raises(NotDone, match=r"\*\*\* is not valid"):
        api.require("GET", "/rows")


@pytest.mark.parametrize("url", ["", "api.example.org", "ftp://x", "https://me:pw@x", "https://x?key=1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Misuse):
        json_api(url, lambda: "token")


@pytest.mark.parametrize("token", ["", "a\r\nb", None, b"bytes"])
def test_what_is_no_token_is_refused_before_anything_is_sent(token: Any) -> None:
    api, sent = answering(200)
    with pytest.raises(Misuse, match="bearer token"):
        JsonApi(api.url, lambda: token, 5, api.send).call("GET", "/rows")
    assert sent == []
    with pytest.raises(Misuse, match="expires"):
        json_api("https://x", "a token itself")  # type: ignore[arg-type]


def test_a_token_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRTABLE_TOKEN", "canary")
    api, sent = answering(200)
    JsonApi(api.url, env("AIRTABLE_TOKEN"), 5, api.send).call("GET", "/rows")
    assert sent[0].headers["Authorization"] == "Bearer canary"


def test_a_column_is_in_the_key_or_in_the_values() -> None:
    assert plain_values({"a": (1, 2)}) == {"a": [1, 2]}
    with pytest.raises(Misuse, match="plain"):
        plain_values({"a": object()})
    with pytest.raises(Misuse, match="give it once"):
        plain_values({"a": 1}, without={"a": 1})
