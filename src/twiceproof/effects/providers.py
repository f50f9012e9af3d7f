"""Providers: where each expects an idempotency key, in which form, and how long it remembers it.

The table is data, `providers.toml`. A provider without documentation of its own is `never`: if it ignored the key, a
repeat would be taken for a new order.
"""

from __future__ import annotations

import re
import tomllib
from datetime import date
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from ..errors import Misuse
from ..keys.duration import LONGEST, lifetime
from .repeat import NEVER, SAFE, Declared

__all__ = ["KeyForm", "Provider", "ProviderConflict", "key_form", "normal_key", "provider", "provider_of", "providers"]


KeyForm = Literal["plain", "dash", "uuid", "base32hex", "hex"]
_PLAIN = re.compile(r"tp_([0-9a-f]{32})")
# Every form of a key, as it is found at a provider. Letters may have become capitals on the way.
_ANY = re.compile(r"(?:tp[_-]?)?([0-9a-f]{8})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{12})", re.I)


def key_form(effect_key: str, form: KeyForm = "plain") -> str:
    """Write an effect key in a form that a provider accepts. All forms are made from the same 128 bits."""
    found = _PLAIN.fullmatch(effect_key)
    if found is None:
        raise Misuse(f"{effect_key[:60]!r} is not an effect key; pass what app.effect_key() returns.")
    digits = found[1]
    match form:
        case "plain":
            return effect_key
        case "dash":
            return f"tp-{digits}"
        case "uuid":
            return _uuid(digits)
        case "base32hex":  # a to v and 0 to 9
            return f"tp{digits}"
        case "hex":
            return digits
    raise Misuse(f"{form!r} is not a form of key; there are {', '.join(get_args(KeyForm))}.")


def _uuid(digits: str) -> str:
    """Version 4, which every validator takes: its 122 free bits are those of the digest, six are fixed."""
    variant = f"{int(digits[16], 16) & 0b0011 | 0b1000:x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def normal_key(text: str) -> str:
    """Return the normal form that all forms of an effect key share, its UUID; "" for any other text.

    A key found at a provider belongs to the step whose effect key has the same normal form.
    """
    found = _ANY.fullmatch(text.strip())
    return "" if found is None else _uuid("".join(found.groups()).lower())


Class = Literal["safe", "keyed", "check", "never"]
Placement = Literal["header", "body", "query", "client", "none"]


class ProviderConflict(Struct, frozen=True, forbid_unknown_fields=True):
    """A repeat is answered with an error. `fetch` is the URL of the first result, `at` where it is in the answer."""

    status: int
    fetch: str
    says: str = ""  # a text in the answer, where other errors have the same status
    id_at: str = ""
    at: str = ""


class Provider(Struct, frozen=True, forbid_unknown_fields=True, rename={"kind": "class"}):
    """One row of the table."""

    id: str
    title: str
    link: str
    checked: date
    verified: bool
    kind: Class
    methods: tuple[str, ...]
    place: Placement
    field: str = ""
    form: KeyForm = "plain"
    longest: int = 255
    pattern: str = ""
    window: str = ""
    window_by: Literal["maker", "ours"] = "maker"
    replays: str = ""
    other_body: str = ""
    sticky: tuple[int, ...] = ()
    in_progress: tuple[int, ...] = ()
    final: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    regional: bool = False
    first_sent: str = ""
    forgotten: tuple[int, ...] = ()
    conflict: ProviderConflict | None = None
    mark: str = ""
    look: str = ""
    hosts: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    block: str = ""
    note: str = ""

    @property
    def window_seconds(self) -> float:
        """How long it remembers a key; 100 years if it never forgets, 0 if it takes none."""
        if not self.window:
            return 0.0
        found = lifetime(self.window, name="window")
        return LONGEST if found is None else found

    @property
    def declared(self) -> Declared:
        """How a call that carries the key may be repeated: `@app.step(repeat=provider("stripe"))`."""
        if self.kind == "keyed":
            return Declared("keyed", window=self.window_seconds)
        return SAFE if self.kind == "safe" else NEVER  # a check needs a look by the caller

    def key(self, effect_key: str) -> str:
        """The effect key in the form that this provider takes."""
        return key_form(effect_key, self.form)

    def headers(self, effect_key: str) -> dict[str, str]:
        """The header that carries the key. Raises Misuse where this provider takes it elsewhere, or none at all."""
        if self.first_sent:
            move = f'use http.post(…, provider="{self.id}")'
            raise Misuse(f"{self.title} takes the time of the first attempt, too; {move}.")
        if self.place == "header":
            return {self.field: self.key(effect_key)}
        where = {
            "body": f"in the body, as {self.field}",
            "query": f"in the query, as {self.field}",
            "client": f"as {self.field}",
        }.get(self.place)
        if where is None:
            raise Misuse(f"{self.title} takes no idempotency key; declare the step with check(…) or never.")
        raise Misuse(f'{self.title} takes the key {where}; send provider("{self.id}").key(app.effect_key()) there.')

    def covers(self, method: str, path: str = "/") -> bool:
        """Whether what the row says holds for such a request."""
        return method.upper() in self.methods and self.serves(path)

    def serves(self, path: str) -> bool:
        return not self.paths or any(fnmatchcase(path, f"{known}*") for known in self.paths)


@lru_cache(1)
def providers() -> dict[str, Provider]:
    """Every row by its id."""
    table = tomllib.loads((files(__package__) / "providers.toml").read_text(encoding="utf-8"))
    return {name: _row(name, row) for name, row in table.items()}


def _row(name: str, row: dict[str, Any]) -> Provider:
    found = msgspec.convert({"id": name, **row}, Provider)
    if not found.verified and found.kind != "never":
        raise Misuse(f"{name} in providers.toml is not verified; such a row is never.")
    return found


def provider(name: str) -> Provider:
    """Return what is known of a provider's idempotency keys: `@app.step(repeat=provider("stripe"))`.

    `name` is one of the list in the reference.
    """
    found = providers().get(name)
    if found is None:
        near = [known for known in providers() if known.partition("-")[0] == str(name).partition("-")[0]]
        known = ", ".join(near or providers())
        raise Misuse(f"{name!r} is not in the table of providers; there are {known}.")
    return found


def provider_of(url: str, method: str = "") -> Provider | None:
    """Return the row that a URL belongs to; if several share its host, the one with a matching path."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    here = [row for row in providers().values() if any(fnmatchcase(host, known) for known in row.hosts)]
    fitting = [row for row in here if row.serves(parts.path or "/") and (not method or method.upper() in row.methods)]
    return max(fitting, key=lambda row: len(row.paths) > 0, default=None)
