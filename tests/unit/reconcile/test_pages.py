"""Pages of an HTTP API: all of them, or the source is not whole."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest

from twiceproof import App, Misuse, env
from twiceproof.effects.http_client import HttpAnswer, HttpRequest, shared_client
from twiceproof.prove.clocks import ManualClock
from twiceproof.reconcile import http_pages
from twiceproof.reconcile.readers import Reading, SourceIncomplete

URL = "https://books.example.com/invoices"
SIZE, COUNT = 10, 35


def page_of(body: Any, **headers: str) -> HttpAnswer:
    return HttpAnswer(200, headers, msgspec.json.encode(body))


class Api:
    """Pages of rows by cursor, link or offset; `faults` by the number of the request."""

    def __init__(self, count: int = COUNT) -> None:
        self.rows = [{"id": number} for number in range(count)]
        self.clock = ManualClock()
        self.requests: list[HttpRequest] = []
        self.faults: dict[int, Any] = {}
        self.between: Any = lambda: None
        self.total: int | str | None = None
        self.most = 1_000  # rows that it gives in a page, whatever it is asked for

    def client(self) -> Api:
        return self

    def send(self, request: HttpRequest) -> HttpAnswer:
        self.requests.append(request)
        fault = self.faults.pop(len(self.requests), None)
        if fault is not None:
            return fault
        asked = dict(parse_qsl(urlsplit(request.url).query))
        start = int(asked.get("cursor") or asked.get("page") or asked.get("offset") or 0)
        page = self.rows[start : start + min(self.most, int(asked.get("limit", SIZE)))]
        self.between()
        more = start + SIZE < len(self.rows)
        body = {"data": page, "next": str(start + SIZE) if more else None, "total": self.total}
        link = {"link": f'<{URL}?page={start + SIZE}>; rel="next"'} if more else {}
        return page_of(body, **link)

    def read(self, **options: Any) -> list[int]:
        pages = http_pages(URL, client=self.client, size=SIZE, **options)
        return [row["id"] for row in pages.rows(Reading(self.clock))]


EMPTY = page_of({"data": [], "next": None})
PAGING = [{"next": "next"}, {"link": True}, {"offset": "offset"}]
paged = pytest.mark.parametrize("paging", PAGING, ids=["cursor", "link", "offset"])


@paged
@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 35])
def test_all_rows_come_in_each_kind_of_paging(paging, count):
    assert Api(count).read(**paging) == list(range(count))


@paged
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(HttpAnswer(500), id="500"),
        pytest.param(HttpAnswer(302, {"location": "https://login.example.com"}), id="redirect"),
        pytest.param(EMPTY, id="empty 200"),
        pytest.param(page_of({}), id="no rows at all"),
        pytest.param(page_of({"data": ["text"]}), id="no rows but text"),
        pytest.param(HttpAnswer(200, body=b'{"data": [{"id": 1}'), id="cut off"),
    ],
)
def test_a_fault_at_any_page_makes_it_incomplete(paging, fault):
    for at in range(1 if fault is not EMPTY else 2, 5):  # with an empty first page, it has no rows
        api = Api()
        api.faults[at] = fault
        with pytest.raises(SourceIncomplete):
            api.read(**paging)


def test_an_empty_last_page_is_believed_if_it_is_declared_or_the_total_agrees():
    empty = page_of({"data": [], "next": None, "total": 30})
    for options in ({"empty_last": True}, {"total": "total"}):
        api = Api()
        api.faults[4] = empty
        assert api.read(next="next", **options) == list(range(30))


def test_a_total_that_does_not_add_up_makes_it_incomplete():
    api = Api()
    api.total = 36
    with pytest.raises(SourceIncomplete, match="says that it has 36"):
        api.read(next="next", total="total")
    api.total = 35
    assert len(api.read(next="next", total="total")) == 35


@pytest.mark.parametrize("paging", [{"next": "next"}, {"offset": "offset"}], ids=["cursor", "offset"])
def test_a_total_is_compared_as_text_and_missed_where_it_is_not(paging):
    api = Api()
    api.total = "36"
    with pytest.raises(SourceIncomplete, match="says that it has 36"):
        api.read(**paging, total="total")
    api.total = None
    with pytest.raises(SourceIncomplete, match="no number at 'total'"):
        api.read(**paging, total="total")


def test_a_total_that_does_not_add_up_is_noticed_by_offset_too():
    api = Api()
    api.total = 36
    with pytest.raises(SourceIncomplete, match="says that it has 36"):
        api.read(offset="offset", total="total")
    api.total = 35
    assert len(api.read(offset="offset", total="total")) == 35


@pytest.mark.parametrize("most", [1, 2, 5, 9])
def test_a_server_that_gives_fewer_rows_in_a_page_than_asked_for_is_read_to_its_end(most):
    """Its first page was taken for the last one, and all further rows for missing."""
    api = Api()
    api.most = most
    if most == 1:  # two pages have nothing in common
        with pytest.raises(SourceIncomplete, match="pages of one row"):
            api.read(offset="offset")
    else:
        assert api.read(offset="offset") == list(range(COUNT))


def test_a_server_that_ignores_the_offset_is_not_read_whole():
    api = Api()
    for number in (2, 3):
        api.faults[number] = page_of({"data": api.rows[:SIZE]})
    with pytest.raises(SourceIncomplete, match="is the one before again"):
        api.read(offset="offset")


def test_a_page_in_the_middle_that_is_short_is_no_end():
    api = Api()
    api.faults[2] = page_of({"data": api.rows[9:13]})
    assert api.read(offset="offset") == list(range(COUNT))


def test_pages_that_go_in_a_circle_end():
    api = Api()
    api.faults[3] = page_of({"data": [{"id": 1}], "next": "10"})
    with pytest.raises(SourceIncomplete, match="circle"):
        api.read(next="next")


def test_the_next_page_is_never_asked_for_at_another_server():
    api = Api()
    api.faults[1] = page_of({"data": [{"id": 1}], "next": "https://evil.example.com/x"})
    with pytest.raises(SourceIncomplete, match="another server"):
        api.read(next="next", headers={"authorization": "secret"})
    assert len(api.requests) == 1


def test_rows_that_are_inserted_and_deleted_meanwhile_skip_none_that_stays():
    """Either all rows that stay are read, or the source says that it is not whole."""
    whole = 0
    for seed in range(200):
        api, dice = Api(60), random.Random(seed)
        staying = {row["id"] for row in api.rows if row["id"] % 3}

        def churn(api: Api = api, dice: random.Random = dice, staying: set[int] = staying) -> None:
            for _ in range(dice.randint(0, 2)):
                if dice.random() < 0.5:
                    api.rows.insert(
                        dice.randrange(len(api.rows)), {"id": 1_000 + len(api.requests) * 10 + dice.random()}
                    )
                else:
                    gone = [row for row in api.rows if row["id"] not in staying]
                    if gone:
                        api.rows.remove(dice.choice(gone))

        api.between = churn
        try:
            read = api.read(offset="offset")
        except SourceIncomplete:
            continue
        whole += 1
        assert staying <= set(read), seed
    assert whole > 20


@pytest.mark.slow
def test_offset_paging_while_sales_are_made_and_cancelled_finds_nothing_false(shop):
    """Each change is in both sources at once, and no reading sees them at one moment."""
    compared = 0
    for seed in range(50):
        dice, api = random.Random(seed), Api(0)
        app, numbers = shop.stage.process(), itertools.count()
        sales = [{"id": next(numbers)} for _ in range(60)]
        api.rows = sales

        def churn(api: Api = api, dice: random.Random = dice, numbers: Iterator[int] = numbers) -> None:
            if dice.random() < 0.1:
                api.rows.insert(dice.randrange(len(api.rows)), {"id": next(numbers)})
            if dice.random() < 0.1:
                api.rows.remove(dice.choice(api.rows))

        @app.reconcile(name="invoices", grace="0s")
        def compare(find: Any, api: Api = api, app: App = app) -> Iterator[Any]:
            orders = find.source("orders", lambda: list(api.rows), key="order:{id}", id="{id}")
            pages = http_pages(URL, client=api.client, size=SIZE, offset="offset")
            books = find.source("books", pages, key="order:{id}", id="{id}")
            yield find.missing(orders, books)
            yield find.extra(books, orders)
            yield find.duplicates(books)
            yield find.differ(orders, books, fields={"id": "id"})

        api.between = churn
        report = app.reconcile_now("invoices")
        assert {one.check for one in report.findings} <= {"source-incomplete"}, seed
        compared += report.complete
    assert compared > 10


def test_a_refusal_is_waited_out_as_long_as_it_says():
    api = Api()
    api.faults[2] = HttpAnswer(429, {"retry-after": "7"})
    api.faults[3] = HttpAnswer(503)
    assert api.read(next="next") == list(range(COUNT))
    assert api.clock.pauses[0] == 7 and len(api.clock.pauses) == 2


def test_a_refusal_that_does_not_end_makes_it_incomplete():
    api = Api()
    api.faults = {number: HttpAnswer(429, {"retry-after": "1"}) for number in range(2, 30)}
    with pytest.raises(SourceIncomplete, match="429"):
        api.read(next="next")
    assert len(api.requests) == 6


def test_a_header_may_be_a_secret_of_the_environment(monkeypatch):
    monkeypatch.setenv("BOOKS_TOKEN", "t0ken")
    api = Api(3)
    api.read(next="next", headers={"authorization": env("BOOKS_TOKEN")})
    assert api.requests[0].headers["authorization"] == "t0ken"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        page = int(dict(parse_qsl(urlsplit(self.path).query)).get("cursor", 0))
        body = msgspec.json.encode({"data": [{"id": page}], "next": page + 1 if page < 3 else None})
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def test_pages_are_read_from_a_real_server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        pages = http_pages(f"http://127.0.0.1:{server.server_port}/invoices?kind=paid", next="next")
        assert [row["id"] for row in pages] == [row["id"] for row in pages] == [0, 1, 2, 3]
        server.shutdown()
        shared_client().close()


def test_declarations_that_cannot_be_meant_are_refused():
    for wrong in ({"next": "next", "offset": "offset"}, {"offset": "offset", "size": 1}):
        with pytest.raises(Misuse):
            http_pages(URL, **wrong)
    with pytest.raises(Misuse):
        http_pages("ftp://books")
