"""The verbs and options of a file's steps, carried out against real servers on loopback."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.unit.declared.books import HEAD, ORDER, books_only, declare
from tests.unit.effects.mailbox import mailbox
from twiceproof import App, NeedsReview, NotDone, Rejected, Waiting
from twiceproof.effects import ssh
from twiceproof.errors import StepFailed
from twiceproof.flows.engine.step_errors import BrokenFlowText


@pytest.fixture(autouse=True)
def _token(monkeypatch):
    monkeypatch.setenv("BOOKS_TOKEN", "canary-token")


def finished(app: App, flow: Any, order: Any = ORDER) -> Any:
    for _ in range(5):
        try:
            return flow(order)
        except Waiting:
            app.worker().run(until_idle=True)
    return flow(order)


# -- after a failure -----------------------------------------------------------------------------

FAILING = """\
uses: [books]
steps:
  - step: one
    http: POST books /invoices
    json: {reference: 1}
    repeat: safe
    undo: {step: undo_one, http: "PUT books /void/{result.id}", repeat: safe}
  - step: two
    http: POST books /two
    repeat: never
    final: [422]
on_error:
  - step: tell
    http: POST books /tell
    json: {text: "{error.step}: {error.message}", done: '=default(one.id, "nothing")'}
    repeat: safe
"""


def test_steps_after_a_failure_follow_the_undo_and_know_what_happened(app, tmp_path, books):
    bill = declare(app, tmp_path, HEAD + FAILING, books_only(books))
    books.refuses["/two"] = 422
    with pytest.raises(NotDone, match="422"):
        bill(ORDER)
    assert [request[:2] for request in books.requests][2:] == [("PUT", "/void/inv_1"), ("POST", "/tell")]
    told = books.requests[-1][2]
    assert told["text"].startswith("two: ") and "422" in told["text"] and told["done"] == "inv_1"
    with pytest.raises(Exception, match="422"):
        bill(ORDER)
    assert books.paths().count("/tell") == 1  # a duplicate tells nobody again
    names = [step.name for step in app.history("bill/shop:order:7").steps]
    assert "on_error:tell" in names


def test_a_failure_after_the_failure_does_not_hide_it(app, tmp_path, books):
    text = FAILING.replace("http: POST books /tell\n", "http: POST books /tell\n    final: [500, 422]\n")
    bill = declare(app, tmp_path, HEAD + text, books_only(books))
    books.refuses |= {"/two": 422, "/tell": 422}
    with pytest.raises(NotDone, match="422"):
        bill(ORDER)
    assert app.runs(flow="bill")[0].state == "failed"


def test_nothing_follows_while_an_outcome_is_unknown(app, tmp_path, books):
    bill = declare(app, tmp_path, HEAD + FAILING, books_only(books))
    books.refuses["/two"] = 500
    with pytest.raises(Exception, match="two"):
        bill(ORDER)
    assert app.runs(flow="bill")[0].state == "review"
    assert "/tell" not in books.paths() and books.paths("PUT") == []


def test_a_rejection_is_told_by_the_name_of_its_approval(app, tmp_path, books):
    text = FAILING.replace("  - step: two\n    http: POST books /two\n    repeat: never\n    final: [422]\n", "")
    text = text.replace("on_error:", "  - approve: spend\non_error:")
    bill = declare(app, tmp_path, HEAD + text, books_only(books))
    with pytest.raises(Waiting):
        bill(ORDER)
    (open_,) = app.approvals()
    app.decide(open_.id, approved=False, by="ann")
    with pytest.raises(Rejected):
        bill(ORDER)
    assert books.requests[-1][1] == "/tell" and books.requests[-1][2]["text"].startswith("spend: ")


def test_the_failure_of_a_step_may_have_steps_of_its_own(app, tmp_path, books):
    steps = """\
uses: [books]
steps:
  - step: one
    http: POST books /one
    repeat: safe
    final: [422]
    on_error:
      - step: instead
        http: PUT books /instead
        json: {why: =error.message}
        repeat: safe
returns: =one
"""
    bill = declare(app, tmp_path, HEAD + steps, books_only(books))
    books.refuses["/one"] = 422
    assert bill(ORDER) is None
    assert books.paths("PUT") == ["/instead"]


def test_an_item_that_fails_may_leave_the_others_alone(app, tmp_path, books):
    text = """\
flow: bill
input: {order: map}
key: shop:order:{order.id}
uses: [books]
steps:
  - step: lines
    each: order.lines
    as: line
    id: "{line.sku}"
    on_failure: go on
    do:
      - {step: stock, http: "PUT books /stock/{line.sku}", repeat: safe, final: [422]}
