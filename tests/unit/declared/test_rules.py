"""Every rule of lint has a wrong file in the tests, and the schema refuses each that is wrong in shape."""

from __future__ import annotations

import json

import jsonschema
import pytest

from tests.unit.declared import test_lint, test_lint_rules
from twiceproof.declared.lint import RULES, lint
from twiceproof.declared.model import schema
from twiceproof.declared.nodes import parse
from twiceproof.declared.reading import read_flow

HEAD = "flow: x\ninput: {order: any}\nkey: k:{order.id}\nuses: [books]\n"
SET = "steps:\n  - set: {a: 1}\n"
# Rules that stand in no other list: the wrong file, where, and its corrected twin.
OTHERS = {
    "duplicate-key": (HEAD + SET + "keep: 1d\nkeep: 2d\n", (8, 1), HEAD + SET + "keep: 1d\n"),
    "yaml": (HEAD + "steps:\n  - set: {a: Done: x}\n", (6, 18), HEAD + 'steps:\n  - set: {a: "Done: x"}\n'),
    "text": (HEAD + "steps:\n  - fail: order }\n", (6, 17), HEAD + "steps:\n  - fail: order }}\n"),
    "key": (HEAD.replace("{order.id}", "{order.id") + SET, (3, 8), HEAD + SET),
    "no-test": (HEAD + SET, (1, 1), HEAD + SET + "tests: [{name: one, input: {order: 1}}]\n"),
}
ELSEWHERE = {  # by the test that has it
    "unique-index": "tests/unit/declared/test_tables.py",
    "connection": "test_a_wrong_connection_is_told_without_its_secret",
    "missing-part": "test_a_part_that_is_not_installed_is_told_with_its_extra",
    "unknown-function": "test_a_function_that_is_not_there_is_a_warning_and_one_that_is_there_is_none",
}


@pytest.mark.parametrize("rule", OTHERS)
def test_a_rule_finds_the_wrong_file_and_leaves_its_twin_alone(rule):
    wrong, place, right = OTHERS[rule]
    found = {one.rule: (one.place.line, one.place.column) for one in lint(read_flow(wrong))}
    assert found.get(rule) == place, found
    assert rule not in {one.rule for one in lint(read_flow(right))}


def test_a_function_that_is_not_there_is_a_warning_and_one_that_is_there_is_none():
    text = HEAD + "steps:\n  - {step: a, call: 'json:NAME', with: {obj: =order}, repeat: safe}\n"
    (problem,) = [one for one in lint(read_flow(text.replace("NAME", "dmups"))) if one.rule == "unknown-function"]
    assert (problem.level, problem.place.line) == ("warning", 6)
    assert "unknown-function" not in {one.rule for one in lint(read_flow(text.replace("NAME", "dumps")))}


def test_a_part_that_is_not_installed_is_told_with_its_extra(monkeypatch):
    text = HEAD + "steps:\n  - {step: a, http: GET books /x}\n"
    assert "missing-part" not in {one.rule for one in lint(read_flow(text))}
    monkeypatch.setattr("twiceproof.declared.lint_steps.find_spec", lambda name: None)
    (problem,) = [one for one in lint(read_flow(text)) if one.rule == "missing-part"]
    assert problem.instead == "pip install 'twiceproof[http]'"


def cases_of(test: object) -> list[tuple[object, ...]]:
    return [one for mark in test.pytestmark for one in mark.args[1]]  # type: ignore[attr-defined]


def test_every_rule_has_a_wrong_file():
    shown = {case[2] for case in cases_of(test_lint.test_a_wrong_file_is_caught_at_its_place)}
    shown |= {case[1] for case in cases_of(test_lint.test_a_wrong_step_is_caught)}
    shown |= {place[0] for _, _, place in test_lint_rules.PAIRS} | {rule for _, rule in test_lint_rules.WRONG_TESTS}
    assert set(RULES) == shown | OTHERS.keys() | ELSEWHERE.keys()


# -- the schema ----------------------------------------------------------------------------------


WRONG_IN_SHAPE = [
    test_lint.changed(old, new)
    for old, new, rule, _, _ in cases_of(test_lint.test_a_wrong_file_is_caught_at_its_place)
    if rule in ("unknown-field", "verb") or (rule == "shape" and "keyed" not in str(new))
]
WRONG_IN_SHAPE += [
    HEAD + steps + "\n"
    for steps in (
        "steps: []",
        "steps: text",
        "steps:\n  - just text",
        "steps:\n  - {step: a, http: GET books /x, retry: {attempts: 0}}",
        "steps:\n  - {step: a, http: GET books /x, retry: {often: 3}}",
        "steps:\n  - {step: a b, http: GET books /x}",
        "steps:\n  - {step: a, http: GET books /x, repeat: {chekc: GET books /x}}",
        "steps:\n  - {each: order.lines, do: [], id: x}",
        "steps:\n  - {each: order.lines, do: [{set: {a: 1}}], id: x, at_once: 65}",
        "steps:\n  - {approve: a, default: perhaps}",
        "steps:\n  - {remote: builder, command: x, callback: y}",
        SET + "limit: 0",
        SET + "on_duplicate: maybe",
        SET + "on: [{webhok: stripe}]",
        SET + "tests: [{name: one, times: 0}]",
        SET + "tests: [{name: one, expct: {}}]",
    )
]


@pytest.mark.parametrize("text", WRONG_IN_SHAPE)
def test_the_schema_refuses_what_is_wrong_in_shape_as_lint_does(text):
    check = jsonschema.Draft202012Validator(json.loads(json.dumps(schema())))
    assert list(check.iter_errors(parse(text).data)), text
    assert {one.rule for one in lint(read_flow(text))} & {"shape", "unknown-field", "verb", "type", "trigger", "done"}
