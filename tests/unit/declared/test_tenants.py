"""Tenants in one process: each has connections of its own, and never those of another one, nor its secrets."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.declared.books import HEAD, ORDER, Books
from tests.unit.declared.releasing import make_live
from twiceproof import App, Misuse, NotDone, load_flows
from twiceproof.app.functions import wrapped_flow
from twiceproof.declared.tenants import TenantConnections
from twiceproof.inbound.dead_letters import letters
from twiceproof.inbound.replay import replay_letter
from twiceproof.operations import block

STEPS = """\
uses: [books]
steps:
  - step: invoice
    http: POST books /invoices
    json: {reference: =order.id}
    repeat: {check: "GET books /invoices?reference={order.id}", found: "body.items[0] if len(body.items) > 0 else null"}
    undo: {step: void, http: "POST books /void", repeat: safe}
  - step: paid
    http: POST books /paid
    repeat: safe
    retry: {attempts: 1}
on_error:
  - {step: tell, http: POST books /told, repeat: safe}
returns: {invoice: =invoice.id}
"""
TEXT = HEAD + STEPS
CALLER = (
    "flow: sell\ninput: {order: {id: integer, total: number, email: text}}\nkey: sell:{order.id}\n"
    "steps:\n  - {step: billed, flow: bill, with: {order: =order}}\nreturns: =billed.invoice\n"
)


class Tenants:
    """Two tenants of one app, each with a bookkeeping server and a token of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "flows"
        self.folder.mkdir()
        self.url = f"sqlite:///{folder}/ledger.db"
        self.servers = {"default": Books(), "acme": Books()}
        for name, file in (("default", "connections.yaml"), ("acme", "connections.acme.yaml")):
            monkeypatch.setenv(f"TOKEN_OF_{name.upper()}", f"secret of {name}")
            self.connect(file, name)
        (self.folder / "bill.flow.yaml").write_text(TEXT)
        (self.folder / "sell.flow.yaml").write_text(CALLER)

    def connect(self, file: str, name: str) -> None:
        reached = f'{{http: "{self.servers[name].url}", bearer: env:TOKEN_OF_{name.upper()}}}'
        (self.folder / file).write_text(f"books: {{live: {reached}}}\n")

    def seen(self, name: str) -> list[tuple[str, str]]:
        """What a tenant's server was asked, and with which token."""
        return [(path, headers["authorization"]) for _, path, _, headers in self.servers[name].requests]

    def expect(self, *paths: str) -> None:
        """Each server was asked for these, with its own token."""
        for name in self.servers:
            assert self.seen(name) == [(path, f"Bearer secret of {name}") for path in paths]


@pytest.fixture
def tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tenants]:
    made = Tenants(tmp_path, monkeypatch)
    yield made
    for server in made.servers.values():
        server.close()


@pytest.fixture
def app(tenants: Tenants) -> Iterator[App]:
    with App(tenants.url) as made:
        load_flows(made, tenants.folder)
        yield made


def run(app: App, tenant: str, name: str = "bill", *, by: str = "caller") -> Any:
    """Run a tenant's flow: here, or by a worker."""
    flow = app.of(tenant).flows[name]
    if by == "caller":
        return wrapped_flow(flow)(ORDER)
    handle = block(flow.start((ORDER,), {}))
    app.worker().run(until_idle=True)
    return block(handle.result())


@pytest.mark.parametrize("by", ["caller", "worker"])
@pytest.mark.parametrize("released", [False, True], ids=["file", "release"])
def test_each_tenant_reaches_its_own_systems_with_its_own_secret(tenants, app, by, released):
    for name in tenants.servers if released else ():
        make_live(app.store, TEXT.replace("/paid", "/paid/r1"), tenant=name)
    assert run(app, "default", by=by) == {"invoice": "inv_1"} == run(app, "acme", by=by)
    tenants.expect("/invoices", "/paid/r1" if released else "/paid")


def test_a_called_flow_is_the_tenants(tenants, app):
    assert run(app, "acme", "sell", by="worker") == "inv_1" == run(app, "default", "sell", by="worker")
    tenants.expect("/invoices", "/paid")


@pytest.mark.parametrize("released", [False, True], ids=["file", "release"])
def test_what_follows_a_failure_is_done_where_the_tenant_is(tenants, app, released):
    """The undo, the steps after a failure, and the look after a lost answer."""
    for name, server in tenants.servers.items():
        server.refuses = {"/paid": 403}
        if released:
            make_live(app.store, TEXT, tenant=name)
        with pytest.raises(NotDone):
            run(app, name)
    tenants.expect("/invoices", "/paid", "/void", "/told")