returns: =[default(one.failed.step, "fine") for one in lines]
"""
    bill = declare(app, tmp_path, text, books_only(books))
    books.refuses["/stock/a"] = 422
    assert bill({"id": 7, "lines": [{"sku": "a"}, {"sku": "b"}]}) == ["stock[a]", "fine"]


# -- large values, rows, and mails ---------------------------------------------------------------


def test_a_large_value_is_kept_and_read_by_reference(app, tmp_path, books):
    steps = """\
steps:
  - step: report
    keep: '"# Report " + text(order.id)'
    name: report-{order.id}.md
    media: text/markdown
returns: =report
"""
    kept = declare(app, tmp_path, HEAD + steps)(ORDER)
    assert kept["ref"].startswith("res://") and (kept["name"], kept["media_type"]) == ("report-7.md", "text/markdown")


def test_a_mail_carries_files(app, tmp_path):
    with mailbox() as (box, port):
        steps = """\
uses: [mail]
steps:
  - step: report
    keep: '"all is well"'
    name: r.txt
  - step: greeting
    mail: mail
    to: "{order.email}"
    subject: Order {order.id}
    text: Thank you.
    attach:
      - {name: report.txt, content: =report}
      - {name: "order-{order.id}.json", content: =order, media: application/json}
    repeat: never
"""
        connections = f'mail: {{live: {{smtp: "127.0.0.1:{port}", from: shop@example.com, tls: none}}}}\n'
        declare(app, tmp_path, HEAD + steps, connections)(ORDER)
        files = {part.get_filename(): part.get_payload(decode=True) for part in box.mails[0].walk()}
    assert files["report.txt"] == b"all is well" and json.loads(files["order-7.json"])["id"] == 7


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute("CREATE TABLE stock (sku TEXT PRIMARY KEY, pieces INTEGER)")
        db.execute("INSERT INTO stock VALUES ('a', 5), ('b', 7)")
    return tmp_path / "shop.db"


SQL = """\
flow: bill
input: {order: {id: integer, sku: text}}
key: shop:order:{order.id}
uses: [shop]
steps:
  - step: found
    sql: shop
    query: SELECT sku, pieces FROM stock WHERE sku = :sku -- :nothing
    with: {sku: =order.sku}
  - step: taken
    sql: shop
    run: UPDATE stock SET pieces = pieces - 1 WHERE sku = :sku
    with: {sku: =order.sku}
    repeat:
      check:
        sql: shop
        query: SELECT 1 AS found FROM stock WHERE sku = :sku AND pieces = 4
        with: {sku: =order.sku}
returns: {before: =found, taken: =taken.affected}
"""


def test_rows_are_read_and_changed_by_parameters(app, tmp_path, shop):
    bill = declare(app, tmp_path, SQL, f'shop: {{live: {{sql: "sqlite:///{shop}"}}}}\n')
    assert bill({"id": 1, "sku": "a"}) == {"before": [{"sku": "a", "pieces": 5}], "taken": 1}
    assert bill({"id": 1, "sku": "a"})["taken"] == 1
    with sqlite3.connect(shop) as db:
        assert dict(db.execute("SELECT * FROM stock")) == {"a": 4, "b": 7}


# -- work elsewhere ------------------------------------------------------------------------------

REMOTE = """\
uses: [builder]
steps:
  - step: agent
    remote: ssh builder
    command: [run-agent, --ticket, "{order.id}"]
    callback: finished
    timeout: 6h
returns: =agent.summary
"""


def test_work_elsewhere_is_started_once_and_its_callback_is_the_result(tmp_path, monkeypatch):
    started: list[Any] = []

    async def start(host: str, script: str, stdin: str, *rest: Any) -> None:
        started.append((host, script, stdin.splitlines(), rest[-1]))

    monkeypatch.setattr(ssh, "start_command", start)
    connections = (
        "builder: {live: {ssh: builder.example, user: agent, key: file:/keys/agent, known_hosts: file:/keys/known}}\n"
    )
    with App(f"sqlite:///{tmp_path}/ledger.db", url="https://hooks.example") as app:
        bill = declare(app, tmp_path, HEAD + REMOTE, connections)
        for _ in range(2):
            with pytest.raises(Waiting):
                bill(ORDER)
        ((host, script, (url, key), options),) = started
        assert host == "builder.example" and "run-agent --ticket 7" in script and key.startswith("tp_")
        assert options == {"username": "agent", "client_keys": ["/keys/agent"], "known_hosts": "/keys/known"}
        app.deliver(url.rpartition("/")[2], {"summary": "3 files"})
        assert finished(app, bill) == "3 files" and len(started) == 1


def test_people_are_told_of_an_approval_with_a_link(tmp_path, books):
    steps = """\
uses: [chat]
steps:
  - approve: large
    show: {total: =order.total}
    ask: {notify: chat, text: "Order {order.id}? {link}"}
