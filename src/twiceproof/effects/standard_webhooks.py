"""Signs what we send as Standard Webhooks does: HMAC-SHA256 over id, time and body, one signature per valid secret."""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode
from collections.abc import Sequence

from ..errors import Misuse

__all__ = ["signed_headers"]

PREFIX = "whsec_"
SHORTEST = 24  # bytes, as the specification asks for


def signed_headers(message: str, at: float, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """The three headers. Receivers with the old or the new secret both find theirs."""
    stamp = str(int(at))
    content = f"{message}.{stamp}.".encode() + body
    signatures = [b64encode(hmac.digest(_key(secret), content, "sha256")).decode() for secret in secrets]
    return {
        "webhook-id": message,
        "webhook-timestamp": stamp,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def _key(secret: str) -> bytes:
    text = secret.removeprefix(PREFIX)
    try:  # with the padding that may have been left out
        key = b64decode(text if "=" in text else text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < SHORTEST:
        raise Misuse(
            f"A signing secret is {PREFIX} and the base64 of {SHORTEST} random bytes or more; make another one."
        )
    return key
