"""Settling: a person's word about an unknown outcome, and when it is refused."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from twiceproof.claims.claim import DONE, FAILED, Done, Failed, Fault, Held, LostHold, Settlement, claim_of
from twiceproof.claims.results import Packed
from twiceproof.claims.states import EXPIRE, Lifetime
from twiceproof.errors import Misuse
from twiceproof.operations import Inline, block

FAULT = Fault("TimeoutError", "no answer")


def word(verdict: str) -> Settlement:
    return Settlement(verdict, "eve", 5.0, "asked the bank")


def settle(desk: Any, verdict: str, **how: Any) -> Any:
    return block(desk.claims.settle(desk.ask().at, word(verdict), **how))


def parked(desk: Any) -> Any:
    held, claim = desk.held()
    desk.run(desk.claims.park(held, claim, FAULT, "no answer"))
    return held, claim


def test_it_happened_makes_the_claim_done_with_the_given_result(desk: Any) -> None:
    parked(desk)
    outcome = settle(desk, "happened", result=Raw(b'{"id":5}'))
    assert isinstance(outcome, Done)
    assert bytes(desk.take("bob", repeat="safe").result) == b'{"id":5}'
    assert claim_of(desk.record()).settled == word("happened")


def test_it_happened_without_a_result_says_that_it_was_settled_so(desk: Any) -> None:
    parked(desk)
    settle(desk, "happened")
    done = desk.take("bob")
    assert isinstance(done, Done)
    assert (bytes(done.result), done.spill.reason) == (b"", "settled without one")


def test_it_did_not_happen_lets_the_next_take_try_again(desk: Any) -> None:
    held, _ = parked(desk)
    outcome = settle(desk, "did-not-happen")
    assert isinstance(outcome, Failed) and outcome.retryable
    again = desk.take("bob")
    assert (again.attempt, again.fence > held.fence) == (2, True)


def test_an_abandoned_claim_fails_for_good(desk: Any) -> None:
    parked(desk)
    settle(desk, "abandon")
    found = desk.take("bob", repeat="safe")
    assert isinstance(found, Failed)
    assert (found.retryable, found.fault.type, found.fault.message) == (False, "Abandoned", "asked the bank")


def test_an_abandoned_claim_is_not_run_by_a_retry_either(desk: Any) -> None:
    """Whether it was done is unknown; one that did not happen is run again, as is one that failed by itself."""
    parked(desk)
    settle(desk, "abandon")
    assert isinstance(desk.take("bob", retry=True), Failed)


def test_a_settled_claim_is_kept_as_long_as_any_other(desk: Any) -> None:
    parked(desk)
    settle(desk, "happened", result=Raw(b"1"), life=Lifetime(keep=10.0))
    assert (desk.record().queue, desk.record().due_at) == (EXPIRE, desk.clock.now() + 10)


def test_a_word_that_is_no_verdict_is_refused(desk: Any) -> None:
    parked(desk)
    before = desk.record()
    with pytest.raises(Misuse, match="happened, did-not-happen, abandon"):
        settle(desk, "perhaps")
    assert desk.record() == before


def test_an_unknown_claim_cannot_be_settled(desk: Any) -> None:
    with pytest.raises(Misuse, match="no such claim"):
        settle(desk, "happened")
    assert desk.record() is None


def test_a_done_claim_cannot_be_settled(desk: Any) -> None:
    held, claim = desk.held()
    desk.run(desk.claims.complete(held, claim, Packed(inline=Raw(b"1"))))
    before = desk.record()
    with pytest.raises(Misuse, match="done"):
        settle(desk, "did-not-happen")
    assert desk.record() == before


def test_a_claim_that_somebody_works_on_cannot_be_settled(desk: Any) -> None:
    desk.held()
    with pytest.raises(Misuse, match="ann holds this claim for another 30 s; wait"):
        settle(desk, "happened")


def test_a_lapsed_claim_can_be_settled_though_nobody_parked_it(desk: Any) -> None:
    held, claim = desk.held()
    desk.clock.advance(30)
    settle(desk, "did-not-happen")
    assert desk.run(desk.claims.complete(held, claim, Packed(inline=Raw(b"1")))) == LostHold(FAILED, "ann")


def test_a_failed_claim_can_be_settled_as_happened_after_all(desk: Any) -> None:
    held, claim = desk.held()
    desk.run(desk.claims.fail(held, claim, FAULT))
    assert isinstance(settle(desk, "happened", result=Raw(b"1")), Done)
    assert claim_of(desk.record()).fault is None


def test_a_holder_that_comes_back_while_it_is_settled_wins(desk: Any) -> None:
    """The person's word was about a claim that seemed dead; a renewal in between makes it refused."""
    held, _ = desk.held()
    desk.clock.advance(30)
    read = desk.store.read

    def renewed_after_the_read(at: Any) -> Any:
        answer = read(at).block()
        desk.store.read = read
        desk.run(desk.claims.renew(held))
        return Inline(lambda: answer)

    desk.store.read = renewed_after_the_read
    with pytest.raises(Misuse, match="holds this claim"):
        settle(desk, "did-not-happen")
    assert isinstance(desk.run(desk.claims.renew(held)), Held)


def test_a_holder_that_finishes_after_the_settlement_leaves_evidence(desk: Any) -> None:
    held, claim = desk.held()
    desk.clock.advance(30)
    settle(desk, "happened", result=Raw(b'"by hand"'))
    assert desk.run(desk.claims.complete(held, claim, Packed(inline=Raw(b'"late"')))) == LostHold(DONE, "ann")
    assert bytes(desk.take("bob").result) == b'"by hand"'


def test_two_people_settle_once(desk: Any) -> None:
    parked(desk)
    settle(desk, "happened", result=Raw(b"1"))
    with pytest.raises(Misuse, match="done"):
        settle(desk, "happened", result=Raw(b"2"))
    assert bytes(desk.take("bob").result) == b"1"
