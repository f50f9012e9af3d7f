"""A guarded function and a flow of one name, in two programs that share a ledger: a key is done by one of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from twiceproof import App, InProgress, NeedsReview, PayloadMismatch
from twiceproof.claims.claim import address_of, claim_of
from twiceproof.errors import Misuse, TwiceproofError
from twiceproof.prove.clocks import ManualClock
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine


class Programs:
    """The one before guards `charge` as a function; the one after made a flow of it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = MemoryEngine(clock=self.clock)
        self.done: list[str] = []
        self.apps = [App(store=GroupedStore(self.engine), clock=self.clock) for _ in range(2)]
        self.before, self.after = self.apps

        @self.before.once(key="order:{order}", name="charge", keep="1h")
        def function(order: int) -> str:
            self.done.append(f"function {order}")
            return "by the function"

        @self.after.flow(key="order:{order}", name="charge", keep="1h")
        def flow(order: int) -> str:
            self.done.append(f"flow {order}")
            return "by the flow"

        self.function, self.flow = function, flow

    def states(self) -> dict[str, str]:
        records = [
            self.after.store.read(address_of("default", "charge", "order:1", kind)).block().record
            for kind in ("claim", "run")
        ]
        return {record.at.kind: record.state for record in records if record is not None}


@pytest.fixture
def programs() -> Iterator[Programs]:
    made = Programs()
    yield made
    for app in made.apps:
        app.close()


def test_what_a_guarded_function_has_done_a_flow_of_its_name_does_not_do_again(programs: Programs) -> None:
    programs.function(1)
    assert programs.flow(1) == "by the function"
    handle = programs.flow.start(1)
    assert handle.result(timeout=1) == "by the function"
    assert programs.done == ["function 1"] and programs.states() == {"claim": "done"}
    assert programs.flow(2) == "by the flow"  # another key is another matter


def test_what_a_flow_has_done_a_guarded_function_of_its_name_does_not_do_again(programs: Programs) -> None:
    programs.flow(1)
    assert programs.function(1) == "by the flow"
    assert programs.done == ["flow 1"] and programs.states() == {"run": "done"}


def test_a_run_that_waits_for_a_worker_keeps_its_key(programs: Programs) -> None:
    programs.flow.start(1)
    with pytest.raises(TwiceproofError):
        programs.function(1)
    programs.after.worker().run(until_idle=True)
    assert programs.function(1) == "by the flow" and programs.done == ["flow 1"]


def test_a_claim_that_is_held_keeps_its_key(programs: Programs) -> None:
    with programs.before.claim("charge", "order:1"), pytest.raises(InProgress):
        programs.flow(1)
    assert programs.done == []


def test_a_claim_whose_holder_died_waits_for_a_person(programs: Programs) -> None:
    programs.before.claim("charge", "order:1", lease="10s").__enter__()
    programs.clock.advance(11)
    with pytest.raises(NeedsReview, match="stopped without a word"):
        programs.flow(1)
    assert programs.done == [] and programs.states() == {"claim": "review"}


def test_another_payload_is_told(programs: Programs) -> None:
    with programs.before.claim("charge", "order:1", payload="another"):
        pass
    with pytest.raises(PayloadMismatch):
        programs.flow(1)
    with pytest.raises(PayloadMismatch):
        programs.flow.start(1)


@pytest.mark.parametrize("first", ["function", "flow"])
def test_what_may_be_forgotten_is_no_hindrance(programs: Programs, first: str) -> None:
    second = "flow" if first == "function" else "function"
    getattr(programs, first)(1)
    programs.clock.advance(3_601)
    assert getattr(programs, second)(1) == f"by the {second}"
    assert programs.states() == {"run" if second == "flow" else "claim": "done"}


def test_of_many_that_come_at_once_one_does_it(tmp_path: Any) -> None:
    done: list[str] = []
    url = f"sqlite:///{tmp_path}/ledger.db"
    with App(url) as before, App(url) as after:

        @before.once(key="order:{order}", name="charge", on_duplicate="wait")
        def function(order: int) -> None:
            done.append(f"order:{order}")

        @after.flow(key="order:{order}", name="charge", on_duplicate="wait")
        def flow(order: int) -> None:
            done.append(f"order:{order}")

        gate = threading.Barrier(8)

        def come(call: Any) -> None:
            gate.wait()
            for order in range(20):
                call(order)

        threads = [threading.Thread(target=come, args=(call,)) for call in (function, flow) * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(done) == sorted(f"order:{order}" for order in range(20))


def test_a_run_is_not_settled_as_a_claim_nor_a_claim_as_a_run(programs: Programs) -> None:
    programs.function(1)
    with pytest.raises(Misuse, match="not a run"):
        programs.after.retry_run("charge/order:1")
    record = programs.after.store.read(address_of("default", "charge", "order:1")).block().record
    assert record is not None and claim_of(record).operation == "charge"


def test_a_store_that_takes_one_write_at_a_time_holds_claims() -> None:
    """Backends without transactions have no runs, and need not be asked for one."""
    engine = MemoryEngine()
    engine.batch_limit = 1
    with App(store=GroupedStore(engine)) as app:

        @app.once(key="order:{order}")
        def charge(order: int) -> str:
            return f"receipt {order}"

        assert (charge(1), charge(1)) == ("receipt 1", "receipt 1")