returns: approved by {large.by}
"""
    with App(f"sqlite:///{tmp_path}/ledger.db", url="https://hooks.example") as app:
        bill = declare(app, tmp_path, HEAD + steps, f'chat: {{live: {{webhook: "{books.url}/chat"}}}}\n')
        for _ in range(2):
            with pytest.raises(Waiting):
                bill(ORDER)
        ((_, path, body, _),) = books.requests
        assert path == "/chat" and body["text"].startswith("Order 7? https://hooks.example/v1/approvals/link/")
        (open_,) = app.approvals()
        app.decide(open_.id, approved=True, by="ann")
        assert finished(app, bill) == "approved by ann"


# -- options -------------------------------------------------------------------------------------


def test_fields_that_are_redacted_are_not_recorded(app, tmp_path, books):
    steps = """\
uses: [books]
steps:
  - step: invoice
    http: POST books /invoices
    json: {reference: =order.id, card: {number: canary-card, brand: visa}}
    repeat: safe
    redact: [card.number]
returns: =invoice.card
"""
    assert declare(app, tmp_path, HEAD + steps, books_only(books))(ORDER) == {"brand": "visa"}
    assert b"canary-card" not in (tmp_path / "ledger.db").read_bytes()


def test_the_run_has_names_for_itself(app, tmp_path):
    bill = declare(app, tmp_path, HEAD + 'steps:\n  - set: {x: 1}\nreturns: ["=run.key", "=run.id", "{run.key}"]\n')
    key, run, text = bill(ORDER)
    assert key == text == "shop:order:7" and bill.start(ORDER).id == run


def test_a_poll_asks_from_where_it_left_off_and_starts_each_item_once(app, tmp_path, books):
    first = {"reference": "", **ORDER, "id": 1}
    books.invoices += [first, {**first, "id": 2, "email": ""}]
    text = HEAD + (
        "uses: [books]\non:\n  - poll: shop\n    every: 1h\n    http: GET books /orders?since={since}&reference=\n"
        '    items: body.items\n    only: item.email != ""\nsteps:\n  - set: {x: 1}\nreturns: =order.id\n'
    )
    bill = declare(app, tmp_path, text, books_only(books))
    app.worker().run(until_idle=True)
    (path,) = books.paths("GET")
    assert path.startswith("/orders?since=1970-01-01T00%3A00%3A00Z")
    assert bill(first) == 1
    assert [run.key for run in app.runs(flow="bill")] == ["shop:order:1"]


def test_a_failed_step_is_what_on_error_is_given(app, tmp_path, books):
    bill = declare(app, tmp_path, HEAD + FAILING.replace("error.message", "error.type"), books_only(books))
    books.refuses["/two"] = 422
    with pytest.raises((NotDone, StepFailed)):
        bill(ORDER)
    assert books.requests[-1][2]["text"] == "two: NotDone"


# -- mistakes in the file ------------------------------------------------------------------------

UNDOABLE = """\
uses: [books]
steps:
  - step: one
    http: POST books /invoices
    json: {reference: 1}
    repeat: safe
    undo: {step: undo_one, http: "PUT books /void/{result.id}", repeat: safe}
"""
MISTAKES = {
    "a condition": ["  - step: two", "    if: one.nosuch > 1", "    http: POST books /two", "    repeat: never"],
    "a field of a step": [
        "  - step: two",
        "    http: POST books /two",
        '    json: {a: "{one.nosuch}"}',
        "    repeat: never",
    ],
    "a value": ['  - set: {x: "= one.id + 1"}'],
    "a result": ['  - done: "= one.id / 0"'],
    "a list": ["  - each: one.id", "    as: item", '    id: "{item.sku}"', "    do: [{set: {x: 1}}]"],
    "a function's argument": [
        "  - step: two",
        "    call: json:dumps",
        '    with: {obj: "= one.nosuch"}',
        "    repeat: safe",
    ],
    "a branch": [
        "  - together:",
        "    - step: two",
        "      if: one.nosuch",
        "      http: POST books /two",
        "      repeat: never",
    ],
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_file_undoes_nothing_and_the_run_goes_on_after_a_fix(app, tmp_path, books, mistake):
    text = HEAD + UNDOABLE + "\n".join(MISTAKES[mistake]) + "\n"
    bill = declare(app, tmp_path, text, books_only(books))
    with pytest.raises(NeedsReview, match="its own code broke off with"):
        bill(ORDER)
    assert books.paths("PUT") == [] and books.paths() == ["/invoices"]
    with App(app.store) as repaired:
        fixed = (
            text.replace("one.nosuch > 1", "one.reference == 1")
            .replace("one.nosuch", "one.id")
            .replace("one.id + 1", "one.id")
        )
        bill = declare(repaired, tmp_path, fixed.replace("one.id / 0", "one.id"), books_only(books))
        if mistake not in ("a list", "a branch"):
            bill.retry(ORDER)
            assert repaired.runs(flow="bill")[0].state == "done"
    assert books.paths("PUT") == [] and books.paths().count("/invoices") == 1


def test_a_mistake_before_anything_that_could_be_undone_fails_the_run(app, tmp_path, books):
    text = HEAD + UNDOABLE.replace(
        '    undo: {step: undo_one, http: "PUT books /void/{result.id}", repeat: safe}\n', ""
    )
    bill = declare(app, tmp_path, text + "\n".join(MISTAKES["a condition"]) + "\n", books_only(books))
    with pytest.raises(NotDone, match=r"one\.nosuch"):
        bill(ORDER)
    assert app.runs(flow="bill")[0].state == "failed"


def test_what_an_item_lacks_is_its_own_failure_where_others_go_on(app, tmp_path, books):
    text = (
        HEAD
        + UNDOABLE
        + """\
  - each: one.lines
    as: item
    id: "{item.id}"
    on_failure: go on
    do:
    - step: two
      call: json:dumps
      with: {obj: "= item.sku"}
      repeat: safe
