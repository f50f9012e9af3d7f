"""What we hand out and want to recognise: signed with a key that all processes on one store share.

The key is drawn once and rests in the store, so that it outlives every process. Whoever can read the store could sign;
so nothing that must stay closed to them (a link, an access token) hangs on a signature alone.
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
MARK = 32  # letters of a signature that are handed out: 128 bits

_KNOWN: WeakKeyDictionary[Store, StoreSigner] = WeakKeyDictionary()  # one read per process, not one per request


class StoreSigner:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, *parts: str) -> str:
        """Each part with its length: `ab` + `c` and `a` + `bc` are two things."""
        text = "".join(f"{len(part)}:{part}" for part in parts)
        return hmac.new(self._key, text.encode(errors="surrogatepass"), "sha256").hexdigest()[:MARK]

    def signed(self, mark: str, *parts: str) -> bool:
        """In constant time."""
        return hmac.compare_digest(mark.encode(errors="replace"), self.sign(*parts).encode())


def signer(store: Store) -> Operation[StoreSigner]:
    """Of several processes that come first, one draws the key, and all of them use it."""
    known = _KNOWN.get(store)
    if known is not None:
        return known
    record = (yield from store.read(AT)).record
    if record is None:
        drawn = secrets.token_hex(KEY_BYTES)
        written = yield from store.write(Insert(AT, drawn))
        body = drawn if isinstance(written, Written) else (yield from store.read(AT)).record.body  # type: ignore[union-attr]
    else:
        body = record.body
    found = _KNOWN[store] = StoreSigner(bytes.fromhex(body))
    return found
