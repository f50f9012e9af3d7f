"""A store that lands one write at a time: what it carries, and what it refuses at start."""

import asyncio
import json
import sys

import pytest
from click.testing import CliRunner

from tests.contracts.stores.offices import PLACES
from tests.unit.inbound.post import SECRET, Post, posted
from tests.unit.server.local_server import LocalServer
from twiceproof import App, Duplicate, NotDone, StoreUnsafe
from twiceproof.cli.main import cli
from twiceproof.middleware import IdempotencyKey
from twiceproof.prove.clocks import ShiftedClock
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

INSTEAD = "take sqlite:/// or postgresql://"


@pytest.fixture(params=["memory", *PLACES])
def app(request):
    """On memory, whose batches are cut to one write, and on the simulated office stores."""
    if request.param == "memory":
        engine = MemoryEngine()
        engine.batch_limit = 1
        with App(GroupedStore(engine)) as app:
            yield app
        return
    start, _, url = PLACES[request.param]
    with start(ShiftedClock()) as simulator, App(url(simulator)) as app:
        yield app


def test_a_guarded_function_runs_once_and_its_large_result_is_kept(app):
    calls = []

    @app.once(key="order:{order}")
    def charge(order: int) -> str:
        calls.append(order)
        return "r" * 80_000

    assert charge(1) == charge(1) == "r" * 80_000
    assert calls == [1]
    assert app.claims is not None and app.store.batch_limit == 1


def test_a_result_larger_than_a_record_is_known_to_be_done(app):
    @app.once(key="order:{order}", on_duplicate="reject")
    def charge(order: int) -> str:
        return "r" * 9_000_000

    with pytest.warns(UserWarning, match="is not kept"):
        charge(1)
    with pytest.raises(Duplicate):
        charge(1)


def test_a_claim_is_taken_once(app):
    with app.claim("mail", "order:1"):
        pass
    with pytest.raises(Duplicate), app.claim("mail", "order:1", on_duplicate="reject"):
        pytest.fail("was entered")


def test_the_claim_service_answers(app):
    server = _Json(LocalServer(app))
    first = server("PUT", "/v1/claims/charge/order:1", {"lease": "5m"})
    assert (first.status, first.json["claimed"]) == (201, True)
    assert server("PUT", "/v1/claims/charge/order:1", {"lease": "5m"}).status == 409
    ended = server("POST", "/v1/claims/charge/order:1/complete", {"token": first.json["token"], "result": 7})
    assert ended.status == 200
    again = server("PUT", "/v1/claims/charge/order:1", {"lease": "5m"})
    assert (again.status, again.json["claimed"], again.json["result"]) == (200, False, 7)


class _Json:
    def __init__(self, server):
        self._server = server

    def __call__(self, method, path, body):
        return self._server.call(method, path, json.dumps(body).encode(), [("content-type", "application/json")])


def test_a_webhook_calls_a_guarded_function_once(app):
    calls = []

    @app.webhook(Post(), secret=SECRET)
    @app.once(key="order:{event[order]}")
    def paid(event: dict) -> None:
        calls.append(event["order"])

    assert [app.receive(*posted({"id": "e1", "order": 7})).status for _ in range(2)] == [200, 200]
    assert app.receive(*posted({"id": "e2", "order": 7})).status == 200  # another event about the same order
    assert calls == [7]
    assert app.receive(*posted({"id": "e1", "order": 8})).status != 500  # other contents under the same id
    assert calls == [7]


def test_a_webhook_whose_function_failed_cleanly_is_tried_again(app):
    tries = []

    @app.webhook(Post(), secret=SECRET)
    @app.once(key="order:{event[order]}")
    def paid(event: dict) -> None:
        tries.append(event["order"])
        if len(tries) == 1:
            raise NotDone("the bank is closed")

    assert app.receive(*posted({"id": "e1", "order": 7})).status >= 500
    assert app.receive(*posted({"id": "e1", "order": 7})).status == 200
    assert tries == [7, 7]


def test_the_middleware_replays_the_first_answer(app):
    calls = []

    async def shop(scope, receive, send):
        calls.append(scope["path"])
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"paid"})

    guarded = IdempotencyKey(shop, app=app, routes=["/payments"])
    assert [_post(guarded, "/payments", "k-1") for _ in range(2)] == [201, 201]
    assert calls == ["/payments"]


def _post(application, path, key):
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message):
        sent.append(message)

    headers = [(b"idempotency-key", f'"{key}"'.encode()), (b"authorization", b"Bearer x"), (b"host", b"shop")]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": headers, "scheme": "http", "server": ("shop", 80), "client": ("127.0.0.1", 1), "asgi": {}}
    asyncio.run(application(scope, receive, send))
    return sent[0]["status"]


def test_expired_claims_and_what_lies_beside_them_are_swept():
    """Evidence and large results lie beside a claim; without transactions they go one after the other."""
    from twiceproof.claims.retention import forget, sweep
    from twiceproof.operations import block
    from twiceproof.prove.clocks import ManualClock
    from twiceproof.records import Address, Insert, kinds_beside_runs

    clock = ManualClock()
    engine = MemoryEngine(clock)
    engine.batch_limit = 1
    with App(GroupedStore(engine, clock=clock), clock=clock) as app:
        app.once(key="{n}", name="work", keep="1h")(lambda n: "r" * 80_000)("1")
        assert len(engine._records) >= 2
        app.once(key="{n}", name="other")(lambda n: n)("1")
        (other,) = [record for at, record in engine._records.items() if at.space == "default/other/1"]
        app.store.write(Insert(Address(other.at.space, kinds_beside_runs()[0], "1"), "{}")).block()
        block(forget(app.store, other))
        assert [at for at in engine._records if at.space == other.at.space] == []
        clock.advance(4_000)
        block(sweep(app.store))
        assert [at for at in engine._records if at.kind in ("claim", "resource")] == []


@pytest.mark.parametrize("what", ["flow", "every", "worker", "relay", "send", "route"])
def test_what_needs_several_writes_is_refused_with_the_store_to_take(app, what):
    declare = {
        "flow": lambda: app.flow(key="{n}", name="work")(lambda n: n),
        "every": lambda: app.every("0 2 * * *", name="nightly")(lambda: None),
        "worker": app.worker,
        "relay": app.relay,
        "send": lambda: app.send("orders", {"id": 1}),
        "route": lambda: app.route("orders.*", to="main/orders"),
    }
    with pytest.raises(StoreUnsafe, match=INSTEAD):
        declare[what]()


def test_the_same_declarations_are_taken_by_a_store_with_transactions():
    with App("memory://") as app:
        app.flow(key="{n}", name="work")(lambda n: n)
        app.worker()
        app.relay()


PROGRAM = """
from twiceproof import App
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine
engine = MemoryEngine()
engine.batch_limit = 1
app = App(GroupedStore(engine))
"""


@pytest.mark.parametrize("command", ["work", "relay"])
def test_the_command_line_refuses_at_start(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "office_shop.py").write_text(PROGRAM)
    monkeypatch.delitem(sys.modules, "office_shop", raising=False)
    result = CliRunner().invoke(cli, [command, "office_shop:app"])
    assert result.exit_code == 2
    assert INSTEAD in " ".join(result.output.split())


@pytest.mark.parametrize("place", PLACES)
def test_the_doctor_reports_of_such_a_store(place):
    start, _, url = PLACES[place]
    with start(ShiftedClock()) as simulator:
        result = CliRunner().invoke(cli, ["--store", url(simulator), "doctor"])
    assert result.exit_code in (0, 1), result.output
    assert "checked against our simulator" in " ".join(result.output.split())
