"""`with app.claim(…)` and `async with`: a claim around a few lines."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest

from twiceproof import (
    App,
    Duplicate,
    InProgress,
    Misuse,
    NeedsReview,
    NotDone,
    PayloadMismatch,
    PriorFailure,
    ResultNotKept,
    ResultTypeWarning,
    UnstableKeyWarning,
)


def test_a_claim_whose_time_is_over_counts_as_lost_until_it_was_renewed(memory: App, clock: Any) -> None:
    """The store is out of reach, and another may be at work by now: nobody is there to say so."""
    with memory.claim("ship", "order:1", lease=30) as claim:
        clock.advance(29.9)
        assert not claim.lost
        clock.advance(0.1)
        assert claim.lost
        memory._heartbeat.beat()
        assert not claim.lost


def test_a_claim_that_was_left_is_not_lost_later(memory: App, clock: Any) -> None:
    with memory.claim("ship", "order:1", lease=30) as claim:
        pass
    clock.advance(31)
    assert not claim.lost


class Blocks:
    """Enters a block with `with` or with `async with`; `body` is what stands in it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, app: App, body: Callable[[Any], Any] = lambda claim: None, **how: Any) -> Any:
        claim = app.claim("ship", how.pop("key", "order:1"), **how)
        return self.enter(claim, body)

    def enter(self, claim: Any, body: Callable[[Any], Any] = lambda claim: None) -> Any:
        if self.name == "with":
            with claim as entered:
                body(entered)
            return entered
        return asyncio.run(_awaiting(claim, body))


async def _awaiting(claim: Any, body: Callable[[Any], Any]) -> Any:
    async with claim as entered:
        await asyncio.sleep(0)
        body(entered)
    return entered


@pytest.fixture(params=["with", "async with"])
def ship(request: pytest.FixtureRequest) -> Blocks:
    return Blocks(request.param)


def says(value: Any) -> Callable[[Any], None]:
    def body(claim: Any) -> None:
        assert claim.held
        claim.result = value

    return body


def fails(error: BaseException) -> Callable[[Any], None]:
    def body(claim: Any) -> None:
        raise error

    return body


def test_a_block_that_ends_well_is_done_with_its_result(app: App, ship: Blocks) -> None:
    done = ship(app, says({"label": "x"}))
    assert (done.result, done.attempt, done.key) == ({"label": "x"}, 1, "order:1")
    with pytest.raises(Duplicate) as told:
        ship(app, says("again"))
    assert told.value.result == {"label": "x"}


def test_a_block_without_a_result_is_done_with_none(app: App, ship: Blocks) -> None:
    ship(app)
    with pytest.raises(Duplicate) as told:
        ship(app)
    assert told.value.result is None


def test_a_duplicate_block_that_asked_for_it_runs_unheld_with_the_prior_result(app: App, ship: Blocks) -> None:
    ship(app, says(5))
    seen: list[Any] = []
    ship(app, lambda claim: seen.append((claim.held, claim.result, claim.attempt)), on_duplicate="return_prior")
    assert seen == [(False, 5, 0)]


def test_what_an_unheld_block_does_is_not_recorded(app: App, ship: Blocks) -> None:
    ship(app, says(5))
    ship(app, lambda claim: setattr(claim, "result", 6), on_duplicate="return_prior")
    with pytest.raises(ValueError):
        ship(app, fails(ValueError("mine")), on_duplicate="return_prior")
    with pytest.raises(Duplicate) as told:
        ship(app)
    assert told.value.result == 5


def test_a_block_that_fails_is_failed_and_raises_its_own_error(app: App, ship: Blocks) -> None:
    error = NotDone("no label", final=True)
    with pytest.raises(NotDone) as caught:
        ship(app, fails(error))
    assert caught.value is error
    with pytest.raises(PriorFailure, match="no label"):
        ship(app)


@pytest.mark.parametrize("error", [TimeoutError("slow"), ValueError("what?")], ids=["no answer", "unknown"])
def test_a_block_whose_error_does_not_tell_whether_it_was_done_waits_for_a_person(
    app: App, ship: Blocks, error: Exception
) -> None:
    with pytest.raises(NeedsReview) as told:
        ship(app, fails(error))
    assert told.value.__cause__ is error
    with pytest.raises(NeedsReview):
        ship(app)


def test_a_block_fails_cleanly_by_the_errors_that_it_declares_to_mean_not_done(app: App, ship: Blocks) -> None:
    with pytest.raises(ValueError):
        ship(app, fails(ValueError("no label")), not_done=ValueError)
    assert ship(app, says(1)).attempt == 2


def test_a_block_can_release_its_key_when_it_fails(app: App, ship: Blocks) -> None:
    with pytest.raises(NotDone):
        ship(app, fails(NotDone("no")), on_failure="release")
    assert ship(app, says(1)).attempt == 1


@pytest.mark.parametrize("policy", ["reject", "wait", "return_prior"])
def test_a_block_inside_a_block_of_the_same_key_is_part_of_it(app: App, ship: Blocks, policy: Any) -> None:
    def again(claim: Any) -> None:
        with app.claim("ship", "order:1", on_duplicate=policy) as inner:
            assert inner.held
            inner.result = "not this"
        claim.result = "of the outer"

    ship(app, again)
    with pytest.raises(Duplicate) as told:
        ship(app, lambda claim: None)
    assert told.value.result == "of the outer"


def test_a_block_inside_a_block_of_the_same_key_with_another_payload_is_refused(app: App, ship: Blocks) -> None:
    def again(claim: Any) -> None:
        with pytest.raises(PayloadMismatch), app.claim("ship", "order:1", payload={"other": 1}):
            raise AssertionError

    ship(app, again)


