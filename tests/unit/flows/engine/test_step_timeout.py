"""A `def` step whose time is over: its thread cannot be stopped, so nothing is begun beside it that could act twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.flows.stage import Called, Stage
from twiceproof import Absent, App, Happened, NeedsReview, NotDone, Retry, Unknown, check

OFTEN = Retry(attempts=3, first=0)
SOON = 0.05


class Slow:
    """An outside whose first call hangs until it is let go, and then acts all the same."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.let_go = threading.Event()
        self.calls: list[threading.Thread] = []
        self.error: Exception | None = None
        self.answer: Any = Absent

    def pay(self, order: int) -> str:
        self.calls.append(threading.current_thread())
        if len(self.calls) == 1:
            assert self.let_go.wait(30)
        if self.error is not None:
            raise self.error
        self.stage.do("pay")
        return f"receipt {order}"

    def find(self, order: int) -> Any:
        return Happened(f"found {order}") if self.stage.effects["pay"] else self.answer

    def end(self) -> None:
        """The thread that was left behind comes to its end."""
        self.let_go.set()
        self.calls[0].join(30)


@pytest.fixture
def slow(stage: Stage) -> Iterator[Slow]:
    made = Slow(stage)
    yield made
    made.let_go.set()


def paying(app: App, slow: Slow, repeat: Any, **options: Any) -> Any:
    pay = app.step(repeat=repeat, timeout=SOON, retry=OFTEN, name="pay", **options)(slow.pay)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        return pay(order)

    return sync


# -- check -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [Absent, Unknown("it does not say")])
def test_a_check_step_is_not_started_beside_its_own_thread(stage: Stage, slow: Slow, answer: Any) -> None:
    slow.answer = answer
    with pytest.raises(NeedsReview, match=r"pay: .*still at work"):
        paying(stage.process(), slow, check(slow.find, settling=0))(1)
    slow.end()
    assert len(slow.calls) == 1
    assert stage.effects["pay"] == 1


def test_the_same_in_an_async_def_flow(stage: Stage, slow: Slow) -> None:
    app = stage.process()
    pay = app.step(repeat=check(slow.find, settling=0), timeout=SOON, retry=OFTEN, name="pay")(slow.pay)

    @app.flow(key="order:{order}")
    async def sync(order: int) -> str:
        return pay(order)

    with pytest.raises(NeedsReview, match="still at work"):
        Called(sync)(1)
    slow.end()
    assert stage.effects["pay"] == 1


def test_what_a_thread_returns_soon_after_its_time_is_the_result(stage: Stage, slow: Slow) -> None:
    threading.Timer(SOON * 2, slow.let_go.set).start()
    assert paying(stage.process(), slow, check(slow.find, settling=10))(1) == "receipt 1"
    assert len(slow.calls) == 1


def test_what_a_thread_raises_soon_after_its_time_is_its_error(stage: Stage, slow: Slow) -> None:
    slow.error = NotDone("out of stock")
    threading.Timer(SOON * 2, slow.let_go.set).start()
    with pytest.raises(NotDone, match="out of stock"):
        paying(stage.process(), slow, check(slow.find, settling=10))(1)
    assert len(slow.calls) == OFTEN.attempts  # known not to be done: tried again by its policy


def test_an_effect_that_is_found_is_adopted_though_its_thread_goes_on(stage: Stage, slow: Slow) -> None:
    stage.do("pay")
    assert paying(stage.process(), slow, check(slow.find, settling=0))(1) == "found 1"
    assert len(slow.calls) == 1


def test_a_called_flow_that_timed_out_gives_no_late_result_to_the_calling_step(stage: Stage, slow: Slow) -> None:
    app = stage.process()
    inner = app.step(repeat="safe", timeout=SOON, retry=Retry(attempts=1), name="inner")(slow.pay)

    @app.flow(key="order:{order}")
    def pay(order: int) -> str:
        return inner(order)

    @app.step(repeat=check(lambda order: Happened("found"), settling=0), timeout=1, retry=OFTEN)
    def outer(order: int) -> str:
        threading.Timer(SOON * 4, slow.let_go.set).start()
        return pay(order)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        return outer(order)

    assert sync(1) == "found"  # by its own probe; the late thread is the other step's


