"""Every error as problem+json with a next move. What went wrong inside stays inside."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import (
    ClaimLost,
    InProgress,
    Misuse,
    NeedsReview,
    NoSuchWait,
    PayloadMismatch,
    PriorFailure,
    StoreError,
    TwiceproofError,
    Waiting,
)
from ..inbound.reply import Reply, problem, retry_after
from .tokens import Scope

__all__ = [
    "ambiguous",
    "broken",
    "forbidden",
    "method_not_allowed",
    "not_found",
    "of_error",
    "store_unavailable",
    "through_a_proxy",
    "unauthorized",
]


def not_found(path: str = "") -> Reply:
    encoded = "; a claim's is /v1/claims/OPERATION/KEY, the key percent-encoded: a/b is a%2Fb"
    how = encoded if path.startswith("/v1/claims") else ""  # with a slash in its key, or without a key
    return problem(
        404, "not-found", "There is nothing at this address.", next_move=f"GET /openapi.json lists every address{how}."
    )


def method_not_allowed(allowed: Iterable[str]) -> Reply:
    allow = ", ".join(sorted(allowed))
    return problem(
        405, "method-not-allowed", f"This address takes {allow}.", next_move=f"Use {allow}.", headers=[("allow", allow)]
    )


def ambiguous() -> Reply:
    return problem(
        400, "ambiguous", "A header that may come once came twice: which one counts?", next_move="Send each once."
    )


def unauthorized(detail: str) -> Reply:
    return problem(
        401,
        "unauthorized",
        detail,
        next_move="Send Authorization: Bearer TOKEN; make a token with: twiceproof tokens create",
        headers=[("www-authenticate", "Bearer")],
    )


def through_a_proxy(sign: str) -> Reply:
    """Before any token exists. Who is told this may be anybody: nothing of the machine is named."""
    return problem(
        401,
        "through-a-proxy",
        f"No token exists, so only calls straight from this machine are believed; this one is not: {sign}.",
        next_move="On the server run: twiceproof tokens create NAME --scope admin, then send Authorization: Bearer "
        "TOKEN; or serve with --open, if whoever reaches it may do everything",
        headers=[("www-authenticate", "Bearer")],
    )


def forbidden(scope: Scope) -> Reply:
    """The next move is one that can be made: not every scope is a grant."""
    more, grant = {
        Scope.OPERATOR: (", of the app's own tenant", Scope.READ),
        Scope.PROVEN: (", or none at all", Scope.INGEST),
    }.get(scope, ("", scope))
    return problem(
        403,
        "forbidden",
        "This token may not do that.",
        next_move=f"Use a token that may{more}: twiceproof tokens create NAME --scope {grant}",
    )


def broken() -> Reply:
    return problem(
        500,
        "broken",
        "Something broke here; nothing is known about what was done.",
        next_move="Look into the server's log, then send the same request again: what was done is not done twice.",
    )


# The first that fits, by the error's own name; other doors say the same word. What is not here is none of the caller's
# business.
MEANINGS: tuple[tuple[type[TwiceproofError], int, str], ...] = (
    (InProgress, 409, "in-progress"),
    (PayloadMismatch, 422, "payload-mismatch"),
    (NeedsReview, 409, "needs-review"),
    (PriorFailure, 409, "prior-failure"),
    (Waiting, 409, "waiting"),
    (ClaimLost, 409, "claim-lost"),
    (NoSuchWait, 404, "no-such-wait"),
    (Misuse, 400, "refused"),
)


def of_error(error: TwiceproofError) -> Reply | None:
    """What an error of ours means to a caller. None: nothing that it could act on."""
    if isinstance(error, StoreError):
        return store_unavailable()
    for kind, status, word in MEANINGS:
        if isinstance(error, kind):
            after = error.data.get("retry_after")
            return _of(status, word, error, [retry_after(float(after))] if after else ())
    return None


def store_unavailable() -> Reply:
    return problem(
        503,
        "store-unavailable",
        "The ledger cannot be reached right now.",
        next_move="Send the same request again; it is safe.",
        headers=[retry_after(1)],
    )


def _of(status: int, kind: str, error: TwiceproofError, headers: Iterable[tuple[str, str]] = ()) -> Reply:
    """Our messages end with the next move."""
    said, _, move = str(error).rpartition("; ")
    return problem(status, kind, said or str(error), next_move=move or "See the documents.", headers=headers)
