"""What is kept of an answer, what is replayed, and what a retry does after each status."""

from __future__ import annotations

import pytest

from tests.unit.middleware.harness import JSON
from twiceproof import NotDone
from twiceproof.middleware import Route
from twiceproof.middleware.responses import restore
from twiceproof.safe_text import suggested_command

REPLAYED, RUN, REVIEW = "replayed", "run again", "review"
NEVER = (401, 403, 407, 408, 425, 429)


def again(client, shop) -> str:
    """What becomes of a retry."""
    before = shop.count
    response = client.ask()
    if shop.count > before:
        assert not response.replayed
        return RUN
    return REPLAYED if response.replayed else response.problem()["state"]


TABLE = [
    # keeps, repeat, status, a retry is
    *[("2xx+4xx", "never", status, REPLAYED) for status in (200, 201, 204, 302, 303, 400, 402, 404, 409, 410, 422)],
    *[("2xx+4xx", "never", status, REVIEW) for status in (500, 502, 503, 504)],
    *[("2xx+4xx", "safe", status, RUN) for status in (500, 502, 503, 504)],
    *[("2xx", "never", status, REPLAYED) for status in (200, 303)],
    *[("2xx", "never", status, RUN) for status in (400, 404, 409, 422)],
    ("2xx", "never", 500, REVIEW),
    ("2xx", "safe", 500, RUN),
    *[("all", "never", status, REPLAYED) for status in (200, 404, 500, 503)],
    ("all", "safe", 500, REPLAYED),
    *[("resume", "never", status, REPLAYED) for status in (200, 303)],
    *[("resume", "never", status, RUN) for status in (400, 404, 500, 503)],
    *[(keeps, "never", status, RUN) for keeps in ("2xx+4xx", "2xx", "all", "resume") for status in NEVER],
]


@pytest.mark.parametrize(("keeps", "repeat", "status", "expected"), TABLE)
def test_what_a_retry_does_after_each_status(make_client, shop, keeps, repeat, status, expected):
    client = make_client(routes=[Route("/pay", keeps=keeps, repeat=repeat)])
    shop.answer = lambda asked: (status, [], [b""])
    assert client.ask().status == status
    assert again(client, shop) == expected


ERRORS = [
    ("2xx+4xx", "never", ValueError, REVIEW),
    ("2xx+4xx", "never", TimeoutError, REVIEW),
    ("2xx+4xx", "never", ConnectionRefusedError, REVIEW),  # of the mail server, say, after the card was charged
    ("2xx+4xx", "never", NotDone, RUN),
    ("2xx+4xx", "safe", ValueError, RUN),
    ("resume", "never", ValueError, RUN),
    ("all", "never", ValueError, REPLAYED),
    ("all", "safe", ValueError, RUN),
    ("all", "never", KeyboardInterrupt, REVIEW),
]


@pytest.mark.parametrize(("keeps", "repeat", "error", "expected"), ERRORS)
def test_what_a_retry_does_after_an_error(make_client, shop, keeps, repeat, error, expected):
    client = make_client(routes=[Route("/pay", keeps=keeps, repeat=repeat)])

    def fail(asked):
        raise error("the till is stuck")

    shop.answer = fail
    with pytest.raises(error, match="the till is stuck"):
        client.ask()
    shop.answer = lambda asked: (201, [], [b"done"])
    assert again(client, shop) == expected


@pytest.mark.parametrize(("second", "expected"), [(NotDone, RUN), (ConnectionRefusedError, REVIEW)])
def test_of_several_errors_at_once_all_must_say_that_nothing_was_done(make_client, shop, second, expected):
    client = make_client(routes=[Route("/pay")])

    def fail(asked):
        raise ExceptionGroup("two tills", [NotDone("closed"), second("closed")])

    shop.answer = fail
    with pytest.raises(ExceptionGroup):
        client.ask()
    shop.answer = lambda asked: (201, [], [b"done"])
    assert again(client, shop) == expected


def test_statuses_by_which_a_route_says_that_nothing_was_done_let_a_retry_run(make_client, shop):
    client = make_client(routes=[Route("/pay", clean=(503,))])
    shop.answer = lambda asked: (503 if asked.count == 1 else 201, [], [b""])
    assert [client.ask().status, client.ask().status] == [503, 201]
    shop.answer = lambda asked: (500, [], [b""])
    client.ask(key="k-2")
    assert client.ask(key="k-2").problem()["state"] == "review"


def test_a_retry_of_what_is_in_review_is_told_how_it_is_settled(client, shop, app):
    shop.answer = lambda asked: (500, [], [b"oops"])
    client.ask()
    told = client.ask().problem()
    assert (told["status"], told["type"], told["state"]) == (409, "urn:twiceproof:needs-review", "review")
    assert suggested_command("claims", "show", about=(told["claim"]["operation"], told["claim"]["key"])) in told["next"]
    app.settle(told["claim"]["operation"], told["claim"]["key"], "did-not-happen", by="ann")
    shop.answer = lambda asked: (201, [], [b"done"])
    assert client.ask().status == 201
    assert client.ask().replayed


def test_what_a_person_says_happened_is_replayed(client, shop, app):
    shop.answer = lambda asked: (500, [], [b""])
    for number, result in enumerate([{"id": 7}, {"http_status": 201, "text": "made"}, None]):
        client.ask(key=f"k-{number}")
        claim = client.ask(key=f"k-{number}").problem()["claim"]
        app.settle(claim["operation"], claim["key"], "happened", by="ann", result=result)
    response = [client.ask(key=f"k-{number}") for number in range(3)]
    assert [(one.status, one.body, one.replayed) for one in response] == [
        (200, b'{"id":7}', True),
        (201, b"made", True),
        (200, b"null", True),
    ]


