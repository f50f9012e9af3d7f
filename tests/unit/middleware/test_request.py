"""Which keys are taken, whose they are, and what they are bound to."""

from __future__ import annotations

from uuid import UUID

import pytest

from twiceproof import Misuse
from twiceproof.inbound.reply import Malformed, read_key
from twiceproof.middleware import Route

MALFORMED = [
    "",
    '""',
    "a b",
    "a,b",
    "a;b",
    'a"b',
    "a\\b",
    '"open',
    '"a\\x"',
    '"a"b',
    '"a";p=1',
    " ",
    '" a"',
    "é",
    "a\tb",
    "a" * 256,
]


@pytest.mark.parametrize("value", MALFORMED)
def test_a_malformed_key_is_refused_and_nothing_runs(client, shop, value):
    response = client.ask(key=value)
    assert (response.status, response.problem()["type"]) == (400, "urn:twiceproof:idempotency-key-malformed")
    assert response.problem()["next"]
    assert shop.count == 0


@pytest.mark.parametrize(
    "value", ["a", "8e03978e-40d5-43dd-bc93-6894a57f9324", "a" * 255, "a.b_c~d@e/f+g=h:i", '"a b"']
)
def test_a_well_formed_key_is_taken(client, shop, value):
    assert client.ask(key=value).status == 201
    assert client.ask(key=value).replayed
    assert shop.count == 1


def test_a_quoted_key_and_a_bare_one_are_one_key(client, shop):
    first, second = client.ask(key="order-7"), client.ask(key='"order-7"')
    assert second.replayed
    assert second.body == first.body
    assert shop.count == 1


@pytest.mark.parametrize(("quoted", "key"), [('"a\\"b"', 'a"b'), ('"a\\\\b"', "a\\b"), ('"x y"', "x y"), (" k ", "k")])
def test_a_quoted_key_is_read_as_rfc_8941_says(quoted, key):
    assert read_key(quoted) == key


def test_two_keys_in_one_request_are_refused(client, shop):
    response = client.ask(key="a", headers=[("idempotency-key", "b")])
    assert response.status == 400
    assert shop.count == 0


def test_every_visible_character_is_either_taken_bare_or_refused():
    refused = {chr(code) for code in range(33, 127) if isinstance(read_key(f"a{chr(code)}b"), Malformed)}
    assert refused == set('",;\\')


def test_the_key_is_echoed_as_it_was_sent_and_exposed_to_scripts_of_other_origins(client):
    for expected in ("false", "true"):
        response = client.ask(key='"k 1"')
        assert response.header("idempotency-key") == '"k 1"'
        assert response.header("idempotent-replayed") == expected
        assert response.header("access-control-expose-headers") == "Idempotency-Key, Idempotent-Replayed"


def test_a_missing_key_is_refused_where_it_is_required(make_client, shop):
    response = make_client(routes=[Route("/pay", required=True)]).ask(key=None)
    assert (response.status, response.problem()["type"]) == (400, "urn:twiceproof:idempotency-key-missing")
    assert shop.count == 0


def test_without_a_key_a_request_runs_each_time_where_none_is_required(client, shop):
    assert [client.ask(key=None).status for _ in range(2)] == [201, 201]
    assert shop.count == 2


def test_without_a_key_the_answer_is_left_alone(client):
    assert client.ask(key=None).headers == [("content-type", "application/json")]


# -- whose it is ---------------------------------------------------------------------------------


def test_another_caller_with_the_same_key_gets_an_answer_of_his_own(client, shop):
    assert client.ask(who="Bearer ann").body == b'{"count": 1}'
    response = client.ask(who="Bearer bob")
    assert (response.body, response.replayed) == (b'{"count": 2}', False)


def test_a_caller_who_is_not_known_is_refused(client, shop):
    response = client.ask(who=None)
    assert (response.status, response.problem()["type"]) == (403, "urn:twiceproof:idempotency-key-anonymous")
    assert shop.count == 0


@pytest.mark.parametrize(
    ("required", "move"), [(False, "credentials, or leave the Idempotency-Key out."), (True, "credentials.")]
)
def test_the_next_move_does_not_drop_a_key_that_is_required(make_client, required, move):
    response = make_client(routes=[Route("/pay", required=required)]).ask(who=None)
    assert response.problem()["next"] == f"Send your {move}"


