"""The sequential model of one key: what each act would be answered, and what the claim would be afterwards.

Written from docs/states.md, not from the code that it judges. Time is an interval: an act happens somewhere between
two moments, so a lease ends no earlier than the one and no later than the other. Whatever fits somewhere is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct, structs

from .act import Act, Complete, Fail, Look, Park, Release, Renew, Settle, Take
from .answer import (
    Absent,
    Answer,
    Busy,
    Done,
    Ended,
    Failed,
    Held,
    InReview,
    Mismatch,
    NotSettled,
    Refused,
    Renewed,
    Settled,
)
from .operation import Operation

__all__ = ["FREE", "NEVER", "Model", "State", "When"]

NEVER: Final = 2**62


class State(Struct, frozen=True, gc=False):
    """free | held | done | failed | review. The highest fence outlives whatever it was drawn for."""

    phase: str = ""
    owner: str = ""
    fence: int = 0  # what a holder must show; 0: nobody was told
    attempt: int = 0
    fingerprint: str = ""
    value: str = ""  # the result, or the fault
    retryable: bool = False
    earliest: int = NEVER  # when the lease lapses, or the key may be forgotten: not before this
    latest: int = NEVER  # … and not after this
    highest: int = 0

    def __str__(self) -> str:
        if not self.phase:
            return "free"
        fence = f" with fence {self.fence}" if self.phase == "held" and self.fence else ""
        return f"{self.phase} by {self.owner}{fence}" + (f": {self.value}" if self.value else "")


FREE: Final = State()


class When(Struct, frozen=True, gc=False):
    """An act happens somewhere in here; what it writes may bear an earlier time, but none before it was asked for.

    A store stamps the time when it has the lock; others see what it wrote when it is committed, which may take long.
    Until `sent` the act may be sent again, if no answer came to its caller.
    """

    earliest: int
    latest: int
    asked: int
    sent: int = 0


Move = tuple[Answer, State]


class Model(Struct, frozen=True):
    """`slack`: how far the clocks of the store and of the history may drift apart within a lease, in ticks."""

    slack: int = 0

    def after(self, state: State, operation: Operation, when: When) -> list[State]:
        """What the claim may be after this operation; nothing, if its answer is impossible here."""
        drawn = operation.drawn
        if drawn and drawn <= state.highest:
            return []  # a fence that was given out before
        moves = self.moves(state, operation.act, when, drawn)
        if operation.answer is None:
            return [after for _, after in moves if after != state]
        return [after for answer, after in moves if answer == operation.answer]

    def moves(self, state: State, act: Act, when: When, drawn: int) -> Iterator[Move]:
        """Every answer that may be given, with what follows from it."""
        if isinstance(act, Take):
            for found in self._seen(state, when):
                yield from self._take(found, act, when, drawn)
        elif isinstance(act, Look):
            for found in self._seen(state, when):
                yield _look(found), state
        elif isinstance(act, Settle):
            for found in self._seen(state, when):
                yield from self._settle(found, act, when)
        else:
            for found in self._seen(state, when):
                yield self._hold(found, act, when, drawn)

    def _seen(self, state: State, when: When) -> Iterator[State]:
        """What is finished may be forgotten once its time has come, and is still there until it is swept."""
        yield state
        if state.phase in ("done", "failed") and when.latest >= state.earliest:
            yield State(highest=state.highest)

    def _until(self, when: When, span: int | None) -> tuple[int, int]:
        if span is None:
            return NEVER, NEVER
        return when.asked + span - self.slack, when.latest + span + self.slack

    def _take(self, state: State, act: Take, when: When, drawn: int) -> Iterator[Move]:
        if not state.phase:
            yield self._held(state, act, when, drawn, 1)
        elif act.fingerprint and state.fingerprint and act.fingerprint != state.fingerprint:
            yield Mismatch(state.fingerprint), state
        elif state.phase == "held":
            if when.earliest < state.latest:
                yield Busy(state.owner), state
            if when.latest >= state.earliest:
                yield self._lapsed(state, act, when, drawn)
        elif state.phase == "failed" and state.retryable:
            yield self._held(state, act, when, drawn, state.attempt + 1)
        else:
            yield _look(state), state

    def _lapsed(self, state: State, act: Take, when: When, drawn: int) -> Move:
        """Whether its work was done is unknown."""
        if act.repeat == "safe":
            return self._held(state, act, when, drawn, state.attempt + 1)
        return InReview(), structs.replace(state, phase="review", fence=0, earliest=NEVER, latest=NEVER)

    def _held(self, state: State, act: Take, when: When, drawn: int, attempt: int) -> Move:
        earliest, latest = self._until(when, act.lease)
        after = State(
            "held", act.owner, drawn, attempt, act.fingerprint,
            earliest=earliest, latest=latest, highest=max(drawn, state.highest),
        )  # fmt: skip
        return Held(drawn, attempt), after

    def _hold(self, state: State, act: Renew | Complete | Fail | Park | Release, when: When, drawn: int) -> Move:
        if state.phase != "held" or state.fence != act.fence:
            return Refused(state.phase, state.owner), state
        if isinstance(act, Renew):
            earliest, latest = self._until(when, act.lease)
            latest = max(latest, min(NEVER, when.sent + act.lease + self.slack))
            return Renewed(), structs.replace(state, earliest=earliest, latest=latest)
        return Ended(drawn), self._end(state, act, when, max(drawn, state.highest))

    def _end(self, state: State, act: Complete | Fail | Park | Release, when: When, highest: int) -> State:
        if isinstance(act, Release):
            return State(highest=highest)
        phase, value, retryable, keep = _ending(act)
        earliest, latest = self._until(when, keep)
        return structs.replace(
            state, phase=phase, fence=0, value=value, retryable=retryable,
            earliest=earliest, latest=latest, highest=highest,
        )  # fmt: skip

    def _settle(self, state: State, act: Settle, when: When) -> Iterator[Move]:
        if state.phase in ("", "done"):
            yield NotSettled(), state
            return
        if state.phase == "held" and when.earliest < state.latest:
            yield NotSettled(), state
        if state.phase != "held" or when.latest >= state.earliest:
            earliest, latest = self._until(when, act.keep)
            phase, value = ("done", act.result) if act.happened else ("failed", "Settled")
            yield Settled(), structs.replace(
                state, phase=phase, fence=0, value=value, retryable=not act.happened, earliest=earliest, latest=latest
            )  # fmt: skip


def _ending(act: Complete | Fail | Park) -> tuple[str, str, bool, int | None]:
    if isinstance(act, Complete):
        return "done", act.result, False, act.keep
    if isinstance(act, Fail):
        return "failed", act.fault, act.retryable, act.keep
    return "review", "", False, None


def _look(state: State) -> Answer:
    if state.phase == "held":
        return Busy(state.owner)
    if state.phase == "done":
        return Done(state.value)
    if state.phase == "failed":
        return Failed(state.value)
    return InReview() if state.phase else Absent()
