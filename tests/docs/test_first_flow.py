"""The flow that every page of ours begins with, word for word, with the steps it calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twiceproof import Waiting

FLOW = """
from twiceproof import App, check

app = App()                                   # ./twiceproof.db; or App("postgresql://…"), or TWICEPROOF_STORE

@app.flow(key="shop:order:{order[id]}")
def sync_order(order):
    customer = upsert_customer(order["customer"])
    invoice = create_invoice(order, customer)
    if invoice["total"] > 500:
        app.approve("charge", show=invoice, timeout="2d")
    mark_synced(order["id"])
    send_confirmation(order, invoice)
    return invoice["id"]
"""

STEPS = """
from twiceproof import Absent, Happened

done = []
def find_invoice(order):
    return Absent
@app.step(repeat="safe")
def upsert_customer(customer):
    done.append("upsert"); return {"name": customer}
@app.step(repeat=check(find_invoice))
def create_invoice(order, customer):
    done.append("invoice"); return {"id": f"inv-{order['id']}", "total": order["total"]}
@app.step(repeat="safe")
def mark_synced(number):
    done.append("mark")
@app.step(repeat="never")
def send_confirmation(order, invoice):
    done.append("mail")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TWICEPROOF_STORE", raising=False)
    names: dict[str, Any] = {"__name__": "shop"}
    exec(FLOW + STEPS, names)
    yield names
    names["app"].close()


def test_a_small_order_runs_here_and_once(shop: Any) -> None:
    order = {"id": 1, "customer": "ada", "total": 20}
    assert shop["sync_order"](order) == shop["sync_order"](order) == "inv-1"
    assert shop["done"] == ["upsert", "invoice", "mark", "mail"]
    assert Path("twiceproof.db").exists()


def test_a_large_order_waits_for_a_person_and_is_left_to_a_worker(shop: Any) -> None:
    app, sync_order = shop["app"], shop["sync_order"]
    handle = sync_order.start({"id": 2, "customer": "ada", "total": 900})
    app.worker().run(until_idle=True)
    assert handle.state == "waiting"
    with pytest.raises(Waiting):
        sync_order({"id": 2, "customer": "ada", "total": 900})
    (request,) = app.approvals()
    app.decide(request.id, True, by="ann")
    app.worker().run(until_idle=True)
    assert (handle.state, handle.result(timeout=5)) == ("done", "inv-2")
    assert shop["done"] == ["upsert", "invoice", "mark", "mail"]
