"""The sequential model of one key: the answer to each operation, and the claim's state afterwards.

Written from docs/states.md, not from the code under test. Time is an interval: an operation takes effect somewhere
between two moments, so a lease ends no earlier than the one and no later than the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct, structs

__all__ = [
    "FREE",
    "NEVER",
    "Absent",
    "Act",
    "Answer",
    "Busy",
    "Complete",
    "Done",
    "Ended",
    "Fail",
    "Failed",
    "Held",
    "InReview",
    "Look",
    "Mismatch",
    "Model",
    "NotSettled",
    "Operation",
    "Park",
    "Refused",
    "Release",
    "Renew",
    "Renewed",
    "Settle",
    "Settled",
    "State",
    "Take",
    "When",
]


class Take(Struct, frozen=True, tag="take", gc=False):
    owner: str
    lease: int
    repeat: str = "never"
    fingerprint: str = ""


class Renew(Struct, frozen=True, tag="renew", gc=False):
    fence: int
    lease: int


class Complete(Struct, frozen=True, tag="complete", gc=False):
    fence: int
    result: str
    keep: int | None = None  # None: for ever


class Fail(Struct, frozen=True, tag="fail", gc=False):
    fence: int
    fault: str
    retryable: bool = False
    keep: int | None = None


class Park(Struct, frozen=True, tag="park", gc=False):
    fence: int


class Release(Struct, frozen=True, tag="release", gc=False):
    fence: int


class Settle(Struct, frozen=True, tag="settle", gc=False):
    """A person's decision: it happened, with this result, or it did not."""

    happened: bool
    result: str = ""
    keep: int | None = None


class Look(Struct, frozen=True, tag="look", gc=False):
    pass


Act = Take | Renew | Complete | Fail | Park | Release | Settle | Look


class Held(Struct, frozen=True, tag="held", gc=False):
    fence: int
    attempt: int


class Busy(Struct, frozen=True, tag="busy", gc=False):
    owner: str


class Done(Struct, frozen=True, tag="done", gc=False):
    result: str


class Failed(Struct, frozen=True, tag="failed", gc=False):
    fault: str


class InReview(Struct, frozen=True, tag="in review", gc=False):
    pass


class Mismatch(Struct, frozen=True, tag="mismatch", gc=False):
    found: str


class Absent(Struct, frozen=True, tag="absent", gc=False):
    """A look found nothing."""


class Renewed(Struct, frozen=True, tag="renewed", gc=False):
    pass


class Ended(Struct, frozen=True, tag="ended", gc=False):
    """A holder's last write landed, and drew this fence."""

    fence: int


class Refused(Struct, frozen=True, tag="refused", gc=False):
    """The claim was no longer the holder's: its state and owner then. Both empty if it was gone."""

    state: str
    owner: str


class Settled(Struct, frozen=True, tag="settled", gc=False):
    pass


class NotSettled(Struct, frozen=True, tag="not settled", gc=False):
    """There was nothing to settle: the claim was gone, done, or held."""


Answer = Held | Busy | Done | Failed | InReview | Mismatch | Absent | Renewed | Ended | Refused | Settled | NotSettled


CHANGING = (Held, Renewed, Ended, InReview, Settled)  # a take that says "in review" may have parked the claim


class Operation(Struct, frozen=True, gc=False):
    """From `invoked` to `returned`, in ticks of one clock that all clients share.

    Without an answer it may have happened at any time after its invocation, or never; if `returned` is given, at
    any time before that, or never.
    """

    client: str
    key: str
    act: Act
    answer: Answer | None
    invoked: int
    returned: int | None = None

    @property
    def kind(self) -> str:
        return str(self.act.__struct_config__.tag)

    @property
    def drawn(self) -> int:
        """Return the fence in the answer; 0: none, or not known."""
        return self.answer.fence if isinstance(self.answer, Held | Ended) else 0

    @property
    def changes(self) -> bool:
        """Whether it may have changed the claim. A read can be left out of a history."""
        return not isinstance(self.act, Look) and (self.answer is None or isinstance(self.answer, CHANGING))

    def cut_at(self, tick: int) -> Operation | None:
        """Return the operation as it was known at that moment. None: it had not begun."""
        if self.invoked > tick:
            return None
        if self.returned is None or self.returned <= tick:
            return self
        return structs.replace(self, answer=None, returned=self.returned if self.answer is None else None)

    def __str__(self) -> str:
        said = "no answer" if self.answer is None else _words(self.answer)
        return f"{self.client} {_words(self.act)} → {said}"


