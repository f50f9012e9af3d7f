"""Findings of reconciliations: what differs between two systems, and a person's decision about it."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from ....errors import Misuse
from ....inbound.reply import Reply
from ....operations import await_
from ....reconcile.findings import EVERY_STATE, OPEN_STATES, FindingShape, find_finding, list_findings, shape_of
from ....reconcile.reconciliation import ReconciliationShape, list_reconciliations
from ...routes import reconciliations
from ...tokens import Scope
from .. import listing as ui
from ..dashboard import PageRequest, PageSpec, refused
from ..formatting import href, shown_value
from ..forms import FormFields, FormOutcome, body_with

__all__ = ["PAGES", "finding_rows"]

MOST = 200
MOST_READ = 2_000  # findings that are looked through
COLUMNS = tuple(ui.Column(word) for word in ("State", "What", "Reconciliation", "Check", "Key", "Last seen"))
FILTERS = (ui.ListingFilter("state", "State", (*EVERY_STATE, "all")), ui.ListingFilter("name", "Reconciliation"))
EMPTY = (
    "Nothing differs",
    "A finding comes here when a reconciliation sees that two systems disagree. Declare one with app.reconcile(…).",
    "",
)
DECLARED = (
    ui.Column("Reconciliation"),
    ui.Column("Every"),
    ui.Column("Last run"),
    ui.Column("Last whole run"),
    ui.Column("Open findings", is_number=True),
)


class WrittenRecords(Struct):
    """The records of both sides as they were written: decoded, a number could be another one."""

    records: dict[str, Raw] = {}


def finding_rows(found: list[FindingShape]) -> list[ui.ListingRow]:
    return [
        ui.ListingRow(
            (
                ui.state(one.state),
                ui.link(one.summary, href("findings", one.id)),
                ui.text(one.reconciliation),
                ui.text(one.check),
                ui.code(one.key),
                ui.when(one.last_seen_at),
            ),
            name=1,
        )
        for one in found
    ]


def _declared_rows(found: list[ReconciliationShape], most: int) -> list[ui.ListingRow]:
    """`most`: where the counting of open findings ended."""
    return [
        ui.ListingRow(
            (
                ui.link(one.name, href("findings", name=one.name)),
                ui.text(one.every),
                ui.when(one.last_run_at),
                ui.when(one.last_whole_run_at),
                ui.number(one.open, most - 1),
            )
        )
        for one in found
    ]


async def listed(page: PageRequest) -> Reply:
    asked = page.asked("state")
    states = OPEN_STATES if not asked else EVERY_STATE if asked == "all" else (asked,)
    if any(one not in EVERY_STATE for one in states):
        raise refused(400, "bad-query", "This is not a state of a finding.", next_move="Remove this filter.")
    found = await await_(
        list_findings(
            page.store, page.tenant, name=page.asked("name"), states=tuple(states), limit=MOST, most_read=MOST_READ
        )
    )
    most = MOST_READ // max(1, len(page.app.reconciliations))
    declared = await await_(list_reconciliations(page.store, page.tenant, page.app.reconciliations, most=most))
    lists = [ui.Listing("Findings", COLUMNS, finding_rows(found), EMPTY, FILTERS)]
    if declared:
        lists.append(ui.Listing("Reconciliations", DECLARED, _declared_rows(declared, most)))
    return page.listing("Findings", lists, ("reconcile", "findings"), "/v1/findings")


async def show(page: PageRequest) -> Reply:
    name = page.param("id")
    try:
        record = await await_(find_finding(page.store, page.tenant, name))
    except Misuse:
        raise refused(404, "no-such-finding", "There is no such finding.", next_move="List them: /findings") from None
    one = shape_of(record)
    facts = [
        ui.Fact("check", ui.text(one.check)),
        ui.Fact("key", ui.code(one.key)),
        ui.Fact("opened", ui.when(one.opened_at)),
        ui.Fact("last seen", ui.when(one.last_seen_at)),
        ui.Fact("seen", ui.number(one.seen)),
        *([ui.Fact("by", ui.text(one.by))] if one.by else []),
        *([ui.Fact("note", ui.text(one.note))] if one.note else []),
        *([ui.Fact("outcome", ui.text(one.outcome))] if one.outcome else []),
    ]
    written = msgspec.json.decode(record.body, type=WrittenRecords).records
    values = [(side, shown_value(text)) for side, text in written.items()]
    made = ui.DetailPage(
        one.summary,
        one.state,
        (("Findings", "/findings"), (one.reconciliation, href("findings", name=one.reconciliation))),
        facts,
        values,
        [] if one.state == "resolved" else [_form(page, one)],
    )
    return page.details(made, ("reconcile", "show", one.id), f"/v1{href('findings', one.id)}")


def _form(page: PageRequest, one: FindingShape) -> ui.ActForm:
    words = (("Acknowledge", "ack"), ("Suppress", "suppress"), ("Resolve", "resolve"))
    return ui.ActForm(
        href("findings", one.id),
        "Decide",
        "approve",
        "Acknowledge: it is known. Suppress: do not tell of it again. Resolve: it is in order.",
        hidden=(("state", one.state),),
        fields=(
            ui.ActField("decision", "Decision", choices=("acknowledge", "suppress", "resolve")),
            ui.ActField("note", "Why"),
        ),
        commands=tuple((word, page.command("reconcile", "findings", verb, one.id)) for word, verb in words),
    )


async def decide(page: PageRequest) -> Reply:
    return await page.submitted(lambda fields: _decided(page, fields))


async def _decided(page: PageRequest, fields: FormFields) -> FormOutcome:
    name = page.param("id")
    given = {"decision": fields.get("decision", ""), "note": fields.get("note", ""), "state": fields.get("state", "")}
    given |= page.acting_as(fields)
    return await page.by_api(
        reconciliations.decide, {"id": name}, body_with(given), href("findings", name, said="found")
    )


PAGES = (
    PageSpec("GET", "/findings", Scope.READ, listed, "findings"),
    PageSpec("GET", "/findings/{id}", Scope.READ, show, "findings"),
    PageSpec("POST", "/findings/{id}", Scope.APPROVE, decide, "findings"),
)
