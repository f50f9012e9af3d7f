"""A ledger with a claim in every state, and the command line to look at it with."""

from __future__ import annotations

import contextlib
import json
import sys
import time

import pytest
from click.testing import CliRunner

from twiceproof import App, NeedsReview, NotDone, PriorFailure, Waiting
from twiceproof.claims.claim import address_of
from twiceproof.claims.states import ClaimRequest
from twiceproof.cli.main import cli
from twiceproof.clock import Clock
from twiceproof.operations import block

LONG_AGO = 1_000.0
CLAIM_KEYS = {
    "operation",
    "key",
    "tenant",
    "state",
    "lapsed",
    "attempt",
    "owner",
    "run",
    "link",
    "created_at",
    "updated_at",
    "age",
    "lease_until",
    "lease_left",
}


class Ledger:
    """Written to by an app whose clock can be set back: what it holds has lapsed for everybody else."""

    def __init__(self, folder):
        self.path = folder / "ledger.db"
        self.url = f"sqlite:///{self.path}"
        self.back = 0.0
        self.app = App(self.url, clock=Clock(now=lambda: time.time() - self.back))
        self.ship = self.app.once(key="order:{n}", name="ship", stable=("n",))(self._ship)

    def _ship(self, n: str):
        if n == "timeout":
            raise TimeoutError("no answer")
        if n == "bug":
            raise NotDone("a bug", final=True)
        if n == "closed":
            raise NotDone("closed")
        return {"parcel": f"P-{n}", "price": 1.10}

    def fill(self):
        for n in ("done", "timeout", "bug", "closed"):
            self.call(n)
        self.hold("live")
        self.back = LONG_AGO
        self.hold("gone")
        self.back = 0.0
        return self

    def call(self, n):
        try:
            return self.ship(n)
        except (NeedsReview, NotDone):
            return None

    def hold(self, n, owner="host:1:abc-1", operation="ship", key=None, tenant="default"):
        key = key or f"order:{n}"
        at = address_of(tenant, operation, key)
        request = ClaimRequest(at=at, operation=operation, key=key, owner=owner, lease=60.0, tenant=tenant)
        return block(self.app.claims.take(request))


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TWICEPROOF_STORE", raising=False)
    monkeypatch.delenv("TWICEPROOF_TENANT", raising=False)
    ledger = Ledger(tmp_path)
    yield ledger
    ledger.app.close()


@pytest.fixture
def run(ledger):
    """Runs `twiceproof --store LEDGER …`."""

    def run(*words, store=ledger.url, code=0, **options):
        before = ["--store", store] if store else []
        result = CliRunner().invoke(cli, [*before, *words], **options)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def run_json(run):
    def run_json(*words, **options):
        return json.loads(run(*words, "--json", **options).stdout)

    return run_json


@pytest.fixture
def claim_keys():
    """What every claim that is shown has, in a list and alone."""
    return CLAIM_KEYS


class Shop:
    """A flow with runs in every state: its steps reserve, charge and ship, and the order's number says how it ends."""

    def __init__(self, app):
        self.app = app

        @app.step(repeat="safe")
        def reserve(order: str):
            return {"place": order}

        @app.step(external="bank:{result[id]}")
        def charge(order: str):
            if order.startswith("timeout"):
                raise TimeoutError("no answer")
            if order.startswith("bug"):
                raise NotDone("a bug", final=True)
            return {"id": f"ch_{order}"}

        @app.flow(key="order:{order}", name="buy", stable=("order",))
        def buy(order: str):
            reserve(order)
            if order.startswith("sleep"):
                app.sleep("2d")
            return charge(order)

        self.buy = buy

    def call(self, *orders):
        for order in orders:
            with contextlib.suppress(NeedsReview, Waiting, NotDone, PriorFailure):
                self.buy(order)

    def fill(self):
        self.call("done", "timeout", "bug", "sleep")
        self.buy.start("queued")
        return self


@pytest.fixture
def shop(ledger):
    return Shop(ledger.app)


@pytest.fixture
def waiting(ledger):
    """Runs that wait: for a word, for two words, for an arrival, for a time."""
    app = ledger.app

    @app.flow(key="{what}", name="wait")
    def wait(what: str):
        if what == "two":
            app.gather(lambda: app.approve("a"), lambda: app.approve("b"))
        if what == "one":
            app.approve("charge", timeout="2d")
        if what == "call":
            app.wait_for("paid", timeout="7d")
        app.sleep("1h")

    for what in ("one", "two", "call", "time"):
        with contextlib.suppress(Waiting):
            wait(what)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory of one's own; the modules in it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TWICEPROOF_STORE", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("workshop"):
            del sys.modules[name]