def test_what_is_abandoned_is_not_run_again(client, shop, app):
    shop.answer = lambda asked: (500, [], [b""])
    client.ask()
    claim = client.ask().problem()["claim"]
    app.settle(claim["operation"], claim["key"], "abandon", by="ann", note="too late")
    told = client.ask().problem()
    assert (told["status"], told["state"], told["reason"]) == (409, "failed", "too late")
    assert shop.count == 1


# -- what is replayed ----------------------------------------------------------------------------


def test_a_replay_has_the_status_the_headers_and_the_body_of_the_first_answer(client, shop):
    shop.answer = lambda asked: (202, [JSON, ("x-id", "7"), ("link", "<a>"), ("link", "<b>")], [b'{"a": 1}'])
    first, second = client.ask(), client.ask()
    assert (second.status, second.body) == (first.status, first.body)
    assert [pair for pair in second.headers if pair[0] in ("content-type", "x-id", "link")] == first.headers[:4]
    assert second.header("content-length") == "8"


@pytest.mark.parametrize(
    "header",
    ["set-cookie", "Set-Cookie", "connection", "keep-alive", "transfer-encoding", "proxy-authenticate", "te", "date"],
)
def test_what_belongs_to_one_connection_or_one_caller_is_never_replayed(client, shop, header):
    shop.answer = lambda asked: (200, [(header, "canary"), ("x-kept", "yes")], [b"ok"])
    assert client.ask().header(header.lower()) == "canary"
    response = client.ask()
    assert response.header(header.lower()) is None
    assert response.header("x-kept") == "yes"


def test_headers_that_the_connection_names_are_not_replayed(client, shop):
    shop.answer = lambda asked: (200, [("connection", "close, X-Hop"), ("x-hop", "canary")], [b"ok"])
    client.ask()
    assert client.ask().header("x-hop") is None


def test_cookies_are_not_even_in_the_ledger(client, shop, app):
    shop.answer = lambda asked: (200, [("set-cookie", "session=canary")], [b"ok"])
    client.ask()
    assert "canary" not in app.store.scan("claim").block().records[0].body


@pytest.mark.parametrize(
    "body", [b"", b"plain", "żółć 🐢".encode(), b"\x00text", bytes(range(256)), b'"quoted" \\ \r\n\t\x01', b"null"]
)
def test_a_body_comes_back_byte_for_byte(client, shop, body):
    shop.answer = lambda asked: (200, [], [body])
    assert client.ask().body == body
    response = client.ask()
    assert (response.body, response.replayed) == (body, True)
    assert response.header("content-length") == str(len(body))


def test_a_body_with_nul_is_kept_in_a_form_that_databases_take(client, shop, app):
    shop.answer = lambda asked: (200, [], [b"a\x00b"])
    client.ask()
    assert "\\u0000" not in app.store.scan("claim").block().records[0].body


def test_an_answer_without_a_body_is_replayed_without_a_length(client, shop):
    shop.answer = lambda asked: (204, [], [])
    client.ask()
    assert client.ask().header("content-length") is None


# -- large ones ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "piece", [b"x" * 500_000, b"\x01" * 500_000, b"\xff" * 500_000], ids=["text", "escapes", "bytes"]
)
def test_a_large_answer_is_kept_beside_its_claim(make_client, shop, app, piece):
    client = make_client()
    shop.answer = lambda asked: (200, [], [piece] * 10)
    assert client.ask().body == client.ask().body == piece * 10
    assert shop.count == 1
    assert len(app.store.scan("resource").block().records) == 1


def test_an_answer_too_large_to_keep_never_loses_the_fact_that_it_was_done(make_client, shop):
    client = make_client(routes=[Route("/pay", largest_answer=1000)])
    shop.answer = lambda asked: (201, [], [b"x" * 600, b"y" * 600])
    assert len(client.ask().body) == 1200
    told = client.ask().problem()
    assert (told["status"], told["type"]) == (410, "urn:twiceproof:answer-not-kept")
    assert (told["first_status"], told["size"]) == (201, 1200)
    assert shop.count == 1


def test_an_answer_just_small_enough_is_kept(make_client, shop):
    client = make_client(routes=[Route("/pay", largest_answer=1000)])
    shop.answer = lambda asked: (201, [], [b"x" * 600, b"y" * 400])
    client.ask()
    assert client.ask().replayed


# -- how long ------------------------------------------------------------------------------------


def test_a_key_is_remembered_as_long_as_it_is_kept(make_client, clock, shop):
    client = make_client(routes=[Route("/pay", keep="1h")])
    client.ask()
    clock.advance(3_599)
    assert client.ask().replayed
    clock.advance(2)
    assert not client.ask().replayed


def test_an_answer_may_be_forgotten_sooner_than_its_key(make_client, clock, shop):
    client = make_client(routes=[Route("/pay", keep="1h", keep_answer="1m")])
    client.ask()
    clock.advance(61)
    assert client.ask().problem()["type"] == "urn:twiceproof:answer-not-kept"
    assert shop.count == 1


def test_replays_are_counted(client, app):
    for _ in range(3):
        client.ask()
    (row,) = app.duplicates(source="idempotency-key")
    assert row.count == 2


def test_a_recorded_header_with_a_lines_end_is_not_replayed():
    """Whoever can write a result could write a whole second answer behind it."""
    kept = restore(
        '{"http_status":200,"headers":[["x-a","1\\r\\nset-cookie: a=b"],["x b","1"],["x-c","2"]],"text":"ok"}'
    )
    assert (kept.status, kept.headers, kept.body) == (200, [("x-c", "2")], b"ok")
