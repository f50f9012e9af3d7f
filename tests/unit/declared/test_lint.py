"""Every rule of lint: a wrong file is caught at its line and column, and its corrected twin is clean."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from twiceproof.declared.connections import Connections
from twiceproof.declared.lint import lint
from twiceproof.declared.model import schema
from twiceproof.declared.nodes import parse
from twiceproof.declared.reading import read_flow

SOUND = """\
flow: sync_order
about: Bill an order.
input:
  order: {id: integer, total: number, email: text, note: optional text}
key: shop:order:{order.id}
uses: [books, mail]
on:
  - webhook: stripe
    secret: env:STRIPE_SECRET
    only: type == "order.paid"
    give: {order: =data}
  - manual
steps:
  - step: invoice
    http: POST books /invoices
    json: {external_id: =order.id, total: =order.total}
    repeat: {check: "GET books /invoices?id={order.id}", found: "body.items[0]"}
    undo:
      step: void
      http: POST books /invoices/{result.id}/void
      repeat: safe
  - approve: large
    if: order.total > 5000
    show: {total: =order.total}
    timeout: 2d
  - step: greeting
    mail: mail
    to: "{order.email}"
    subject: Your order {order.id}
    text: |
      Hello,
      your invoice is {invoice.id}.
    repeat: never
returns: {invoice: =invoice.id}
tests:
  - name: a paid order
    input: {order: {id: 7, total: 10, email: ada@example.com}}
    expect: {mails: 1, "POST books /invoices": 1}
