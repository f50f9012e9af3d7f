"""YAML with places: what is read as it looks, and what has its own sentence."""

from __future__ import annotations

from decimal import Decimal

import pytest

from twiceproof import Misuse
from twiceproof.declared.connections import Connections
from twiceproof.declared.input_schema import text_of_file
from twiceproof.declared.nodes import MOST_ALIASES, MOST_NODES, Place, _Reader, parse
from twiceproof.declared.reading import read_flow


def problems(text: str) -> list[tuple[str, int, int]]:
    return [(one.rule, one.place.line, one.place.column) for one in parse(text).problems]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("on", "on"),
        ("yes", "yes"),
        ("no", "no"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("010", "010"),
        ("0x1f", "0x1f"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2026-03-29", "2026-03-29"),
        ("42", 42),
        ("-7", -7),
        ("1.10", Decimal("1.10")),
        ("1e3", Decimal("1e3")),
        ('"1.0"', "1.0"),
        ("9223372036854775808123", 9223372036854775808123),
    ],
)
def test_a_scalar_is_read_as_it_looks(written, value):
    document = parse(f"x: {written}\n")
    assert document.problems == ()
    assert document.data == {"x": value} and type(document.data["x"]) is type(value)


def test_a_fraction_keeps_its_digits():
    assert str(parse("x: 1.10").data["x"]) == "1.10"


def test_every_key_and_value_knows_its_place():
    document = parse("flow: a\nsteps:\n  - step: one\n    json: {id: 5}\n")
    assert document.place(("steps",)) == Place(2, 1)
    assert document.place(("steps", 0, "step")) == Place(3, 5)
    assert document.places[("steps", 0, "json", "id", "")] == Place(4, 16)
    assert document.place(("steps", 0, "nothing", "here")) == Place(3, 5)


@pytest.mark.parametrize(
    ("text", "rule", "line", "column", "said"),
    [
        ("a: 1\nto: {order.id}\n", "unquoted-braces", 2, 5, "{order.id}"),
        ("to: {{ order.id }}\n", "unquoted-braces", 1, 5, "{order.id}"),
        ("json: {text: Done: x}\n", "yaml", 1, 18, "colon"),
        ("a:\n\tb: 1\n", "yaml", 2, 1, "tab"),
        ("a: 1\na: 2\n", "duplicate-key", 2, 1, "twice"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "yaml", 3, 3, "merge"),
        ("a: !!python/object:os.system x\n", "yaml", 1, 4, "tag"),
        ("a: *nobody\n", "yaml", 1, 4, "alias"),
        ("a: @x\n", "yaml", 1, 4, "begin"),
        ("? [a]\n: 1\n", "yaml", 1, 3, "plain text"),
    ],
)
def test_a_trap_has_its_own_sentence_at_its_place(text, rule, line, column, said):
    (problem,) = parse(text).problems
    assert (problem.rule, problem.place) == (rule, Place(line, column))
    assert said in problem.found


def test_the_same_values_in_quotes_are_read():
    assert parse("to: '{order.id}'\ntext: 'Done: x'\nat: '@x'\n").problems == ()
    assert parse("json: {id: 5, name: x}\n").data == {"json": {"id": 5, "name": "x"}}


def test_a_file_cannot_grow_by_its_aliases():
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 8))
    found = parse(bomb)
    assert [one.found for one in found.problems if one.found.startswith("too much")]
    few = "a: &a [1]\n" + "".join(f"b{n}: *a\n" for n in range(MOST_ALIASES // 2))
    assert parse(few).problems == ()


def test_a_huge_or_deep_file_is_refused():
    assert problems("x: " + "y" * 1_100_000) == [("yaml", 1, 1)]
    assert parse("[" * 3_000).problems != ()
    assert parse("x: " + "[" * 100 + "]" * 100).problems != ()


@pytest.mark.parametrize(
    ("text", "found", "instead"),
    [
        ("flow: my flow", "flow: a name has letters of English, digits and _", "my_flow"),
        ("flow: a\nabout: 5", "about: a text is expected, and a whole number stands here", 'in quotes: "5"'),
        ("flow: a", "the file: key is missing", "key: …"),
        ("flow: a\nsteps:\n  - step: send mail\n    sleep: 1h", "step: a name has letters of English", "send_mail"),
        ("flow: a\nuses: crm", "uses: a list is expected, and a text stands here", ""),
        ("flow: a\n---\nflow: b", "a second document begins here (---)", "a file of its own"),
        ("flow: {a: |}", "a block of text (| or >) cannot stand inside {…} or […]", "over several lines"),
    ],
)
def test_what_does_not_fit_is_told_in_the_words_of_those_who_write_files(text, found, instead):
    problems = read_flow(text + "\n").problems
    told = [one for one in problems if found in one.found]
    assert len(told) == 1 and instead in told[0].instead, problems
    assert not any("`" in one.found for one in problems)


def test_a_field_that_does_not_fit_is_not_also_told_to_be_missing():
    assert not any("missing" in one.found for one in read_flow("flow: my flow\nkey: a\nsteps: []\n").problems)


def test_a_file_in_another_encoding_is_told_with_its_line(tmp_path):
    for name in ("welcome.flow.yaml", "connections.yaml"):
        (tmp_path / name).write_bytes("flow: a\nabout: größe\n".encode("latin-1"))
    with pytest.raises(Misuse, match=r"welcome\.flow\.yaml:2: the file is not in UTF-8; save it"):
        text_of_file(tmp_path / "welcome.flow.yaml")
    with pytest.raises(Misuse, match=r"connections\.yaml:2: the file is not in UTF-8"):
        Connections.read(tmp_path / "connections.yaml")


def test_what_comes_after_the_limit_is_not_read(monkeypatch):
    """A file that is too much is told once: many other problems before it must not make each further part slow."""
    asked: list[object] = []
    has_room = _Reader._has_room
    monkeypatch.setattr(_Reader, "_has_room", lambda self, node, depth: asked.append(0) or has_room(self, node, depth))
    document = parse("a:\n" + "  - !x 1\n" * 10 + "  - [" + "1," * 30_000 + "]\nb: [1, 2]\n")
    assert len(asked) == MOST_NODES + 1
    assert [one.found[:8] for one in document.problems] == [*["the tag "] * 10, "too much"]
