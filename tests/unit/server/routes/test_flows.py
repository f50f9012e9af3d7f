"""Flows over HTTP: open runs by version, releases with their evidence, and runs of drafts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.declared.books import Books
from tests.unit.declared.releasing import greet, make_live
from tests.unit.server.local_server import LocalServer
from twiceproof import App, load_flows
from twiceproof.declared.releases import push
from twiceproof.operations import block
from twiceproof.server.tokens import Scope

JSON = [("content-type", "application/json")]
ASKS = """\
flow: greet
input: {id: text}
key: greet:{id}
uses: [crm]
steps:
  - step: profile
    http: GET crm /customers/{id}
returns: =profile.name
tests: [{name: one, input: {id: a}, answers: {GET crm /customers/*: {body: {name: Ada}}}}]
"""


@pytest.fixture
def loaded(app: App, tmp_path: Path) -> App:
    (tmp_path / "greet.flow.yaml").write_text(ASKS)
    (tmp_path / "connections.yaml").write_text("crm: {live: {http: http://127.0.0.1:9}}\n")
    load_flows(app, tmp_path)
    return app


def test_open_runs_are_counted_by_flow_and_version(loaded, client):
    (row,) = [one for one in client("GET", "/v1/flows", status=200)["flows"] if one["flow"] == "greet"]
    assert row == {"flow": "greet", "version": "1", "held": 0, "queued": 0, "waiting": 0, "review": 0, "workers": 0}


def test_a_flow_tells_its_releases_its_draft_and_its_changes(loaded, client):
    make_live(loaded.store, greet("one"))
    second = make_live(loaded.store, greet("two"))
    block(push(loaded.store, "default", greet("three"), by="bob"))
    told = client("GET", "/v1/flows/greet", status=200).json
    assert (told["live"]["release"], told["live"]["hash"]) == ("r2", second.hash)
    assert [one["release"] for one in told["releases"]] == ["r2", "r1", None]
    assert told["draft"] == told["releases"][2]["hash"] and told["releases"][2]["by"] == "bob"
    assert [(one["what"], one["number"]) for one in told["changes"]] == [("promote", 1), ("promote", 2)]
    assert client("GET", "/v1/flows/nothing", status=404)["next"]


def test_a_draft_is_run_with_stand_ins_and_takes_no_live_key(loaded, client):
    assert client("POST", "/v1/flows/greet/draft", "a", status=404)["next"]
    block(push(loaded.store, "default", ASKS, by="bob"))
    told = client("POST", "/v1/flows/greet/draft", "a", status=200).json
    assert (told["state"], told["result"], told["draft"]) == ("done", "Ada", True)
    assert told["stood_in"] == ["GET crm /customers/{id}"] and told["flow"] == "greet@draft"
    assert [run.flow for run in loaded.runs()] == ["greet@draft"]


@pytest.fixture
def crms() -> Iterator[dict[str, Books]]:
    """A server of each tenant."""
    made = {name: Books() for name in ("default", "acme")}
    yield made
    for one in made.values():
        one.close()


def test_a_token_runs_a_flow_and_its_draft_with_the_connections_of_its_tenant(app, tmp_path, crms, monkeypatch):
    text = ASKS.replace("=profile.name", "=profile.items")
    (tmp_path / "greet.flow.yaml").write_text(text)
    for name, file in (("default", "connections.yaml"), ("acme", "connections.acme.yaml")):
        monkeypatch.setenv(f"SECRET_OF_{name.upper()}", f"secret of {name}")
        side = f'{{http: "{crms[name].url}/SIDE", bearer: env:SECRET_OF_{name.upper()}}}'
        sides = f"{{live: {side.replace('SIDE', 'live')}, draft: {side.replace('SIDE', 'draft')}}}"
        (tmp_path / file).write_text(f"crm: {sides}\n")
        block(push(app.store, name, text, by="bob"))
    load_flows(app, tmp_path)
    server = LocalServer(app)
    for name in crms:
        token = server.token(Scope.RUN, tenant=name)
        for path in ("/v1/runs/greet", "/v1/flows/greet/draft"):
            answer = server.call("POST", path, b'"a"', JSON, token=token)
            assert answer.status < 300, answer.body
        app.worker().run(until_idle=True)
        assert {run.state for run in app.of(name).runs()} == {"done"}
        seen = sorted((path, headers["authorization"]) for _, path, _, headers in crms[name].requests)
        assert seen == [(f"/{side}/customers/a", f"Bearer secret of {name}") for side in ("draft", "live")]
    without = server.call("POST", "/v1/runs/greet", b'"a"', JSON, token=server.token(Scope.RUN, tenant="globex"))
    assert without.status >= 400 and [len(crm.requests) for crm in crms.values()] == [2, 2]
    assert "connections.globex.yaml" in without.json["detail"] and str(tmp_path) not in without.json["detail"]
