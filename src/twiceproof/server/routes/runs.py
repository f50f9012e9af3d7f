"""Run routes: start a run once, list runs, show, cancel and retry one."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from ...claims.claim import (
    DONE,
    FAILED,
    NO_RESULT,
    REVIEW,
    RUN,
    Busy,
    Done,
    Held,
    LostHold,
    address_of,
    claim_of,
    parse_space,
    run_address,
    run_id,
    shown_id,
    space_of_run,
    validate_name,
)
from ...claims.duplicates import source_var
from ...claims.held_claim import ClaimScope, EnterOutcome
from ...claims.results import Packed, unpack
from ...claims.states import ClaimRequest, Lifetime, is_expired
from ...errors import Misuse
from ...flows.engine.compensation import cancel
from ...flows.flow import Flow
from ...flows.history.queries import ALL, EVERY_STATE, Filter, RunPage, list_runs, look_at_run, require_run
from ...flows.history.review import retry_run
from ...flows.history.run_view import WholeRun
from ...flows.runtime import own_space, require_own_run
from ...inbound.reply import PROBLEM, Malformed, Reply, json_reply, malformed_key, problem, read_key, retry_after
from ...inbound.source import report
from ...keys import body_hash, validate_key
from ...keys.duration import seconds
from ...operations import Operation, await_
from ...records import Address, Found
from ..openapi import NAME_OR_NONE, SPAN
from ..problems import no_page
from ..request import ApiRequest, RequestRefused
from ..routing import ApiRoute, Handle, RouteAnswer

__all__ = ["HEADERS", "LONGEST_WAIT", "ROUTES", "Start", "StartQuery", "StartedRun", "start_from", "start_run"]


LEASE = 30.0
LIFE = Lifetime()


class Begun(Struct, frozen=True):
    """The stored reference to the run of a start, and whether this start began it."""

    run: str
    first: bool


def begin_once(flow: Flow, request: str, body: Raw, start: Operation[Begun]) -> Operation[Begun | Reply]:
    """Start a run once per Idempotency-Key. Repeating the start itself is safe, because it finds the run it began."""
    claim_request = _ask(flow, request, body)
    scope = ClaimScope(flow.runtime.claims, flow.runtime.heartbeat, claim_request)
    taken = yield from scope.enter()
    if isinstance(taken, Held):
        try:
            begun = yield from start
        except Exception:  # also from the user's key function
            yield from scope.release()  # nothing was started: a corrected request may use the same key
            raise
        yield from scope.complete(Packed(inline=Raw(msgspec.json.encode(begun.run))), LIFE)
        return begun
    start.close()
    if isinstance(taken, Done) and taken.result:
        run = msgspec.json.decode(taken.result, type=str)
        flow.runtime.claims.duplicates.blocked(
            flow.name, parse_space(own_space(claim_request.tenant, run)).key, tenant=claim_request.tenant
        )
        return Begun(run, first=False)
    return _refused(taken)


def _ask(flow: Flow, request: str, body: Raw) -> ClaimRequest:
    operation, tenant = f"start.{flow.name}"[:128], flow.policy.tenant
    at: Address = address_of(tenant, operation, request)
    return ClaimRequest(
        at=at,
        operation=operation,
        key=request,
        owner=flow.runtime.owner(),
        lease=LEASE,
        tenant=tenant,
        fingerprint=body_hash(bytes(body)),
        run=run_id(at.space),
        repeat="safe",
    )


def _refused(taken: EnterOutcome) -> Reply:
    if isinstance(taken, Busy | LostHold):
        return problem(
            409,
            "in-progress",
            "The same request is being processed right now.",
            next_move="Send it again after Retry-After seconds.",
            headers=[retry_after(1)],
        )
    return problem(
        422,
        "payload-mismatch",
        "This Idempotency-Key was used before, with a different body.",
        next_move="Use a new key for a new request, or send the same body.",
    )


LONGEST_WAIT = 60.0
LONGEST_PAUSE = 1.0
ENDS = (DONE, FAILED, REVIEW)


class Start(Struct, frozen=True):
    """A request to start a run. `request` is its Idempotency-Key, `starter` the caller."""

    input: Raw
    request: str = ""
    wait: float = 0.0
    starter: str = ""
    correlation: str = ""
    sent: Raw = NO_RESULT  # the request's body, where `input` was made from it

    @property
    def own_request(self) -> str:
        """The key, scoped to the caller, so that two callers' keys do not clash. A token's name has no slash."""
        return f"{self.starter}/{self.request}"


class StartedRun(Struct, frozen=True):
    """`started`: by this request. `result` and `error` are set once the run has ended."""

    run: str
    flow: str
    key: str
    state: str
    started: bool
    result: Raw | None = None
    result_kept: bool = False
    error: str = ""


def start_run(flow: Flow, start: Start) -> Operation[Reply]:
    """Start a run. Reply 202 if it continues, 200 if it has ended or existed before."""
    begin = _begin(flow, start)
    begun = (
        (yield from begin_once(flow, start.own_request, start.sent or start.input, begin))
        if start.request
        else (yield from begin)
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
            args, kwargs, validate_now=True, from_json=True, starter=start.starter, correlation=start.correlation
        )
    except Misuse:
        if not _is_wrapped(flow, args):
            raise
        (name,) = flow.inputs.names
        raise Misuse(
            f"{flow.name} takes one argument, and the body is its value; send the value of {name!r} by itself."
        ) from None
    except TypeError as error:
        names = ", ".join(flow.inputs.names)
        raise Misuse(
            f"{flow.name} takes ({names}), but the body does not match: {error}; send a field for each."
        ) from None
    if handle.at.kind != RUN:
        raise Misuse(
            f"{flow.name} for {_key_of(handle.at)!r} was claimed by a guarded function of this name, and is not a run; "
            f"look at it with: GET /v1/claims/{flow.name}/KEY"
        )
    return Begun(run_id(handle.at.space), first)


def _arguments(flow: Flow, given: Raw) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the arguments: one parameter gets the whole body, several get its fields."""
    value, names = msgspec.json.decode(given), flow.inputs.names
    if not names and value in (None, {}):
        return (), {}
    if len(names) == 1:
        return (value,), {}
    if not isinstance(value, dict):
        raise Misuse(
            f"{flow.name} takes ({', '.join(names)}), but the body is not an object; send one with these fields."
        )
    return (), value


