"""Further rules of lint: a wrong file at its line and column, and its corrected twin; hostile values in verbs."""

from __future__ import annotations

import sqlite3
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.unit.declared.books import declare
from tests.unit.effects.ssrf_corpus import CLOSED_URLS, ODD_URLS, OPEN_URLS
from twiceproof import NotDone, TwiceproofError
from twiceproof.declared.lint import RULES, lint
from twiceproof.declared.lint_steps import PARTS
from twiceproof.declared.model import schema
from twiceproof.declared.nodes import parse
from twiceproof.declared.reading import read_flow

HEAD = """\
flow: bill
input: {order: {id: integer, total: number, note: text, paid: yes_no}}
key: shop:order:{order.id}
uses: [books, db, chat, builder]
steps:
"""
END = "tests:\n  - {name: one, input: {order: {id: 1, total: 2, note: a, paid: true}}}\n"


def found(text: str) -> list[tuple[str, int, int]]:
    return [(one.rule, one.place.line, one.place.column) for one in lint(read_flow(text))]


PAIRS = [
    ('  - done: 1\n    if: order.total > "5"\n', "  - done: 1\n    if: order.total > 5\n", ("type", 7, 9)),
    ("  - done: =order.note + order.id\n", "  - done: =order.note + text(order.id)\n", ("type", 6, 12)),
    ("  - done: 1\n    if: order.paid > 1\n", "  - done: 1\n    if: order.paid == true\n", ("type", 7, 9)),
    (
        "  - step: rows\n    sql: db\n    query: SELECT * FROM t WHERE id = {order.id}\n",
        "  - step: rows\n    sql: db\n    query: SELECT * FROM t WHERE id = :id\n    with: {id: =order.id}\n",
        ("sql", 8, 39),
    ),
    (
        "  - step: rows\n    sql: db\n    query: SELECT * FROM t WHERE id = :id\n",
        "  - step: rows\n    sql: db\n    query: SELECT ':x' FROM t -- :y\n",
        ("sql", 8, 5),
    ),
    (
        "  - step: rows\n    sql: db\n    query: DELETE FROM t\n",
        "  - step: rows\n    sql: db\n    run: DELETE FROM t\n    repeat: safe\n",
        ("probe-acts", 8, 5),
    ),
    (
        "  - step: rows\n    sql: db\n    run: DELETE FROM t\n",
        "  - step: rows\n    sql: db\n    query: SELECT 1\n",
        ("undeclared-step", 6, 5),
    ),
    (
        "  - step: m\n    notify: chat\n    text: x\n    repeat: keyed\n",
        "  - step: m\n    notify: chat\n    text: x\n    repeat: safe\n",
        ("shape", 9, 5),
    ),
    (
        "  - approve: large\n    default: approve\n",
        "  - approve: large\n    default: approve\n    timeout: 2d\n",
        ("shape", 7, 5),
    ),
    ("  - sleep: 3 days\n", "  - sleep: 3d\n", ("type", 6, 5)),
    (
        "  - step: a\n    http: POST books /x\n    repeat: safe\n  - approve: large\n",
        "  - approve: large\n  - step: a\n    http: POST books /x\n    repeat: safe\n",
        ("missing-undo", 6, 5),
    ),
    (
        "  - done: 1\non_error:\n  - wait: x\n",
        "  - done: 1\non_error:\n  - set: {a: =error.step}\n",
        ("on-error", 8, 5),
    ),
    (
        "  - step: r\n    remote: ssh other\n    command: x\n    callback: y\n",
        "  - step: r\n    remote: ssh builder\n    command: x\n    callback: y\n",
        ("unknown-connection", 7, 5),
    ),
    (
        "  - step: r\n    remote: ssh builder\n    command: run --id {order.id}\n    callback: y\n",
        "  - step: r\n    remote: ssh builder\n    command: [run, --id, '{order.id}']\n    callback: y\n",
        ("command", 8, 5),
    ),
    (
        '  - step: r\n    remote: ssh builder\n    command: ="run " + order.id\n    callback: y\n',
        "  - step: r\n    remote: ssh builder\n    command: run --all {{a,b}}\n    callback: y\n",
        ("command", 8, 5),
    ),
    (
        "  - done: 1\non: [{poll: a, every: 1h}]\n",
        "  - done: 1\non: [{every: 1h, give: {order: =tick}}]\n",
        ("trigger", 7, 6),
    ),
    (
        "  - done: 1\non: [{schedule: every day}]\n",
        '  - done: 1\non: [{schedule: "0 2 * * *", give: {order: =tick}}]\n',
        ("trigger", 7, 7),
    ),
    (
        "  - done: 1\nkeep: 1h\non: [{webhook: stripe, secret: env:S, give: {order: =data}}]\n",
        "  - done: 1\nkeep: 30d\non: [{webhook: stripe, secret: env:S, give: {order: =data}}]\n",
        ("short-keep", 7, 1),
    ),
]


