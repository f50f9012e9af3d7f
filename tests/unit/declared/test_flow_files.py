"""Flows in files, run and proved: as a Python flow would, against real servers on loopback."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from tests.unit.declared.books import HEAD, ORDER, books_only, declare
from tests.unit.effects.mailbox import mailbox
from twiceproof import App, Happened, Misuse, NeedsReview, NotDone, PayloadMismatch, Unknown, Waiting, load_flows
from twiceproof.prove.fixture import NotSafe, prove
from twiceproof.prove.worlds.http import HttpWorld

INVOICE = """\
uses: [books]
steps:
  - step: invoice
    http: POST books /invoices
    json: {reference: =order.id, total: =order.total}
    repeat: {check: "GET books /invoices?reference={order.id}", found: "body.items[0] if len(body.items) > 0 else null"}
    external: "books:{result.id}"
returns: {invoice: =invoice.id}
"""


def test_a_flow_of_a_file_is_run_once(app, tmp_path, books, monkeypatch):
    monkeypatch.setenv("BOOKS_TOKEN", "canary-token")
    bill = declare(app, tmp_path, HEAD + INVOICE, books_only(books))
    assert bill(ORDER) == {"invoice": "inv_1"} == bill(ORDER)
    ((_, path, body, headers),) = books.requests
    assert (path, body) == ("/invoices", {"reference": 7, "total": 120.5})
    assert headers["authorization"] == "Bearer canary-token" and headers["twiceproof-effect-key"]
    with pytest.raises(PayloadMismatch):
        bill({**ORDER, "total": 9})
    assert "canary-token" not in (tmp_path / "ledger.db").read_bytes().decode("latin-1")


def test_a_file_and_a_function_are_one_flow(app, tmp_path, books, monkeypatch):
    monkeypatch.setenv("BOOKS_TOKEN", "t")
    bill = declare(app, tmp_path, HEAD + INVOICE, books_only(books))
    first = bill(ORDER)
    with App(f"sqlite:///{tmp_path}/ledger.db") as other:

        @other.flow(key="shop:order:{order[id]}", name="bill")
        def in_python(order: dict[str, Any]) -> Any:
            raise AssertionError("a duplicate must not run")

        assert in_python.key(ORDER) == bill.key(ORDER) == "shop:order:7"
        assert in_python(ORDER) == first
        assert in_python.start(ORDER).id == bill.start(ORDER).id


def test_the_external_id_of_a_step_is_known(app, tmp_path, books, monkeypatch):
    monkeypatch.setenv("BOOKS_TOKEN", "t")
    declare(app, tmp_path, HEAD + INVOICE, books_only(books))(ORDER)
    assert [link.external for link in app.ids("bill/shop:order:7")] == ["books:inv_1"]


def test_a_step_whose_answer_is_lost_is_looked_for(app, tmp_path, books, monkeypatch):
    monkeypatch.setenv("BOOKS_TOKEN", "t")
    text = HEAD + INVOICE.replace("repeat: {check", "timeout: 1\n    repeat: {settle: 0, check")
    bill = declare(app, tmp_path, text, books_only(books))
    books.invoices.append({"id": "inv_0", "reference": 7})
    books.refuses["/invoices"] = 500  # done by an earlier attempt, as far as the destination knows
    assert bill(ORDER) == {"invoice": "inv_0"}
    assert books.paths() == ["/invoices"] and books.paths("GET") == ["/invoices?reference=7"]


def test_under_never_an_unknown_outcome_waits_for_a_person(app, tmp_path, books, monkeypatch):
    monkeypatch.setenv("BOOKS_TOKEN", "t")
    never = INVOICE.replace(INVOICE[INVOICE.index("    repeat") : INVOICE.index("    external")], "    repeat: never\n")
    bill = declare(app, tmp_path, HEAD + never, books_only(books))
    books.refuses["/invoices"] = 500
    with pytest.raises(NeedsReview):
        bill(ORDER)
    assert books.paths() == ["/invoices"]


def test_a_key_is_the_same_in_every_attempt(app, tmp_path, books, monkeypatch):
    monkeypatch.setenv("BOOKS_TOKEN", "t")
    keyed = INVOICE.replace(
        INVOICE[INVOICE.index("    repeat") : INVOICE.index("    external")],
        "    repeat: {keyed: X-Key}\n    retry: {attempts: 3, first: 0, most: 0}\n",
    )
    bill = declare(app, tmp_path, HEAD + keyed, books_only(books))
    books.refuses["/invoices"] = 503
    with pytest.raises(Exception, match="invoice"):
        bill(ORDER)
    keys = {headers["x-key"] for _, _, _, headers in books.requests}
    assert len(books.requests) == 3 and len(keys) == 1 and "{" not in keys.pop()


def test_a_failure_undoes_what_was_done_in_reverse(app, tmp_path, books, monkeypatch):
    monkeypatch.setenv("BOOKS_TOKEN", "t")
    steps = """\
