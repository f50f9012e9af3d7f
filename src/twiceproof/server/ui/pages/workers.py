"""Workers and schedules: which worker carries out what, and what is started by the clock."""

from __future__ import annotations

from collections.abc import Sequence

from ....claims.claim import QUEUED, WAITING
from ....flows.history.run_view import RunShape
from ....flows.triggers.poll import PollShape, list_polls
from ....flows.triggers.schedule import ScheduleShape, list_schedules
from ....flows.workers.presence import WorkerShape, list_workers
from ....inbound.reply import Reply
from ....operations import await_
from ...tokens import Scope
from .. import listing as ui
from ..dashboard import PageRequest, PageSpec
from ..formatting import href

__all__ = ["PAGES", "find_missing_worker", "missing_worker", "poll_row", "schedule_row", "worker_rows"]

WORKERS = (
    ui.Column("State"),
    ui.Column("Worker"),
    ui.Column("At once", is_number=True),
    ui.Column("Flows"),
    ui.Column("Release"),
    ui.Column("Since"),
    ui.Column("Last heard of"),
)
NO_WORKERS = (
    "No worker was heard of lately",
    "Runs that are queued stay where they are until one comes. `twiceproof serve` runs one; start another with:",
    "twiceproof work MODULE:APP",
)
SCHEDULES = tuple(ui.Column(word) for word in ("Flow", "When", "Zone", "Next", "Last", "Skipped", "Overlap"))
POLLS = tuple(ui.Column(word) for word in ("Poll", "Flow", "Next", "Fetched until", "Items started"))
NO_SCHEDULES = (
    "Nothing is scheduled",
    'Put @app.every("1h") on a flow: one run for each tick, however many workers.',
    "",
)


def worker_rows(found: Sequence[WorkerShape]) -> list[ui.ListingRow]:
    return [
        ui.ListingRow(
            (
                ui.state("gone" if one.gone else "live"),
                ui.code(one.name),
                ui.number(one.concurrency),
                ui.text(", ".join(one.flows)),
                ui.text(one.release),
                ui.when(one.since),
                ui.when(one.last_heartbeat),
            ),
            name=1,
        )
        for one in found
    ]


async def workers(page: PageRequest) -> Reply:
    found = await await_(list_workers(page.store))
    made = ui.Listing("Workers", WORKERS, worker_rows(found), NO_WORKERS)
    return page.listing("Workers", made, ("workers", "list"), "/v1/workers")


def missing_worker(run: RunShape, workers: Sequence[WorkerShape], now: float) -> str:
    """Say why a run that is due is not taken: no live worker has its flow in its version. "" if one has."""
    is_due = run.due_at is not None and run.due_at <= now
    name = f"{run.flow}@{run.version}"
    if not is_due or any(name in worker.flows for worker in workers if not worker.gone):
        return ""
    others = sorted(
        {flow for worker in workers if not worker.gone for flow in worker.flows if flow.startswith(run.flow + "@")}
    )
    if others:
        return f"No live worker has {name}: those that are there have {', '.join(others)}."
    return f"No live worker has {name}: it stays here until one comes."


async def find_missing_worker(page: PageRequest, run: RunShape) -> str:
    if run.state not in (QUEUED, WAITING):
        return ""
    return missing_worker(run, await await_(list_workers(page.store)), page.now)


def schedule_row(one: ScheduleShape) -> ui.ListingRow:
    """Return the row of a schedule. One that no worker has prepared yet has no next tick."""
    return ui.ListingRow(
        (
            ui.link(one.flow, href("runs", flow=one.flow)),
            ui.code(one.when),
            ui.text(one.zone),
            _next(one.next),
            ui.when(one.last),
            ui.number(one.skipped),
            ui.text(f"{one.overlap}, catch up {one.catch_up}"),
        )
    )


def poll_row(one: PollShape) -> ui.ListingRow:
    return ui.ListingRow(
        (
            ui.code(one.name),
            ui.link(one.flow, href("runs", flow=one.flow)),
            _next(one.next),
            ui.when(one.until),
            ui.number(one.started),
        )
    )


def _next(at: float | None) -> ui.Cell:
    return ui.text("not before a worker comes") if at is None else ui.when(at)


async def schedules(page: PageRequest) -> Reply:
    app, tenant = page.app, page.tenant
    ticks = await await_(list_schedules(page.store, app.schedules.schedules.values(), tenant))
    polls = await await_(list_polls(page.store, app.polls.polls.values(), tenant))
    lists = [
        ui.Listing("Schedules", SCHEDULES, [schedule_row(one) for one in ticks], NO_SCHEDULES),
        *([ui.Listing("Polls", POLLS, [poll_row(one) for one in polls], ("", "", ""))] if polls else []),
    ]
    return page.listing("Schedules", lists, json="/v1/schedules")


PAGES = (
    PageSpec("GET", "/workers", Scope.OPERATOR, workers, "workers"),
    PageSpec("GET", "/schedules", Scope.READ, schedules, "schedules"),
)
