"""Requests and answers: what every one of them has, whatever it is about."""

import asyncio
import contextlib
import json
import logging
from urllib.parse import quote

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from tests.unit.server.local_server import LocalServer, Shop
from twiceproof import StoreUnavailable
from twiceproof.inbound.reply import Reply, json_reply
from twiceproof.inbound.source import Poison
from twiceproof.operations import Request
from twiceproof.server import auth as policy
from twiceproof.server import monitoring
from twiceproof.server.app import make_application
from twiceproof.server.request import SECURITY, ApiRequest, split_root_path
from twiceproof.server.routes import ROUTES
from twiceproof.server.routing import ApiRoute
from twiceproof.server.tokens import Scope, anonymous

SIGNED = [("x-secret", "s3cret")]


@pytest.fixture
def serving(app, monkeypatch):
    """A server with one more route."""

    def make(handle, method="POST", path="/v1/test/{name}"):
        monkeypatch.setitem(policy.POLICY, (method, path), Scope.OPEN)
        return LocalServer(app, routes=(*ROUTES, ApiRoute(method, path, "test", handle, ignores_unknown_query=True)))

    return make


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/healthz"), ("GET", "/nowhere"), ("DELETE", "/healthz"), ("POST", "/hooks/shop")]
)
def test_every_answer_has_the_security_headers(server, method, path):
    headers = server.call(method, path, b"{}").headers
    for name, value in SECURITY:
        assert headers[name] == value


def test_an_address_that_does_not_exist_says_where_to_look(server):
    answer = server.call("GET", "/nowhere")
    assert (answer.status, answer.kind) == (404, "not-found")
    assert "/openapi.json" in answer.json["next"]
    assert "percent-encoded" not in answer.json["next"]


@pytest.mark.parametrize("path", ["/v1/claims/ship/2026/17", "/v1/claims/ship/", "/v1/claims/ship"])
def test_an_address_with_a_slash_in_its_key_or_without_a_key_says_how_it_is_written(server, path):
    answer = server.call("PUT", path)
    assert (answer.status, answer.kind) == (404, "not-found")
    assert "/v1/claims/OPERATION/KEY, with the key percent-encoded: a/b is a%2Fb" in answer.json["next"]


def test_a_method_that_an_address_does_not_take_says_which_it_does(server):
    answer = server.call("PATCH", "/hooks/shop")
    assert (answer.status, answer.kind) == (405, "method-not-allowed")
    assert answer.headers["allow"] == "OPTIONS, POST"


def test_requests_under_way_are_told_while_they_are(serving):
    response = []

    async def ask(call):
        response.append((await call.server_status.text()).decode())
        return json_reply(200, {})

    server = serving(ask)
    server.call("POST", "/v1/test/x")
    response.append(server.call("GET", "/metrics").body.decode())
    assert ["twiceproof_requests_under_way 1.0" in text for text in response] == [True, True]
    assert server.application.active_requests == 0


def test_head_is_get_without_the_body(server):
    assert server.call("HEAD", "/healthz").status == 200
    assert server.call("HEAD", "/hooks/shop").status == 405


def test_what_breaks_inside_stays_inside(serving, caplog):
    async def broken(call):
        raise RuntimeError("password=hunter2")

    answer = serving(broken).call("POST", "/v1/test/x")
    assert (answer.status, answer.kind) == (500, "internal-error")
    assert b"hunter2" not in answer.body
    assert "hunter2" in caplog.text


def test_a_route_sees_its_parameters_query_headers_and_body(serving):
    async def echo(call):
        return json_reply(200, [call.params["name"], call.query, call.headers["x-one"], call.body.decode(), call.now])

    answer = serving(echo).call("POST", "/v1/test/a%2Fb?x=1&y=%20", b"body", [("x-one", "1"), ("x-one", "2")])
    assert answer.json == ["a/b", {"x": "1", "y": " "}, "1, 2", "body", 1_700_000_000.0]


def test_a_parameter_that_is_given_twice_is_refused(serving):
    async def echo(call):
        return json_reply(200, call.query)

    answer = serving(echo).call("POST", "/v1/test/x?a=1&a=2")
    assert (answer.status, answer.kind) == (400, "bad-query")


def test_a_body_of_the_wrong_shape_says_what_is_wrong_with_it(serving):
    import msgspec

    class Wanted(msgspec.Struct):
        count: int

    async def take(call):
        return json_reply(200, call.body_as(Wanted))

    server = serving(take)
    json = [("content-type", "application/json")]
    assert server.call("POST", "/v1/test/x", b'{"count":1}', headers=json).json == {"count": 1}
    wrong = server.call("POST", "/v1/test/x", b'{"count":"many"}', headers=json)
    assert (wrong.status, wrong.kind) == (400, "wrong-body")
    assert "$.count" in wrong.json["detail"]
    assert server.call("POST", "/v1/test/x", b"{", headers=json).kind == "unreadable-body"


