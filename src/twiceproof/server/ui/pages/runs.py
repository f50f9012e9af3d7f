"""The list of runs: filters in the address, ready views, pages by cursor."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ....claims.claim import DONE, validate_name
from ....errors import Misuse
from ....flows.history.queries import EVERY_STATE, OPEN_STATES, Filter, list_runs
from ....flows.history.run_view import RunShape
from ....inbound.reply import Reply
from ....keys.duration import seconds
from ....operations import await_
from ...tokens import Scope
from ..dashboard import PageRequest, PageSpec, refused
from ..formatting import href, sign_of
from ..listing import active_filters, address_with

__all__ = ["PAGES", "RunRow", "row_of"]

ROWS = 50
FILTERS = ("flow", "state", "prefix", "key", "since")
READY: tuple[tuple[str, dict[str, str]], ...] = (
    ("All", {}),
    ("In flight", {"state": "flight"}),
    ("In review", {"state": "review"}),
    ("Failed", {"state": "failed"}),
    ("Waiting", {"state": "waiting"}),
    ("Done", {"state": "done"}),
)
STATES = tuple((state, sign_of(state).word) for state in EVERY_STATE)
FLIGHT = tuple(state for state in OPEN_STATES if state != "review")


class RunRow(Struct, frozen=True):
    """One run as a row."""

    id: str
    href: str
    state: str
    lapsed: bool
    flow: str
    version: str
    key: str
    reason: str
    created_at: float
    updated_at: float
    due_at: float | None


def row_of(run: RunShape) -> RunRow:
    return RunRow(
        run.run,
        href("runs", run.run),
        run.state,
        run.lapsed,
        run.flow,
        run.version,
        run.key,
        run.reason[:300],
        run.created_at,
        run.updated_at,
        run.due_at,
    )


def _which(page: PageRequest) -> Filter:
    flow, since = page.asked("flow"), page.asked("since")
    try:
        after = page.now - seconds(since, name="since") if since else None
        flow = validate_name("flow", flow) if flow else ""
    except Misuse as error:
        raise refused(400, "bad-query", str(error), next_move="Remove this filter.") from None
    return Filter(page.tenant, flow, page.asked("key"), page.asked("prefix"), after)


def _states(state: str) -> Sequence[str]:
    if state == "flight":
        return FLIGHT
    if state and state not in EVERY_STATE:
        raise refused(400, "bad-query", f"{state!r:.40} is not a state of a run.", next_move="Remove this filter.")
    return (state,) if state else EVERY_STATE


async def listed(page: PageRequest) -> Reply:
    asked = {name: page.asked(name) for name in FILTERS if page.asked(name)}
    try:
        found = await await_(
            list_runs(
                page.store,
                _which(page),
                _states(page.asked("state")),
                limit=ROWS,
                after=page.asked("after") or None,
            )
        )
    except Misuse:
        raise refused(
            404, "no-such-page", "This place in the list is not known.", next_move="Begin at /runs."
        ) from None
    return page.show(
        "runs.html",
        "Runs",
        runs=[row_of(run) for run in found.runs],
        can_tick=page.may(Scope.RUN) and any(run.state != DONE for run in found.runs),
        flows=sorted(page.app.flows),
        states=STATES,
        views=[
            (word, address_with("/runs", {**asked_with(asked), **more}), _is_on(asked, more)) for word, more in READY
        ],
        chips=active_filters("/runs", asked, FILTERS),
        older=address_with("/runs", {**asked, "after": found.after}) if found.after else "",
        newer=address_with("/runs", {**asked, "after": found.before}) if found.before else "",
        command=page.command("runs", "list", *_options(asked)),
        json=address_with("/v1/runs", {name: text for name, text in asked.items() if name != "since"}),
    )


def asked_with(asked: dict[str, str]) -> dict[str, str]:
    """Return the filters that a ready view keeps."""
    return {name: text for name, text in asked.items() if name != "state"}


def _is_on(asked: dict[str, str], more: dict[str, str]) -> bool:
    return asked.get("state", "") == more.get("state", "")


def _options(asked: dict[str, str]) -> list[str]:
    words: list[str] = []
    for name, text in asked.items():
        words += [f"--{name}", "all" if (name, text) == ("state", "flight") else text]
    return words if "state" in asked else [*words, "--state", "all"]


PAGES = (PageSpec("GET", "/runs", Scope.READ, listed, "runs"),)
