"""Text that is safe to show: passwords hidden, control characters escaped, commands quoted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote, urlsplit

__all__ = [
    "INVISIBLE",
    "escape_invisible",
    "has_password",
    "quoted",
    "redacted",
    "shown_url",
    "store_words",
    "suggested_command",
]


HIDDEN = "***"
SECRET_NAME = re.compile("pass|secret|token", re.IGNORECASE)
IN_AUTHORITY = re.compile(r"://[^\s/@]*:[^\s/]*@")
IN_WORDS = re.compile(r"(\w*password\s*=\s*)('[^']*'|[^\s&;]+)", re.IGNORECASE)
SHORTEST = 4  # a shorter password would be found in ordinary words, and the message would become unreadable


def shown_url(url: str) -> str:
    """Return a store's URL with its password and secret options hidden."""
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return f"{url.split('://', 1)[0][:40]}://{HIDDEN}" if "://" in url else HIDDEN
    if "://" not in url:
        return IN_WORDS.sub(rf"\g<1>{HIDDEN}", url)
    user, at, host = parts.netloc.rpartition("@")
    if password is not None:
        user = f"{user.split(':', 1)[0]}:{HIDDEN}"
    query = f"?{_shown_query(parts.query)}" if parts.query else ""
    return f"{parts.scheme}://{user}{at}{host}{parts.path}{query}"


def _shown_query(query: str) -> str:
    words = (word.partition("=") for word in query.split("&"))
    return "&".join(f"{name}{sign}{HIDDEN if SECRET_NAME.search(name) else value}" for name, sign, value in words)


def has_password(url: str) -> bool:
    return bool(_passwords(url) or IN_WORDS.search(url))


def redacted(text: str, url: str) -> str:
    """Return a driver's message without the password that it may have copied from the URL."""
    for password in _passwords(url):
        if len(password) >= SHORTEST:
            text = text.replace(password, HIDDEN)
    return IN_WORDS.sub(rf"\g<1>{HIDDEN}", IN_AUTHORITY.sub(f"://{HIDDEN}@", text))


def _passwords(url: str) -> list[str]:
    try:
        parts = urlsplit(url)
        found = [parts.password or ""]
    except ValueError:
        return []
    found += [value for name, value in parse_qsl(parts.query) if SECRET_NAME.search(name)]
    both = {form for password in found for form in (password, unquote(password))}
    return sorted((form for form in both if form), key=len, reverse=True)


# C0 and C1 controls, line separators, everything that turns the direction of writing, half surrogates, and everything
# that Unicode has shown as nothing (Default_Ignorable_Code_Point): fillers, joiners, variation selectors, tags. A blank
# of Braille and a note without a head, too.
INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)


def escape_invisible(text: str, *, but: str = "") -> str:
    """Escape each invisible character as `\\x1b`, but those in `but`: two keys that differ must look different."""
    return INVISIBLE.sub(lambda found: found[0] if found[0] in but else _written(ord(found[0])), text)


def _written(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def suggested_command(*words: str, about: Sequence[str] = ()) -> str:
    """Return the command `twiceproof … words about`. A key that begins with a dash is not taken for an option."""
    dashes = ["--"] if any(word.startswith("-") for word in about) else []
    return " ".join(["twiceproof", *map(quoted, [*words, *dashes, *about])])


def store_words(url: str) -> tuple[str, ...]:
    """Return the command-line option for a store. One with a password is left to TWICEPROOF_STORE: logs are shared."""
    return () if url.startswith("memory:") or has_password(url) else ("--store", url)


def quoted(word: str) -> str:
    if not INVISIBLE.search(word):
        return shlex.quote(word)
    # $'…' is read by bash, zsh and ksh: the invisible character stays in the command.
    safe = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{escape_invisible(safe)}'"
