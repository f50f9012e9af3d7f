"""Pure decisions about a step: from its entry in the ledger and its declaration follows what to do.

`on_reached` looks at the entry that was found, `on_error` at an attempt that raised, `on_probe` at what a probe
returned. The table that they implement is in docs/why/steps.md. No I/O, no clock, no random numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, structs

from ...claims.error_classification import CLEAN_VERDICTS, Verdict
from ...effects.base import Absent, Happened, Look, Unknown
from ...effects.repeat import Declared, Retry
from .ledger import RETRY, STARTED, STEP_DONE, STEP_FAILED, Entry, EntryNote

__all__ = [
    "Act",
    "Adopt",
    "Later",
    "NeedsPerson",
    "Probe",
    "Refuse",
    "Replay",
    "StepPlan",
    "on_error",
    "on_probe",
    "on_probe_while_overdue",
    "on_reached",
]


STILL_AT_WORK = "its time is over, and it is still at work: it may be done at any moment"
NO_ANSWER = "no answer came: whether it was done is unknown"
NOT_TOLD = "its error does not tell whether it was done"
KILLED = 3  # starts of a transactional step that are allowed after crashes, whatever its retry policy


class StepPlan(Struct, frozen=True):
    """The part of a step's declaration that decisions depend on."""

    repeat: Declared
    retry: Retry
    timeout: float | None = None
    not_done: tuple[type[BaseException], ...] = ()  # errors that mean that nothing was done

    def after(self, error: str) -> StepPlan:
        """Return the plan with the retry policy for the class of the last error, if that has one of its own."""
        return structs.replace(self, retry=self.retry.policy_of(error)) if error else self


class Replay(Struct, frozen=True, gc=False):
    """The step is done: return its recorded result."""


class Refuse(Struct, frozen=True, gc=False):
    """The step failed for good: raise that again."""


class Act(Struct, frozen=True, gc=False):
    """Attempt the step. `intent`: record its start first."""

    starts: int = 1
    intent: bool = False


class Probe(Struct, frozen=True, gc=False):
    """Ask the destination whether the step happened."""


class Adopt(Struct, frozen=True, gc=False):
    """The step happened: take the receipt as its result."""

    receipt: object


class Later(Struct, frozen=True, gc=False):
    """Wait for so many seconds. `state` is the entry's until then."""

    seconds: float
    state: str


class NeedsPerson(Struct, frozen=True, gc=False):
    """The outcome is unknown: a person must settle it."""

    reason: str


Before = Replay | Refuse | Act | Probe | Later | NeedsPerson
After = Later | Refuse | NeedsPerson
Looked = Adopt | Act | Refuse | Later | NeedsPerson


def on_reached(
    plan: StepPlan, entry: Entry | None, now: float, *, crashed: bool, since: float, lapsed: float = 0.0
) -> Before:
    """Decide about a step that the flow has reached.

    `crashed`: the run was taken over from a holder that crashed, and this is the first step that it may have begun.
    `since`: the last time in the ledger before this step could have begun. `lapsed`: until when that holder may have
    been at work.
    """
    if entry is None:
        return _without_entry(plan, now, crashed=crashed, since=since)
    if entry.state == STEP_DONE:
        return Replay()
    if entry.state == STEP_FAILED:
        return Refuse()
    plan = plan.after(entry.note.policy)
    if entry.state == RETRY:
        return _after_failed_attempt(plan, entry, now, crashed=crashed)
    if entry.state == STARTED:
        return _after_recorded_start(plan, entry, now, lapsed)
    return NeedsPerson(entry.note.reason or "its outcome is unknown")


def _without_entry(plan: StepPlan, now: float, *, crashed: bool, since: float) -> Before:
    intent = plan.repeat.writes_intent
    if not crashed or intent:
        return Act(1, intent)  # a recorded start would have been found
    return _start_again(plan, 2, since, now)


def _after_failed_attempt(plan: StepPlan, entry: Entry, now: float, *, crashed: bool) -> Before:
    """An attempt failed, and that is recorded."""
    wait = (entry.note.not_before or now) - now
    if wait > 0:
        return Later(wait, RETRY)
    starts, spent = entry.note.starts + 1, now - (entry.note.first_at or entry.at)
    in_doubt = entry.note.ambiguous or entry.note.unclassified
    if in_doubt and _has_key_expired(plan, spent):  # it was due earlier, and no worker ran
        return Probe() if plan.repeat.looks_later else _park_expired_key(plan, answered=not entry.note.ambiguous)
    if crashed and not plan.repeat.writes_intent:
        return _start_again(plan, starts + 1, entry.note.first_at or entry.at, now)
    was_tried = entry.note.starts > 0 and entry.note.first_at is not None  # and was not reset by a person since
    if was_tried and not plan.retry.may_start(starts, spent):
        return _past_its_retries(plan, entry.note)
    return Act(starts, plan.repeat.writes_intent)


def _past_its_retries(plan: StepPlan, note: EntryNote) -> Refuse | NeedsPerson:
    """It was due while no worker ran, and now its retry period is over."""
    if note.fault is None or (plan.repeat.kind == "keyed" and note.ambiguous):
        return NeedsPerson(f"its time is over after {note.starts} attempts: whether it was done is unknown")
    return Refuse()


