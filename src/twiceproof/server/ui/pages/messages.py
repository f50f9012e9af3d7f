"""Messages of the outbox: those that need attention first; one is resent or dropped by a person."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ....clock import moment
from ....errors import Misuse
from ....inbound.reply import Reply
from ....operations import await_
from ....outbox.message import STATES
from ....outbox.pauses import list_pauses
from ....outbox.queries import MessageShape, find_messages, list_messages, message_shape
from ...routes import messages
from ...tokens import Scope
from .. import listing as ui
from ..dashboard import PageRequest, PageSpec, refused
from ..formatting import href, shown_value
from ..forms import FormFields, FormOutcome, body_with

__all__ = ["PAGES", "acts_of", "message_rows"]

MOST = 200
MOST_READ = 4_000  # messages that are looked through
UNSENT = ("parked", "publishing", "pending")
COLUMNS = tuple(ui.Column(word) for word in ("State", "Key", "Topic", "To", "Why", "Changed"))
FILTERS = (
    ui.ListingFilter("state", "State", (*STATES, "all")),
    ui.ListingFilter("to", "To"),
    ui.ListingFilter("topic", "Topic"),
)
EMPTY = (
    "Nothing waits to be sent",
    "A message is written with app.send(…) in a flow, together with the work it tells of, and published by a worker.",
    "",
)


def message_rows(found: list[MessageShape]) -> list[ui.ListingRow]:
    return [
        ui.ListingRow(
            (
                ui.state(one.state),
                ui.key(one.key, href("messages", one.key, to=one.target)),
                ui.text(one.topic),
                ui.text(one.target),
                ui.text(one.why),
                ui.when(one.updated_at),
            ),
            name=1,
        )
        for one in found
    ]


def acts_of(one: MessageShape, command: Callable[..., str]) -> list[ui.ActForm]:
    """Return what may be done with a message in its state."""
    note, hidden = (ui.ActField("note", "Why"),), (("to", one.target), ("state", one.state))
    address, to = href("messages", one.key), ("--to", one.target)
    found = []
    if one.state == "parked":
        about = "It is published again, with the same key: a consumer that had it takes it for a repeat."
        same = command("messages", "resend", one.key, *to)
        found.append(ui.ActForm(f"{address}/resend", "Resend", "approve", about, same, note, hidden=hidden))
    if one.state in ("parked", "pending"):
        about = "It is not published any more. Those that wait behind it go on."
        same = command("messages", "drop", one.key, *to, "--yes")
        found.append(ui.ActForm(f"{address}/drop", "Drop", "approve", about, same, note, hidden=hidden, is_grave=True))
    return found


async def listed(page: PageRequest) -> Reply:
    asked = page.asked("state")
    states = UNSENT if not asked else STATES if asked == "all" else (asked,)
    try:
        found = await await_(
            list_messages(
                page.store,
                page.tenant,
                states=tuple(states),
                target=page.asked("to"),
                topic=page.asked("topic"),
                limit=MOST,
                most_read=MOST_READ,
            )
        )
    except Misuse as error:
        raise refused(400, "bad-query", str(error), next_move="Remove this filter.") from None
    paused = await await_(list_pauses(page.store)) if page.is_operator else []  # a pause holds for all tenants
    pauses = [f"{one.target} is paused: {one.why or 'no reason given'}" for one in paused]
    made = ui.Listing("Messages", COLUMNS, message_rows(found), EMPTY, FILTERS, note="; ".join(pauses))
    return page.listing("Messages", made, ("messages", "list"), "/v1/messages")


async def show(page: PageRequest) -> Reply:
    one, body = await _message(page)
    facts = [
        ui.Fact("topic", ui.text(one.topic)),
        ui.Fact("to", ui.text(one.target)),
        ui.Fact("written", ui.when(one.created_at)),
        ui.Fact("changed", ui.when(one.updated_at)),
        *([ui.Fact("run", ui.key(one.run, href("runs", one.run)))] if one.run else []),
        *([ui.Fact("order", ui.code(one.order))] if one.order else []),
        *([ui.Fact("sent", ui.when(one.sent_at))] if one.sent_at else []),
        *([ui.Fact("settled by", ui.text(one.by))] if one.by else []),
        *(ui.Fact(tried.outcome, ui.text(f"{moment(tried.at)}: {tried.why}")) for tried in one.attempts),
    ]
    values = [
        ("Body", shown_value(body) if body else None),
        ("Headers", shown_value(msgspec.json.encode(one.headers))),
    ]
    made = ui.DetailPage(
        one.key,
        one.state,
        (("Messages", "/messages"), (one.topic, "")),
        facts,
        values,
        acts_of(one, page.command),
        reason=one.why,
    )
    return page.details(made, ("messages", "show", one.key), f"/v1{href('messages', one.key)}")


async def _message(page: PageRequest) -> tuple[MessageShape, str]:
    """Return a message, and its body as it was written."""
    name, to = page.param("key"), page.asked("to")
    found = await await_(find_messages(page.store, page.tenant, name, to, most_read=MOST_READ))
    if not found:
        raise refused(404, "no-such-message", "There is no such message.", next_move="List them: /messages")
    record, message = found[0]
    return message_shape(record, message), message.body


def _decide(decision: str, said: str) -> PageSpec:
    async def act(page: PageRequest) -> Reply:
        name = page.param("key")

        async def done(fields: FormFields) -> FormOutcome:
            given = {"decision": decision, **{one: fields.get(one, "") for one in ("to", "note", "state")}}
            back = href("messages", name, to=fields.get("to", ""), said=said)
            return await page.by_api(
                messages.decide, {"key": name}, body_with({**given, **page.acting_as(fields)}), back
            )

        return await page.submitted(done)

    return PageSpec("POST", f"/messages/{{key}}/{decision}", Scope.APPROVE, act, "messages")


PAGES = (
    PageSpec("GET", "/messages", Scope.READ, listed, "messages"),
    PageSpec("GET", "/messages/{key}", Scope.READ, show, "messages"),
    _decide("resend", "resent"),
    _decide("drop", "dropped"),
)
