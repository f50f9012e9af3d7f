"""Every refusal, as a problem with its next move."""

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
    "in_review",
    "malformed",
    "mismatch",
    "missing",
    "store_down",
    "too_large",
    "too_old",
]


COME_BACK = 5.0  # seconds: the longest that a client is told to wait, however long the lease
REJECTED = ("repeatability-result", "rejected")


def missing(path: str, *, form: str) -> Reply:
    if form:
        return problem(
            400,
            "form-token-missing",
            f"{path} takes a form only with the token of its page, in {form!r}.",
            next_move="Open the page again and send the form from there.",
        )
    return problem(
        400,
        "idempotency-key-missing",
        f"{path} takes requests only with an Idempotency-Key header.",
        next_move="Draw a key (a UUID) for what you want done, and send the same key with every retry of it.",
    )


def malformed(reason: str, *, repeatability: bool = False, form: bool = False) -> Reply:
    if form:
        return problem(
            400,
            "form-token-malformed",
            f"The form's token cannot be read: {reason}.",
            next_move="Open the page again and send the form from there.",
        )
    if repeatability:
        return malformed_key(reason, what="The Repeatability headers", headers=[REJECTED])
    return malformed_key(reason)


def anonymous(path: str, *, required: bool) -> Reply:
    without = "" if required else ", or leave the Idempotency-Key out"
    return problem(
        403,
        "idempotency-key-anonymous",
        f"A key belongs to a caller, and it is not known who calls {path}.",
        next_move=f"Send your credentials along{without}.",
    )


def too_old(*, form: bool) -> Reply:
    move = "Open the page again, and look whether the first sending was carried out before you send it once more."
    if form:
        return problem(412, "form-too-old", "This form was opened too long ago to be sent.", next_move=move)
    return problem(
        412,
        "first-sent-too-old",
        "The request was first sent longer ago than answers are remembered here.",
        next_move="Look whether it was carried out; if it was not, send it as a new request with a new id.",
        headers=[REJECTED],
    )


def too_large(most: int) -> Reply:
    return problem(
        413,
        "too-large",
        f"With an Idempotency-Key, a body may have {most:,} bytes.",
        next_move="Send less, or upload it first and send a reference.",
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


def mismatch(visit: KeyedRequest, found: Mismatch) -> Reply:
    if visit.source == FORM:
        return problem(
            422,
            "form-already-sent",
            "This form was sent before, with other contents.",
            next_move="Look at what the first sending did; to send something else, open the page again.",
        )
    return problem(
        422,
        "idempotency-key-reused",
        "This Idempotency-Key was used before, for another request.",
        next_move="Send exactly what was sent the first time, or draw a new key for a new request.",
        more={"state": found.state},
    )


def busy(visit: KeyedRequest, found: Busy) -> Reply:
    """Never told to wait longer than the holder's lease: by then it is known what became of it, or a person asked."""
    left = min(found.retry_after, visit.rule.lease, COME_BACK)
    status = 409 if visit.rule.busy == "wait" else visit.rule.busy
    if status == 202:
        return json_reply(202, {"state": "in progress"}, [retry_after(left)])
    return problem(
        status,
        "in-progress",
        "The first request with this key is still being worked on.",
        next_move="Send the same request with the same key again after Retry-After seconds.",
        headers=[retry_after(left)],
        more={"state": "in progress"},
    )


def in_review(ask: ClaimRequest, found: InReview) -> Reply:
    return problem(
        409,
        "needs-review",
        "An earlier request with this key broke off, and it is not known whether it was carried out. It is not "
        "repeated until somebody has looked.",
        next_move="Do not send it again with another key. Whoever runs this service looks with: "
        f"{suggested_command('claims', 'show', about=(ask.operation, ask.key))}, which says how to settle it.",
        more={"state": "review", "since": found.since, "claim": {"operation": ask.operation, "key": ask.key}},
    )


def abandoned(found: Failed) -> Reply:
    """Not `prior-failure`: here a failure by itself is never final, so a person has said that it is."""
    return problem(
        409,
        "abandoned",
        "The request with this key was given up, and is not carried out any more.",
        next_move="If you still want it done, send it with a new key.",
        more={"state": "failed", "reason": found.fault.message},
    )


def answer_not_kept(found: Done, answer: RecordedAnswer | None) -> Reply:
    first = {"first_status": answer.status} if answer is not None else {}
    size = {"size": answer.left_out.size, "sha256": answer.left_out.digest} if answer and answer.left_out else {}
    return problem(
        410,
        "answer-not-kept",
        "The request with this key was carried out; its answer is not kept.",
        next_move="Do not send it again with another key; read what it did from the resource itself.",
        more={"state": "done", "finished_at": found.finished_at, **first, **size},
    )


def claim_lost(lost: LostHold) -> Reply:
    return problem(
        409,
        "claim-lost",
        "This request took so long without a sign of life that its claim was taken from it.",
        next_move="Send the same request with the same key again: it is answered with what counts.",
        headers=[retry_after(1.0)],
        more={"state": lost.state or "gone"},
    )


def broken_off() -> Reply:
    """What is replayed where errors are kept, and the app left none to keep."""
    return problem(
        500,
        "broken-off",
        "The first request with this key ended with an error.",
        next_move="Look whether it was carried out; if it was not, send it with a new key.",
    )


def store_down(error: StoreError) -> Reply:
    return problem(
        503,
        "ledger-unavailable",
        f"The ledger of keys cannot be used ({type(error).__name__}). Nothing was done.",
        next_move="Send the same request with the same key again after Retry-After seconds.",
        headers=[retry_after(COME_BACK)],
    )
