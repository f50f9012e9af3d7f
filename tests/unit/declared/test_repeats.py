"""How steps of a file are repeated: each answer of a look, and keys over attempts, processes and releases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.declared.books import HEAD, ORDER, Books, declare
from tests.unit.declared.releasing import make_live
from tests.unit.declared.test_live import Time
from twiceproof import App, NeedsReview, Waiting

CHECK = """\
uses: [books]
steps:
  - step: invoice
    http: POST books /invoices
    json: {reference: =order.id}
    timeout: 1
    retry: {attempts: 3, first: 0, most: 0}
    repeat: {settle: SETTLE, check: "GET books /invoices?reference={order.id}", found: FOUND}
returns: =invoice.id
"""
FOUND = "body.items[0] if len(body.items) > 0 else null"
LOOK = "/invoices?reference=7"


@pytest.fixture
def time() -> Time:
    return Time()


def opened(folder: Path, time: Time) -> App:
    return App(f"sqlite:///{folder}/ledger.db", clock=time.clock)


def known(books: Books) -> str:
    return f'books: {{live: {{http: "{books.url}"}}}}\n'


def check(found: str = FOUND, settle: int = 0) -> str:
    return HEAD + CHECK.replace("SETTLE", str(settle)).replace("FOUND", f'"{found}"')


def refuse_first(books: Books, *, landed: bool) -> None:
    """The first POST is answered with 500: it did its work before, or it did nothing."""
    books.refuses["/invoices"] = 500
    answer = books.told

    def told(method: str, path: str, body: Any) -> Any:
        if method == "POST" and books.refuses.pop("/invoices", None) is not None:
            return answer(method, path, body) if landed else {}
        return answer(method, path, body)

    books.told = told  # type: ignore[method-assign]


@pytest.mark.parametrize("landed", [True, False], ids=["happened", "absent"])
def test_what_a_look_finds_decides_whether_the_step_acts_again(app, tmp_path, books, landed):
    refuse_first(books, landed=landed)
    bill = declare(app, tmp_path, check(), known(books))
    assert bill(ORDER) == "inv_1"
    assert len(books.invoices) == 1 and len(books.paths()) == (1 if landed else 2)
    assert books.paths("GET") == [LOOK]


def test_404_means_that_it_did_not_happen(app, tmp_path, books):
    refuse_first(books, landed=False)
    books.refuses[LOOK] = 404
    bill = declare(app, tmp_path, check(), known(books))
    assert bill(ORDER) == "inv_1" and len(books.paths()) == 2


def stall(books: Books) -> Callable[[], None]:
    """Reads get no answer until the function that this returns is called."""
    go, answer = threading.Event(), books.told

    def told(method: str, path: str, body: Any) -> Any:
        if method == "GET":
            go.wait(20)
        return answer(method, path, body)

    books.told = told  # type: ignore[method-assign]
    return go.set


@pytest.mark.parametrize("how", ["500", "401", "time-out", "wrong shape", "no connection"])
def test_a_look_that_finds_nothing_out_asks_a_person_and_nothing_is_done_again(app, tmp_path, books, how):
    refuse_first(books, landed=False)
    release: Callable[[], object] = lambda: None  # noqa: E731 - nothing to let go
    if how.isdecimal():
        books.refuses[LOOK] = int(how)
    elif how == "time-out":
        release = stall(books)
    elif how == "no connection":
        answer = books.told

        def told(method: str, path: str, body: Any) -> Any:
            if method == "GET":
                raise ConnectionResetError
            return answer(method, path, body)

        books.told = told  # type: ignore[method-assign]
    bill = declare(app, tmp_path, check("body.nothing[0].id" if how == "wrong shape" else FOUND), known(books))
    try:
        with pytest.raises(NeedsReview):
            bill(ORDER)
    finally:
        release()
    assert books.paths() == ["/invoices"] and books.invoices == []


def test_absent_counts_only_when_the_request_can_no_longer_land(tmp_path, books, time):
    refuse_first(books, landed=False)
    with opened(tmp_path, time) as app:
        bill = declare(app, tmp_path, check(settle=300), known(books))
        with pytest.raises(Waiting):
            bill(ORDER)
        app.worker().run(until_idle=True)
        assert books.paths() == ["/invoices"]  # the look found nothing, and it is too early to believe it
        time.at += 302
        app.worker().run(until_idle=True)
        assert bill(ORDER) == "inv_1" and len(books.paths()) == 2


KEYED = """\
uses: [books]
steps:
  - step: invoice
    http: POST books /invoices
    json: {reference: =order.id}
    retry: {attempts: 5, first: 20m, most: 20m}
    repeat: {keyed: X-Key, window: 1h}
returns: TEXT
"""


def keys(books: Books) -> list[str]:
    return [headers["x-key"] for method, _, _, headers in books.requests if method == "POST"]


def test_a_key_is_the_same_over_processes_and_releases(tmp_path, books, time):
    books.refuses["/invoices"] = 503
    with opened(tmp_path, time) as app:
        bill = declare(app, tmp_path, HEAD + KEYED, known(books))
        make_live(app.store, HEAD + KEYED.replace("TEXT", "one"))
        with pytest.raises(Waiting):
            bill(ORDER)
        make_live(app.store, HEAD + KEYED.replace("TEXT", "two"))
    with opened(tmp_path, time) as app:  # another process, when another release is live
        declare(app, tmp_path, HEAD + KEYED, known(books))
        time.at += 1_300
        app.worker().run(until_idle=True)
    books.refuses.clear()
    with opened(tmp_path, time) as app:
        bill = declare(app, tmp_path, HEAD + KEYED, known(books))
        time.at += 1_300
        app.worker().run(until_idle=True)
        assert bill(ORDER) == "one"
        assert len(keys(books)) == 3 and len(set(keys(books))) == 1
        bill({**ORDER, "id": 8})
        assert len(set(keys(books))) == 2  # another run has another key


def test_after_the_window_of_a_key_a_person_is_asked(tmp_path, books, time):
    books.refuses["/invoices"] = 503
    with opened(tmp_path, time) as app:
        bill = declare(app, tmp_path, HEAD + KEYED, known(books))
        with pytest.raises(Waiting):
            bill(ORDER)
        time.at += 2 * 3_600
        app.worker().run(until_idle=True)
        with pytest.raises(NeedsReview):
            bill(ORDER)
        assert len(keys(books)) == 1
