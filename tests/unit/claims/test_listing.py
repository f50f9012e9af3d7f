"""How much of a ledger is read for a list, counted at the store."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.server.local_server import LocalServer

from twiceproof import App
from twiceproof.claims.claim import Claim, address_of, body_of
from twiceproof.cli.claim_views import list_claims
from twiceproof.flows.history.queries import Filter, list_runs
from twiceproof.operations import block
from twiceproof.records import Insert, Replace, Written


@pytest.fixture(params=["memory://", "sqlite:///"])
def app(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    url = request.param if request.param.startswith("memory") else f"sqlite:///{tmp_path}/ledger.db"
    with App(url) as made:

        @made.flow(key="order:{n}")
        def pay(n: int) -> None: ...

        @made.flow(key="mail:{n}")
        def mail(n: int) -> None: ...

        made.pay, made.mail = pay, mail  # type: ignore[attr-defined]
        yield made


@pytest.fixture
def read(app: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each page had."""
    rows: list[int] = []
    scan = app.store.engine.scan

    def counted(*words: Any) -> Any:
        page = scan(*words)
        rows.append(len(page.records))
        return page

    monkeypatch.setattr(app.store.engine, "scan", counted)
    return rows


def claim(app: App, count: int, state: str, operation: str = "ship") -> None:
    for number in range(count):
        at, body = address_of("default", operation, str(number)), body_of(Claim(operation, str(number), "owner"))
        app.store.write(Insert(at, body, state, draw=True, lease=60.0)).block()


def run(app: Any, count: int, state: str) -> None:
    """Runs of `pay` that have come to this state."""
    for number in range(count):
        at = app.pay.start(number)._handle.at
        found = app.store.read(at).block().record
        queue = found.queue if state == "held" else ""
        again = Replace(at, None, state, version=found.version, queue=queue, due_in=60.0 if queue else None, lease=60.0)
        assert isinstance(app.store.write(again).block(), Written)


def listed(app: App, limit: int, after: str | None = None, states: tuple[str, ...] = ("held", "queued")) -> Any:
    return block(list_runs(app.store, Filter("default"), states, limit=limit, after=after))


def test_a_list_of_what_comes_first_reads_no_more_rows_than_it_shows(app: Any, read: list[int]) -> None:
    for number in range(50):
        app.pay.start(number)
    page = listed(app, 5, states=("queued",))
    assert len(page.runs) == 5 and sum(read) == 5
    read.clear()
    rest = listed(app, 5, page.after, ("queued",))
    assert {run.key for run in rest.runs}.isdisjoint(run.key for run in page.runs) and sum(read) == 5


def test_what_is_not_meant_is_passed_over_in_growing_steps(app: Any, read: list[int]) -> None:
    for number in range(300):
        app.mail.start(number)
    for number in range(5):
        app.pay.start(number)
    page = block(list_runs(app.store, Filter("default", "pay"), ("held", "queued"), limit=5))
    assert len(page.runs) == 5
    assert sum(read) == 305 and len(read) < 8


@pytest.mark.parametrize("state", ["review", "done", "failed", "held"])
def test_a_list_of_runs_reads_no_claims(app: Any, read: list[int], state: str) -> None:
    claim(app, 5_000, state)
    run(app, 5, state)
    page = listed(app, 5, states=(state,))
    assert len(page.runs) == 5 and sum(read) == 5


@pytest.mark.parametrize("state", ["review", "done", "failed", "held"])
def test_a_list_of_claims_reads_no_runs(app: Any, read: list[int], state: str) -> None:
    run(app, 1_000, state)
    claim(app, 5, state)
    page = block(list_claims(app.store, (state,), "default/", limit=5))
    assert [one.operation for one in page.claims] == ["ship"] * 5 and sum(read) == 5


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_every_run_is_listed_once_whatever_lies_between(app: Any, limit: int) -> None:
    for number in range(20):
        app.pay.start(number)
        with app.claim("ship", str(number)):
            pass
    app.worker().run(until_idle=True)
    keys, after = [], None
    while True:
        page = listed(app, limit, after, ("done",))
        keys += [run.key for run in page.runs]
        after = page.after
        if after is None:
            break
    assert sorted(keys) == sorted(f"order:{number}" for number in range(20))


def test_a_list_over_http_reads_what_it_shows(app: Any, read: list[int]) -> None:
    for number, state in enumerate(("review", "held", "failed", "done")):
        claim(app, 1_000, state, f"ship{number}")
    run(app, 5, "done")
    answer = LocalServer(app).call("GET", "/v1/runs?limit=5&state=all")
    assert len(answer.json["runs"]) == 5 and sum(read) == 5