@pytest.mark.parametrize(("wrong", "right", "place"), PAIRS)
def test_a_rule_finds_the_wrong_file_and_leaves_its_twin_alone(wrong, right, place):
    assert place in found(HEAD + wrong + END), found(HEAD + wrong + END)
    assert place[0] not in [rule for rule, _, _ in found(HEAD + right + END)]
    assert place[0] in RULES


@pytest.mark.parametrize(("package", "extra"), PARTS.values())
def test_the_extra_that_lint_names_brings_what_is_missing(package, extra):
    brought = [line.partition(";") for line in requires("twiceproof") or ()]
    assert any(name.startswith(package) and f"'{extra}'" in marker.replace('"', "'") for name, _, marker in brought)


def test_a_step_is_refused_only_where_its_own_part_is_missing(monkeypatch):
    step = "  - step: one\n    http: GET books /orders\n"
    for missing, told in (("httpcore2", True), ("httpx", False), ("asyncssh", False)):
        present = {"httpcore2": 1, "httpx": 1, "asyncssh": 1} | {missing: None}
        monkeypatch.setattr("twiceproof.declared.lint_steps.find_spec", present.get)
        rules = [rule for rule, _, _ in found(HEAD + step + END)]
        assert ("missing-part" in rules) == told, missing


WRONG_TESTS = [
    ("{name: one}", "test"),
    ("{name: one, input: {other: 1}}", "test"),
    ("{name: one, input: {order: {}}, answers: {GET nowhere /x: {}}}", "test"),
    ("{name: one, input: {order: {}}, approve: [nothing]}", "test"),
    ("{name: one, input: {order: {}}, expect: {mials: 1}}", "test"),
    ("{name: one, input: {order: {}}, expect: {ends: well}}", "test"),
    ("{name: one, input: {order: {}}, expect: {mails: many}}", "test"),
    ("{name: one, input: {order: {}}, expct: {}}", "shape"),
]


@pytest.mark.parametrize(("test", "rule"), WRONG_TESTS)
def test_a_test_that_cannot_be_run_is_told(test, rule):
    assert rule in [one for one, _, _ in found(HEAD + "  - done: 1\n" + f"tests:\n  - {test}\n")]


def test_the_schema_accepts_the_examples():
    check = jsonschema.Draft202012Validator(schema())
    for file in (Path(__file__).parents[3] / "examples/flows").glob("*.flow.yaml"):
        data = parse(file.read_text()).data
        assert [error.message for error in check.iter_errors(data)] == [], file.name


# -- hostile values ------------------------------------------------------------------------------

INJECTIONS = [
    text.format(n=number)
    for number in range(20)
    for text in (
        "'; DROP TABLE stock; --{n}",
        "' OR {n}={n} --",
        '" OR ""="{n}',
        "a'); DELETE FROM stock; --{n}",
        "\\'; UPDATE stock SET pieces = {n}; --",
        "%27 OR {n}=1",
        ":sku{n}",
        "?{n}",
        "a' UNION SELECT name, {n} FROM sqlite_master --",
        "`; DROP TABLE stock; {n}",
    )
]

SQL = """\
flow: bill
input: {sku: text}
key: k:{sku}
uses: [shop]
steps:
  - step: found
    sql: shop
    query: SELECT sku FROM stock WHERE sku = :sku
    with: {sku: =sku}
  - step: row
    sql: shop
    upsert: {table: orders, by: [sku], row: {sku: =sku}}
  - step: taken
    sql: shop
    run: UPDATE stock SET pieces = 0 WHERE sku = :sku
    with: {sku: =sku}
    repeat: safe
returns: =taken.affected
"""