def test_a_block_left_in_another_context_than_it_was_entered_in_is_recorded(app: App) -> None:
    """As a framework does that enters and leaves a generator on two threads of its pool."""
    claim = app.claim("ship", "order:9")
    contextvars.Context().run(claim.__enter__)
    claim.result = "P-9"
    contextvars.Context().run(claim.__exit__, None, None, None)
    assert app._heartbeat._holds == {}
    with pytest.raises(Duplicate) as told, app.claim("ship", "order:9"):
        raise AssertionError
    assert told.value.result == "P-9"


def test_a_take_is_given_back_when_nobody_can_keep_it_alive(app: App, monkeypatch: Any) -> None:
    def no_thread(hold: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(app._heartbeat, "keep", no_thread)
        with pytest.raises(RuntimeError), app.claim("ship", "order:8"):
            raise AssertionError
    with app.claim("ship", "order:8") as claim:
        assert claim.held


def test_the_same_owner_enters_again_what_it_holds(app: App, ship: Blocks) -> None:
    """A replayed process, or a redelivered message: the first entry never came to its end."""
    with pytest.raises(NeedsReview), app.claim("ship", "order:1", owner="job-7"):
        inner = ship(app, says("by the second"), owner="job-7")
        assert (inner.attempt, inner.result) == (1, "by the second")
        raise NeedsReview("the first one gives up")
    with pytest.raises(Duplicate) as told:
        ship(app, owner="job-8")
    assert told.value.result == "by the second"


def test_another_owner_does_not_enter_what_is_held(app: App, ship: Blocks) -> None:
    with app.claim("ship", "order:1", owner="job-7"), pytest.raises(InProgress) as told:
        ship(app, owner="job-8")
    assert told.value.owner == "job-7"


def test_a_claim_is_entered_once(app: App, ship: Blocks) -> None:
    claim = app.claim("ship", "order:1", on_duplicate="return_prior")
    ship.enter(claim)
    with pytest.raises(Misuse, match="entered once"):
        ship.enter(claim)


def test_a_block_with_another_payload_is_refused(app: App, ship: Blocks) -> None:
    ship(app, says(1), payload={"to": "ann"})
    with pytest.raises(PayloadMismatch):
        ship(app, payload={"to": "bob"})
    with pytest.raises(Duplicate):
        ship(app, payload={"to": "ann"})
    with pytest.raises(Duplicate):
        ship(app)  # who gives no payload asks for the key alone


def test_a_dataclass_comes_back_as_plain_json_without_advice_that_cannot_help(app: App, ship: Blocks) -> None:
    @dataclasses.dataclass
    class Label:
        id: int

    assert ship(app, says(Label(5))).result == {"id": 5}


def test_a_result_that_cannot_be_kept_is_told(app: App, ship: Blocks) -> None:
    with pytest.warns(ResultTypeWarning, match="is not kept"):
        ship(app, says(math.nan))
    with pytest.raises(ResultNotKept):
        ship(app, on_duplicate="return_prior")


def test_a_large_result_of_a_block_comes_back(app: App, ship: Blocks) -> None:
    ship(app, says("x" * 100_000))
    assert ship(app, on_duplicate="return_prior").result == "x" * 100_000


@pytest.mark.parametrize(
    "how", [{"tenant": ""}, {"tenant": "a/b"}, {"key": ""}, {"key": "  "}, {"lease": 0}, {"keep": "30"}]
)
def test_a_block_asked_for_wrongly_is_refused_before_anything_is_written(memory: App, ship: Blocks, how: Any) -> None:
    with pytest.raises(Misuse):
        ship(memory, **how)
    assert not memory.store.scan("claim").block().records


def test_a_generator_that_is_closed_inside_a_block_waits_for_a_person(app: App) -> None:
    def steps() -> Any:
        with app.claim("ship", "order:1"):
            yield 1

    running = steps()
    next(running)
    running.close()
    with pytest.raises(NeedsReview), app.claim("ship", "order:1"):
        pass


def test_the_next_move_after_a_failed_block_can_be_done(ship: Blocks, app: App) -> None:
    """A block is no function: there is nothing to call `.retry` on."""

    def broken(claim: Any) -> None:
        raise NotDone("no label", final=True)

    with pytest.raises(NotDone, match="no label"):
        ship(app, broken)
    with pytest.raises(
        PriorFailure, match=r"; once the cause is gone, .* claims settle --did-not-happen ship order:1$"
    ):
        ship(app)
    app.settle("ship", "order:1", "did-not-happen", by="ann")
    assert ship(app, lambda claim: setattr(claim, "result", 1)).result == 1


def test_a_mismatch_tells_a_block_of_its_payload_and_a_function_of_its_arguments(ship: Blocks, app: App) -> None:
    ship(app, payload={"a": 1})
    with pytest.raises(PayloadMismatch, match=r"or leave what varies out of payload=\.$"):
        ship(app, payload={"a": 2})

    @app.once(key="order:1", name="pay")
    def pay(order: int) -> int:
        return order

    pay(1)
    with pytest.raises(PayloadMismatch, match=r"or leave out what varies with ignore=\.$"):
        pay(2)


FRESH = "order:3f2b8a52-6c1d-4e7a-9b0f-1d2c3b4a5968"


def test_a_key_that_looks_random_is_warned_about_where_the_block_stands(memory: App) -> None:
    with pytest.warns(UnstableKeyWarning, match=r"ship: the key holds a UUID .* say stable=True$") as told:
        memory.claim("ship", FRESH)
    assert told[0].filename == __file__
    memory.claim("ship", FRESH)  # said once


def test_a_key_that_is_declared_stable_is_not_warned_about(ship: Blocks, memory: App) -> None:
    assert ship(memory, key=FRESH, stable=True).held
