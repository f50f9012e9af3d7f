"""Bodies in pieces, in both directions, and clients that hang up."""

from __future__ import annotations

import asyncio
import io
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.unit.middleware.harness import Client
from twiceproof.middleware import Route
from twiceproof.middleware.asgi import AsgiExchange
from twiceproof.middleware.responses import AnswerOvertaken
from twiceproof.operations import block

SENT = [("idempotency-key", "k-1"), ("authorization", "Bearer ann"), ("content-type", "text/plain")]


def test_a_stream_is_passed_on_while_it_is_made(client, shop):
    made, passed = [], []

    def chunks():
        for number in range(3):
            made.append(number)
            yield b"chunk %d;" % number

    shop.answer = lambda asked: (200, [], chunks())
    first = client.ask(listener=lambda chunk: passed.append(len(made)))
    assert 1 in passed and 2 in passed  # the first was response before the last was made
    assert first.body == client.ask().body == b"chunk 0;chunk 1;chunk 2;"
    assert shop.count == 1


def state(app) -> str:
    return app.store.scan("claim").block().records[0].state


@pytest.mark.parametrize("headers", [[], [("content-length", "6")]], ids=["of unknown length", "of known length"])
def test_the_end_of_an_answer_is_not_passed_on_before_it_is_on_record(client, shop, app, headers):
    """A client that has response everything may rely on it: the process may be killed right after."""
    response = []
    shop.answer = lambda asked: (200, headers, iter([b"abc", b"def"]))
    client.ask(listener=lambda chunk: response.append((chunk, state(app))))
    ends = dict(response)
    if headers:
        assert ends[b"def"] == "done"
    assert ends[b"abc"] == "held"
    assert state(app) == "done"


def test_a_short_answer_is_on_record_before_any_of_it_is_passed_on(client, shop, app):
    response = []
    shop.answer = lambda asked: (200, [("content-length", "2")], [b"ok"])
    client.ask(listener=lambda chunk: response.append(state(app)))
    assert set(response) == {"done"}


def test_a_client_that_hangs_up_in_mid_answer_finds_the_whole_of_it_later(client, shop):
    def hang_up(chunk):
        if chunk:
            raise OSError("connection reset")

    shop.answer = lambda asked: (200, [], (b"part %d;" % n for n in range(3)))
    client.ask(listener=hang_up)
    response = client.ask()
    assert (response.body, response.replayed) == (b"part 0;part 1;part 2;", True)
    assert shop.count == 1


def test_a_stream_without_end_stops_when_nobody_listens_any_more(make_client, shop):
    client = make_client(routes=[Route("/pay", largest_answer=100)])

    def hang_up(chunk):
        if chunk:
            raise OSError("connection reset")

    def endless():
        while True:
            yield b"tick "

    shop.answer = lambda asked: (200, [], endless())
    if client.kind == "asgi":
        with pytest.raises(OSError, match="client disconnected"):
            client.ask(listener=hang_up)
    else:
        client.ask(listener=hang_up)
    assert client.ask().problem()["state"] == "review"


def test_an_error_in_mid_answer_leaves_an_unknown_outcome(client, shop):
    def chunks():
        yield b"half"
        raise ValueError("the till is stuck")

    shop.answer = lambda asked: (200, [], chunks())
    with pytest.raises(ValueError, match="stuck"):
        client.ask()
    assert client.ask().problem()["state"] == "review"


def test_an_answer_shorter_than_it_promised_is_not_taken_for_one(client, shop):
    shop.answer = lambda asked: (200, [("content-length", "100")], [b"half"])
    client.ask()
    assert client.ask().problem()["state"] == "review"


def test_work_after_the_answer_does_not_delay_it_nor_fail_it(client, shop, app):
    seen = []

    def later():
        seen.append(state(app))
        if len(seen) == 1:
            raise ValueError("the printer is stuck")

    shop.on_end = later
    with pytest.raises(ValueError, match="printer"):
        client.ask()
    assert seen == ["done"]
    assert client.ask().replayed


# -- the request's body --------------------------------------------------------------------------


