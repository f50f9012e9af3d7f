"""Keyring and EncryptedEngine (AES-GCM, bound to the row).

An encrypted body is `sealed:1:KEY-ID:` and the base64 of a random 96-bit nonce, the ciphertext and its tag. The first
key encrypts, all keys decrypt. The associated data is the row's own address: a body that is copied to another row or
tenant cannot be decrypted there. Keys, states, queues and times are not encrypted: records are found by them, and no
condition of a write looks at a body.
"""

from __future__ import annotations

import binascii
import logging
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import structs

from ..errors import CannotOpen, Misuse
from ..operations import Operation
from ..records import Address, Batch, Conflict, Due, Found, Insert, Lost, Outcome, Page, Record, Replace
from .base import Engine, Finding, SpaceBusy, all_beside
from .user_drivers import Driver
from .user_transaction import Joins

__all__ = ["PLAIN", "EncryptedEngine", "Keyring", "as_keyring", "key_id_of"]


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
            raise Misuse("A keyring needs a key; make one with: twiceproof encryption new-key")
        for name, key in keys.items():
            if not _ID.fullmatch(name) or len(key) not in SIZES:
                raise Misuse(
                    "A key is an id (letters, digits, _ . -) and 16, 24 or 32 bytes; "
                    "make one with: twiceproof encryption new-key"
                )
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
        """Plain rows, written before there were keys, are read as they are, unless `sealed-only` is set."""
        name = key_id_of(body)
        if name == PLAIN and self.plain:
            return body
        if name == PLAIN:
            raise CannotOpen(
                f"{_named(at)} is not sealed, and TWICEPROOF_KEYS says {SEALED_ONLY}; find out who wrote it. If it is "
                "your own, from before there were keys: leave that word out, "
                "run twiceproof encryption rotate, put it back.",
                at=at,
                key_id=name,
            )
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise CannotOpen(
                f"{_named(at)} is sealed with the key {name!r}, which is not here; put it into TWICEPROOF_KEYS, behind "
                "the current one.",
                at=at,
                key_id=name,
            )
        try:
            data = b64decode(body[len(PREFIX) + len(name) + 1 :], validate=True)
            return str(cipher.decrypt(data[:NONCE], data[NONCE:], bound_to(at)), "utf-8")
        except (binascii.Error, ValueError, _invalid_tag()):
            raise CannotOpen(
                f"{_named(at)} does not open with the key {name!r}: it was changed, or moved here from another row; "
                "restore it from a backup.",
                at=at,
                key_id=name,
            ) from None

    def misses(self, error: CannotOpen) -> bool:
        """Whether a key is missing, which the operator can add. Otherwise the row itself is damaged."""
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

    With `sealed-only` among them, rows that are not encrypted are refused.
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
                "with: twiceproof encryption new-key"
            )
        found[name] = key
    if words and not found:
        raise Misuse(f"{SEALED_ONLY} needs a key to seal with; make one with: twiceproof encryption new-key")
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


log = logging.getLogger("twiceproof")

SHARED = "~"  # how the spaces begin that are no tenant's own


