"""What one clean run must be like, before anything is compared with it; and what scenarios may do meanwhile."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, structs

from tests.unit.prove.flows import unsafe
from twiceproof import App
from twiceproof.clock import Clock
from twiceproof.errors import Misuse
from twiceproof.prove.clocks import ManualClock
from twiceproof.prove.fixture import NotSafe, prove
from twiceproof.prove.prover import Prover
from twiceproof.prove.report import ProofReport, closing_line
from twiceproof.prove.scenarios.process import Process, ScenarioStage
from twiceproof.prove.scenarios.scenario import BODY, InjectedFault
from twiceproof.prove.target import other_payload, spread, target_of
from twiceproof.prove.worlds.world import CallableWorld, CountedCalls
from twiceproof.stores.memory import MemoryEngine

pytestmark = pytest.mark.slow

app = App("memory://")
outside: list[str] = []

Order = dict[str, Any]


@app.step(repeat="never")
def mail(order: Order) -> None:
    outside.append(f"mail {order['id']}")


@app.flow(key="order:{order[id]}")
def mailed(order: Order) -> None:
    mail(order)


@app.flow(key="order:{order[id]}")
def mistaken(order: Order) -> None:
    mail(order)
    raise ValueError("no such customer")


@app.flow(key="order:{order[id]}")
def unseen(order: Order) -> None: ...


@app.step(repeat="safe")
def ask_outside(order: Order) -> None:
    with suppress(OSError):
        socket.getaddrinfo("pay.invalid", 443)


@app.flow(key="order:{order[id]}")
def reaching(order: Order) -> None:
    ask_outside(order)
    mail(order)


def seen() -> list[str]:
    return list(outside)


def played_twice(flow: Any, look: Any = seen, **said: Any) -> ProofReport:
    proved = structs.replace(target_of(flow, {"id": 1}), **said)
    return Prover(proved, CallableWorld(look), only="twice").run()


# -- one clean run -------------------------------------------------------------------------------


def test_a_clean_run_that_fails_proves_nothing_and_says_why() -> None:
    with pytest.raises(Misuse, match=r"this one ended failed: ValueError: no such customer.*--ends failed"):
        prove(mistaken, {"id": 1}, world=seen, depth=1)


def test_a_clean_run_that_is_to_fail_may_be_said_to() -> None:
    assert played_twice(mistaken, ends="failed").good


def test_a_clean_run_of_which_nothing_is_seen_proves_nothing() -> None:
    with pytest.raises(Misuse, match="changed nothing that is looked at"):
        prove(unseen, {"id": 1}, world=seen, depth=1)


def test_a_flow_with_a_transactional_step_is_told_to_name_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with App(f"sqlite:///{tmp_path}/shop.db") as shop:
        monkeypatch.setitem(globals(), "shop", shop)  # an app is looked for beside its flow

        @shop.transaction
        def reserve(connection: Any, order: Order) -> None: ...

        @shop.flow(key="order:{order[id]}")
        def buy(order: Order) -> None:
            reserve(order)

        with pytest.raises(Misuse, match=r"@app\.transaction writes your tables beside the ledger.*--ledger-table"):
            prove(buy, {"id": 1}, world=seen, depth=1)


def test_what_was_outside_before_is_not_taken_for_the_flows_doing() -> None:
    report = played_twice(mailed, lambda: ["mail 0", *outside])
    assert report.expected == {"mail 1": 1}


def test_a_host_that_nobody_stands_in_for_is_reached_once_and_refused() -> None:
    with pytest.raises(Misuse, match=r"reached for pay\.invalid:443.*--real pay\.invalid"):
        prove(reaching, {"id": 1}, world=seen, depth=1)


def test_a_host_may_be_reached_if_that_is_said() -> None:
    assert played_twice(reaching, real=("pay.invalid",)).good


@app.flow(key="order:{order[id]}")
def numbered(order: Order) -> str:
    mail(order)
    return str(app.uuid())


@app.flow(key="order:{order[id]}")
def numbered_outside(order: Order) -> None:
    mail({"id": str(app.uuid())})


@app.flow(key="order:{order[id]}")
def dated(order: Order) -> str:
    mail(order)
    return app.now().isoformat()


@app.flow(key="order:{order[id]}")
def dated_outside(order: Order) -> None:
    mail({"id": app.now().isoformat()})


@app.flow(key="order:{order[id]}", on_duplicate="wait", limit=1)
def in_turn(order: Order) -> None:
    mail(order)


def test_a_result_that_is_another_one_each_time_is_not_compared() -> None:
    report = played_twice(numbered)
    assert report.good and not report.compares_result
    assert played_twice(mailed).compares_result


def test_an_outside_that_is_another_one_each_time_is_refused() -> None:
    with pytest.raises(Misuse, match="Two clean runs do different things"):
        played_twice(numbered_outside)


def test_the_time_at_which_it_is_done_is_no_repeat() -> None:
    """Whoever goes on after a kill does so later: the clean run beside it must not be of one moment, either."""
    assert not prove(dated, {"id": 1}, world=seen, depth=1).compares_result
    with pytest.raises(Misuse, match="Two clean runs do different things"):
        prove(dated_outside, {"id": 1}, world=seen, depth=1)


def test_those_who_wait_for_their_turn_do_not_outlive_the_lease_of_the_one_who_works() -> None:
    report = Prover(target_of(in_turn, {"id": 1}), CallableWorld(seen), only="at-once").run()
    assert [verdict.word for verdict in report.verdicts] == ["same"]


# -- the budget ----------------------------------------------------------------------------------


class Ticking(ManualClock):
    """Each look at it takes a second."""

    def __init__(self) -> None:
        super().__init__()
        Clock.__init__(self, monotonic=self._tick)

    def _tick(self) -> float:
        self.ticks += 1
        return self.ticks


def test_a_budget_ends_the_proof_before_scenarios_that_it_has_no_time_for() -> None:
    tried: list[str] = []
    proved = target_of(mailed, {"id": 1})
    report = Prover(
        proved, CallableWorld(seen), budget=4, clock=Ticking(), shown=lambda done, planned, name: tried.append(name)
    ).run()
    assert tried == [verdict.scenario for verdict in report.verdicts] == ["twice", "at-once", "later"]
    assert report.good and not report.complete and report.planned > 10
    assert "Safe to repeat as far as it went: 3 scenarios run of at least" in closing_line(report)


def test_a_budget_for_nothing_proves_nothing() -> None:
    report = Prover(target_of(mailed, {"id": 1}), CallableWorld(seen), budget=0, clock=Ticking()).run()
    assert not report.good and closing_line(report).startswith("NOTHING PROVED")


# -- what a scenario does itself -------------------------------------------------------------------------


def test_of_steps_that_act_at_once_each_suffers_its_own_fault() -> None:
    stage = ScenarioStage(lambda process: None)
    process = Process(1, MemoryEngine(), ManualClock(), [InjectedFault("lose", "effect", 1, after=True)], stage)
    first, second = process.begin_effect("mail"), process.begin_effect("mail")
    process.end_effect("mail", second, {}, {})
    with pytest.raises(TimeoutError):
        process.end_effect("mail", first, {}, {})


@pytest.mark.slow
def test_what_the_body_itself_does_is_in_the_picture() -> None:
    with pytest.raises(NotSafe) as caught:
        prove(unsafe.effect_in_the_body, {"id": 7}, world=lambda: list(unsafe.outside), depth=1)
    told = [(event.process, event.world) for event in caught.value.report.worst if event.what == BODY]
    assert told == [(1, {"mail 7": 1}), (2, {"mail 7": 1})]


def test_calls_of_a_step_are_counted_where_it_acts_and_not_in_a_replay() -> None:
    function = mail.step.function
    calls = CountedCalls([f"{__name__}:mail"])
    try:
        for _ in range(2):
            mailed({"id": 2})
        assert list(calls.look().values()) == [1]
    finally:
        mail.step.function = function
        outside.clear()


# -- what a flow is given ------------------------------------------------------------------------


class Parcel(Struct):
    id: int
    name: str


@dataclass
class Letter:
    id: int
    stamps: list[str]


def two(no: int, amount: Any) -> None: ...
def whole(given: Any) -> None: ...


@pytest.mark.parametrize(
    ("key", "function", "given", "changed"),
    [
        ("{no}", two, {"no": 1, "amount": 5}, {"no": 1, "amount": 6}),
        ("{no}", two, {"no": 1, "amount": True}, {"no": 1, "amount": False}),
        ("{given[id]}", whole, {"given": {"id": 1}}, {"given": {"id": 1, "changed_by_prove": True}}),
        ("{given.id}", whole, {"given": Parcel(1, "a")}, {"given": Parcel(1, "a (changed by prove)")}),
        ("{given.id}", whole, {"given": Letter(1, ["x"])}, {"given": Letter(1, ["x", "x"])}),
        ("{given}", whole, {"given": 1}, None),
    ],
)
def test_a_payload_is_changed_where_the_key_is_not_made_of_it(
    key: str, function: Any, given: dict[str, Any], changed: dict[str, Any] | None
) -> None:
    with App("memory://") as other:
        flow = other.flow(key=f"x:{key}")(function).flow
        assert other_payload(flow, (), given) == (None if changed is None else ((), changed))


def test_an_event_is_made_what_the_flow_declares_where_its_key_is_made_of_attributes() -> None:
    with App("memory://") as other:

        @other.flow(key="parcel:{parcel.id}")
        def send(parcel: Parcel) -> None: ...

        @other.flow(key="parcel:{parcel[id]}")
        def as_a_webhook_gives_it(parcel: Parcel) -> None: ...

        assert spread(send, {"id": 1, "name": "a"}) == ((Parcel(1, "a"),), {})
        assert spread(as_a_webhook_gives_it, {"id": 1, "name": "a"}) == (({"id": 1, "name": "a"},), {})
        with pytest.raises(Misuse, match="declares parcel"):
            spread(send, {"name": "a"})


def test_an_event_that_does_not_fit_is_told_by_name() -> None:
    with App("memory://") as other, pytest.raises(Misuse, match=r"two\(no, amount\): missing.*'amount'"):
        spread(other.flow(key="x:{no}")(two), {"no": 1})