def test_unknown_callers_share_a_scope_that_was_named_for_them(make_client, shop):
    client = make_client(anonymous="public")
    assert not client.ask(who=None).replayed
    assert client.ask(who=None).replayed
    assert not client.ask(who="Bearer ann").replayed


def test_a_caller_called_like_the_scope_of_the_unknown_is_not_one_of_them(make_client, shop):
    client = make_client(anonymous="public", principal=lambda carrier: None if shop.count == 0 else "public")
    client.ask()
    assert not client.ask().replayed


def test_who_calls_can_be_told_by_a_function(make_client, shop):
    seen = []
    client = make_client(principal=lambda carrier: seen.append(carrier) or "ann")
    client.ask(who="Bearer of today")
    assert client.ask(who="Bearer of tomorrow").replayed
    assert "path" in seen[0] or "PATH_INFO" in seen[0]


@pytest.mark.parametrize("number", [0, 42, UUID(int=7)])
def test_who_calls_can_be_told_by_a_number(make_client, number):
    client = make_client(principal=lambda carrier: number)
    client.ask()
    assert client.ask(who="Bearer of tomorrow").replayed
    assert make_client(principal=lambda carrier: str(number)).ask().replayed


@pytest.mark.parametrize("principal", [b"ann", True, object(), ["ann"]])
def test_a_principal_that_identifies_no_caller_is_refused(make_client, shop, principal):
    with pytest.raises(Misuse, match="does not identify a caller"):
        make_client(principal=lambda carrier: principal).ask()
    assert shop.count == 0


def test_who_calls_is_not_asked_where_there_is_no_key(make_client):
    assert make_client(principal=lambda carrier: 1 / 0).ask(key=None).status == 201


# -- what it is bound to -------------------------------------------------------------------------


def test_the_same_key_on_another_route_is_another_request(client, shop):
    client.ask(path="/pay")
    assert not client.ask(path="/refund").replayed
    assert shop.count == 2


def test_the_same_key_with_another_method_is_another_request(client, shop):
    client.ask(method="POST")
    assert not client.ask(method="PATCH").replayed


@pytest.mark.parametrize(
    "change",
    [{"body": b"[]"}, {"query": "a=1"}, {"headers": [("content-type", "text/plain")]}, {"path": "/orders/2/pay"}],
)
def test_the_same_key_with_another_payload_is_refused(make_client, shop, change):
    client = make_client(routes=["/orders/{order}/pay"])
    first = {"body": b"{}", "path": "/orders/1/pay"}
    client.ask(**first)
    response = client.ask(**{**first, **change})
    assert (response.status, response.problem()["type"]) == (422, "urn:twiceproof:idempotency-key-reused")
    assert response.problem()["next"]
    assert shop.count == 1
    assert client.ask(**first).replayed


def test_fields_that_may_differ_are_left_out_of_the_comparison(make_client, shop):
    client = make_client(routes=[Route("/pay", ignore=("sent_at",))])
    client.ask(b'{"amount": 5, "sent_at": 1}')
    assert client.ask(b'{"sent_at": 2, "amount": 5}').replayed
    assert client.ask(b'{"amount": 6, "sent_at": 1}').status == 422
    assert client.ask(b"{not json", key="k-2").status == 201


def test_a_form_sent_again_with_another_boundary_is_the_same_form(client, shop):
    def form(boundary: str) -> tuple[bytes, list[tuple[str, str]]]:
        body = f'--{boundary}\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--{boundary}--\r\n'.encode()
        return body, [("content-type", f"multipart/form-data; boundary={boundary}")]

    body, headers = form("first")
    client.ask(body, headers=headers)
    body, headers = form("second")
    assert client.ask(body, headers=headers).replayed
    assert client.ask(body.replace(b"1\r\n", b"2\r\n"), headers=headers).status == 422


def form(boundary: str, *values: str, more: str = "", file: str = "") -> tuple[bytes, list[tuple[str, str]]]:
    """A form as clients send it, with a field for each value and perhaps a file."""
    parts = [f'Content-Disposition: form-data; name="f{n}"\r\n\r\n{value}\r\n' for n, value in enumerate(values)]
    if file:
        parts.append(f'Content-Disposition: form-data; name="a"; filename="a.txt"\r\n\r\n{file}\r\n')
    body = "".join(f"--{boundary}\r\n{part}" for part in parts) + f"--{boundary}--\r\n"
    written = f'"{boundary}"' if ";" in boundary else boundary
    return body.encode(), [("content-type", f"multipart/form-data; boundary={written}{more}")]