"""
    )
    text = text.replace("{reference: 1}", "{reference: 1, lines: [{id: 1, sku: a}, {id: 2}]}")
    bill = declare(app, tmp_path, text, books_only(books))
    bill(ORDER)
    assert app.runs(flow="bill")[0].state == "done" and books.paths("PUT") == []


def test_an_empty_field_is_a_failure_and_no_mistake(app, tmp_path, books):
    text = HEAD + UNDOABLE.replace("{reference: 1}", '{reference: 1, note: ""}')
    text += '  - step: two\n    http: POST books /two\n    json: {a: "{one.note}"}\n    repeat: never\n'
    bill = declare(app, tmp_path, text, books_only(books))
    with pytest.raises(NotDone, match="it is empty"):
        bill(ORDER)
    assert app.runs(flow="bill")[0].state == "failed" and books.paths("PUT") == ["/void/inv_1"]


def test_a_called_flow_that_is_not_here_is_told_with_what_to_do(app, tmp_path):
    text = HEAD + "steps:\n  - {step: said, flow: ship, with: {id: =order.id}}\nreturns: =said\n"
    bill = declare(app, tmp_path, text)
    with pytest.raises(BrokenFlowText, match=r"flow: ship is not in this process; put ship\.flow\.yaml beside"):
        bill(ORDER)


MAIL = (
    "flow: bill\ninput: {id: text, to: any, name: any}\nkey: k:{id}\nuses: [mail]\nsteps:\n"
    '  - {step: told, mail: mail, to: "{to}", subject: =SUBJECT, text: ="Hello " + name, repeat: never}\n'
)


def mailed(app: App, folder: Path, port: int, subject: str = '"Bill for " + name', **given: str) -> Any:
    text = MAIL.replace("=SUBJECT", f"'={subject}'")
    for old, new in given.items():
        text = text.replace(f'{old}: "{{{old}}}"', f"{old}: {new}")
    side = f"smtp: 127.0.0.1:{port}, from: shop@example.com, tls: none"
    return declare(app, folder, text, f"mail: {{live: {{{side}}}}}\n")


def test_the_parts_of_a_mail_may_be_expressions(app, tmp_path):
    with mailbox() as (box, port):
        bill = mailed(app, tmp_path, port, to="=to")
        bill(id="1", to=["ada@example.com", "bob@example.com"], name="Ada")
        (mail,) = box.mails
    assert (mail["subject"], mail.get_content().strip()) == ("Bill for Ada", "Hello Ada")
    assert box.envelopes[0][1] == ["ada@example.com", "bob@example.com"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"to": "ada@example.com, eve@example.com", "name": "Ada"}, "several addresses in one field"),
        ({"to": "ada@example.com\nBcc: eve@example.com", "name": "Ada"}, "to: it has a line break"),
        ({"to": "ada@example.com", "name": "Ada\r\nBcc: eve@example.com"}, "subject: it has a line break"),
    ],
)
def test_an_event_adds_no_receiver_to_a_mail_and_no_header(app, tmp_path, given, said):
    with mailbox() as (box, port):
        bill = mailed(app, tmp_path, port)
        with pytest.raises(NotDone, match=said):
            bill(id="1", **given)
        assert box.mails == []


@pytest.mark.parametrize("to", [None, 5, [5], []])
def test_what_is_no_address_is_told_as_such(app, tmp_path, to):
    bill = mailed(app, tmp_path, 9, to="=to")
    with pytest.raises(BrokenFlowText, match="to: an address, or a list of addresses, is expected here"):
        bill(id="1", to=to, name="Ada")
