"""Hypothesis walks over the claim's states: whatever happens in whatever order, the promises hold."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Raw

from twiceproof.claims.claim import (
    DONE,
    HELD,
    Busy,
    Claim,
    Done,
    Failed,
    Fault,
    Held,
    InReview,
    LostHold,
    Mismatch,
    Settlement,
    address_of,
    claim_of,
)
from twiceproof.claims.manager import ClaimManager
from twiceproof.claims.results import Packed
from twiceproof.claims.retention import sweep
from twiceproof.claims.states import BeginClaim, ClaimRequest, Lifetime, ParkClaim, claim_for, decide
from twiceproof.errors import Misuse
from twiceproof.operations import block
from twiceproof.prove.clocks import ManualClock
from twiceproof.records import Record
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

AT = address_of("default", "pay", "order:1")
KEEP = 200.0
LIFE = Lifetime(keep=KEEP, keep_result=80.0, keep_failed=50.0)
OWNERS = st.sampled_from(["ann", "bob", "cid"])
PRINTS = st.sampled_from(["1:same", "1:same", "1:same", "1:other"])


class ClaimWalk(RuleBasedStateMachine):
    """One key, several callers, a clock, and a log of what was promised to whom."""

    @initialize()
    def begin(self) -> None:
        self.clock = ManualClock()
        self.store = GroupedStore(MemoryEngine(self.clock), clock=self.clock)
        self.claims = ClaimManager(self.store, clock=self.clock)
        self.holders: list[tuple[Held, Claim]] = []  # everyone who was ever told Held, in order
        self.done_at: float | None = None
        self.answer: bytes | None = None  # what is recorded
        self.fences: list[int] = []
        self.results = 0
        self.before: Record | None = None

    def record(self) -> Record | None:
        return self.store.read(AT).block().record

    # -- events ----------------------------------------------------------------------------------

    @rule(
        owner=OWNERS,
        print_=PRINTS,
        repeat=st.sampled_from(["never", "safe"]),
        retry=st.booleans(),
        stable=st.booleans(),
    )
    def take(self, owner: str, print_: str, repeat: str, retry: bool, stable: bool) -> None:
        ask = ClaimRequest(
            at=AT,
            operation="pay",
            key="order:1",
            owner=owner,
            lease=30.0,
            fingerprint=print_,
            repeat=repeat,
            retry=retry,
            reentrant=stable,
        )
        before, now = self.record(), self.clock.now()
        move = decide(ask, before, now)
        if isinstance(move, BeginClaim | ParkClaim):
            assert move.write.draw, "every transition draws"
        outcome = block(self.claims.take(ask))
        if isinstance(outcome, Held):
            self._check_may_begin(ask, before, now)
            self._won(outcome, claim_for(ask, outcome.attempt))
        elif isinstance(outcome, Done):
            assert self.answer is not None
            assert bytes(outcome.result) in (self.answer, b"")
        elif isinstance(outcome, Mismatch):
            assert before is not None and claim_of(before).fingerprint != print_
        elif isinstance(outcome, Busy):
            assert before is not None and before.lease_until is not None and before.lease_until > now
        else:
            assert isinstance(outcome, Failed | InReview)

    def _check_may_begin(self, ask: ClaimRequest, before: Record | None, now: float) -> None:
        if before is None or self._may_be_forgotten(before, now):
            return
        assert claim_of(before).fingerprint == ask.fingerprint, "another payload got in"
        assert before.state != DONE, "done, and run again before its keep ended"
        if before.state == HELD:
            itself = ask.reentrant and claim_of(before).owner == ask.owner
            lapsed = before.lease_until is None or before.lease_until <= now
            assert itself or (lapsed and ask.repeat == "safe"), "overran a holder"

    def _may_be_forgotten(self, record: Record, now: float) -> bool:
        """A failure by what is on record; what is done by the model's own word."""
        if record.state == DONE:
            return self.done_at is not None and self.done_at + KEEP <= now
        return record.queue == "claims.expire" and record.due_at is not None and record.due_at <= now

    def _won(self, held: Held, claim: Claim) -> None:
        assert all(held.fence > fence for fence in self.fences), "a fence came twice, or went back"
        self.fences.append(held.fence)
        self.holders.append((held, claim))
        self.answer = self.done_at = None

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), word=st.sampled_from(["renew", "complete", "fail", "retryable", "park", "release"]))
    def say(self, data: st.DataObject, word: str) -> None:
        """Anyone who ever held it says something, late or not."""
        which = data.draw(st.integers(0, len(self.holders) - 1))
        held, claim = self.holders[which]
        now_held = self.record()
        rightful = now_held is not None and now_held.state == HELD and now_held.fence == held.fence
        answer = block(self._word(word, held, claim))
        assert isinstance(answer, LostHold) is not rightful, "only the holder's word counts"
        if rightful and word == "complete":
            self.answer, self.done_at = b"%d" % self.results, self.clock.now()

    def _word(self, word: str, held: Held, claim: Claim) -> Any:
        self.results += 1
        match word:
            case "renew":
                return self.claims.renew(held)
            case "complete":
                return self.claims.complete(held, claim, Packed(inline=Raw(b"%d" % self.results)), LIFE)
            case "park":
                return self.claims.park(held, claim, Fault("TimeoutError"), "who knows")
            case "release":
                return self.claims.release(held)
        return self.claims.fail(held, claim, Fault("Error", retryable=word == "retryable"), LIFE)

    @rule(verdict=st.sampled_from(["happened", "did-not-happen", "abandon"]))
    def settle(self, verdict: str) -> None:
        before, now = self.record(), self.clock.now()
        live = before is not None and before.state == HELD and (before.lease_until or 0) > now
        word = Settlement(verdict, "eve", now)
        try:
            block(self.claims.settle(AT, word, result=Raw(b'"settled"'), life=LIFE))
        except Misuse:
            assert before is None or before.state == DONE or live
            return
        assert before is not None and before.state != DONE and not live
        if verdict == "happened":
            self.answer, self.done_at = b'"settled"', now

    @rule(seconds=st.sampled_from([1.0, 29.0, 31.0, 60.0, 120.0, 250.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def sweep(self) -> None:
        before, now = self.record(), self.clock.now()
        block(sweep(self.store))
        if before is not None and self.record() is None:
            assert self._may_be_forgotten(before, now)
            self.answer = self.done_at = None

    # -- promises --------------------------------------------------------------------------------

    @invariant()
    def one_winner_at_a_time(self) -> None:
        record = self.record()
        owners = [held for held, _ in self.holders if record and record.state == HELD and record.fence == held.fence]
        assert len(owners) <= 1

    @invariant()
    def a_recorded_result_never_changes(self) -> None:
        record = self.record()
        if record is not None and record.state == DONE:
            assert bytes(claim_of(record).result) in (self.answer, b"")

    @invariant()
    def a_done_claim_stays_done_until_its_keep_ends(self) -> None:
        if self.done_at is not None and self.clock.now() < self.done_at + KEEP:
            record = self.record()
            assert record is not None and record.state == DONE

    @invariant()
    def a_fence_of_the_record_only_grows(self) -> None:
        record = self.record()
        if record is not None and self.before is not None:
            assert record.fence >= self.before.fence
            changed = (record.state, record.lease_until is None) != (self.before.state, self.before.lease_until is None)
            assert record.fence > self.before.fence or not changed, "a transition without a new fence"
        self.before = record or self.before


ClaimWalk.TestCase.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestClaimWalk = ClaimWalk.TestCase
