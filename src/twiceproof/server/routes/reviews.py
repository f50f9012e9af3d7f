"""The review route: a person settles a run or claim whose outcome is unknown."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from ...claims.claim import DONE, FAILED, NO_RESULT, RUN, Done, Settlement, claim_of, parse_space
from ...claims.manager import FOR_EVER, ClaimManager
from ...claims.retention import run_or_claim
from ...claims.states import Lifetime, is_expired
from ...errors import Misuse
from ...flows.history.review import ReviewDecision, SettledRun, settle_run
from ...inbound.reply import PROBLEM, Reply, json_reply, problem
from ...keys import validate_key
from ...operations import Operation, await_
from ...records import Address
from ..request import ApiRequest
from ..routing import ApiRoute, RouteAnswer
from ..services.claim_messages import given

__all__ = ["ROUTES", "SettleBody", "settle"]


class SettleBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`step`: which one, if several are unknown. "retry": the cause of the stop is repaired. `did`: with "undo",
    whether the unknown step happened. `version`: the run's `record_version` that was seen; one that has changed since
    is left as it is."""

    verdict: Literal["happened", "did-not-happen", "retry", "undo", "abandon"]
    result: Raw | UnsetType = UNSET
    step: str = ""
    evidence: str = ""
    did: bool | None = None
    note: str = ""
    by: str = ""
    version: str = ""


def settle(claims: ClaimManager, at: Address, body: SettleBody, by: str, life: Lifetime | None) -> Operation[Reply]:
    """Settle a run or claim. Reply 404 if it does not exist, 409 if it cannot be settled now."""
    found = yield from run_or_claim(claims.store, at.space)
    if found.record is None or is_expired(found.record, found.now):
        return problem(
            404,
            "no-such-run",
            "There is no such run or claim.",
            next_move="List those in review: GET /v1/runs?state=review",
        )
    at = found.record.at
    result = NO_RESULT if body.result is UNSET else given(body.result)
    try:
        if at.kind == RUN:
            verdict = ReviewDecision(body.verdict, by, body.note, body.step, result, body.evidence, body.did)
            return json_reply(
                200, (yield from settle_run(claims.store, at, verdict, life=life or FOR_EVER, version=body.version))
            )
        return (
            yield from _settle_claim(claims, at, body, Settlement(body.verdict, by, found.now, body.note), result, life)
        )
    except Misuse as error:
        text = str(error)
        separator = "; " if "; " in text else ". "
        detail, _, move = text.rpartition(separator)
        return problem(
            409, "not-settled", detail or text, next_move=move if detail else "Look at it: GET /v1/runs/{run}"
        )


def _settle_claim(
    claims: ClaimManager, at: Address, body: SettleBody, settlement: Settlement, result: Raw, life: Lifetime | None
) -> Operation[Reply]:
    if body.verdict in ("retry", "undo") or body.step or body.evidence or body.did is not None:
        raise Misuse("This is a claim, which has no steps; send happened (with its result), did-not-happen or abandon.")
    kept = result if body.verdict == "happened" else NO_RESULT
    outcome = yield from claims.settle(at, settlement, result=kept, life=life or FOR_EVER, version=body.version)
    run = claim_of((yield from claims.store.read(at)).record).run  # type: ignore[arg-type]
    return json_reply(200, SettledRun(run, DONE if isinstance(outcome, Done) else FAILED, body.verdict))


async def settle_review(call: ApiRequest) -> Reply:
    body = call.body_as(SettleBody)
    at = await await_(call.named_address())
    who = call.principal.name or body.by
    if not who:
        return problem(
            400, "name-missing", "The request does not say who decides.", next_move="Send your name as `by`."
        )
    operation = parse_space(at.space).operation
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
        "Settle a run or claim in review",
        body=SettleBody,
        params={"name": "The id of a run or of a claim (`run` in its responses), or FLOW%2FKEY"},
        tag="reviews",
        answers={
            200: RouteAnswer("Its new state.", SettledRun),
            404: RouteAnswer("There is no such run or claim.", None, PROBLEM),
            409: RouteAnswer("There is nothing to settle now, or the request is incomplete.", None, PROBLEM),
        },
    ),
)
