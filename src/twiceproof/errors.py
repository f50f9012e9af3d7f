"""Every error, as one tree. Each carries data, reads as one line, and ends with the next move.

TwiceproofError
├── Misuse                  the call, the decorator or the setting is wrong: change the code
│   ├── KeyRefused          the key is empty, missing, too long or has control characters
│   ├── NoSuchWait          the callback, the approval or the run is not known, or its time is over
│   ├── OwnRequest          the person who requested an approval cannot decide it
│   └── ValueRefused        a value has no canonical form (NaN, a lone surrogate, too deep)
├── ClaimError              the claim did not let the work run, or did not let it finish
│   ├── Duplicate           the work was done before, and `on_duplicate="reject"` was asked for
│   ├── InProgress          another process holds this key: try again after `retry_after`
│   ├── PayloadMismatch     the key is known, with another payload
│   ├── NeedsReview         the outcome is unknown: a person must settle it
│   ├── PriorFailure        the work failed before, and is repeated only on request
│   ├── Stale               a newer version of the same object was applied: this one is dropped
│   ├── Waiting             the run waits for a timer, a callback, a person or a retry
│   ├── ClaimLost           this holder lost its claim; what it found out is kept as evidence
│   └── ResultNotKept       the work is done, but its result was not, or is no longer, stored
├── FlowError               inside a flow
│   ├── StepFailed          a step failed for good; the flow may catch it and go another way
│   ├── BatchFailed         some items of a batch failed for good; the others are done
│   ├── WaitTimedOut        what the flow waited for did not arrive in time
│   ├── Rejected            an approval was rejected
│   ├── WaitSwallowed       an `except` swallowed a wait; the flow cannot go on
│   └── Cancelled           the run was cancelled
├── NotDone                 raised by the user's code: "nothing happened", and whether trying again makes sense
├── OutcomeUnknown          raised by the user's code: "it may have happened", and whether asking again makes sense
├── BrokerUnavailable       no answer from the broker, or no such queue; nothing was received
└── StoreError
    ├── StoreUnavailable    no answer from the store; what was being written may or may not be there
    ├── StoreUnsafe         the store would lose acknowledged writes
    ├── StoreFull           the store has no room; nothing was written
    ├── CannotOpen          a stored value cannot be decrypted: its key is missing, or it was changed
    ├── BadWrite            the store was asked for something it must refuse; nothing was written
    └── SchemaMismatch      the store was written by another release

TwiceproofWarning
├── UnstableKeyWarning      the key looks as if it changed on every retry
├── ResultTypeWarning       a result will come back as plain JSON because its type is not declared
└── ForgottenEarlyWarning   a sender retries for longer than its events are kept
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BadWrite",
    "BatchFailed",
    "BrokerUnavailable",
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
    "OutcomeUnknown",
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
    """The root. `data` is what a program can use; the message is for a person. Next: what its message ends with."""

    def __init__(self, message: str, **data: Any) -> None:
        # One line, whatever a key or a driver put into it: log shippers split on newlines.
        # Blanks inside a line stay: a command in it names the very key, and `a  b` is another than `a b`.
        super().__init__(" ".join(line.strip() for line in message.splitlines() if line.strip()))
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
    """The call, the decorator or the setting is wrong. Next: change the code."""


class KeyRefused(Misuse):
    """The key is empty, missing, over 1,024 bytes, or has control characters. Next: change what the key is made of."""


class NoSuchWait(Misuse):
    """There is no such callback, approval or run, or its time is over. Next: check the URL or the id."""


class OwnRequest(Misuse):
    """The person who requested an approval cannot decide it. Carries `by`. Next: have another person decide."""


class ValueRefused(Misuse):
    """A value has no canonical JSON form: NaN, a lone surrogate, too deep, an unknown type.

    Next: repair it, or leave it out with `ignore=`.
    """


class ClaimError(TwiceproofError):
    """The claim did not let the work run or finish. Carries `operation` and `key`. Next: see the errors below it."""

    reference = ""  # for the engine, not for users: by which a run that waits for this one finds it


class Duplicate(ClaimError):
    """Done before, and duplicates were to be rejected. Carries `result` and `run`. Next: use the result."""


class InProgress(ClaimError):
    """Another process holds the claim. Carries `owner`, `retry_after` (seconds) and `run`.

    Next: try again later, or use `on_duplicate="wait"`.
    """


class PayloadMismatch(ClaimError):
    """The key is known, with another payload. Carries `found` and `asked` (fingerprints), `state` and `run`.

    Next: use another key, or send what was sent the first time.
    """


class NeedsReview(ClaimError):
    """The outcome is unknown. Carries `reason`, `since` and `run`. Next: look at the destination, and settle it."""


class PriorFailure(ClaimError):
    """It failed before, for good. Carries `fault` (its type and message) and `run`.

    Next: once the cause is gone, call `.retry(…)`; a claim of `app.claim` is settled as not happened.
    """


class Stale(ClaimError):
    """Not applied: a newer version of the same object was.

    Carries `object`, `version`, `newest`, `applied_by` (a run) and `run`. Next: nothing; it is as it should be.
    """


class Waiting(ClaimError):
    """The run is parked on a timer, a callback, a person or a retry, and holds nothing.

    Carries `run`, `state`, `why` and `until`; `handle` where a flow was called. Next: nothing: a worker goes on with
    it.
    """


class ClaimLost(ClaimError):
    """This holder lost its claim. Its finding is kept as evidence, not taken as the result.

    Carries `state` and `owner`. Next: stop before the next effect, and look at the claim.
    """


class ResultNotKept(ClaimError):
    """Done, but its result was not, or is no longer, stored. Carries `digest` and `size` where known, and `run`.

    Next: look at the destination.
    """


class FlowError(TwiceproofError):
    """Raised inside a flow. Next: see the errors below it."""


class StepFailed(FlowError):
    """A step failed for good. Carries `step`, `fault` and `run`; its cause is the step's own error, where known.

    Next: catch it to go another way; otherwise what was done is undone.
    """


class WaitTimedOut(FlowError):
    """What the flow waited for did not arrive in time. Carries `name` and `run`.

    Next: catch it, or wait with `default=`.
    """


class Rejected(FlowError):
    """An approval was rejected. Carries `name`, `decision` (who, when and why) and `run`.

    Next: catch it to go another way; otherwise what was done is undone.
    """


class BatchFailed(FlowError):
    """Some items failed for good, the others are done. Carries `step`, `failed` (key and fault each), `done` and `run`.

    Next: call `.retry(…)`: only these are tried again; where steps have an undo, catch it.
    """


class WaitSwallowed(FlowError):
    """An `except` swallowed a wait, and the flow went on. Next: let `BaseException` pass, or use `app.gather`."""


class Cancelled(FlowError):
    """The run was cancelled. Carries `by`. Next: nothing; what has an undo is undone."""


class NotDone(TwiceproofError):
    """Raise it from your own code to say that nothing happened.

    `retry_after` says in how many seconds it may be tried again; `final=True` that trying again is useless: a step
    fails at once, a guarded function is not run by the next call. Next: change what is asked for, or call `.retry(…)`.
    """

    def __init__(self, message: str = "", *, retry_after: float | None = None, final: bool = False) -> None:
        given = {} if retry_after is None else {"retry_after": retry_after}
        super().__init__(message, **given, **({"final": True} if final else {}))


class OutcomeUnknown(TwiceproofError):
    """Raise it from your own code to say that it may have happened: no answer came, or one that does not tell.

    `retry_after` says in how many seconds it may be asked again; `repeats=True` that the same key gets the same answer
    again: a step is not tried again then, its destination is asked, or a person. Next: look at the destination.
    """

    def __init__(self, message: str = "", *, retry_after: float | None = None, repeats: bool = False) -> None:
        given = {} if retry_after is None else {"retry_after": retry_after}
        super().__init__(message, **given, **({"repeats": True} if repeats else {}))


class BrokerUnavailable(TwiceproofError):
    """Nothing was received. Carries `missing`: the broker answers, but has no such queue or consumer.

    Next: check the broker, or create what is missing; then try again.
    """


class StoreError(TwiceproofError):
    """Something about the store. Next: see the errors below it."""


class StoreUnavailable(StoreError):
    """No answer. Carries `unsure`: whether what was being written may have landed; `closed` where it was closed here;
    `held` where another transaction has locked what was to be written; `ending` where the process is about to end.

    Next: check the store, and try again.
    """


class StoreUnsafe(StoreError):
    """The store would lose acknowledged writes. Carries `findings`. Next: do what `twiceproof doctor` says."""


class StoreFull(StoreError):
    """No room. Nothing was written. Next: make room."""


class CannotOpen(StoreError):
    """A stored value is sealed with a key that is not here, is not in its own row, or is not sealed and must be.

    Carries `at` and `key_id`. Next: add the key to TWICEPROOF_KEYS, or restore the row that was changed.
    """


class BadWrite(StoreError, ValueError):
    """Refused before anything was written. Next: change what is written."""


class SchemaMismatch(StoreError):
    """The store was written by another release. Next: upgrade the older of the two."""


class TwiceproofWarning(UserWarning):
    """The root of the warnings. Next: what its message ends with."""


class UnstableKeyWarning(TwiceproofWarning):
    """The key looks as if it changed on every retry. Next: use an id of the event itself."""


class ResultTypeWarning(TwiceproofWarning):
    """A result will come back as plain JSON because its type is not declared. Next: annotate the function."""


class ForgottenEarlyWarning(TwiceproofWarning):
    """A sender retries for longer than its events are kept. Next: give a longer `keep=`."""