"""


def found(text: str, connections: Connections | None = None) -> list[tuple[str, int, int]]:
    problems = lint(read_flow(text), connections)
    return [
        (one.rule, one.place.line, one.place.column) for one in problems if "tests:" in text or one.rule != "no-test"
    ]


def changed(old: str, new: str) -> str:
    assert SOUND.count(old) == 1, old
    return SOUND.replace(old, new)


def test_a_sound_file_has_no_problems():
    assert found(SOUND) == []


@pytest.mark.parametrize(
    ("old", "new", "rule", "line", "column"),
    [
        ("about: Bill", "abuot: Bill", "unknown-field", 2, 1),
        ("total: number", "total: nmber", "type", 4, 24),
        ("{order.id}\nuses", "{order.attempt}\nuses", "unstable-key", 5, 18),
        ("{order.id}\nuses", "static\nuses", "unit-of-work", 5, 1),
        ("{order.id}\nuses", "{ordr.id}\nuses", "unknown-name", 5, 18),
        ("uses: [books, mail]", "uses: [mail]", "unknown-connection", 15, 5),
        ("webhook: stripe", "webhook: strip", "trigger", 8, 5),
        ("    secret: env:STRIPE_SECRET\n", "", "trigger", 8, 5),
        ("env:STRIPE_SECRET", "whsec_abcdef", "trigger", 9, 5),
        ("only: type ==", "only: type =", "expression", 10, 16),
        ("give: {order: =data}", "give: {ordr: =data}", "trigger", 11, 5),
        ("POST books /invoices\n", "SEND books /invoices\n", "request", 15, 5),
        ("=order.id, total", "=ordr.id, total", "unknown-name", 16, 26),
        ("=order.id, total", "=order.idd, total", "unknown-name", 16, 26),
        ("=order.id, total", "=order.id +, total", "expression", 16, 36),
        ('check: "GET books', 'check: "POST books', "probe-acts", 17, 14),
        (', found: "body.items[0]"}', ", keyed: X}", "shape", 17, 5),
        ("{result.id}/void\n      repeat: safe", "{result.id}/void", "undeclared-step", 18, 5),
        ("step: void", "step: order", "duplicate-name", 18, 5),
        ("order.total > 5000", "order.total > ", "expression", 23, 22),
        ("timeout: 2d", "timeout: [2d]", "shape", 25, 5),
        ("    repeat: never\n", "", "undeclared-step", 26, 5),
        ('to: "{order.email}"', "to: {order.email}", "unquoted-braces", 28, 9),
        ("is {invoice.id}", "is {invioce.id}", "unknown-name", 32, 1),
        ("is {invoice.id}", "is {large.by}", "used-before-done", 32, 1),
        ("subject: Your", "subject: sk_live_abc123 Your", "secret-in-text", 29, 5),
        ("mail: mail", "mial: mail", "verb", 26, 5),
        ("mail: mail", "mail: mail\n    sleep: 3d", "verb", 28, 5),
        ("step: greeting\n    ", "", "unnamed-step", 26, 5),
    ],
)
def test_a_wrong_file_is_caught_at_its_place(old, new, rule, line, column):
    assert (rule, line, column) in found(changed(old, new))


@pytest.mark.parametrize(
    ("steps", "rule"),
    [
        ("  - each: order.lines\n    do: [{step: a, http: GET books /x}]\n", "each-without-id"),
        ('  - each: order.lines\n    id: "{item.sku}"\n    do: [{done: 1}]\n', "done"),
        ("  - done: 1\n  - step: a\n    http: GET books /x\n", "never-reached"),
        ("  - step: a\n    sql: books\n", "shape"),
        ("  - step: a\n    sql: books\n    upsert: {table: t, by: [id], row: {name: x}}\n", "shape"),
        ("  - choose: [{when: order.id > 1}]\n", "shape"),
        ("  - just text\n", "shape"),
        (
            "  - {step: a, http: DELETE books /x, repeat: never}\n  - {step: b, http: GET books /y}\n",
            "dangerous-before-safe",
        ),
        ("  - call: nothing:here\n    step: a\n", "undeclared-step"),
        ("  - wait: a\n  - set: {x: =a.b.c + d}\n", "unknown-name"),
    ],
)
def test_a_wrong_step_is_caught(steps, rule):
    text = f"flow: x\ninput: {{order: any}}\nkey: k:{{order.id}}\nuses: [books]\nsteps:\n{steps}"
    assert rule in [one[0] for one in found(text)]


TWINS = (
    '  - each: order.lines\n    id: "{item.sku}"\n    do: [{step: a, http: GET books /x}]\n',
    "  - step: a\n    http: GET books /x\n  - done: 1\n",
    "  - step: a\n    sql: books\n    upsert: {table: t, by: [id], row: {id: =order.id, name: x}}\n",
    "  - choose:\n    - {when: order.id > 1, do: [{set: {x: 1}}]}\n    - {else: [{set: {x: 2}}]}\n  - done: =x\n",
    "  - step: b\n    http: GET books /y\n  - step: a\n    http: DELETE books /x\n    repeat: never\n",
    "  - together: [{step: a, http: GET books /a}, {step: b, http: GET books /b}]\n  - done: =a.x + b.x\n",
    "  - wait: a\n    if: order.id > 1\n  - done: =a.x\n    if: order.id > 1\n",
    "  - wait: a\n    if: order.id > 1\n  - done: =default(a.x, 0)\n",
    '  - publish: orders\n    payload: {id: =order.id}\n  - sleep: 3d\n  - until: "now"\n  - fail: no {order.id}\n',
)


@pytest.mark.parametrize("steps", TWINS)
def test_a_right_step_is_clean(steps):
    text = f"flow: x\ninput: {{order: any}}\nkey: k:{{order.id}}\nuses: [books]\nsteps:\n{steps}"
    assert found(text) == []


def test_ten_errors_in_one_file_are_all_told():
    text = SOUND
    for old, new in [
        ("about:", "abuot:"),
        ("total: number", "total: nmber"),
        ("webhook: stripe", "webhook: strip"),
        ("=order.total}\n    repeat", "=ordr.total}\n    repeat"),
        ("order.total > 5000", "order.total > "),
        ("timeout: 2d", "tmeout: 2d"),
        ('to: "{order.email}"', "to: {order.email}"),
        ("{invoice.id}.", "{invioce.id}."),
        ("    repeat: never\n", ""),
        ("returns: {invoice: =invoice.id}", "returns: {invoice: =nothing.id}"),
    ]:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    assert len(found(text)) >= 10


def test_a_connection_must_be_there_and_of_its_kind(tmp_path: Path):
    file = tmp_path / "connections.yaml"
    file.write_text("books: {live: {http: https://books.example}}\nmail: {live: {http: https://mail.example}}\n")
    assert [one[0] for one in found(SOUND, Connections.read(file))] == ["unknown-connection"]
    file.write_text(
        "books: {live: {http: https://books.example, bearer: env:T}}\n"
        "mail: {live: {smtp: mail.example, from: a@example.com}}\n"
    )
    assert found(SOUND, Connections.read(file)) == []


@pytest.mark.parametrize(
    "side",
    [
        "{http: https://user:pw@books.example}",
        "{http: https://books.example, bearer: sk_live_canary}",
        "{smtp: mail.example, password: canary, from: a@b.c}",
        "{smtp: mail.example}",
        "{http: ftp://x}",
        "{}",
        "{http: https://x.example, sql: env:DB}",
        "{htp: https://x.example}",
    ],
)
def test_a_wrong_connection_is_told_without_its_secret(side, tmp_path: Path):
    file = tmp_path / "connections.yaml"
    file.write_text(f"books: {{live: {side}}}\n")
    read = Connections.read(file)
    assert read.known == {} and [one.rule for one in read.problems] == ["connection"]
    assert "canary" not in str(read.problems)


def test_the_schema_accepts_what_lint_accepts_and_refuses_a_wrong_shape():
    check = jsonschema.Draft202012Validator(schema())
    assert list(check.iter_errors(parse(SOUND.replace("1.0", "1")).data)) == []
    for steps in TWINS:
        text = f"flow: x\ninput: {{order: any}}\nkey: k:{{order.id}}\nuses: [books]\nsteps:\n{steps}"
        assert list(check.iter_errors(parse(text).data)) == [], steps
    for old, new in (
        ("about: Bill", "abuot: Bill"),
        ("timeout: 2d", "timeout: [2d]"),
        ("mail: mail", "mial: mail"),
        ("repeat: never", "repeat: sometimes"),
        ("flow: sync_order\n", ""),
    ):
        assert list(check.iter_errors(parse(changed(old, new)).data)) != [], new


def test_a_file_that_is_no_map_says_what_to_write():
    assert found("") == [("shape", 1, 1)] and found("- a\n- b\n") == [("shape", 1, 1)]
