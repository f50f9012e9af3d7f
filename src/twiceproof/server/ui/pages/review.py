"""Runs with an unknown outcome, grouped by flow, step and reason. Several can be settled alike, from a list that was
shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ....claims.claim import REVIEW
from ....claims.views import reviewed_claims
from ....errors import Misuse
from ....flows.history.queries import Filter, list_runs
from ....flows.history.run_view import RunShape
from ....inbound.reply import Reply
from ....operations import await_
from ...routes import reviews
from ...tokens import Scope
from ..dashboard import PageRequest, PageSpec, refused
from ..formatting import href
from ..forms import FormFields, FormOutcome, body_with
from .runs import RunRow, row_of
from .several import beyond, leftovers, listed_items, ticked

__all__ = ["PAGES", "ReviewGroup", "grouped"]

ROWS = 200
VERDICTS = {
    "did-not-happen": ("It did not happen", "The unknown step is tried again."),
    "retry": ("The cause is repaired", "The runs go on from where they stopped."),
    "happened": ("It happened", "The runs go on with the result that is given."),
    "undo": ("Undo", "What is done is undone, and the runs end."),
    "abandon": ("Leave", "The runs end as failed, and nothing is undone."),
}


class ReviewGroup(Struct, frozen=True):
    """Runs that stopped alike."""

    title: str
    flow: str
    reason: str
    oldest: float
    rows: list[RunRow]


def grouped(runs: Sequence[RunShape]) -> list[ReviewGroup]:
    """Return the runs by flow and reason, the largest group first. A reason names its step."""
    groups: dict[tuple[str, str], list[RunShape]] = {}
    for run in runs:
        groups.setdefault((run.flow, run.reason), []).append(run)
    made = [
        ReviewGroup(
            f"{flow} · {reason}", flow, reason, min(run.updated_at for run in alike), [row_of(run) for run in alike]
        )
        for (flow, reason), alike in groups.items()
    ]
    return sorted(made, key=lambda group: (-len(group.rows), group.oldest))


async def listed(page: PageRequest) -> Reply:
    which, after = Filter(page.tenant, page.asked("flow")), page.asked("after") or None
    try:
        found = await await_(list_runs(page.store, which, (REVIEW,), limit=ROWS, after=after))
    except Misuse:
        raise refused(
            404, "no-such-page", "This place in the list is not known.", next_move="Begin at /review."
        ) from None
    claims = [] if after else await await_(reviewed_claims(page.store, page.tenant, page.asked("flow")))
    return page.show(
        "review.html",
        "Review",
        groups=grouped(found.runs),
        claims=claims,
        total=len(found.runs) + len(claims),
        older=href("review", after=found.after, flow=page.asked("flow")) if found.after else "",
        verdicts=VERDICTS,
        command=page.command("review", "list"),
    )


# -- many alike ----------------------------------------------------------------------------------


async def confirm_group(page: PageRequest) -> Reply:
    """List exactly the runs that were ticked, with the version of each that was shown."""
    verdict = page.asked("verdict")
    if verdict not in VERDICTS:
        raise refused(400, "bad-query", "This is not a decision.", next_move="Go back, and choose one.")
    rows = await ticked(page)
    title, text = VERDICTS[verdict]
    return page.show(
        "alike.html",
        f"{title}: {len(rows)} {'run' if len(rows) == 1 else 'runs'}",
        rows=rows,
        beyond=beyond(page),
        back="/review",
        action="/review/alike",
        verdict=verdict,
        text=text,
        button=f"Settle these {len(rows)}",
        has_note=True,
        needs_result=verdict == "happened",
        commands=[_command(page, row["run"], verdict) for row in rows],
    )


def _command(page: PageRequest, run: RunRow, verdict: str) -> str:
    name = f"{run.flow}/{run.key}"
    if verdict == "retry":
        return page.command("runs", "retry", name)
    result = ("--result", "JSON") if verdict == "happened" else ()
    return page.command("review", "settle", name, f"--{verdict}", *result)


async def settle_group(page: PageRequest) -> Reply:
    return await page.submitted(lambda fields: _settled_group(page, fields))


async def _settled_group(page: PageRequest, fields: FormFields) -> FormOutcome:
    """Settle the listed runs, each at the version that was shown. A run that has changed is reported and not
    settled.
    """
    settled, left = 0, []
    for name, version in listed_items(fields):
        reply = await _settle(page, fields, name, version)
        if reply.status < 400:
            settled += 1
        else:
            left.append(name)
    return FormOutcome(href("review", "settled", done=settled, left=",".join(left)))


async def _settle(page: PageRequest, fields: FormFields, name: str, version: str) -> Reply:
    raw = {"result": fields.get("result", "").strip() or "null"} if fields.get("verdict") == "happened" else {}
    body = body_with(
        {
            "verdict": fields.get("verdict", ""),
            "note": fields.get("note", ""),
            "version": version,
            **page.acting_as(fields),
        },
        **raw,
    )
    return await page.reply_of_api(reviews.settle_review, {"name": name}, body)


async def told(page: PageRequest) -> Reply:
    """Report which of the ticked runs were settled, and which were not because they had changed."""
    left = await leftovers(page)
    return page.show(
        "settled.html", "Settled", done=page.number("done"), word="settled", left=left, back=("Review", "/review")
    )


PAGES = (
    PageSpec("GET", "/review", Scope.READ, listed, "review"),
    PageSpec("GET", "/review/alike", Scope.APPROVE, confirm_group, "review"),
    PageSpec("POST", "/review/alike", Scope.APPROVE, settle_group, "review"),
    PageSpec("GET", "/review/settled", Scope.READ, told, "review"),
)
