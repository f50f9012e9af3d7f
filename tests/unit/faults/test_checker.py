"""Tiny histories whose verdict is known, both ways."""

from __future__ import annotations

import pytest

from tests.faults.linearizability import Linearizable, Model, Operation, Unknown, Violation, check
from tests.faults.linearizability.model import (
    Absent,
    Busy,
    Complete,
    Done,
    Ended,
    Fail,
    Failed,
    Held,
    InReview,
    Look,
    Mismatch,
    NotSettled,
    Park,
    Refused,
    Release,
    Renew,
    Renewed,
    Settle,
    Settled,
    Take,
)


def op(act, answer, invoked, returned=None, client="c", key="k"):
    """By default over after one tick; without an answer, never over."""
    over = returned if returned is not None or answer is None else invoked + 1
    return Operation(client, key, act, answer, invoked, over)


def take(owner, answer, invoked, returned=None, lease=10, repeat="safe", fingerprint=""):
    return op(Take(owner, lease, repeat, fingerprint), answer, invoked, returned, client=owner)


def fits(*history, **options):
    return isinstance(check(history, **options), Linearizable)


def breaks(*history, **options):
    return isinstance(check(history, **options), Violation)


FIRST = take("a", Held(1, 1), 0)


# -- winners -------------------------------------------------------------------------------------


def test_an_empty_history_is_linearizable():
    assert fits()


def test_one_winner_and_one_who_is_told_to_wait():
    assert fits(FIRST, take("b", Busy("a"), 2))


def test_two_winners_at_once_are_none():
    assert breaks(FIRST, take("b", Held(2, 1), 2))


def test_two_who_overlap_may_come_in_either_order_but_not_both_first():
    assert fits(take("a", Held(1, 1), 0, 5), take("b", Busy("a"), 0, 5))
    assert fits(take("a", Busy("b"), 0, 5), take("b", Held(1, 1), 0, 5))
    assert breaks(take("a", Held(1, 1), 0, 5), take("b", Held(2, 1), 0, 5))


def test_who_came_back_before_another_began_comes_first():
    busy_too_soon = take("b", Busy("a"), 0, 2)
    assert breaks(busy_too_soon, take("a", Held(1, 1), 3))
    assert fits(busy_too_soon, take("a", Held(1, 1), 1, 3))


def test_busy_names_the_holder():
    assert breaks(FIRST, take("b", Busy("c"), 2))


def test_keys_are_judged_one_by_one():
    other = Operation("b", "other", Take("b", 10), Held(2, 1), 2, 3)
    assert fits(FIRST, other)
    assert check([FIRST, Operation("b", "other", Look(), Done("x"), 2, 3)]).key == "other"


# -- leases --------------------------------------------------------------------------------------


def test_a_lapsed_claim_is_taken_over_as_the_next_attempt():
    assert fits(FIRST, take("b", Held(2, 2), 11))
    assert breaks(FIRST, take("b", Held(2, 1), 11))


def test_a_take_over_before_the_lease_is_over_is_too_early():
    assert breaks(FIRST, take("b", Held(2, 2), 7))


def test_busy_after_the_lease_is_over_is_too_late():
    assert breaks(FIRST, take("b", Busy("a"), 11))


def test_a_lease_runs_from_when_it_was_asked_for_not_from_when_others_see_it():
    """The store stamped it, and took long to commit: it is short for others, and for its holder, who counts alike."""
    slow = take("a", Held(1, 1), 0, 20)
    nothing_yet = op(Look(), Absent(), 5)
    assert fits(slow, nothing_yet, take("b", Held(2, 2), 11, 13))
    assert breaks(slow, nothing_yet, take("b", Held(2, 2), 7, 9))


def test_slack_is_allowed_for_and_no_more():
    early, late = take("b", Held(2, 2), 7), take("b", Busy("a"), 12)
    assert fits(FIRST, early, model=Model(slack=2))
    assert fits(FIRST, late, model=Model(slack=2))
    assert breaks(FIRST, take("b", Held(2, 2), 5), model=Model(slack=2))
    assert breaks(FIRST, take("b", Busy("a"), 14), model=Model(slack=2))


def test_a_renewed_lease_runs_from_the_renewal():
    renewal = op(Renew(1, 10), Renewed(), 8)
    assert fits(FIRST, renewal, take("b", Busy("a"), 15))
    assert breaks(FIRST, renewal, take("b", Held(2, 2), 15))


