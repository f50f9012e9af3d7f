"""Webhooks: what they start, and whether they can be verified; deliveries that were put aside, and their replay."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ....claims.claim import CLAIM, DONE, body_of, claim_of, parse_space, run_address, shown_id, shown_run, space_of_run
from ....claims.duplicates import Blocked, recently_blocked
from ....claims.lists import list_records
from ....errors import Misuse, ResultNotKept
from ....inbound.admit import EventNote
from ....inbound.dead_letters import DeadLetter, body_of_letter, find_letter, list_letters
from ....inbound.hook import Hook, hook_shape, operation_of
from ....inbound.hook import span as window
from ....inbound.replay import PlannedEvent, plan_replay, replay_letter
from ....inbound.reply import Reply
from ....operations import Operation, await_
from ....records import Address, Record
from ....safe_text import suggested_command
from ....stores.base import Store
from ...tokens import Scope
from .. import listing as ui
from ..dashboard import PageRequest, PageSpec, refused
from ..formatting import href, shown_value
from ..forms import FormFields, FormOutcome

__all__ = ["PAGES", "event_row", "hook_row", "plan_row", "repeats_of"]

MOST = 100
MOST_EVENTS, MOST_READ = 50, 3_000  # events on a page, and claims that are looked through for them
MOST_BLOCKED = 10_000  # keys whose repeats are looked through
PLAN = tuple(ui.Column(word) for word in ("Event", "Would", "Run", "Why"))
HOOKS = tuple(
    ui.Column(word)
    for word in ("Webhook", "Address", "Sender", "Starts", "Secret", "Tries for", "Kept for", "Latest event")
)
LATEST = 500  # claims that are looked through for the latest event of each webhook
EVENTS = tuple(
    ui.Column(word) for word in ("Came", "Event", "Type", "Outcome", "Repeats", "Started", "Which is", "Why")
)
LETTERS = tuple(ui.Column(word) for word in ("Letter", "Webhook", "Why", "Events", "Size", "Came"))
NO_HOOKS = (
    "No webhook is declared",
    'Declare one with app.webhook("stripe", secret=env("STRIPE_SECRET"), start=FLOW), and try it:',
)
NO_EVENTS = (
    "Nothing came yet",
    "Each event that the sender delivers is listed here, with what it started and how often it was repeated.",
    "",
)
NO_LETTERS = (
    "No delivery was put aside",
    "A delivery that cannot be read, or that came before with other contents, is kept here.",
    "",
)


def hook_row(hook: Hook, latest: float | None = None) -> ui.ListingRow:
    shape = hook_shape(hook)
    kept = "for ever" if shape.keep is None else window(shape.keep)
    return ui.ListingRow(
        (
            ui.link(shape.name, href("webhooks", shape.name)),
            ui.code(shape.path),
            ui.text(shape.source),
            ui.link(shape.flow, href("runs", flow=shape.flow)),
            ui.text("set" if shape.secret_set else "MISSING: deliveries are refused"),
            ui.text(window(shape.retry_window)),
            ui.text(kept if shape.kept_long_enough else f"{kept}: too short, a late retry would be processed twice"),
            ui.when(latest),
        )
    )


def _letter_row(one: DeadLetter) -> ui.ListingRow:
    return ui.ListingRow(
        (
            ui.key(one.id, href("letters", one.id)),
            ui.text(one.hook),
            ui.text(one.reason),
            ui.text(", ".join(one.refused_events)),
            ui.text(f"{one.size:,} B"),
            ui.when(one.received_at),
        )
    )


async def listed(page: PageRequest) -> Reply:
    latest = await await_(_latest(page.store, page.tenant))
    hooks = [hook_row(hook, latest.get(operation_of(name))) for name, hook in sorted(page.app.hooks.items())]
    lists = [ui.Listing("Declared", HOOKS, hooks, (*NO_HOOKS, _try_it(page))), await _letters(page)]
    return page.listing("Webhooks", lists, ("hooks", "dead-letters"), "/v1/hooks")


def _try_it(page: PageRequest) -> str:
    address = f"{page.server}/hooks/stripe"
    return suggested_command("hooks", "test", "stripe", "--url", address, "--secret-env", "STRIPE_SECRET")


async def show(page: PageRequest) -> Reply:
    hook = page.app.hooks.get(page.param("name"))
    if hook is None:
        raise refused(404, "no-such-webhook", "There is no such webhook.", next_move="List them: /webhooks")
    row = hook_row(hook, (await await_(_latest(page.store, page.tenant))).get(operation_of(hook.name)))
    facts = [ui.Fact(column.word.lower(), cell) for column, cell in zip(HOOKS[1:], row.cells[1:], strict=True)]
    lists = [await _events(page, hook.name), await _letters(page, hook.name)]
    made = ui.DetailPage(hook.name, "", (("Webhooks", "/webhooks"),), facts, lists=lists)
    return page.details(made, ("hooks", "dead-letters", "--hook", hook.name), "")


def _latest(store: Store, tenant: str) -> Operation[dict[str, float]]:
    """Return when the latest event of each webhook came, by its operation, as far as the latest claims tell."""
    found: dict[str, float] = {}
    for record in (yield from store.scan(CLAIM, newest=True, limit=LATEST)).records:
        owner, operation, _ = parse_space(record.at.space)
        if owner == tenant:
            found[operation] = max(record.created_at, found.get(operation, 0.0))
    return found


async def _letters(page: PageRequest, hook: str = "") -> ui.Listing:
    after = page.asked("letters") or None
    try:
        found = await await_(list_letters(page.store, page.tenant, hook, limit=MOST, after=after))
    except Misuse:
        raise refused(404, "no-such-page", "This place is not known.", next_move="Begin at /webhooks.") from None
    older = ui.address_with(page.call.path, {"letters": found.after}) if found.after else ""
    newer = page.call.path if after else ""
    return ui.Listing(
        "Dead letters", LETTERS, [_letter_row(one) for one in found.letters], NO_LETTERS, older=older, newer=newer
    )


async def _events(page: PageRequest, hook: str) -> ui.Listing:
    """Return the latest events that came by a webhook. Repeats are counted with the event that they repeat."""
    after = page.asked("events") or None
    prefix = f"{page.tenant}/{operation_of(hook)}/"
    try:
        found = await await_(
            list_records(
                page.store,
                [(CLAIM, None)],
                lambda one: one.at.space.startswith(prefix),
                limit=MOST_EVENTS,
                after=after,
                most_read=MOST_READ,
            )
        )
    except Misuse:
        raise refused(404, "no-such-page", "This place is not known.", next_move="Begin at /webhooks.") from None
    blocked = await await_(recently_blocked(page.store, page.tenant, page.now, source=hook, limit=MOST_BLOCKED))
    runs = await await_(_runs_of(page.store, found.records))
    rows = [event_row(record, repeats_of(blocked.rows, record), runs.get(record.at)) for record in found.records]
    older = ui.address_with(page.call.path, {"events": found.after}) if found.after else ""
    newer = ui.address_with(page.call.path, {"events": found.before}) if found.before else ""
    return ui.Listing("Events", EVENTS, rows, NO_EVENTS, older=older, newer=newer)


def repeats_of(blocked: Sequence[Blocked], record: Record) -> int:
    """Return how often an event was blocked as a repeat."""
    name = claim_of(record).key
    return sum(one.count for one in blocked if one.key == name)


def _note_of(result: msgspec.Raw | str) -> EventNote:
    try:
        return msgspec.json.decode(result, type=EventNote)
    except msgspec.DecodeError:
        return EventNote()


def _runs_of(store: Store, events: Sequence[Record]) -> Operation[dict[Address, Record]]:
    """Return the runs that these events started, as they are now."""
    begun = {one.at: _note_of(claim_of(one).result).run for one in events}
    places = {at: run_address(space_of_run(run)) for at, run in begun.items() if run}
    found = (yield from store.read_each(list(places.values()))) if places else []
    return {at: one.record for at, one in zip(places, found, strict=True) if one.record is not None}


def event_row(record: Record, repeats: int, run: Record | None = None) -> ui.ListingRow:
    """Return an event with the run that it started. Its own state tells only how far it was taken in."""
    claim = claim_of(record)
    note = _note_of(claim.result)
    fault = f"{claim.fault.type}: {claim.fault.message}" if claim.fault else claim.reason
    started = ui.text("")
    if run is not None:
        started = ui.key(claim_of(run).key, href("runs", shown_id(run.at)))
    return ui.ListingRow(
        (
            ui.when(record.created_at),
            ui.key(claim.key, href("keys", claim.operation, claim.key)),
            ui.text(note.type),
            ui.state("new" if record.state == DONE else record.state),
            ui.text(f"{repeats:,} blocked" if repeats else ""),
            started,
            ui.text("") if run is None else ui.state(run.state),
            ui.text(fault),
        ),
        name=1,
    )


async def show_letter(page: PageRequest) -> Reply:
    one = await _letter(page)
    try:
        body = (await await_(body_of_letter(page.store, one))).decode(errors="replace")
    except (Misuse, ResultNotKept) as error:
        body = str(error)
    address = href("letters", one.id)
    facts = [
        ui.Fact("webhook", ui.link(one.hook, href("webhooks", one.hook))),
        ui.Fact("came", ui.when(one.received_at)),
        ui.Fact("events", ui.text(", ".join(one.refused_events) or "none could be read")),
        ui.Fact("digest", ui.code(one.digest[:16])),
    ]
    values = [
        ("Redacted events" if one.redacted else "Body", shown_value(body, f"{address}/body")),
        ("Headers", shown_value(body_of(one.headers))),
    ]
    replay = ui.ActForm(
        f"{address}/replay",
        "Replay",
        "run",
        "It is admitted again, under the same ids: an event that was processed meanwhile starts nothing.",
        f"twiceproof hooks replay MODULE:APP {one.id}",
    )
    crumbs = (("Webhooks", "/webhooks"), (one.hook, href("webhooks", one.hook)), ("Dead letter", ""))
    plan, why_not = await _plan(page, one.id)
    lists = [ui.Listing("What a replay would do", PLAN, [plan_row(event) for event in plan], ("Nothing", why_not, ""))]
    acts = [replay] if plan else []
    made = ui.DetailPage(one.id, "kept", crumbs, facts, values, acts, lists, reason=one.reason)
    json = f"/v1{href('dead-letters', one.id)}"
    return page.details(made, ("hooks", "dead-letters", "--hook", one.hook), json)


async def _plan(page: PageRequest, name: str) -> tuple[list[PlannedEvent], str]:
    """Return what a replay would do, event by event, or why it can do nothing. Changes nothing."""
    hooks = {**page.app.hooks, **page.app.consumers}
    try:
        return await await_(plan_replay(page.app.runtime, hooks, name)), ""
    except (Misuse, ResultNotKept) as error:
        return [], str(error)


def plan_row(one: PlannedEvent) -> ui.ListingRow:
    words = "would start a run" if one.would == "start" else f"would be a {one.would}"
    run = ui.key(one.run, href("runs", one.run)) if one.run else ui.text("")
    return ui.ListingRow((ui.code(one.event), ui.text(words), run, ui.text(one.reason)))


async def _letter(page: PageRequest) -> DeadLetter:
    try:
        return await await_(find_letter(page.store, page.tenant, page.param("id")))
    except Misuse:
        raise refused(
            404, "no-such-letter", "There is no such dead letter, or it was replayed.", next_move="List them: /webhooks"
        ) from None


async def body(page: PageRequest) -> Reply:
    """The whole body as an attachment: a browser never shows it as a page."""
    found = await await_(body_of_letter(page.store, await _letter(page)))
    headers = (("content-type", "application/octet-stream"), ("content-disposition", 'attachment; filename="body.bin"'))
    return Reply(200, headers, found)


async def replay(page: PageRequest) -> Reply:
    return await page.submitted(lambda fields: _replayed(page, fields))


async def _replayed(page: PageRequest, fields: FormFields) -> FormOutcome:
    name = (await _letter(page)).id
    hooks = {**page.app.hooks, **page.app.consumers}
    admitted = await await_(replay_letter(page.app.runtime, hooks, name, by=page.actor(fields)))
    refusals = [one for one in admitted if one.outcome in ("poison", "mismatch", "busy", "failed")]
    if refusals:
        told = "; ".join(f"{one.event}: {one.reason or one.outcome}" for one in refusals)
        raise refused(409, "not-replayed", f"It still cannot be processed: {told}", next_move="Look at it again.")
    run = next((one.run for one in admitted if one.run), "")
    return FormOutcome(href("runs", shown_run(run), said="replayed") if run else href("webhooks", said="replayed"))


PAGES = (
    PageSpec("GET", "/webhooks", Scope.READ, listed, "webhooks"),
    PageSpec("GET", "/webhooks/{name}", Scope.READ, show, "webhooks"),
    PageSpec("GET", "/letters/{id}", Scope.READ, show_letter, "webhooks"),
    PageSpec("GET", "/letters/{id}/body", Scope.READ, body, "webhooks"),
    PageSpec("POST", "/letters/{id}/replay", Scope.RUN, replay, "webhooks"),
)