def test_two_hundred_injections_as_parameters_change_nothing_else(app, tmp_path):
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute("CREATE TABLE stock (sku TEXT PRIMARY KEY, pieces INTEGER)")
        db.execute("CREATE TABLE orders (sku TEXT PRIMARY KEY)")
        db.execute("INSERT INTO stock VALUES ('a', 5)")
    bill = declare(app, tmp_path, SQL, f'shop: {{live: {{sql: "sqlite:///{tmp_path}/shop.db"}}}}\n')
    assert len(INJECTIONS) == 200
    assert {bill(text) for text in INJECTIONS} == {0}
    with sqlite3.connect(tmp_path / "shop.db") as db:
        assert db.execute("SELECT * FROM stock").fetchall() == [("a", 5)]
        assert {row[0] for row in db.execute("SELECT sku FROM orders")} == set(INJECTIONS)


ADDRESSES = [
    "http://169.254.169.254/latest/meta-data",
    "//169.254.169.254/",
    "@127.0.0.1:22/",
    "..\\..\\admin",
    "../../admin",
    "%2e%2e%2fadmin",
    "a#@evil.example/",
    "a?x=http://localhost/",
    "[::1]:80/",
    "file:///etc/passwd",
    "a\tb",
    ";/admin",
]


def odd(name: str) -> bool:
    controls = any(ord(letter) < 32 or ord(letter) == 127 or 0xD800 <= ord(letter) < 0xE000 for letter in name)
    return controls or len(name) > 1_000


def is_sent(bill: Any, name: str) -> bool:
    """Whether a request was made. A text with a control character, or a very long one, is refused."""
    try:
        bill(name)
    except TwiceproofError:
        return False
    return True


def test_a_value_in_a_path_or_a_query_never_reaches_another_host(app, tmp_path, books):
    text = "flow: bill\ninput: {name: text}\nkey: k:{name}\nuses: [books]\nsteps:\n"
    text += (
        '  - step: one\n    http: PUT books /customers/{name}?q={name}\n    query: {r: "{name}"}\n    repeat: safe\n'
    )
    bill = declare(app, tmp_path, text, f'books: {{live: {{http: "{books.url}"}}}}\n')
    names = [
        name
        for name in dict.fromkeys((*ADDRESSES, *CLOSED_URLS, *ODD_URLS, *OPEN_URLS))
        if isinstance(name, str) and name.strip()
    ]
    sent = [name for name in names if is_sent(bill, name)]
    assert len(names) > 150 and {name for name in names if name not in sent} <= {one for one in names if odd(one)}
    paths = books.paths("PUT")
    assert len(paths) == len(sent)
    assert all(path.startswith("/customers/") and path.partition("?")[0].count("/") == 2 for path in paths), paths


@pytest.mark.parametrize("name", [".", ".."])
@pytest.mark.parametrize("path", ["/customers/{name}/tags", "/customers/{name}", "/customers/.{name}/x?q={name}"])
def test_a_part_of_a_path_that_is_only_dots_is_refused_and_nothing_is_sent(app, tmp_path, books, path, name):
    """Servers read `/customers/../tags` as `/tags`: the event would choose what is deleted."""
    text = "flow: bill\ninput: {name: text}\nkey: k:{name}\nuses: [books]\nsteps:\n"
    text += f"  - step: one\n    http: DELETE books {path}\n    repeat: safe\n"
    bill = declare(app, tmp_path, text, f'books: {{live: {{http: "{books.url}/api"}}}}\n')
    if name == ".." and "/." in path:
        bill(name)  # `...` is a name like any other
        assert books.paths("DELETE") == ["/api/customers/.../x?q=.."]
        return
    with pytest.raises(NotDone, match="only dots"):
        bill(name)
    assert books.requests == []


