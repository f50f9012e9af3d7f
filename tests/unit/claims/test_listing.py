"""How much of a ledger is read for a list, counted at the store."""

from __future__ import annotations

from typing import Any

import pytest

from twiceproof import App
from twiceproof.claims.claim import address_of
from twiceproof.claims.listing import list_records
from twiceproof.claims.states import Ask
from twiceproof.drive import block
from twiceproof.flows.history import runs
from twiceproof.flows.history.runs import Filter, list_runs


@pytest.fixture(params=["memory://", "sqlite:///"])
def app(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    url = request.param if request.param.startswith("memory") else f"sqlite:///{tmp_path}/ledger.db"
    with App(url) as made:

        @made.flow(key="order:{n}")
        def pay(n: int) -> None: ...

        made.pay = pay  # type: ignore[attr-defined]
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


def hold(app: App, count: int) -> None:
    for number in range(count):
        at = address_of("default", "ship", str(number))
        block(app.claims.take(Ask(at, "ship", str(number), f"o{number}", 60.0)))


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
    hold(app, 300)
    for number in range(5):
        app.pay.start(number)
    assert len(listed(app, 5).runs) == 5
    assert sum(read) == 305 and len(read) < 8


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


def test_the_body_of_a_held_claim_is_not_read_for_a_list_of_runs(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(app, 10)
    monkeypatch.setattr(runs, "claim_of", None)
    assert listed(app, 5).runs == []
    assert len(block(list_records(app.store, ("held",), lambda record: True, limit=5)).records) == 5
