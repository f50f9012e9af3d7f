"""`Repeatability-Request-ID` and `Repeatability-First-Sent`: the other pair of headers that clients send.

The second one says when a request was first sent. Older than what is remembered, it is refused instead of run again.
"""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime
from uuid import UUID

from ..key_header import Malformed

__all__ = ["FIRST_SENT", "REQUEST_ID", "is_too_old", "read_pair"]

REQUEST_ID = "repeatability-request-id"
FIRST_SENT = "repeatability-first-sent"

AHEAD = 300.0  # seconds that a client's clock may be ahead of ours


def read_pair(request_id: str, first_sent: str, now: float) -> tuple[str, float] | Malformed:
    """The key, in one form however it was written, and the time."""
    sent = read_first_sent(first_sent, now)
    if isinstance(sent, Malformed):
        return sent
    try:
        return str(UUID(request_id.strip())), sent
    except ValueError:
        return Malformed(f"{REQUEST_ID} is not a GUID")


def read_first_sent(value: str, now: float) -> float | Malformed:
    if not value.strip():
        return Malformed(f"{REQUEST_ID} came without {FIRST_SENT}")
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):  # a time zone of twenty digits
        return Malformed(f"{FIRST_SENT} is not a date like Tue, 15 Nov 2022 12:45:26 GMT")
    sent = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if sent > now + AHEAD:
        return Malformed(f"{FIRST_SENT} lies in the future")
    return sent


def is_too_old(sent: float, now: float, keep: float | None) -> bool:
    """Whether it may be forgotten by now that this request was ever made."""
    return keep is not None and now - sent > keep
