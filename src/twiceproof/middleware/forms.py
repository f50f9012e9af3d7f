"""Form tokens: they turn a double click, a reload or the back button into one submission.

A token is generated with the page and sent in a hidden field. It does not protect against CSRF.
"""

from __future__ import annotations

import hmac
import os
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable
from html import escape
from urllib.parse import parse_qsl

from msgspec import Struct

from ..clock import Clock, system_clock
from ..inbound.reply import Malformed

__all__ = ["FIELD", "FormToken", "Multipart", "form_field", "form_token", "multipart_of", "read_token", "token_in"]


FIELD = "twiceproof_token"
RANDOM = re.compile(r"[A-Za-z0-9_-]{22,128}")  # generated tokens have 24 characters, too many to guess
MOST_FIELDS = 2_000
MULTIPART = re.compile(r"\s*multipart/[\w.+-]+\s*", re.I | re.A)
PARAMETER = re.compile(r';\s*([^\s;="]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))\s*')


class FormToken(Struct, frozen=True):
    value: str
    issued_at: float | None = None  # known if tokens are signed


class Multipart(Struct, frozen=True):
    """A multipart form: its type without the boundary, and the delimiter before each part."""

    kind: str
    delimiter: bytes


class FormField(str):
    """Markup that template engines insert without escaping, through `__html__`."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def form_token(
    secret: str | bytes = "", *, clock: Clock = system_clock, entropy: Callable[[int], bytes] = os.urandom
) -> str:
    """Return a new token. With the middleware's secret it is signed, so that only your own pages can issue tokens."""
    random = urlsafe_b64encode(entropy(18)).decode()
    if not secret:
        return random
    text = f"{random}.{int(clock.now()):x}"
    return f"{text}.{_signature(secret, text)}"


def form_field(secret: str | bytes = "", *, name: str = FIELD, token: str = "") -> FormField:
    """Return the hidden field for a page: `{{ form_field() }}` inside the form."""
    value = token or form_token(secret)
    return FormField(f'<input type="hidden" name="{escape(name)}" value="{escape(value)}" autocomplete="off">')


def read_token(value: str, secret: str | bytes) -> FormToken | Malformed:
    if not secret:
        return FormToken(value) if RANDOM.fullmatch(value) else Malformed("it was not made by form_token()")
    text, _, signature = value.rpartition(".")
    random, _, moment = text.partition(".")
    if not hmac.compare_digest(_signature(secret, text).encode(), signature.encode(errors="replace")):
        return Malformed("its signature is wrong")
    return FormToken(random, float(int(moment, 16)))


def _signature(secret: str | bytes, text: str) -> str:
    key = secret.encode() if isinstance(secret, str) else secret
    signed = hmac.digest(key, b"form-token:" + text.encode(errors="replace"), "sha256")
    return urlsafe_b64encode(signed).rstrip(b"=").decode()


# -- finding it in a body ------------------------------------------------------------------------


def token_in(content_type: str, body: bytes, name: str) -> str:
    """Return the field's value; "" if the body is not a form or has no such field."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/x-www-form-urlencoded":
        return _in_pairs(body, name)
    if kind == "multipart/form-data":
        return _in_parts(content_type, body, name)
    return ""


def _in_pairs(body: bytes, name: str) -> str:
    try:
        pairs = parse_qsl(body.decode("latin-1"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        return ""
    return next((value for known, value in pairs if known == name), "")


def multipart_of(content_type: str) -> Multipart | None:
    """Return None if it is not a multipart form, or is ambiguous: with two boundaries, parsers disagree."""
    found = MULTIPART.match(content_type)
    if found is None:
        return None
    pairs, end = [], found.end()
    while (parameter := PARAMETER.match(content_type, end)) is not None:
        name, quoted, plain = parameter.groups()
        pairs.append((name.lower(), re.sub(r"\\(.)", r"\1", quoted) if plain is None else plain))
        end = parameter.end()
    (boundary, *more), rest = _named(pairs, "boundary"), [pair for pair in pairs if pair[0] != "boundary"]
    if more or not boundary or content_type[end:].strip("; ") or any(name.startswith("boundary*") for name, _ in rest):
        return None
    kind = "".join([found[0].strip().lower(), *(f"; {name}={value!r}" for name, value in rest)])
    return Multipart(kind, b"--" + boundary.encode("latin-1", "replace"))


def _named(pairs: list[tuple[str, str]], name: str) -> list[str]:
    return [value for known, value in pairs if known == name] or [""]


def _in_parts(content_type: str, body: bytes, name: str) -> str:
    form = multipart_of(content_type)
    if form is None:
        return ""
    wanted = f'name="{name}"'.encode()
    for part in body.split(form.delimiter):
        head, _, value = part.partition(b"\r\n\r\n")
        if wanted in head and b"filename=" not in head:
            return value.removesuffix(b"\r\n").decode("latin-1")
    return ""