@pytest.mark.parametrize(
    "step",
    [
        "{notify: chat, text: =name, repeat: safe}",
        "{approve: large, requester: =name}",
        "{fail: =name}",
        "{step: one, http: PUT chat /one, repeat: safe, external: =result.id}",
        "{step: kept, keep: name, name: =name}",
    ],
)
def test_an_expression_where_only_fields_are_read_is_told(step):
    """It would be sent, or kept as an id, as it stands."""
    text = f"flow: bill\ninput: {{name: text}}\nkey: k:{{name}}\nuses: [chat]\nsteps:\n  - {step}\n"
    (found,) = [one for one in lint(read_flow(text)) if one.rule == "text"]
    assert found.found.startswith("this text takes fields, and no expression") and found.place.line == 6
    right = text.replace("=name", "'{name}'").replace("=result.id", "'{result.id}'")
    assert not [one for one in lint(read_flow(right)) if one.rule == "text"]


def test_a_name_in_an_expression_of_a_mail_is_checked():
    text = "flow: bill\ninput: {name: text}\nkey: k:{name}\nuses: [mail]\nsteps:\n"
    text += "  - {step: told, mail: mail, to: a@example.com, subject: =nam, text: =name, repeat: never}\n"
    assert [(one.rule, one.instead) for one in lint(read_flow(text)) if one.level == "error"] == [
        ("unknown-name", "name (line 2)")
    ]


HEAD_OF_BILL = "flow: bill\ninput: {order: {id: text, class: text}}\nkey: k:{order.id}\n"
STEP_OF_BILL = "steps:\n  - set: {x: =order.id}\n"


@pytest.mark.parametrize(
    ("wrong", "right", "rule", "place"),
    [
        ('limit_per: {"repo:{oder.id}": 1}', 'limit_per: {"repo:{order.id}": 1}', "unknown-name", (4, 13)),
        ('limit_per: {"repo:{": 1}', 'limit_per: {"repo:{{{order.id}": 1}', "text", (4, 13)),
        ('order: {object: "{order.nr}", version: "{order.id}"}', "", "unknown-name", (4, 18)),
        ('order: {object: "{order.id}", version: "{run.id}"}', "", "unknown-name", (4, 41)),
        ("ignore: [oder.id]", "ignore: [order.id]", "unknown-name", (4, 10)),
        ("keep: 3 moons", "keep: 90d", "type", (4, 1)),
        ("keep_history: x", "keep_history: forever", "type", (4, 1)),
        ("lease: never", "lease: 5m", "type", (4, 1)),
        ("rate: often", "rate: 100/m", "type", (4, 1)),
    ],
)
def test_a_setting_that_cannot_be_used_is_told_at_its_place(wrong, right, rule, place):
    """Declared as it is, it would be refused without a place, when the app starts."""
    for line, found in ((wrong, [(rule, place)]), (right, [])):
        problems = lint(read_flow(HEAD_OF_BILL + line + "\n" + STEP_OF_BILL))
        told = [(one.rule, (one.place.line, one.place.column)) for one in problems if one.level == "error"]
        assert told[:1] == found, problems
        assert all(one.instead for one in problems if one.rule in ("unknown-name", "type"))


@pytest.mark.parametrize("key", ["k:{run.id}", "k:{now}"])
def test_a_key_reads_the_inputs_only(key):
    text = (HEAD_OF_BILL + STEP_OF_BILL).replace("k:{order.id}", key)
    assert "unknown-name" in [one.rule for one in lint(read_flow(text))]


@pytest.mark.parametrize("name", ["class", "from", "null"])
def test_an_input_is_not_called_like_a_word_of_the_language(app, tmp_path, name):
    text = f"flow: bill\ninput: {{{name}: text}}\nkey: k:{{{name}}}\nsteps:\n  - sleep: 1h\n"
    with pytest.raises(TwiceproofError, match=f"2:9: shape: {name} is a word of the expressions"):
        declare(app, tmp_path, text)


def test_a_field_that_is_called_like_a_word_of_the_language_is_read_in_brackets(app, tmp_path):
    steps = "steps:\n  - set: {x: =order.class}\nreturns: =x\n"
    (found,) = [one for one in lint(read_flow(HEAD_OF_BILL + steps)) if one.level == "error"]
    assert found.found == '.class is a word of the language; write ["class"]' and found.place.column == 20
    right = HEAD_OF_BILL + steps.replace("=order.class", "'=order[\"class\"]'")
    assert declare(app, tmp_path, right)({"id": "a", "class": "b"}) == "b"
