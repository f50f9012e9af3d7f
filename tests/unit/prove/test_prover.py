"""The prover finds the defect of each of ten unsafe flows, and nothing in the same ten written safely."""

from __future__ import annotations

from typing import Any

import pytest

from twiceproof.prove.fixture import NotSafe, prove

from .flows import safe, unsafe

ORDER = {"id": 7, "lines": ["a", "b"]}
FOUND = {
    "probe_that_always_finds": {"lost", "failed"},
    "effect_in_the_body": {"twice", "lost"},
    "changing_result": {"twice", "differs"},
}


@pytest.mark.slow
@pytest.mark.parametrize("flow", unsafe.FLOWS, ids=lambda flow: flow.flow.name)
def test_the_defect_of_an_unsafe_flow_is_found(flow: Any) -> None:
    with pytest.raises(NotSafe) as caught:
        prove(flow, ORDER, world=lambda: list(unsafe.outside), depth=1)
    report = caught.value.report
    assert {verdict.word for verdict in report.bad} <= FOUND.get(flow.flow.name, {"twice"})
    assert report.worst and report.worst_scene in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("flow", safe.FLOWS, ids=lambda flow: flow.flow.name)
def test_nothing_is_found_in_the_same_flow_written_safely(flow: Any) -> None:
    report = prove(flow, ORDER, world=lambda: list(safe.outside), depth=1)
    assert report.good and report.complete
