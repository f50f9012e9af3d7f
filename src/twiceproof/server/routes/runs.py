"""Runs routes; starting a run once."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from ...claims.claim import (
    DONE,
    FAILED,
    REVIEW,
    RUN,
    Busy,
    Done,
    Held,
    TakeOutcome,
    address_of,
    claim_of,
    run_address,
    run_id,
    space_of_run,
    validate_name,
)
from ...claims.duplicates import source_var
from ...claims.results import Packed, unpack
from ...claims.run_ids import shown_id
from ...claims.states import ClaimRequest, Lifetime, claim_for, is_expired
from ...errors import Misuse
from ...flows.engine.compensation import cancel
from ...flows.flow import Flow
from ...flows.history.queries import ALL, EVERY_STATE, Filter, RunPage, list_runs, look_at_run, require_run
from ...flows.history.review import retry_run
from ...flows.history.run_view import WholeRun
from ...flows.runtime import own_space, require_own_run
from ...inbound.envelope import report
from ...inbound.reply import PROBLEM, Malformed, Reply, json_reply, malformed_key, problem, read_key, retry_after
from ...keys import body_hash, validate_key
from ...keys.duration import seconds
from ...operations import Operation, await_
from ...records import Address, Found
from ..openapi import NAME_OR_NONE, SPAN
from ..request import ApiRequest, RequestRefused
from ..routing import ApiRoute, RouteAnswer
from .params import body_of, json_of, run_named

__all__ = ["LONGEST_WAIT", "ROUTES", "Begun", "Start", "StartedRun", "begin_once", "start_run"]


LEASE = 30.0
LIFE = Lifetime()


class Begun(Struct, frozen=True):
    """Which run a start came to, as it is stored, and whether it was the first."""

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


def _ask(flow: Flow, request: str, body: Raw) -> ClaimRequest:
    operation, tenant = f"start.{flow.name}"[:128], flow.policy.tenant
    at: Address = address_of(tenant, operation, request)
    return ClaimRequest(
        at,
        operation,
        request,
        flow.parts.owner(),
        LEASE,
        tenant,
        body_hash(bytes(body)),
        run_id(at.space),
        repeat="safe",
    )


def _refused(taken: TakeOutcome) -> Reply:
    if isinstance(taken, Busy):
        return problem(
            409,
            "in-progress",
            "The same request is being answered right now.",
            next_move="Send it again in a moment.",
            headers=[retry_after(1)],
        )
    return problem(
        422,
        "payload-mismatch",
        "This Idempotency-Key came before, with another body.",
        next_move="Use a new key for a new request, or send the same body.",
    )


LONGEST_WAIT = 60.0
LONGEST_PAUSE = 1.0
ENDS = (DONE, FAILED, REVIEW)


class Start(Struct, frozen=True):
    """What a caller asks for. `request` is its Idempotency-Key, `starter` who it is."""

    input: Raw
    request: str = ""
    wait: float = 0.0
    starter: str = ""
    correlation: str = ""

    @property
    def own_request(self) -> str:
        """A caller's key is its own: another's, with another body, is no mismatch. A token's name has no slash."""
        return f"{self.starter}/{self.request}"


class StartedRun(Struct, frozen=True):
    """`started`: by this very request. `result` and `error` are there once it has ended."""

    run: str
    flow: str
    key: str
    state: str
    started: bool
    result: Raw | None = None
    result_kept: bool = False
    error: str = ""


def start_run(flow: Flow, start: Start) -> Operation[Reply]:
    """202 for a run that goes on, 200 for one that has ended or was there before."""
    begin = _begin(flow, start)
    begun = (
        (yield from begin_once(flow, start.own_request, start.input, begin)) if start.request else (yield from begin)
    )
    if isinstance(begun, Reply):
        return begun
    at = require_own_run(flow.policy.tenant, run_address(space_of_run(begun.run)))
    report("runs", "new" if begun.first else "duplicate", key=_key_of(at), run=shown_id(at))
    found = yield from _awaited(flow, at, min(start.wait, LONGEST_WAIT))
    shape = yield from _shape(flow, begun, found, at)
    status = 202 if begun.first and shape.state not in ENDS else 200
    return json_reply(status, shape, [("location", f"/v1/runs/{shown_id(at)}")])