def test_a_request_in_pieces_reaches_the_app_byte_for_byte(app, shop):
    client = Client("asgi", shop, app=app)
    response = asyncio.run(client.ask_asgi("POST", "/pay", "", SENT, [b"a\x00", b"", b"b" * 70_000, b"c"]))
    assert response.status == 201
    assert shop.asked[0].body == b"a\x00" + b"b" * 70_000 + b"c"
    again = asyncio.run(client.ask_asgi("POST", "/pay", "", SENT, [b"a\x00" + b"b" * 70_000 + b"c"]))
    assert again.replayed


@pytest.mark.parametrize("announced", [True, False])
def test_a_request_too_large_is_refused_before_anything_runs(make_client, shop, announced):
    client = make_client(routes=[Route("/pay", largest_body=100)])
    headers = [] if announced else [("content-length", "")]
    if client.kind == "wsgi" and not announced:
        response = ask_unannounced(client, b"x" * 101)
    else:
        response = client.ask(b"x" * 101, headers=headers)
    assert (response.status, response.problem()["type"]) == (413, "urn:twiceproof:too-large")
    assert shop.count == 0
    assert client.ask(b"x" * 100).status == 201


def test_a_request_that_announces_too_much_is_refused_unread(app, shop):
    client = Client("asgi", shop, app=app, routes=[Route("/pay", largest_body=100)])
    sent = [(b"content-length", b"101"), *((name.encode(), value.encode()) for name, value in SENT)]
    scope = {"type": "http", "method": "POST", "path": "/pay", "query_string": b"", "headers": sent}
    response = []

    async def receive():
        raise AssertionError("read")

    async def send(message):
        response.append(message)

    asyncio.run(client.middleware(scope, receive, send))
    assert response[0]["status"] == 413


def ask_unannounced(client, body):
    """A body in chunks, whose end the server knows."""
    middleware = client.middleware

    def call(environ, start_response):
        environ["wsgi.input_terminated"] = True
        return middleware(environ, start_response)

    client.middleware = call
    try:
        return client.ask(body, headers=[("content-length", "")])
    finally:
        client.middleware = middleware


def test_a_wsgi_body_of_unknown_length_reaches_the_app_whole(app, shop):
    client = Client("wsgi", shop, app=app)
    assert ask_unannounced(client, b"in chunks").status == 201
    assert shop.asked[0].body == b"in chunks"


def test_a_body_that_ends_too_soon_is_refused(app, shop):
    response = Client("wsgi", shop, app=app).ask(b"half", headers=[("content-length", "100")])
    assert (response.status, response.problem()["type"]) == (400, "urn:twiceproof:body-cut-short")
    assert shop.count == 0


def test_a_client_that_hangs_up_before_its_request_is_whole_runs_nothing(app, shop):
    client = Client("asgi", shop, app=app)
    messages = [{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}]
    sent = []

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    headers = [(name.encode(), value.encode()) for name, value in SENT]
    scope = {"type": "http", "method": "POST", "path": "/pay", "query_string": b"", "headers": headers}
    asyncio.run(client.middleware(scope, receive, send))
    assert (shop.count, sent) == (0, [])


# -- manners of ASGI -----------------------------------------------------------------------------


