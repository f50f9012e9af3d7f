"""Keeps a store's password out of everything that is printed."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

__all__ = ["has_password", "redacted", "shown_url"]

HIDDEN = "***"
SECRET_NAME = re.compile("pass|secret|token", re.IGNORECASE)
IN_AUTHORITY = re.compile(r"://[^\s/@]*:[^\s/]*@")
IN_WORDS = re.compile(r"(\w*password\s*=\s*)('[^']*'|[^\s&;]+)", re.IGNORECASE)
SHORTEST = 4  # a shorter password would be found in ordinary words, and the message would become a riddle


def shown_url(url: str) -> str:
    """A store's URL as it may be shown: user and host stay, password and secret options are hidden."""
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
    """A driver's message without the password that it may have copied from the URL."""
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
