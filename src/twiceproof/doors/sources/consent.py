"""The question whether a sender may send at all: an OPTIONS request, as CloudEvents' webhooks ask it."""

from __future__ import annotations

import re
from collections.abc import Collection

from ..envelope import Envelope
from ..reply import Reply
from ..source import Handshake

__all__ = ["consent"]

ASKING = "webhook-request-origin"
HOST = re.compile(r"[A-Za-z0-9.:*-]{1,255}")


def consent(envelope: Envelope, origins: Collection[str]) -> Handshake | None:
    """Yes, to whom it concerns. It lets nobody in: what is sent must still carry the secret.

    Where the secret is in the URL, it must be in this one's, too. Where it is in a header, senders leave it out here:
    then whoever asks learns that there is such an address, and no more.
    """
    if envelope.method != "OPTIONS":
        return None
    asking = envelope.header(ASKING)
    allow = ("allow", "POST, OPTIONS")
    if not HOST.fullmatch(asking) or (origins and asking not in origins):
        return Handshake(Reply(200, (allow,)))  # without the other headers it is a no
    return Handshake(Reply(200, (allow, ("webhook-allowed-origin", asking), ("webhook-allowed-rate", "*"))))