def _is_wrapped(flow: Flow, args: tuple[object, ...]) -> bool:
    """Whether the value for a single parameter was wrapped in an object, as for several."""
    return len(args) == 1 and isinstance(args[0], dict) and list(args[0]) == flow.inputs.names


def _awaited(flow: Flow, at: Address, seconds: float) -> Operation[Found]:
    """Wait until the run has ended or the time is over, and return its record."""
    store, clock = flow.runtime.store, flow.runtime.clock
    until = clock.monotonic() + seconds
    while True:
        found = yield from store.read(at)
        left = until - clock.monotonic()
        if left <= 0 or found.record is None or found.record.state in ENDS:
            return found
        yield from store.pause(at.space, min(left, LONGEST_PAUSE))


def _shape(flow: Flow, begun: Begun, found: Found, at: Address) -> Operation[StartedRun]:
    key = _key_of(at)
    if found.record is None or is_expired(found.record, found.now):  # started long ago, and expired since
        return StartedRun(shown_id(at), flow.name, key, "forgotten", begun.first)
    record = require_run(found)
    claim = claim_of(record)
    result = yield from unpack(flow.runtime.store, at, claim.result, claim.spill)
    error = (
        f"{claim.fault.type}: {claim.fault.message}" if claim.fault else claim.reason if record.state == REVIEW else ""
    )
    return StartedRun(
        shown_id(at), flow.name, key, record.state, begun.first, Raw(result) if result else None, bool(result), error
    )


def _key_of(at: Address) -> str:
    return parse_space(at.space).key


NAME = {"name": "A flow's name to start a run, a run's id (`run` in its responses) or FLOW%2FKEY to show it"}
RUN_ID_PARAM = {"name": "A run's id (`run` in its responses), or FLOW%2FKEY"}


FlowName = Annotated[str, Meta(extra_json_schema=NAME_OR_NONE)]
# Up to the year 9999: NaN or milliseconds would silently list nothing.
Time = Annotated[float, Meta(ge=0, le=253_402_300_800, description="Seconds since 1970, not milliseconds.")]


class StartQuery(Struct, frozen=True):
    """`wait`: how long the reply may wait for the run's end, like 5s; at most a minute."""

    wait: Annotated[str, Meta(extra_json_schema=SPAN)] = "0s"


class RunsQuery(Struct, frozen=True):
    """Times are seconds since 1970, of a run's last change. `after` continues a list, with `after`, `before` or `newer`
    of the response before."""

    flow: FlowName = ""
    state: Annotated[str, Meta(extra_json_schema={"enum": ["", ALL, *EVERY_STATE]})] = ""
    key: str = ""
    prefix: str = ""
    since: Time | None = None
    until: Time | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    after: str | None = None


class ActorBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`by`: the name of the person who acts, if the caller has no token. `version`: the run's `record_version` that
    they saw; a run that has changed since is left as it is."""

    by: str = ""
    version: str = ""


class RunStateBody(Struct, frozen=True):
    run: str
    state: str


async def start(call: ApiRequest) -> Reply:
    flow = call.app.flows.get(call.params["name"])
    return _no_flow(sorted(call.app.flows)) if flow is None else await start_from(call, flow, call.json_body())


async def start_from(call: ApiRequest, flow: Flow, given: Raw, sent: Raw = NO_RESULT) -> Reply:
    """Start a run as a request asks for it. `sent` is its body, where `given` was made from it."""
    wait = min(seconds(call.query_as(StartQuery).wait, name="wait", positive=False), LONGEST_WAIT)
    correlation = call.headers.get("x-correlation-id", "")
    correlation = correlation and validate_key(correlation)[:200]
    asked = Start(given, _request_key(call), wait, call.principal.name, correlation, sent)
    token = source_var.set("http")  # duplicates blocked by the flow's own key are counted under this name
    try:
        return await await_(start_run(flow, asked))
    finally:
        source_var.reset(token)


def _request_key(call: ApiRequest) -> str:
    """Return the Idempotency-Key, or refuse one that cannot be read: ignoring it would start an unprotected run."""
    header = call.headers.get("idempotency-key")
    key = "" if header is None else read_key(header)
    if isinstance(key, Malformed):
        raise RequestRefused(malformed_key(key.reason))
    return key


def _no_flow(known: list[str]) -> Reply:
    names = ", ".join(known) or "none"
    return problem(404, "no-such-flow", "There is no such flow.", next_move=f"Use one of: {names}.")


async def runs(call: ApiRequest) -> Reply:
    query = call.query_as(RunsQuery)
    if query.state and query.state not in (*EVERY_STATE, ALL):
        known = ", ".join((*EVERY_STATE, ALL))
        return problem(
            400, "bad-query", f"{query.state!r:.40} is not a state of a run.", next_move=f"Use one of {known}."
        )
    flow = validate_name("flow", query.flow) if query.flow else ""
    which = Filter(call.app.settings.tenant, flow, query.key, query.prefix, query.since, query.until)
    states = EVERY_STATE if query.state in ("", ALL) else (query.state,)
    try:
        page = await await_(list_runs(call.app.store, which, states, limit=query.limit, after=query.after))
    except Misuse:
        return no_page()
    return json_reply(200, page)


async def show(call: ApiRequest) -> Reply:
    at = await await_(call.existing_run())
    return json_reply(200, await await_(look_at_run(call.app.store, at)))


async def cancel_run(call: ApiRequest) -> Reply:
    body = call.body_as(ActorBody)
    at = await await_(call.existing_run())
    who = _actor(call, body)
    life = call.app.runtime.life_of(at)
    return await _apply(at, cancel(call.app.store, at, who, life, version=body.version))


async def retry(call: ApiRequest) -> Reply:
    body = call.body_as(ActorBody)
    at = await await_(call.existing_run())
    return await _apply(at, retry_run(call.app.store, at, version=body.version, by=_actor(call, body)))


def _actor(call: ApiRequest, body: ActorBody) -> str:
    return call.principal.name or (validate_key(body.by) if body.by else "http")


async def _apply(at: Address, operation: Operation[str]) -> Reply:
    """Run an operation on a run; reply 409 if its state does not allow it."""
    try:
        state = await await_(operation)
    except Misuse as error:
        raise RequestRefused(
            problem(409, "state-conflict", str(error), next_move="Look at the run, and do what its state allows.")
        ) from None
    return json_reply(200, RunStateBody(shown_id(at), state))


HEADERS = {
    "Idempotency-Key": "The same for every retry of this request: 1 to 255 visible characters, bare or in quotes",
    "X-Correlation-Id": "Added to the run's log lines",
}
GONE = RouteAnswer("There is no such run.", None, PROBLEM)
NOT_NOW = RouteAnswer("The run's state does not allow it.", None, PROBLEM)


def _change(verb: str, handle: Handle, summary: str) -> ApiRoute:
    """A route that changes the state of a run."""
    return ApiRoute(
        "POST",
        f"/v1/runs/{{name}}/{verb}",
        f"{verb}_run",
        handle,
        summary,
        body=ActorBody,
        params=RUN_ID_PARAM,
        tag="runs",
        answers={200: RouteAnswer("Its new state.", RunStateBody), 404: GONE, 409: NOT_NOW},
    )


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "POST",
        "/v1/runs/{name}",
        "start_run",
        start,
        "Start a run, or get the existing one",
        query=StartQuery,
        params=NAME,
        headers=HEADERS,
        tag="runs",
        answers={
            202: RouteAnswer("Started: a worker executes it.", StartedRun, headers={"Location": "the URL of the run"}),
            200: RouteAnswer("It existed before, or has ended within the wait.", StartedRun),
            404: RouteAnswer("There is no such flow.", None, PROBLEM),
            409: RouteAnswer("The same request is being processed right now.", None, PROBLEM),
            422: RouteAnswer("The key was used before, with a different body.", None, PROBLEM),
        },
    ),
    ApiRoute(
        "GET",
        "/v1/runs",
        "list_runs",
        runs,
        "List runs, the newest first",
        query=RunsQuery,
        tag="runs",
        answers={
            200: RouteAnswer("One page of the list.", RunPage),
            404: RouteAnswer("`after` is not a position in this list.", None, PROBLEM),
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
        answers={200: RouteAnswer("The run.", WholeRun), 404: GONE},
    ),
    _change("cancel", cancel_run, "Cancel a run and undo its effects"),
    _change("retry", retry, "Retry a failed run; completed steps are not repeated"),
)
