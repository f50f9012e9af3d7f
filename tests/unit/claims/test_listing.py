"""How much of a ledger is read for a list, counted at the store."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.server.local_server import LocalServer

from twiceproof import App
from twiceproof.claims import lists
from twiceproof.claims.claim import Claim, address_of, body_of
from twiceproof.claims.lists import CappedCount, count_up_to
from twiceproof.claims.views import list_claims
from twiceproof.errors import Misuse
from twiceproof.flows.history.queries import Filter, all_runs, list_runs
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
    for number in range(5):
        app.pay.start(number)
    for number in range(300):
        app.mail.start(number)
    page = block(list_runs(app.store, Filter("default", prefix="order:"), ("held", "queued"), limit=5))
    assert len(page.runs) == 5
    assert sum(read) == 305 and len(read) < 8


def test_a_flow_is_listed_without_reading_the_others(app: Any, read: list[int]) -> None:
    for number in range(50):
        app.pay.start(number)
        app.mail.start(number)
    read.clear()
    page = block(list_runs(app.store, Filter("default", "pay"), limit=5))
    assert [run.key for run in page.runs] == [f"order:{number}" for number in (49, 48, 47, 46, 45)]
    assert sum(read) == 5


def test_keys_of_a_flow_that_begin_so_are_found_among_any_number(app: Any, read: list[int]) -> None:
    for number in range(150):
        app.pay.start(number)
    read.clear()
    page = block(list_runs(app.store, Filter("default", "pay", prefix="order:7"), limit=20))
    assert sorted(run.key for run in page.runs) == sorted(f"order:{n}" for n in (7, *range(70, 80)))
    assert sum(read) == 11 and page.after is None


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


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_a_page_may_end_within_what_was_read(app: Any, limit: int) -> None:
    """Many that are not meant make the next scan larger: more are found in it than the page has room for."""
    for number in range(20):
        app.pay.start(number)
        app.mail.start(number)
    for number in range(20, 60):
        app.mail.start(number)
    keys = [run.key for page in all_pages(app, limit, prefix="order:") for run in page.runs]
    assert keys == [f"order:{number}" for number in range(19, -1, -1)]


def test_a_list_over_http_reads_what_it_shows(app: Any, read: list[int]) -> None:
    for number, state in enumerate(("review", "held", "failed", "done")):
        claim(app, 1_000, state, f"ship{number}")
    run(app, 5, "done")
    answer = LocalServer(app).call("GET", "/v1/runs?limit=5&state=all")
    assert len(answer.json["runs"]) == 5 and sum(read) == 5


# -- the newest first ----------------------------------------------------------------------------


def keys_of(page: Any) -> list[int]:
    return [int(run.key.removeprefix("order:")) for run in page.runs]


def all_pages(app: Any, limit: int, **which: Any) -> list[Any]:
    pages: list[Any] = []
    after: str | None = None
    while not pages or after is not None:
        pages.append(block(list_runs(app.store, Filter("default", **which), limit=limit, after=after)))
        after = pages[-1].after
    return pages


@pytest.mark.parametrize("which", [{}, {"flow": "pay"}])
def test_runs_of_all_states_are_listed_the_newest_first(app: Any, which: dict[str, str]) -> None:
    for number in range(12):
        app.pay.start(number)
        if number % 5 == 0:
            app.worker().run(until_idle=True)
    assert [key for page in all_pages(app, 5, **which) for key in keys_of(page)] == list(range(11, -1, -1))


@pytest.mark.parametrize("states", [("queued",), ("queued", "held"), ("review", "queued", "done")])
def test_a_page_leads_back_to_the_one_before(app: Any, states: tuple[str, ...]) -> None:
    for number in range(12):
        app.pay.start(number)
    there = [listed(app, 5, states=states)]
    while there[-1].after is not None and there[-1].runs:
        there.append(listed(app, 5, there[-1].after, states))
    pages = [page for page in there if page.runs]
    assert [keys_of(page) for page in pages] == [[11, 10, 9, 8, 7], [6, 5, 4, 3, 2], [1, 0]]
    assert pages[0].before is None
    second = listed(app, 5, pages[2].before, states)
    assert keys_of(second) == [6, 5, 4, 3, 2]
    assert keys_of(listed(app, 5, second.after, states)) == [1, 0]
    assert keys_of(listed(app, 5, second.before, states)) == [11, 10, 9, 8, 7]


def test_the_first_page_back_is_the_first_one(app: Any) -> None:
    for number in range(12):
        app.pay.start(number)
    second = listed(app, 5, listed(app, 5, states=("queued",)).after, ("queued",))
    first = listed(app, 7, second.before, ("queued",))
    assert keys_of(first) == [11, 10, 9, 8, 7] and first.before is None
    assert keys_of(listed(app, 5, first.after, ("queued",))) == [6, 5, 4, 3, 2]


def test_what_has_come_since_is_listed_by_the_page_that_was_seen(app: Any) -> None:
    for number in range(6):
        app.pay.start(number)
    seen = listed(app, 3, states=("queued",))
    assert keys_of(listed(app, 100, seen.newer, ("queued",))) == []
    for number in range(6, 9):
        app.pay.start(number)
    assert keys_of(listed(app, 100, seen.newer, ("queued",))) == [8, 7, 6]


def test_runs_that_end_meanwhile_move_no_page(app: Any) -> None:
    for number in range(12):
        app.pay.start(number)
    first = block(list_runs(app.store, Filter("default"), limit=5))
    app.worker().run(until_idle=True)
    for number in range(12, 20):
        app.pay.start(number)
    second = block(list_runs(app.store, Filter("default"), limit=5, after=first.after))
    assert keys_of(first) + keys_of(second) == list(range(11, 1, -1))


def test_no_page_reads_more_than_it_may_and_says_where_to_look_on(
    app: Any, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "MOST_READ", 40)
    for number in range(3):
        app.pay.start(number)
    for number in range(100):
        app.mail.start(number)
    read.clear()
    pages, after = [], None
    while not pages or after is not None:
        pages.append(block(list_runs(app.store, Filter("default", prefix="order:"), limit=5, after=after)))
        assert sum(read) <= 40
        read.clear()
        after = pages[-1].after
    assert [keys_of(page) for page in pages] == [[], [], [2, 1, 0]]
    back = block(list_runs(app.store, Filter("default", prefix="order:"), limit=5, after=pages[2].before))
    assert keys_of(back) == [] and back.before is not None
    assert [run.key for run in block(all_runs(app.store, Filter("default", prefix="order:"), limit=2))] == [
        "order:2",
        "order:1",
    ]


@pytest.mark.parametrize("cursor", ["x", "cnVu", "cnVuLio6a2V5OmE", "cnVuLmRvbmU6MQ", "YWNtZS54OjE", "*"])
def test_what_is_no_cursor_of_a_list_is_refused(app: Any, cursor: str) -> None:
    with pytest.raises(Misuse, match="not a cursor of this list"):
        block(list_runs(app.store, Filter("default"), ("queued",), after=cursor))


def test_claims_are_listed_the_newest_first_and_found_by_how_their_key_begins(app: Any) -> None:
    claim(app, 30, "held")
    claim(app, 30, "held", "bill")
    page = block(list_claims(app.store, ("held",), "default/ship/", limit=3))
    assert [one.key for one in page.claims] == ["29", "28", "27"]
    page = block(list_claims(app.store, ("held",), "default/ship/", limit=30, key="2"))
    assert sorted(one.key for one in page.claims) == sorted(["2", *map(str, range(20, 30))])


def test_a_count_stops_where_it_may(app: Any) -> None:
    claim(app, 30, "held")
    assert block(count_up_to(app.store, "claim", "held", most=30)) == CappedCount(30)
    assert str(block(count_up_to(app.store, "claim", "held", most=29))) == "29+"
    assert str(CappedCount(1_000, more=True)) == "1,000+"
