"""The identity of a call: the step's name with its id or number, and a digest of its arguments."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from ...keys import validate_key
from ...keys.models import is_model, plain_of

__all__ = [
    "AFTER_FAILURE",
    "UNDO",
    "arguments_digest",
    "changes",
    "effect_key",
    "entry_kind",
    "has_id",
    "is_apart",
    "is_aside",
    "is_undo",
    "numbered",
    "stem_of",
    "undoes",
    "with_id",
]


SHORT = 12
LONGEST_ID = 160  # characters; at four bytes each, with a step's name, they fit a record's key
UNDO = "undo:"  # begins the names of undo steps
AFTER_FAILURE = "on_error:"  # begins the names of steps that follow a final failure

_OWN = re.compile(r"(?:\[.*\]|#\d+)$", re.S)


def _stand_in(value: Any) -> Any:
    return plain_of(value) if is_model(type(value)) else f"<{type(value).__qualname__}>"


_encode = msgspec.json.Encoder(order="deterministic", enc_hook=_stand_in).encode


def arguments_digest(arguments: Mapping[str, Any]) -> str:
    """Return a short digest per argument, so that a difference can be named. A value without a JSON form counts by its
    type."""
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
    """Describe the difference between two digests in words."""
    # Split at plain spaces only: a value may hold other white space, such as a no-break space.
    before, after = (dict(part.split("=", 1) for part in text.split(" ") if part) for text in (found, asked))
    parts = [
        *(f"no {name} any more" for name in before if name not in after),
        *(f"a new {name}" for name in after if name not in before),
        *(f"another {name}" for name in after if name in before and before[name] != after[name]),
    ]
    return ", ".join(parts) or "nothing"


def numbered(name: str, count: int) -> str:
    """Return the name of the n-th call in sequence: the second is `name#2`."""
    return name if count == 1 else f"{name}#{count}"


def with_id(name: str, own: str) -> str:
    """Return a name with an id in brackets, so that it cannot be mistaken for a number. A long id becomes a digest."""
    valid = validate_key(own)
    if len(valid) > LONGEST_ID:
        valid = blake2b(valid.encode(), digest_size=16).hexdigest()
    return f"{name}[{valid}]"


def stem_of(name: str) -> str:
    """Return the step's own name, without an item's id or a call's number."""
    return _OWN.sub("", name)


def entry_kind(name: str) -> str:
    """Return the step's own name; for a timer or a wait its kind: "sleep", "wait"."""
    return stem_of(name).partition("@")[0].partition(":")[0]


def has_id(name: str) -> bool:
    """Whether a name has an id: a step's own name holds no brackets."""
    return name.endswith("]")


def is_undo(name: str) -> bool:
    return name.startswith(UNDO)


def is_apart(name: str) -> bool:
    """Whether this is no step of the flow's function: it undoes one, or follows a final failure."""
    return is_undo(name) or name.startswith(AFTER_FAILURE)


def is_aside(name: str, entries: Collection[str]) -> bool:
    """Whether the run's replay does not call this: it undoes a duplicate effect and not a step of the run, or it
    follows a final failure."""
    return is_apart(name) and name.removeprefix(UNDO) not in entries


def undoes(entries: Collection[str]) -> bool:
    """Whether undoing has begun in a run with these entries."""
    return any(is_undo(name) and not is_aside(name, entries) for name in entries)


def effect_key(space: str, name: str) -> str:
    """Derive the effect key from tenant, flow, key and step: the same after edits, reruns and on other machines."""
    return "tp_" + blake2b(f"{space}\0{name}".encode(), digest_size=16).hexdigest()
