"""Runs: start them once, list them, look at one, stop it, try it again."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ...claims.claim import validate_name
from ...doors.key_header import Malformed, malformed_key, read_key
from ...doors.patterns import NAME_OR_NONE, SPAN
from ...doors.reply import PROBLEM, Reply, json_reply, problem
from ...doors.runs.start import LONGEST_WAIT, Start, StartedRun, start_run
from ...drive import Operation, await_
from ...errors import Misuse
from ...flows.cancel import cancel
from ...flows.history.again import retry_run
from ...flows.history.run_shape import WholeRun
from ...flows.history.runs import ALL, EVERY_STATE, Filter, RunPage, list_runs, look_at_run
from ...keys import validate_key
from ...keys.duration import seconds
from ...observe.duplicates import source_var
from ..call import Call, Refused
from ..route import Answer, Route
from .reading import body_of, json_of
from .run_named import run_named

__all__ = ["ROUTES"]

NAME = {"name": "A flow's name to start one, a run's id to look at one"}
RUN = {"name": "A run's id"}


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


class RunState(Struct, frozen=True):
    run: str
    state: str


async def start(call: Call) -> Reply:
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


def _request_key(call: Call) -> str:
    """One that is sent and cannot be read is refused: without it, the start would not be what was asked for."""
    header = call.headers.get("idempotency-key")
    key = "" if header is None else read_key(header)
    if isinstance(key, Malformed):
        raise Refused(malformed_key(key.reason))
    return key


def _no_flow(known: list[str]) -> Reply:
    there = ", ".join(known) or "none"
    return problem(404, "no-such-flow", "There is no such flow here.", next_move=f"There are: {there}.")


async def runs(call: Call) -> Reply:
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
        404, "no-such-page", "`after` is no place in this list.",
        next_move="Take it from the answer before, with the same filters, or leave it out.",
    )  # fmt: skip


async def show(call: Call) -> Reply:
    at = await await_(run_named(call))
    return json_reply(200, await await_(look_at_run(call.app.store, at)))


async def stop(call: Call) -> Reply:
    by = body_of(call, WordBody).by
    at = await await_(run_named(call))
    who = call.principal.name or (validate_key(by) if by else "http")
    return await _moved(call, cancel(call.app.store, at, who, call.app.parts.life_of(at)))


async def again(call: Call) -> Reply:
    body_of(call, WordBody)
    at = await await_(run_named(call))
    return await _moved(call, retry_run(call.app.store, at))


async def _moved(call: Call, operation: Operation[str]) -> Reply:
    """409 for what a run's state does not allow."""
    try:
        state = await await_(operation)
    except Misuse as error:
        raise Refused(
            problem(409, "not-now", str(error), next_move="Look at the run, and do what it allows.")
        ) from None
    return json_reply(200, RunState(call.params["name"], state))


HEADERS = {
    "Idempotency-Key": "The same when this very request is sent again: 1 to 255 visible characters, bare or in quotes",
    "X-Correlation-Id": "Carried along into the run's log lines",
}
GONE = Answer("There is no such run.", None, PROBLEM)
NOT_NOW = Answer("The run's state does not allow it.", None, PROBLEM)

ROUTES: tuple[Route, ...] = (
    Route(
        "POST", "/v1/runs/{name}", "start_run", start, "Start a run, or hear of the one that is there",
        query=StartQuery, params=NAME, headers=HEADERS, tag="runs",
        answers={
            202: Answer("Begun: a worker carries it out.", StartedRun, headers={"Location": "where to look at it"}),
            200: Answer("It was there before, or has ended within the wait.", StartedRun),
            404: Answer("There is no such flow.", None, PROBLEM),
            409: Answer("The same request is being answered right now.", None, PROBLEM),
            422: Answer("The key came before, with another body.", None, PROBLEM),
        },
    ),
    Route(
        "GET", "/v1/runs", "list_runs", runs, "List runs, those in review first", query=RunsQuery, tag="runs",
        answers={
            200: Answer("Part of the list.", RunPage),
            404: Answer("There is no such place in the list to go on from.", None, PROBLEM),
        },
    ),
    Route(
        "GET", "/v1/runs/{name}", "look_at_run", show, "Everything about one run", params=NAME, tag="runs",
        answers={200: Answer("As it is.", WholeRun), 404: GONE},
    ),
    Route(
        "POST", "/v1/runs/{name}/cancel", "cancel_run", stop, "Stop a run, and undo what it did", body=WordBody,
        params=RUN, tag="runs", answers={200: Answer("Its state now.", RunState), 404: GONE, 409: NOT_NOW},
    ),
    Route(
        "POST", "/v1/runs/{name}/retry", "retry_run", again, "Try a failed run again; what is done stays done",
        body=WordBody, params=RUN, tag="runs",
        answers={200: Answer("Its state now.", RunState), 404: GONE, 409: NOT_NOW},
    ),
)  # fmt: skip