def test_a_routes_own_headers_go_before_everybodys(serving):
    async def page(call):
        return Reply(200, (("content-type", "text/html"), ("Cache-Control", "private")), b"<p>")

    answer = serving(page).call("POST", "/v1/test/x")
    assert answer.headers["cache-control"] == "private"
    assert answer.headers["x-content-type-options"] == "nosniff"


# -- webhooks ------------------------------------------------------------------------------------


def test_a_webhook_is_taken_in_once(server):
    answers = [server.call("POST", "/hooks/shop", b'{"id":"17"}', SIGNED).json for _ in range(3)]
    assert [answer["state"] for answer in answers] == ["new", "duplicate", "duplicate"]
    assert len({answer["run"] for answer in answers}) == 1


def test_an_unknown_webhook_and_a_wrong_signature_are_told_the_same(server):
    unknown = server.call("POST", "/hooks/nobody", b'{"id":"17"}', SIGNED)
    wrong = server.call("POST", "/hooks/shop", b'{"id":"17"}')
    assert unknown.status == wrong.status == 401
    assert unknown.body == wrong.body


def test_a_store_that_is_down_makes_a_sender_come_again(server, monkeypatch):
    from twiceproof.errors import StoreUnavailable

    def down(*args, **kwargs):
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(server.app.store, "write", down)
    monkeypatch.setattr(server.app.store, "read", down)
    answer = server.call("POST", "/hooks/shop", b'{"id":"17"}', SIGNED, host=("host", "shop.example"))
    assert answer.status == 503
    assert answer.headers["retry-after"]


# -- what operators see --------------------------------------------------------------------------


def test_ready_is_whether_the_store_answers(server, clock, monkeypatch):
    from twiceproof.errors import StoreUnavailable

    assert server.call("GET", "/readyz").json == {"status": "ready"}

    def down(at):
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(server.app.store, "read", down)
    assert server.call("GET", "/readyz").status == 200  # what was response a moment ago is believed: anonymous may ask
    clock.advance(2)
    assert server.call("GET", "/readyz").kind == "store-unavailable"
    assert server.call("GET", "/healthz").status == 200


class Frozen(Request):
    """As the drivers' requests: a cancelled one is waited for all the same, until the server answers."""

    def __init__(self, thaw):
        self._thaw = thaw

    async def wait(self):
        while not self._thaw.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self._thaw.wait()
        raise StoreUnavailable("no answer")


@pytest.mark.parametrize("question", ["is_ready", "text"])
def test_a_frozen_store_is_asked_once_and_nobody_waits_for_its_answer(server, monkeypatch, question):
    """`/readyz` says no within its two seconds, and `/metrics` leaves out what it could not count."""
    asked = []

    async def scene():
        thaw = asyncio.Event()
        for name in ("read", "scan"):
            monkeypatch.setattr(server.app.store, name, lambda *_, **__: asked.append(1) or Frozen(thaw))
        try:
            ask = getattr(server.application.server_status, question)
            return [bool(await asyncio.wait_for(ask(), 30)) for _ in range(3)]
        finally:
            thaw.set()

    monkeypatch.setattr(monitoring, "TIMEOUT", 0.05)
    assert asyncio.run(scene()) == [question == "text"] * 3
    assert len(asked) == 1


def other_flow(order):
    return order


def test_a_delivery_that_could_not_be_taken_in_is_told(server):
    class Unreadable(Shop):
        name = "unreadable"

        def read(self, envelope):
            return Poison("it has no id")

    told = []
    server.app.webhook(Unreadable(), secret="s3cret", start=server.app.flow(key="k:{order[id]}")(other_flow))
    server.app.notify(told.append, on="dead-letter")
    server.call("POST", "/hooks/unreadable", b"{}", SIGNED)
    server.call("POST", "/hooks/shop", b'{"id":"17"}', SIGNED)
    server.app.incidents[0].flush()
    assert [(notice.event, notice.operation) for notice in told] == [("dead-letter", "unreadable")]
    assert "it has no id" in told[0].line and told[0].look == "twiceproof hooks dead-letters"


def test_a_server_that_is_about_to_leave_is_not_ready(server):
    server.application.server_status.draining = True
    assert server.call("GET", "/readyz").kind == "draining"


def test_a_server_about_to_leave_still_answers_and_ends_each_connection_with_it(server):
    assert "connection" not in server.call("POST", "/hooks/shop", b'{"id":"17"}', SIGNED).headers
    server.application.server_status.draining = True
    answer = server.call("POST", "/hooks/shop", b'{"id":"18"}', SIGNED)
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert server.call("GET", "/nowhere").headers["connection"] == "close"


