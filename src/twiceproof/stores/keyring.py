"""The keys that stored values are sealed with: AES-GCM, bound to the row. The first one seals, all of them open.

A sealed body is `sealed:1:KEY-ID:` and the base64 of a random 96-bit nonce, the ciphertext and its tag. The associated
data is the row's own address: a body that is moved to another row or tenant does not open there.
"""

from __future__ import annotations

import binascii
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import CannotOpen, Misuse
from ..records import Address

__all__ = ["PLAIN", "Keyring", "as_keyring", "key_id_of"]

PREFIX = "sealed:1:"
PLAIN = ""  # the key id of a row that is not sealed
SEALED_ONLY = "sealed-only"  # among the keys: a row that is not sealed is not believed
NONCE = 12
SIZES = (16, 24, 32)
MOST_SEALED = 2**32  # by one key with random nonces, as NIST puts it: a key is to be rotated long before

_ID = re.compile(r"[A-Za-z0-9_.-]{1,32}")


class Keyring:
    """Key ids and keys, the one that seals first. Its repr shows ids only. `plain`: unsealed rows are read, too."""

    def __init__(
        self, keys: Mapping[str, bytes], *, plain: bool = True, entropy: Callable[[int], bytes] = os.urandom
    ) -> None:
        if not keys:
            raise Misuse("A keyring needs a key; make one with: twiceproof keys new")
        for name, key in keys.items():
            if not _ID.fullmatch(name) or len(key) not in SIZES:
                raise Misuse("A key is an id (letters, digits, _ . -) and 16, 24 or 32 bytes; make one with: "
                             "twiceproof keys new")  # fmt: skip
        self._ciphers = {name: _cipher(key) for name, key in keys.items()}
        self.current = next(iter(keys))
        self.plain = plain
        self._entropy = entropy

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._ciphers)

    def seal(self, at: Address, body: str) -> str:
        nonce = self._entropy(NONCE)
        sealed = self._ciphers[self.current].encrypt(nonce, body.encode(), bound_to(at))
        return f"{PREFIX}{self.current}:{b64encode(nonce + sealed).decode()}"

    def open(self, at: Address, body: str) -> str:
        """Plain rows, written before there were keys, are read as they are, until somebody says that there are none."""
        name = key_id_of(body)
        if name == PLAIN and self.plain:
            return body
        if name == PLAIN:
            raise CannotOpen(
                f"{_named(at)} is not sealed, and TWICEPROOF_KEYS says {SEALED_ONLY}; find out who wrote it. If it is "
                "your own, from before there were keys: leave that word out, run twiceproof keys rotate, put it back.",
                at=at, key_id=name,
            )  # fmt: skip
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise CannotOpen(
                f"{_named(at)} is sealed with the key {name!r}, which is not here; put it into TWICEPROOF_KEYS, behind "
                "the current one.", at=at, key_id=name,
            )  # fmt: skip
        try:
            data = b64decode(body[len(PREFIX) + len(name) + 1 :], validate=True)
            return str(cipher.decrypt(data[:NONCE], data[NONCE:], bound_to(at)), "utf-8")
        except (binascii.Error, ValueError, _invalid_tag()):
            raise CannotOpen(
                f"{_named(at)} does not open with the key {name!r}: it was changed, or moved here from another row; "
                "restore it from a backup.", at=at, key_id=name,
            ) from None  # fmt: skip

    def misses(self, error: CannotOpen) -> bool:
        """Whether a key is wanting, for whoever runs this to add. Otherwise it is the row that is bad."""
        return error.data.get("key_id", PLAIN) not in (PLAIN, *self.ids)

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self.ids)})"


def key_id_of(body: str) -> str:
    """Which key a stored body is sealed with; PLAIN for none."""
    return body[len(PREFIX) :].partition(":")[0] if body.startswith(PREFIX) else PLAIN


def bound_to(at: Address) -> bytes:
    """Unmistakable: no part of an address has a NUL."""
    return f"{at.space}\0{at.kind}\0{at.key}".encode()


def as_keyring(keys: str | Keyring | None) -> Keyring | None:
    """From `id:base64`, several apart by space or comma, the one that seals first. Never repeats what it was given.

    The word `sealed-only` among them: rows that are not sealed are not believed.
    """
    if keys is None or isinstance(keys, Keyring):
        return keys
    found: dict[str, bytes] = {}
    words = [word for word in re.split(r"[\s,]+", keys) if word]
    for number, word in enumerate((word for word in words if word != SEALED_ONLY), 1):
        name, _, text = word.partition(":")
        try:
            key = b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not _ID.fullmatch(name) or len(key) not in SIZES or name in found:
            raise Misuse(
                f"Key number {number} cannot be used: write id:base64 of 16, 24 or 32 bytes, each id once; make one "
                "with: twiceproof keys new"
            )
        found[name] = key
    if words and not found:
        raise Misuse(f"{SEALED_ONLY} needs a key to seal with; make one with: twiceproof keys new")
    return Keyring(found, plain=SEALED_ONLY not in words) if found else None


def _named(at: Address) -> str:
    return f"The {at.kind} {at.key!r} of {at.space!r}"


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise Misuse(
            f"Sealing stored values needs {error.name}, which is not installed; run: pip install 'twiceproof[crypto]'"
        ) from error
    return AESGCM(key)


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag
