"""Flows that wait: what they wait for comes twice, too early, too late; two decide at once."""

from __future__ import annotations

from typing import Any

import pytest

from twiceproof import App, WaitTimedOut
from twiceproof.errors import Misuse
from twiceproof.prove.fixture import NotSafe, prove
from twiceproof.prove.scenarios.scenario import Scenario, ScenarioOutcome, judge

app = App("memory://")
outside: list[str] = []


@app.step(repeat="never")
def act(what: str) -> None:
    outside.append(what)


@app.step(repeat="safe")
def act_again(what: str) -> None:
    outside.append(what)


@app.flow(key="order:{order[id]}")
def paid_in_time(order: dict[str, Any]) -> str:
    act("asked")
    try:
        payment = app.wait_for("paid", timeout="7d")
    except WaitTimedOut:
        act("reminded")
        return "late"
    act(f"shipped for {payment['amount']}")
    return "shipped"


@app.flow(key="order:{order[id]}")
def approved(order: dict[str, Any]) -> str:
    by: str = app.approve("charge", show=order).by
    act("charged")
    return "by somebody" if by else ""


@app.flow(key="order:{order[id]}")
def careless(order: dict[str, Any]) -> None:
    app.wait_for("paid")
    act_again("shipped")


@app.flow(key="order:{order[id]}")
async def awaiting(order: dict[str, Any]) -> None:
    await app.wait_for("paid")
    act("shipped")


PAID = {"paid": {"amount": 5}}


def words(report: Any) -> dict[str, str]:
    return {one.scenario: one.word for one in report.verdicts}


@pytest.mark.slow
def test_a_flow_that_waits_is_played_with_its_callback_in_every_way() -> None:
    report = prove(paid_in_time, {"id": 1}, world=lambda: list(outside), callbacks=PAID, depth=1)
    assert report.expected == {"asked": 1, "shipped for 5": 1}
    found = words(report)
    assert {found[f"{how}-paid"] for how in ("sent-twice", "early", "never", "late")} == {"same"}


@pytest.mark.slow
def test_an_approval_raced_by_two_is_decided_once() -> None:
    report = prove(approved, {"id": 1}, world=lambda: list(outside), approve=("charge",), depth=1)
    assert words(report)["raced-charge"] == "same"


@pytest.mark.slow
def test_what_follows_a_wait_is_proved_too() -> None:
    with pytest.raises(NotSafe) as caught:
        prove(careless, {"id": 1}, world=lambda: list(outside), callbacks=PAID, depth=1)
    assert {one.word for one in caught.value.report.bad} == {"twice"}


def test_an_awaited_flow_waits_as_well() -> None:
    import msgspec

    from twiceproof.prove.prover import Prover
    from twiceproof.prove.target import target_of
    from twiceproof.prove.worlds.world import CallableWorld

    target = msgspec.structs.replace(target_of(awaiting, {"id": 1}), callbacks=PAID)
    report = Prover(target, CallableWorld(lambda: list(outside)), only="early-paid").run()
    assert words(report) == {"early-paid": "same"}


def test_a_wait_that_nobody_ends_is_refused_with_what_to_say() -> None:
    with pytest.raises(Misuse, match="--callback name=FILE"):
        prove(careless, {"id": 1}, world=lambda: list(outside))


def test_an_arrival_that_counts_twice_is_found() -> None:
    """The ledger does not do so; a verdict that could not say it would be worth nothing."""
    scenario = Scenario("sent-twice-paid", "", arrives="paid", arrival="twice")
    clean = ScenarioOutcome("done", arrivals={"paid counted": 1})
    assert judge(scenario, ScenarioOutcome("done", arrivals={"paid counted": 2}), clean).word == "twice"
    assert judge(scenario, ScenarioOutcome("done", arrivals={"paid counted": 1}, fired=1), clean).word == "same"
    assert judge(scenario, ScenarioOutcome("done", arrivals={"paid counted": 1}), clean).word == "missed"