def test_counts_are_by_route_and_outcome_and_never_by_what_a_caller_sent(server):
    for _ in range(2):
        server.call("POST", "/hooks/shop", b'{"id":"17"}', SIGNED)
    server.call("POST", "/hooks/secret-name-in-path", b"{}")
    server.call("GET", "/secret-address")
    text = server.call("GET", "/metrics").body.decode()
    assert 'twiceproof_outcomes_total{entry_point="shop",outcome="new"} 1.0' in text
    assert 'twiceproof_duplicates_blocked_total{entry_point="shop"} 1.0' in text
    assert 'twiceproof_requests_total{route="receive_webhook",status="401"} 1.0' in text
    assert 'twiceproof_requests_total{route="(none)",status="404"} 1.0' in text
    assert "twiceproof_runs_queued 1.0" in text
    assert "secret" not in text


def test_a_line_per_request_tells_key_and_run_and_no_secret(server, caplog):
    caplog.set_level(logging.INFO)
    token = server.token(Scope.INGEST, name="site")
    run = server.call("POST", "/hooks/shop?code=hunter2", b'{"id":"17"}', SIGNED, token=token).json["run"]
    server.call("GET", "/nowhere/hunter2")
    [line, other] = [record for record in caplog.records if record.name == "twiceproof.access"]
    assert "POST /hooks/{name} 200" in line.getMessage()
    assert "site@default" in line.getMessage()
    assert "new" in line.getMessage()
    assert "GET (none) 404" in other.getMessage()
    for secret in ("hunter2", token, "s3cret"):
        assert secret not in caplog.text
    assert run


def test_key_and_run_are_fields_of_the_line(server, monkeypatch):
    from io import StringIO

    from twiceproof.flows.workers.log import JsonLines, RunFilter

    response = StringIO()
    handler = logging.StreamHandler(response)
    handler.setFormatter(JsonLines())
    handler.addFilter(RunFilter())
    access = logging.getLogger("twiceproof.access")
    monkeypatch.setattr(access, "handlers", [handler])
    monkeypatch.setattr(access, "level", logging.INFO)
    access.manager._clear_cache()
    run = server.call("POST", "/hooks/shop", b'{"id":"17"}', SIGNED).json["run"]
    line = json.loads(response.getvalue())
    assert (line["key"], line["run"]) == ("17", run)
    assert line["entry_point"] == "shop" and "flow" not in line  # which has a flow's name of its own


def test_spans_are_named_for_the_route(app):
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from twiceproof.server.monitoring import Traces, find_traces

    assert find_traces() is None  # installed, but nobody set up where spans go
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    from opentelemetry import propagate

    server = LocalServer(app)
    server.application.traces = Traces(provider.get_tracer("test"), propagate, trace.SpanKind.SERVER)
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    server.call("POST", "/hooks/shop?code=hunter2", b'{"id":"17"}', [*SIGNED, ("traceparent", parent)])
    [span] = kept.get_finished_spans()
    assert span.name == "POST /hooks/{name}"
    assert span.attributes["http.response.status_code"] == 200
    assert f"{span.context.trace_id:x}" == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert [(event.name, event.attributes["key"]) for event in span.events] == [("new", "17")]
    assert "hunter2" not in span.to_json()


@pytest.mark.parametrize("under", ["/inner", "/in ner/most"])
def test_it_can_be_mounted_inside_another_app(app, under):
    """The path that a server hands over begins with where it is mounted."""
    outer = Starlette(routes=[Mount(under, make_application(app))])
    with TestClient(outer, base_url="http://127.0.0.1") as client:
        root = quote(under)
        assert client.get(f"{root}/healthz").status_code == 200
        assert client.get("/healthz").status_code == client.get(f"{root}{root}/healthz").status_code == 404
        assert client.put(f"{root}/v1/claims/ship/a%2Fb").status_code == 201
        assert client.get(f"{root}/v1/claims/ship/a%2Fb").json()["key"] == "a/b"
        begun = client.post(f"{root}/v1/runs/sync", json={"id": "17"})
        assert client.get(begun.headers["location"]).json()["run"]["key"] == "order:17"


@pytest.mark.parametrize(("root", "raw"), [("/tp", "/tp/hooks/shop"), ("/tp/", "/hooks/shop"), ("", "/hooks/shop")])
def test_the_address_that_a_sender_signed_is_the_whole_one(app, root, raw):
    """Also from a server that leaves the first part out of its paths."""
    scope = {"root_path": root, "path": raw, "raw_path": raw.encode()}
    above, path = split_root_path(scope)
    call = ApiRequest(
        app, anonymous("default"), method="POST", path=path, root=above, params={}, raw_headers=[(b"host", b"h")]
    )
    assert (path, call.url) == ("/hooks/shop", f"http://h{root.rstrip('/')}/hooks/shop")
