"""Limits are enforced while they are being exceeded."""

import gzip
import time
import zlib

import pytest

from tests.unit.server.local_server import LocalServer
from twiceproof.server.limits import MOST, SMALL, BodyBudget, Buckets, Reservation, ServerLimits, decompress, too_deep
from twiceproof.server.request import RequestRefused
from twiceproof.server.routes import ROUTES

SIGNED = [("x-secret", "s3cret")]


def post(server, body, *headers, **more):
    return server.call("POST", "/hooks/shop", body, [*SIGNED, *headers], **more)


def test_a_body_of_the_largest_size_is_taken_and_one_byte_more_is_not(server):
    order = b'{"id":"1","note":"%s"}'
    room = 2_000 - len(order % b"")
    assert post(server, order % (b"x" * room)).status == 200
    answer = post(server, order % (b"x" * (room + 1)))
    assert (answer.status, answer.kind) == (413, "too-large")


def test_a_body_in_pieces_is_counted_not_believed(server):
    """A flood without end: it is cut off at the first piece too many, not when it is over."""
    taken = []

    def flood():
        for piece in range(1_000):
            taken.append(piece)
            yield b"x" * 1_000

    answer = post(server, flood())
    assert (answer.status, answer.kind) == (413, "too-large")
    assert len(taken) == 3
    assert post(server, [b'{"id":', b'"pieces"}'], ("content-length", "1")).status == 200


def test_a_declared_size_is_refused_before_anything_is_read(server):
    assert post(server, b"", ("content-length", "99999999999")).status == 413


def test_a_caller_that_hangs_up_is_not_answered(server):
    from tests.unit.server.local_server import HERE

    scope_only = server.application

    async def gone():
        sent = []

        async def receive():
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/hooks/shop",
            "raw_path": b"/hooks/shop",
            "query_string": b"",
            "client": None,
            "headers": [(HERE[0].encode(), HERE[1].encode())],
        }
        await scope_only(scope, receive, send)
        return sent

    import asyncio

    assert asyncio.run(gone()) == []


# -- packed bodies -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("GZIP", gzip.compress)]
)
def test_a_packed_body_is_unpacked(server, encoding, pack):
    assert post(server, pack(b'{"id":"1"}'), ("content-encoding", encoding)).json["state"] == "new"


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_bomb_does_not_go_off(server, pack):
    encoding = "gzip" if pack is gzip.compress else "deflate"
    bomb = pack(b"\0" * 1_900_000)
    assert len(bomb) < 2_000
    answer = post(server, bomb, ("content-encoding", encoding))
    assert (answer.status, answer.kind) == (413, "too-large")


def test_a_bomb_of_a_gigabyte_costs_no_more_than_the_limit():
    import tracemalloc

    packing = zlib.compressobj(9)
    bomb = b"".join(packing.compress(b"\0" * 1_000_000) for _ in range(200)) + packing.flush()
    tracemalloc.start()
    with pytest.raises(RequestRefused):
        decompress(bomb, b"deflate", 100_000)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", b"not packed", 400),
        ("gzip", gzip.compress(b"{}", mtime=0)[:-4], 400),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"more", 400),
        ("br", b"{}", 415),
        ("gzip, gzip", gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0), 415),
    ],
    ids=["plain", "cut", "more", "unknown", "twice"],
)
def test_what_is_not_one_whole_packed_body_is_refused(server, encoding, body, status):
    answer = post(server, body, ("content-encoding", encoding))
    assert answer.status == status
    assert answer.kind in ("invalid-encoding", "unknown-encoding")


# -- depth ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/octet-stream", ""])
def test_brackets_inside_each_other_are_counted_whatever_the_body_is_said_to_be(server, kind):
    deep = b'{"payload":' + b"[" * 64 + b"]" * 64 + b"}"
    answer = server.call("PUT", "/v1/claims/ship/1", deep, [("content-type", kind)])
    assert (answer.status, answer.kind) == (400, "too-deep")
    flat = b'{"payload":[' + b"[]," * 100 + b"[]]}"
    assert server.call("PUT", "/v1/claims/ship/1", flat, [("content-type", "application/json")]).status == 201


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_only_what_senders_post_is_left_to_those_who_know_it(route):
    assert route.is_json is (route.path != "/hooks/{name}" or route.method == "OPTIONS")