# -- after a person's word ---------------------------------------------------------------------------


@pytest.mark.parametrize("repeat", ["never", "check"])
def test_what_the_thread_says_in_the_end_is_evidence(stage: Stage, slow: Slow, repeat: str) -> None:
    app = stage.process()
    with pytest.raises(NeedsReview):
        paying(app, slow, check(slow.find, settling=0) if repeat == "check" else repeat)(1)
    assert app.history("sync/order:1").evidence == []
    slow.end()
    (piece,) = app.history("sync/order:1").evidence
    assert (piece.step, piece.result_kept) == ("pay", True)
    app.settle_run("sync/order:1", "happened", by="eve", evidence=piece.id)
    assert paying(stage.process(), slow, "never")(1) == "receipt 1"


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same app", "another app of the process"])
@pytest.mark.parametrize("repeat", ["never", "check"])
def test_told_that_it_did_not_happen_it_is_not_started_beside_its_thread(
    stage: Stage, slow: Slow, repeat: Any, elsewhere: bool
) -> None:
    app = stage.process()
    repeat = check(slow.find, settling=0) if repeat == "check" else repeat
    sync = paying(app, slow, repeat)
    with pytest.raises(NeedsReview):
        sync(1)
    app.settle_run("sync/order:1", "did-not-happen", by="eve")
    with pytest.raises(NeedsReview, match="still at work"):
        (paying(stage.process(), slow, repeat) if elsewhere else sync)(1)
    slow.end()
    assert stage.effects["pay"] == 1


def test_told_that_it_did_not_happen_it_is_tried_again_when_its_thread_is_over(stage: Stage, slow: Slow) -> None:
    app = stage.process()
    sync = paying(app, slow, "never")
    with pytest.raises(NeedsReview):
        sync(1)
    slow.error = NotDone("out of stock")
    slow.end()
    slow.error = None
    app.settle_run("sync/order:1", "did-not-happen", by="eve")
    assert sync(1) == "receipt 1"
    assert len(slow.calls) == 2


def test_another_run_of_the_same_key_has_nothing_to_do_with_it(stage: Stage, slow: Slow) -> None:
    """The thread belongs to a run, not to its name: another ledger may have the same key."""
    with pytest.raises(NeedsReview):
        paying(stage.process(), slow, "never")(1)
    other = Stage()
    try:
        assert paying(other.process(), slow, "never")(1) == "receipt 1"
    finally:
        other.close()


# -- what may be repeated ----------------------------------------------------------------------------


@pytest.mark.parametrize("repeat", ["safe", "keyed"])
def test_what_may_be_repeated_is_started_again_beside_it(stage: Stage, slow: Slow, repeat: str) -> None:
    assert paying(stage.process(), slow, repeat)(1) == "receipt 1"
    assert len(slow.calls) == 2


def failing(app: App, slow: Slow, repeat: Any, **options: Any) -> Any:
    """`pay` is done at its second attempt, while the first is still at work; then the flow fails."""
    pay = app.step(repeat=repeat, timeout=SOON, retry=OFTEN, name="pay", **options)(slow.pay)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        pay(order)
        raise ValueError("no such address")

    return sync


def test_nothing_is_undone_under_a_thread_that_would_do_it_again(stage: Stage, slow: Slow) -> None:
    app = stage.process()
    sync = failing(app, slow, "safe", undo=lambda order: stage.do("refund"))
    with pytest.raises(NeedsReview, match="must be undone, but pay is still at work"):
        sync(1)
    assert stage.effects["refund"] == 0
    slow.end()
    app.settle_run("sync/order:1", "undo", by="eve")
    app.worker().run(until_idle=True)
    assert stage.effects["refund"] == 1
    assert app.runs()[0].state == "failed"


def test_what_has_no_undo_does_not_hold_up_the_end(stage: Stage, slow: Slow) -> None:
    with pytest.raises(ValueError, match="no such address"):
        failing(stage.process(), slow, "safe")(1)
