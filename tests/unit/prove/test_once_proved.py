"""Functions under `@app.once` are proved as flows are: each is its own only step."""

from __future__ import annotations

from typing import Any

import pytest

from twiceproof import App
from twiceproof.prove.prover import Prover
from twiceproof.prove.report import ProofReport
from twiceproof.prove.target import target_of
from twiceproof.prove.worlds.world import CallableWorld

pytestmark = pytest.mark.slow

app = App("memory://")
outside: list[str] = []


@app.once(key="welcome:{name}")
def greet(name: str) -> None:
    outside.append(f"Dear {name}")


@app.once(key="welcome:{name}")
async def greet_async(name: str) -> None:
    outside.append(f"Dear {name}")


@app.once(key="welcome:{name}", repeat="safe")
def greet_carelessly(name: str) -> None:
    outside.append(f"Dear {name}")


@app.once(key="customer:{name}", repeat="safe")
def upsert(name: str) -> str:
    if name not in outside:
        outside.append(name)
    return name


def report_of(function: Any, scenario: str, **options: Any) -> ProofReport:
    return Prover(target_of(function, "Ada"), CallableWorld(lambda: list(outside)), only=scenario, **options).run()


@pytest.mark.parametrize("function", [greet, greet_async], ids=["def", "async def"])
@pytest.mark.parametrize(
    ("scenario", "word"),
    [("twice", "same"), ("at-once", "same"), ("kill-effect-1-after", "parked"), ("lost-1", "parked")],
)
def test_what_may_never_be_repeated_is_done_once_or_parked(function: Any, scenario: str, word: str) -> None:
    report = report_of(function, scenario)
    assert [verdict.word for verdict in report.verdicts] == [word] and report.unobserved == ()


@pytest.mark.parametrize("scenario", ["kill-effect-1-after", "lost-1", "paused-1"])
def test_what_is_declared_safe_is_done_again_and_found_out_if_it_is_not(scenario: str) -> None:
    report = report_of(greet_carelessly, scenario)
    assert (report.bad[0].extra, report.wrong[0].step) == ({"Dear Ada": 1}, "greet_carelessly")
    assert [verdict.word for verdict in report_of(upsert, scenario).verdicts] == ["same"]


@pytest.mark.slow
def test_every_scenario_of_a_guarded_function_comes_to_an_end(prove: Any) -> None:
    report = prove(upsert, "Ada", world=lambda: list(outside))
    assert report.complete and {verdict.word for verdict in report.verdicts} == {"same"}
    assert not any(verdict.scenario.startswith("refused-") for verdict in report.verdicts)