@pytest.mark.parametrize("levels", [100, 900, 100_000])
def test_a_delivery_that_is_nested_too_deep_is_kept_aside(app, server, levels):
    """Also where a source of the user's own reads it, and minds no depth."""
    app.hooks["shop"].source.largest = 1_000_000
    answer = post(server, b'{"id":"1","x":' + b"[" * levels + b"]" * levels + b"}")
    assert (answer.status, answer.json["state"]) == (200, "poison")
    assert post(server, b'{"id":"1","x":[' + b"[]," * 100 + b"[]]}").json["state"] == "new"


@pytest.mark.parametrize("body", [b"[" * 65, b"{" * 900_000, bytes(range(256)) * 3_000])
def test_a_cloud_event_of_plain_bytes_has_no_brackets(app, server, body):
    app.webhook("cloudevents", secret="code-of-mine-123", start=_taking(app))
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
    path, octets = "/hooks/cloudevents?code=code-of-mine-123", ("content-type", "application/octet-stream")
    answer = server.call("POST", path, body, [*headers.items(), octets])
    assert (answer.status, answer.json["state"]) == (200, "new")
    nested = server.call("POST", path, b"[" * 65 + b"]" * 65, [*headers.items(), ("content-type", "application/json")])
    assert (nested.status, nested.json["state"]) == (200, "poison")


def _taking(app):
    @app.flow(key="event:{event[id]}")
    def take(event):
        return 1

    return take


def test_brackets_in_text_do_not_count():
    assert not too_deep(b'{"a":"' + b"[" * 1_000 + b'"}', 64)
    assert not too_deep(b'{"a":"\\"' + b"{[" * 1_000 + b'\\\\"}', 64)
    assert too_deep(b'{"a":"\\\\"' + b"[" * 1_000, 64)


# -- how often -----------------------------------------------------------------------------------


def test_a_bucket_holds_two_seconds_worth_and_fills_at_its_rate():
    buckets = Buckets(10.0)
    assert [buckets.take("a", 0.0) for _ in range(20)] == [0.0] * 20
    assert buckets.take("a", 0.0) == pytest.approx(0.1)
    assert buckets.take("b", 0.0) == 0.0
    assert buckets.take("a", 0.1) == 0.0
    assert buckets.take("a", 0.1) > 0


def test_no_more_callers_are_remembered_than_there_is_room_for():
    buckets = Buckets(1.0)
    for caller in range(MOST + 100):
        buckets.take(str(caller), 0.0)
    assert len(buckets._levels) == MOST


def test_one_address_that_calls_too_often_is_told_when_to_come_back(app, clock):
    server = LocalServer(app, limits=ServerLimits(per_source=5.0))
    answers = [server.call("GET", "/healthz", client="203.0.113.7") for _ in range(11)]
    assert [answer.status for answer in answers] == [200] * 10 + [429]
    assert answers[-1].kind == "rate-limited"
    assert answers[-1].headers["retry-after"] == "1"
    assert server.call("GET", "/healthz", client="203.0.113.8").status == 200
    clock.advance(1)
    assert server.call("GET", "/healthz", client="203.0.113.7").status == 200


def test_guessing_tokens_is_as_limited_as_anything_else(app):
    server = LocalServer(app, limits=ServerLimits(per_source=5.0))
    statuses = [server.call("GET", "/metrics", token=f"tp_{n}", client="203.0.113.7").status for n in range(11)]
    assert statuses == [401] * 10 + [429]


def test_this_machines_own_callers_are_not_counted_by_address(app):
    server = LocalServer(app, limits=ServerLimits(per_source=1.0))
    assert {server.call("GET", "/healthz").status for _ in range(10)} == {200}


def test_a_token_has_a_bucket_of_its_own_wherever_it_is_used(app):
    from twiceproof.server.tokens import Scope

    server = LocalServer(app, limits=ServerLimits(per_token=2.0))
    tokens = [server.token(Scope.READ, name=name) for name in ("a", "b")]
    statuses = [server.call("GET", "/metrics", token=tokens[0], client=f"203.0.113.{n}").status for n in range(5)]
    assert statuses == [200] * 4 + [429]
    assert server.call("GET", "/metrics", token=tokens[1]).status == 200


def test_behind_a_proxy_the_address_is_the_one_it_names_last(app):
    server = LocalServer(app, limits=ServerLimits(per_source=1.0), behind_proxy=True)

    def ask(forwarded):
        return server.call("GET", "/healthz", headers=[("x-forwarded-for", forwarded)]).status

    assert [ask(f"10.0.0.{n}, 203.0.113.7") for n in range(3)] == [200, 200, 429]
    assert ask("203.0.113.7, 203.0.113.9") == 200


