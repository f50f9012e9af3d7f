"""What the answer to an HTTP request means: done, refused, final, or unknown. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Collection
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from ..claims.client_errors import is_refusal
from ..errors import NotDone, OutcomeUnknown
from .http_client import HttpAnswer, HttpRequest
from .http_request import answer_of
from .providers import Provider
from .repeat import Unknown

__all__ = ["has_conflict", "kept", "refuse", "retry_after_of", "succeeded", "unanswered_look"]


READS = ("GET", "HEAD")
GONE = (404, 410)
TOO_MANY = 429
MOVED = (307, 308)  # the request must be sent elsewhere: it was not carried out here
LONGEST_EXCERPT = 200


def succeeded(request: HttpRequest, answer: HttpAnswer) -> bool:
    """2xx; for a DELETE also 404 and 410, which a repeat gets after a first one that was carried out."""
    return 200 <= answer.status < 300 or (request.method == "DELETE" and answer.status in GONE)


def kept(request: HttpRequest, answer: HttpAnswer, keep: str, result: Any) -> Any:
    """Return the result of a successful request. An unreadable body does not change that it was done."""
    if keep == "status":
        return answer.status
    if keep == "response":
        return HttpAnswer(answer.status, _without_cookies(answer.headers), answer.body)
    if answer.status in GONE or request.method == "HEAD":
        return None
    if result is bytes:
        return answer.body
    try:
        value = answer_of(answer)
        return value if result is Any else msgspec.convert(value, result, strict=False)
    except (ValueError, msgspec.MsgspecError) as error:
        told = f"{request.shown} was answered with {answer.status}, and the answer is not what was expected ({error})"
        if request.method in READS:
            raise NotDone(f"{told}; correct result=, or ask for its maintainer's help.", final=True) from error
        raise OutcomeUnknown(f"{told}: it was done, and its result is unknown.", repeats=True) from error


def _without_cookies(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if not name.startswith("set-cookie")}


def has_conflict(answer: HttpAnswer, provider: Provider | None) -> bool:
    """Whether the provider reports with an error that the key was used before: the first request was carried out."""
    rule = provider.conflict if provider is not None else None
    return rule is not None and answer.status == rule.status and rule.says.encode() in answer.body


def refuse(
    request: HttpRequest,
    answer: HttpAnswer,
    provider: Provider | None,
    final: Collection[int],
    secrets: Collection[str] = (),
) -> NotDone | OutcomeUnknown:
    """Return the error for an answer other than 2xx.

    The provider's own rules come first. A refusal about the idempotency key proves nothing: the key was used before,
    and that request may have been carried out.
    """
    told = f"{request.shown} was answered with {answer.status}{_excerpt(answer, [*secrets, *_credentials(request)])}"
    wait = retry_after_of(answer)
    if answer.status < 400:
        return _redirected(request, answer, told, final)
    if provider is not None:
        known = _by_row(answer, provider, told, wait)
        if known is not None:
            return known
    if answer.status in final:
        return NotDone(f"{told}; no retry cures that, so change what is asked for.", final=True)
    if is_refusal(answer.status):
        return NotDone(f"{told}; nothing was done.", retry_after=wait)
    return OutcomeUnknown(f"{told}; whether it was carried out is unknown.", retry_after=wait)


def unanswered_look(status: int) -> Unknown:
    """Return what a look knows that got another status than 2xx. One that was refused would be refused again."""
    passing = status >= 400 and (status == TOO_MANY or not is_refusal(status))
    return Unknown(f"the look was answered with {status}", failed=passing)


def _by_row(answer: HttpAnswer, row: Provider, told: str, wait: float | None) -> NotDone | OutcomeUnknown | None:
    replayed = answer.headers.get("idempotent-replayed", "").lower() == "true"
    if answer.status in (*row.sticky, *row.forgotten) or (answer.status >= 500 and replayed):
        again = f"{told}, and {row.title} gives no other answer to the same key; look at the destination."
        return OutcomeUnknown(again, repeats=True)
    if answer.status in row.in_progress:
        return OutcomeUnknown(f"{told}: the first request is still at work; ask again later.", retry_after=wait)
    if answer.status in row.final:
        return NotDone(f"{told}; no retry cures that, so change what is asked for.", final=True)
    if answer.status in row.refused:
        return NotDone(f"{told}; {row.title} refuses so before it does anything.", retry_after=wait)
    if row.kind == "keyed" and is_refusal(answer.status) and b"idempoten" in answer.body.lower():
        used = f"{told}: the key was used for another request, which may have been carried out; look there."
        return OutcomeUnknown(used, repeats=True)
    return None


def _redirected(
    request: HttpRequest, answer: HttpAnswer, told: str, final: Collection[int]
) -> NotDone | OutcomeUnknown:
    """Redirects are not followed. 307 and 308 mean that the same request must be sent elsewhere; the others are also
    sent after a write was carried out ("see the result there").
    """
    if request.method in READS or answer.status in MOVED or answer.status in final:
        place = answer.headers.get("location", "").partition("?")[0][:120] or "elsewhere"
        return NotDone(f"{told} and leads to {place}; redirects are not followed, so write that URL.", final=True)
    return OutcomeUnknown(f"{told}; a redirect may follow what was carried out. Look at the destination.", repeats=True)


def retry_after_of(answer: HttpAnswer) -> float | None:
    """Return the requested pause in seconds. A date is compared with the answer's own Date."""
    value = answer.headers.get("retry-after", "").strip()
    if value.isdecimal() and len(value) < 10:
        return float(value)
    try:
        until, now = (parsedate_to_datetime(text) for text in (value, answer.headers.get("date", "")))
        return max(0.0, (until - now).total_seconds())
    except (TypeError, ValueError):
        return None


def _credentials(request: HttpRequest) -> list[str]:
    """Return the credentials that were sent (`Bearer TOKEN`, `Basic BASE64`), also those from a function, which is not
    called again.
    """
    sent = [value for name, value in request.headers.items() if name.lower() == "authorization"]
    return [word for value in sent if (word := value.partition(" ")[2] or value)]


def _excerpt(answer: HttpAnswer, secrets: Collection[str]) -> str:
    """Return the beginning of the answer, on one line and without the secrets that were sent: a server may echo
    them.
    """
    text = " ".join(answer.body[: 4 * LONGEST_EXCERPT].decode("utf-8", "replace").split())
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return f" ({text[:LONGEST_EXCERPT]})" if text else ""
