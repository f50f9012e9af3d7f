"""Secrets of connections: read from variables and files when they are needed, for every kind of connection."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

import pytest

from tests.unit.declared.books import HEAD, ORDER, declare
from twiceproof import Misuse, TwiceproofError
from twiceproof.declared.connections import Connections, secret_of
from twiceproof.declared.drafts import StandIns
from twiceproof.declared.model import NotifySpec
from twiceproof.declared.notices import asking
from twiceproof.declared.reading import read_flow

POST = "uses: [books]\nsteps:\n  - step: one\n    http: PUT books /one\n    repeat: safe\n"


@pytest.mark.parametrize(
    ("side", "header", "value"),
    [
        ("bearer: file:SECRET", "authorization", "Bearer canary-1"),
        ("user: ada, password: file:SECRET", "authorization", "Basic YWRhOmNhbmFyeS0x"),
        ('headers: {X-Api-Key: "file:SECRET"}', "x-api-key", "canary-1"),
    ],
)
def test_a_secret_in_a_file_is_sent_and_never_its_name(app, tmp_path, books, side, header, value):
    secret = tmp_path / "secret"
    secret.write_text("canary-1\n")
    side = side.replace("SECRET", str(secret))
    bill = declare(app, tmp_path, HEAD + POST, f'books: {{live: {{http: "{books.url}", {side}}}}}\n')
    bill(ORDER)
    ((_, _, _, headers),) = books.requests
    assert headers[header] == value
    secret.write_text("canary-2\n")  # it is rotated: the next request has the new one
    bill({**ORDER, "id": 8})
    assert books.requests[-1][3][header] != value
    assert b"canary" not in (tmp_path / "ledger.db").read_bytes()


def test_a_databases_address_may_be_in_a_file(app, tmp_path):
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    (tmp_path / "address").write_text(f"sqlite:///{tmp_path}/shop.db\n")
    steps = "uses: [db]\nsteps:\n  - {step: row, sql: db, upsert: {table: orders, by: [id], row: {id: =order.id}}}\n"
    steps += "  - {step: rows, sql: db, query: SELECT count(*) AS n FROM orders}\nreturns: =rows[0].n\n"
    bill = declare(app, tmp_path, HEAD + steps, f"db: {{live: {{sql: 'file:{tmp_path}/address'}}}}\n")
    assert bill(ORDER) == 1


def test_a_file_that_is_missing_or_empty_is_told_by_its_name(tmp_path):
    with pytest.raises(Misuse, match="nothing cannot be read"):
        secret_of(f"file:{tmp_path}/nothing").values()
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(Misuse, match="empty is empty"):
        secret_of(f"file:{tmp_path}/empty").values()
    assert str(tmp_path) in repr(secret_of(f"file:{tmp_path}/empty"))


def test_a_notice_of_a_draft_says_so(tmp_path):
    def line(known: Connections) -> Any:
        return asking(NotifySpec(notify="chat", text="Order 7"), known)({}).describe()

    (tmp_path / "connections.yaml").write_text("chat: {live: {log: true}, draft: {log: true}}\n")
    known = Connections.read(tmp_path / "connections.yaml")
    read = read_flow("flow: x\ninput: {a: text}\nkey: k:{a}\nuses: [chat]\nsteps: [{notify: chat, text: Order 7}]\n")
    assert line(known) == {"log": "Order 7"}
    assert line(StandIns(read, known, frozenset()).connections()) == {"log": "DRAFT: Order 7"}


@pytest.mark.parametrize(
    ("side", "found"),
    [
        ('http: "http://[bad"', "http is no address"),
        ('http: "http://host:port"', "http is no address"),
        ('http: "http://"', "http is no address"),
        ('http: "https://ada:canary@host"', "http is no address"),
        ('sql: "postgresql://ada:canary@host/shop"', "sql holds a password"),
        ('sql: "mysql://ada:canary@[host/shop"', "sql holds a password"),
        ('smtp: "host:port", from: a@example.com', "smtp is no mail server"),
        ('smtp: "", from: a@example.com', "smtp is no mail server"),
    ],
)
def test_an_address_that_cannot_be_used_is_a_problem_of_the_file(tmp_path, side, found):
    """Not a failure of the promotion that tries the address, nor of a run."""
    (tmp_path / "connections.yaml").write_text(f"books: {{live: {{{side}}}}}\n")
    (problem,) = Connections.read(tmp_path / "connections.yaml").problems
    assert found in problem.found and problem.instead and "canary" not in str(problem)


def test_addresses_with_ports_and_without_passwords_are_sound(tmp_path):
    (tmp_path / "connections.yaml").write_text(
        "a: {live: {http: 'http://[::1]:8080/api'}}\nb: {live: {sql: 'postgresql://ada@host/shop'}}\n"
        "c: {live: {smtp: 'mail.example.com', from: a@example.com}}\nd: {live: {sql: env:DATABASE_URL}}\n"
        "e: {live: {sql: 'sqlite:///shop.db'}}\n"
    )
    read = Connections.read(tmp_path / "connections.yaml")
    assert read.problems == () and [*read.known] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("status", [200, 403, 500, "refused", "no address"])
def test_the_address_of_a_chat_is_a_secret_also_when_a_notice_fails(app, tmp_path, books, monkeypatch, caplog, status):
    """Whoever has its path can write into the chat. An answer may repeat it, as that of this server does."""
    path = "/services/canary-T0/canary-B0?key=canary-K0"
    base = "http://127.0.0.1:9" if status == "refused" else books.url
    monkeypatch.setenv("CHAT_URL", f"canary {path}" if status == "no address" else base + path)
    if isinstance(status, int):
        books.refuses[path] = status
    steps = "uses: [chat]\nsteps:\n  - {step: told, notify: chat, text: Hi, repeat: safe, retry: {attempts: 1}}\n"
    bill = declare(app, tmp_path, HEAD + steps, "chat: {live: {webhook: env:CHAT_URL}}\n")
    with contextlib.nullcontext() if status == 200 else pytest.raises(TwiceproofError) as failed:
        bill(ORDER)
    seen = [repr(app.history("bill/shop:order:7")), caplog.text, "" if status == 200 else str(failed.value)]
    assert not any("canary" in text for text in seen)
    assert not any(b"canary" in file.read_bytes() for file in tmp_path.glob("ledger.db*"))
    assert bool(books.requests) is (status in (200, 403, 500))
