"""The claim service without a server: bodies go in, replies come out, and the clock is the test's."""

from __future__ import annotations

from typing import Any

import msgspec

from twiceproof.claims.manager import ClaimManager
from twiceproof.inbound.reply import JSON, Reply, read_body
from twiceproof.operations import block
from twiceproof.prove.clocks import ManualClock
from twiceproof.server.services.claim_messages import CompleteBody, FailBody, RenewBody, TakeBody
from twiceproof.server.services.claim_service import ClaimService
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine


class ClaimClient:
    """One tenant's claim service. `again()` is another process on the same store."""

    def __init__(self, engine: Any = None, clock: ManualClock | None = None, tenant: str = "default") -> None:
        self.clock = clock or ManualClock()
        self.engine = engine or MemoryEngine(self.clock)
        self.store = GroupedStore(self.engine, clock=self.clock)
        self.claims = ClaimManager(self.store, clock=self.clock)
        self.service = ClaimService(self.claims, tenant)

    def again(self, tenant: str = "default") -> ClaimClient:
        return ClaimClient(self.engine, self.clock, tenant)

    def take(self, key: str = "order:1", operation: str = "ship", **body: Any) -> Reply:
        return block(self.service.take(operation, key, _body(TakeBody, body)))

    def token(self, key: str = "order:1", **body: Any) -> str:
        return body_of(self.take(key, **body), 201)["token"]

    def complete(self, token: str, key: str = "order:1", **body: Any) -> Reply:
        return block(self.service.complete("ship", key, _body(CompleteBody, {"token": token, **body})))

    def fail(self, token: str, key: str = "order:1", **body: Any) -> Reply:
        return block(self.service.fail("ship", key, _body(FailBody, {"token": token, **body})))

    def renew(self, token: str, key: str = "order:1", **body: Any) -> Reply:
        return block(self.service.renew("ship", key, _body(RenewBody, {"token": token, **body})))

    def look(self, key: str = "order:1", status: int = 200) -> dict[str, Any]:
        return body_of(block(self.service.look("ship", key)), status)


def _body(kind: Any, fields: dict[str, Any]) -> Any:
    return read_body(kind, msgspec.json.encode(fields), JSON)


def body_of(reply: Reply, status: int) -> dict[str, Any]:
    """The body, of an answer with this status."""
    found = msgspec.json.decode(reply.body)
    assert reply.status == status, found
    return found
