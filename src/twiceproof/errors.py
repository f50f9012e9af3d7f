"""Every error, as one tree. Each carries data, reads as one line, and ends with the next move.

TwiceproofError
├── Misuse                  the call, the decorator or the setting is wrong: change the code
│   ├── KeyRefused          the key is empty, missing, too long or has control characters
│   ├── NoSuchWait          the callback, the approval or the run is not known, or its time is over
│   ├── OwnRequest          who asked for an approval cannot give it
│   └── ValueRefused        a value has no canonical form (NaN, a lone surrogate, too deep)
├── ClaimError              the claim did not let the work run, or did not let it finish
│   ├── Duplicate           the work was done before, and `on_duplicate="reject"` was asked for
│   ├── InProgress          another holder is at work on this key: come back after `retry_after`
│   ├── PayloadMismatch     the key is known, with another payload
│   ├── NeedsReview         the outcome is unknown: a person must settle it
│   ├── PriorFailure        the work failed before, and may not be repeated without a word
│   ├── Stale               a newer version of the same object was applied: this one is dropped
│   ├── Waiting             the run is parked on a timer, a callback, a person or a retry: nobody is at work
│   ├── ClaimLost           this holder lost its claim; what it found out is kept as evidence
│   └── ResultNotKept       the work is done, but its result was not, or is no longer, stored
├── FlowError               inside a flow
│   ├── StepFailed          a step failed for good; the flow may catch it and go another way
│   ├── BatchFailed         some items of a batch failed for good; the others are done
│   ├── WaitTimedOut        what the flow waited for did not arrive in time
│   ├── Rejected            somebody was asked for approval and said no
│   ├── WaitSwallowed       an `except` ate a wait; the flow cannot go on as if nothing had been
│   └── Cancelled           the run was cancelled by somebody's word
├── NotDone                 raised by the user's code: "nothing happened, you may try again"
└── StoreError
    ├── StoreUnavailable    no answer from the store; what was being written may or may not be there
    ├── StoreUnsafe         the store would lose acknowledged writes
    ├── StoreFull           the store has no room; nothing was written
    ├── CannotOpen          a stored value is sealed with a key that is not here, or is not in its own row
    ├── BadWrite            the store was asked for something it must refuse; nothing was written
    └── SchemaMismatch      the store was written by another release

TwiceproofWarning
├── UnstableKeyWarning      the key looks as if it changed on every retry
├── ResultTypeWarning       a result will come back as plain JSON because its type is not declared
└── ForgottenEarlyWarning   a sender tries again for longer than its events are remembered
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BadWrite",
    "BatchFailed",
    "Cancelled",
    "CannotOpen",
    "ClaimError",
    "ClaimLost",
    "Duplicate",
    "FlowError",
    "ForgottenEarlyWarning",
    "InProgress",
    "KeyRefused",
    "Misuse",
    "NeedsReview",
    "NoSuchWait",
    "NotDone",
    "OwnRequest",
    "PayloadMismatch",
    "PriorFailure",
    "Rejected",
    "ResultNotKept",
    "ResultTypeWarning",
    "SchemaMismatch",
    "Stale",
    "StepFailed",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "StoreUnsafe",
    "TwiceproofError",
    "TwiceproofWarning",
    "UnstableKeyWarning",
    "ValueRefused",
    "WaitSwallowed",
    "WaitTimedOut",
    "Waiting",
]


class TwiceproofError(Exception):
    """The root. `data` is what a program can use; the message is for a person."""

    def __init__(self, message: str, **data: Any) -> None:
        # One line, whatever a key or a driver put into it: log shippers split on newlines.
        super().__init__(" ".join(message.split()))
        self.data = data

    def __getattr__(self, name: str) -> Any:
        data = self.__dict__.get("data", {})
        if name in data:
            return data[name]
        raise AttributeError(f"{type(self).__name__} has no {name!r}; it carries {sorted(data)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.__dict__.get("data", {}))


def _rebuild(kind: type[TwiceproofError], message: str, data: dict[str, Any]) -> TwiceproofError:
    return kind(message, **data)


class Misuse(TwiceproofError, ValueError):
    """The call, the decorator or the setting is wrong."""


class KeyRefused(Misuse):
    """The key cannot name an intent."""


class NoSuchWait(Misuse):
    """Nobody waits for this: no such callback, approval or run, or its time is over."""


class OwnRequest(Misuse):
    """Who asked for an approval cannot give it. Carries `by`."""


class ValueRefused(Misuse):
    """A value has no canonical JSON form."""


class ClaimError(TwiceproofError):
    """The claim stood in the way. Carries `operation` and `key`."""


class Duplicate(ClaimError):
    """Done before, and duplicates were to be rejected. Carries `result`."""


class InProgress(ClaimError):
    """Another holder is at work. Carries `owner` and `retry_after` (seconds)."""


class PayloadMismatch(ClaimError):
    """Known key, other payload. Carries `found` and `asked` (fingerprints) and `run`."""


class NeedsReview(ClaimError):
    """The outcome is unknown; a person must settle it. Carries `reason` and `run`."""


class PriorFailure(ClaimError):
    """Failed before. Carries `error` (its type and message) and `run`."""


class Stale(ClaimError):
    """Not applied: a newer version was. Carries `object`, `version`, `newest`, `applied_by` (a run) and `run`."""


class Waiting(ClaimError):
    """The run is parked and holds nothing. Carries `run`, `why` and `until`; `handle` where a flow was called."""


class ClaimLost(ClaimError):
    """This holder lost its claim. Its finding is kept as evidence, not taken as the result."""


class ResultNotKept(ClaimError):
    """Done, but there is no result to give back. Carries `digest` and `size` where known."""


class FlowError(TwiceproofError):
    """Inside a flow."""


class StepFailed(FlowError):
    """A step failed for good. Carries `step`, `fault` and `run`; its cause is the step's own error, where known."""


class WaitTimedOut(FlowError):
    """What the flow waited for did not arrive in time. Carries `name` and `run`."""


class Rejected(FlowError):
    """Somebody said no. Carries `name`, `decision` (who, when and why) and `run`."""


class BatchFailed(FlowError):
    """Some items failed for good, the others are done. Carries `step`, `failed` (key and fault each), `done`, `run`."""


class WaitSwallowed(FlowError):
    """Something caught a wait. Let BaseException pass, or use app.gather for concurrent waits."""


class Cancelled(FlowError):
    """The run was cancelled. Carries `by`."""


class NotDone(TwiceproofError):
    """Raise it from your own code to say: the other side said no, nothing happened.

    `NotDone("…", retry_after=30)` says when to come back.
    """


class StoreError(TwiceproofError):
    """Something about the store."""


class StoreUnavailable(StoreError):
    """No answer. Writes under way may or may not have landed."""


class StoreUnsafe(StoreError):
    """The store would lose acknowledged writes. Carries `findings`."""


class StoreFull(StoreError):
    """No room. Nothing was written."""


class CannotOpen(StoreError):
    """A sealed value does not open. Carries `at` and `key_id`."""


class BadWrite(StoreError, ValueError):
    """Refused before anything was written."""


class SchemaMismatch(StoreError):
    """Written by another release."""


class TwiceproofWarning(UserWarning):
    """The root of the warnings."""


class UnstableKeyWarning(TwiceproofWarning):
    """The key looks as if it changed on every retry."""


class ResultTypeWarning(TwiceproofWarning):
    """A result will come back as plain JSON because its type is not declared."""


class ForgottenEarlyWarning(TwiceproofWarning):
    """A sender tries again for longer than its events are remembered."""
