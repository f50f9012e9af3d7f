"""The orders that are claimed: keys as a shop would have them, and asks as `@app.once` would make them."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import Any

from twiceproof.claims.claim import address_of, body_of, run_id
from twiceproof.claims.states import ClaimRequest, claim_for
from twiceproof.clock import Ids
from twiceproof.keys import fingerprint

__all__ = ["LEASE", "RESULT", "TENANT", "Asks", "Keys", "growing", "numbered", "order", "random_keys", "typical_body"]

TENANT = "default"
LEASE = 30.0
RESULT = {"invoice": "inv_0001", "total": "119.00", "paid": True}

Keys = Callable[[], str]


def growing(start: int = 0) -> Keys:
    """Order numbers, as most systems count them. Safe to call from threads: `next` is one step."""
    numbers = itertools.count(start)
    return lambda: numbered(next(numbers))


def numbered(number: int) -> str:
    return f"shop:order:{number:08d}"


def random_keys() -> Keys:
    return lambda: f"shop:order:{uuid.uuid4()}"


def order(key: str) -> dict[str, Any]:
    """What came in: small, as webhooks go."""
    return {"id": key, "customer": "cus_0017", "total": "119.00", "lines": [{"sku": "A-1", "quantity": 2}]}


class Asks:
    """Everything a caller pays for before the store is asked: key, fingerprint, owner, run id."""

    def __init__(self, operation: str, keys: Keys) -> None:
        self._operation = operation
        self._keys = keys
        self._owner = Ids(lambda: "bench:")

    def __call__(self) -> ClaimRequest:
        return self.of(self._keys())

    def of(self, key: str) -> ClaimRequest:
        at = address_of(TENANT, self._operation, key)
        return ClaimRequest(
            at=at,
            operation=self._operation,
            key=key,
            owner=self._owner(),
            lease=LEASE,
            tenant=TENANT,
            fingerprint=fingerprint({"order": order(key)}),
            run=run_id(at.space),
        )


def typical_body() -> str:
    """The body of a claim, for raw rows as large as ours."""
    return body_of(claim_for(Asks("raw", growing())(), 1))
