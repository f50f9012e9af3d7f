"""Signs tokens that the server issues and later recognises, with a key shared by all processes on one store.

The key is generated once and stored, so that it survives restarts. Anyone who can read the store can sign, so nothing
that must be protected from them (links, access tokens) relies on a signature alone.
"""

from __future__ import annotations

import hmac
import secrets
from weakref import WeakKeyDictionary

from ..claims.claim import SELF
from ..operations import Operation
from ..records import Address, Insert, Written, record_kind
from ..stores.base import Store

__all__ = ["StoreSigner", "signer"]


AT = Address("signing/key", record_kind("signing"), SELF)
KEY_BYTES = 32
MARK = 32  # characters of a signature that are issued: 128 bits

_KNOWN: WeakKeyDictionary[Store, StoreSigner] = WeakKeyDictionary()  # one read per process, not one per request


class StoreSigner:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, *parts: str) -> str:
        """Sign the parts with their lengths, so that `ab` + `c` and `a` + `bc` differ."""
        text = "".join(f"{len(part)}:{part}" for part in parts)
        return hmac.new(self._key, text.encode(errors="surrogatepass"), "sha256").hexdigest()[:MARK]

    def signed(self, mark: str, *parts: str) -> bool:
        """Whether `mark` is the signature of these parts, compared in constant time."""
        return hmac.compare_digest(mark.encode(errors="replace"), self.sign(*parts).encode())


def signer(store: Store) -> Operation[StoreSigner]:
    """Return the store's signer. If several processes generate the key at once, all use the one written first."""
    known = _KNOWN.get(store)
    if known is not None:
        return known
    record = (yield from store.read(AT)).record
    if record is None:
        generated = secrets.token_hex(KEY_BYTES)
        written = yield from store.write(Insert(AT, generated))
        body = generated if isinstance(written, Written) else (yield from store.read(AT)).record.body  # type: ignore[union-attr]
    else:
        body = record.body
    found = _KNOWN[store] = StoreSigner(bytes.fromhex(body))
    return found