uses: [books]
steps:
  - step: one
    http: POST books /invoices
    json: {reference: 1}
    repeat: safe
    undo: {step: undo_one, http: "POST books /void/{result.id}", repeat: safe}
  - step: two
    http: PUT books /two
    repeat: safe
    undo: {step: undo_two, http: DELETE books /two, repeat: safe}
  - step: three
    http: POST books /three
    repeat: safe
    final: [422]
"""
    bill = declare(app, tmp_path, HEAD + steps, books_only(books))
    books.refuses["/three"] = 422
    with pytest.raises(NotDone, match="422"):
        bill(ORDER)
    assert [request[:2] for request in books.requests][-2:] == [("DELETE", "/two"), ("POST", "/void/inv_1")]


def test_a_failed_step_may_be_passed_over(app, tmp_path, books, monkeypatch):
    monkeypatch.setenv("BOOKS_TOKEN", "t")
    steps = "uses: [books]\nsteps:\n  - step: one\n    http: POST books /one\n"
    steps += "    repeat: safe\n    final: [422]\n    on_error: go on\n"
    bill = declare(app, tmp_path, HEAD + steps + "returns: =default(one, 0)\n", books_only(books))
    books.refuses["/one"] = 422
    assert bill(ORDER) == 0


def test_branches_lists_and_sets(app, tmp_path, books, monkeypatch):
    monkeypatch.setenv("BOOKS_TOKEN", "t")
    text = """\
flow: bill
input: {order: map}
key: shop:order:{order.id}
uses: [books]
steps:
  - set: {tax: "=round(order.total * 0.2, 2)"}
  - choose:
      - when: order.total > 1000
        do: [{step: large, http: PUT books /large, repeat: safe}]
      - else: [{step: small, http: PUT books /small, repeat: safe}]
  - step: lines
    each: order.lines
    as: line
    id: "{line.sku}"
    do:
      - step: stock
        http: PUT books /stock/{line.sku}
        repeat: safe
  - together:
      - {step: a, http: GET books /a}
      - {step: b, http: GET books /b}
  - done: {tax: =tax, sku: "=[one.line.sku for one in lines]"}
    if: len(order.lines) == 2
  - fail: not reached
"""
    bill = declare(app, tmp_path, text, books_only(books))
    assert bill(ORDER) == {"tax": 24.1, "sku": ["a", "b"]}
    assert sorted(books.paths("PUT")) == ["/small", "/stock/a", "/stock/b"]
    assert sorted(books.paths("GET")) == ["/a", "/b"]
    with pytest.raises(NotDone, match="not reached"):
        bill({**ORDER, "id": 8, "lines": [{"sku": "a"}]})
    with pytest.raises(NotDone, match="two items have the id 'a'"):
        bill({**ORDER, "id": 9, "lines": [{"sku": "a"}, {"sku": "a"}]})


def test_an_approval_parks_the_run_and_its_decision_is_a_value(app, tmp_path):
    steps = "steps:\n  - approve: large\n    if: order.total > 100\n    show: {total: =order.total}\nreturns: done\n"
    bill = declare(app, tmp_path, HEAD + steps)
    with pytest.raises(Waiting):
        bill(ORDER)
    (open_,) = app.approvals()
    app.decide(open_.id, approved=True, by="ann")
    app.worker().run(until_idle=True)
    assert bill(ORDER) == "done"
    assert bill({**ORDER, "id": 8, "total": 5}) == "done"


def test_a_mail_goes_out_once(app, tmp_path):
    with mailbox() as (box, port):
        steps = """\
