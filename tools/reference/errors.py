"""The errors: their tree, and of each when it is raised, what it carries, what to do, and what it is over HTTP."""

from __future__ import annotations

import re
from collections.abc import Iterator

from twiceproof import errors
from twiceproof.server.problems import MEANINGS

from .table import prose, table

__all__ = ["details", "tree"]

ROOTS = (errors.TwiceproofError, errors.TwiceproofWarning)
# Where a page says more about what to do.
MORE = {
    "KeyRefused": "choose-a-key",
    "OwnRequest": "ask-for-approval",
    "PayloadMismatch": "choose-a-key",
    "NeedsReview": "settle-a-run",
    "Stale": "out-of-order",
    "Waiting": "wait-for-a-callback",
    "ResultNotKept": "large-values",
    "BatchFailed": "batch",
    "WaitTimedOut": "wait-for-a-callback",
    "Rejected": "ask-for-approval",
    "StoreUnsafe": "check-a-store",
    "CannotOpen": "encrypt",
    "UnstableKeyWarning": "choose-a-key",
    "ForgottenEarlyWarning": "receive-webhooks",
}


def tree(_: str) -> list[str]:
    """The names alone, as one inherits from another."""
    return ["```text", *(line for root in ROOTS for line in _branch(root, "", "")), "```"]


def _branch(kind: type[BaseException], first: str, rest: str) -> Iterator[str]:
    yield first + kind.__name__
    below = _below(kind)
    for child in below:
        last = child is below[-1]
        yield from _branch(child, f"{rest}{'└── ' if last else '├── '}", f"{rest}{'    ' if last else '│   '}")


def _below(kind: type[BaseException]) -> list[type[BaseException]]:
    """In the order in which they are written; not what other parts of twiceproof derive for themselves."""
    return [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]


def details(_: str) -> list[str]:
    found = [kind for root in ROOTS for kind in _all(root)]
    return table(("error", "when", "carries", "what to do", "over HTTP"), [_row(kind) for kind in found])


def _all(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    yield kind
    for child in _below(kind):
        yield from _all(child)


def _row(kind: type[BaseException]) -> tuple[str, ...]:
    text = " ".join((kind.__doc__ or "").split())
    said, _, move = text.partition(" Next: ")
    when = re.sub(r" ?Carries [^.]*\.", "", said)
    carries = re.search(r"Carries ([^.]*)\.", said)
    more = MORE.get(kind.__name__)
    link = f" ([more](../how-to/{more}.md))" if more else ""
    told = carries[1] if carries else ""
    return f"`{kind.__name__}`", prose(when), told, prose(move) + link, _over_http(kind)


def _over_http(kind: type[BaseException]) -> str:
    if issubclass(kind, errors.StoreError):
        return "503 `store-unavailable`"
    return next((f"{status} `{word}`" for one, status, word in MEANINGS if issubclass(kind, one)), "")
