"""A caller that takes, holds, ends, reads and settles a few keys at random, and records the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from msgspec import Raw, Struct

from tests.faults.histories.call import Call
from tests.faults.histories.tries import Tries
from tests.faults.linearizability import Operation
from tests.faults.linearizability import model as answer
from tests.faults.linearizability.model import Act, Answer, Complete, Fail, Look, Park, Release, Renew, Settle, Take
from twiceproof.claims.claim import (
    Busy,
    Done,
    Failed,
    Fault,
    Held,
    InReview,
    LostHold,
    Mismatch,
    Settlement,
    address_of,
)
from twiceproof.claims.manager import ClaimManager
from twiceproof.claims.results import Packed
from twiceproof.claims.retention import sweep
from twiceproof.claims.states import ClaimRequest, Lifetime, claim_for
from twiceproof.errors import Misuse
from twiceproof.operations import Operation as Steps

OPERATION = "linear"


class Pace(Struct, frozen=True):
    """Durations in ticks; `second`: how many ticks a second has."""

    second: int
    lease: tuple[int, int]
    keep: tuple[int, int]


class Grip(Struct, frozen=True):
    """What a holder knows, perhaps long after it lost its claim."""

    key: str
    ask: ClaimRequest
    held: Held


class Claimant:
    """`history` is shared by all of them."""

    def __init__(
        self,
        name: str,
        claims: ClaimManager,
        tries: Tries,
        keys: Sequence[str],
        pace: Pace,
        rng: Random,
        history: list[Operation],
    ) -> None:
        self.name = name
        self.claims = claims
        self.tries = tries
        self.keys = keys
        self.pace = pace
        self.rng = rng
        self.history = history
        self.grips: list[Grip] = []
        self.count = 0

    # -- what to do next -------------------------------------------------------------------------

    def begin(self, tick: int) -> Call:
        self.count += 1
        self.grip: Grip | None = None
        self.act: Act | None = None
        if self.grips and self.rng.random() < 0.6:
            self.grip = self.grips[-1] if self.rng.random() < 0.8 else self.rng.choice(self.grips)
            self.key, self.act = self.grip.key, self._holders_act(self.grip.held.fence)
        else:
            self.key, self.act = self.rng.choice(self.keys), self._anybodys_act()
        if self.act is None:
            return Call(sweep(self.claims.store), tick, self.tries)
        return Call(self.perform(self.key, self.act), tick, self.tries)

    def _anybodys_act(self) -> Act | None:
        draw = self.rng.random()
        if draw < 0.65:
            repeat = "safe" if self.rng.random() < 0.6 else "never"
            fingerprint = "other" if self.rng.random() < 0.04 else "same"
            return Take(f"{self.name}.{self.count}", self.rng.randint(*self.pace.lease), repeat, fingerprint)
        if draw < 0.85:
            return Look()
        if draw < 0.98:
            return Settle(self.rng.random() < 0.3, self._result(), self._keep())
        return None

    def _holders_act(self, fence: int) -> Act:
        draw = self.rng.random()
        if draw < 0.3:
            return Renew(fence, self.rng.randint(*self.pace.lease))
        if draw < 0.5:
            return Complete(fence, self._result(), self._keep())
        if draw < 0.75:
            return Fail(fence, f"Error{self.count}", self.rng.random() < 0.5, self._keep())
        return Park(fence) if draw < 0.8 else Release(fence)

    def _result(self) -> str:
        return f'"{self.name} {self.count}"'

    def _keep(self) -> int | None:
        return None if self.rng.random() < 0.3 else self.rng.randint(*self.pace.keep)

    # -- doing it with the real core -------------------------------------------------------------

    def perform(self, key: str, act: Act) -> Steps[Answer]:
        at = address_of("default", OPERATION, key)
        if isinstance(act, Take):
            seconds = act.lease / self.pace.second
            ask = ClaimRequest(
                at=at,
                operation=OPERATION,
                key=key,
                owner=act.owner,
                lease=seconds,
                fingerprint=act.fingerprint,
                repeat=act.repeat,
            )
            outcome = yield from self.claims.take(ask)
            if isinstance(outcome, Held):
                self.grips.append(Grip(key, ask, outcome))
            return told(outcome)
        if isinstance(act, Look):
            return told((yield from self.claims.look(at)))
        if isinstance(act, Settle):
            return (yield from self._settle(at, act))
        return (yield from self._as_holder(self.grip, act))

    def _as_holder(self, grip: Grip, act: Act) -> Steps[Answer]:
        claims, held, claim = self.claims, grip.held, claim_for(grip.ask, grip.held.attempt)
        if isinstance(act, Renew):
            kept = yield from claims.renew(held, act.lease / self.pace.second)
            return told(kept) if isinstance(kept, LostHold) else answer.Renewed()
        if self.rng.random() < 0.7:  # the others continue although they have lost their claims
            self.grips.remove(grip)
        if isinstance(act, Complete):
            done = yield from claims.complete(held, claim, Packed(Raw(act.result.encode())), self._life(act.keep))
        elif isinstance(act, Fail):
            fault = Fault(act.fault, retryable=act.retryable)
            done = yield from claims.fail(held, claim, fault, self._life(act.keep))
        elif isinstance(act, Park):
            done = yield from claims.park(held, claim, Fault("TimeoutError"), "no answer came")
        else:
            done = yield from claims.release(held)
        return told(done) if isinstance(done, LostHold) else answer.Ended(done.fence)

    def _settle(self, at: Any, act: Settle) -> Steps[Answer]:
        word = Settlement("happened" if act.happened else "did-not-happen", self.name, 0.0)
        result = Raw(act.result.encode()) if act.happened else Raw()
        try:
            yield from self.claims.settle(at, word, result=result, life=self._life(act.keep))
        except Misuse:
            return answer.NotSettled()
        return answer.Settled()

    def _life(self, keep: int | None) -> Lifetime:
        seconds = None if keep is None else keep / self.pace.second
        return Lifetime(keep=seconds, keep_failed=seconds)

    # -- what came of it -------------------------------------------------------------------------

    def end(self, call: Call, tick: int) -> None:
        """End with an answer, or without one."""
        if self.act is not None:
            self.history.extend(self._entries(call, tick))

    def die(self, call: Call) -> None:
        """End for ever: the caller never learns the outcome."""
        if self.act is not None:
            self.history.extend([self._unanswered(call, None)] * call.perhaps)

    def _entries(self, call: Call, tick: int) -> Iterator[Operation]:
        if call.error is not None:
            yield from [self._unanswered(call, None)] * call.perhaps
            return
        yield from [self._unanswered(call, tick)] * call.extra
        yield Operation(self.name, self.key, self.act, call.value, call.invoked, tick)

    def _unanswered(self, call: Call, before: int | None) -> Operation:
        return Operation(self.name, self.key, self.act, None, call.invoked, before)


TOLD: dict[type, Callable[[Any], Answer]] = {
    type(None): lambda _: answer.Absent(),
    Held: lambda held: answer.Held(held.fence, held.attempt),
    Busy: lambda busy: answer.Busy(busy.owner),
    Done: lambda done: answer.Done(bytes(done.result).decode()),
    Failed: lambda failed: answer.Failed(failed.fault.type),
    InReview: lambda _: answer.InReview(),
    Mismatch: lambda mismatch: answer.Mismatch(mismatch.found),
    LostHold: lambda lost: answer.Refused(lost.state, lost.owner),
}


def told(outcome: Any) -> Answer:
    """Return an outcome of the core in the form of a history."""
    return TOLD[type(outcome)](outcome)