def test_more_requests_than_are_taken_at_once_are_put_off(app):
    server = LocalServer(app, limits=ServerLimits(requests=1))
    assert server.call("GET", "/healthz").status == 200
    server.application.active_requests = 1
    answer = server.call("GET", "/healthz")
    assert (answer.status, answer.kind) == (503, "busy")
    assert answer.headers["retry-after"] == "1"


def test_a_text_without_an_end_is_looked_at_once():
    """Half a megabyte of quotes behind an open one: tried again at each of them, it would take hours."""
    body = b"[" * 65 + b'"' + b'\\"' * 250_000
    began = time.process_time()
    assert too_deep(body, 64)
    assert not too_deep(b'"' + b'[\\"' * 250_000, 64)
    assert not too_deep(b"[" * 64 + b'"[' + b"\\", 64)
    assert time.process_time() - began < 5.0


# -- all bodies together -------------------------------------------------------------------------


def test_large_bodies_have_so_much_room_together_and_small_ones_always_come_in(app):
    """Two thousand callers that each send most of a large body would fill any machine."""
    room = BodyBudget(2 * SMALL)
    first, second, third = (Reservation(room) for _ in range(3))
    first.grow(SMALL + 1)
    with pytest.raises(RequestRefused):
        second.grow(SMALL + 1)
    third.grow(SMALL)
    first.end()
    second.end()
    assert room.taken == 0
    Reservation(room).grow(2 * SMALL)


def test_room_is_given_back_whatever_became_of_the_request(app):
    app.hooks["shop"].source.largest = 5 * SMALL
    server = LocalServer(app, limits=ServerLimits(bodies=2 * SMALL))
    order = b'{"id":"1","note":"%s"}' % (b"x" * (SMALL + 1))
    assert post(server, order).status == 200
    assert server.call("POST", "/hooks/shop", order).status == 401
    assert (post(server, [order, order]).status, post(server, [b"x" * 1_000] * 300).status) == (503, 503)
    assert server.application.body_budget.taken == 0
    assert post(server, order).status == 200


# -- who shares a limit --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("203.0.113.9:50001", "203.0.113.9:50002"),
        ("2001:db8::1", "2001:db8::ffff:1"),
        ("[2001:db8::1]:50001", "[2001:db8::2]:50002"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("1.2.3.4, 203.0.113.9", "5.6.7.8, 203.0.113.9"),
    ],
)
def test_a_caller_cannot_be_many_behind_a_proxy(app, first, second):
    server = LocalServer(app, limits=ServerLimits(per_source=0.5), behind_proxy=True)

    def ask(forwarded):
        return server.call("GET", "/nowhere", headers=[("x-forwarded-for", forwarded)], client="198.51.100.1").status

    assert (ask(first), ask(second), ask("192.0.2.77"), ask("2001:db8:0:1::1")) == (404, 429, 404, 404)


@pytest.mark.parametrize("proxy", ["198.51.100.1", "127.0.0.1"])
def test_those_whom_a_proxy_names_by_no_address_are_one_caller(app, proxy):
    server = LocalServer(app, limits=ServerLimits(per_source=0.5), behind_proxy=True)
    asked = [
        server.call("GET", "/nowhere", headers=[("x-forwarded-for", word)], client=proxy).status
        for word in ("localhost", "127.0.0.1.evil.example", "unix:")
    ]
    assert asked == [404, 429, 429]
    assert [server.call("GET", "/nowhere", client="127.0.0.1").status for _ in range(3)] == [404] * 3  # not through it


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("DELETE", "/v1/runs", [], 405),
        ("GET", "/v1/runs/%ff", [], 404),
        ("GET", "/healthz", [("origin", "a"), ("origin", "b")], 400),
    ],
)
def test_what_is_refused_before_anybody_asks_who_calls_is_counted_too(app, method, path, headers, status):
    server = LocalServer(app, limits=ServerLimits(per_source=0.5))

    def ask(client):
        return server.call(method, path, headers=headers, client=client)

    assert ask("198.51.100.1").status == status
    refused = ask("198.51.100.1")
    assert (refused.status, refused.headers["retry-after"]) == (429, "2")
    assert ask("198.51.100.2").status == ask("127.0.0.1").status == status