TWO_FIELDS = '1\r\n\r\nContent-Disposition: form-data; name="f1"\r\n\r\n900'  # what is left of two without a boundary
TWO_FIELDS_AND_DASHES = TWO_FIELDS.replace("1\r\n", "1\r\n--", 1)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (form("one", "1"), form("two", "2")),
        (form("one", "1"), form("two", "1", "2")),
        (form("one", "1", file="a"), form("two", "1", file="b")),
        (form("one", "1", "900"), form("two", TWO_FIELDS)),  # one field whose text looks like the end of it
        (form("one", "1", "900"), form("two", TWO_FIELDS_AND_DASHES)),
        (form("A", "tea--Arest"), form("B", "tea--rest")),  # what looks like a boundary inside a value
        (form("one", "1", more="; charset=utf-8"), form("one", "1", more="; charset=utf-16")),
        (form("x", "1", more='; boundary="y"'), form("y", "1", more='; boundary="x"')),
    ],
)
def test_another_form_under_the_same_key_is_refused(client, shop, first, other):
    assert client.ask(first[0], headers=first[1]).status == 201
    assert client.ask(other[0], headers=other[1]).status == 422
    assert client.ask(first[0], headers=first[1]).replayed
    assert shop.count == 1


@pytest.mark.parametrize("boundary", ["two", "a;b", "----WebKitFormBoundaryQ2R4", "-1-", "(x)"])
@pytest.mark.parametrize("more", ["", "; charset=utf-8"])
def test_however_its_boundary_is_written_a_form_sent_again_is_the_same(client, shop, boundary, more):
    first, again = form("one", "1", file="a--\r\nb", more=more), form(boundary, "1", file="a--\r\nb", more=more)
    client.ask(first[0], headers=first[1])
    loud = [
        (name, value.replace("boundary=", "Boundary=").replace("form-data", "Form-Data")) for name, value in again[1]
    ]
    assert client.ask(again[0], headers=loud).replayed
    assert shop.count == 1


def test_a_boundary_that_holds_the_word_json_makes_no_json_of_a_form(make_client, shop):
    client = make_client(routes=[Route("/pay", ignore=("sent_at",))])
    first, again = form("json-1", "1"), form("json-2", "1")
    assert client.ask(first[0], headers=first[1]).status == 201
    assert client.ask(again[0], headers=again[1]).replayed


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
def test_other_methods_are_left_alone_unless_they_are_named(client, shop, method):
    assert client.ask(method=method).header("idempotent-replayed") is None
    assert client.ask(method=method).header("idempotent-replayed") is None
    assert shop.count == 2


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_other_unsafe_methods_are_guarded_where_they_are_named(make_client, method):
    client = make_client(routes=[Route("/pay", methods=("POST", method))])
    client.ask(method=method)
    assert client.ask(method=method).replayed


def test_routes_that_are_not_named_are_left_alone(make_client, shop):
    client = make_client(routes=["/pay"])
    client.ask(path="/other")
    assert client.ask(path="/other").header("idempotent-replayed") is None
    assert client.ask(path="/pay").header("idempotent-replayed") == "false"


# -- the ledger ----------------------------------------------------------------------------------


def test_no_credential_and_no_payload_lands_in_the_ledger(client, app):
    client.ask(b'{"card": "4242-canary"}', who="Bearer canary-token")
    for kind in ("claim", "resource", "evidence"):
        for record in app.store.scan(kind).block().records:
            assert "canary" not in record.body + record.at.space + record.at.key


def test_with_a_secret_the_same_request_leaves_other_hashes(make_client, app):
    for secret in ("", "s", "x" * 100):
        make_client(secret=secret).ask()
    records = app.store.scan("claim").block().records
    assert len({record.at.space for record in records}) == 3


def test_claims_are_listed_under_a_name_that_people_can_type(make_client, app):
    make_client(routes=["/orders/{order}/pay", Route("/refunds", name="refund")]).ask(path="/orders/1/pay")
    make_client(routes=["/orders/{order}/pay", Route("/refunds", name="refund")]).ask(path="/refunds")
    make_client().ask()
    names = {record.at.space.split("/")[1] for record in app.store.scan("claim").block().records}
    assert names == {"POST.orders.order.pay", "refund", "http"}
