"""How a call is found again: a step's name, its own id or its number, and a digest of what it was asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from ...keys import validate_key
from ...keys.models import is_model, plain_of

__all__ = ["arguments_digest", "changes", "effect_key", "entry_kind", "has_id", "numbered", "stem_of", "with_id"]


SHORT = 12
LONGEST_ID = 160  # letters; four bytes each and a name beside it fit a record's key

_OWN = re.compile(r"(?:\[.*\]|#\d+)$", re.S)


def _stand_in(value: Any) -> Any:
    return plain_of(value) if is_model(type(value)) else f"<{type(value).__qualname__}>"


_encode = msgspec.json.Encoder(order="deterministic", enc_hook=_stand_in).encode


def arguments_digest(arguments: Mapping[str, Any]) -> str:
    """A short word per argument, so that a difference can be named. What has no JSON form counts by its type."""
    return " ".join([f"{name}={_digest(value)}" for name, value in arguments.items()])


def _digest(value: Any) -> str:
    try:
        encoded = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        encoded = type(value).__qualname__.encode()
    if len(encoded) <= SHORT and b" " not in encoded:
        return encoded.decode()  # shorter than its digest, and readable
    return blake2b(encoded, digest_size=6).hexdigest()


def changes(found: str, asked: str) -> str:
    """What is different between two calls, in words."""
    # By the space that stands between them: a value may hold others, such as one that does not break a line.
    before, after = (dict(part.split("=", 1) for part in text.split(" ") if part) for text in (found, asked))
    parts = [
        *(f"no {name} any more" for name in before if name not in after),
        *(f"a new {name}" for name in after if name not in before),
        *(f"another {name}" for name in after if name in before and before[name] != after[name]),
    ]
    return ", ".join(parts) or "nothing"


def numbered(name: str, count: int) -> str:
    """The second call in sequence is `name#2`."""
    return name if count == 1 else f"{name}#{count}"


def with_id(name: str, own: str) -> str:
    """A key may hold anything printable; in brackets it cannot pose as a number. A long one stands as its digest."""
    valid = validate_key(own)
    if len(valid) > LONGEST_ID:
        valid = blake2b(valid.encode(), digest_size=16).hexdigest()
    return f"{name}[{valid}]"


def stem_of(name: str) -> str:
    """The step's own name, without an item's id or a call's number."""
    return _OWN.sub("", name)


def entry_kind(name: str) -> str:
    """The step's own name; of a timer or a wait, what it is: "sleep", "wait"."""
    return stem_of(name).partition("@")[0].partition(":")[0]


def has_id(name: str) -> bool:
    """A step's own name holds no brackets."""
    return name.endswith("]")


def effect_key(space: str, name: str) -> str:
    """Derived from tenant, flow, key and step: it survives edits, reruns and other machines."""
    return "tp_" + blake2b(f"{space}\0{name}".encode(), digest_size=16).hexdigest()
