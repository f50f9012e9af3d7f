"""The prover finds the defect of each of ten unsafe flows, and nothing in the same ten written safely."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.unit.prove.flows import safe, unsafe
from twiceproof.prove.fixture import NotSafe, prove

ORDER = {"id": 7, "lines": ["a", "b"]}
FOUND = {
    "probe_that_always_finds": {"lost", "failed"},
    "effect_in_the_body": {"twice", "lost"},
    "changing_result": {"twice", "differs"},
}

WRONG = {
    "safe_that_is_not": ("append_invoice", "safe", "is not"),
    "keyed_with_changing_key": ("charge_with_a_new_key", "keyed", "did not know"),
    "probe_that_never_finds": ("create_checked", "check", "says Absent"),
    "probe_that_always_finds": ("create_believed", "check", "says Happened"),
    "effect_in_the_body": ("", "", "not in any step"),
    "undo_that_repeats": ("refund", "safe", "is not"),
}


@cache
def found(flow: Any) -> NotSafe:
    with pytest.raises(NotSafe) as caught:
        prove(flow, ORDER, world=lambda: list(unsafe.outside), depth=1)
    return caught.value


@pytest.mark.slow
@pytest.mark.parametrize("flow", unsafe.FLOWS, ids=lambda flow: flow.flow.name)
def test_the_defect_of_an_unsafe_flow_is_found(flow: Any) -> None:
    report = found(flow).report
    assert {verdict.word for verdict in report.bad} <= FOUND.get(flow.flow.name, {"twice"})
    assert report.worst and report.worst_scenario in str(found(flow))


@pytest.mark.slow
@pytest.mark.parametrize("flow", safe.FLOWS, ids=lambda flow: flow.flow.name)
def test_nothing_is_found_in_the_same_flow_written_safely(flow: Any) -> None:
    report = prove(flow, ORDER, world=lambda: list(safe.outside), depth=1)
    assert report.good and report.complete


@pytest.mark.slow
@pytest.mark.parametrize(
    "flow", [one for one in unsafe.FLOWS if one.flow.name in WRONG], ids=lambda flow: flow.flow.name
)
def test_a_wrong_declaration_is_named_with_what_to_write_instead(flow: Any) -> None:
    report = found(flow).report
    (wrong,) = report.wrong
    step, declared, says = WRONG[flow.flow.name]
    assert (wrong.step, wrong.declared) == (step, declared) and says in wrong.found
    assert wrong.instead in str(found(flow)) and set(wrong.scenarios) <= {one.scenario for one in report.bad}