def _begin(flow: Flow, start: Start) -> Operation[Begun]:
    args, kwargs = _arguments(flow, start.input)
    try:
        handle, first = yield from flow.begin(
            args, kwargs, heard=True, plain=True, starter=start.starter, correlation=start.correlation
        )
    except Misuse:
        if not _is_wrapped(flow, args):
            raise
        (name,) = flow.inputs.names
        raise Misuse(
            f"{flow.name} takes one thing, and the body is that; send the value of {name!r} by itself."
        ) from None
    except TypeError as error:
        names = ", ".join(flow.inputs.names)
        raise Misuse(
            f"{flow.name} takes ({names}), and the body does not fit: {error}; send a field for each."
        ) from None
    if handle.at.kind != RUN:
        raise Misuse(
            f"{flow.name} for {_key_of(handle.at)!r} was claimed by a guarded function of this name, and is no run; "
            f"look at it with: GET /v1/claims/{flow.name}/KEY"
        )
    return Begun(run_id(handle.at.space), first)


def _arguments(flow: Flow, given: Raw) -> tuple[tuple[object, ...], dict[str, object]]:
    """Passed whole to a single parameter, otherwise spread by name."""
    value, names = msgspec.json.decode(given), flow.inputs.names
    if not names and value in (None, {}):
        return (), {}
    if len(names) == 1:
        return (value,), {}
    if not isinstance(value, dict):
        raise Misuse(f"{flow.name} takes ({', '.join(names)}), and the body is no object; send one with these fields.")
    return (), value


def _is_wrapped(flow: Flow, args: tuple[object, ...]) -> bool:
    """Written as for several parameters: an object around the one thing that the flow takes."""
    return len(args) == 1 and isinstance(args[0], dict) and list(args[0]) == flow.inputs.names


def _awaited(flow: Flow, at: Address, seconds: float) -> Operation[Found]:
    """As it is when it has ended, or when the caller's patience has."""
    store, clock = flow.parts.store, flow.parts.clock
    until = clock.monotonic() + seconds
    while True:
        found = yield from store.read(at)
        left = until - clock.monotonic()
        if left <= 0 or found.record is None or found.record.state in ENDS:
            return found
        yield from store.pause(at.space, min(left, LONGEST_PAUSE))


def _shape(flow: Flow, begun: Begun, found: Found, at: Address) -> Operation[StartedRun]:
    key = _key_of(at)
    if found.record is None or is_expired(found.record, found.now):  # begun long ago, and forgotten since
        return StartedRun(shown_id(at), flow.name, key, "forgotten", begun.first)
    record = require_run(found)
    claim = claim_of(record)
    result = yield from unpack(flow.parts.store, at, claim.result, claim.spill)
    error = (
        f"{claim.fault.type}: {claim.fault.message}" if claim.fault else claim.reason if record.state == REVIEW else ""
    )
    return StartedRun(
        shown_id(at), flow.name, key, record.state, begun.first, Raw(result) if result else None, bool(result), error
    )


def _key_of(at: Address) -> str:
    return at.space.split("/", 2)[2]


NAME = {"name": "A flow's name to start one, a run's id (`run` in its answers) or FLOW%2FKEY to look at one"}
RUN_ID_PARAM = {"name": "A run's id (`run` in its answers), or FLOW%2FKEY"}


FlowName = Annotated[str, Meta(extra_json_schema=NAME_OR_NONE)]
# To the year 9999: not a number, or milliseconds, would list nothing as if there were nothing.
Time = Annotated[float, Meta(ge=0, le=253_402_300_800, description="Seconds since 1970, not milliseconds.")]


class StartQuery(Struct, frozen=True):
    """`wait`: how long the answer may wait for the run's end, like 5s; at most a minute."""

    wait: Annotated[str, Meta(extra_json_schema=SPAN)] = "0s"


class RunsQuery(Struct, frozen=True):
    """Times are seconds since 1970, of a run's last change. `after` continues a list."""

    flow: FlowName = ""
    state: Annotated[str, Meta(extra_json_schema={"enum": ["", ALL, *EVERY_STATE]})] = ""
    key: str = ""
    prefix: str = ""
    since: Time | None = None
    until: Time | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    after: str | None = None


class WordBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose word it is, where the caller has no token that says so."""

    by: str = ""


class RunStateBody(Struct, frozen=True):
    run: str
    state: str


async def start(call: ApiRequest) -> Reply:
    flow = call.app.flows.get(call.params["name"])
    if flow is None:
        return _no_flow(sorted(call.app.flows))
    wait = min(seconds(call.ask(StartQuery).wait, name="wait", positive=False), LONGEST_WAIT)
    request = _request_key(call)
    correlation = call.headers.get("x-correlation-id", "")
    asked = Start(json_of(call), request, wait, call.principal.name, correlation and validate_key(correlation)[:200])
    door = source_var.set("http")  # what the start blocks is counted under it
    try:
        return await await_(start_run(flow, asked))
    finally:
        source_var.reset(door)


def _request_key(call: ApiRequest) -> str:
    """One that is sent and cannot be read is refused: without it, the start would not be what was asked for."""
    header = call.headers.get("idempotency-key")
    key = "" if header is None else read_key(header)
    if isinstance(key, Malformed):
        raise RequestRefused(malformed_key(key.reason))
    return key


def _no_flow(known: list[str]) -> Reply:
    there = ", ".join(known) or "none"
    return problem(404, "no-such-flow", "There is no such flow here.", next_move=f"There are: {there}.")


async def runs(call: ApiRequest) -> Reply:
    query = call.ask(RunsQuery)
    if query.state and query.state not in (*EVERY_STATE, ALL):
        known = ", ".join((*EVERY_STATE, ALL))
        return problem(400, "bad-query", f"{query.state!r:.40} is no state of a run.", next_move=f"Say one of {known}.")
    flow = validate_name("flow", query.flow) if query.flow else ""
    which = Filter(call.app.settings.tenant, flow, query.key, query.prefix, query.since, query.until)
    states = EVERY_STATE if query.state in ("", ALL) else (query.state,)
    try:
        page = await await_(list_runs(call.app.store, which, states, limit=query.limit, after=query.after))
    except Misuse:
        return _no_page()
    return json_reply(200, page)


def _no_page() -> Reply:
    """A cursor is a name that we hand out, as a run's id is: no description can say which there are."""
    return problem(
        404,
        "no-such-page",
        "`after` is no place in this list.",
        next_move="Take it from the answer before, with the same filters, or leave it out.",
    )


async def show(call: ApiRequest) -> Reply:
    at = await await_(run_named(call))
    return json_reply(200, await await_(look_at_run(call.app.store, at)))


async def stop(call: ApiRequest) -> Reply:
    by = body_of(call, WordBody).by
    at = await await_(run_named(call))
    who = call.principal.name or (validate_key(by) if by else "http")
    return await _moved(at, cancel(call.app.store, at, who, call.app.parts.life_of(at)))


async def again(call: ApiRequest) -> Reply:
    body_of(call, WordBody)
    at = await await_(run_named(call))
    return await _moved(at, retry_run(call.app.store, at))


async def _moved(at: Address, operation: Operation[str]) -> Reply:
    """409 for what a run's state does not allow."""
    try:
        state = await await_(operation)
    except Misuse as error:
        raise RequestRefused(
            problem(409, "not-now", str(error), next_move="Look at the run, and do what it allows.")
        ) from None
    return json_reply(200, RunStateBody(shown_id(at), state))


HEADERS = {
    "Idempotency-Key": "The same when this very request is sent again: 1 to 255 visible characters, bare or in quotes",
    "X-Correlation-Id": "Carried along into the run's log lines",
}
GONE = RouteAnswer("There is no such run.", None, PROBLEM)
NOT_NOW = RouteAnswer("The run's state does not allow it.", None, PROBLEM)

ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "POST",
        "/v1/runs/{name}",
        "start_run",
        start,
        "Start a run, or hear of the one that is there",
        query=StartQuery,
        params=NAME,
        headers=HEADERS,
        tag="runs",
        answers={
            202: RouteAnswer(
                "Begun: a worker carries it out.", StartedRun, headers={"Location": "where to look at it"}
            ),
            200: RouteAnswer("It was there before, or has ended within the wait.", StartedRun),
            404: RouteAnswer("There is no such flow.", None, PROBLEM),
            409: RouteAnswer("The same request is being answered right now.", None, PROBLEM),
            422: RouteAnswer("The key came before, with another body.", None, PROBLEM),
        },
    ),
    ApiRoute(
        "GET",
        "/v1/runs",
        "list_runs",
        runs,
        "List runs, those in review first",
        query=RunsQuery,
        tag="runs",
        answers={
            200: RouteAnswer("Part of the list.", RunPage),
            404: RouteAnswer("There is no such place in the list to go on from.", None, PROBLEM),
        },
    ),
    ApiRoute(
        "GET",
        "/v1/runs/{name}",
        "look_at_run",
        show,
        "Everything about one run",
        params=NAME,
        tag="runs",
        answers={200: RouteAnswer("As it is.", WholeRun), 404: GONE},
    ),
    ApiRoute(
        "POST",
        "/v1/runs/{name}/cancel",
        "cancel_run",
        stop,
        "Stop a run, and undo what it did",
        body=WordBody,
        params=RUN_ID_PARAM,
        tag="runs",
        answers={200: RouteAnswer("Its state now.", RunStateBody), 404: GONE, 409: NOT_NOW},
    ),
    ApiRoute(
        "POST",
        "/v1/runs/{name}/retry",
        "retry_run",
        again,
        "Try a failed run again; what is done stays done",
        body=WordBody,
        params=RUN_ID_PARAM,
        tag="runs",
        answers={200: RouteAnswer("Its state now.", RunStateBody), 404: GONE, 409: NOT_NOW},
    ),
)
