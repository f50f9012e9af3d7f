"""`twiceproof flows` for one tenant of several: the commands use the connections of that tenant, and no other's."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from twiceproof.cli.main import cli

FLOW = (
    "flow: greet\ninput: {id: text}\nkey: greet:{id}\nuses: [crm]\n"
    "steps:\n  - {step: profile, http: GET crm /customers}\nreturns: =profile\n"
    "tests:\n  - {name: one, input: {id: a}, answers: {GET crm /customers: {body: {a: 1}}}}\n"
)


class Place:
    """A directory with a flow, the connections of two tenants, and a ledger."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/ledger.db"
        self.flows = folder / "flows"
        self.flows.mkdir()
        (self.flows / "greet.flow.yaml").write_text(FLOW)
        self.server = socket.create_server(("127.0.0.1", 0))
        host = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        self.write("connections.yaml", f'crm: {{live: {{http: "{host}", bearer: env:OWN_TOKEN}}}}\n')
        self.write("connections.acme.yaml", f'crm: {{live: {{http: "{host}", bearer: env:ACME_TOKEN}}}}\n')

    def write(self, name: str, text: str) -> None:
        (self.flows / name).write_text(text)

    def run(self, *words: object) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["--store", self.url, *map(str, words)])
        return done.exit_code, done.output

    def json(self, *words: object) -> Any:
        return json.loads(self.run(*words, "--json")[1])

    def connection(self, *tenant: str) -> str:
        """What the gate says of the tenant's connection."""
        self.run("flows", "push", self.flows / "greet.flow.yaml", *tenant)
        told = self.json("flows", "promote", "greet", "--dry-run", "--flows", self.flows, *tenant)
        return next(one["found"] for one in told["checks"] if one["name"] == "connection")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OWN_TOKEN", "of the first")
    made = Place(tmp_path)
    yield made
    made.server.close()


def test_the_gate_asks_for_the_tenants_own_secrets(place, monkeypatch):
    assert place.connection() == "crm: it answers, and its secrets are there"
    assert "ACME_TOKEN" in place.connection("--tenant", "acme")
    monkeypatch.setenv("ACME_TOKEN", "of the second")
    assert place.connection("--tenant", "acme") == "crm: it answers, and its secrets are there"
    file = place.flows / "connections.globex.yaml"
    missing = f"crm is not in {file} (not there; connections.yaml is for the tenant default)"
    assert place.connection("--tenant", "globex") == missing


def test_the_environment_says_whose_connections_yaml_is(place, monkeypatch):
    monkeypatch.setenv("TWICEPROOF_TENANT", "globex")
    assert place.connection() == "crm: it answers, and its secrets are there"
    assert "connections.default.yaml" in place.connection("--tenant", "default")


def test_a_draft_of_a_tenant_is_allowed_its_own_live_side_only(place, tmp_path):
    place.run("flows", "push", place.flows / "greet.flow.yaml", "--tenant", "globex")
    (tmp_path / "event.json").write_text('{"id": "a"}')
    given = ("--event", tmp_path / "event.json", "--flows", place.flows, "--allow-live", "crm", "--tenant", "globex")
    code, said = place.run("flows", "run", "greet", "--draft", *given)
    assert code != 0 and "connections.globex.yaml" in said
    place.server.settimeout(0.0)
    with pytest.raises(BlockingIOError):  # nobody came
        place.server.accept()


def test_lint_reads_the_connections_of_the_tenant_and_tells_of_every_wrong_file(place):
    assert place.run("flows", "lint", place.flows)[0] == 0
    assert place.run("flows", "lint", place.flows, "--tenant", "acme")[0] == 0
    place.write("connections.acme.yaml", "")
    assert place.run("flows", "lint", place.flows)[0] == 0
    code, said = place.run("flows", "lint", place.flows, "--tenant", "acme")
    assert code == 1 and "unknown-connection: There is no connection 'crm' in" in said
    place.write("connections.acme.yaml", "crm: {live: {http: https://crm.example, bearer: secret}}\n")
    code, said = place.run("flows", "lint", place.flows)
    assert code == 1 and "connections.acme.yaml:1:1: connection: crm: bearer holds a value" in said
    told = place.json("flows", "lint", place.flows, "--tenant", "acme")
    assert told["next"] == [f"twiceproof flows lint {place.flows / 'greet.flow.yaml'} --tenant acme"]


def test_a_tenant_may_have_a_flow_that_another_has_no_connections_for(place):
    code, said = place.run("flows", "test", place.flows, "--depth", "1", "--tenant", "globex")
    assert code == 0, said  # proved with stand-ins, of which connections.yaml is not needed
