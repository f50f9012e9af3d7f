"""What may be a key: text of at most 1024 bytes that a person can see and every store can index."""

from __future__ import annotations

import re
from typing import Any, NoReturn
from unicodedata import category, normalize

from ..errors import KeyRefused
from ..safe_text import INVISIBLE

__all__ = ["LONGEST_KEY", "is_blank", "validate_key"]


LONGEST_KEY = 1024  # bytes in UTF-8: what every store can index

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def validate_key(key: Any) -> str:
    """The key in Unicode's normal form (NFC). Raises KeyRefused, with the reason and the next move."""
    if (
        type(key) is str
        and key.isascii()
        and key.isprintable()
        and 0 < len(key) <= LONGEST_KEY
        and key[0] != " "
        and key[-1] != " "
    ):
        return key
    return _validate_slowly(key)


def _validate_slowly(key: Any) -> str:
    if not isinstance(key, str):
        _refuse(f"the key is a {type(key).__qualname__}, not text", f"write it as text: {_example(key)}")
    return _checked(normalize("NFC", str.__str__(key)))


def _checked(key: str) -> str:
    if is_blank(key):
        _refuse("the key is blank", "use an id that the event always carries")
    if found := _SURROGATE.search(key):
        _refuse(f"the key has half a surrogate pair ({found[0]!a})", "decode it with its right encoding")
    if found := _CONTROL.search(key):
        _refuse(f"the key has the control character {found[0]!a}", "remove it, or use body_hash()", key)
    if key != key.strip():
        _refuse("the key begins or ends with white space", "strip() it where it comes in", key)
    if (size := len(key.encode())) > LONGEST_KEY:
        _refuse(f"the key has {size} bytes, the most is {LONGEST_KEY}", "use an id, or body_hash()", key)
    return key


def is_blank(text: str) -> bool:
    """Nothing to see in it: it comes from an empty field, and each such field would be the same key."""
    return all(letter.isspace() or _is_unseen(letter) for letter in text)


def _is_unseen(letter: str) -> bool:
    """Controls and half surrogates are refused by their own names."""
    kind = category(letter)
    return kind in ("Cf", "Mn") or (kind not in ("Cc", "Cs") and INVISIBLE.match(letter) is not None)


def _example(key: Any) -> str:
    return 'key="nightly" or key="order:{order[id]}"' if key is None else 'f"order:{order_id}"'


def _refuse(reason: str, move: str, key: str | None = None) -> NoReturn:
    raise KeyRefused(f"{reason}; {move}", key=key)
