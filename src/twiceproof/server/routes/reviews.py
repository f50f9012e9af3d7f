"""Reviews routes; settling."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from ...claims.claim import DONE, FAILED, NO_RESULT, RUN, Done, Settlement, claim_of
from ...claims.manager import FOR_EVER, ClaimManager
from ...claims.retention import run_or_claim
from ...claims.states import Lifetime, is_expired
from ...errors import Misuse
from ...flows.history.review import SettledRun, Word, settle_run
from ...inbound.reply import PROBLEM, Reply, json_reply, problem
from ...keys import validate_key
from ...operations import Operation, await_
from ...records import Address
from ..request import ApiRequest
from ..routing import ApiRoute, RouteAnswer
from ..services.claim_messages import given
from .params import body_of, place_named

__all__ = ["ROUTES", "SettleBody", "settle"]


class SettleBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`step`: which one, where several are unknown. "retry": what stopped the run is repaired. `did`: with "undo",
    whether the unknown step happened."""

    verdict: Literal["happened", "did-not-happen", "retry", "undo", "abandon"]
    result: Raw | UnsetType = UNSET
    step: str = ""
    evidence: str = ""
    did: bool | None = None
    note: str = ""
    by: str = ""


def settle(claims: ClaimManager, at: Address, body: SettleBody, by: str, life: Lifetime | None) -> Operation[Reply]:
    """404 for what is not there, 409 for what cannot be settled now."""
    found = yield from run_or_claim(claims.store, at.space)
    if found.record is None or is_expired(found.record, found.now):
        return problem(
            404, "no-such-run", "There is no such run or claim.", next_move="List what waits: GET /v1/runs?state=review"
        )
    at = found.record.at
    result = NO_RESULT if body.result is UNSET else given(body.result)
    try:
        if at.kind == RUN:
            word = Word(body.verdict, by, body.note, body.step, result, body.evidence, body.did)
            return json_reply(200, (yield from settle_run(claims.store, at, word, life=life or FOR_EVER)))
        return (
            yield from _settle_claim(claims, at, body, Settlement(body.verdict, by, found.now, body.note), result, life)
        )
    except Misuse as error:
        text = str(error)
        apart = "; " if "; " in text else ". "
        said, _, move = text.rpartition(apart)
        return problem(409, "not-settled", said or text, next_move=move if said else "Look at it: GET /v1/runs/{run}")


def _settle_claim(
    claims: ClaimManager, at: Address, body: SettleBody, word: Settlement, result: Raw, life: Lifetime | None
) -> Operation[Reply]:
    if body.verdict in ("retry", "undo") or body.step or body.evidence or body.did is not None:
        raise Misuse("This is a claim, and has no steps; say happened (with its result), did-not-happen or abandon.")
    kept = result if body.verdict == "happened" else NO_RESULT
    outcome = yield from claims.settle(at, word, result=kept, life=life or FOR_EVER)
    run = claim_of((yield from claims.store.read(at)).record).run  # type: ignore[arg-type]
    return json_reply(200, SettledRun(run, DONE if isinstance(outcome, Done) else FAILED, body.verdict))


async def settle_review(call: ApiRequest) -> Reply:
    body = body_of(call, SettleBody)
    at = await await_(place_named(call))
    who = call.principal.name or body.by
    if not who:
        return problem(400, "nameless", "Nobody knows whose word this is.", next_move="Say who you are (`by`).")
    operation = at.space.split("/", 2)[1]
    return await await_(settle(call.app.claims, at, body, validate_key(who), _life(call, operation)))


def _life(call: ApiRequest, operation: str) -> Lifetime | None:
    known = call.app.flows.get(operation) or call.app.operations.get(operation)
    return known.policy.life if known else None


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "POST",
        "/v1/reviews/{name}",
        "settle",
        settle_review,
        "Say what happened, and have it go on",
        body=SettleBody,
        params={"name": "The id of a run, or of a claim (`run` in its answers), or FLOW%2FKEY"},
        tag="reviews",
        answers={
            200: RouteAnswer("What it is now.", SettledRun),
            404: RouteAnswer("There is no such run or claim.", None, PROBLEM),
            409: RouteAnswer("There is nothing to settle now, or too little was said.", None, PROBLEM),
        },
    ),
)
