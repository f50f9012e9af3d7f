"""The token: what a holder over HTTP shows to prove that a claim is, or was, its own.

The store knows the hash of its secret, as the claim's owner: who reads the store, its signing key too, has no token.
"""

from __future__ import annotations

import re
import secrets
from hashlib import sha256

from msgspec import Struct

from ...drive import Operation
from ...errors import Misuse
from ...records import Address
from ...stores.base import Store
from ..patterns import UUID_OR_NONE
from ..signing import signer

__all__ = ["ClaimToken", "draw_secret", "owner_of", "read_token", "secret_of_request", "write_token"]

OWNER = "http-"
RANDOM_UUID = re.compile(UUID_OR_NONE["pattern"])
TOKEN = re.compile(r"ct_([0-9a-f]{1,32})\.([0-9a-f]{1,8})\.([0-9a-f]{32})\.([0-9a-f]{32})", re.ASCII)


class ClaimToken(Struct, frozen=True):
    """Which take of which claim: the fence tells it from every other, the owner survives the claim's end."""

    fence: int
    attempt: int
    owner: str


def draw_secret() -> str:
    """The call, not the tool: two calls are two owners."""
    return secrets.token_hex(16)


def secret_of_request(at: Address, caller: str, request: str) -> str:
    """The same for a request that its caller sends again because its answer was lost.

    Nothing but the id tells such a caller from a second one with the same server token and the same payload. So an id
    that a second one could come to by itself (a counter, a run's number) is refused: both would hold the claim.
    """
    if RANDOM_UUID.fullmatch(request) is None:
        raise Misuse(
            f"request_id {request[:60]!r} is no random UUID, and another caller could send the same; draw one for each "
            "request, once (version 4 or 7), and send it again with each new attempt. Files that were made by "
            "`twiceproof connector` before are to be made and imported again."
        )
    return sha256(f"{len(at.space)}:{at.space}{len(caller)}:{caller}{request.lower()}".encode()).hexdigest()[:32]


def owner_of(secret: str) -> str:
    return OWNER + sha256(f"owner:{secret}".encode()).hexdigest()[:16]


def write_token(store: Store, at: Address, fence: int, attempt: int, secret: str) -> Operation[str]:
    stem = f"{fence:x}.{attempt:x}.{secret}"
    return f"ct_{stem}.{(yield from signer(store)).sign('claim', at.space, stem)}"


def read_token(store: Store, at: Address, text: str) -> Operation[ClaimToken | None]:
    """None: we never handed this out, or not for this claim. Whether its secret is the holder's, its owner says."""
    found = TOKEN.fullmatch(text)
    if found is None:
        return None
    fence, attempt, secret, signature = found.groups()
    if not (yield from signer(store)).signed(signature, "claim", at.space, f"{fence}.{attempt}.{secret}"):
        return None
    return ClaimToken(int(fence, 16), int(attempt, 16), owner_of(secret))
