"""A claim around work: `ClaimScope` takes it and records how the work ended, `Heartbeat` renews its lease."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable
from contextvars import Context, ContextVar, Token, copy_context
from typing import TYPE_CHECKING

from msgspec import structs

from ..clock import Clock, system_clock
from ..operations import Operation, block
from ..records import Written
from ..stores.base import Store
from ..threads import BackgroundThread, ThreadRun, at_fork
from .claim import CLAIM, Busy, Fault, Held, LostHold, TakeOutcome, shown_run
from .states import ClaimRequest, Lifetime, claim_for

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from concurrent.futures import Future, ThreadPoolExecutor

    from .manager import ClaimManager
    from .results import Packed

__all__ = [
    "FIRST_PAUSE",
    "INHERITED",
    "LONGEST_PAUSE",
    "ClaimScope",
    "EnterOutcome",
    "Heartbeat",
    "HeldClaim",
    "enclosing_claim",
]


# In a forked child: the claim is the parent's, which is still at work. What the child wrote would end it.
INHERITED = LostHold("held", "")


class HeldClaim:
    """A held claim that heartbeats keep up to date. `lost` is set when the store says that it was taken over."""

    __slots__ = (
        "active",
        "beat_at",
        "beating",
        "context",
        "ending",
        "held",
        "loop",
        "lost",
        "renew",
        "request",
        "store",
        "token",
    )

    def __init__(self, request: ClaimRequest, held: Held) -> None:
        self.request = request
        self.held = held
        self.lost: LostHold | None = None
        self.active = True
        self.beat_at = 0.0
        self.beating = False
        self.ending = False  # its last write is under way, and its answer decides about the claim
        self.loop: AbstractEventLoop | None = None  # that its work is on, if it is awaited
        self.context: Context | None = None  # of the holder: what other threads log about the claim belongs to it
        self.renew: Callable[[Held], Operation[Held | LostHold]] | None = None  # None: as claims are renewed
        self.store: Store | None = None
        self.token: Token[tuple[HeldClaim, ...]] | None = None


_enclosing_claims: ContextVar[tuple[HeldClaim, ...]] = ContextVar("twiceproof_inside", default=())


def enclosing_claim(space: str, store: Store) -> HeldClaim | None:
    """Return the claim on this space that the caller runs under, if any. Another store has claims of its own."""
    for hold in _enclosing_claims.get():
        if hold.active and hold.request.at.space == space and hold.store is store:
            return hold
    return None


FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5  # between two attempts to take a claim that another process holds
EnterOutcome = TakeOutcome | LostHold


class ClaimScope:
    """One claim around a piece of work, in this order: `enter`, `begin`, the work, `end`, and one last write.

    The last write is `complete`, `fail`, `park` or `release`. Work that is never ended this way leaves a claim whose
    lease lapses.
    """

    __slots__ = ("_claims", "_heartbeat", "hold", "request")

    hold: HeldClaim  # once `enter` has returned `Held`

    def __init__(self, claims: ClaimManager, heartbeat: Heartbeat, request: ClaimRequest) -> None:
        self._claims = claims
        self._heartbeat = heartbeat
        self.request = request

    @property
    def result_limit(self) -> int:
        """The largest size of a result, in bytes."""
        return self._claims.result_limit

    def enter(self) -> Operation[EnterOutcome]:
        """Take the claim. `Held`: it is ours. `LostHold`: it was, but this process slept through its lease."""
        outcome = yield from self._claims.take(self.request)
        if isinstance(outcome, Held):
            self.hold = HeldClaim(self.request, outcome)
            if self._claims.clock.monotonic() >= outcome.deadline:  # nothing acts past its own deadline
                return (yield from self._renew())
        return outcome

    def _renew(self) -> Operation[Held | LostHold]:
        renewed = yield from self._claims.renew(self.hold.held)
        if isinstance(renewed, Held):
            self.hold.held = renewed
        return renewed

    def wait(
        self, outcome: EnterOutcome, *, seconds: float = math.inf, first_pause: float = FIRST_PAUSE
    ) -> Operation[EnterOutcome]:
        """Enter again and again while another process holds the claim, for at most `seconds`."""
        until, pause = self._claims.clock.monotonic() + seconds, first_pause
        while isinstance(outcome, Busy):
            left = until - self._claims.clock.monotonic()
            if left <= 0:
                break
            yield from self._claims.store.pause(self.request.at.space, min(pause, left, outcome.retry_after + 0.001))
            pause = min(pause * 2, LONGEST_PAUSE)
            outcome = yield from self.enter()
        return outcome

    def begin(self, *, inside: bool = True) -> Operation[None]:
        """Renew the lease from now on. With `inside`, a call for the same key from within the work is part of it."""
        hold = self.hold
        try:
            self._heartbeat.keep(hold)
            if inside:
                hold.store = self._claims.store
                hold.token = _enclosing_claims.set((*_enclosing_claims.get(), hold))
        except BaseException:  # no thread can be started: nothing was done yet, so the claim is given back
            yield from self.release()
            raise

    def end(self) -> None:
        """Stop renewing the lease; the last write follows."""
        hold = self.hold
        self._heartbeat.drop(hold)
        # A task left behind keeps a copy of this context: a claim that it finds there must not count as held later.
        hold.active = False
        if hold.token is None:
            return
        try:
            _enclosing_claims.reset(hold.token)
        except ValueError:  # left in another context than entered: a generator closed elsewhere, a pool's other thread
            _enclosing_claims.set(tuple(other for other in _enclosing_claims.get() if other is not hold))
        hold.token = None

    def complete(self, packed: Packed, life: Lifetime, *, mistyped: bool = False) -> Operation[Written | LostHold]:
        """Record the result. `mistyped`: it does not fit its declared type."""
        claim = claim_for(self.request, self.hold.held.attempt)
        if mistyped:
            claim = structs.replace(claim, mistyped=True)
        return self._claims.complete(self.hold.held, claim, packed, life)

    def fail(self, fault: Fault, life: Lifetime) -> Operation[Written | LostHold]:
        """Record a failure, retryable or not, as the fault says."""
        return self._claims.fail(self.hold.held, claim_for(self.request, self.hold.held.attempt), fault, life)

    def park(self, fault: Fault, reason: str) -> Operation[Written | LostHold]:
        """Record that the outcome is unknown: a person must settle it."""
        return self._claims.park(self.hold.held, claim_for(self.request, self.hold.held.attempt), fault, reason)

    def release(self) -> Operation[Written | LostHold]:
        """Give the key back as if it had never been taken."""
        return self._claims.release(self.hold.held)


log = logging.getLogger("twiceproof")

BEATS_PER_LEASE = 3  # two may be missed before the lease lapses
LONGEST_TICK = 5.0
HELPERS = 8
GRACE = 1.0  # for beats under way when we are stopped: the commit of one is the store's to wait for


class Heartbeat:
    """Renews every claim that is held in this process when a third of its lease has passed."""

    def __init__(
        self,
        renew: Callable[[Held], Operation[Held | LostHold]],
        *,
        clock: Clock = system_clock,
        chore: Callable[[], None] | None = None,
    ) -> None:
        self._renew = renew
        self._clock = clock
        self._chore = chore
        self._thread = BackgroundThread(self, Heartbeat._round, "twiceproof-heartbeat")
        self._reset()
        at_fork(self, in_child=Heartbeat._forget_parents)

    def _reset(self) -> None:
        self._holds: dict[int, HeldClaim] = {}
        self._thread.reset()
        self._stopped = False
        self._tick = LONGEST_TICK
        self._helpers: ThreadPoolExecutor | None = None
        self._beats: list[Future[None]] = []

    def _forget_parents(self) -> None:
        """In a forked child: the held claims are the parent's, which renews them."""
        for hold in self._holds.values():
            hold.lost = INHERITED
        self._reset()

    def keep(self, hold: HeldClaim) -> None:
        """Renew a claim from now on, until `drop`."""
        pace = hold.held.lease / BEATS_PER_LEASE
        hold.beat_at = self._clock.monotonic() + pace
        hold.context, hold.loop = copy_context(), _running_loop()
        if not self._thread.started or pace / 2 < self._tick:
            self._start(pace)
        self._holds[id(hold)] = hold

    def drop(self, hold: HeldClaim) -> None:
        self._holds.pop(id(hold), None)
        hold.context = hold.loop = None  # they may refer to the claim in turn

    def _start(self, pace: float) -> None:
        self._tick = min(self._tick, pace / 2)
        if self._thread.started:
            self._thread.wake()
        else:
            self._thread.start(after=self._tick)

    def _round(self, run: ThreadRun) -> float:
        try:
            self._send_out(self._due())
        except Exception as error:  # noqa: BLE001 - if this thread ends, every claim held here lapses
            log.warning("the heartbeats failed, will try again: %s", error)
        self._do_chore()
        return self._tick

    def _send_out(self, holds: list[HeldClaim]) -> None:
        """Renew each claim in a helper thread: one that cannot be renewed must not starve the others."""
        if not holds:
            return
        self._beats = [beat for beat in self._beats if not beat.done()]
        for hold in holds:
            hold.beating = True
            try:
                self._helpers = self._helpers or _make_helpers()
                self._beats.append(self._helpers.submit(self._try_beat, hold))
            except Exception:  # noqa: BLE001 - no thread can be started: one after the other
                self._try_beat(hold)

    def beat(self) -> None:
        """Renew the claims that are due, on this thread."""
        for hold in self._due():
            self._try_beat(hold)

    def _due(self) -> list[HeldClaim]:
        now = self._clock.monotonic()
        holds = list(self._holds.values())
        for hold in holds:
            if (loop := hold.loop) is not None and loop.is_closed():
                _warn(hold, "%s: %s", "its event loop is closed, so its work cannot go on; its lease lapses")
                self.drop(hold)
        holds = [hold for hold in holds if id(hold) in self._holds]
        return [hold for hold in holds if hold.lost is None and not hold.beating and now >= hold.beat_at]

    def _try_beat(self, hold: HeldClaim) -> None:
        try:
            self._beat_one(hold)
        except Exception as error:  # noqa: BLE001 - it is tried again until the lease is over
            if not self._stopped:
                _warn(hold, "heartbeat of %s failed, will try again: %s", error)
        finally:
            hold.beating = False

    def _beat_one(self, hold: HeldClaim) -> None:
        renew = hold.renew or self._renew
        answer = block(renew(hold.held))
        if isinstance(answer, Held):
            hold.held = answer
            hold.beat_at = self._clock.monotonic() + answer.lease / BEATS_PER_LEASE
        elif id(hold) in self._holds and not hold.ending:  # otherwise the work's own last write moved the fence
            hold.lost = answer
            _warn(hold, "lost the claim %s: it is now %s", answer.state or "gone")

    def _do_chore(self) -> None:
        if self._chore is not None:
            try:
                self._chore()
            except Exception as error:  # noqa: BLE001 - if this thread ends, every claim held here lapses
                log.warning("housekeeping failed, will try again: %s", error)

    def stop(self) -> None:
        self._stopped = True
        self._thread.stop(for_good=True)
        if self._helpers is not None:
            self._helpers.shutdown(wait=False, cancel_futures=True)
            self._helpers.shutdown(wait=_are_over(self._beats))


def _warn(hold: HeldClaim, message: str, what: object) -> None:
    """Log in the context of the holder, so that the line carries the holder's correlation id."""
    request = hold.request
    about = {
        "run": request.run if request.at.kind == CLAIM else shown_run(request.run),
        "flow": request.operation,
        "key": request.key,
    }
    (hold.context or copy_context()).run(log.warning, message, request.at.space, what, extra=about)


def _running_loop() -> AbstractEventLoop | None:
    """The event loop that this thread runs. Work that is awaited ends with it, also if nobody closes its coroutine."""
    if "asyncio" not in sys.modules:  # loading it takes a third of a program's start
        return None
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _make_helpers() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # not needed before a claim is held for long

    return ThreadPoolExecutor(HELPERS, thread_name_prefix="twiceproof-heartbeat")


def _are_over(beats: list[Future[None]]) -> bool:
    from concurrent.futures import wait

    return not wait(beats, GRACE).not_done
