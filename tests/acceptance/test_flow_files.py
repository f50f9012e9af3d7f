"""The flows of examples/flows on SQLite and PostgreSQL: each works once, and is one flow with its Python twin."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from tests.unit.server.local_server import LocalServer
from twiceproof import App, Rejected, Waiting, load_flows
from twiceproof.cli.main import cli
from twiceproof.effects import ssh
from twiceproof.prove.worlds.http import HttpWorld
from twiceproof.prove.worlds.smtp import SmtpWorld

EXAMPLES = Path(__file__).parents[2] / "examples/flows"
SECRETS = {
    name: f"canary-{name.lower()}"
    for name in ("ACCOUNTING_TOKEN", "SHOP_TOKEN", "CRM_TOKEN", "TRACKER_TOKEN", "SMTP_PASSWORD")
}
HOSTS = [
    "api.accounting.example",
    "shop.example",
    "crm.example",
    "tracker.example",
    "chat.example",
    "ops.example",
]
ANSWERS = {
    "PUT /customers/c7": {"body": {"id": "cust_8821"}},
    "POST /invoices": {"status": 201, "body": {"id": "inv_5530"}},
    "PUT /customers/c8": {"status": 403, "body": {"error": "the token canary-accounting_token is bad"}},
    "GET /customers/c1": {"body": {"email": "ada@example.com", "unsubscribed": False}},
}
ORDER = {
    "id": 10492,
    "total": 120.5,
    "currency": "EUR",
    "customer": {"id": "c7", "name": "Ada", "email": "ada@example.com"},
}
ORDER_OF_C8 = {"id": "c8", "name": "Eve", "email": "eve@example.com"}
CUSTOMER = {"id": "c1", "email": "ada@example.com", "name": "Ada"}
EVENT = {"id": "evt_1", "author": "bob", "ticket": {"id": "T-9", "title": "Fix login", "repo": "web", "budget": 10}}
INPUTS: dict[str, dict[str, Any]] = {
    "sync_order": {"order": ORDER},
    "welcome": {"customer": CUSTOMER},
    "run_agent": {"event": EVENT},
}
CALLBACK = {"summary": "3 files changed", "report": "# Report"}
KEEPS = {"welcome": "forever", "sync_order": "90d"}
KEYS = {
    "sync_order": "shop:order:{order[id]}",
    "welcome": "customer:{customer[id]}:welcome",
    "run_agent": "tracker:{event[ticket][id]}:agent",
}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db" if request.param == "sqlite" else request.getfixturevalue("postgres_dsn")


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CHAT_WEBHOOK", "http://chat.example/hook/canary-chat")
    monkeypatch.setenv("OPS_WEBHOOK", "http://ops.example/hook/canary-ops")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The examples, with addresses that are not encrypted: they lead to stand-ins."""
    made = shutil.copytree(EXAMPLES, tmp_path / "flows")
    file = made / "connections.yaml"
    file.write_text(file.read_text().replace("https://", "http://"))
    return made


@pytest.fixture
def outside() -> Iterator[tuple[HttpWorld, SmtpWorld]]:
    with HttpWorld(HOSTS, answers=ANSWERS, honours_keys=True) as web, SmtpWorld(["smtp.example.com"]) as post:
        yield web, post


def loaded(url: str, folder: Path) -> tuple[App, dict[str, Any]]:
    app = App(url, url="https://hooks.example")
    return app, load_flows(app, folder)


def counts(world: Any) -> dict[str, int]:
    return {what.partition(" #")[0]: count for what, count in world.look().items()}


def test_an_order_is_billed_marked_and_told_once(url, folder, outside):
    web, post = outside
    app, flows = loaded(url, folder)
    with app:
        for _ in range(3):
            assert flows["sync_order"](ORDER) == {"invoice": "inv_5530"}
        assert counts(web) == {
            "PUT api.accounting.example/customers/c7": 1,
            "POST api.accounting.example/invoices": 1,
            "PATCH shop.example/api/orders/10492": 1,
        }
        assert counts(post) == {"mail to ada@example.com: Your order 10492": 1}
        assert [link.external for link in app.ids("sync_order/shop:order:10492")] == ["inv_5530"]
        (run,) = app.runs(flow="sync_order")
        assert run.state == "done" and run.key == "shop:order:10492"