class EncryptedEngine:
    """Wraps an engine."""

    def __init__(self, inner: Engine, keyring: Keyring) -> None:
        self.inner = inner
        self.keyring = keyring
        self.batch_limit = inner.batch_limit
        self.group_limit = inner.group_limit
        self.reads_first = inner.reads_first
        self.best_effort = inner.best_effort
        self.newest_first = inner.newest_first
        self.one_per_space = inner.one_per_space
        self.links_spaces = getattr(inner, "links_spaces", False)
        self.instant = getattr(inner, "instant", False)
        self.remote = getattr(inner, "remote", False)
        most: int | None = getattr(inner, "body_limit", None)
        if most is not None:
            self.body_limit = most * 7 // 10  # what is sealed is longer by a third
        joins: Joins | None = getattr(inner, "joins", None)
        self.joins = None if joins is None else SealedJoins(joins, self)

    def __getattr__(self, name: str) -> Any:
        """What only some engines have, such as `listen`."""
        return getattr(self.inner, name)

    # -- in --------------------------------------------------------------------------------------

    def commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | SpaceBusy | Exception]:
        answers = self.inner.commit([self.sealed(batch) for batch in batches])
        return [self._opened_answer(answer) for answer in answers]

    def sealed(self, batch: Batch) -> Batch:
        writes = [self._sealed_write(write) for write in batch.writes]
        return Batch(writes, batch.nonce, others=batch.others)

    def _sealed_write(self, write: Any) -> Any:
        if not isinstance(write, Insert | Replace) or write.body is None:
            return write
        return structs.replace(write, body=self.keyring.seal(write.at, write.body))

    # -- out -------------------------------------------------------------------------------------

    def _opened_answer(self, answer: Outcome | SpaceBusy | Exception) -> Outcome | SpaceBusy | Exception:
        try:
            return self.opened_outcome(answer) if isinstance(answer, Conflict | Lost) else answer
        except CannotOpen as error:
            return error  # of this batch alone: its neighbours have answers of their own

    def opened_outcome(self, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, Conflict | Lost) or outcome.found is None:
            return outcome
        return structs.replace(outcome, found=self._opened(outcome.found))

    def _opened(self, record: Record) -> Record:
        return structs.replace(record, body=self.keyring.open(record.at, record.body))

    def fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        found = self.inner.fetch(addresses)
        return [one if one.record is None else structs.replace(one, record=self._opened(one.record)) for one in found]

    def scan(
        self,
        kind: str,
        space: str | None,
        state: str | None,
        after: str | None,
        limit: int,
        newest: bool | None = None,
        prefix: str | None = None,
    ) -> Page:
        """What one space holds belongs together: what a ledger lacks a step of would be done again. Elsewhere,
        in lists and in what all tenants share, one bad row is left out: it must not keep a token from being revoked.
        """
        page = self.inner.scan(kind, space, state, after, limit, newest, prefix)
        if space is None or space.startswith(SHARED):
            records = list(self._sound(page.records))
            return structs.replace(page, records=records, cursors=_cursors_left(page, records))
        return structs.replace(page, records=[self._opened(record) for record in page.records])

    def beside(self, spaces: Sequence[str], kinds: Sequence[str], limit: int) -> Sequence[Record]:
        return [self._opened(record) for record in all_beside(self.inner, spaces, kinds, limit)]

    def _sound(self, records: Sequence[Record]) -> Iterator[Record]:
        """Where it is a key that is wanting, or nothing opens at all, that is said instead."""
        bad: CannotOpen | None = None
        left = len(records)
        for record in records:
            try:
                yield self._opened(record)
            except CannotOpen as error:
                bad, left = error, left - 1
                if self.keyring.misses(error):
                    raise
                log.error("left out: %s", error)
        if bad is not None and not left:
            raise bad

    def due(self, kind: str, queues: Collection[str], limit: int, hide: float) -> Due:
        due = self.inner.due(kind, queues, limit, hide)
        return structs.replace(due, records=list(self._readable(due.records)))

    def _readable(self, records: Iterable[Record]) -> Iterator[Record]:
        """One that does not open is left out and said so, each time it comes round: the others must not wait for it."""
        for record in records:
            try:
                yield self._opened(record)
            except CannotOpen as error:
                log.error("left lying: %s", error)

    # -- life ------------------------------------------------------------------------------------

    def examine(self) -> Sequence[Finding]:
        keys = f"stored values are sealed with the key {self.keyring.current!r}"
        others = self.keyring.ids[1:]
        move = "rewrite what is left with: twiceproof encryption rotate"
        advice = f"Opens also {', '.join(others)}; {move}" if others else ""
        if not self.keyring.plain:
            keys += ", and nothing else is believed"
        return [*self.inner.examine(), Finding("ok", "sealing", keys, advice)]

    def close(self) -> None:
        self.inner.close()

    def abandon(self) -> None:
        self.inner.abandon()


class SealedJoins:
    """The ledger in a user's own transaction, sealed as everywhere."""

    def __init__(self, inner: Joins, engine: EncryptedEngine) -> None:
        self._inner = inner
        self._engine = engine
        self.dialect = inner.dialect

    def connect(self, *, awaited: bool) -> Any:
        return self._inner.connect(awaited=awaited)

    def lock(self, driver: Driver) -> Operation[None]:
        return self._inner.lock(driver)

    def check(self, driver: Driver, mark: str) -> Operation[str]:
        return self._inner.check(driver, mark)

    def land(self, driver: Driver, mark: str, batch: Batch) -> Operation[Outcome]:
        outcome = yield from self._inner.land(driver, mark, self._engine.sealed(batch))
        return self._engine.opened_outcome(outcome)

    def check_for_inserts(self, driver: Driver, mark: str, *, ordered: bool) -> Operation[None]:
        return self._inner.check_for_inserts(driver, mark, ordered=ordered)

    def insert_each(
        self, driver: Driver, mark: str, batches: Sequence[Batch], *, first: bool
    ) -> Operation[Sequence[Outcome]]:
        sealed = [self._engine.sealed(batch) for batch in batches]
        landed = yield from self._inner.insert_each(driver, mark, sealed, first=first)
        return [self._engine.opened_outcome(outcome) for outcome in landed]

    def allow_end(self, driver: Driver) -> None:
        self._inner.allow_end(driver)

    def prove(self, landed: Sequence[Batch]) -> None:
        self._inner.prove(landed)

    def end(self, session: str) -> None:
        self._inner.end(session)

    def explain(self, error: BaseException) -> BaseException:
        return self._inner.explain(error)


def _cursors_left(page: Page, records: Sequence[Record]) -> Sequence[str]:
    """Those of the records that could be opened."""
    there = {record.at for record in records}
    return [cursor for record, cursor in zip(page.records, page.cursors, strict=False) if record.at in there]
