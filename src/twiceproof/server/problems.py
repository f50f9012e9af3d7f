"""Errors as problem+json with a next move. Internal details are not exposed."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import (
    BadWrite,
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
    "duplicate_header",
    "forbidden",
    "internal_error",
    "method_not_allowed",
    "no_page",
    "not_found",
    "of_error",
    "store_unavailable",
    "through_a_proxy",
    "unauthorized",
]


def not_found(path: str = "") -> Reply:
    encoded = "; a claim is at /v1/claims/OPERATION/KEY, with the key percent-encoded: a/b is a%2Fb"
    how = encoded if path.startswith("/v1/claims") else ""  # its key contains a slash or is missing
    return problem(
        404, "not-found", "There is nothing at this address.", next_move=f"GET /openapi.json lists every address{how}."
    )


def method_not_allowed(allowed: Iterable[str]) -> Reply:
    allow = ", ".join(sorted(allowed))
    return problem(
        405,
        "method-not-allowed",
        f"This address accepts {allow}.",
        next_move=f"Use {allow}.",
        headers=[("allow", allow)],
    )


def duplicate_header() -> Reply:
    return problem(
        400, "duplicate-header", "A header that may occur only once is repeated.", next_move="Send each header once."
    )


def no_page() -> Reply:
    """An unknown cursor is 404, like an unknown id: the API description cannot list valid ones."""
    return problem(
        404,
        "no-such-page",
        "`after` is not a position in this list.",
        next_move="Take it from the previous response, with the same filters, or leave it out.",
    )


def unauthorized(detail: str) -> Reply:
    return problem(
        401,
        "unauthorized",
        detail,
        next_move="Send Authorization: Bearer TOKEN; create a token with: twiceproof tokens create",
        headers=[("www-authenticate", "Bearer")],
    )


def through_a_proxy(evidence: str) -> Reply:
    """The refusal before any token exists. It may reach anyone, so it reveals nothing about the machine."""
    return problem(
        401,
        "through-a-proxy",
        f"No token exists, so only direct requests from this machine are accepted; this one is not: {evidence}.",
        next_move="On the server run: twiceproof tokens create NAME --scope admin, then send Authorization: Bearer "
        "TOKEN; or serve with --open, if everyone who can reach it may do everything",
        headers=[("www-authenticate", "Bearer")],
    )


def forbidden(scope: Scope) -> Reply:
    """Name a scope that can be granted: not every scope of a route can."""
    more, grant = {
        Scope.OPERATOR: (", of the app's own tenant", Scope.READ),
        Scope.PROVEN: (", or none at all", Scope.INGEST),
    }.get(scope, ("", scope))
    return problem(
        403,
        "forbidden",
        "This token lacks the scope for this.",
        next_move=f"Use a token with the scope{more}: twiceproof tokens create NAME --scope {grant}",
    )


def internal_error() -> Reply:
    return problem(
        500,
        "internal-error",
        "An internal error occurred; it is not known what was done.",
        next_move="Check the server's log, then send the same request again: completed work is not repeated.",
    )


# The first matching entry applies. Errors that are not listed are internal.
MEANINGS: tuple[tuple[type[TwiceproofError], int, str], ...] = (
    (InProgress, 409, "in-progress"),
    (PayloadMismatch, 422, "payload-mismatch"),
    (NeedsReview, 409, "needs-review"),
    (PriorFailure, 409, "prior-failure"),
    (Waiting, 409, "waiting"),
    (ClaimLost, 409, "claim-lost"),
    (NoSuchWait, 404, "no-such-wait"),
    (Misuse, 400, "refused"),
    (BadWrite, 400, "bad-write"),
)


def of_error(error: TwiceproofError) -> Reply | None:
    """Return the reply for an error, or None if the caller could not act on it."""
    if isinstance(error, StoreError) and not isinstance(error, BadWrite):  # what no store takes is refused again
        return store_unavailable()
    for kind, status, name in MEANINGS:
        if isinstance(error, kind):
            after = error.data.get("retry_after")
            return _of(status, name, error, [retry_after(float(after))] if after else ())
    return None


def store_unavailable() -> Reply:
    return problem(
        503,
        "store-unavailable",
        "The store is not available right now.",
        next_move="Send the same request again; it is safe.",
        headers=[retry_after(1)],
    )


def _of(status: int, kind: str, error: TwiceproofError, headers: Iterable[tuple[str, str]] = ()) -> Reply:
    """Split an error's message, which ends with the next move."""
    detail, _, move = str(error).rpartition("; ")
    return problem(status, kind, detail or str(error), next_move=move or "See the documentation.", headers=headers)