def call_asgi(client, inner, **more):
    """The messages that reach the server."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"{}"}

    async def send(message):
        sent.append(message)

    headers = [(name.encode(), value.encode()) for name, value in SENT]
    client.middleware._inner = inner
    scope = {"type": "http", "method": "POST", "path": "/pay", "query_string": b"", "headers": headers, **more}
    asyncio.run(client.middleware(scope, receive, send))
    return sent


@pytest.fixture
def asgi(app, shop):
    return Client("asgi", shop, app=app)


def test_the_app_is_not_offered_ways_past_the_guard(asgi):
    seen = []

    async def inner(scope, receive, send):
        seen.append(scope["extensions"])
        await asgi.shop.asgi(scope, receive, send)

    call_asgi(asgi, inner, extensions={"http.response.pathsend": {}, "http.response.early_hint": {}})
    assert seen == [{"http.response.early_hint": {}}]


def test_an_app_that_waits_for_the_client_to_hang_up_hears_of_it_after_its_answer(asgi):
    async def inner(scope, receive, send):
        assert (await receive())["type"] == "http.request"
        listening = asyncio.create_task(receive())
        await asyncio.sleep(0)
        assert not listening.done()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})
        assert (await listening)["type"] == "http.disconnect"

    assert call_asgi(asgi, inner)[0]["status"] == 200


def test_an_app_that_returns_without_an_answer_leaves_an_unknown_outcome(asgi, app):
    async def inner(scope, receive, send):
        return None

    call_asgi(asgi, inner)
    assert state(app) == "review"


def test_a_coroutine_that_is_thrown_away_lets_its_lease_lapse(asgi, app):
    """As a loop does that is torn down: nothing more can be awaited."""

    class Pause:
        def __await__(self):
            yield

    async def inner(scope, receive, send):
        await Pause()

    asgi.middleware._inner = inner
    request = asgi.middleware._guard.reader.read(
        asgi.middleware._guard.find_rule("POST", "/pay", "")[0], "POST", "/pay", "", dict(SENT), lambda: "ann"
    )
    held = block(asgi.middleware._guard.enter(request, b""))
    call = AsgiExchange(asgi.middleware._guard, held, b"", {}, None, None).run(inner)
    call.send(None)
    call.close()
    assert app._heartbeat._holds == {}
    assert state(app) == "held"


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
def test_other_kinds_of_connections_are_left_alone(asgi, kind):
    seen = []

    async def inner(scope, receive, send):
        seen.append(scope["type"])

    asgi.middleware._inner = inner
    asyncio.run(asgi.middleware({"type": kind, "path": "/pay", "headers": []}, None, None))
    assert seen == [kind]


# -- manners of WSGI -----------------------------------------------------------------------------


def test_what_an_old_app_writes_is_recorded_too(app, shop):
    client = Client("wsgi", shop, app=app)

    def inner(environ, start_response):
        write = start_response("200 OK", [])
        write(b"written ")
        return [b"returned"]

    client.middleware._inner = inner
    assert client.ask().body == client.ask().body == b"written returned"


def test_an_app_may_take_back_its_start_while_nothing_is_passed_on(app, shop):
    client = Client("wsgi", shop, app=app)

    def inner(environ, start_response):
        start_response("200 OK", [])
        start_response("404 Not Found", [], (ValueError, ValueError("x"), None))
        return [b"no"]

    client.middleware._inner = inner
    assert (client.ask().status, client.ask().status) == (404, 404)


def test_what_a_start_promised_is_taken_back_with_it(app, shop):
    def second_thoughts(environ, start_response):
        start_response("200 OK", [("content-length", "100")])
        start_response("404 Not Found", [], exc_info=(None, None, None))
        return [b"no such order"]

    client = Client("wsgi", shop, app=app)
    client.middleware._inner = second_thoughts
    assert [client.ask().body for _ in range(2)] == [b"no such order"] * 2
    assert client.ask().replayed


def test_the_path_is_read_as_it_was_written(app, shop):
    client = Client("wsgi", shop, app=app, routes=["/zażółć"])
    assert client.ask(path="/zażółć".encode().decode("latin-1")).header("idempotent-replayed") == "false"


def test_a_server_that_never_iterates_still_leaves_a_record(app, shop):
    client = Client("wsgi", shop, app=app)
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/pay",
        "wsgi.version": (1, 0),
        "wsgi.input": io.BytesIO(b""),
        "HTTP_IDEMPOTENCY_KEY": "k-1",
        "HTTP_AUTHORIZATION": "Bearer ann",
    }
    client.middleware(environ, lambda *args: None).close()
    assert state(app) == "done"


@pytest.mark.parametrize("headers", [[], [("content-length", "6")]], ids=["of unknown length", "of known length"])
def test_a_stream_whose_claim_was_taken_from_it_is_broken_off(make_client, shop, app, clock, headers):
    """Its end would say that all of it can be relied on, and the next retry would hear another answer."""
    client, response = make_client(routes=[Route("/pay", repeat="safe")]), []

    def chunks():
        yield b"abc"
        clock.advance(31)
        shop.answer = lambda asked: (200, [], [b"second"])
        assert in_a_thread(client.ask).body == b"second"
        yield b"def"

    shop.answer = lambda asked: (200, headers, chunks())
    with pytest.raises(AnswerOvertaken):
        client.ask(listener=response.append)
    assert b"".join(part or b"" for part in response) == (b"abc" if headers else b"abcdef")
    assert client.ask().body == b"second"
    assert "abcdef" in app.store.scan("evidence").block().records[0].body


def in_a_thread(ask):
    """From inside a request, where an event loop runs already."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result()