def test_a_lapsed_claim_that_may_not_be_repeated_is_parked():
    assert fits(FIRST, take("b", InReview(), 11, repeat="never"), op(Look(), InReview(), 13))
    assert breaks(FIRST, take("b", Held(2, 2), 11, repeat="never"))
    assert breaks(FIRST, take("b", InReview(), 5, repeat="never"))


def test_a_lapsed_holder_that_nobody_took_over_from_still_holds():
    assert fits(FIRST, op(Complete(1, "x"), Ended(2), 50), op(Look(), Done("x"), 52))


def test_a_take_that_is_told_of_a_review_may_be_the_one_that_parked_it_later():
    """It began under one review, lasted until the next holder had lapsed, and parked that one."""
    parked = op(Park(1), Ended(2), 2)
    long = take("b", InReview(), 4, 40, repeat="never")
    settled = op(Settle(False), Settled(), 7)
    again = take("c", Held(4, 2), 9)
    assert fits(FIRST, parked, long, op(Look(), InReview(), 5), settled, again, op(Look(), InReview(), 50))
    assert breaks(FIRST, parked, settled, again, op(Look(), InReview(), 50))


# -- fences --------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [Renew(1, 10), Complete(1, "x"), Fail(1, "E"), Park(1), Release(1)])
def test_a_holder_that_lost_its_claim_cannot_write(act):
    over = take("b", Held(2, 2), 11)
    landed = Renewed() if isinstance(act, Renew) else Ended(3)
    assert breaks(FIRST, over, op(act, landed, 13))
    assert fits(FIRST, over, op(act, Refused("held", "b"), 13))


def test_a_refusal_tells_what_the_claim_is_now():
    assert breaks(FIRST, take("b", Held(2, 2), 11), op(Complete(1, "x"), Refused("done", "b"), 13))


def test_a_holder_is_not_refused():
    assert breaks(FIRST, op(Complete(1, "x"), Refused("held", "a"), 2))


def test_a_fence_is_never_given_twice_not_even_after_a_release():
    released = op(Release(1), Ended(2), 2)
    assert fits(FIRST, released, take("b", Held(3, 1), 4))
    for fence in (1, 2):
        assert breaks(FIRST, released, take("b", Held(fence, 1), 4))


def test_a_fence_is_never_given_twice_not_even_after_a_purge():
    done = op(Complete(1, "x", keep=10), Ended(2), 2)
    assert fits(FIRST, done, take("b", Held(3, 1), 20))
    assert breaks(FIRST, done, take("b", Held(1, 1), 20))


# -- results -------------------------------------------------------------------------------------

DONE = op(Complete(1, "x"), Ended(2), 2)


def test_a_replay_is_the_result():
    assert fits(FIRST, DONE, take("b", Done("x"), 4), op(Look(), Done("x"), 6))
    assert breaks(FIRST, DONE, take("b", Done("y"), 4))


def test_a_done_claim_is_not_taken_again():
    assert breaks(FIRST, DONE, take("b", Held(3, 2), 4))
    assert breaks(FIRST, DONE, take("b", Held(3, 1), 400))


def test_a_key_may_be_forgotten_when_its_time_has_come_and_not_before():
    done = op(Complete(1, "x", keep=10), Ended(2), 2)
    assert fits(FIRST, done, op(Look(), Absent(), 13))
    assert fits(FIRST, done, op(Look(), Done("x"), 13))
    assert breaks(FIRST, done, op(Look(), Absent(), 8))


def test_a_stale_look_is_impossible():
    assert breaks(FIRST, DONE, op(Look(), Busy("a"), 4))
    assert fits(FIRST, op(Complete(1, "x"), Ended(2), 2, 9), op(Look(), Busy("a"), 4))


def test_looks_do_not_go_back_in_time():
    write = op(Complete(1, "x"), Ended(2), 2, 20)
    assert fits(FIRST, write, op(Look(), Busy("a"), 4), op(Look(), Done("x"), 6))
    assert breaks(FIRST, write, op(Look(), Done("x"), 4), op(Look(), Busy("a"), 6))


def test_a_failure_is_taken_again_only_if_it_is_retryable():
    assert fits(FIRST, op(Fail(1, "E", retryable=True), Ended(2), 2), take("b", Held(3, 2), 4))
    assert fits(FIRST, op(Fail(1, "E"), Ended(2), 2), take("b", Failed("E"), 4))
    assert breaks(FIRST, op(Fail(1, "E"), Ended(2), 2), take("b", Held(3, 2), 4))
    assert breaks(FIRST, op(Fail(1, "E", retryable=True), Ended(2), 2), take("b", Failed("E"), 4))


