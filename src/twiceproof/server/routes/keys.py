"""The route of one key: its state, its result, and its history."""

from __future__ import annotations

from msgspec import Raw, Struct

from ...claims.claim import shown_id, space_of, validate_name
from ...claims.states import kept_until
from ...errors import Misuse
from ...inbound.reply import PROBLEM, Reply, json_reply, problem
from ...keys import validate_key
from ...operations import await_
from ..request import ApiRequest
from ..routing import ApiRoute, RouteAnswer
from ..services.key_history import HistoryEntry, KeyRecords, read_history, read_key

__all__ = ["ROUTES", "KeyHistory"]


class KeyHistory(Struct, frozen=True, kw_only=True):
    """A key as it is now, and its history in order of time. `run`: empty for a claim without steps. `came`: how often
    it came, of which `blocked` were answered without doing the work again. `href` is a page of the dashboard."""

    operation: str
    key: str
    state: str
    lapsed: bool
    run: str
    owner: str
    created_at: float
    updated_at: float
    lease_until: float | None
    kept_until: float | None
    reason: str
    result_kept: bool
    result: Raw | None
    ids: list[str]
    came: int
    blocked: int
    history: list[HistoryEntry]


def _shape(records: KeyRecords, history: list[HistoryEntry], blocked: int) -> KeyHistory:
    record, claim = records.record, records.claim
    return KeyHistory(
        operation=claim.operation,
        key=claim.key,
        state=record.state,
        lapsed=records.is_lapsed,
        run=shown_id(records.at) if records.whole is not None else "",
        owner=claim.owner,
        created_at=record.created_at,
        updated_at=record.updated_at,
        lease_until=record.lease_until,
        kept_until=kept_until(record, claim),
        reason=records.reason,
        result_kept=bool(records.result),
        result=Raw(records.result) if records.result else None,
        ids=records.ids,
        came=blocked + 1,
        blocked=blocked,
        history=history,
    )


async def show(call: ApiRequest) -> Reply:
    store, name = call.app.store, call.params
    try:
        space = space_of(
            call.app.settings.tenant, validate_name("operation", name["operation"]), validate_key(name["key"])
        )
    except Misuse:
        return _no_such_key()
    records = await await_(read_key(store, space))
    if records is None:
        return _no_such_key()
    return json_reply(200, _shape(records, *await await_(read_history(store, records))))


def _no_such_key() -> Reply:
    return problem(
        404,
        "no-such-key",
        "Nothing is on record under this key.",
        next_move="Find it by another name: GET /v1/find",
    )


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/keys/{operation}/{key}",
        "look_at_key",
        show,
        "Tell the history of a key",
        params={
            "operation": "A flow, a guarded function, or hook.NAME for an event of a webhook",
            "key": "Its key, percent-encoded: shop%3Aorder%3A17",
        },
        tag="keys",
        answers={
            200: RouteAnswer("The key and its history.", KeyHistory),
            404: RouteAnswer("Nothing is on record under this key.", None, PROBLEM),
        },
    ),
)
