"""Form tokens: a double click, a reload and the back button are one submit."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest

from twiceproof.inbound.reply import Malformed
from twiceproof.middleware import FIELD, Route, form_field, form_token
from twiceproof.middleware.forms import read_token, token_in

URLENCODED = ("content-type", "application/x-www-form-urlencoded")
BROWSER = ("accept", "text/html,application/xhtml+xml")


def parts(boundary: str = "x", **fields: str) -> tuple[bytes, tuple[str, str]]:
    body = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    file = f'Content-Disposition: form-data; name="f"; filename="{FIELD}"'
    body += f"--{boundary}\r\n{file}\r\n\r\nfile\r\n--{boundary}--\r\n"
    return body.encode(), ("content-type", f"multipart/form-data; boundary={boundary}")


def pairs(**fields: str) -> tuple[bytes, tuple[str, str]]:
    return urlencode(fields).encode(), URLENCODED


def submit(client, encode=pairs, **fields):
    body, kind = encode(**fields)
    return client.ask(body, key=None, who=None, headers=[kind, BROWSER])


@pytest.fixture
def page(make_client, shop):
    """A shop whose orders come from a form, and which sends the browser on to the order."""
    shop.answer = lambda asked: (303, [("location", f"/orders/{asked.count}")], [b""])
    return lambda **options: make_client(**{"routes": [Route("/pay", form=FIELD, required=True)], **options})


@pytest.mark.parametrize("encode", [pairs, parts])
def test_the_same_page_sent_twice_is_one_submit_and_leads_to_the_same_place(page, shop, encode):
    client, token = page(), form_token()
    first, second = (submit(client, encode, item="tea", **{FIELD: token}) for _ in range(2))
    assert (first.status, second.status, second.replayed) == (303, 303, True)
    assert first.header("location") == second.header("location") == "/orders/1"
    assert shop.count == 1


def test_a_reload_may_draw_another_boundary(page, shop):
    client, token = page(), form_token()
    for boundary in ("one", "two"):
        body, kind = parts(boundary, item="tea", **{FIELD: token})
        client.ask(body, key=None, who=None, headers=[kind])
    assert shop.count == 1


def test_a_page_opened_again_is_another_submit(page, shop):
    client = page()
    for _ in range(2):
        submit(client, item="tea", **{FIELD: form_token()})
    assert shop.count == 2


def test_a_page_sent_again_with_other_contents_is_refused_in_words_for_people(page, shop):
    client, token = page(), form_token()
    submit(client, item="tea", **{FIELD: token})
    response = submit(client, item="<b>coffee</b>", **{FIELD: token})
    assert (response.status, response.header("content-type")) == (422, "text/html; charset=utf-8")
    assert b"This form was submitted before, with different contents." in response.body
    assert shop.count == 1


def test_a_script_that_sends_a_form_hears_a_problem(page):
    body, kind = pairs(item="tea")
    response = page().ask(body, key=None, headers=[kind])
    assert (response.status, response.problem()["type"]) == (400, "urn:twiceproof:form-token-missing")


def test_without_a_token_a_form_is_refused_where_it_is_required(page, shop):
    response = submit(page(), item="tea")
    assert (response.status, shop.count) == (400, 0)
    assert b"Open the page again" in response.body


@pytest.mark.parametrize("encode", [pairs, parts])
def test_without_a_token_a_form_runs_unguarded_where_none_is_required(page, shop, encode):
    client = page(routes=[Route("/pay", form=FIELD)])
    for _ in range(2):
        assert submit(client, encode, item="tea").status == 303
    assert shop.count == 2
    assert b"tea" in shop.asked[1].body


def test_a_form_route_takes_a_key_in_the_header_too(page, shop):
    client = page()
    assert not client.ask().replayed
    assert client.ask().replayed


@pytest.mark.parametrize("token", ["short", "x" * 129, "with spaces and such things", "<script>alert(1)</script>12345"])
def test_a_token_that_was_not_drawn_here_is_refused(page, shop, token):
    assert submit(page(), **{FIELD: token}).status == 400
    assert shop.count == 0


def test_a_duplicate_of_a_form_waits_for_the_first_unless_told_otherwise():
    from twiceproof.middleware.routes import RouteRule

    assert RouteRule(Route("/pay", form=FIELD)).busy == "wait"
    assert RouteRule(Route("/pay", form=FIELD, busy=409)).busy == 409
    assert RouteRule(Route("/pay")).busy == 409


def test_two_people_with_one_token_do_not_see_each_other(page, shop):
    client, token = page(principal=lambda carrier: f"user {shop.count}"), form_token()
    submit(client, **{FIELD: token})
    assert not submit(client, **{FIELD: token}).replayed


def test_a_token_is_not_in_the_ledger(page, app):
    token = form_token()
    submit(page(), **{FIELD: token})
    [record] = app.store.scan("claim").block().records
    assert token not in record.body + record.at.space


# -- signed --------------------------------------------------------------------------------------


def test_a_signed_token_is_taken_and_one_of_another_secret_is_not(page, shop, clock):
    client = page(secret="s3cret")
    assert submit(client, **{FIELD: form_token("s3cret", clock=clock)}).status == 303
    for wrong in (form_token(), form_token("other", clock=clock)):
        assert submit(client, **{FIELD: wrong}).status == 400
    assert shop.count == 1


def test_every_changed_character_of_a_signed_token_is_noticed(clock):
    token = form_token("s3cret", clock=clock)
    assert not isinstance(read_token(token, "s3cret"), Malformed)
    for at in range(len(token)):
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        assert isinstance(read_token(changed, "s3cret"), Malformed), at


def test_a_form_older_than_answers_are_kept_is_refused(page, shop, clock):
    client = page(secret="s", routes=[Route("/pay", form=FIELD, keep="1h")])
    token = form_token("s", clock=clock)
    clock.advance(3_700)
    assert submit(client, **{FIELD: token}).status == 412
    assert shop.count == 0


# -- the field -----------------------------------------------------------------------------------


def test_the_hidden_field_goes_into_a_page_as_it_is_and_holds_a_fresh_token():
    first, second = form_field(), form_field()
    found = re.fullmatch(r'<input type="hidden" name="twiceproof_token" value="([^"]+)" autocomplete="off">', first)
    assert found
    assert not isinstance(read_token(found[1], ""), Malformed)
    assert first != second
    assert first.__html__() == str(first)


def test_names_and_tokens_are_escaped():
    assert '"><script>' not in form_field(name='"><script>', token='"><script>')


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b'{"t": 1}'),
        ("multipart/form-data", b"--x"),
        ("application/x-www-form-urlencoded", b"a=1"),
        ("application/x-www-form-urlencoded", b"&".join([b"a=1"] * 3_000)),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n\r\n--x--"),
    ],
)
def test_where_there_is_no_token_none_is_found(kind, body):
    assert token_in(kind, body, "t") == ""