def test_a_customer_is_welcomed_once(url, folder, outside):
    web, post = outside
    app, flows = loaded(url, folder)
    with app:
        assert [flows["welcome"](CUSTOMER) for _ in range(3)] == [{"sent": True}] * 3
        assert counts(post) == {"mail to ada@example.com: Welcome, Ada": 1}
        assert counts(web) == {"PUT crm.example/customers/c1/tags/welcomed": 1}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was started over SSH: host, callback URL, options."""
    found: list[Any] = []

    async def start(host: str, script: str, stdin: str, *rest: Any) -> None:
        found.append((host, stdin.splitlines()[0], rest[-1]))

    monkeypatch.setattr(ssh, START, start)
    return found


START = "start_command" if hasattr(ssh, "start_command") else "_start"


def parked(flow: Any, *given: Any) -> None:
    with pytest.raises(Waiting):
        flow(*given)


def test_a_job_is_started_once_if_somebody_agrees_and_wakes_on_any_process(url, folder, outside, started):
    web, _ = outside
    app, flows = loaded(url, folder)
    with app:
        parked(flows["run_agent"], EVENT)
        (request,) = app.approvals()
        app.decide(request.id, approved=True, by="ann")
    app, flows = loaded(url, folder)  # after a restart
    with app:
        app.worker().run(until_idle=True)
        parked(flows["run_agent"], EVENT)
        ((host, callback, options),) = started
        assert host == "builder.example" and options["username"] == "agent"
        app.deliver(callback.rpartition("/")[2], {"summary": "3 files changed", "report": "# Report"})
    app, flows = loaded(url, folder)
    with app:
        app.worker().run(until_idle=True)
        result = flows["run_agent"](EVENT)
        assert result["summary"] == "3 files changed" and result["report"].startswith("res://")
    assert len(started) == 1
    assert counts(web) == {"POST chat.example/hook/canary-chat": 1, "POST tracker.example/tickets/T-9/comments": 1}


def test_a_rejected_job_is_never_started_and_the_ticket_is_told(url, folder, outside, started):
    web, _ = outside
    app, flows = loaded(url, folder)
    with app:
        parked(flows["run_agent"], EVENT)
        (request,) = app.approvals()
        app.decide(request.id, approved=False, by="ann")
        with pytest.raises(Rejected):
            flows["run_agent"](EVENT)
    assert started == [] and counts(web)["POST tracker.example/tickets/T-9/comments"] == 1


@pytest.mark.parametrize("name", ["sync_order", "welcome", "run_agent"])
def test_a_file_and_its_python_twin_are_one_flow_both_ways(url, folder, outside, started, name):
    given = INPUTS[name]
    (parameter,) = given
    app, flows = loaded(url, folder)
    with app:
        first = ended(app, flows[name], given)
    with App(url) as twin:
        in_python = python_twin(twin, name, parameter, lambda: pytest.fail("a duplicate must not run"))
        assert in_python(**given) == first  # begun by the file, answered in Python
        other = changed(given, name)
        with_python = App(url)
    with with_python:
        made = python_twin(with_python, name, parameter, lambda: {"made": "in Python"})
        assert made(**other) == {"made": "in Python"}
        run, key = made.start(**other).id, made.key(**other)
    app, flows = loaded(url, folder)
    with app:
        assert flows[name](**other) == {"made": "in Python"}  # and the other way round
        assert (flows[name].start(**other).id, flows[name].key(**other)) == (run, key)


def python_twin(app: App, name: str, parameter: str, work: Any) -> Any:
    options: dict[str, Any] = {"keep": KEEPS[name]} if name in KEEPS else {}
    if parameter == "event":

        @app.flow(key=KEYS[name], name=name, limit_per={"repo:{event[ticket][repo]}": 1})
        def answer(event: dict[str, Any]) -> Any:
            return work()

        return answer
    if parameter == "order":

        @app.flow(key=KEYS[name], name=name, **options)
        def sync(order: dict[str, Any]) -> Any:
            return work()

        return sync

    @app.flow(key=KEYS[name], name=name, **options)
    def greet(customer: dict[str, Any]) -> Any:
        return work()

    return greet


def ended(app: App, flow: Any, given: dict[str, Any]) -> Any:
    """Its result; it is given what it waits for."""
    try:
        return flow(**given)
    except Waiting:
        (request,) = app.approvals()
        app.decide(request.id, approved=True, by="ann")
        app.worker().run(until_idle=True)
        app.deliver_to(flow=flow.flow.name, key=flow.key(**given), name="finished", payload=CALLBACK)
        app.worker().run(until_idle=True)
        return flow(**given)


def changed(given: dict[str, Any], name: str) -> dict[str, Any]:
    """Another unit of work."""
    if name == "run_agent":
        return {"event": {**EVENT, "ticket": {**EVENT["ticket"], "id": "T-10"}}}
    return {parameter: {**value, "id": 7 if name == "sync_order" else "c2"} for parameter, value in given.items()}


# -- what is seen of them ------------------------------------------------------------------------


def asked(url: str, text: str) -> list[tuple[Any, ...]]:
    """The rows of a view, as anybody with SQL sees them."""
    if url.startswith("sqlite"):
        db: Any = sqlite3.connect(url.removeprefix("sqlite:///"))
    else:
        db = psycopg.connect(url, options="-csearch_path=twiceproof")
    with closing(db):
        return [tuple(row) for row in db.execute(text).fetchall()]


def test_a_run_of_a_file_is_seen_like_any_other(url, folder, outside):
    app, flows = loaded(url, folder)
    with app:
        flows["welcome"](CUSTOMER)
        (run,) = app.runs()
        server = LocalServer(app)
        page = server.call("GET", f"/runs/{run.run}").body.decode()
        assert all(step in page for step in ("profile", "greeting", "tag", "customer:c1:welcome"))
        (told,) = server.call("GET", "/v1/runs").json["runs"]
        assert (told["run"], told["flow"], told["key"], told["state"]) == (run.run, "welcome", run.key, "done")
    done = CliRunner().invoke(cli, ["--store", url, "runs", "show", "welcome/customer:c1:welcome", "--json"])
    steps = json.loads(done.output)["steps"]
    assert [(one["name"], one["repeat"], one["state"]) for one in steps] == [
        ("profile", "safe", "done"),
        ("greeting", "check", "done"),
        ("tag", "safe", "done"),
    ]
    assert asked(url, "SELECT flow, key, state FROM twiceproof_runs") == [("welcome", "customer:c1:welcome", "done")]
    rows = asked(url, "SELECT step, repeat, state FROM twiceproof_steps ORDER BY place")
    assert rows == [(one["name"], one["repeat"], one["state"]) for one in steps]


# -- secrets -------------------------------------------------------------------------------------


def played(url: str, file: Path) -> str:
    """Its tests are played, and their evidence is kept."""
    words = ["--store", url, "flows", "test", str(file), "--depth", "1", "--json"]
    return CliRunner().invoke(cli, words).output


@pytest.mark.slow
def test_no_secret_of_a_connection_is_kept_logged_or_shown(tmp_path, folder, outside, started, caplog, monkeypatch):
    """Not of runs that end well, nor of one whose destination repeats the secret in its refusal."""
    monkeypatch.chdir(tmp_path)
    for secret in ("SHOPIFY_SECRET", "CRM_SECRET", "TRACKER_SECRET"):
        monkeypatch.setenv(secret, f"whsec_canary{'a' * 32}")
    (tmp_path / "secret").write_text(SECRETS["CRM_TOKEN"])
    known = (folder / "connections.yaml").read_text().replace("env:CRM_TOKEN", f"file:{tmp_path}/secret")
    (folder / "connections.yaml").write_text(known)
    url, said = f"sqlite:///{tmp_path}/ledger.db", []
    caplog.set_level(logging.DEBUG, "twiceproof")

    def typed(*words: object) -> str:
        for more in ((), ("--json",)):
            said.append(CliRunner().invoke(cli, ["--store", url, *map(str, words), *more]).output)
        return said[-1]

    typed("flows", "lint", folder)
    for name in INPUTS:
        typed("flows", "push", folder / f"{name}.flow.yaml")
    said.append(played(url, folder / "welcome.flow.yaml"))
    typed("flows", "promote", "welcome")
    app, flows = loaded(url, folder)
    with app:
        flows["sync_order"](ORDER)
        flows["welcome"](CUSTOMER)
        parked(flows["run_agent"], EVENT)
        handle = flows["sync_order"].start({**ORDER, "id": 7, "customer": ORDER_OF_C8})
        app.worker().run(until_idle=True)
        refused = app.history(handle.id)
        assert "the token " in repr(refused) and " is bad" in repr(refused)  # the refusal is kept, without the secret
        server = LocalServer(app)
        runs = [run.run for run in app.runs()]
        said += [repr(app.history(run)) for run in runs]
        places = [f"/runs/{run}" for run in runs] + [f"/flows/{name}" for name in INPUTS] + ["/v1/runs", "/review"]
        places += [f"/v1/flows/{name}" for name in INPUTS] + [f"/v1/runs/{run}" for run in runs]
        said += [server.call("GET", place).body.decode() for place in places]
    for words in (("runs", "list"), ("review", "list"), ("duplicates",), ("acts", "list")):
        typed(*words)
    for name in INPUTS:
        for verb in ("releases", "show", "diff", "promote"):
            typed("flows", verb, name)
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("ledger.db*"))
    assert b"shop:order:10492" in kept and b"canary" not in kept
    for text in (*said, caplog.text):
        assert "canary" not in text, text[max(0, text.index("canary") - 200) : text.index("canary") + 60]