def _words(what: Act | Answer) -> str:
    fields = ((name, getattr(what, name)) for name in what.__struct_fields__)
    told = (f"{name}={value}" for name, value in fields if value not in ("", None))
    return " ".join([str(what.__struct_config__.tag), *told])


NEVER: Final = 2**62


class State(Struct, frozen=True, gc=False):
    """free | held | done | failed | review. The highest fence is kept even if its record is removed."""

    phase: str = ""
    owner: str = ""
    fence: int = 0  # the fence of the holder; 0: not told to anyone
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
    """An operation takes effect within this interval; it may write an earlier time, but none before its request.

    A store stamps the time when it has the lock; others see the write when it is committed, which may take long. Until
    `sent` the request may be sent again, if its caller got no answer.
    """

    earliest: int
    latest: int
    asked: int
    sent: int = 0


Move = tuple[Answer, State]


class Model(Struct, frozen=True):
    """`slack`: how far the clocks of the store and of the history may drift apart within a lease, in ticks.
    `outlives`: whether fences go on growing after a record was removed."""

    slack: int = 0
    outlives: bool = True

    def after(self, state: State, operation: Operation, when: When) -> list[State]:
        """Return the possible states after this operation; none if its answer is impossible here."""
        drawn = operation.drawn
        if drawn and drawn <= state.highest:
            return []  # a fence that was given out before
        moves = self.moves(state, operation.act, when, drawn)
        if operation.answer is None:
            return [after for _, after in moves if after != state]
        return [after for answer, after in moves if answer == operation.answer]

    def moves(self, state: State, act: Act, when: When, drawn: int) -> Iterator[Move]:
        """Return every possible answer, with the state that follows."""
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
        """A finished claim may be forgotten after its time, and exists until it is swept."""
        yield state
        if state.phase in ("done", "failed") and when.latest >= state.earliest:
            yield self._removed(state.highest)

    def _removed(self, highest: int) -> State:
        return State(highest=highest if self.outlives else 0)

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
        """The state of a lapsed claim: whether its work was done is unknown."""
        if act.repeat == "safe":
            return self._held(state, act, when, drawn, state.attempt + 1)
        return InReview(), structs.replace(state, phase="review", fence=0, earliest=NEVER, latest=NEVER)

    def _held(self, state: State, act: Take, when: When, drawn: int, attempt: int) -> Move:
        earliest, latest = self._until(when, act.lease)
        after = State(
            "held",
            act.owner,
            drawn,
            attempt,
            act.fingerprint,
            earliest=earliest,
            latest=latest,
            highest=max(drawn, state.highest),
        )
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
            return self._removed(highest)
        phase, value, retryable, keep = _ending(act)
        earliest, latest = self._until(when, keep)
        return structs.replace(
            state,
            phase=phase,
            fence=0,
            value=value,
            retryable=retryable,
            earliest=earliest,
            latest=latest,
            highest=highest,
        )

    def _settle(self, state: State, act: Settle, when: When) -> Iterator[Move]:
        if state.phase in ("", "done"):
            yield NotSettled(), state
            return
        if state.phase == "held" and when.earliest < state.latest:
            yield NotSettled(), state
        if state.phase != "held" or when.latest >= state.earliest:
            earliest, latest = self._until(when, act.keep)
            phase, value = ("done", act.result) if act.happened else ("failed", "Settled")
            yield (
                Settled(),
                structs.replace(
                    state,
                    phase=phase,
                    fence=0,
                    value=value,
                    retryable=not act.happened,
                    earliest=earliest,
                    latest=latest,
                ),
            )


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
