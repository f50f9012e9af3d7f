"""For tools that cannot branch on a status: every outcome is a 200, and the body says which it was."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from ..reply import JSON, Reply

__all__ = ["OUTCOMES", "always_200"]

# Not what is wrong with the request, the caller or the ledger: taken for a duplicate, it would stop work in silence.
OUTCOMES = (200, 201, 404, 409, 422)


def always_200(reply: Reply) -> Reply:
    if reply.status not in OUTCOMES:
        return reply
    fields = msgspec.json.decode(reply.body, type=dict[str, Raw])
    fields.setdefault("claimed", Raw(b"false"))
    fields["status"] = Raw(str(reply.status).encode())
    headers = [header for header in reply.headers if header[0] != "content-type"]
    return Reply(200, (("content-type", JSON), *headers), msgspec.json.encode(fields))
