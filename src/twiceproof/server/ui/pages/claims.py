"""Claims that are not runs: calls under @app.once, the claim service, events of webhooks."""

from __future__ import annotations

from collections.abc import Sequence

from ....claims.claim import CLAIM, DONE, FAILED, HELD, REVIEW, claim_of, validate_name
from ....claims.lists import ListPlace, list_records
from ....claims.states import is_lapsed
from ....errors import Misuse
from ....inbound.reply import Reply
from ....operations import await_
from ....records import Record
from ...tokens import Scope
from .. import listing as ui
from ..dashboard import PageRequest, PageSpec, refused
from ..formatting import href

__all__ = ["PAGES", "claim_row"]

ROWS = 50
STATES = (REVIEW, HELD, FAILED, DONE)
COLUMNS = tuple(ui.Column(word) for word in ("State", "Operation", "Key", "Why", "Holder", "Changed"))
FILTERS = (ui.ListingFilter("state", "State", STATES), ui.ListingFilter("operation", "Operation"))
EMPTY = (
    "No claim is on record",
    "A claim is made by a call under @app.once, by PUT /v1/claims/…, and for each event of a webhook.",
    "",
)


def claim_row(record: Record, now: float) -> ui.ListingRow:
    claim = claim_of(record)
    fault = f"{claim.fault.type}: {claim.fault.message}" if claim.fault else claim.reason
    lapsed = record.state == HELD and is_lapsed(record, now)
    return ui.ListingRow(
        (
            ui.state(record.state),
            ui.text(claim.operation),
            ui.key(claim.key, href("keys", claim.operation, claim.key)),
            ui.text(f"its lease ran out; {fault}" if lapsed else fault),
            ui.text(claim.owner if record.state == HELD else ""),
            ui.when(record.updated_at),
        ),
        name=2,
    )


def _prefix(page: PageRequest) -> str:
    operation = page.asked("operation")
    try:
        return f"{page.tenant}/{validate_name('operation', operation)}/" if operation else f"{page.tenant}/"
    except Misuse as error:
        raise refused(400, "bad-query", str(error), next_move="Remove this filter.") from None


def _states(asked: str) -> Sequence[str]:
    if asked and asked not in STATES:
        raise refused(400, "bad-query", "This is not a state of a claim.", next_move="Remove this filter.")
    return (asked,) if asked else STATES


async def listed(page: PageRequest) -> Reply:
    prefix, states = _prefix(page), _states(page.asked("state"))
    places: list[ListPlace] = [(CLAIM, None)] if states == STATES else [(CLAIM, state) for state in states]
    after = page.asked("after") or None
    try:
        found = await await_(
            list_records(
                page.store, places, lambda one: one.at.space.startswith(prefix), limit=ROWS, after=after, prefix=prefix
            )
        )
    except Misuse:
        raise refused(404, "no-such-page", "This place is not known.", next_move="Begin at /claims.") from None
    asked = {name: page.asked(name) for name in ("state", "operation") if page.asked(name)}
    made = ui.Listing(
        "Claims",
        COLUMNS,
        [claim_row(record, found.now) for record in found.records],
        EMPTY,
        FILTERS,
        older=ui.address_with("/claims", {**asked, "after": found.after}) if found.after else "",
        newer=ui.address_with("/claims", {**asked, "after": found.before}) if found.before else "",
    )
    options = (
        "--state",
        asked.get("state", "all"),
        *(("--operation", asked["operation"]) if "operation" in asked else ()),
    )
    return page.listing("Claims", made, ("claims", "list", *options), ui.address_with("/v1/claims", asked))


PAGES = (PageSpec("GET", "/claims", Scope.READ, listed, "claims"),)
