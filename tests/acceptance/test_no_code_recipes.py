"""The recipes of docs/how-to/no-code/claims-without-a-server.md, sent beside our own store: each order has one winner.

Dataverse and SharePoint are our simulators; PostgreSQL is real.
"""

import json
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Lock
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psycopg
import pytest

from tests.contracts.stores.offices import TABLE, dataverse, dataverse_url, sharepoint, sharepoint_url
from twiceproof import App, ClaimError
from twiceproof.prove.clocks import ShiftedClock

PAGE = (Path(__file__).parents[2] / "docs/how-to/no-code/claims-without-a-server.md").read_text("utf-8")
ORDERS, CALLERS = 200, 8


def blocks(language):
    found = re.findall(rf"^( *)```{language}\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
    return [re.sub(f"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


ROW, ITEM = (json.loads(text) for text in blocks("json"))
CLAIM, COMPLETE = (re.sub(r"\$(\d)", r"%(p\1)s", text) for text in blocks("sql"))


class Shipped:
    """Effects, counted outside of the product."""

    def __init__(self):
        self.orders, self.by = Counter(), Counter()
        self._mutex = Lock()

    def __call__(self, order, who):
        with self._mutex:
            self.orders[order] += 1
            self.by[who] += 1


def of_order(row, order):
    return {name: value.replace("10492", order) if isinstance(value, str) else value for name, value in row.items()}


def send(method, url, body):
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method)
    try:
        with urlopen(request, timeout=30) as answer:
            data = answer.read()
            return answer.status, json.loads(data) if data else {}, answer.headers
    except HTTPError as error:
        return error.code, {}, error.headers


def by_dataverse(simulator, shipped):
    api = f"{simulator.url}/api/data/v9.2/{TABLE}"

    def recipe(order):
        row = of_order(ROW, order)
        status, _, _ = send("POST", api, row)
        if status in (201, 204):
            shipped(order, "maker")
            done = {"new_state": "done", "new_lease": None, "new_body": row["new_body"][:-1] + ',"result":null}'}
            send("PATCH", f"{api}(new_key='{row['new_key'].replace(' ', '%20')}')", done)
        else:
            assert status == 412

    return recipe


def by_sharepoint(simulator, shipped):
    api = f"{simulator.url}/v1.0/sites/shop/lists/Claims/items"

    def recipe(order):
        item = of_order(ITEM, order)
        status, made, _ = send("POST", api, {"fields": item})
        if status == 201:
            shipped(order, "maker")
            done = {"tp_state": "done", "tp_lease": None, "tp_body": item["tp_body"][:-1] + ',"result":null}'}
            send("PATCH", f"{api}/{made['id']}/fields", done)
        else:
            assert status == 400

    return recipe


def by_postgres(dsn, shipped):
    def recipe(order):
        given = {"p1": "ship", "p2": f"shop:order:{order}"}
        with psycopg.connect(dsn, autocommit=True) as db:
            won = db.execute(CLAIM, given).fetchone()
            if won is not None:
                shipped(order, "maker")
                assert db.execute(COMPLETE, {**given, "p3": won[0]}).rowcount == 1

    return recipe


def race(url, make_recipe, orders=ORDERS):
    shipped = Shipped()
    with App(url) as app:
        recipe = make_recipe(shipped)

        @app.once(key="shop:order:{order}", name="ship", on_duplicate="reject")
        def ship(order):
            shipped(order, "program")

        def ours(order):
            try:
                ship(order)
            except ClaimError:
                return

        def call(nth, order, start):
            start.wait(timeout=60)
            (recipe if nth % 2 else ours)(order)

        with ThreadPoolExecutor(CALLERS) as pool:
            for number in range(orders):
                start = Barrier(CALLERS)
                order = str(number)
                for done in [pool.submit(call, nth, order, start) for nth in range(CALLERS)]:
                    done.result()
        states = Counter(record.state for record in _claims(app))
    assert shipped.orders == {str(number): 1 for number in range(orders)}
    assert states == {"done": orders}
    assert min(shipped.by["maker"], shipped.by["program"]) > 0  # both sides won some
    return shipped.by


def _claims(app):
    after = None
    while True:
        page = app.store.scan("claim", after=after, limit=100).block()
        yield from page.records
        after = page.after
        if after is None:
            return


def test_makers_and_programs_share_one_dataverse_table_simulated():
    with dataverse(ShiftedClock()) as simulator:
        race(dataverse_url(simulator), lambda shipped: by_dataverse(simulator, shipped))


def test_makers_and_programs_share_one_sharepoint_list_simulated():
    with sharepoint(ShiftedClock()) as simulator:
        race(sharepoint_url(simulator), lambda shipped: by_sharepoint(simulator, shipped))


@pytest.mark.server
def test_n8n_and_programs_share_one_postgresql_ledger(postgres_dsn):
    race(postgres_dsn, lambda shipped: by_postgres(postgres_dsn, shipped))


def test_a_list_without_a_unique_column_lets_both_win():
    """The control: the same requests, and nothing that refuses the second."""
    with sharepoint(ShiftedClock(), unique="") as simulator:
        shipped = Shipped()
        recipe = by_sharepoint(simulator, shipped)
        recipe("1")
        recipe("1")
    assert shipped.orders == {"1": 2}


def test_a_program_sees_what_a_maker_claimed():
    with dataverse(ShiftedClock()) as simulator, App(dataverse_url(simulator)) as app:
        api = f"{simulator.url}/api/data/v9.2/{TABLE}"
        assert send("POST", api, of_order(ROW, "7"))[0] == 204
        ship = app.once(key="shop:order:{order}", name="ship")(lambda order: None)
        with pytest.raises(ClaimError, match="power-automate"):
            ship("7")