uses: [mail]
steps:
  - step: greeting
    mail: mail
    to: "{order.email}"
    subject: Order {order.id}
    text: Thank you.
    repeat: never
returns: =greeting.message_id
"""
        connections = f'mail: {{live: {{smtp: "127.0.0.1:{port}", from: shop@example.com, tls: none}}}}\n'
        bill = declare(app, tmp_path, HEAD + steps, connections)
        first = bill(ORDER)
        assert bill(ORDER) == first and len(box.mails) == 1
        assert box.mails[0]["Subject"] == "Order 7" and box.mails[0]["Message-ID"] == first


def test_a_row_of_the_ledgers_own_database_is_written_with_its_step(app, tmp_path):
    with sqlite3.connect(tmp_path / "ledger.db") as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL)")
    steps = "uses: [db]\nsteps:\n  - step: row\n    sql: db\n"
    steps += "    upsert: {table: orders, by: [id], row: {id: =order.id, total: =order.total}}\n"
    bill = declare(app, tmp_path, HEAD + steps, f'db: {{live: {{sql: "sqlite:///{tmp_path}/ledger.db"}}}}\n')
    bill(ORDER)
    with sqlite3.connect(tmp_path / "ledger.db") as db:
        assert db.execute("SELECT * FROM orders").fetchall() == [(7, 120.5)]


def test_a_webhook_starts_a_run_of_what_it_is_meant_for(app, tmp_path):
    text = HEAD + (
        "on:\n  - webhook: generic\n    name: shop\n    secret: env:SHOP_SECRET\n"
        "    options: {id: id, signature: X-Signature}\n"
        '    only: type == "paid"\n    give: {order: =data}\nsteps:\n  - set: {x: 1}\n'
    )
    declare(app, tmp_path, text)
    hook = app.hooks["shop"]
    assert hook.make is not None
    assert hook.make({"type": "paid", "data": ORDER}) == ORDER
    assert hook.make({"type": "other", "data": ORDER}) is None


@pytest.mark.parametrize("paid", ["yes", "no", 1, 0, None, []])
def test_a_condition_is_true_or_false_and_nothing_else(app, tmp_path, paid):
    """A text like "no" would silently count as one of them: an event would be dropped, or another branch taken."""
    text = "flow: bill\ninput: {id: text, paid: any}\nkey: k:{id}\n"
    text += "on:\n  - {webhook: generic, name: shop, secret: env:S, options: {id: id}, only: paid}\n"
    text += "steps:\n  - choose:\n      - when: paid\n        do: [{set: {x: 1}}]\n      - else: [{set: {x: 2}}]\n"
    bill = declare(app, tmp_path, text)
    with pytest.raises(NotDone, match="when: paid is neither true nor false"):
        bill(id="1", paid=paid)
    make = app.hooks["shop"].make
    assert make is not None
    with pytest.raises(NotDone, match="only: paid is neither true nor false"):
        make({"paid": paid})
    assert make({"id": "1", "paid": True}) and make({"id": "1", "paid": False}) is None


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"id": 7, "email": "x"}, "order.total is missing"),
        ({**ORDER, "email": 5}, "order.email is not text"),
        ({**ORDER, "total": "5"}, "order.total is not number"),
    ],
)
def test_an_event_that_does_not_fit_fails_with_its_path(app, tmp_path, order, said):
    bill = declare(app, tmp_path, HEAD + "steps:\n  - set: {x: 1}\n")
    with pytest.raises(NotDone, match=said):
        bill(order)


def test_a_directory_with_one_wrong_file_declares_nothing(app, tmp_path):
    with pytest.raises(Misuse, match=r"bill\.flow\.yaml:5:12: unknown-name"):
        declare(app, tmp_path, HEAD + "steps:\n  - done: =ordr.id\n")
    assert app.flows == {}
    with pytest.raises(Misuse, match="no file"):
        load_flows(app, tmp_path / "nowhere")


def test_a_value_in_a_path_cannot_reach_another_address(app, tmp_path, books, monkeypatch):
    monkeypatch.setenv("BOOKS_TOKEN", "t")
    text = "flow: bill\ninput: {name: text}\nkey: k:{name}\nuses: [books]\nsteps:\n"
    text += '  - step: one\n    http: PUT books /customers/{name}\n    query: {q: "{name}"}\n    repeat: safe\n'
    bill = declare(app, tmp_path, text, books_only(books))
    for name in ("../admin", "a/b?x=1#y", "//evil.example/", "a@evil.example", "%2e%2e/", "{effect_key}x"):
        bill(name)
    assert all(path.startswith("/customers/") and path.count("/") == 2 for path in books.paths("PUT"))


FOUND = {
    "POST /invoices": {"status": 201, "body": {"id": "inv_1"}},
    "GET /invoices*": {"body": {"items": [{"id": "inv_1"}]}, "after": "POST /invoices"},
}


@pytest.mark.parametrize("safe", [True, False])
def test_a_flow_of_a_file_is_proved_as_one_of_python(app, tmp_path, monkeypatch, safe):
    """Killed at every write and effect. The twin declares a POST safe, and is not."""
    monkeypatch.setenv("BOOKS_TOKEN", "t")
    repeat = INVOICE[INVOICE.index("    repeat") : INVOICE.index("    external")]
    text = HEAD + (INVOICE if safe else INVOICE.replace(repeat, "    repeat: safe\n"))
    bill = declare(app, tmp_path, text, 'books: {live: {http: "http://books.example", bearer: env:BOOKS_TOKEN}}\n')
    with HttpWorld(["books.example"], answers=FOUND) as world:
        if safe:
            report = prove(bill, ORDER, world=world, store="memory", depth=1)
            assert report.good and len(report.verdicts) > 10
        else:
            with pytest.raises(NotSafe, match="invoice"):
                prove(bill, ORDER, world=world, store="memory", depth=1)


CALLS: list[tuple[str, Any]] = []


def add_stock(sku: str, count: int) -> dict[str, Any]:
    CALLS.append((sku, count))
    if len(CALLS) == 1:
        raise TimeoutError("no answer came")
    return {"sku": sku}


def find_stock(order: dict[str, Any], effect_key: str) -> Any:
    return Happened({"sku": f"found {order['id']}"}) if effect_key.startswith("tp_") else Unknown()


@pytest.mark.parametrize(
    ("repeat", "result", "calls"),
    [("safe", "a", 2), (f"{{settle: 0, check: '{__name__}:find_stock'}}", "found 7", 1)],
)
def test_a_python_function_is_a_step_of_a_file(app, tmp_path, repeat, result, calls):
    CALLS.clear()
    steps = f"steps:\n  - step: stock\n    call: {__name__}:add_stock\n    with: {{sku: a, count: =order.id}}\n"
    steps += f"    timeout: 1\n    retry: {{attempts: 2, first: 0, most: 0}}\n    repeat: {repeat}\n"
    bill = declare(app, tmp_path, HEAD + steps + "returns: =stock.sku\n")
    assert finished(app, bill) == result and [("a", 7)] * calls == CALLS


def finished(app: App, flow: Any) -> Any:
    try:
        return flow(ORDER)
    except Waiting:
        app.worker().run(until_idle=True)
        return flow(ORDER)
