"""What an answer means for its claim. Pure: a status and a rule go in, one word comes out."""

from __future__ import annotations

from typing import Literal

from ...errors import NotDone
from .rule import Rule

__all__ = ["NEVER_KEPT", "Word", "of_error", "of_status"]

# keep: final, replayed · release: as if it had never come · retry: failed, a retry runs · park: a person is asked
Word = Literal["keep", "release", "retry", "park"]

# Who you are, how often, too early, not fast enough: these speak of the attempt, not of what was asked.
NEVER_KEPT = frozenset({401, 403, 407, 408, 425, 429})


def of_status(status: int, rule: Rule) -> Word:
    if status in NEVER_KEPT:
        return "release"
    if status < 400:
        return "keep"
    if status < 500:
        return _of_refusal(rule)
    if rule.keeps == "all":
        return "keep"
    return "retry" if rule.reruns or status in rule.clean else "park"


def _of_refusal(rule: Rule) -> Word:
    """4xx: the app said no, and nothing was done."""
    if rule.keeps in ("2xx+4xx", "all"):
        return "keep"
    return "retry" if rule.keeps == "resume" else "release"


def of_error(error: BaseException, rule: Rule) -> Word:
    """An error that left the app. It may have come after the work was done."""
    if rule.reruns or _says_not_done(error):
        return "retry"
    return "keep" if rule.keeps == "all" and isinstance(error, Exception) else "park"


def _says_not_done(error: BaseException) -> bool:
    """Only in so many words. A refused connection says it of one call, and a handler makes several: it has charged the
    card, and the mail server is down."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_says_not_done, error.exceptions))
    return isinstance(error, NotDone)