def test_another_payload_is_told_apart():
    first = take("a", Held(1, 1), 0, fingerprint="f")
    assert fits(first, take("b", Mismatch("f"), 2, fingerprint="g"))
    assert breaks(first, take("b", Busy("a"), 2, fingerprint="g"))
    assert breaks(first, take("b", Mismatch("f"), 2, fingerprint="f"))


def test_only_what_is_open_is_settled():
    parked = op(Park(1), Ended(2), 2)
    assert fits(FIRST, parked, op(Settle(True, "x"), Settled(), 4), op(Look(), Done("x"), 6))
    assert fits(FIRST, parked, op(Settle(False), Settled(), 4), take("b", Held(4, 2), 6))
    assert fits(FIRST, op(Settle(True, "x"), NotSettled(), 2))
    assert fits(FIRST, op(Settle(True, "x"), Settled(), 12))
    assert breaks(FIRST, op(Settle(True, "x"), Settled(), 2))
    assert breaks(FIRST, DONE, op(Settle(True, "x"), Settled(), 4))
    assert breaks(op(Settle(True, "x"), Settled(), 4))


# -- lost answers --------------------------------------------------------------------------------


def test_what_was_never_answered_may_have_happened_or_not():
    lost = op(Complete(1, "x"), None, 2)
    assert fits(FIRST, lost, op(Look(), Done("x"), 4))
    assert fits(FIRST, lost, op(Look(), Busy("a"), 4))
    assert fits(FIRST, lost, op(Look(), Busy("a"), 4), op(Look(), Done("x"), 6))
    assert breaks(FIRST, lost, op(Look(), Done("x"), 4), op(Look(), Busy("a"), 6))


def test_what_was_never_answered_did_not_happen_before_it_was_asked():
    assert breaks(FIRST, op(Look(), Done("x"), 2), op(Complete(1, "x"), None, 4))


def test_what_was_never_answered_happens_at_most_once():
    lost = take("a", None, 0)
    freed = op(Settle(False), Settled(), 20)
    again = take("b", Held(5, 2), 22), op(Release(5), Ended(6), 24)
    assert fits(lost, op(Look(), Busy("a"), 2), freed, *again, op(Look(), Absent(), 26))
    assert breaks(lost, op(Look(), Busy("a"), 2), freed, *again, op(Look(), Busy("a"), 26))


def test_a_try_nobody_heard_of_is_over_when_its_caller_is():
    unheard = op(Complete(1, "x"), None, 2, 5)
    assert fits(FIRST, unheard, op(Look(), Done("x"), 4, 6))
    assert breaks(FIRST, unheard, op(Look(), Busy("a"), 6), op(Look(), Done("x"), 8))


def test_a_heartbeat_that_was_sent_again_and_again_counts_from_the_last():
    lost = op(Renew(1, 10), None, 2, 30)
    assert fits(FIRST, lost, take("b", Busy("a"), 14), take("b", Busy("a"), 26))
    assert breaks(FIRST, lost, take("b", Busy("a"), 14), take("b", Busy("a"), 41))


# -- what is said about it -----------------------------------------------------------------------


def test_a_violation_is_told_with_as_little_as_shows_it():
    noise = [op(Look(), Busy("a"), tick) for tick in (2, 3, 4)]
    later = [take("c", Busy("b"), 8), op(Release(2), Ended(3), 10)]
    verdict = check([FIRST, *noise, take("b", Held(2, 1), 6), *later])
    assert isinstance(verdict, Violation)
    assert [one.client for one in verdict.witness] == ["a", "b"]
    assert [one.client for one in verdict.culprits] == ["b"]
    assert str(verdict.state) == "held by a with fence 1"


def test_what_was_under_way_when_it_broke_is_shown_without_its_answer():
    verdict = check([FIRST, op(Complete(1, "x"), Ended(3), 2, 30), take("b", Held(2, 1), 4)])
    assert [one.answer for one in verdict.witness] == [Held(1, 1), None, Held(2, 1)]


def test_a_search_that_runs_out_says_so():
    verdict = check([FIRST, take("b", Busy("a"), 2), DONE], budget=1)
    assert isinstance(verdict, Unknown)
    assert "raise the budget" in str(verdict)
