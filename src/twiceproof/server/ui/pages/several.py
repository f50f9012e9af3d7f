"""Several runs retried or cancelled at once: exactly those that were ticked, from a list that was shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from ....inbound.reply import Reply
from ...routes import runs
from ...routing import Handle
from ...tokens import Scope
from ..dashboard import PageRequest, PageSpec, refused
from ..formatting import href
from ..forms import FormFields, FormOutcome, body_with
from .runs import RunRow, row_of

__all__ = ["MOST", "PAGES", "beyond", "leftovers", "listed_items", "ticked"]

MOST = 100  # that one form is about


class SeveralVerb(Struct, frozen=True):
    title: str
    text: str
    done: str  # what became of them
    handle: Handle


VERBS = {
    "retry": SeveralVerb("Retry", "They are put back into the queue. What is done stays done.", "retried", runs.retry),
    "cancel": SeveralVerb(
        "Cancel", "They stop before their next step, and what they have done is undone.", "cancelled", runs.cancel_run
    ),
}


def beyond(page: PageRequest) -> int:
    """Return how many more runs were ticked than one form is about."""
    return max(0, sum(name == "run" for name, _ in page.pairs) - MOST)


async def ticked(page: PageRequest) -> list[dict[str, Any]]:
    """Return the ticked runs as they are now, each with the version that is shown."""
    names = [value for name, value in page.pairs if name == "run"]
    rows: list[dict[str, Any]] = []
    for name in names[:MOST]:
        whole = await page.run_with_steps(name)
        if whole is not None:
            unknown = [step.name for step in whole.steps if step.state == "unknown"]
            rows.append({"run": row_of(whole.run), "seen": whole.record_version, "unknown": unknown})
    if not rows:
        raise refused(400, "nothing-ticked", "No run was ticked.", next_move="Go back, and tick those that you mean.")
    return rows


def listed_items(fields: FormFields) -> list[tuple[str, str]]:
    """Return the runs that a form lists, each with the version that was shown."""
    parts = [item.partition(" ") for item in fields.all("item")[:MOST]]
    return [(name, version) for name, _, version in parts]


async def leftovers(page: PageRequest) -> list[dict[str, Any]]:
    """Return those that were left as they are, because they had changed."""
    left: list[dict[str, Any]] = []
    for name in [one for one in page.asked("left").split(",") if one][:MOST]:
        whole = await page.run_with_steps(name)
        if whole is not None:
            left.append({"run": row_of(whole.run), "settled": whole.settled})
    return left


def _verb(page: PageRequest) -> SeveralVerb:
    found = VERBS.get(page.param("verb"))
    if found is None:
        raise refused(404, "not-found", "There is nothing here.", next_move="Begin at /runs.")
    return found


async def ask(page: PageRequest) -> Reply:
    verb, rows = _verb(page), await ticked(page)
    word = "run" if len(rows) == 1 else "runs"
    return page.show(
        "alike.html",
        f"{verb.title} {len(rows)} {word}?",
        rows=rows,
        beyond=beyond(page),
        back="/runs",
        action=page.call.path,
        verdict="",
        text=verb.text,
        button=f"{verb.title} these {len(rows)}",
        needs_result=False,
        has_note=False,
        commands=_commands(page, [row["run"] for row in rows]),
    )


def _commands(page: PageRequest, rows: Sequence[RunRow]) -> list[str]:
    return [page.command("runs", page.param("verb"), f"{run.flow}/{run.key}") for run in rows]


async def act(page: PageRequest) -> Reply:
    return await page.submitted(lambda fields: _acted(page, _verb(page), fields))


async def _acted(page: PageRequest, verb: SeveralVerb, fields: FormFields) -> FormOutcome:
    """Act on the listed runs, each at the version that was shown."""
    done, left = 0, []
    for name, version in listed_items(fields):
        body = body_with({"version": version, **page.acting_as(fields)})
        reply = await page.reply_of_api(verb.handle, {"name": name}, body)
        if reply.status < 400:
            done += 1
        else:
            left.append(name)
    return FormOutcome(href("several", page.param("verb"), "told", done=done, left=",".join(left)))


async def told(page: PageRequest) -> Reply:
    verb, left = _verb(page), await leftovers(page)
    return page.show(
        "settled.html", verb.title, done=page.number("done"), word=verb.done, left=left, back=("Runs", "/runs")
    )


PAGES = (
    PageSpec("GET", "/several/{verb}", Scope.RUN, ask, "runs"),
    PageSpec("POST", "/several/{verb}", Scope.RUN, act, "runs"),
    PageSpec("GET", "/several/{verb}/told", Scope.READ, told, "runs"),
)
