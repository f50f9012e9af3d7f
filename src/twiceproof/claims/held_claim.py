"""A claim held by this process, and the heartbeat that renews it."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from contextvars import Context, ContextVar, Token, copy_context
from typing import TYPE_CHECKING

from ..clock import Clock, system_clock
from ..operations import Operation, block
from ..stores.base import Store
from ..threads import at_fork
from .claim import CLAIM, Held, LostHold
from .run_ids import shown_run
from .states import ClaimRequest

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["INHERITED", "Heartbeat", "HeldClaim", "enclosing_claim", "enter_claim", "exit_claim"]


# In a forked child: it is the parent's, who is still at work. What the child says about it would be taken for the end.
INHERITED = LostHold("held", "")


class HeldClaim:
    """A `Held` that heartbeats keep up to date. `lost` is set when the store says it is no longer ours."""

    __slots__ = ("active", "ask", "beat_at", "beating", "context", "ending", "held", "lost", "renew", "store", "token")

    def __init__(self, ask: ClaimRequest, held: Held) -> None:
        self.ask = ask
        self.held = held
        self.lost: LostHold | None = None
        self.active = True
        self.beat_at = 0.0
        self.beating = False
        self.ending = False  # its last write is under way: what becomes of the claim, that write's answer tells
        self.context: Context | None = None  # of whoever holds it: what is logged about it elsewhere is part of that
        self.renew: Callable[[Held], Operation[Held | LostHold]] | None = None  # None: as claims are renewed
        self.store: Store | None = None
        self.token: Token[tuple[HeldClaim, ...]] | None = None


_inside: ContextVar[tuple[HeldClaim, ...]] = ContextVar("twiceproof_inside", default=())


def enter_claim(hold: HeldClaim, store: Store) -> None:
    """From now on, a call for the same key from inside the work is part of it, not a duplicate."""
    hold.store = store
    hold.token = _inside.set((*_inside.get(), hold))


def exit_claim(hold: HeldClaim) -> None:
    # A task left behind keeps a copy of this context: what it holds on to must not open the door later.
    hold.active = False
    if hold.token is None:
        return
    try:
        _inside.reset(hold.token)
    except ValueError:  # left in another context than entered: a generator closed elsewhere, a pool's other thread
        _inside.set(tuple(other for other in _inside.get() if other is not hold))
    hold.token = None


def enclosing_claim(space: str, store: Store) -> HeldClaim | None:
    """The hold on this space that the caller is inside of, if any. Another store has claims of its own."""
    for hold in _inside.get():
        if hold.active and hold.ask.at.space == space and hold.store is store:
            return hold
    return None


log = logging.getLogger("twiceproof")

BEATS_PER_LEASE = 3  # two may be missed before the lease lapses
LONGEST_TICK = 5.0
HELPERS = 8
GRACE = 1.0  # for beats under way when we are stopped: the commit of one is the store's to wait for


class Heartbeat:
    """Renews every claim that is held here, when a third of its lease has gone by."""

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
        self._reset()
        at_fork(self, in_child=Heartbeat._forget_parents)

    def _reset(self) -> None:
        self._holds: dict[int, HeldClaim] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._tick = LONGEST_TICK
        self._helpers: ThreadPoolExecutor | None = None
        self._beats: list[Future[None]] = []

    def _forget_parents(self) -> None:
        """In a forked child: what is held is the parent's, with its thread to renew it."""
        for hold in self._holds.values():
            hold.lost = INHERITED
        self._reset()

    def keep(self, hold: HeldClaim) -> None:
        """From now on, until it is dropped."""
        pace = hold.held.lease / BEATS_PER_LEASE
        hold.beat_at = self._clock.monotonic() + pace
        hold.context = copy_context()
        if self._thread is None or pace / 2 < self._tick:
            self._start(pace)
        self._holds[id(hold)] = hold

    def drop(self, hold: HeldClaim) -> None:
        self._holds.pop(id(hold), None)
        hold.context = None  # it may know the hold in turn

    def _start(self, pace: float) -> None:
        with self._changed:
            self._tick = min(self._tick, pace / 2)
            if self._thread is None and not self._stopped:
                thread = threading.Thread(
                    target=_run, args=(weakref.ref(self), self._changed), name="twiceproof-heartbeat", daemon=True
                )
                thread.start()
                self._thread = thread  # not before: one that could not be started would be relied on for ever
            self._changed.notify()

    def _round(self) -> None:
        try:
            self._send_out(self._due())
        except Exception as error:  # noqa: BLE001 - if this thread ends, every claim held here lapses
            log.warning("the heartbeats failed, will try again: %s", error)
        self._do_chore()

    def _send_out(self, holds: list[HeldClaim]) -> None:
        """Each by a helper: one claim that cannot be renewed must not starve the others."""
        if not holds:
            return
        self._beats = [beat for beat in self._beats if not beat.done()]
        for hold in holds:
            hold.beating = True
            try:
                self._helpers = self._helpers or _make_helpers()
                self._beats.append(self._helpers.submit(self._try_beat, hold))
            except Exception:  # noqa: BLE001 - no thread to be had, or the main one has ended: one after the other
                self._try_beat(hold)

    def beat(self) -> None:
        """Renew what is due, here and now."""
        for hold in self._due():
            self._try_beat(hold)

    def _due(self) -> list[HeldClaim]:
        now = self._clock.monotonic()
        holds = list(self._holds.values())
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
        elif id(hold) in self._holds and not hold.ending:  # otherwise the work's own last word moved the fence
            hold.lost = answer
            _warn(hold, "lost the claim %s: it is now %s", answer.state or "gone")

    def _do_chore(self) -> None:
        if self._chore is not None:
            try:
                self._chore()
            except Exception as error:  # noqa: BLE001 - if this thread ends, every claim held here lapses
                log.warning("housekeeping failed, will try again: %s", error)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._helpers is not None:
            self._helpers.shutdown(wait=False, cancel_futures=True)
            self._helpers.shutdown(wait=_are_over(self._beats))


def _run(reference: weakref.ref[Heartbeat], changed: threading.Condition) -> None:
    """Knows whom it beats for only while it does: an app that nobody closed would live for ever."""
    while _pause(reference, changed):
        heartbeat = reference()
        if heartbeat is not None:
            heartbeat._round()
        del heartbeat


def _pause(reference: weakref.ref[Heartbeat], changed: threading.Condition) -> bool:
    """False: stopped, or gone. Looked at under the lock, or a stop just before the wait would be slept through."""
    with changed:
        tick = _tick_of(reference)
        if tick is not None:
            changed.wait(tick)
        return _tick_of(reference) is not None


def _tick_of(reference: weakref.ref[Heartbeat]) -> float | None:
    heartbeat = reference()
    return None if heartbeat is None or heartbeat._stopped else heartbeat._tick


def _warn(hold: HeldClaim, message: str, what: object) -> None:
    """From the context of its holder: on this thread nobody would know which event the line belongs to."""
    ask = hold.ask
    about = {"run": ask.run if ask.at.kind == CLAIM else shown_run(ask.run), "flow": ask.operation, "key": ask.key}
    (hold.context or copy_context()).run(log.warning, message, ask.at.space, what, extra=about)


def _make_helpers() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # not needed before a claim is held for long

    return ThreadPoolExecutor(HELPERS, thread_name_prefix="twiceproof-heartbeat")


def _are_over(beats: list[Future[None]]) -> bool:
    from concurrent.futures import wait

    return not wait(beats, GRACE).not_done