@pytest.mark.parametrize("released", [False, True], ids=["file", "release"])
def test_a_tenant_without_connections_is_refused_and_has_not_those_of_another(tenants, app, released):
    if released:
        make_live(app.store, TEXT, tenant="globex")
    with pytest.raises(Misuse, match=r"no connection 'books' in .*connections\.globex\.yaml \(not there; conn"):
        block(app.of("globex").flows["bill"].start((ORDER,), {}))
    assert app.of("globex").runs() == [] and tenants.seen("default") == tenants.seen("acme") == []
    tenants.connect("connections.globex.yaml", "acme")
    with App(tenants.url) as again:  # the files are read when a process starts
        load_flows(again, tenants.folder)
        assert run(again, "globex", by="worker") == {"invoice": "inv_1"}


HOOK = (
    "on:\n  - webhook: generic\n    secret: env:HOOK_SECRET\n"
    "    options: {id: id, signature: X-Signature}\n    give: {order: =body}\n"
)


def test_a_delivery_to_a_tenant_without_connections_is_kept_until_it_has_them(tenants, monkeypatch):
    """The sender would not send it for ever: it becomes a dead letter, which is replayed."""
    secret = "whsec_" + "a" * 32
    monkeypatch.setenv("HOOK_SECRET", secret)
    (tenants.folder / "bill.flow.yaml").write_text(HEAD + HOOK + STEPS)
    body = json.dumps(ORDER).encode()
    signature = hmac.new(secret.encode(), body, "sha256").hexdigest()
    sent = [("x-signature", signature), ("content-type", "application/json")]
    with App(tenants.url) as app:
        load_flows(app, tenants.folder)
        assert app.of("globex").receive("generic", body, sent).status == 200
        (letter,) = block(letters(app.store, "globex"))
        assert "connections.globex.yaml" in letter.reason and app.of("globex").runs() == []
    tenants.connect("connections.globex.yaml", "acme")
    with App(tenants.url) as app:
        load_flows(app, tenants.folder)
        globex = app.of("globex")
        assert [one.outcome for one in block(replay_letter(globex.runtime, globex.hooks, letter.id))] == ["new"]
        app.worker().run(until_idle=True)
        assert {run.state for run in globex.runs()} == {"done"}
    assert tenants.seen("default") == [] and len(tenants.seen("acme")) == 2


def test_a_run_whose_tenant_lost_its_file_waits_for_a_process_that_has_it(tenants, app):
    handle = block(app.of("acme").flows["bill"].start((ORDER,), {}))
    file = tenants.folder / "connections.acme.yaml"
    text = file.read_text()
    file.unlink()
    with App(tenants.url) as without:
        load_flows(without, tenants.folder)
        with pytest.raises(Misuse, match=r"no connection 'books' in .*connections\.acme\.yaml"):  # a worker puts it off
            without.of("acme").flows["bill"].carrying("acme/bill@1")
        assert without.flows["bill"].carrying("default/bill@1") is without.flows["bill"]
    file.write_text(text)
    app.worker().run(until_idle=True)
    assert block(handle.result()) == {"invoice": "inv_1"}


def test_a_file_is_a_tenants_by_its_exact_name(tenants):
    for name in ("connections.Acme.yaml", "connections.globex.yaml.bak", "connections.yaml.old"):
        (tenants.folder / name).write_text("")
    known = TenantConnections(tenants.folder, "default")
    assert {name: sorted(known.of(name).known) for name in ("default", "acme", "Acme", "globex", "yaml")} == {
        "default": ["books"], "acme": ["books"], "Acme": [], "globex": [], "yaml": []
    }  # fmt: skip


def test_the_processs_own_tenant_may_have_a_file_of_its_name(tenants):
    own = TenantConnections(tenants.folder, "acme").of("acme").known["books"]
    assert own.bearer == "env:TOKEN_OF_ACME"
    (tenants.folder / "connections.acme.yaml").unlink()
    assert TenantConnections(tenants.folder, "acme").of("acme").known["books"].bearer == "env:TOKEN_OF_DEFAULT"
    assert TenantConnections(tenants.folder, "acme").of("default").known == {}


def test_a_wrong_file_of_a_tenant_is_refused_when_the_process_starts(tenants):
    (tenants.folder / "connections.acme.yaml").write_text("books: {live: {http: ftp://books}}\n")
    with App("memory://") as app, pytest.raises(Misuse, match=r"connections\.acme\.yaml:1:1: connection: books: http"):
        load_flows(app, tenants.folder)
    (tenants.folder / "connections.acme.yaml").write_text("")
    (tenants.folder / "connections.a b.yaml").write_text("")
    with App("memory://") as app, pytest.raises(Misuse, match="tenant 'a b' is not a name"):
        load_flows(app, tenants.folder)
