"""The `Idempotency-Key` of a start: one request, however often it is sent. The run is named by its flow's key."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from ...claims.claim import address_of, run_id
from ...claims.outcomes import Busy, Done, Held, TakeOutcome
from ...claims.results import Packed
from ...claims.states import Ask, Lifetime, claim_for
from ...drive import Operation
from ...flows.flow import Flow
from ...flows.tenancy import own_space
from ...keys import body_hash
from ...records import Address
from ..reply import Reply, problem, retry_after

__all__ = ["Begun", "begin_once"]

LEASE = 30.0
LIFE = Lifetime()


class Begun(Struct, frozen=True):
    """Which run a start came to, and whether it was the first."""

    run: str
    first: bool


def begin_once(flow: Flow, request: str, body: Raw, start: Operation[Begun]) -> Operation[Begun | Reply]:
    """The start is harmless to repeat: it finds the run that it began. So a start that died is simply made again."""
    claims, ask = flow.parts.claims, _ask(flow, request, body)
    taken = yield from claims.take(ask)
    if isinstance(taken, Held):
        try:
            begun = yield from start
        except Exception:  # also of the user's own key function
            yield from claims.release(taken)  # nothing was begun: the corrected request may have the same key
            raise
        packed = Packed(inline=Raw(msgspec.json.encode(begun.run)))
        yield from claims.complete(taken, claim_for(ask, taken.attempt), packed, LIFE)
        return begun
    start.close()
    if isinstance(taken, Done) and taken.result:
        run = msgspec.json.decode(taken.result, type=str)
        claims.duplicates.blocked(flow.name, own_space(ask.tenant, run).split("/", 2)[2], tenant=ask.tenant)
        return Begun(run, first=False)
    return _refused(taken)


def _ask(flow: Flow, request: str, body: Raw) -> Ask:
    operation, tenant = f"start.{flow.name}"[:128], flow.policy.tenant
    at: Address = address_of(tenant, operation, request)
    return Ask(
        at, operation, request, flow.parts.owner(), LEASE, tenant, body_hash(bytes(body)), run_id(at.space),
        repeat="safe",
    )  # fmt: skip


def _refused(taken: TakeOutcome) -> Reply:
    if isinstance(taken, Busy):
        return problem(
            409, "in-progress", "The same request is being answered right now.", next_move="Send it again in a moment.",
            headers=[retry_after(1)],
        )  # fmt: skip
    return problem(
        422, "payload-mismatch", "This Idempotency-Key came before, with another body.",
        next_move="Use a new key for a new request, or send the same body.",
    )  # fmt: skip
