"""What CloudEvents 1.0 calls a valid event: names, types and forms of its attributes, and how headers write them."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any
from urllib.parse import unquote_to_bytes

from ..source import Poison

__all__ = ["flaw_in", "header_value"]

DATA, BASE64 = "data", "data_base64"
NAME = re.compile(r"[a-z0-9]+")
WHOLE = range(-(2**31), 2**31)
# Controls, noncharacters and half surrogates: no text of an attribute has them.
FORBIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(f"{chr(plane * 0x10000 + 0xFFFE)}{chr(plane * 0x10000 + 0xFFFF)}" for plane in range(17))
    + "]"
)
TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105 - of a media type
# Possessive: among thousands of blanks, nothing is tried in two ways.
PARAMETER = rf'{TOKEN}=(?:{TOKEN}|"(?:[^"\\]|\\.)*+")'
MEDIA_TYPE = re.compile(rf"{TOKEN}/{TOKEN}(?:\s*+;\s*+{PARAMETER})*+\s*+(?:;\s*+)?", re.ASCII)
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:([A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")
TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}):([0-5][0-9]|60)(\.[0-9]+)?"
    r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


def flaw_in(event: dict[str, Any], tolerated: Collection[str] = ()) -> Poison | None:
    """Why this is no CloudEvent, in its structured form. None: it is one. Null is the same as left out."""
    given = {name: value for name, value in event.items() if value is not None and name not in (DATA, BASE64)}
    if given.get("specversion") != "1.0":
        return Poison("it is no CloudEvent of version 1.0")
    for name, value in given.items():
        why = _why_not(name, value) if name not in tolerated else ""
        if why:
            return Poison(f"it is no CloudEvent: its attribute {name[:40]!r} {why}")
    missing = [name for name in ("id", "source", "type") if name not in given]
    if missing:
        return Poison(f"it is no CloudEvent: it has no {missing[0]}")
    return _flaw_in_data(event)


def _why_not(name: str, value: Any) -> str:
    if NAME.fullmatch(name) is None:
        return "has a name with other signs than a to z and 0 to 9"
    form = FORMS.get(name)
    if form is not None:
        return "" if isinstance(value, str) and not FORBIDDEN.search(value) and form(value) else f"is no {WORDS[name]}"
    if isinstance(value, str):
        return "has a control character or one that is none" if FORBIDDEN.search(value) else ""
    if isinstance(value, bool) or (isinstance(value, int) and value in WHOLE):
        return ""
    return "is neither text, nor a truth value, nor a whole number of 32 bits"


def _is_time(text: str) -> bool:
    """RFC 3339. The last second of a minute may be 60."""
    found = TIME.fullmatch(text)
    if found is None:
        return False
    try:
        datetime.fromisoformat(f"{found[1]}T{found[2]}")
    except ValueError:
        return False
    return True


FORMS: dict[str, Callable[[str], object]] = {
    "id": bool, "source": bool, "type": bool, "specversion": bool, "subject": bool, "time": _is_time,
    "dataschema": URI.fullmatch, "datacontenttype": MEDIA_TYPE.fullmatch,
}  # fmt: skip
WORDS = {
    **dict.fromkeys(FORMS, "text that is not empty"),
    "time": "time as RFC 3339 writes it",
    "dataschema": "absolute URI",
    "datacontenttype": "media type",
}


def _flaw_in_data(event: dict[str, Any]) -> Poison | None:
    written = event.get(BASE64)
    if written is None:
        return None
    if DATA in event:
        return Poison("it is no CloudEvent: it has both data and data_base64")
    try:
        b64decode(written, validate=True)
    except (NotBase64, ValueError, TypeError):
        return Poison("it is no CloudEvent: its data_base64 is no base64")
    return None


def header_value(text: str) -> str | None:
    """As the HTTP binding reads a header (3.1.3.2): without its quotes, then percent-decoded once. None: it cannot be.

    With a replacement for what cannot be decoded, two different ids would be one.
    """
    bare = QUOTED.sub(lambda found: re.sub(r"\\(.)", r"\1", found[1]), text)
    if '"' in QUOTED.sub("", text) or not text.isascii() or PERCENT.search(bare):
        return None
    try:
        return unquote_to_bytes(bare).decode()
    except UnicodeDecodeError:
        return None
