"""Every refusal of the middleware, as a problem with its next move."""

from __future__ import annotations

from ..claims.claim import Busy, Done, Failed, InReview, LostHold, Mismatch
from ..claims.states import ClaimRequest
from ..errors import StoreError
from ..inbound.reply import Reply, json_reply, malformed_key, problem, retry_after
from ..safe_text import suggested_command
from .responses import RecordedAnswer
from .routes import FORM, KeyedRequest

__all__ = [
    "abandoned",
    "anonymous",
    "answer_not_kept",
    "broken_off",
    "busy",
    "claim_lost",
    "cut_short",
    "form_too_old",
    "in_review",
    "malformed",
    "mismatch",
    "missing",
    "store_down",
    "too_large",
]


LONGEST_RETRY = 5.0  # seconds: the longest Retry-After, however long the lease


def missing(path: str, *, form: str) -> Reply:
    if form:
        return problem(
            400,
            "form-token-missing",
            f"{path} accepts a form only with the token of its page, in the field {form!r}.",
            next_move="Open the page again and submit the form from there.",
        )
    return problem(
        400,
        "idempotency-key-missing",
        f"{path} accepts requests only with an Idempotency-Key header.",
        next_move="Generate a key (a UUID) for this request, and send the same key with every retry.",
    )


def malformed(reason: str, *, form: bool = False) -> Reply:
    if form:
        return problem(
            400,
            "form-token-malformed",
            f"The form's token cannot be read: {reason}.",
            next_move="Open the page again and submit the form from there.",
        )
    return malformed_key(reason)


def anonymous(path: str, *, required: bool) -> Reply:
    without = "" if required else ", or leave the Idempotency-Key out"
    return problem(
        403,
        "idempotency-key-anonymous",
        f"A key is bound to a caller, and the caller of {path} is not known.",
        next_move=f"Send your credentials{without}.",
    )


def form_too_old() -> Reply:
    move = "Open the page again, and check whether the first submission was carried out before you repeat it."
    return problem(412, "form-too-old", "This form was opened too long ago to be submitted.", next_move=move)


def too_large(most: int) -> Reply:
    return problem(
        413,
        "too-large",
        f"With an Idempotency-Key, a body may have at most {most:,} bytes.",
        next_move="Send a smaller body, or upload it first and send a reference.",
        headers=[("connection", "close")],
    )


def cut_short() -> Reply:
    return problem(
        400,
        "body-cut-short",
        "The body ended before its announced length. Nothing was done.",
        next_move="Send the request again with the same key.",
        headers=[("connection", "close")],
    )


def mismatch(request: KeyedRequest, found: Mismatch) -> Reply:
    if request.source == FORM:
        return problem(
            422,
            "form-already-sent",
            "This form was submitted before, with different contents.",
            next_move="Check what the first submission did; to submit something else, open the page again.",
        )
    return problem(
        422,
        "idempotency-key-reused",
        "This Idempotency-Key was used before, for a different request.",
        next_move="Send exactly the first request again, or generate a new key for a new request.",
        more={"state": found.state},
    )


def busy(request: KeyedRequest, found: Busy) -> Reply:
    """Retry-After is at most the holder's lease: by then the request has ended or is in review."""
    left = min(found.retry_after, request.rule.lease, LONGEST_RETRY)
    status = 409 if request.rule.busy == "wait" else request.rule.busy
    if status == 202:
        return json_reply(202, {"state": "in progress"}, [retry_after(left)])
    return problem(
        status,
        "in-progress",
        "The first request with this key is still being processed.",
        next_move="Send the same request with the same key again after Retry-After seconds.",
        headers=[retry_after(left)],
        more={"state": "in progress"},
    )


def in_review(request: ClaimRequest, found: InReview) -> Reply:
    return problem(
        409,
        "needs-review",
        "An earlier request with this key was interrupted, and it is not known whether it was carried out. It is not "
        "repeated until a person has decided.",
        next_move="Do not send it again with another key. The operator of this service runs: "
        f"{suggested_command('claims', 'show', about=(request.operation, request.key))}, which shows how to settle it.",
        more={"state": "review", "since": found.since, "claim": {"operation": request.operation, "key": request.key}},
    )


def abandoned(found: Failed) -> Reply:
    """Not `prior-failure`: here a failure is final only if a person has decided so."""
    return problem(
        409,
        "abandoned",
        "The request with this key was abandoned, and will not be carried out.",
        next_move="If you still want it done, send it with a new key.",
        more={"state": "failed", "reason": found.fault.message},
    )


def answer_not_kept(found: Done, answer: RecordedAnswer | None) -> Reply:
    first = {"first_status": answer.status} if answer is not None else {}
    size = {"size": answer.left_out.size, "sha256": answer.left_out.digest} if answer and answer.left_out else {}
    return problem(
        410,
        "answer-not-kept",
        "The request with this key was carried out, but its response is not stored.",
        next_move="Do not send it again with another key; read the result from the resource itself.",
        more={"state": "done", "finished_at": found.finished_at, **first, **size},
    )


def claim_lost(lost: LostHold) -> Reply:
    return problem(
        409,
        "claim-lost",
        "This request lost its claim, because its lease expired while it ran.",
        next_move="Send the same request with the same key again to get the result that counts.",
        headers=[retry_after(1.0)],
        more={"state": lost.state or "gone"},
    )


def broken_off() -> Reply:
    """Replayed if errors are stored and the app raised instead of responding."""
    return problem(
        500,
        "handler-failed",
        "The first request with this key ended with an error.",
        next_move="Check whether it was carried out; if it was not, send it with a new key.",
    )


def store_down(error: StoreError) -> Reply:
    return problem(
        503,
        "ledger-unavailable",
        f"The store of keys is not available ({type(error).__name__}). Nothing was done.",
        next_move="Send the same request with the same key again after Retry-After seconds.",
        headers=[retry_after(LONGEST_RETRY)],
    )
