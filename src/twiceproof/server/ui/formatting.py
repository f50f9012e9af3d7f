"""How values look on a page: signs and words of states, times, addresses, and JSON whose digits stay as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Raw, Struct

from ...safe_text import escape_invisible, suggested_command

__all__ = [
    "CAPPED",
    "SHOWN_BYTES",
    "ShownValue",
    "StateSign",
    "command_of",
    "counted",
    "digits_of",
    "href",
    "iso",
    "shown_value",
    "sign_of",
    "span",
    "utc",
    "visible",
]

CAPPED = 1_000  # counts end here: "1,000+"
SHOWN_BYTES = 16 * 1024  # characters of a value on a page; its download has all
SHORT = 100  # characters of a value that needs no box


class StateSign(Struct, frozen=True):
    """A state as a sign, a word and a tone, so that states are not distinguished by colour alone."""

    sign: str
    word: str
    tone: str


SIGNS = {
    "done": StateSign("✓", "done", "good"),
    "failed": StateSign("✕", "failed", "bad"),
    "review": StateSign("?", "in review", "ask"),
    "unknown": StateSign("?", "unknown", "ask"),
    "held": StateSign("▸", "running", "busy"),
    "started": StateSign("▸", "started", "busy"),
    "queued": StateSign("·", "queued", "calm"),
    "waiting": StateSign("◷", "waiting", "calm"),
    "waits": StateSign("◷", "waits", "calm"),
    "retry": StateSign("↻", "to be retried", "calm"),
    "open": StateSign("◷", "open", "ask"),
    "decided": StateSign("✓", "decided", "good"),
    "timeout": StateSign("✕", "timed out", "bad"),
    "pending": StateSign("·", "pending", "calm"),
    "publishing": StateSign("▸", "publishing", "busy"),
    "sent": StateSign("✓", "sent", "good"),
    "parked": StateSign("?", "parked", "ask"),
    "dropped": StateSign("✕", "dropped", "bad"),
    "acknowledged": StateSign("✓", "acknowledged", "calm"),
    "suppressed": StateSign("–", "suppressed", "calm"),
    "acted": StateSign("✓", "acted", "good"),
    "resolved": StateSign("✓", "resolved", "good"),
    "live": StateSign("✓", "live", "good"),
    "draft": StateSign("·", "draft", "calm"),
    "paused": StateSign("!", "paused", "ask"),
    "gone": StateSign("✕", "gone", "bad"),
    "revoked": StateSign("✕", "revoked", "bad"),
    "expired": StateSign("✕", "expired", "calm"),
    "ok": StateSign("✓", "ok", "good"),
    "warn": StateSign("!", "warning", "ask"),
    "refuse": StateSign("✕", "refused", "bad"),
    "new": StateSign("→", "new", "good"),
    "duplicate": StateSign("=", "repeat", "calm"),
    "repeat": StateSign("=", "repeat", "calm"),
    "mismatch": StateSign("≠", "mismatch", "ask"),
    "poison": StateSign("✕", "poison", "bad"),
    "kept": StateSign("✉", "kept aside", "ask"),
}


def sign_of(state: str, *, lapsed: bool = False) -> StateSign:
    """Return the sign of a state; one that has none is shown by its own name."""
    if lapsed:
        return StateSign("!", "lease ran out", "ask")
    return SIGNS.get(state) or StateSign("·", state.replace("-", " ") or "unknown", "calm")


SPANS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


def span(seconds: float | None) -> str:
    """Return a duration in its largest whole unit: `4 h`. Below a second in milliseconds, as steps take."""
    if seconds is None:
        return "–"
    if seconds < 1.0:
        return f"{max(0.0, seconds) * 1_000:.0f} ms"
    size, unit = next((size, unit) for size, unit in SPANS if seconds >= size)
    return f"{seconds:.1f} s" if unit == "s" and seconds < 10 else f"{int(seconds // size)} {unit}"


EPOCH = datetime(1970, 1, 1)


def digits_of(at: float) -> str:
    """Return a time in UTC to the millisecond, `2026-10-14T17:46:40.500`; "" if it is outside of the calendar."""
    try:
        return (EPOCH + timedelta(0, at)).isoformat("T", "milliseconds")
    except (ValueError, OverflowError):
        return ""


def iso(at: float) -> str:
    digits = digits_of(at)
    return f"{digits}Z" if digits else ""


def utc(at: float, *, exact: bool = False) -> str:
    digits = digits_of(at)
    return f"{digits[:10]} {digits[11:] if exact else digits[11:19]} UTC" if digits else "–"


def counted(number: int, most: int = CAPPED) -> str:
    """Return a count for people; one that ended at its cap says so."""
    return f"{most:,}+" if number > most else f"{number:,}"


_needs_no_quotes = re.compile(r"[A-Za-z0-9_.~-]*").fullmatch


def _quoted(segment: str) -> str:
    return segment if _needs_no_quotes(segment) else quote(segment, safe="")


def href(*segments: str, **query: str | int | None) -> str:
    """Return an address below the mount point: segments and values percent-encoded, empty values left out."""
    path = "".join(["/" + _quoted(segment) for segment in segments]) or "/"
    if not query:
        return path
    asked = urlencode({name.rstrip("_"): value for name, value in query.items() if value not in (None, "")})
    return f"{path}?{asked}" if asked else path


def visible(text: str) -> str:
    """Escape invisible characters: two keys that differ must look different."""
    return escape_invisible(text, but="\n\t")


class ShownValue(Struct, frozen=True):
    """A value on a page. `cut`: only its beginning is shown, and `whole` leads to all of it."""

    text: str
    size: int
    cut: bool = False
    whole: str = ""

    @property
    def is_short(self) -> bool:
        """Whether it needs no place of its own."""
        return len(self.text) <= SHORT and "\n" not in self.text

    @property
    def about(self) -> str:
        return f"{self.size:,} B" if self.size < 10_240 else f"{self.size / 1024:,.0f} KiB"


def shown_value(raw: Raw | bytes | str | None, whole: str = "") -> ShownValue | None:
    """Return JSON with line breaks, each number as it was written; None if there is no value.

    The text is laid out, never decoded: a number that became a float would be another number.
    """
    if raw is None:
        return None
    text = bytes(raw) if not isinstance(raw, str) else raw.encode(errors="replace")
    shown = text[: 4 * SHOWN_BYTES]
    if len(shown) == len(text):
        shown = _laid_out(text)
    cut = len(shown) > SHOWN_BYTES
    return ShownValue(shown[:SHOWN_BYTES].decode(errors="ignore"), len(text), cut, whole)


def _laid_out(text: bytes) -> bytes:
    try:
        laid: bytes = msgspec.json.format(text, indent=2)
    except (msgspec.DecodeError, RecursionError):
        return text
    return laid


def command_of(where: Sequence[str], *words: str) -> str:
    """Return the command that does what a page does, as it is typed into a shell."""
    return suggested_command(*where, *words)
