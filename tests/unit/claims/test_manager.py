"""Take, renew, complete, fail, park, release, free, look: what each writes, and what the late ones leave behind."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from twiceproof.claims.claim import (
    DONE,
    FAILED,
    HELD,
    REVIEW,
    Busy,
    Done,
    Failed,
    Fault,
    Held,
    InReview,
    LostHold,
    Spill,
    claim_of,
)
from twiceproof.claims.queries import Evidence, evidence_of, evidence_write
from twiceproof.claims.results import Packed, pack
from twiceproof.claims.states import Lifetime
from twiceproof.errors import BadWrite, Misuse, StoreUnavailable
from twiceproof.operations import block
from twiceproof.records import Written

PAID = Packed(inline=Raw(b'{"paid":1}'))
FAULT = Fault("TimeoutError", "no answer")


def test_the_first_take_holds_and_the_second_is_busy_with_the_firsts_name(desk: Any) -> None:
    held = desk.take("ann")
    assert isinstance(held, Held)
    desk.clock.advance(10)
    assert desk.take("bob") == Busy("ann", 20.0, "run_1")


def test_the_deadline_is_counted_from_before_the_store_was_asked(desk: Any) -> None:
    """The store stamps the lease later than that, so our own deadline is never too late."""
    desk.engine.after = lambda: desk.clock.advance(12)
    assert desk.take("ann").deadline == 30.0
    assert desk.clock.monotonic() == 12.0


def test_a_renewed_lease_is_counted_from_the_renewal(desk: Any) -> None:
    held, _ = desk.held()
    desk.clock.advance(20)
    renewed = desk.run(desk.claims.renew(held))
    assert (renewed.fence, renewed.deadline, renewed.lease) == (held.fence, 50.0, 30.0)
    desk.clock.advance(20)
    assert desk.take("bob") == Busy("ann", 10.0, "run_1")


def test_a_lease_can_be_renewed_for_another_span(desk: Any) -> None:
    held, _ = desk.held()
    desk.run(desk.claims.renew(held, 300.0))
    desk.clock.advance(200)
    assert desk.take("bob") == Busy("ann", 100.0, "run_1")


@pytest.mark.parametrize("lease", [0.0, -1.0, float("nan"), float("inf")])
def test_a_lease_that_is_born_dead_is_refused_and_nothing_is_written(desk: Any, lease: float) -> None:
    with pytest.raises(BadWrite):
        desk.take(lease=lease)
    assert desk.record() is None


def test_a_lapsed_holder_that_nobody_replaced_may_still_renew(desk: Any) -> None:
    held, _ = desk.held()
    desk.clock.advance(100)
    assert isinstance(desk.run(desk.claims.renew(held)), Held)
    assert isinstance(desk.take("bob"), Busy)


def test_a_replaced_holder_cannot_renew(desk: Any) -> None:
    held, _ = desk.held()
    desk.clock.advance(31)
    desk.held("bob", repeat="safe")
    assert desk.run(desk.claims.renew(held)) == LostHold(HELD, "bob")


def test_a_completed_claim_answers_with_its_result_byte_for_byte(desk: Any) -> None:
    held, claim = desk.held()
    odd = Packed(inline=Raw(b'{"b" :  1.50,\t"a":"\\u00e9"}'))
    assert isinstance(desk.run(desk.claims.complete(held, claim, odd)), Written)
    assert [bytes(desk.take("bob").result) for _ in range(3)] == [bytes(odd.inline)] * 3


def test_a_completed_claim_has_no_lease_and_stays_done(desk: Any) -> None:
    held, claim = desk.held()
    desk.run(desk.claims.complete(held, claim, PAID))
    desk.clock.advance(10**8)
    assert desk.record().lease_until is None
    assert isinstance(desk.take("bob", repeat="safe"), Done)


def test_a_heartbeat_that_straggles_in_after_the_end_cannot_undo_it(desk: Any) -> None:
    held, claim = desk.held()
    desk.run(desk.claims.complete(held, claim, PAID))
    before = desk.record()
    assert desk.run(desk.claims.renew(held)) == LostHold(DONE, "ann")
    assert desk.record() == before


ENDINGS: dict[str, tuple[Any, str]] = {
    "complete": (lambda desk, held, claim: desk.claims.complete(held, claim, PAID), DONE),
    "fail": (lambda desk, held, claim: desk.claims.fail(held, claim, FAULT), FAILED),
    "park": (lambda desk, held, claim: desk.claims.park(held, claim, FAULT, "no answer"), REVIEW),
}


@pytest.mark.parametrize("first", ENDINGS)
@pytest.mark.parametrize("second", ENDINGS)
def test_a_holder_has_one_last_word(desk: Any, first: str, second: str) -> None:
    held, claim = desk.held()
    assert isinstance(desk.run(ENDINGS[first][0](desk, held, claim)), Written)
    before = desk.record()
    assert desk.run(ENDINGS[second][0](desk, held, claim)) == LostHold(ENDINGS[first][1], "ann")
    assert desk.record() == before


def test_a_retryable_failure_is_simply_taken_again_as_the_next_attempt(desk: Any) -> None:
    held, claim = desk.held()
    desk.run(desk.claims.fail(held, claim, Fault("NotDone", retryable=True)))
    again = desk.take("bob")
    assert (again.attempt, again.fence > held.fence) == (2, True)


def test_a_failure_for_good_is_answered_until_a_person_says_retry(desk: Any) -> None:
    held, claim = desk.held()
    desk.run(desk.claims.fail(held, claim, FAULT))
    assert desk.take("bob") == Failed(FAULT, False, "run_1")
    assert desk.take("bob", retry=True).attempt == 2


def test_a_parked_claim_keeps_its_fault_and_its_reason(desk: Any) -> None:
    held, claim = desk.held()
    desk.run(desk.claims.park(held, claim, FAULT, "no answer"))
    assert desk.take("bob", repeat="safe") == InReview("no answer", "run_1", desk.clock.now())
    assert claim_of(desk.record()).fault == FAULT


def test_a_released_key_is_free_and_its_next_fence_is_greater(desk: Any) -> None:
    held, _ = desk.held()
    assert isinstance(desk.run(desk.claims.release(held)), Written)
    assert desk.record() is None
    again = desk.take("bob")
    assert (again.attempt, again.fence > held.fence) == (1, True)


def test_only_the_holder_can_release(desk: Any) -> None:
    late, _ = desk.held("ann")
    desk.clock.advance(31)
    now, _ = desk.held("bob", repeat="safe")
    assert desk.run(desk.claims.release(late)) == LostHold(HELD, "bob")
    assert desk.record().fence == now.fence


def test_a_look_writes_nothing(desk: Any) -> None:
    assert desk.run(desk.claims.look(desk.ask().at)) is None
    desk.held()
    desk.clock.advance(100)
    before = desk.record()
    assert desk.run(desk.claims.look(desk.ask().at)) == Busy("ann", 0.0, "run_1")
    assert desk.record() == before


def test_a_look_does_not_see_what_is_past_its_keep(desk: Any) -> None:
    held, claim = desk.held()
    desk.run(desk.claims.complete(held, claim, PAID, Lifetime(keep=10.0)))
    assert isinstance(desk.run(desk.claims.look(desk.ask().at)), Done)
    desk.clock.advance(10)
    assert desk.run(desk.claims.look(desk.ask().at)) is None


# -- late holders --------------------------------------------------------------------------------


def late(desk: Any) -> tuple[Any, Any]:
    """A holder that slept through its lease and was replaced by bob."""
    held, claim = desk.held("ann")
    desk.clock.advance(31)
    desk.held("bob", repeat="safe")
    return held, claim


def evidence(desk: Any) -> Any:
    return block(evidence_of(desk.store, desk.ask().at.space))


def test_a_late_result_becomes_evidence_and_not_the_result(desk: Any) -> None:
    held, claim = late(desk)
    assert desk.run(desk.claims.complete(held, claim, PAID)) == LostHold(HELD, "bob")
    (report,) = evidence(desk)
    assert (report.owner, report.fence, bytes(report.result), report.fault) == ("ann", held.fence, b'{"paid":1}', None)
    assert report.seen_at == desk.clock.now()
    assert isinstance(desk.take("cid"), Busy)


def test_a_late_fault_becomes_evidence(desk: Any) -> None:
    held, claim = late(desk)
    assert desk.run(desk.claims.fail(held, claim, FAULT)) == LostHold(HELD, "bob")
    (report,) = evidence(desk)
    assert (report.owner, report.fault, bytes(report.result)) == ("ann", FAULT, b"")


def test_a_late_doubt_becomes_evidence(desk: Any) -> None:
    held, claim = late(desk)
    desk.run(desk.claims.park(held, claim, FAULT, "no answer"))
    assert [report.fault for report in evidence(desk)] == [FAULT]


def test_a_holder_in_time_leaves_no_evidence(desk: Any) -> None:
    held, claim = desk.held()
    desk.run(desk.claims.complete(held, claim, PAID))
    assert evidence(desk) == []


def test_a_late_report_made_twice_is_one_piece_of_evidence(desk: Any) -> None:
    held, claim = late(desk)
    for _ in range(2):
        desk.run(desk.claims.complete(held, claim, PAID))
    assert len(evidence(desk)) == 1


def test_a_late_result_that_is_large_is_kept_whole(desk: Any) -> None:
    """Its resource is part of the completion that was refused, and must not be lost with it."""
    from twiceproof.claims.results import unpack

    held, claim = late(desk)
    text = "x" * 100_000
    desk.run(desk.claims.complete(held, claim, pack(text, held)))
    (report,) = evidence(desk)
    assert block(unpack(desk.store, held.at, report.result, report.spill)) == f'"{text}"'


def test_a_late_result_of_a_key_that_is_gone_is_kept_too(desk: Any) -> None:
    held, claim = desk.held()
    desk.run(desk.claims.free(held.at, force=True))
    assert desk.run(desk.claims.complete(held, claim, PAID)) == LostHold("", "")
    assert len(evidence(desk)) == 1
    assert desk.record() is None


# -- lost acknowledgements -----------------------------------------------------------------------


def test_a_take_whose_acknowledgement_is_lost_is_recognised_as_ours(desk: Any) -> None:
    desk.engine.lose_reply()
    held = desk.take("ann")
    assert isinstance(held, Held)
    assert held.fence == desk.record().fence


def test_a_take_whose_request_is_lost_is_tried_again(desk: Any) -> None:
    desk.engine.lose_request()
    assert isinstance(desk.take("ann"), Held)


def test_a_take_that_was_overtaken_while_its_acknowledgement_was_lost_is_busy(desk: Any) -> None:
    """What landed may have lapsed and been taken over since: then the claim is not ours, whatever we wrote."""

    def overtake() -> None:
        desk.clock.advance(31)
        inner = type(desk)(desk.clock)
        inner.engine.inner = desk.engine.inner
        assert isinstance(inner.take("bob", repeat="safe"), Held)

    desk.engine.lose_reply(overtake)
    assert isinstance(desk.take("ann"), Busy)


def test_a_completion_whose_acknowledgement_is_lost_is_no_loss_of_the_claim(desk: Any) -> None:
    held, claim = desk.held()
    desk.engine.lose_reply()
    assert isinstance(desk.run(desk.claims.complete(held, claim, PAID)), Written)
    assert evidence(desk) == []


def test_a_renewal_whose_acknowledgement_is_lost_still_holds(desk: Any) -> None:
    held, _ = desk.held()
    desk.engine.lose_reply()
    assert isinstance(desk.run(desk.claims.renew(held)), Held)


def test_a_completion_that_can_no_longer_be_recognised_leaves_evidence(desk: Any) -> None:
    held, claim = desk.held()
    meanwhile = type(desk)(desk.clock)
    meanwhile.engine.inner = desk.engine.inner
    desk.engine.lose_reply(lambda: meanwhile.run(meanwhile.claims.free(held.at)))
    assert desk.run(desk.claims.complete(held, claim, PAID)) == LostHold("", "")
    assert len(evidence(desk)) == 1


def test_a_store_that_stays_away_ends_a_take_with_an_error_and_not_with_a_claim(desk: Any) -> None:
    for _ in range(100):
        desk.engine.refuse_connection()
    with pytest.raises(StoreUnavailable):
        desk.take()
    assert desk.record() is None


# -- free ----------------------------------------------------------------------------------------


def test_a_finished_key_can_be_forgotten_by_a_persons_word(desk: Any) -> None:
    held, claim = desk.held()
    desk.run(desk.claims.complete(held, claim, PAID))
    assert desk.run(desk.claims.free(held.at)) is True
    assert desk.run(desk.claims.free(held.at)) is False
    assert desk.take("bob").fence > held.fence


def test_a_key_at_work_is_not_forgotten_unless_forced(desk: Any) -> None:
    held, _ = desk.held()
    with pytest.raises(Misuse, match="ann holds this claim for another 30 s"):
        desk.run(desk.claims.free(held.at))
    assert desk.record() is not None
    assert desk.run(desk.claims.free(held.at, force=True)) is True


def test_a_lapsed_key_can_be_forgotten_without_force(desk: Any) -> None:
    held, _ = desk.held()
    desk.clock.advance(31)
    assert desk.run(desk.claims.free(held.at)) is True


def test_a_digest_says_why_the_result_is_not_there(desk: Any) -> None:
    held, claim = desk.held()
    spill = Spill("abc", 9, reason="too large to keep")
    desk.run(desk.claims.complete(held, claim, Packed(spill=spill)))
    done = desk.take("bob")
    assert (done.spill, bytes(done.result)) == (spill, b"")


@pytest.mark.parametrize("count", [12, 1_005])
def test_all_evidence_is_told_in_the_order_in_which_it_came_in(desk: Any, count: int) -> None:
    space = desk.ask().at.space
    for fence in range(1, count + 1):
        desk.clock.advance(1)
        desk.store.write(evidence_write(space, Evidence("ann", fence))).block()
    assert [report.fence for report in evidence(desk)] == list(range(1, count + 1))