def _after_recorded_start(plan: StepPlan, entry: Entry, now: float, lapsed: float) -> Before:
    """Its start is recorded, and no end."""
    kind = plan.repeat.kind
    if kind == "never":
        return NeedsPerson("it was started and its outcome is unknown; it is declared never to be repeated blindly")
    first_at = entry.note.first_at or entry.at
    if kind == "check" or _key_no_longer_helps(plan, entry.note, now - first_at):
        wait = _settled_at(plan, entry, lapsed) - now
        return Later(wait, STARTED) if wait > 0 else Probe()
    return _start_again(plan, entry.note.starts + 1, first_at, now)


def _key_no_longer_helps(plan: StepPlan, note: EntryNote, spent: float) -> bool:
    """Whether the destination must be asked instead of trying again with the same key: that was decided when the
    attempt failed, or the provider has forgotten the key since, or it was used as often as the policy allows."""
    if not plan.repeat.looks_later:
        return False
    decided = note.not_before is not None  # the time of the look
    return decided or _has_key_expired(plan, spent) or not plan.retry.may_start(note.starts + 1, spent)


def _settled_at(plan: StepPlan, entry: Entry, lapsed: float) -> float:
    """Return from when on Absent can be trusted: the first request may still be on its way.

    Without a time-out, it may have been sent at the last moment at which its holder was alive.
    """
    began = entry.note.began_at or entry.at
    sent = max(began, lapsed) if plan.timeout is None else began + plan.timeout
    return max(sent + plan.repeat.settling, entry.note.not_before or 0.0)  # an attempt that raised set its own time


def _has_key_expired(plan: StepPlan, spent: float) -> bool:
    return plan.repeat.kind == "keyed" and spent > plan.repeat.window


def _park_expired_key(plan: StepPlan, *, answered: bool) -> NeedsPerson:
    why = "its error does not tell whether it was done" if answered else "no answer came"
    return NeedsPerson(f"{why}, and the provider forgets keys after {plan.repeat.window:.0f} s")


def _start_again(plan: StepPlan, starts: int, first_at: float, now: float) -> Act | NeedsPerson:
    """Start again after an attempt whose end is not recorded."""
    spent = max(0.0, now - first_at)
    if _has_key_expired(plan, spent):
        return NeedsPerson(f"its outcome is unknown, and the provider forgets keys after {plan.repeat.window:.0f} s")
    harmless = plan.repeat.kind == "transaction" and starts <= KILLED  # the database rolled it back
    if not harmless and not plan.retry.may_start(starts, spent):
        return NeedsPerson(f"it was started {starts - 1} times and never came to an end")
    return Act(starts, intent=True)


def on_error(
    plan: StepPlan,
    starts: int,
    first_at: float,
    verdict: Verdict,
    now: float,
    *,
    asked: float | None = None,
    roll: Callable[[], float],
    ambiguous: bool = False,
    unclassified: bool = False,
    final: bool = False,
) -> After:
    """Decide after an attempt that raised. `asked` is the destination's Retry-After. `final`: no retry cures it.

    `ambiguous`: this attempt or an earlier one ended without an answer. `unclassified`: with an error that does not
    tell whether it happened. While the provider knows the key, such a step is repeated like any other; after that it
    counts as ambiguous.
    """
    kind, clean = plan.repeat.kind, verdict in CLEAN_VERDICTS
    if kind == "never" and not clean:
        return NeedsPerson(NO_ANSWER if verdict == "ambiguous" else NOT_TOLD)
    spent = max(0.0, now - first_at)
    delay = None if final else plan.retry.delay(starts, spent, asked, roll)
    doubtful = ambiguous or unclassified or not clean
    forgotten = doubtful and _has_key_expired(plan, spent + (delay or 0.0))
    asks = plan.repeat.looks_later and (forgotten or (delay is None and doubtful))
    if asks or (kind == "check" and not clean):  # probed no sooner than it would be attempted again
        return Later(max((plan.timeout or 0.0) + plan.repeat.settling, delay or 0.0), STARTED)
    if delay is None:
        unknown = kind == "keyed" and (ambiguous or verdict == "ambiguous")
        return (
            NeedsPerson(f"no answer came in {starts} attempts: whether it was done is unknown") if unknown else Refuse()
        )
    if forgotten:
        return _park_expired_key(plan, answered=not ambiguous and verdict != "ambiguous")
    return Later(delay, RETRY)


def on_probe(plan: StepPlan, entry: Entry, look: Look, now: float, *, roll: Callable[[], float]) -> Looked:
    """Decide by what the destination answered."""
    if isinstance(look, Happened):
        return Adopt(look.receipt)
    plan, starts, first = plan.after(entry.note.policy), entry.note.starts, entry.note.first_at or entry.at
    if isinstance(look, Unknown):
        # A destination that is down is down for many runs at once: each would need a person.
        again = plan.retry.delay(entry.note.looks + 1, max(0.0, now - first), None, roll) if look.failed else None
        if again is not None:
            return Later(again, STARTED)
        return NeedsPerson(f"the destination cannot tell whether it was done{': ' + look.why if look.why else ''}")
    assert isinstance(look, Absent)  # noqa: S101 - the type says so
    over = plan.retry.delay(starts, max(0.0, entry.at - first), None, roll) is None  # as it was when it failed
    if over or entry.note.final or not plan.retry.may_start(starts + 1, now - first):
        if entry.note.fault is not None:
            return Refuse()
        return NeedsPerson(f"it was started {starts} times, never came to an end, and the destination has not seen it")
    return Act(starts + 1, intent=True)


def on_probe_while_overdue(look: Look) -> Adopt | NeedsPerson:
    """The same while an attempt of this process is still running: it may be about to do the work that is absent."""
    return Adopt(look.receipt) if isinstance(look, Happened) else NeedsPerson(STILL_AT_WORK)
